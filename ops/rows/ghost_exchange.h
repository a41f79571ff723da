// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/exchange/exchange_plan.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace meshard {

/// Ghost rows on their way; made by `begin_ghost_exchange`. What is done before `end` is done meanwhile.
class PendingGhosts {
public:
    /// The ghosts of each field, (num_ghosts, ...), in the fields' order. Once.
    std::vector<at::Tensor> end();

    /// Whether `end` would return at once.
    bool has_come() const { return pending_.is_done(); }

private:
    friend PendingGhosts begin_ghost_exchange(at::TensorList, const std::shared_ptr<const ExchangePlan>&, std::optional<at::ScalarType>);
    std::shared_ptr<const ExchangePlan> plan_;
    std::vector<at::Tensor> fields_;
    struct WayBack;

    std::optional<at::ScalarType> wire_type_;
    at::Tensor sent_, received_;
    at::Tensor token_;  // stands for the exchange where gradients are recorded
    std::shared_ptr<WayBack> way_back_;
    PendingCollective pending_;
};

/// Starts to bring owned rows to the ranks that see them as ghosts: all fields in one message a neighbour, whatever their types.
///
/// Differentiable in every field of a floating type, as often as one likes: backward adds the ghosts' gradients to the owners' rows, from ranks in
/// ascending order, all fields in one message, on its way while the gradients of what was done between `begin` and `end` are computed. Collective over
/// the plan's group, and so is backward: every rank's loss must depend on what `end` returns, be it of no rows.
///
/// @param fields     (num_owned, ...) each, plain; read until `end` returns, so not to be changed meanwhile
/// @param wire_type  floating fields travel in this type and come back in their own; gradients too
/// @throws InvalidInput if a field has another number of rows than the plan's owned ones. The message is nothing but rows, so that this rank throws alone: the
///         others learn of it when it ends, or at their time limit. Sharded tensors know all ranks' rows: operators that take them throw on every rank
PendingGhosts begin_ghost_exchange(at::TensorList fields, const std::shared_ptr<const ExchangePlan>& plan,
                                   std::optional<at::ScalarType> wire_type = std::nullopt);

/// The ghosts of one field, (num_owned, ...) to (num_ghosts, ...).
at::Tensor exchange_ghosts(const at::Tensor& owned, const std::shared_ptr<const ExchangePlan>& plan);

/// Owned rows and their ghosts, (num_owned, ...) to (num_local, ...).
at::Tensor with_ghosts(const at::Tensor& owned, const std::shared_ptr<const ExchangePlan>& plan);

enum class GhostReduction : std::uint8_t { Sum, Mean, Max, Min };

/// The adjoint of `with_ghosts`: every owned row plus all its ghosts on other ranks, ranks in ascending order; (num_local, ...) to (num_owned, ...). Or the
/// mean over an owned row and its ghosts, or their extreme, whose gradient is shared evenly among equal ones. Collective; differentiable.
/// @throws InvalidInput if the tensor has another number of rows than the plan's local ones.
at::Tensor scatter_ghosts(const at::Tensor& local, const std::shared_ptr<const ExchangePlan>& plan, GhostReduction reduction = GhostReduction::Sum);

}  // namespace meshard
