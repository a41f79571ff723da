// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/legacy_text.h"

#include "io/bytes/ascii_numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace meshard {

namespace {

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

}  // namespace

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

}  // namespace meshard
