// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/python/python_mesh.h"
#include "sharding/ranks/placement.h"

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

namespace meshard {

/// Returns host and process of each rank, by which messages name it and others notice that it has ended. Collective.
std::vector<std::string> process_names(c10d::Store& store, int rank, int size);

/// Releases Python's lock during a call, so that waiting for other ranks does not stop this process's other Python
/// threads.
using WithoutGil = pybind11::call_guard<pybind11::gil_scoped_release>;

// Each adds its functions and classes to the module `meshard._core`.
void bind_errors(pybind11::module_& module);
void bind_device_mesh(pybind11::module_& module);
void bind_tensors(pybind11::module_& module);
void bind_parameters(pybind11::module_& module);
void bind_rows(pybind11::module_& module);
void bind_backend(pybind11::module_& module);
void bind_models(pybind11::module_& module);

}  // namespace meshard
