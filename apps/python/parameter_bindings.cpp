// SPDX-License-Identifier: Apache-2.0
#include "apps/python/bindings.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/gradient_norm.h"
#include "sharding/parameters/lasting_hook.h"
#include "sharding/parameters/replicate.h"
#include "sharding/parameters/stored_parameter.h"

#include <torch/nn/module.h>

#include <map>
#include <set>
#include <string>
#include <utility>

namespace py = pybind11;

namespace meshard {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A C++ module with the parameters and buffers of a Python module: the tensors are the same, and so are their names.
class ParameterTree : public torch::nn::Module {
public:
    ParameterTree() = default;

    ParameterTree(const NamedTensors& parameters, const NamedTensors& buffers)
    {
        for (const auto& [name, tensor] : parameters) add(name, tensor, true);
        for (const auto& [name, tensor] : buffers) add(name, tensor, false);
    }

private:
    void add(const std::string& name, const at::Tensor& tensor, bool is_parameter)
    {
        const auto dot = name.find('.');
        if (dot == std::string::npos) {
            is_parameter ? register_parameter(name, tensor, tensor.requires_grad()) : register_buffer(name, tensor);
            return;
        }
        auto& child = children_of_name_[name.substr(0, dot)];
        if (!child) child = register_module(name.substr(0, dot), std::make_shared<ParameterTree>());
        child->add(name.substr(dot + 1), tensor, is_parameter);
    }

    std::map<std::string, std::shared_ptr<ParameterTree>> children_of_name_;
};

std::unique_ptr<ReplicatedModule> replicate_parameters(const NamedTensors& parameters, const NamedTensors& buffers,
                                                       const PythonMesh& mesh, bool verify_at_start,
                                                       std::int64_t bucket_bytes)
{
    const auto module = std::make_shared<ParameterTree>(parameters, buffers);
    ReplicateOptions options;
    options.verify_at_start = verify_at_start;
    options.bucket_bytes = bucket_bytes;
    return std::make_unique<ReplicatedModule>(replicate(*module, mesh.mesh, options));
}

/// @param units   names of the submodules whose parameters are gathered together
std::unique_ptr<FullyShardedModule> fully_shard_parameters(const NamedTensors& parameters, const NamedTensors& buffers,
                                                           const PythonMesh& mesh, const std::set<std::string>& units,
                                                           bool over_all_axes, bool overlaps)
{
    const auto module = std::make_shared<ParameterTree>(parameters, buffers);
    FullyShardOptions options;
    options.is_unit = [&units](const std::string& name, const torch::nn::Module&) { return units.contains(name); };
    options.over_all_axes = over_all_axes;
    options.overlaps = overlaps;
    return std::make_unique<FullyShardedModule>(fully_shard(*module, mesh.mesh, options));
}

}  // namespace

void bind_parameters(py::module_& module)
{
    py::class_<ReplicatedModule>(module, "ReplicatedModule").def("set_sync", &ReplicatedModule::set_sync);
    module.def("replicate", &replicate_parameters, WithoutGil());
    module.def("keeping_hooks", [](const at::Tensor& leaf, const py::function& action) {
        const KeptHooks kept(leaf);
        return py::object(action());
    });
    py::class_<FullyShardedModule>(module, "FullyShardedModule", "The handle that fully_shard returns.")
        .def("local_parameters", &FullyShardedModule::local_parameters,
             "This rank's part of each parameter that takes gradients, flat and possibly empty: leaves, for the "
             "optimiser.")
        .def("local_parameter_names", &FullyShardedModule::local_parameter_names, "Names of the local_parameters().")
        .def("named_shards", &FullyShardedModule::named_shards,
             "Name and part of every parameter, as a sharded tensor of one dimension that shares its memory.")
        .def(
            "clip_grad_norm_",
            [](FullyShardedModule& sharded, double max_norm) {
                const auto parts = sharded.local_parameters();
                const auto norm = gradient_norm(parts, &sharded.group());
                scale_to_norm(parts, norm, max_norm);
                return norm;
            },
            py::arg("max_norm"), WithoutGil(),
            "As torch.nn.utils.clip_grad_norm_, by the norm of the gradients of all parameters, whose parts the ranks "
            "have. Returns that norm. Collective.")
        .def("full_parameters", &FullyShardedModule::full_parameters, WithoutGil(),
             "Name and value of every parameter, whole, as plain copies. Collective.")
        .def_property_readonly("gathered_bytes", &FullyShardedModule::gathered_bytes,
                               "Bytes of whole parameters that are in memory on this rank now.")
        .def_property_readonly("peak_gathered_bytes", &FullyShardedModule::peak_gathered_bytes, "The most that were.");
    module.def("is_stored", &is_stored, py::arg("tensor"));
    module.def("stored_tensor", &stored_tensor);
    module.def("flat_values", &flat_values);
    module.def("fully_shard", &fully_shard_parameters, WithoutGil());
}

}  // namespace meshard
