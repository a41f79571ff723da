// SPDX-License-Identifier: Apache-2.0
#include "partition/nearest_name.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace meshard {

std::string lower_case(std::string_view text)
{
    std::string lower(text);
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return lower;
}

std::string lower_extension(const std::filesystem::path& path)
{
    return lower_case((path.has_filename() ? path : path.parent_path()).extension().string());
}

namespace {

// Number of insertions, deletions, replacements and swaps of neighbouring letters that convert one text to the other.
std::size_t edit_distance(std::string_view a, std::string_view b)
{
    std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), current(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) current[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        before_last.swap(last);
        last.swap(current);
        current[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            current[j] = std::min({last[j] + 1, current[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                current[j] = std::min(current[j], before_last[j - 2] + 1);
        }
    }
    return current[b.size()];
}

// Accepts one or two typing errors in a word, and a word that was shortened or lengthened (`pMean` for `p`).
bool may_be_meant(std::string_view name, std::string_view candidate, std::size_t distance)
{
    const auto longer = std::max(name.size(), candidate.size());
    if (name.empty() || candidate.empty()) return false;
    if (name.starts_with(candidate) || candidate.starts_with(name)) return true;
    return distance < longer && distance <= std::max<std::size_t>(longer > 3 ? 2 : 1, longer / 3);
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> candidates)
{
    const auto wanted = lower_case(name);
    std::string nearest;
    auto smallest = std::string::npos;
    for (const auto& candidate : candidates) {
        const auto lower = lower_case(candidate);
        const bool is_shortened = wanted.size() > 2 && lower.starts_with(wanted);  // preferred to typing errors
        const auto distance = is_shortened ? 0 : edit_distance(wanted, lower);
        if (distance < smallest && may_be_meant(wanted, lower, distance)) {
            smallest = distance;
            nearest = candidate;
        }
    }
    return nearest;
}

std::string suggestion(std::string_view name, std::span<const std::string> candidates)
{
    const auto nearest = nearest_name(name, candidates);
    return nearest.empty() ? "" : " Did you mean '" + nearest + "'?";
}

}  // namespace meshard
