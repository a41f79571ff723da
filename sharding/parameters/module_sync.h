// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

namespace torch::nn {
class Module;
}

namespace meshard {

/// Makes the parameters and buffers of a module those of rank `source_rank` of `device_mesh`, in messages of about 25 MB a type. Sharded
/// ones are left alone. Collective over the ranks of `device_mesh` and no others.
/// @throws InvalidInput on every rank if the modules differ in number, name, shape or type of parameters and buffers, or there is no
/// such rank.
void broadcast_module(torch::nn::Module& module, const DeviceMesh& device_mesh, int source_rank = 0);

/// Checks instead: every bit of every plain parameter and buffer is that of rank `source_rank`. Sends eight bytes a tensor. Collective
/// likewise.
/// @throws InvalidInput on every rank, naming the first tensor that differs and the rank.
void verify_module(const torch::nn::Module& module, const DeviceMesh& device_mesh, int source_rank = 0);

}  // namespace meshard
