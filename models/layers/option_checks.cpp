// SPDX-License-Identifier: Apache-2.0
#include "models/layers/option_checks.h"

#include <algorithm>

#include "partition/error.h"
#include "partition/nearest_name.h"

namespace meshard {

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

void OptionChecks::one_of(const char* name, const std::string& value, const std::vector<std::string>& allowed) const
{
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
    std::string list;
    for (std::size_t i = 0; i < allowed.size(); ++i) list += (i == 0 ? "" : i + 1 == allowed.size() ? " or " : ", ") + allowed[i];
    const auto nearest = nearest_name(value, allowed);
    refuse(std::string(name) + " must be " + list + ", and is '" + value + "'." + (nearest.empty() ? "" : " Did you mean '" + nearest + "'?"));
}

void OptionChecks::rate(const char* name, double value) const
{
    if (!(value >= 0.0 && value <= 1.0)) refuse(std::string(name) + " must lie in [0, 1], and is " + std::to_string(value) + ".");
}

void OptionChecks::multiple(const char* name, std::int64_t value, const char* of_name, std::int64_t of) const
{
    if (value % of != 0) refuse(std::string(name) + " must be a multiple of " + of_name + "; " + std::to_string(value) + " is not one of " + std::to_string(of) + ".");
}

void OptionChecks::grid(const std::vector<std::int64_t>& extents) const
{
    if (!extents.empty() && extents.size() != 2 && extents.size() != 3) {
        refuse("structured_shape must have 2 or 3 extents, and has " + std::to_string(extents.size()) + ".");
    }
    for (const auto extent : extents) at_least(1, {{"an extent of structured_shape", extent}});
}

void OptionChecks::no_transformer_engine(bool use_te) const
{
    if (use_te) refuse("use_te (TransformerEngine's layers) is not implemented, and their parameters cannot be converted; set use_te to false.");
}

}  // namespace meshard
