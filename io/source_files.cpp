// SPDX-License-Identifier: Apache-2.0
#include "io/source_files.h"

#include "io/bytes/atomic_file.h"
#include "io/bytes/file_pattern.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/xml.h"
#include "io/foam/foam_reader.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace meshard {

namespace {

namespace fs = std::filesystem;

/// The separators between file names in a file with this extension; empty if such a file refers to no others.
std::string_view separators_in(const fs::path& path)
{
    const auto extension = lower_extension(path);
    constexpr std::string_view quoted[] = {".pvtu", ".pvtp", ".pvti", ".pvtr", ".vtm", ".vtpc", ".pvd", ".series"};
    if (contains(quoted, extension)) return "\"";
    return extension == ".case" ? " \t\r\n" : "";
}

/// Files of that name in a case file; `*`, which EnSight writes for a digit, matches any single character.
std::vector<fs::path> files_named(const fs::path& folder, std::string_view name)
{
    if (name.find('*') == std::string_view::npos) return {folder / name};
    std::string pattern;
    for (const char c : name) pattern += c == '*' ? "?" : pattern_of_text(std::string_view(&c, 1));
    return files_matching(folder, pattern);
}

/// Appends every value of an attribute.
void add_attributes(const XmlElement& element, std::vector<std::string>& values)
{
    for (const auto& [name, value] : element.attributes) values.push_back(value);
    for (const XmlElement& child : element.children) add_attributes(child, values);
}

std::vector<std::string> words_in(std::string_view text, std::string_view separators)
{
    try {
        std::vector<std::string> values, ignored;
        if (text.find("<VTKFile") != std::string_view::npos) {
            add_attributes(parse_xml(text, "", ignored), values);
            return values;
        }
    } catch (const IoError&) {  // damaged files are reported by their reader
    }
    std::vector<std::string> words;
    while (!text.empty()) {
        const auto end = std::min(text.find_first_of(separators), text.size());
        if (end > 0) words.emplace_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return words;
}

/// Adds every word that is the name of a file: the result may have more files than are read.
void add_with_named_files(const fs::path& path, std::set<fs::path>& files)
{
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored) || !files.insert(path.lexically_normal()).second) return;
    const auto separators = separators_in(path);
    if (separators.empty()) return;
    const auto file = MappedFile::open(path, "read_mesh");
    constexpr std::size_t longest_name = 4096;
    for (const std::string& word : words_in(file->text(), separators))
        if (word.size() < longest_name)
            // The pieces of a linked index may be beside the link or its target.
            for (const auto& folder : {path.parent_path(), followed_links(path).parent_path()})
                for (const auto& name : files_named(folder, word)) add_with_named_files(name, files);
}

std::optional<double> time_named(const std::string& name)
{
    double time = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), time);
    return error == std::errc() && end == name.data() + name.size() ? std::optional(time) : std::nullopt;
}

/// For times before the latest only meshes are added: a mesh is valid until a later one replaces it.
void add_case_files(const fs::path& folder, bool only_meshes, int depth, std::set<fs::path>& files)
{
    constexpr int deepest = 8;  // a link may lead back up
    if (depth > deepest) return;
    std::optional<double> latest;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const auto time = entry.is_directory() ? time_named(entry.path().filename().string()) : std::nullopt;
        if (time && (!latest || *time > *latest)) latest = time;
    }
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const auto name = entry.path().filename().string();
        if (entry.is_directory(ignored)) {
            const auto time = time_named(name);
            add_case_files(entry.path(), name != "polyMesh" && (only_meshes || (time && *time < *latest)), depth + 1,
                           files);
        } else if (!only_meshes && entry.is_regular_file(ignored)) {
            files.insert(entry.path().lexically_normal());
        }
    }
}

}  // namespace

std::vector<fs::path> source_files(const fs::path& path)
{
    std::set<fs::path> files;
    std::error_code ignored;
    if (is_foam_case(path)) {
        try {
            add_case_files(fs::is_directory(path, ignored) ? path : fs::absolute(path).parent_path(), false, 0, files);
        } catch (const fs::filesystem_error& error) {
            throw IoError("read_mesh: {} cannot be read: {}.", path.string(), error.code().message());
        }
    } else if (fs::is_directory(path / "", ignored) && fs::exists(path / "zarr.json", ignored)) {
        for (const auto& entry : fs::recursive_directory_iterator(path))
            if (entry.is_regular_file(ignored)) files.insert(entry.path().lexically_normal());
    } else {
        add_with_named_files(path, files);
    }
    if (files.empty()) throw IoError("read_mesh: {} is neither a file nor an OpenFOAM case.", path.string());
    return {files.begin(), files.end()};
}

}  // namespace meshard
