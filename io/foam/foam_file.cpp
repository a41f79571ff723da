// SPDX-License-Identifier: Apache-2.0
#include "io/foam/foam_file.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/gzip.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

namespace meshard {

namespace {

constexpr std::string_view punctuation = "(){}[];";

// What these directives do does not change a mesh or its fields.
constexpr std::array<std::string_view, 5> without_effect{"#inputSyntax", "#includeEtc", "#sincludeEtc", "#includeFunc",
                                                         "#message"};

bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

std::string excerpt(std::string_view text)
{
    std::string result(text.substr(0, 40));
    for (char& c : result)
        if (c < ' ' || c > '~') c = '?';
    return "'" + result + "'";
}

std::filesystem::path with_gz(std::filesystem::path path)
{
    return path += ".gz";
}

/// `List<vector>` -> `vector`; empty for other words.
std::string_view list_type(std::string_view word)
{
    if (!word.starts_with("List<") || !word.ends_with(">")) return {};
    return word.substr(5, word.size() - 6);
}

}  // namespace

int foam_components(std::string_view type)
{
    if (type == "scalar" || type == "label" || type == "sphericalTensor") return 1;
    if (type == "vector") return 3;
    if (type == "symmTensor") return 6;
    if (type == "tensor") return 9;
    return 0;
}

const FoamEntry* FoamEntry::find(std::string_view name) const
{
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry)
        if (entry->key == name) return &*entry;
    return nullptr;
}

std::string FoamEntry::word(std::string_view name) const
{
    const FoamEntry* entry = find(name);
    return entry == nullptr || entry->words.empty() ? std::string() : entry->words.front();
}

FoamFile::FoamFile(const std::filesystem::path& path) : FoamFile(path, true) {}

FoamFile::FoamFile(const std::filesystem::path& path, bool with_header) : path_(path)
{
    load(path);
    if (with_header) read_header();
}

bool FoamFile::exists(const std::filesystem::path& path)
{
    std::error_code ignored;
    return std::filesystem::is_regular_file(path, ignored) || std::filesystem::is_regular_file(with_gz(path), ignored);
}

std::optional<FoamFile> FoamFile::open_if_foam(const std::filesystem::path& path)
{
    FoamFile file(path, false);
    const std::string_view beginning = file.text_.substr(0, 10000);
    if (beginning.find("FoamFile") == std::string_view::npos || file.peek() != 'F') return std::nullopt;
    file.read_header();
    return file;
}

void FoamFile::load(const std::filesystem::path& path)
{
    std::error_code ignored;
    const bool plain = std::filesystem::exists(path, ignored) || !std::filesystem::exists(with_gz(path), ignored);
    const auto found = plain ? path : with_gz(path);
    where_ = "read_mesh: " + found.string();
    file_ = MappedFile::open(found, "read_mesh");
    text_ = file_->text();
    if (plain) return;
    inflated_ = std::make_shared<const std::string>(gunzip(file_->bytes(), where_));
    text_ = *inflated_;
}

void FoamFile::fail(const std::string& what) const
{
    throw IoError("{}: {}.", where_, what);
}

void FoamFile::read_header()
{
    if (text_.empty()) fail("the file is empty, a file of OpenFOAM's is expected");
    if (peek() != 'F' || next_word() != "FoamFile")
        fail("expected the header 'FoamFile { ... }' of OpenFOAM's files, found something else");
    FoamEntry header;
    expect('{');
    read_entries({header}, 1, true);
    class_ = header.word("class");
    const std::string format = header.word("format");
    if (format != "ascii" && format != "binary")
        fail("the header has format '" + format + "', expected ascii or binary");
    binary_ = format == "binary";
    if (const FoamEntry* entry = header.find("note"); entry != nullptr && !entry->words.empty())
        note_ = entry->words.front();
    const std::string arch = header.word("arch");
    if (arch.find("MSB") != std::string::npos)
        fail("its numbers are big endian (arch MSB). Convert it with foamFormatConvert on the machine that wrote it");
    if (arch.find("label=64") != std::string::npos) label_size_ = 8;
    if (arch.find("scalar=32") != std::string::npos) scalar_size_ = 4;
}

void FoamFile::skip_blanks()
{
    for (;;) {
        while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
        const std::string_view rest = text_.substr(at_);
        if (rest.starts_with("//"))
            at_ = std::min(text_.find('\n', at_), text_.size());
        else if (rest.starts_with("/*")) {
            const std::size_t end = text_.find("*/", at_ + 2);
            if (end == std::string_view::npos) fail("ends inside a comment. It is truncated");
            at_ = end + 2;
        } else {
            return;
        }
    }
}

bool FoamFile::at_end()
{
    skip_blanks();
    return at_ == text_.size();
}

char FoamFile::peek()
{
    return at_end() ? '\0' : text_[at_];
}

std::string_view FoamFile::next_word()
{
    if (at_end())
        fail(fmt::format("the file ends after {} bytes where more is expected: it is truncated. Copy or write it again",
                         text_.size()));
    const std::size_t begin = at_;
    if (text_.substr(at_).starts_with("#{")) {  // code, as it stands
        at_ = text_.find("#}", at_ + 2);
        if (at_ == std::string_view::npos) fail(fmt::format("code that begins at byte {} has no end '#}}'", begin));
        at_ += 2;
        return text_.substr(begin, at_ - begin);
    }
    if (punctuation.find(text_[at_]) != std::string_view::npos) return text_.substr(at_++, 1);
    if (text_[at_] == '"') {
        do {
            at_ = text_.find('"', at_ + 1);
            if (at_ == std::string_view::npos)
                fail(fmt::format("a string that begins at byte {} has no end. It is truncated", begin));
        } while (text_[at_ - 1] == '\\');
        return text_.substr(begin, ++at_ - begin);
    }
    // Words may hold balanced parentheses, as in `div(phi,U)`.
    int open = 0;
    if (text_.substr(begin, 2) == "${") {
        const auto end = text_.find('}', begin);
        if (end != std::string_view::npos) at_ = end + 1;
    }
    for (; at_ < text_.size(); ++at_) {
        const char c = text_[at_];
        if (is_blank(c) || c == ';' || c == '{' || c == '}' || c == '[' || c == ']' || c == '"') break;
        if (c == '(' && at_ > begin &&
            std::string_view("0123456789.>").find(text_[at_ - 1]) != std::string_view::npos && open == 0) {
            // `4(0 1 2 3)` and `List<label>(...)`: a number or a type before a list
            const std::string_view word = text_.substr(begin, at_ - begin);
            if (word.front() == '-' || (word.front() >= '0' && word.front() <= '9') || word.back() == '>') break;
        }
        if (c == '(') ++open;
        if (c == ')' && --open < 0) break;
    }
    return text_.substr(begin, at_ - begin);
}

void FoamFile::expect(char c)
{
    if (peek() != c)
        fail(fmt::format("expected '{}' at byte {}, found {}", c, at_,
                         at_ == text_.size() ? "the end: it is truncated" : excerpt(text_.substr(at_, 20))));
    ++at_;
}

template <class T>
T FoamFile::next_number()
{
    skip_blanks();
    const std::size_t begin = at_;
    T number{};
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    if (error == std::errc{} &&
        (end == text_.data() + text_.size() || is_blank(*end) || punctuation.find(*end) != std::string_view::npos)) {
        at_ = static_cast<std::size_t>(end - text_.data());
        return number;
    }
    const std::string_view word = next_word();  // rarer spellings: +1, 1e-400
    if (const auto value = parse_number<T>(word)) return *value;
    fail(fmt::format("expected a number at byte {}, found {}", begin, excerpt(word)));
}

std::int64_t FoamFile::next_count(std::size_t bytes_per_row)
{
    const auto count = next_number<std::int64_t>();
    if (count < 0) fail(fmt::format("a list has the negative length {}", count));
    if (static_cast<std::uint64_t>(count) > (text_.size() - at_) / bytes_per_row + 1)
        fail(fmt::format(
            "a list should have {} rows, more than the {} bytes that are left can hold. It is truncated or damaged",
            count, text_.size() - at_));
    if (count > std::numeric_limits<std::int32_t>::max())
        fail(fmt::format("a list has {} rows, a mesh holds at most 2147483647", count));
    return count;
}

const std::byte* FoamFile::take_raw(std::size_t size)
{
    if (text_.size() - at_ < size)
        fail(fmt::format("the file ends within a list of {} bytes: it is truncated. Copy or write it again", size));
    const auto* data = reinterpret_cast<const std::byte*>(text_.data() + at_);
    at_ += size;
    return data;
}

ScalarType FoamFile::scalar_type() const
{
    return scalar_size_ == 4 && binary_ ? ScalarType::Float32 : ScalarType::Float64;
}

/// Reads rows after their number: `( ... )`, in binary files with raw bytes between the parentheses. An empty list may
/// lack the parentheses.
DataArray FoamFile::read_rows(std::int64_t num_rows, int num_components, bool labels, bool parenthesised)
{
    const ScalarType type =
        labels ? (label_size_ == 8 && binary_ ? ScalarType::Int64 : ScalarType::Int32) : scalar_type();
    DataArray rows("", type, num_rows, num_components);
    if (num_rows == 0 && peek() != '(') return rows;
    expect('(');
    if (binary_ && num_rows > 0) {
        const auto bytes = rows.mutable_bytes();
        std::memcpy(bytes.data(), take_raw(bytes.size()), bytes.size());
    } else {
        with_scalar_type(type, [&]<class T>() {
            const auto values = rows.mutable_values<T>();
            for (std::size_t i = 0; i < values.size();) {
                if (parenthesised) expect('(');
                for (int c = 0; c < num_components; ++c) values[i++] = next_number<T>();
                if (parenthesised) expect(')');
            }
        });
    }
    expect(')');
    return rows;
}

DataArray FoamFile::read_vectors()
{
    const std::int64_t count = next_count(binary_ ? 3 * scalar_size_ : 7);
    return read_rows(count, 3, false, true);
}

std::vector<std::int32_t> FoamFile::read_labels()
{
    std::vector<std::string> no_words;
    const DataArray rows = *read_typed_list("label", no_words);
    std::vector<std::int32_t> labels;
    labels.reserve(rows.num_rows());
    with_scalar_type(rows.type(), [&]<class T>() {
        for (const T value : rows.values<T>()) {
            labels.push_back(static_cast<std::int32_t>(value));
            if (static_cast<T>(labels.back()) != value)
                fail(fmt::format("the label {} is beyond 32 bits, which a mesh cannot number", value));
        }
    });
    return labels;
}

Csr FoamFile::read_faces()
{
    Csr faces;
    if (binary_ && class_ == "faceCompactList") {
        const auto starts = read_labels();
        faces.indices = read_labels();
        faces.offsets.assign(starts.begin(), starts.end());
        if (faces.offsets.empty()) faces.offsets.push_back(0);
        if (faces.offsets.front() != 0 || !std::ranges::is_sorted(faces.offsets) ||
            faces.offsets.back() != faces.num_entries())
            fail("the first list does not say where each face begins in the second. It is damaged");
        return faces;
    }
    const std::int64_t count = next_count(2);
    if (count == 0 && peek() != '(') return faces;
    expect('(');
    faces.offsets.reserve(static_cast<std::size_t>(count) + 1);
    for (std::int64_t i = 0; i < count; ++i) faces.push_row(read_labels());
    expect(')');
    return faces;
}

std::vector<FoamEntry> FoamFile::read_named_entries()
{
    const std::int64_t count = next_count(2);
    FoamEntry all;
    if (count == 0 && peek() != '(') return {};
    expect('(');
    while (peek() != ')') {
        FoamEntry entry = read_entry({all}, 0);
        if (!entry.is_dictionary) fail("the entry " + excerpt(entry.key) + " has no '{ ... }'");
        all.entries.push_back(std::move(entry));
    }
    expect(')');
    if (std::ssize(all.entries) != count)
        fail(fmt::format("announces {} entries, but has {}. It is damaged", count, all.entries.size()));
    return std::move(all.entries);
}

FoamEntry FoamFile::read_dictionary(std::int64_t most_rows)
{
    most_rows_ = most_rows;
    FoamEntry root;
    root.is_dictionary = true;
    read_entries({root}, 0, false);
    return root;
}

/// Puts the case's folder in place of the names that OpenFOAM has for it at the beginning of a path.
std::filesystem::path FoamFile::in_case(const std::string& name) const
{
    for (const std::string_view start : {"$FOAM_CASE/", "${FOAM_CASE}/", "<case>/"}) {
        if (!name.starts_with(start)) continue;
        auto folder = absolute(path_).parent_path();  // a processor's folder has constant, and no system
        while (folder.has_relative_path() && !is_directory(folder / "system")) folder = folder.parent_path();
        return folder / name.substr(start.size());
    }
    return name;
}

/// Returns the entry that `$name`, `${name}` or `$group.name` stands for, null if there is none: the nearest in this
/// dictionary and those around it. `$:` and `$!` look at top level, `$.` in this dictionary, `$..` in the one around
/// it.
const FoamEntry* FoamFile::Scope::referenced(std::string_view word) const
{
    word.remove_prefix(1);
    if (word.starts_with('{')) word = word.substr(1, word.size() - 2);
    const auto* scope = this;
    bool is_fixed = false;  // names one dictionary
    if (word.starts_with(':') || word.starts_with('!')) {
        word.remove_prefix(1);
        while (scope->outer != nullptr) scope = scope->outer;
    } else if (word.starts_with('.')) {
        is_fixed = true;
        for (word.remove_prefix(1); word.starts_with('.') && scope != nullptr; word.remove_prefix(1))
            scope = scope->outer;
    }
    for (; scope != nullptr; scope = is_fixed ? nullptr : scope->outer) {
        if (const FoamEntry* entry = scope->dictionary.find(word)) return entry;
        const FoamEntry* entry = &scope->dictionary;
        for (std::size_t begin = 0; entry != nullptr && begin <= word.size();) {
            const auto end = std::min(word.find_first_of("./", begin), word.size());
            entry = entry->find(word.substr(begin, end - begin));
            begin = end + 1;
        }
        if (entry != nullptr) return entry;
    }
    return nullptr;
}

/// Adds an entry as OpenFOAM's input mode `merge` does: a dictionary that stands twice has the entries of both.
void FoamFile::Scope::add(FoamEntry entry) const
{
    auto& entries = dictionary.entries;
    const auto key_of = [](const FoamEntry& one) { return (one.is_pattern ? "\"" : "") + one.key; };
    const auto key = key_of(entry);
    if (!entry.is_dictionary) {
        dictionaries.erase(key);
        entries.push_back(std::move(entry));
    } else if (const auto [before, is_new] = dictionaries.emplace(key, entries.size()); is_new) {
        entries.push_back(std::move(entry));
    } else {
        const Scope earlier{entries[before->second], outer};
        for (std::size_t i = 0; i < earlier.dictionary.entries.size(); ++i) {
            const auto& one = earlier.dictionary.entries[i];
            if (one.is_dictionary) earlier.dictionaries[key_of(one)] = i;
        }
        for (auto& one : entry.entries) earlier.add(std::move(one));
    }
}

void FoamFile::read_entries(const Scope& into, int depth, bool until_brace)
{
    if (depth > max_depth) fail(fmt::format("dictionaries are nested more than {} deep", max_depth));
    for (;;) {
        if (until_brace ? peek() == '}' : at_end()) break;
        if (peek() == ';') {  // an empty entry, or a semicolon after `}` in some files
            ++at_;
            continue;
        }
        if (peek() == '#') {
            const std::string directive(next_word());
            if (directive == "#include" || directive == "#includeIfPresent" || directive == "#sinclude") {
                std::string name(next_word());
                if (name.size() > 2 && name.front() == '"') name = name.substr(1, name.size() - 2);
                const auto path = path_.parent_path() / in_case(name);
                if (directive != "#include" && !exists(path)) continue;
                if (include_depth_ >= 8) fail("files include each other more than 8 deep");
                FoamFile included(path, false);
                included.include_depth_ = include_depth_ + 1;
                included.most_rows_ = most_rows_;
                included.read_entries(into, depth, false);
            } else if (directive == "#inputMode") {
                const auto mode = next_word();
                if (mode != "merge" && mode != "default")
                    fail(fmt::format(
                        "#inputMode {} before byte {} is not known here, only merge. Let OpenFOAM write the "
                        "file without it: foamDictionary -expand",
                        mode, at_));
            } else if (contains(without_effect, directive)) {
                at_ = std::min(text_.find('\n', at_), text_.size());
            } else {
                fail(fmt::format(
                    "the directive {} before byte {} is not known here. Let OpenFOAM write the file without "
                    "it: foamDictionary -expand",
                    excerpt(directive), at_));
            }
            continue;
        }
        if (peek() == '$') {  // a reference to all entries of another dictionary
            const FoamEntry* other = into.referenced(next_word());
            if (peek() == ';') ++at_;
            if (other != nullptr) {
                for (auto& copy : std::vector<FoamEntry>(other->entries)) into.add(std::move(copy));
            }
            continue;
        }
        into.add(read_entry(into, depth));
    }
    if (until_brace) expect('}');
}

FoamEntry FoamFile::read_entry(const Scope& scope, int depth)
{
    FoamEntry entry;
    const std::string_view key = next_word();
    if (punctuation.find(key.front()) != std::string_view::npos)
        fail(fmt::format("expected a name at byte {}, found {}", at_ - 1, excerpt(key)));
    entry.is_pattern = key.front() == '"';
    entry.key = entry.is_pattern ? key.substr(1, key.size() - 2) : key;
    if (peek() == '{') {
        ++at_;
        entry.is_dictionary = true;
        read_entries({entry, &scope}, depth + 1, true);
    } else {
        read_value(entry, scope);
    }
    return entry;
}

void FoamFile::read_value(FoamEntry& entry, const Scope& scope)
{
    int depth = 0;
    while (depth > 0 || peek() != ';') {
        if (depth == 0 && peek() == '}') return;  // the last entry of a dictionary lacks its semicolon
        std::string_view word = next_word();
        if (const std::string_view type = list_type(word); !type.empty()) {
            if (auto list = read_typed_list(type, entry.words)) entry.list = std::move(list);
            continue;
        }
        if (word == "(" || word == "[" || word == "{") ++depth;
        if (word == ")" || word == "]" || word == "}") --depth;
        if (depth < 0) fail("found " + excerpt(word) + " in the entry " + excerpt(entry.key) + ", expected ';'");
        if (word.starts_with('$')) {
            if (const FoamEntry* other = scope.referenced(word); other != nullptr && !other->is_dictionary) {
                append(entry.words, other->words);
                if (other->list) entry.list = other->list;
                continue;
            }
        }
        if (word.starts_with('"')) word = word.substr(1, word.size() - 2);
        entry.words.emplace_back(word);
    }
    ++at_;
}

/// Reads what follows `List<type>`: `3(1 2 3)`, `3{0}` or `0`. Lists of types without numbers become words.
std::optional<DataArray> FoamFile::read_typed_list(std::string_view type, std::vector<std::string>& words)
{
    const int num_components = foam_components(type);
    if (num_components == 0) {
        if (binary_ && type != "word" && type != "string" && type != "fileName" && type != "keyType")
            fail("has a binary list of " + excerpt(type) + ", whose size is not known");
        words.emplace_back("List<" + std::string(type) + ">");
        return std::nullopt;
    }
    const bool labels = type == "label";
    const bool parenthesised = !binary_ && type != "scalar" && !labels;
    const std::size_t value_size = labels ? label_size_ : scalar_size_;
    const std::size_t before = at_;
    const auto announced = next_number<std::int64_t>();
    if (announced > 0 && peek() == '{') {
        if (announced > most_rows_)
            fail(fmt::format("a list repeats a value {} times, expected at most {}", announced, most_rows_));
        ++at_;
        // In binary files a repeated value is raw as well, without parentheses.
        DataArray one("", labels ? ScalarType::Int64 : ScalarType::Float64, 1, num_components);
        if (parenthesised) expect('(');
        for (int c = 0; c < num_components; ++c) {
            if (labels)
                one.mutable_values<std::int64_t>()[c] =
                    binary_ ? static_cast<std::int64_t>(0) : next_number<std::int64_t>();
            else if (!binary_)
                one.mutable_values<double>()[c] = next_number<double>();
        }
        if (binary_) {
            const std::byte* raw = take_raw(value_size * static_cast<std::size_t>(num_components));
            for (int c = 0; c < num_components; ++c) {
                const std::byte* value = raw + static_cast<std::size_t>(c) * value_size;
                const auto read_as = [&]<class T>(T) {
                    T number;
                    std::memcpy(&number, value, sizeof number);
                    return number;
                };
                if (labels)
                    one.mutable_values<std::int64_t>()[c] =
                        label_size_ == 8 ? read_as(std::int64_t{}) : read_as(std::int32_t{});
                else
                    one.mutable_values<double>()[c] = scalar_size_ == 4 ? read_as(float{}) : read_as(double{});
            }
        }
        if (parenthesised) expect(')');
        expect('}');
        return one.gather(std::vector<std::int32_t>(announced, 0));
    }
    at_ = before;
    const std::int64_t count = next_count(binary_ ? value_size * static_cast<std::size_t>(num_components) : 2);
    return read_rows(count, num_components, labels, parenthesised);
}

}  // namespace meshard
