// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace meshard {

/// Whether a value is among those of a range.
template <class Range, class Value>
bool contains(const Range& range, const Value& value)
{
    return std::ranges::find(range, value) != std::ranges::end(range);
}

/// Adds the values of a range at the end of a list.
template <class List, class Range>
void append(List& list, const Range& range)
{
    list.insert(list.end(), range.begin(), range.end());
}

/// Sorts a list, and keeps one of equal values.
template <class List>
void sort_unique(List& list)
{
    std::ranges::sort(list);
    list.erase(std::ranges::unique(list).begin(), list.end());
}

/// Returns `first`, `first + 1`, ...
template <class Number>
std::vector<Number> numbers_from(Number first, std::size_t count)
{
    std::vector<Number> numbers(count);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
}

}  // namespace meshard
