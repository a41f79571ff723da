// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/ascii_numbers.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <locale.h>
#include <string>

namespace meshard {

namespace {

bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/// A locale whose numbers have a point, whatever the process has set.
locale_t with_decimal_point()
{
    static const locale_t locale = newlocale(LC_ALL_MASK, "C", nullptr);
    return locale;
}

}  // namespace

bool TextScanner::at_end()
{
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ == text_.size();
}

std::string_view TextScanner::word()
{
    if (at_end()) return {};
    const std::size_t begin = at_;
    while (at_ < text_.size() && !is_space(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
}

std::string_view TextScanner::line()
{
    const std::size_t begin = at_;
    std::size_t end = std::string_view::npos;
    if (has_line_feeds_) {
        end = text_.find('\n', begin);
        has_line_feeds_ = end != std::string_view::npos;
    }
    if (!has_line_feeds_) end = text_.find('\r', begin);
    at_ = end == std::string_view::npos ? text_.size() : end + 1;
    auto line = text_.substr(begin, (end == std::string_view::npos ? text_.size() : end) - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
}

bool TextScanner::at_line_end()
{
    while (at_ < text_.size() && !ends_a_line(at_) && is_space(text_[at_])) ++at_;
    return at_ == text_.size() || ends_a_line(at_);
}

std::optional<double> unusual_number(std::string_view word)
{
    double value = 0;
    if (const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
        error != std::errc::invalid_argument && end == word.data() + word.size())
        return strtod_l(std::string(word).c_str(), nullptr, with_decimal_point());
    const double sign = word.starts_with('-') ? -1 : 1;
    if (word.starts_with('-') || word.starts_with('+')) word.remove_prefix(1);
    if (!word.starts_with("1.#")) return std::nullopt;
    word.remove_prefix(3);
    if (word.starts_with("INF")) return std::copysign(std::numeric_limits<double>::infinity(), sign);
    for (const std::string_view nan : {"QNAN", "SNAN", "IND"})
        if (word.starts_with(nan)) return std::numeric_limits<double>::quiet_NaN();
    return std::nullopt;
}

bool same_but_for_case(std::string_view a, std::string_view b)
{
    return std::ranges::equal(a, b,
                              [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace meshard
