// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_xml_file.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/text_encoding.h"
#include "io/bytes/time_choice.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
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
    if (const auto* order = root_.attribute("byte_order")) encoding_.is_swapped = *order == "BigEndian";
    if (const auto* compressor = root_.attribute("compressor")) compressor_ = *compressor;
    for (const Compression compression : {Compression::Zlib, Compression::Lz4, Compression::Lzma})
        if (is_available(compression) && vtk_compressor_name(compression) == compressor_)
            encoding_.compression = compression;
    if (const auto* header = root_.attribute("header_type")) {
        if (*header != "UInt32" && *header != "UInt64")
            fail("header_type '" + *header + "' is neither UInt32 nor UInt64");
        encoding_.word_size = *header == "UInt64" ? 8 : 4;
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
    return compressor_.empty() || encoding_.compression != Compression::None;
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

const ArrayEncoding& VtkXmlFile::encoding() const
{
    if (!has_known_compressor())
        fail("arrays are compressed with '" + compressor_ +
             "', which is not known. Write the file again with zlib, or without compression");
    return encoding_;
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
        payload = decode(element, name);
        if (encoding_.is_swapped) swap_bytes(payload, size_of(type));
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

std::uint64_t VtkXmlFile::appended_offset(const XmlElement& element, const std::string& name,
                                          std::uint64_t length) const
{
    const auto* text = element.attribute("offset");
    const auto offset = text != nullptr ? parse_number<std::uint64_t>(trimmed(*text)) : std::nullopt;
    if (!offset) fail("array '" + name + "' is appended but has no offset");
    if (*offset > length)
        fail(fmt::format("array '{}' should begin at byte {} of the appended data, which are only {} bytes long. The "
                         "file is truncated or damaged",
                         name, *offset, length));
    return *offset;
}

VtkXmlFile::Payload VtkXmlFile::decode(const XmlElement& element, const std::string& name) const
{
    const auto* format = element.attribute("format");
    auto text = trimmed(element.text);
    const bool is_inline =
        format != nullptr && *format == "binary" && (element.attribute("offset") == nullptr || !text.empty());
    const bool is_base64 = is_inline || appended_is_base64_;
    if (!is_inline) {
        text = appended_.substr(appended_offset(element, name, appended_.size()));
        if (is_base64) text = trimmed(text);
    }
    // Some writers break base64 into lines; then the first break comes early.
    constexpr std::size_t longest_line = 4096;
    std::string joined;
    if (is_base64 && text.substr(0, longest_line).find_first_of(kXmlBlanks) != std::string_view::npos) {
        joined = text;
        std::erase_if(joined, [](char c) { return kXmlBlanks.find(c) != std::string_view::npos; });
        text = joined;
    }
    std::shared_ptr<std::byte[]> memory;
    const auto bytes = EncodedArray(text, is_base64, encoding(), where_ + ": array '" + name + "'").read_all(memory);
    if (memory) return {bytes.data(), bytes.size(), std::move(memory)};
    if (converted_) return {bytes.data(), bytes.size(), converted_};
    return {bytes.data(), bytes.size(), file_};
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
        const Payload packed = decode(element, name);
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
