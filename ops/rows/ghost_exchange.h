// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/exchange/exchange_plan.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace meshard {

/// A pending ghost exchange, started by `begin_ghost_exchange`. Work done before `end` overlaps with the messages.
class PendingGhosts {
public:
    /// Waits and returns the ghosts of each field, (num_ghosts, ...), in the fields' order. Call it once.
    std::vector<at::Tensor> end();

    /// Returns whether `end` would return without waiting.
    bool is_done() const { return pending_.is_done(); }

private:
    friend PendingGhosts begin_ghost_exchange(at::TensorList, const std::shared_ptr<const ExchangePlan>&,
                                              std::optional<at::ScalarType>);
    std::shared_ptr<const ExchangePlan> plan_;
    std::vector<at::Tensor> fields_;
    struct Backward;

    std::optional<at::ScalarType> wire_type_;
    at::Tensor sent_, received_;
    at::Tensor token_;  // autograd node of `begin`, input of the node of `end`
    std::shared_ptr<Backward> backward_;
    PendingCollective pending_;
};

/// Starts to send owned rows to the ranks that have them as ghosts: all fields, of any types, in one message for each
/// neighbour.
///
/// Differentiable, any number of times, in every field of a floating type: backward sends the ghosts' gradients of all
/// fields in one message, while the gradients of the work between `begin` and `end` are computed, and adds them to the
/// owners' rows in rank order. Collective over the plan's group, and so is backward: every rank's loss must depend on
/// the tensors that `end` returns, even if they have no rows.
///
/// @param fields     (num_owned, ...) each, plain; read until `end` returns, and must not be changed before
/// @param wire_type  type in which floating fields and their gradients are sent; they are converted back
/// @throws InvalidInput if a field has another number of rows than the plan's owned rows. Messages contain rows only,
///         so that only this rank throws: the others fail when it ends, or at their time limit. Operators on sharded
///         tensors, which know the rows of all ranks, throw on every rank
PendingGhosts begin_ghost_exchange(at::TensorList fields, const std::shared_ptr<const ExchangePlan>& plan,
                                   std::optional<at::ScalarType> wire_type = std::nullopt);

/// The ghosts of one field, (num_owned, ...) to (num_ghosts, ...).
at::Tensor exchange_ghosts(const at::Tensor& owned, const std::shared_ptr<const ExchangePlan>& plan);

/// Owned rows and their ghosts, (num_owned, ...) to (num_local, ...).
at::Tensor with_ghosts(const at::Tensor& owned, const std::shared_ptr<const ExchangePlan>& plan);

enum class GhostReduction : std::uint8_t { Sum, Mean, Max, Min };

/// Reduces every owned row with its ghosts on other ranks, in rank order; (num_local, ...) to (num_owned, ...). The sum
/// is the adjoint of `with_ghosts`. The gradient of a maximum or minimum is shared evenly among equal rows. Collective;
/// differentiable.
/// @throws InvalidInput if the tensor has another number of rows than the plan's local rows
at::Tensor scatter_ghosts(const at::Tensor& local, const std::shared_ptr<const ExchangePlan>& plan,
                          GhostReduction reduction = GhostReduction::Sum);

}  // namespace meshard
