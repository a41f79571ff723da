// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/memory/device_graph.h"

namespace meshard {

/// Makes recorders that use LibTorch's CUDA graphs; empty in a build for CPUs.
MakeGraphRecorder cuda_graph_recorder();

}  // namespace meshard
