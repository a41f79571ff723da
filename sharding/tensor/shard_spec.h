// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/ghosts/index_map.h"
#include "sharding/ranks/device_mesh.h"
#include "sharding/ranks/placement.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

using Extents = std::vector<std::int64_t>;

/// Placement on one axis, with the extents that a Shard needs.
///
/// The sharded dimension of the whole has `blocks * sum(extents)` entries: `blocks` copies of the cut row range, one
/// after the other. blocks > 1 arises when a batch dimension is flattened into the rows, (B, N, C) to (B*N, C): each of
/// the B blocks is cut in the same way. A rank holds `blocks * extents[coordinate]` entries.
struct AxisLayout {
    Placement placement;
    std::shared_ptr<const Extents> extents;  ///< for a Shard: one for each rank, zero allowed
    std::int64_t blocks = 1;

    bool is_shard() const { return placement.is_shard(); }
    bool is_replicate() const { return placement.is_replicate(); }
    bool is_partial() const { return placement.is_partial(); }
    std::int64_t total() const;                          ///< sum of the extents
    std::int64_t offset(std::int64_t coordinate) const;  ///< number of rows before those of that rank

    bool operator==(const AxisLayout& other) const;
};

using AxisLayouts = c10::SmallVector<AxisLayout, 2>;  ///< one for each axis of a device mesh

/// The layouts after the reduction of every Partial: Replicate instead.
AxisLayouts without_pending(AxisLayouts axes);

/// Layout of a tensor on a device mesh. Immutable and shared; does not hold the sizes of dimensions that are not cut.
struct ShardSpec {
    std::shared_ptr<const DeviceMesh> device_mesh;
    AxisLayouts axes;
    /// Global ids of this rank's rows on the axis `domain`, if they come from a mesh.
    std::shared_ptr<const IndexMap> index_map;

    bool is_replicate() const;  ///< whether every axis is Replicate
    bool has_partial() const;
    bool has_shard() const;

    /// Axis that cuts tensor dimension `dim`, or -1.
    std::int64_t axis_of_dim(std::int64_t dim) const;

    /// Shape of the whole, from the shape of this rank's part.
    std::vector<std::int64_t> global_shape(c10::IntArrayRef local_shape) const;

    /// Shape of this rank's part, from that of the whole.
    std::vector<std::int64_t> local_shape(c10::IntArrayRef global_shape) const;

    bool operator==(const ShardSpec& other) const;  ///< same mesh and axes

    /// Checks that there is one layout for each axis and, in each Shard, one extent for each rank, none negative, and
    /// that no two axes cut the same dimension, unless both have one rank.
    /// `make_spec`, `from_local` and `redistribute` call it on the caller's arguments. @throws InvalidInput
    void validate() const;
};

using SpecPtr = std::shared_ptr<const ShardSpec>;

/// @throws InvalidInput as `ShardSpec::validate`.
SpecPtr make_spec(std::shared_ptr<const DeviceMesh> device_mesh, c10::ArrayRef<AxisLayout> axes,
                  std::shared_ptr<const IndexMap> index_map = nullptr);

/// A layout in which every axis is Replicate.
SpecPtr replicated_spec(std::shared_ptr<const DeviceMesh> device_mesh);

/// The layout in which the owned rows of a part are a Shard(dim) on the axis `domain`; other axes are Replicate.
/// Collective over `domain`: ranks exchange their numbers of owned rows. @throws InvalidInput if the parts do not make
/// up the whole.
SpecPtr shard_spec(std::shared_ptr<const IndexMap> index_map, std::shared_ptr<const DeviceMesh> device_mesh,
                   std::int64_t dim = 0);

/// n rows in `num_ranks` near-equal extents, the larger ones first.
Extents even_extents(std::int64_t n, std::int64_t num_ranks);

/// One line, e.g. `Shard(1) of 70+30 on domain, Replicate on data`.
std::string to_string(const ShardSpec& spec);

}  // namespace meshard
