// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/comm_counter.h"
#include "sharding/ranks/rank_group.h"

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Interface that makes the group of the given ranks of the world (ascending). Every rank of the world makes all groups
/// in the same order; the members of a group find each other by their numbers, and by how many groups of the same ranks
/// there were before.
class GroupFactory {
public:
    virtual ~GroupFactory() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual RankGroup make_group(const std::vector<int>& ranks, const std::string& axis,
                                 std::shared_ptr<CommCounter> counter) = 0;

    /// This rank's own random generator on the CPU, where ranks are threads of one process; none where ranks are
    /// processes, which use LibTorch's default generator.
    virtual std::optional<at::Generator> generator() const { return std::nullopt; }
};

/// The name and the ranks by which other device meshes know an axis.
struct MeshAxis {
    std::string name;
    std::vector<int> ranks;  ///< those of the world along it, with this rank

    std::int64_t size() const { return static_cast<std::int64_t>(ranks.size()); }
    bool operator==(const MeshAxis&) const = default;
};

/// A grid of ranks with named axes, e.g. `data` x `domain`, with one group for each axis and one of all ranks.
/// Row-major: the last axis varies fastest, so that the ranks of one domain have consecutive numbers.
class DeviceMesh : public std::enable_shared_from_this<DeviceMesh> {
public:
    /// A mesh of one rank, with one axis `domain` of size one.
    static std::shared_ptr<const DeviceMesh> single();

    /// Collective over all ranks of `factory`. @throws InvalidInput if the sizes do not multiply to the number of
    /// ranks.
    static std::shared_ptr<const DeviceMesh> create(GroupFactory& factory, std::vector<std::int64_t> shape,
                                                    std::vector<std::string> axis_names);

    std::int64_t num_axes() const { return static_cast<std::int64_t>(shape_.size()); }
    std::int64_t size(std::int64_t axis) const { return shape_[axis]; }
    std::int64_t num_ranks() const { return all_.size(); }
    const std::vector<std::string>& axis_names() const { return axis_names_; }

    /// Position of this rank along an axis.
    std::int64_t coordinate(std::int64_t axis) const { return groups_[axis].rank(); }

    const RankGroup& group(std::int64_t axis) const { return groups_[axis]; }
    const RankGroup& all() const { return all_; }

    /// Index of the axis of that name. @throws InvalidInput listing the names.
    std::int64_t axis(std::string_view name) const;
    bool has_axis(std::string_view name) const;

    /// The ranks along one axis that include this one, as a device mesh of that axis alone. Every call returns the same
    /// object.
    std::shared_ptr<const DeviceMesh> sub_mesh(std::string_view axis_name) const;

    /// All ranks on one axis, in the order of their numbers: of a folded axis that axis, else `all`. Every call returns
    /// the same object.
    std::shared_ptr<const DeviceMesh> in_a_row() const;

    /// Whether this is a grid that `folded` has made of an axis.
    bool is_folded() const;

    /// An axis by its own name.
    MeshAxis own_axis(std::int64_t axis) const { return {axis_names_[axis], ranks_[axis]}; }

    /// Axis `axis` as other meshes know it: of a folded mesh the axis that it was.
    MeshAxis known_axis(std::int64_t axis) const;

    /// Whether one of the axes is called so and has the same ranks, here or as other meshes know it.
    bool has_axis(const MeshAxis& axis) const;

    /// The ranks along one axis that include this one, as a grid of the given shape with the axes `NAME.0`, `NAME.1`,
    /// ..., the last of which varies fastest. Collective over all ranks of `factory`, of which this mesh was made.
    /// @throws InvalidInput if the sizes do not multiply to that of the axis
    std::shared_ptr<const DeviceMesh> folded(GroupFactory& factory, std::string_view axis_name,
                                             std::vector<std::int64_t> shape) const;

    CommCounter& counter() const { return *counter_; }

    /// This rank's generator for random tensors on a device; it must be in the same state on all ranks. The first call
    /// for a device compares the states (collective over all ranks).
    /// @throws InvalidInput if they differ; set them with `torch::manual_seed`.
    at::Generator generator(const at::Device& device) const;

    /// This rank's own generator on the CPU, where ranks are threads of one process; none where it is LibTorch's
    /// default one. Not collective.
    const std::optional<at::Generator>& own_generator() const { return own_generator_; }

private:
    DeviceMesh() = default;

    std::shared_ptr<DeviceMesh> line_of(const RankGroup& group, const MeshAxis& axis) const;
    void add_axis(GroupFactory& factory, std::int64_t size, std::int64_t stride, const std::string& name);

    std::vector<std::int64_t> shape_;
    std::vector<std::string> axis_names_;
    std::vector<std::vector<int>> ranks_;  // along each axis, of the world
    std::vector<RankGroup> groups_;
    RankGroup all_;
    std::shared_ptr<CommCounter> counter_ = std::make_shared<CommCounter>();
    std::vector<std::shared_ptr<const DeviceMesh>> sub_meshes_;
    std::shared_ptr<const DeviceMesh> in_a_row_;  // none of a mesh of one axis, which is its own
    std::optional<at::Generator> own_generator_;
    mutable std::set<at::DeviceType> compared_;  // devices for which the ranks' generator states have been compared
};

}  // namespace meshard
