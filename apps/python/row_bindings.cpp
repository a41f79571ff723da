// SPDX-License-Identifier: Apache-2.0
#include "apps/python/bindings.h"
#include "ops/neighbors/neighbors.h"
#include "ops/rows/ghost_exchange.h"
#include "ops/rows/row_gather.h"
#include "ops/rows/segment_reduce.h"
#include "ops/surface/surface_distance.h"
#include "partition/error.h"
#include "partition/ghosts/index_map.h"
#include "sharding/exchange/exchange_plan.h"

#include <fmt/core.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace meshard {
namespace {

NeighborOptions neighbor_options(bool exclude_self, const std::vector<double>& period)
{
    NeighborOptions options;
    options.exclude_self = exclude_self;
    options.period = period;
    return options;
}

template <class Reduction>
Reduction reduction_of(const char* where, const std::string& name)
{
    if (name == "sum") return Reduction::Sum;
    if (name == "mean") return Reduction::Mean;
    if (name == "max") return Reduction::Max;
    if (name == "min") return Reduction::Min;
    throw InvalidInput("{}: expected the reduction 'sum', 'mean', 'max' or 'min', found '{}'.", where, name);
}

SurfaceDistance distance_of(const at::Tensor& vertices, const at::Tensor& faces, const at::Tensor& queries,
                            const std::string& sign, double max_distance)
{
    SurfaceDistanceOptions options;
    options.max_distance = max_distance;
    if (sign == "winding_number")
        options.sign = SurfaceSign::WindingNumber;
    else if (sign != "pseudo_normal")
        throw InvalidInput("signed_distance: expected the sign 'pseudo_normal' or 'winding_number', found '{}'.", sign);
    return signed_distance(vertices, faces, queries, options);
}

/// Holds an exchange plan for Python, since pybind11 has no pointers to const.
struct PythonGhostPlan {
    std::shared_ptr<const ExchangePlan> plan;
};

PythonGhostPlan ghost_plan(std::vector<std::int64_t> global_ids, std::int64_t num_owned,
                           std::vector<std::int32_t> ghost_owners, const PythonMesh& mesh)
{
    const auto& group = mesh.mesh->group(mesh.mesh->axis("domain"));
    const bool fits = num_owned >= 0 && num_owned + std::ssize(ghost_owners) == std::ssize(global_ids);
    IndexMap map;
    for (const auto of_rank : group.all_gather_integers(fits ? num_owned : -1)) {
        if (of_rank < 0) {
            throw InvalidInput("GhostPlan: expected global_ids of num_owned rows and of one ghost for each entry of "
                               "ghost_owners; on a rank they do not fit{}",
                               fits ? "."
                                    : fmt::format(": there are {} ids, {} owned rows and {} owners of ghosts.",
                                                  global_ids.size(), num_owned, ghost_owners.size()));
        }
        map.num_global += of_rank;
    }
    map.num_owned = static_cast<std::int32_t>(num_owned);
    map.global_ids = std::move(global_ids);
    map.ghost_owners = std::move(ghost_owners);
    return {ExchangePlan::find(map, group)};
}

void bind_ghosts(py::module_& module)
{
    py::class_<PythonGhostPlan>(module, "GhostPlan")
        .def(py::init(&ghost_plan), WithoutGil())
        .def_property_readonly("num_owned", [](const PythonGhostPlan& p) { return p.plan->num_owned(); })
        .def_property_readonly("num_ghosts", [](const PythonGhostPlan& p) { return p.plan->num_ghosts(); })
        .def_property_readonly("num_sent", [](const PythonGhostPlan& p) { return p.plan->num_sent(); })
        .def("__repr__", [](const PythonGhostPlan& p) { return to_string(*p.plan); });
    module.def(
        "exchange_ghosts",
        [](const at::Tensor& owned, const PythonGhostPlan& p) { return exchange_ghosts(owned, p.plan); }, WithoutGil());
    module.def(
        "with_ghosts", [](const at::Tensor& owned, const PythonGhostPlan& p) { return with_ghosts(owned, p.plan); },
        WithoutGil());
    module.def(
        "scatter_ghosts",
        [](const at::Tensor& local, const PythonGhostPlan& p, const std::string& reduction) {
            return scatter_ghosts(local, p.plan, reduction_of<GhostReduction>("scatter_ghosts", reduction));
        },
        WithoutGil());
}

}  // namespace

void bind_rows(py::module_& module)
{
    py::class_<Neighbors>(
        module, "Neighbors",
        "Neighbours of this rank's queries: those of query i are the entries offsets[i] up to offsets[i + 1].")
        .def_readonly("offsets", &Neighbors::offsets, "(queries + 1), int64")
        .def_readonly("ids", &Neighbors::ids, "(entries), int64: rows of the neighbours in the whole")
        .def_readonly("distances", &Neighbors::distances, "(entries), differentiable in points and queries");
    module.def(
        "knn",
        [](const at::Tensor& points, const at::Tensor& queries, std::int64_t k, bool exclude_self,
           const std::vector<double>& period) {
            return knn(points, queries, k, neighbor_options(exclude_self, period));
        },
        WithoutGil());
    module.def(
        "radius_search",
        [](const at::Tensor& points, const at::Tensor& queries, double radius,
           std::optional<std::int64_t> max_neighbors, bool exclude_self, const std::vector<double>& period) {
            return radius_search(points, queries, radius, max_neighbors.value_or(kAllNeighbors),
                                 neighbor_options(exclude_self, period));
        },
        WithoutGil());
    module.def("gather_neighbors", &gather_neighbors, WithoutGil());
    module.def("gather_rows", &gather_rows, WithoutGil());
    module.def("scatter_add", &scatter_add, WithoutGil());
    module.def(
        "segment_reduce",
        [](const at::Tensor& values, const at::Tensor& offsets, const std::string& reduction) {
            return segment_reduce(values, offsets, reduction_of<SegmentReduction>("segment_reduce", reduction)).values;
        },
        WithoutGil());
    module.def("segment_softmax", &segment_softmax, WithoutGil());
    py::class_<SurfaceDistance>(module, "SurfaceDistance",
                                "Results of signed_distance, one row for each query, with the layout of the queries.")
        .def_readonly("distances", &SurfaceDistance::distances,
                      "(M): positive outside, negative inside; NaN without result")
        .def_readonly("directions", &SurfaceDistance::directions, "(M, 3): the distance's gradient, of unit length")
        .def_readonly("points", &SurfaceDistance::points, "(M, 3): nearest points of the surface")
        .def_readonly("faces", &SurfaceDistance::faces, "(M), int64: triangle of the nearest point; -1 without result");
    module.def("signed_distance", &distance_of, WithoutGil());
    bind_ghosts(module);
}

}  // namespace meshard
