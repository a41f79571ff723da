// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/ascii_numbers.h"

namespace meshard {

namespace {

bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
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
    const std::size_t end = text_.find('\n', begin);
    at_ = end == std::string_view::npos ? text_.size() : end + 1;
    auto line = text_.substr(begin, (end == std::string_view::npos ? text_.size() : end) - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
}

}  // namespace meshard
