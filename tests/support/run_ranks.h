// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

#include <ATen/core/Generator.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace meshard {

/// Runs `body` as ranks 0..n-1 in threads of this process, over a transport in memory, which refuses what any real one
/// refuses. All fail together: when one throws, the others' collectives throw too, and the first error is rethrown
/// here. A rank that waits for more than a minute throws.
///
/// Where a launcher started this process as one of several ranks (`mpirun -np 3 ops_tests`, or `ops_tests --ranks=3`,
/// see ranks_main.cpp), the ranks are those processes, over the transport that they meet on, and what `body` throws
/// here is thrown here. Runs of one rank take place in each process, runs of another number of ranks not at all.
void run_ranks(int n, const std::function<void(std::shared_ptr<const DeviceMesh>)>& body);

/// The same on a grid of ranks, e.g. {2, 3} with axes {"data", "domain"}.
void run_ranks(std::vector<std::int64_t> shape, std::vector<std::string> axis_names,
               const std::function<void(std::shared_ptr<const DeviceMesh>)>& body);

/// The same for a body that makes its device meshes itself, all ranks the same ones.
void run_ranks_of_factory(int n, const std::function<void(GroupFactory&)>& body);

/// How many runs had processes as ranks.
int num_runs_of_processes();

/// Ends the connections of the ranks that are processes; returns at once where they are not.
void finish_processes();

/// Generator of the rank that runs in this thread, a copy of the default one as it was when the ranks were started; the
/// default one elsewhere.
at::Generator rank_generator();

}  // namespace meshard
