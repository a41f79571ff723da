// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

#include <memory>

namespace meshard {

/// Holds a device mesh for Python, since pybind11 has no pointers to const.
struct PythonMesh {
    std::shared_ptr<const DeviceMesh> mesh;
};

}  // namespace meshard
