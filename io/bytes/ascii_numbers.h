// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace meshard {

/// Reads words and numbers from text, separated by white space.
class TextScanner {
public:
    explicit TextScanner(std::string_view text) : text_(text) {}

    bool at_end();
    std::string_view word();  ///< the next word, empty at the end
    std::string_view line();  ///< the rest of this line, without its end
    std::string_view rest() const { return text_.substr(at_); }

    /// The next word as a number; none if there is no word or it is no number of type T (out of range, a letter, ...).
    template <class T>
    std::optional<T> number();

private:
    std::string_view text_;
    std::size_t at_ = 0;
};

/// The whole `text` as a number; none if it is no number of type T.
template <class T>
std::optional<T> parse_number(std::string_view text)
{
    if (!text.empty() && text.front() == '+') text.remove_prefix(1);
    // from_chars reads 8-bit types as characters would be printed: through int.
    using Parsed = std::conditional_t<std::is_integral_v<T> && sizeof(T) == 1, int, T>;
    Parsed value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if constexpr (std::is_floating_point_v<T>) {
        // Too small or too large for the type: the result of strtod, zero or infinity, as in other readers.
        if (error == std::errc::result_out_of_range && end == text.data() + text.size()) return static_cast<T>(std::strtod(std::string(text).c_str(), nullptr));
    }
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    const T narrowed = static_cast<T>(value);
    if constexpr (!std::is_same_v<Parsed, T>)
        if (static_cast<Parsed>(narrowed) != value) return std::nullopt;
    return narrowed;
}

template <class T>
std::optional<T> TextScanner::number()
{
    return parse_number<T>(word());
}

}  // namespace meshard
