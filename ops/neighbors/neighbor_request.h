// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"
#include "sharding/ranks/device_mesh.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// What a search asks for: the k nearest, or radii.
struct NeighborRequest {
    const char* where;
    bool is_knn = false;
    std::int64_t k = 0;
    std::vector<RadiusLimit> limits;
    NeighborOptions options;

    std::int64_t num_lists() const { return is_knn ? 1 : static_cast<std::int64_t>(limits.size()); }
    std::int64_t num_wanted() const { return k + (options.exclude_self ? 1 : 0); }  ///< of k nearest, the point itself among them
    double largest_radius() const
    {
        double radius = 0;
        for (const auto& limit : limits) radius = std::max(radius, limit.radius);
        return radius;
    }
};

/// This rank's rows of points or queries, of one cloud.
struct NeighborInput {
    at::Tensor plain;   ///< (n, D), with its history
    at::Tensor values;  ///< the same on the CPU, contiguous, without
    std::vector<std::int64_t> ids;
    std::shared_ptr<const DeviceMesh> device_mesh;
    SpecPtr layout;
    std::int64_t axis = -1;  ///< that cuts them, or -1

    bool is_cut() const { return axis >= 0; }
    std::int64_t size() const { return values.size(0); }
    template <class T>
    std::span<const T> span() const
    {
        return {values.const_data_ptr<T>(), static_cast<std::size_t>(values.numel())};
    }
};

/// The rows of `tensor`, (N, D), or of cloud `batch` of this rank's of a (B, N, D): plain, Replicate, cut along N, and along B by another axis.
/// @throws InvalidInput if it is nothing of that kind
NeighborInput neighbor_input(const char* where, const char* what, const at::Tensor& tensor, std::optional<std::int64_t> batch);

/// The ranks that search together: those among which rows of points or queries are cut; of one if neither's are. A search begins with `throw_together`
/// among them: who finds something wrong before it searches tells the others by that, and they need no message more.
RankGroup search_group(const at::Tensor& points, const at::Tensor& queries);

/// Whether a search among these can be made; looks at this rank's rows only. @throws InvalidInput if not
void require_searchable(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries);

/// A number of all arguments that must be the same on every rank.
std::int64_t fingerprint(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries);

}  // namespace meshard
