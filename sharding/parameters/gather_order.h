// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace meshard {

/// A group of parameters that is gathered in one message: those of one type in a unit.
struct Gathered {
    std::size_t unit = 0, group = 0;
    bool operator==(const Gathered&) const = default;
};

/// Predicts which unit a pass through a module uses next, from the order of the step before. Ranks that use the same
/// units in the same order predict the same.
class GatherOrder {
public:
    /// Records that a group is used now.
    void use(const Gathered& used);

    /// The groups of the next unit that the last step used; empty at its end, or where this pass has taken another
    /// order.
    std::span<const Gathered> of_next_unit() const;

    /// Ends a step; its order is used for the next predictions. A step may have had several equal passes, such as
    /// evaluations before the training pass.
    void end_step();

    /// Ends a step that has failed; the known order stays.
    void abandon_step();

private:
    std::vector<Gathered> known_;       // order of one pass
    std::vector<Gathered> of_step_;     // uses since the end of the last step, up to a limit
    std::optional<std::size_t> place_;  // index into `known_` of the next use; none once this pass has deviated
    bool has_strayed_ = false;          // whether any pass since the end of the last step has deviated
};

}  // namespace meshard
