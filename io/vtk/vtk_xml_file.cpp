// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_xml_file.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/base64.h"
#include "io/bytes/text_encoding.h"
#include "io/bytes/time_choice.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace meshard {

namespace {

static_assert(std::endian::native == std::endian::little, "the byte order of files is compared with little endian");

std::string_view trimmed(std::string_view text)
{
    const std::size_t begin = text.find_first_not_of(kXmlBlanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kXmlBlanks) - begin + 1);
}

bool scalar_type_from_name(std::string_view name, ScalarType& type)
{
    for (int i = 0; i <= static_cast<int>(ScalarType::String); ++i) {
        type = static_cast<ScalarType>(i);
        if (to_string(type) == name) return true;
    }
    return false;
}

/// The name of the UTF-16 encoding of a document: by its byte order mark, or by '<' as its first character.
std::string_view utf16_of(std::string_view text)
{
    if (text.starts_with("\xFF\xFE") || text.starts_with(std::string_view("<\0", 2))) return "UTF-16LE";
    if (text.starts_with("\xFE\xFF") || text.starts_with(std::string_view("\0<", 2))) return "UTF-16BE";
    return {};
}

/// Returns whether the values of an array are text, as they are without any format.
bool is_ascii(const XmlElement& element)
{
    const auto* format = element.attribute("format");
    if (format != nullptr && (*format == "binary" || *format == "appended")) return false;
    return (format != nullptr && *format == "ascii") || element.attribute("offset") == nullptr;
}

bool is_of_bits(const XmlElement& element)
{
    const auto* type = element.attribute("type");
    return type != nullptr && *type == "Bit";
}

std::shared_ptr<std::byte[]> allocate(std::size_t size)
{
    return std::shared_ptr<std::byte[]>(new std::byte[size]);
}

}  // namespace

VtkXmlFile::VtkXmlFile(const std::filesystem::path& path) : VtkXmlFile(path, MappedFile::open(path, "read_mesh")) {}

VtkXmlFile::VtkXmlFile(const std::filesystem::path& path, std::shared_ptr<const MappedFile> file)
    : where_("read_mesh: " + path.string()), file_(std::move(file))
{
    parse(file_->text());
}

VtkXmlFile::VtkXmlFile(const std::filesystem::path& path, std::string document)
    : where_("read_mesh: " + path.string()), converted_(std::make_shared<const std::string>(std::move(document)))
{
    parse(*converted_);
}

void VtkXmlFile::parse(std::string_view text)
{
    if (text.empty()) fail("the file is empty, a VTK XML file is expected");
    if (const auto encoding = utf16_of(text); !encoding.empty()) {
        auto converted = utf8_from(text, encoding);
        if (!converted)
            fail("it begins as " + std::string(encoding) + " and holds something else. The file is damaged");
        converted_ = std::make_shared<const std::string>(std::move(*converted));
        text = *converted_;
    }
    const std::string_view beginning = text.substr(0, 1000);
    if (beginning.find('<') == std::string_view::npos ||
        beginning[beginning.find_first_not_of("\xEF\xBB\xBF \t\r\n")] != '<')
        fail("expected a VTK XML file, which begins with '<', found something else. Is the extension right?");
    root_ = parse_xml(text, where_, warnings_);
    if (root_.name != "VTKFile") fail("expected the root element <VTKFile>, found <" + root_.name + ">");

    if (const auto* type = root_.attribute("type")) type_ = *type;
    if (const auto* order = root_.attribute("byte_order")) swapped_ = *order == "BigEndian";
    if (const auto* compressor = root_.attribute("compressor")) compressor_ = *compressor;
    for (const Compression compression : {Compression::Zlib, Compression::Lz4, Compression::Lzma})
        if (is_available(compression) && vtk_compressor_name(compression) == compressor_) compression_ = compression;
    if (const auto* header = root_.attribute("header_type")) {
        if (*header != "UInt32" && *header != "UInt64")
            fail("header_type '" + *header + "' is neither UInt32 nor UInt64");
        word_size_ = *header == "UInt64" ? 8 : 4;
    }
    if (const XmlElement* appended = root_.child("AppendedData")) {
        const auto* encoding = appended->attribute("encoding");
        appended_is_base64_ = encoding == nullptr || *encoding == "base64";
        if (!appended_is_base64_ && *encoding != "raw") fail("appended data in unknown encoding '" + *encoding + "'");
        const std::size_t mark = appended->text.find_first_not_of(kXmlBlanks);
        if (mark == std::string_view::npos || appended->text[mark] != '_')
            fail("appended data do not begin with '_': the file is damaged");
        appended_ = appended->text.substr(mark + 1);
    }
    const XmlElement* data_set = root_.child(type_);
    const auto* times = data_set != nullptr ? data_set->attribute("TimeValues") : nullptr;
    if (times == nullptr) return;
    for (TextScanner scanner(*times); !scanner.at_end();) {
        const auto time = scanner.number<double>();
        if (!time) fail("TimeValues=\"" + *times + "\" are not numbers");
        times_.push_back(*time);
    }
}

void VtkXmlFile::choose_time(double wanted)
{
    if (times_.empty()) return;
    const auto found = index_of_time(times_, wanted);
    if (!found)
        fail(fmt::format("it has no such time; its {} times are {} to {}", times_.size(), times_.front(),
                         times_.back()));
    time_step_ = *found;
}

bool VtkXmlFile::is_of_time_step(const XmlElement& element) const
{
    const auto* steps = element.attribute("TimeStep");
    if (steps == nullptr) return true;
    bool is_of_step = false;
    for (TextScanner scanner(*steps); !scanner.at_end() && !is_of_step;)
        is_of_step = scanner.number<std::size_t>() == time_step_;
    return is_of_step;
}

void VtkXmlFile::fail(const std::string& what) const
{
    throw IoError("{}: {}.", where_, what);
}

bool VtkXmlFile::is_at_least(int major, int minor) const
{
    const auto* text = root_.attribute("version");
    if (text == nullptr) return false;
    const std::size_t point = std::min(text->find('.'), text->size());
    const int found_major = parse_number<int>(std::string_view(*text).substr(0, point)).value_or(0);
    const int found_minor =
        point == text->size() ? 0 : parse_number<int>(std::string_view(*text).substr(point + 1)).value_or(0);
    return found_major > major || (found_major == major && found_minor >= minor);
}

bool VtkXmlFile::has_known_compressor() const
{
    return compressor_.empty() || compression_ != Compression::None;
}

const XmlElement& VtkXmlFile::require_child(const XmlElement& parent, std::string_view name) const
{
    const XmlElement* child = parent.child(name);
    if (child == nullptr) fail("<" + parent.name + "> has no <" + std::string(name) + ">");
    return *child;
}

std::int64_t VtkXmlFile::read_count(const XmlElement& element, std::string_view attribute) const
{
    const auto* text = element.attribute(attribute);
    if (text == nullptr) fail("<" + element.name + "> has no " + std::string(attribute));
    const auto value = parse_number<std::int64_t>(trimmed(*text));
    if (!value || *value < 0 || *value > std::numeric_limits<std::int32_t>::max())
        fail("<" + element.name + "> has " + std::string(attribute) + "=\"" + *text +
             "\", a count from 0 to 2147483647 is expected");
    return *value;
}

ArrayEncoding VtkXmlFile::encoding() const
{
    if (!has_known_compressor())
        fail("arrays are compressed with '" + compressor_ +
             "', which is not known. Write the file again with zlib, or without compression");
    return {compression_, word_size_, swapped_};
}

DataArray VtkXmlFile::declared_array(const XmlElement& element) const
{
    const auto* name_text = element.attribute("Name");
    const std::string name = name_text != nullptr ? *name_text : std::string();
    const auto* type_text = element.attribute("type");
    ScalarType type{};
    if (is_of_bits(element))
        type = ScalarType::UInt8;
    else if (type_text == nullptr || !scalar_type_from_name(*type_text, type))
        fail("array '" + name + "' has type '" + (type_text != nullptr ? *type_text : "") +
             "', expected one of Int8 ... UInt64, Float32, Float64, Bit, String");
    std::int64_t num_components = 1;
    if (element.attribute("NumberOfComponents") != nullptr) num_components = read_count(element, "NumberOfComponents");
    if (num_components < 1) fail("array '" + name + "' has no components");
    DataArray array(name, type, 0, static_cast<std::int32_t>(num_components));
    std::vector<std::string> component_names;
    bool any = false;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(num_components, 1024); ++i) {
        const auto* component = element.attribute(fmt::format("ComponentName{}", i));
        any = any || (component != nullptr && !component->empty());
        component_names.push_back(component != nullptr ? *component : std::string());
    }
    if (any) array.component_names = std::move(component_names);
    for (const XmlElement& key : element.children)
        if (const auto* key_name = key.attribute("name");
            key.name == "InformationKey" && key_name != nullptr && *key_name == "UNITS_LABEL")
            array.unit = trimmed(key.text);
    return array;
}

DataArray VtkXmlFile::read_array(const XmlElement& element, std::int64_t num_rows) const
{
    auto declared = declared_array(element);
    const auto& name = declared.name();
    const auto type = declared.type();
    const std::int64_t num_components = declared.num_components();
    if (num_rows < 0 && element.attribute("NumberOfTuples") != nullptr)
        num_rows = read_count(element, "NumberOfTuples");

    Payload payload;
    if (is_of_bits(element)) {
        payload = read_bits(element, num_rows * num_components, name);
    } else if (is_ascii(element)) {
        payload =
            type == ScalarType::String ? parse_ascii_texts(element.text, name) : parse_ascii(element.text, type, name);
    } else {
        payload = decode(find_encoded(element, name), name);
        if (swapped_) swap_bytes(payload, size_of(type));
    }
    if (type == ScalarType::String) return split_strings(payload, name, num_rows, num_components);

    const std::size_t row_size = static_cast<std::size_t>(num_components) * size_of(type);
    if (num_rows < 0) num_rows = static_cast<std::int64_t>(payload.size / row_size);
    if (payload.size % row_size != 0 || payload.size / row_size != static_cast<std::size_t>(num_rows))
        fail(fmt::format("array '{}' should hold {} rows of {} {}, that is {:.0f} bytes; found {}. The file is damaged",
                         name, num_rows, num_components, to_string(type),
                         static_cast<double>(num_rows) * static_cast<double>(row_size), payload.size));
    if (reinterpret_cast<std::uintptr_t>(payload.data) % size_of(type) != 0) {
        auto copy = allocate(payload.size);
        std::memcpy(copy.get(), payload.data, payload.size);
        payload = {copy.get(), payload.size, copy};
    }
    DataArray array = DataArray::view(name, type, num_rows, static_cast<std::int32_t>(num_components), payload.data,
                                      std::move(payload.owner));
    array.component_names = std::move(declared.component_names);
    array.unit = std::move(declared.unit);
    return array;
}

VtkXmlFile::Encoded VtkXmlFile::find_encoded(const XmlElement& element, const std::string& name) const
{
    // Some writers break base64 into lines; then the first break comes early.
    const auto base64 = [&](std::string_view text) -> Encoded {
        constexpr std::size_t longest_line = 4096;
        if (text.substr(0, longest_line).find_first_of(kXmlBlanks) == std::string_view::npos)
            return {text, true, element.own_text};
        auto joined = std::make_shared<std::string>(text);
        std::erase_if(*joined, [](char c) { return kXmlBlanks.find(c) != std::string_view::npos; });
        return {*joined, true, joined};
    };
    const auto* text = element.attribute("offset");
    const auto* format = element.attribute("format");
    const std::string_view values = trimmed(element.text);
    if (format != nullptr && *format == "binary" && (text == nullptr || !values.empty())) return base64(values);
    const auto offset = text != nullptr ? parse_number<std::uint64_t>(trimmed(*text)) : std::nullopt;
    if (!offset) fail("array '" + name + "' is appended but has no offset");
    if (*offset > appended_.size())
        fail(fmt::format("array '{}' should begin at byte {} of the appended data, which are only {} bytes long. The "
                         "file is truncated or damaged",
                         name, *text, appended_.size()));
    if (appended_is_base64_) return base64(trimmed(appended_.substr(*offset)));
    return {appended_.substr(*offset), false, nullptr};
}

// Decodes the words first ... first + count - 1 of the header before an array, and only their characters.
std::vector<std::uint64_t> VtkXmlFile::read_words(const Encoded& encoded, std::size_t first, std::size_t count,
                                                  const std::string& name) const
{
    const std::size_t end = (first + count) * word_size_;
    std::vector<std::byte> decoded;
    const std::byte* bytes = reinterpret_cast<const std::byte*>(encoded.text.data());
    const std::size_t length = encoded.base64 ? base64_length(end) : end;
    if (encoded.text.size() < length)
        fail("array '" + name + "' ends inside its header. The file is truncated or damaged");
    if (encoded.base64) {
        auto result = decode_base64(encoded.text.substr(0, length));
        if (!result || result->size() < end) fail("array '" + name + "' is not valid base64");
        decoded = std::move(*result);
        bytes = decoded.data();
    }
    std::vector<std::uint64_t> words(count);
    for (std::size_t i = 0; i < count; ++i) {
        std::array<std::byte, 8> word{};
        std::memcpy(word.data(), bytes + (first + i) * word_size_, word_size_);
        if (swapped_) std::reverse(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(word_size_));
        std::memcpy(&words[i], word.data(), 8);
    }
    return words;
}

VtkXmlFile::Payload VtkXmlFile::decode(const Encoded& encoded, const std::string& name) const
{
    if (encoded.base64 && encoded.text.empty()) return {};
    if (!compressor_.empty()) return inflate(encoded, name);

    const std::uint64_t size = read_words(encoded, 0, 1, name)[0];
    if (size == 0) return {};
    // Some writers encode header and values together, others separately: then the header's last group is padded.
    const std::size_t header_length = base64_length(word_size_);
    const bool is_apart = encoded.base64 && encoded.text[header_length - 3 + word_size_ % 3] == '=';
    const std::string_view all = is_apart ? encoded.text.substr(header_length) : encoded.text;
    const std::size_t begin = is_apart ? 0 : word_size_;
    const std::size_t available = encoded.base64 ? all.size() / 4 * 3 : all.size();
    if (size > available || size + begin > available)
        fail(
            fmt::format("array '{}' should have {} bytes, but only {} are left in the file. It is truncated or damaged",
                        name, size, available));
    if (!encoded.base64) {
        std::shared_ptr<const void> owner = file_;
        if (converted_ != nullptr) owner = converted_;
        return {reinterpret_cast<const std::byte*>(all.data()) + begin, static_cast<std::size_t>(size),
                std::move(owner)};
    }

    const std::string_view text = all.substr(0, base64_length(begin + size));
    constexpr std::size_t run = std::size_t{1} << 18;  // characters
    auto bytes = allocate(text.size() / 4 * 3);
    std::atomic<std::size_t> num_decoded = 0;
    for_each_in_parallel((text.size() + run - 1) / run, [&](std::size_t i) {
        num_decoded += decode_base64(text.substr(i * run, run), bytes.get() + i * run / 4 * 3).value_or(0);
    });
    if (num_decoded < begin + size) fail("array '" + name + "' is not valid base64");
    return {bytes.get() + begin, static_cast<std::size_t>(size), bytes};
}

// Compressed arrays: number of blocks, size of a block, size of the last block if it is shorter (else 0), the
// compressed size of each; then the blocks. In base64 the header is a run of its own.
VtkXmlFile::Payload VtkXmlFile::inflate(const Encoded& encoded, const std::string& name) const
{
    encoding();  // refuses an unknown compressor
    const std::uint64_t num_blocks = read_words(encoded, 0, 1, name)[0];
    if (num_blocks == 0) return {};
    if (num_blocks > encoded.text.size() / word_size_)
        fail(fmt::format(
            "array '{}' should have {} compressed blocks, more than the file can hold. It is truncated or damaged",
            name, num_blocks));
    const std::size_t num_words = 3 + static_cast<std::size_t>(num_blocks);
    const auto words = read_words(encoded, 0, num_words, name);
    const std::uint64_t block_size = words[1], last_size = words[2] != 0 ? words[2] : block_size;

    std::uint64_t compressed_size = 0;
    const std::uint64_t too_much = encoded.text.size() + 1;  // counts are clamped to it, so that sums cannot overflow
    for (std::size_t i = 3; i < num_words; ++i)
        compressed_size = std::min(compressed_size + std::min(words[i], too_much), too_much);
    const std::size_t header = encoded.base64 ? base64_length(num_words * word_size_) : num_words * word_size_;
    const std::size_t body = encoded.base64 ? base64_length(compressed_size) : compressed_size;
    if (body > encoded.text.size() - header)
        fail(fmt::format("array '{}' should have {} compressed bytes or more, but only {} characters are left in the "
                         "file. It is truncated or damaged",
                         name, compressed_size, encoded.text.size() - header));

    const std::string_view blocks = encoded.text.substr(header, body);
    // If the only block is a short last one, the size of full blocks has no meaning.
    const std::uint64_t ratio = largest_ratio(compression_);
    if (last_size > block_size || last_size / ratio > compressed_size ||
        (num_blocks > 1 && block_size / ratio > compressed_size / (num_blocks - 1)))
        fail(fmt::format("array '{}' announces blocks of {} bytes, more than its data can hold. The file is damaged",
                         name, block_size));
    const std::size_t size = block_size * (num_blocks - 1) + last_size;
    auto bytes = allocate(size);
    std::vector<std::uint64_t> begins(num_blocks, 0);
    for (std::size_t i = 1; i < num_blocks; ++i) begins[i] = begins[i - 1] + words[2 + i];
    std::atomic<std::uint64_t> damaged = num_blocks;
    for_each_in_parallel(num_blocks, [&](std::size_t i) {
        const std::uint64_t expected = i + 1 < num_blocks ? block_size : last_size;
        thread_local std::vector<std::byte> decoded;
        const auto* block = reinterpret_cast<const std::byte*>(blocks.data()) + begins[i];
        if (encoded.base64) {  // the groups of four characters that contain the block
            const std::size_t first_group = begins[i] / 3, end_group = (begins[i] + words[3 + i] + 2) / 3;
            decoded.resize((end_group - first_group) * 3);
            const std::string_view text = blocks.substr(first_group * 4, (end_group - first_group) * 4);
            if (begins[i] % 3 + words[3 + i] > decode_base64(text, decoded.data()).value_or(0)) damaged = i;
            block = decoded.data() + begins[i] % 3;
        }
        if (damaged != i &&
            !decompress_block(compression_, {block, words[3 + i]}, {bytes.get() + i * block_size, expected}))
            damaged = i;
    });
    if (damaged != num_blocks)
        fail(fmt::format("block {} of array '{}' cannot be inflated. The file is damaged", damaged, name));
    return {bytes.get(), size, bytes};
}

VtkXmlFile::Payload VtkXmlFile::parse_ascii(std::string_view text, ScalarType type, const std::string& name) const
{
    TextScanner scanner(text);
    return with_scalar_type(type, [&]<class T>() -> Payload {
        auto values = std::make_shared<std::vector<T>>();
        while (!scanner.at_end()) {
            const std::string_view word = scanner.word();
            const auto value = parse_number<T>(word);
            if (!value)
                fail(fmt::format("value {} of array '{}' is '{}', expected a number of type {}", values->size(), name,
                                 word.substr(0, 40), to_string(type)));
            values->push_back(*value);
        }
        return {reinterpret_cast<const std::byte*>(values->data()), values->size() * sizeof(T), values};
    });
}

// Texts are written as the numbers of their bytes, each text ending in 0; bytes from 128 on are negative if the
// writer's characters are signed.
VtkXmlFile::Payload VtkXmlFile::parse_ascii_texts(std::string_view text, const std::string& name) const
{
    auto bytes = std::make_shared<std::vector<std::byte>>();
    for (TextScanner scanner(text); !scanner.at_end();) {
        const std::string_view word = scanner.word();
        const auto value = parse_number<int>(word);
        if (!value || *value < -128 || *value > 255)
            fail(fmt::format("value {} of array '{}' is '{}', expected a byte of a text, -128 to 255", bytes->size(),
                             name, word.substr(0, 40)));
        bytes->push_back(static_cast<std::byte>(*value & 0xFF));
    }
    return {bytes->data(), bytes->size(), bytes};
}

// Bits are numbers in text, otherwise eight in a byte, the first one highest. `num_values` below 0: all that there are.
VtkXmlFile::Payload VtkXmlFile::read_bits(const XmlElement& element, std::int64_t num_values,
                                          const std::string& name) const
{
    auto values = std::make_shared<std::vector<std::uint8_t>>();
    if (is_ascii(element)) {
        const Payload numbers = parse_ascii(element.text, ScalarType::Int32, name);
        for (const std::int32_t value :
             std::span(reinterpret_cast<const std::int32_t*>(numbers.data), numbers.size / sizeof(std::int32_t)))
            values->push_back(value != 0 ? 1 : 0);
    } else {
        const Payload packed = decode(find_encoded(element, name), name);
        const std::size_t count = num_values < 0 ? packed.size * 8 : static_cast<std::size_t>(num_values);
        if (packed.size != (count + 7) / 8)
            fail(fmt::format("array '{}' should hold {} bits, that is {} bytes; found {}. The file is damaged", name,
                             count, (count + 7) / 8, packed.size));
        values->resize(count);
        for (std::size_t i = 0; i < count; ++i)
            (*values)[i] = std::to_integer<std::uint8_t>(packed.data[i / 8] >> (7 - i % 8)) & 1;
    }
    return {reinterpret_cast<const std::byte*>(values->data()), values->size(), values};
}

DataArray VtkXmlFile::split_strings(const Payload& payload, const std::string& name, std::int64_t num_rows,
                                    std::int64_t num_components) const
{
    const std::string_view text(reinterpret_cast<const char*>(payload.data), payload.size);
    std::vector<std::string> strings;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\0', begin), text.size());
        strings.emplace_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    const auto found = std::ssize(strings);
    if (num_rows >= 0 ? found != num_rows * num_components : found % num_components != 0)
        fail(fmt::format("array '{}' should hold {} strings, found {}. The file is damaged", name,
                         num_rows >= 0 ? std::to_string(num_rows * num_components)
                                       : fmt::format("a multiple of {}", num_components),
                         found));
    return DataArray::from_strings(name, std::move(strings), static_cast<std::int32_t>(num_components));
}

void VtkXmlFile::swap_bytes(Payload& payload, std::size_t width) const
{
    if (width < 2) return;
    auto swapped = allocate(payload.size);
    for (std::size_t i = 0; i + width <= payload.size; i += width)
        std::reverse_copy(payload.data + i, payload.data + i + width, swapped.get() + i);
    payload = {swapped.get(), payload.size, swapped};
}

}  // namespace meshard
