// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

namespace meshard {

/// Holds a device mesh for Python, since pybind11 has no pointers to const.
struct PythonMesh {
    std::shared_ptr<const DeviceMesh> mesh;
    c10::intrusive_ptr<c10d::Backend> carrier = nullptr;  ///< backend of all ranks; null for one rank or a sub-mesh
};

}  // namespace meshard
