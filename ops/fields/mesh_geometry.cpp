// SPDX-License-Identifier: Apache-2.0
#include "ops/fields/mesh_geometry.h"

#include "ops/rows/cut_rows.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <numeric>
#include <string>
#include <utility>

namespace meshard {
namespace {

IndexMap map_of_all(std::int64_t n)
{
    IndexMap map;
    map.num_global = n;
    map.num_owned = static_cast<std::int32_t>(n);
    map.global_ids.resize(n);
    std::iota(map.global_ids.begin(), map.global_ids.end(), 0);
    return map;
}

FieldLayout layout_of(const char* what, const IndexMap& map)
{
    return {what, map.num_owned, map.num_global, nullptr, nullptr};
}

}  // namespace

at::Tensor FieldLayout::field(const at::Tensor& own) const
{
    return layout ? from_local(own, layout) : own;
}

at::Tensor FieldLayout::own_rows(const char* where, const at::Tensor& field) const
{
    const auto part = cut_rows_of(where, "field's rows", field);
    const bool fits = layout ? part.layout && *part.layout == *layout : !part.is_cut();
    if (fits && part.own.dim() > 0 && part.own.size(0) == num_owned) return part.own;
    throw InvalidInput(
        "{}: the field has {} rows{}, expected one for each of the {} {}{}. Make it with FieldLayout::field.", where,
        part.num_global, part.layout ? " with layout " + to_string(*part.layout) : "", num_global, what,
        layout ? " with layout " + to_string(*layout) : "");
}

MeshGeometry::MeshGeometry(Mesh mesh)
{
    part_.mesh = std::move(mesh);
    part_.cells = map_of_all(part_.mesh.num_cells());
    part_.points = map_of_all(part_.mesh.num_points());
    cells_ = layout_of("cells", part_.cells);
    points_ = layout_of("points", part_.points);
    measures_ = cell_measures(part_.mesh);
}

MeshGeometry::MeshGeometry(Subdomain part, const std::shared_ptr<const DeviceMesh>& device_mesh)
    : part_(std::move(part))
{
    const auto& group = device_mesh->group(device_mesh->axis("domain"));
    std::string error;
    if (part_.part != group.rank() || part_.num_parts != group.size()) {
        error = fmt::format("MeshGeometry: part {} of {} on rank {} of {}. Cut the mesh into as many parts as there "
                            "are ranks, part r on rank r.",
                            part_.part, part_.num_parts, group.rank(), group.size());
    } else if (part_.num_parts > 1 && part_.num_ghost_layers < 1) {
        error =
            "MeshGeometry: the subdomain has no ghost layer, operators need one. Cut the mesh with --ghost-layers 1.";
    } else {
        try {
            measures_ = cell_measures(part_.mesh);
        } catch (const InvalidInput& wrong) {
            error = wrong.what();
        }
    }
    throw_together(error, group);
    const auto fields_of = [&](const char* what, const IndexMap& map) {
        auto fields = layout_of(what, map);
        fields.layout = shard_spec(std::make_shared<const IndexMap>(map), device_mesh);
        fields.plan = ExchangePlan::find(map, group);
        fields.plan->set_agreed();  // every rank knows the sizes of sharded fields on all ranks
        return fields;
    };
    cells_ = fields_of("cells", part_.cells);
    points_ = fields_of("points", part_.points);
}

at::Tensor MeshGeometry::vector_field(const std::vector<Vector3>& values) const
{
    auto own = at::empty({part_.cells.num_owned, 3}, at::kDouble);
    auto* at = own.mutable_data_ptr<double>();
    for (std::int32_t i = 0; i < part_.cells.num_owned; ++i) std::copy_n(values[i].begin(), 3, at + 3 * i);
    return cells_.field(own);
}

at::Tensor MeshGeometry::sizes() const
{
    auto own = at::empty({part_.cells.num_owned}, at::kDouble);
    std::copy_n(measures_.sizes.begin(), part_.cells.num_owned, own.mutable_data_ptr<double>());
    return cells_.field(own);
}

at::Tensor MeshGeometry::centroids() const
{
    return vector_field(measures_.centroids);
}

at::Tensor MeshGeometry::area_vectors() const
{
    return vector_field(meshard::area_vectors(part_.mesh));
}

at::Tensor MeshGeometry::normals() const
{
    auto normals = meshard::area_vectors(part_.mesh);
    for (auto& normal : normals) normal = unit(normal);
    return vector_field(normals);
}

}  // namespace meshard
