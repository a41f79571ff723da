// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/memory/device_graph.h"

namespace meshard {

/// CUDA's graphs by way of LibTorch; empty in a build for CPUs.
MakeGraphRecorder cuda_graph_recorder();

}  // namespace meshard
