// SPDX-License-Identifier: Apache-2.0
#include "apps/python/bindings.h"
#include "models/geotransolver/geotransolver.h"
#include "models/graph/mesh_graph_net.h"
#include "models/layers/memory_mode.h"
#include "models/layers/random_draws.h"
#include "models/registry/kept_per_cloud.h"
#include "models/registry/registry.h"
#include "models/transolver/transolver.h"
#include "ops/neighbors/edge_list.h"
#include "ops/rows/row_gather.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace meshard {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Holds a model of the library for Python. Its parameters are the very tensors that Python gets, so that optimisers
/// and files of Python change them.
class PythonModel {
public:
    PythonModel(const std::string& name, const std::string& arguments)
        : model_(make_model(name, nlohmann::json::parse(arguments)))
    {
    }

    std::string arguments() const { return model_.arguments.dump(); }

    NamedTensors parameters() const { return listed(model_.module->named_parameters()); }
    NamedTensors buffers() const { return listed(model_.module->named_buffers()); }

    void train(bool on) { model_.module->train(on); }
    void set_memory(const std::string& mode) { meshard::set_memory(*model_.module, memory_mode(mode)); }
    void seed_draws(std::uint64_t seed) { meshard::seed_draws(*model_.module, seed); }

    at::Tensor transolver(const at::Tensor& fx, const std::optional<at::Tensor>& embedding,
                          const std::optional<at::Tensor>& time)
    {
        return architecture<TransolverImpl>().forward(fx, embedding.value_or(at::Tensor()),
                                                      time.value_or(at::Tensor()));
    }

    std::vector<at::Tensor> geotransolver(std::vector<at::Tensor> local_embedding,
                                          std::vector<at::Tensor> local_positions,
                                          const std::optional<at::Tensor>& global_embedding,
                                          const std::optional<at::Tensor>& geometry)
    {
        return architecture<GeoTransolverImpl>().forward({std::move(local_embedding),
                                                          global_embedding.value_or(at::Tensor()),
                                                          geometry.value_or(at::Tensor()), std::move(local_positions)});
    }

    at::Tensor of_points(const at::Tensor& embedding, const at::Tensor& positions,
                         const std::optional<at::Tensor>& constants)
    {
        return model_.forward({embedding, positions, constants.value_or(at::Tensor()), at::Tensor()});
    }

    /// Runs MeshGraphNet on nodes (N, C), edges (E, D) and edge_index (2, E), whose graph is found once for each layout
    /// of the nodes.
    at::Tensor of_graph(const at::Tensor& nodes, const at::Tensor& edges, const at::Tensor& edge_index)
    {
        auto& model = architecture<MeshGraphNetImpl>();
        if (edge_index.dim() != 2)
            throw InvalidInput("edge_index: expected (2, E), found the shape {}.", c10::str(edge_index.sizes()));
        if (edges.dim() != 2 || edges.size(0) != edge_index.size(-1)) {
            throw InvalidInput(
                "MeshGraphNet: expected a row of edge_features for each of the {} edges, found the shape {}.",
                edge_index.size(-1), c10::str(edges.sizes()));
        }
        const auto graphs = *graphs_.of(edge_index, {}, [] { return std::make_shared<KeptGraphs>(); });
        const auto layout = is_sharded(nodes) ? spec_of(nodes) : nullptr;
        auto kept = graphs->find(layout, nodes.size(0));
        if (!kept) {
            auto found = graph_of_edges(nodes, edge_index);
            kept = std::make_shared<KeptGraph>(
                layout, nodes.size(0), MeshGraph(std::move(found.graph), model.options()), std::move(found.edges));
            graphs->add(kept);
        }
        // Plain nodes are on every rank, and so are then all edges.
        const auto& edge_layout = kept->graph.graph().edge_layout();
        const auto own = edge_layout ? gather_rows(edges, from_local(kept->edges, edge_layout))
                                     : (is_sharded(edges) ? full_tensor(edges) : edges).index_select(0, kept->edges);
        return model.forward(nodes, own, kept->graph);
    }

private:
    struct KeptGraph {
        SpecPtr layout;  // layout of the nodes
        std::int64_t num_nodes;
        MeshGraph graph;
        at::Tensor edges;
    };

    /// The graphs of one list of edges, which several threads may use.
    class KeptGraphs {
    public:
        std::shared_ptr<const KeptGraph> find(const SpecPtr& layout, std::int64_t num_nodes)
        {
            const std::lock_guard one_at_a_time(in_use_);
            const auto found = std::ranges::find_if(graphs_, [&](const auto& one) {
                return one->num_nodes == num_nodes &&
                       (one->layout == layout || (one->layout && layout && *one->layout == *layout));
            });
            return found == graphs_.end() ? nullptr : *found;
        }
        void add(std::shared_ptr<const KeptGraph> graph)
        {
            const std::lock_guard one_at_a_time(in_use_);
            graphs_.push_back(std::move(graph));
        }

    private:
        std::mutex in_use_;
        std::vector<std::shared_ptr<const KeptGraph>> graphs_;
    };

    template <class Architecture>
    Architecture& architecture()
    {
        auto* found = dynamic_cast<Architecture*>(model_.module.get());
        if (!found) throw InvalidInput("this model is a {}, which takes other inputs.", model_.class_name);
        return *found;
    }

    static NamedTensors listed(const torch::OrderedDict<std::string, at::Tensor>& tensors)
    {
        NamedTensors list;
        for (const auto& item : tensors) list.emplace_back(item.key(), item.value());
        return list;
    }

    Model model_;
    KeptPerCloud<std::shared_ptr<KeptGraphs>> graphs_;
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
        .def("of_graph", &PythonModel::of_graph, WithoutGil())
        .def("of_points", &PythonModel::of_points, WithoutGil());
}

}  // namespace meshard
