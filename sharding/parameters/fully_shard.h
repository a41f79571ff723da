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
    /// Says of a submodule, by its name and itself, whether its parameters are gathered together. Parameters outside all of them
    /// make up a unit of their own. Empty: the direct children; of a ModuleList or a Sequential among them, the children of that.
    std::function<bool(const std::string& name, const torch::nn::Module& submodule)> is_unit;
    bool broadcast_at_start = true;  ///< parameters and buffers become those of rank 0; else they must be the same already
    bool overlaps = true;            ///< messages travel behind the computation; takes the memory of the next unit, and of the gradients of the last one
    bool over_all_axes = false;      ///< parameters are cut among all ranks of the device mesh, not over its axis `data` alone
    /// Parameters, by name, of which the module itself uses each rank's part, and the Shard that says which part: they become those parts and are never
    /// gathered, and their gradients, complete on the rank that has the part, are not exchanged. With `over_all_axes`, where the ranks of `data` are one.
    std::map<std::string, AxisLayout> kept_parts = {};
};

/// A module whose parameters, gradients and optimiser states are cut over the axis `data` of a device mesh, or over all of its ranks: the handle on them.
///
/// The parameters of a unit (a submodule) lie end to end; each rank keeps an even part of that row, 1/P of it. The module itself stays
/// usable as ever: an operator that meets one of its parameters gathers the unit, in one message, and the unit is dropped when another
/// is met or its backward is done. What autograd saves of a parameter is the part, so backward gathers again. Memory: parameters / P +
/// the largest unit, and the next one, which is gathered behind the computation. Backward sends the gradients of a unit in one message, as soon as they
/// are complete: each rank gets those of its own part, averaged over `data` (each data rank has a loss of its own) and summed over all other axes (each
/// rank holds its share of one loss). After Rajbhandari et al., "ZeRO", 2020.
///
/// All ranks that parameters are cut among must use the same units in the same order. The optimiser works on `local_parameters()`, and whatever writes to
/// those does so on all ranks and between passes; writing to the module's own parameters is refused. They stay as they are when this handle goes.
class FullyShardedModule {
public:
    /// This rank's part of each parameter that takes gradients, flat (kept parts in their own shape) and possibly empty: leaves, to be given to the optimiser.
    const std::vector<at::Tensor>& local_parameters() const;

    /// Names of the `local_parameters()`.
    std::vector<std::string> local_parameter_names() const;

    /// Shape of the whole of one of the module's parameters, of which a kept part shows its own.
    at::IntArrayRef whole_shape(const at::Tensor& parameter) const;

    /// Name and part of every parameter, frozen ones included, as a sharded tensor of one dimension, kept parts of as many as they have; shares memory with the
    /// local part.
    std::vector<std::pair<std::string, at::Tensor>> named_shards() const;

    /// A tensor shaped like `local_parameters()[i]` (a state of the optimiser) as a sharded tensor, cut as that parameter is.
    at::Tensor as_shard(std::size_t i, const at::Tensor& local) const;

    /// Name and value of every parameter, whole, as plain copies. Collective.
    std::vector<std::pair<std::string, at::Tensor>> full_parameters() const;

    /// Bytes of whole parameters that are in memory on this rank now, and the most that were. Over Gloo, one of its threads may hold a unit for a moment
    /// after the module has let it go.
    std::int64_t gathered_bytes() const;
    std::int64_t peak_gathered_bytes() const;

    /// The ranks that parameters are cut among.
    const RankGroup& group() const;

    struct State;

private:
    friend FullyShardedModule fully_shard(torch::nn::Module&, std::shared_ptr<const DeviceMesh>, const FullyShardOptions&);
    explicit FullyShardedModule(std::shared_ptr<State> state);
    std::shared_ptr<State> state_;
};

/// Collective over all ranks of `device_mesh`, which must have an axis `data` unless parameters are cut over all axes.
/// @throws InvalidInput without that axis; if a parameter is sharded already, is no leaf or has no memory of its own; if the ranks'
/// modules differ; if a kept part is none of the parameters, does not fit its shape, or there are several ranks of `data`.
FullyShardedModule fully_shard(torch::nn::Module& module, std::shared_ptr<const DeviceMesh> device_mesh, const FullyShardOptions& options = {});

}  // namespace meshard
