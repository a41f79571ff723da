// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"
#include "sharding/ranks/device_mesh.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace meshard {

/// The arguments of a search: k nearest, or radii.
struct NeighborRequest {
    const char* where;
    bool is_knn = false;
    std::int64_t k = 0;
    std::vector<RadiusLimit> limits;
    NeighborOptions options;

    std::int64_t num_lists() const { return is_knn ? 1 : std::ssize(limits); }
    /// Number of points to find for the k nearest: one more if the point itself is left out.
    std::int64_t num_wanted() const { return k + (options.exclude_self ? 1 : 0); }
    double largest_radius() const
    {
        double radius = 0;
        for (const auto& limit : limits) radius = std::max(radius, limit.radius);
        return radius;
    }
};

/// This rank's points or queries of one cloud.
struct NeighborInput {
    at::Tensor plain;   ///< (n, D), with autograd history
    at::Tensor values;  ///< the same values on the CPU, contiguous, without history
    std::vector<std::int64_t> ids;
    std::shared_ptr<const DeviceMesh> device_mesh;
    SpecPtr layout;
    std::int64_t axis = -1;  ///< axis of the device mesh that cuts them; -1 if none

    bool is_cut() const { return axis >= 0; }
    std::int64_t size() const { return values.size(0); }
    template <class T>
    std::span<const T> span() const
    {
        return {values.const_data_ptr<T>(), static_cast<std::size_t>(values.numel())};
    }
};

/// This rank's rows of `tensor`, (N, D), or of cloud `batch` of a (B, N, D): plain, Replicate, cut along N, and by
/// another axis along B.
/// @throws InvalidInput for other layouts, shapes and types
NeighborInput neighbor_input(const char* where, const char* what, const at::Tensor& tensor,
                             std::optional<std::int64_t> batch);

/// The ranks that search together: those over which rows of points or queries are cut; a group of one if neither is
/// cut. A search starts with `throw_together` over this group; a rank that finds an error before its search calls it,
/// too, so that all ranks throw.
RankGroup search_group(const at::Tensor& points, const at::Tensor& queries);

/// Checks the arguments, on this rank's rows only. @throws InvalidInput if they are wrong or do not fit each other
void require_searchable(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries);

/// A hash of the arguments that must be equal on every rank.
std::int64_t fingerprint(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries);

}  // namespace meshard
