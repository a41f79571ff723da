// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_bridge.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/text_encoding.h"
#include "io/vtk/vtk_conversion.h"
#include "partition/nearest_name.h"

#include <vtkDataObject.h>
#include <vtkGenericDataObjectReader.h>
#include <vtkNew.h>
#include <vtkSmartPointer.h>
#include <vtkXMLGenericDataObjectReader.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace meshard {
namespace {

/// The text of a legacy .vtk file with NaN and infinities replaced by stand-ins, finite numbers that do not occur in
/// it, because VTK before 9.3 stops at these words. Array names, types and texts are not changed.
class LegacyText {
public:
    /// Whether a file is ASCII, small enough to be read from memory, and has the letters of such a word.
    static bool may_be_needed(std::string_view file);

    /// @param attempt   selects the stand-ins: if those of 0 occur in the file (then `restore` returns false), try 1,
    ///                  and so on
    LegacyText(std::string_view file, int attempt);

    static constexpr int most_attempts = 3;

    const std::string& text() const { return text_; }
    bool has_stand_ins() const { return num_replaced_ > 0; }

    /// Replaces the stand-ins in points and arrays by NaN and infinities; returns false if there are more of them than
    /// there were words.
    bool restore(Mesh& mesh) const;

private:
    void replace_in_line(std::string_view line);

    double nan_stand_in_, infinity_stand_in_;  // the infinity has either sign
    std::string text_;
    std::int64_t num_replaced_ = 0;
};

// Within the range of Float32 and far from usual measured values.
constexpr std::array<double, LegacyText::most_attempts> stand_ins{1.2345678e37, -2.3456781e36, 3.4567812e35};

bool begins_as_number(std::string_view word)
{
    return word.front() == '-' || word.front() == '+' || word.front() == '.' ||
           (word.front() >= '0' && word.front() <= '9');
}

/// Returns whether a word is a NaN or an infinity, also in the form of Windows' older libraries (`1.#QNAN`, `-1.#INF`).
bool is_not_finite(std::string_view word)
{
    const auto value = parse_number<double>(word);
    return value && !std::isfinite(*value) && word.find_first_not_of("+-.0123456789eE") != std::string_view::npos;
}

bool LegacyText::may_be_needed(std::string_view file)
{
    TextScanner header(file);
    for (int line = 0; line < 2; ++line) header.line();
    if (!same_but_for_case(header.word(), "ASCII") ||
        file.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()) / 2)
        return false;
    constexpr std::array<std::string_view, 3> parts{"nan", "inf", "ind"};  // the last in `1.#IND`
    for (std::size_t i = 0; i + 3 <= file.size(); ++i) {
        if ((file[i] | 0x20) != 'n' && (file[i] | 0x20) != 'i') continue;
        const auto part = file.substr(i, 3);
        if (std::ranges::any_of(parts, [&](auto one) { return same_but_for_case(part, one); })) return true;
    }
    return false;
}

LegacyText::LegacyText(std::string_view file, int attempt)
    : nan_stand_in_(stand_ins[attempt]), infinity_stand_in_(2 * stand_ins[attempt])
{
    constexpr int num_header_lines = 3;  // version, title, ASCII
    text_.reserve(file.size() + file.size() / 4);
    TextScanner lines(file);
    std::int64_t num_texts = 0;  // number of following lines that each hold a text
    for (std::int64_t i = 0; !lines.rest().empty(); ++i) {
        const std::string_view line = lines.line();
        if (i < num_header_lines || num_texts > 0) {
            num_texts -= i < num_header_lines ? 0 : 1;
            text_ += line;
        } else {
            // NAME COMPONENTS ROWS string
            TextScanner words(line);
            words.word();
            const auto num_components = words.number<std::int64_t>(), num_rows = words.number<std::int64_t>();
            if (const auto type = words.word();
                num_components && num_rows && (type == "string" || type == "utf8_string"))
                num_texts = *num_components * *num_rows;
            replace_in_line(line);
        }
        text_ += '\n';
    }
}

// Lines of values consist of numbers only; other lines have keywords and names, one of which may be `nan`.
void LegacyText::replace_in_line(std::string_view line)
{
    bool has_any = false;
    for (TextScanner words(line); !words.at_end();) {
        const auto word = words.word();
        const bool replaced = is_not_finite(word);
        has_any = has_any || replaced;
        if (replaced || begins_as_number(word)) continue;
        text_ += line;
        return;
    }
    if (!has_any) {
        text_ += line;
        return;
    }
    for (TextScanner words(line); !words.at_end();) {
        const auto word = words.word();
        if (is_not_finite(word)) {
            const double value = *parse_number<double>(word);
            std::array<char, 32> number{};
            const auto end = std::to_chars(number.data(), number.data() + number.size(),
                                           std::isnan(value) ? nan_stand_in_ : std::copysign(infinity_stand_in_, value))
                                 .ptr;
            text_.append(number.data(), end);
            ++num_replaced_;
        } else {
            text_ += word;
        }
        text_ += ' ';
    }
}

bool LegacyText::restore(Mesh& mesh) const
{
    std::int64_t num_restored = 0;
    const auto restore_array = [&](DataArray& array) {
        if (array.type() != ScalarType::Float32 && array.type() != ScalarType::Float64) return;
        const auto restore_values = [&]<class T>(T) {
            const auto nan = static_cast<T>(nan_stand_in_), infinity = std::abs(static_cast<T>(infinity_stand_in_));
            const auto is_stand_in = [&](T value) { return value == nan || std::abs(value) == infinity; };
            const auto count = std::ranges::count_if(array.values<T>(), is_stand_in);
            num_restored += count;
            if (count == 0) return;
            for (T& value : array.mutable_values<T>())
                if (is_stand_in(value))
                    value = value == nan ? std::numeric_limits<T>::quiet_NaN()
                                         : std::copysign(std::numeric_limits<T>::infinity(), value);
        };
        if (array.type() == ScalarType::Float32)
            restore_values(float{});
        else
            restore_values(double{});
    };
    restore_array(mesh.points);
    for (auto* arrays : {&mesh.point_data, &mesh.cell_data, &mesh.field_data})
        for (DataArray& array : *arrays) restore_array(array);
    return num_restored <= num_replaced_;
}

template <class Reader>
Mesh converted_by_vtk(Reader& reader, const std::string& where)
{
    vtkSmartPointer<vtkDataObject> object;
    read_by_vtk(where, [&] {
        const CapturedMessages messages;
        reader.Update();
        object = reader.GetOutput();
        return messages.errors();
    });
    return mesh_from_vtk(object, where);
}

vtkSmartPointer<vtkGenericDataObjectReader> legacy_reader()
{
    auto reader = vtkSmartPointer<vtkGenericDataObjectReader>::New();
    reader->ReadAllScalarsOn();
    reader->ReadAllVectorsOn();
    reader->ReadAllNormalsOn();
    reader->ReadAllTensorsOn();
    reader->ReadAllColorScalarsOn();
    reader->ReadAllTCoordsOn();
    reader->ReadAllFieldsOn();
    return reader;
}

Mesh read_xml_with_vtk(const std::filesystem::path& path, const std::string& where)
{
    vtkNew<vtkXMLGenericDataObjectReader> reader;
    reader->SetFileName(path.c_str());
    return converted_by_vtk(*reader, where);
}

}  // namespace

Mesh read_with_vtk(const std::filesystem::path& path)
{
    const std::string where = "read_mesh: " + path.string();
    const bool is_legacy = lower_extension(path) != ".vtu" && lower_extension(path) != ".vtp";
    if (!is_legacy) return read_xml_with_vtk(path, where);
    const auto file = MappedFile::open(path, "read_mesh");
    const std::string_view text = without_byte_order_mark(file->text());
    if (!text.starts_with("# vtk DataFile"))
        throw IoError("{} does not begin with '# vtk DataFile': it is no legacy VTK file. Is the extension right?",
                      where);
    // VTK's reader stops at NaN, and what it takes the rest for may crash it.
    if (LegacyText::may_be_needed(text)) {
        for (int attempt = 0; attempt < LegacyText::most_attempts; ++attempt) {
            const LegacyText finite(text, attempt);
            if (!finite.has_stand_ins()) break;
            const auto reader = legacy_reader();
            reader->ReadFromInputStringOn();
            reader->SetBinaryInputString(finite.text().data(), static_cast<int>(finite.text().size()));
            if (Mesh mesh = converted_by_vtk(*reader, where); finite.restore(mesh)) return mesh;
        }
    }
    const auto reader = legacy_reader();
    std::string own_text;  // the reader keeps a pointer to it
    if (text.size() == file->text().size()) {
        reader->SetFileName(path.c_str());
    } else {
        own_text = text;
        reader->ReadFromInputStringOn();
        reader->SetBinaryInputString(own_text.data(), static_cast<int>(own_text.size()));
    }
    return converted_by_vtk(*reader, where);
}

}  // namespace meshard
