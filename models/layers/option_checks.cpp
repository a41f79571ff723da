// SPDX-License-Identifier: Apache-2.0
#include "models/layers/option_checks.h"

#include "partition/error.h"
#include "partition/nearest_name.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace meshard {
namespace {

std::string number_text(double value)
{
    std::ostringstream text;
    text << value;
    return text.str();
}

bool is_within(const OptionBounds& bounds, double value)
{
    return value <= bounds.most && (bounds.above ? value > bounds.least : value >= bounds.least);
}

/// Describes the bounds by the words after "must" in a message.
std::string bounds_text(const OptionBounds& bounds)
{
    const auto least = number_text(bounds.least), most = number_text(bounds.most);
    if (!std::isfinite(bounds.most)) return (bounds.above ? "be above " : "be at least ") + least;
    if (!std::isfinite(bounds.least)) return "be at most " + most;
    return std::string("lie in ") + (bounds.above ? "(" : "[") + least + ", " + most + "]";
}

}  // namespace

void OptionChecks::refuse(const std::string& what) const
{
    throw InvalidInput(model_ + ": " + what);
}

void OptionChecks::at_least(std::int64_t least, std::initializer_list<std::pair<const char*, std::int64_t>> options) const
{
    for (const auto& [name, value] : options) {
        if (value < least) refuse(std::string(name) + " must be at least " + std::to_string(least) + ", and is " + std::to_string(value) + ".");
    }
}

void OptionChecks::one_of(const std::string& name, const std::string& value, const std::vector<std::string>& allowed) const
{
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
    std::string list;
    for (std::size_t i = 0; i < allowed.size(); ++i) list += (i == 0 ? "" : i + 1 == allowed.size() ? " or " : ", ") + allowed[i];
    const auto nearest = nearest_name(value, allowed);
    refuse(name + " must be " + list + ", and is '" + value + "'." + (nearest.empty() ? "" : " Did you mean '" + nearest + "'?"));
}

void OptionChecks::multiple(const char* name, std::int64_t value, const char* of_name, std::int64_t of) const
{
    if (value % of != 0)
        refuse(std::string(name) + " must be a multiple of " + of_name + "; " + std::to_string(value) + " is not one of " + std::to_string(of) + ".");
}

void OptionChecks::within(const OptionBounds& bounds, const std::string& name, std::int64_t value) const
{
    if (is_within(bounds, static_cast<double>(value))) return;
    refuse(name + " must " + bounds_text(bounds) + ", and is " + std::to_string(value) + ".");
}

void OptionChecks::within(const OptionBounds& bounds, const std::string& name, double value) const
{
    const bool is_bounded = std::isfinite(bounds.least) || std::isfinite(bounds.most);
    if (!is_bounded || (std::isfinite(value) && is_within(bounds, value))) return;
    refuse(name + " must " + bounds_text(bounds) + (std::isfinite(bounds.most) ? "" : " and finite") + ", and is " + number_text(value) + ".");
}

void OptionChecks::within(const OptionBounds& bounds, const std::string& name, const std::string& value) const
{
    if (!bounds.words.empty()) one_of(name, value, bounds.words);
}

}  // namespace meshard
