// SPDX-License-Identifier: Apache-2.0
// The module `meshard._core`. A sharded tensor is an at::Tensor, so that Python sees a torch.Tensor, and every operator
// on it goes through torch's own bindings; only functions that make, inspect and gather such tensors are bound here.
// The functions that users call are in meshard/*.py.
#include "apps/python/bindings.h"

PYBIND11_MODULE(_core, module)
{
    module.doc() = "Bindings of meshard's C++ libraries. Use the functions of the package `meshard`.";
    meshard::bind_errors(module);
    meshard::bind_device_mesh(module);
    meshard::bind_tensors(module);
    meshard::bind_parameters(module);
    meshard::bind_rows(module);
    meshard::bind_backend(module);
    meshard::bind_models(module);
}
