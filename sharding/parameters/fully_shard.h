// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"
#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace meshard {

struct FullyShardOptions {
    /// Returns whether the parameters of a submodule form a unit, which is gathered in one message. Parameters outside
    /// all units form a unit of their own. If empty, the units are the direct children, and the children of a
    /// ModuleList or Sequential.
    std::function<bool(const std::string& name, const torch::nn::Module& submodule)> is_unit = {};
    /// Gather the next unit and reduce the last one's gradients during the computation; costs their memory.
    bool overlaps = true;
    bool over_all_axes = false;  ///< shard parameters over all ranks of the device mesh instead of its axis `data`
    /// Parameters, by name, of which the module itself uses this rank's part, with the Shard that gives the part. They
    /// are never gathered, and their gradients, which are complete on the rank, are not exchanged. Needs
    /// `over_all_axes` or one rank on the axis `data`.
    std::map<std::string, AxisLayout> kept_parts = {};
};

/// Handle on a module whose parameters, gradients and optimiser states are sharded over the axis `data` of a device
/// mesh, or over all of its ranks.
///
/// The parameters of a unit (a submodule) are flattened into one row; each of P ranks stores 1/P of it. The module is
/// used as before: an operator that reads one of its parameters gathers the unit in one message, and the unit is
/// dropped when another one is used or its backward is done. Autograd saves the local part only, so backward gathers
/// again. Memory: parameters / P + the largest unit + the next unit, which is gathered during the computation. Backward
/// sends the gradients of a unit in one message, as soon as they are complete: each rank receives those of its own
/// part, averaged over `data` (each data rank has its own loss) and summed over all other axes (each rank holds its
/// share of one loss). After Rajbhandari et al., "ZeRO", 2020.
///
/// All ranks over which parameters are sharded must use the same units in the same order. The optimiser works on
/// `local_parameters()`; writes to these must happen on all ranks and between passes. Writing to the module's own
/// parameters is refused. The module stays sharded when this handle is destroyed.
class FullyShardedModule {
public:
    /// This rank's part of each parameter that requires gradients: leaves to give to the optimiser, flat (kept parts in
    /// their own shape) and possibly empty.
    const std::vector<at::Tensor>& local_parameters() const;

    /// Names of the `local_parameters()`.
    std::vector<std::string> local_parameter_names() const;

    /// Shape of the whole of one of the module's parameters, also for a kept part, whose tensor has the shape of the
    /// part.
    at::IntArrayRef whole_shape(const at::Tensor& parameter) const;

    /// Name and part of every parameter, frozen ones included, as sharded tensors: flat, kept parts in their own shape.
    /// They share memory with the local parts.
    std::vector<std::pair<std::string, at::Tensor>> named_shards() const;

    /// Wraps a tensor of the shape of `local_parameters()[i]` (an optimiser state) with the layout of that parameter.
    at::Tensor as_shard(std::size_t i, const at::Tensor& local) const;

    /// Names and whole values of all parameters, as plain copies. Collective.
    std::vector<std::pair<std::string, at::Tensor>> full_parameters() const;

    /// Bytes of gathered parameters on this rank, now and at most so far. Over Gloo, a communication thread may hold a
    /// unit for a moment after it has been dropped.
    std::int64_t gathered_bytes() const;
    std::int64_t peak_gathered_bytes() const;

    /// The ranks over which parameters are sharded.
    const RankGroup& group() const;

    struct State;

private:
    friend FullyShardedModule fully_shard(torch::nn::Module&, std::shared_ptr<const DeviceMesh>,
                                          const FullyShardOptions&);
    explicit FullyShardedModule(std::shared_ptr<State> state);
    std::shared_ptr<State> state_;
};

/// Shards the parameters of a module; they and its buffers become those of rank 0. Collective over all ranks of
/// `device_mesh`, which must have an axis `data` unless parameters are sharded over all axes.
/// @throws InvalidInput without that axis; if a parameter is sharded already, is not a leaf or shares its memory; if
/// the ranks' modules differ; if a kept part is not a parameter, does not fit its shape, or `data` has several ranks.
FullyShardedModule fully_shard(torch::nn::Module& module, std::shared_ptr<const DeviceMesh> device_mesh,
                               const FullyShardOptions& options = {});

}  // namespace meshard
