// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"
#include "sharding/memory/device_graph.h"

#include <functional>
#include <memory>

namespace meshard::standin {

/// Where what the calling thread has its device do now is recorded: launches in their order, with all that they use.
/// Null if it is not recorded.
HostRecord* record_here();

/// A graph of the stand-in. Work is done while it is recorded, since shapes follow from it; at the end the device's
/// memory is what it was at the beginning, as if nothing had been done. Copies between host and device, waits and draws
/// of random numbers are errors while work is recorded.
std::unique_ptr<GraphRecorder> make_graph_recorder();

}  // namespace meshard::standin
