// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <type_traits>

namespace meshard {

/// Reads words and numbers from text, separated by white space. Lines end in a line feed, or, if none follows, in a
/// carriage return (old Macintosh files).
class TextScanner {
public:
    explicit TextScanner(std::string_view text) : text_(text) {}

    bool at_end();
    std::string_view word();  ///< the next word, empty at the end
    std::string_view line();  ///< the rest of this line, without its end
    bool at_line_end();       ///< whether only white space is left on this line
    std::string_view rest() const { return text_.substr(at_); }

    /// The next word as a number; none if there is no word or it is not a number of type T (out of range, a letter,
    /// ...).
    template <class T>
    std::optional<T> number();

private:
    bool ends_a_line(std::size_t at) const { return text_[at] == '\n' || (text_[at] == '\r' && !has_line_feeds_); }

    std::string_view text_;
    std::size_t at_ = 0;
    bool has_line_feeds_ = true;  // assumed until a search finds none
};

/// Returns whether two words are equal except for the case of their ASCII letters.
bool same_but_for_case(std::string_view a, std::string_view b);

/// Parses a floating number that from_chars does not accept: one too small or too large for its type, which becomes
/// zero or infinity as in strtod and other readers, or the words of Windows' older libraries for values that are not
/// finite (`1.#INF`, `-1.#IND`, `1.#QNAN0`). None for other words.
std::optional<double> unusual_number(std::string_view word);

/// Parses the whole `text`; none if it is not a number of type T.
template <class T>
std::optional<T> parse_number(std::string_view text)
{
    if (!text.empty() && text.front() == '+') text.remove_prefix(1);
    // from_chars reads 8-bit types as characters: they are parsed as int.
    using Parsed = std::conditional_t<std::is_integral_v<T> && sizeof(T) == 1, int, T>;
    Parsed value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) [[unlikely]] {
        if constexpr (std::is_floating_point_v<T>)
            if (const auto unusual = unusual_number(text)) return static_cast<T>(*unusual);
        return std::nullopt;
    }
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
