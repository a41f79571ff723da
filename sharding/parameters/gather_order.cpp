// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/gather_order.h"

#include <algorithm>

namespace meshard {
namespace {

/// Longer steps are not recorded: a program that only evaluates never ends a step.
constexpr std::size_t kLongest = 10'000;

/// Returns the shortest list whose repetition gives `uses`.
std::vector<Gathered> one_pass(std::vector<Gathered> uses)
{
    for (std::size_t length = 1; length < uses.size(); ++length) {
        if (uses.size() % length != 0 ||
            !std::equal(uses.begin() + static_cast<std::ptrdiff_t>(length), uses.end(), uses.begin()))
            continue;
        uses.resize(length);
        break;
    }
    return uses;
}

}  // namespace

void GatherOrder::use(const Gathered& used)
{
    if (of_step_.size() <= kLongest) of_step_.push_back(used);
    if (place_ && *place_ < known_.size() && known_[*place_] == used) {
        ++*place_;
        return;
    }
    const bool is_between_passes = of_step_.size() == 1 || place_ == known_.size();
    const bool begins_pass = !known_.empty() && known_.front() == used;
    has_strayed_ |= !is_between_passes || !begins_pass;
    place_ = begins_pass ? std::optional<std::size_t>(1) : std::nullopt;
}

std::span<const Gathered> GatherOrder::of_next_unit() const
{
    if (!place_ || *place_ == 0) return {};
    const auto unit_now = known_[*place_ - 1].unit;
    const auto begin = std::find_if(known_.begin() + static_cast<std::ptrdiff_t>(*place_), known_.end(),
                                    [&](const Gathered& one) { return one.unit != unit_now; });
    if (begin == known_.end()) return {};
    return {begin, std::find_if(begin, known_.end(), [&](const Gathered& one) { return one.unit != begin->unit; })};
}

void GatherOrder::end_step()
{
    const bool is_as_known = !has_strayed_ && place_ == known_.size();
    if (!is_as_known && !of_step_.empty() && of_step_.size() <= kLongest) known_ = one_pass(std::move(of_step_));
    abandon_step();
}

void GatherOrder::abandon_step()
{
    of_step_.clear();
    place_.reset();
    has_strayed_ = false;
}

}  // namespace meshard
