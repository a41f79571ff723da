// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"
#include "sharding/ranks/placement.h"

#include <torch/extension.h>

#include <memory>
#include <optional>
#include <vector>

namespace meshard {

/// A device mesh as Python holds it: pybind11 has no pointers to const.
struct PythonMesh {
    std::shared_ptr<const DeviceMesh> mesh;
};

/// Waiting for other ranks must not keep this process's other Python threads waiting.
using WithoutGil = pybind11::call_guard<pybind11::gil_scoped_release>;

// Each adds its functions and classes to the module `meshard._core`.
void bind_errors(pybind11::module_& module);
void bind_device_mesh(pybind11::module_& module);
void bind_tensors(pybind11::module_& module);
void bind_parameters(pybind11::module_& module);
void bind_rows(pybind11::module_& module);

}  // namespace meshard
