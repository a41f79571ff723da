// SPDX-License-Identifier: Apache-2.0
#include "apps/python/bindings.h"
#include "models/geotransolver/geotransolver.h"
#include "models/layers/memory_mode.h"
#include "models/layers/random_draws.h"
#include "models/registry/registry.h"
#include "models/transolver/transolver.h"
#include "partition/error.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace meshard {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A model of the library as Python holds it. Its parameters are the very tensors that Python gets, so that optimisers and files of Python change them.
class PythonModel {
public:
    PythonModel(const std::string& name, const std::string& arguments) : model_(make_model(name, nlohmann::json::parse(arguments))) {}

    std::string arguments() const { return model_.arguments.dump(); }

    NamedTensors parameters() const { return listed(model_.module->named_parameters()); }
    NamedTensors buffers() const { return listed(model_.module->named_buffers()); }

    void train(bool on) { model_.module->train(on); }
    void set_memory(const std::string& mode) { meshard::set_memory(*model_.module, memory_mode(mode)); }
    void seed_draws(std::uint64_t seed) { meshard::seed_draws(*model_.module, seed); }

    at::Tensor transolver(const at::Tensor& fx, const std::optional<at::Tensor>& embedding, const std::optional<at::Tensor>& time)
    {
        return architecture<TransolverImpl>().forward(fx, embedding.value_or(at::Tensor()), time.value_or(at::Tensor()));
    }

    std::vector<at::Tensor> geotransolver(std::vector<at::Tensor> local_embedding, std::vector<at::Tensor> local_positions,
                                          const std::optional<at::Tensor>& global_embedding, const std::optional<at::Tensor>& geometry)
    {
        return architecture<GeoTransolverImpl>().forward(
            {std::move(local_embedding), global_embedding.value_or(at::Tensor()), geometry.value_or(at::Tensor()), std::move(local_positions)});
    }

    at::Tensor of_points(const at::Tensor& embedding, const at::Tensor& positions, const std::optional<at::Tensor>& constants)
    {
        return model_.forward({embedding, positions, constants.value_or(at::Tensor()), at::Tensor()});
    }

private:
    template <class Architecture>
    Architecture& architecture()
    {
        auto* found = dynamic_cast<Architecture*>(model_.module.get());
        if (!found) throw InvalidInput("this model is a " + model_.class_name + ", which takes other inputs.");
        return *found;
    }

    static NamedTensors listed(const torch::OrderedDict<std::string, at::Tensor>& tensors)
    {
        NamedTensors list;
        for (const auto& item : tensors) list.emplace_back(item.key(), item.value());
        return list;
    }

    Model model_;
};

}  // namespace

void bind_models(py::module_& module)
{
    py::class_<PythonModel>(module, "Model")
        .def(py::init<const std::string&, const std::string&>())
        .def("arguments", &PythonModel::arguments)
        .def("parameters", &PythonModel::parameters)
        .def("buffers", &PythonModel::buffers)
        .def("train", &PythonModel::train)
        .def("set_memory", &PythonModel::set_memory)
        .def("seed_draws", &PythonModel::seed_draws)
        .def("transolver", &PythonModel::transolver, WithoutGil())
        .def("geotransolver", &PythonModel::geotransolver, WithoutGil())
        .def("of_points", &PythonModel::of_points, WithoutGil());
}

}  // namespace meshard
