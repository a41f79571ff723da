// SPDX-License-Identifier: Apache-2.0
#include "models/layers/option_checks.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

bool is_within(const OptionBounds& bounds, double value)
{
    return value <= bounds.most && (bounds.above ? value > bounds.least : value >= bounds.least);
}

/// Describes the bounds by the words after "must" in a message.
std::string bounds_text(const OptionBounds& bounds)
{
    if (!std::isfinite(bounds.most))
        return fmt::format("be {} {:g}", bounds.above ? "above" : "at least", bounds.least);
    if (!std::isfinite(bounds.least)) return fmt::format("be at most {:g}", bounds.most);
    return fmt::format("lie in {}{:g}, {:g}]", bounds.above ? '(' : '[', bounds.least, bounds.most);
}

}  // namespace

void OptionChecks::refuse(const std::string& what) const
{
    throw InvalidInput("{}: {}", model_, what);
}

void OptionChecks::at_least(std::int64_t least,
                            std::initializer_list<std::pair<const char*, std::int64_t>> options) const
{
    for (const auto& [name, value] : options) {
        if (value < least) refuse("{} must be at least {}, and is {}.", name, least, value);
    }
}

void OptionChecks::one_of(const std::string& name, const std::string& value,
                          const std::vector<std::string>& allowed) const
{
    if (contains(allowed, value)) return;
    std::string list;
    for (std::size_t i = 0; i < allowed.size(); ++i)
        list += (i == 0 ? "" : i + 1 == allowed.size() ? " or " : ", ") + allowed[i];
    refuse(name + " must be " + list + ", and is '" + value + "'." + suggestion(value, allowed));
}

void OptionChecks::multiple(const char* name, std::int64_t value, const char* of_name, std::int64_t of) const
{
    if (value % of != 0) refuse("{} must be a multiple of {}; {} is not one of {}.", name, of_name, value, of);
}

void OptionChecks::within(const OptionBounds& bounds, const std::string& name, std::int64_t value) const
{
    if (is_within(bounds, static_cast<double>(value))) return;
    refuse("{} must {}, and is {}.", name, bounds_text(bounds), value);
}

void OptionChecks::within(const OptionBounds& bounds, const std::string& name, double value) const
{
    const bool is_bounded = std::isfinite(bounds.least) || std::isfinite(bounds.most);
    if (!is_bounded || (std::isfinite(value) && is_within(bounds, value))) return;
    refuse("{} must {}{}, and is {:g}.", name, bounds_text(bounds), std::isfinite(bounds.most) ? "" : " and finite",
           value);
}

void OptionChecks::within(const OptionBounds& bounds, const std::string& name, const std::string& value) const
{
    if (!bounds.words.empty()) one_of(name, value, bounds.words);
}

}  // namespace meshard
