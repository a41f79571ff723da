// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace meshard {

/// What is gathered in one message: parameters of a unit that are of one type.
struct Gathered {
    std::size_t unit = 0, group = 0;
    bool operator==(const Gathered&) const = default;
};

/// The order in which a pass through a module uses its units, known from the pass before. Where ranks use the same units in the same order, all know the same.
class GatherOrder {
public:
    /// The one that is used now.
    void use(const Gathered& used);

    /// What the pass before has used of the next unit; empty at its end, and where this pass goes another way.
    std::span<const Gathered> of_next_unit() const;

    /// A step has ended; what it has used is known from here on. It may have been several passes of the same order: evaluations come before training.
    void end_step();

    /// A step has failed: what is known stays.
    void abandon_step();

private:
    std::vector<Gathered> known_;       // of one pass
    std::vector<Gathered> of_step_;     // since the last step has ended, the longest at most
    std::optional<std::size_t> place_;  // how many of `known_` this pass has used; none while it goes another way
    bool has_strayed_ = false;          // since the last step has ended
};

}  // namespace meshard
