// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

namespace torch::nn {
class Module;
}

namespace meshard {

/// Copies the parameters and buffers of a module from rank `source_rank` of `device_mesh` to all others, in messages of
/// about 25 MB a type. Sharded ones are skipped. Collective over exactly the ranks of `device_mesh`.
/// @throws InvalidInput on every rank if the modules differ in number, name, shape or type of parameters and buffers,
/// or if there is no such rank.
void broadcast_module(torch::nn::Module& module, const DeviceMesh& device_mesh, int source_rank = 0);

/// Checks that every bit of every plain parameter and buffer is that of rank `source_rank`. Sends eight bytes a tensor.
/// Collective over exactly the ranks of `device_mesh`.
/// @throws InvalidInput on every rank, naming the first tensor that differs and the rank.
void verify_module(const torch::nn::Module& module, const DeviceMesh& device_mesh, int source_rank = 0);

}  // namespace meshard
