// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/case_mesh.h"

#include "apps/learning/cases/case_body.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/evaluation/case_sums.h"
#include "io/mesh_io.h"
#include "sharding/tensor/distribute_rows.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

namespace meshard {
namespace {

/// The points of a case's other part, for `PointInputs::other_part`, and their places in the file, (rows, 3), double:
/// the first rank reads the mesh, and hands each rank a run of its rows. Collective.
std::pair<std::shared_ptr<const PointInputs>, at::Tensor>
read_other_part(const std::filesystem::path& file, const DataConfig& data, const CaseFrame& frame,
                const std::shared_ptr<const DeviceMesh>& device_mesh, const at::Device& device)
{
    const auto& all = device_mesh->all();
    at::Tensor rows_of_file, places_of_file;
    read_together(all, [&] {
        if (all.rank() != 0) return;
        const auto mesh = read_mesh(file);
        std::vector<std::int64_t> rows(data.on_cells ? mesh.num_cells() : mesh.num_points());
        if (rows.empty())
            throw InvalidInput("{} has no {} of which the model is told.", file.string(),
                               data.on_cells ? "cells" : "points");
        std::iota(rows.begin(), rows.end(), std::int64_t{0});
        rows_of_file = point_inputs(mesh, rows, data, frame, file.string()).to(device);
        places_of_file = torch::tensor(row_places(mesh, rows, data.on_cells, file.string()), torch::kDouble)
                             .view({-1, 3})
                             .to(device);
    });
    const auto num_rows = all.all_gather_integers(rows_of_file.defined() ? rows_of_file.size(0) : 0)[0];
    const AxisLayout cut{Shard(0), std::make_shared<const Extents>(even_extents(num_rows, all.size())), 1};
    const auto handed_out = [&](const at::Tensor& of_file) {
        return all.size() == 1 ? of_file : to_local(distribute_rows(of_file, 0, make_spec(device_mesh, {cut})));
    };
    const auto local = handed_out(rows_of_file);
    std::vector<std::int64_t> ids(local.size(0));
    std::iota(ids.begin(), ids.end(), cut.offset(all.rank()));
    return {std::make_shared<const PointInputs>(sharded_inputs(local, ids, device_mesh)), handed_out(places_of_file)};
}

}  // namespace

void add_case_inputs(PointInputs& inputs, const Predictor& model, const DataConfig& data, const CaseSource& source,
                     const at::Device& device)
{
    add_case_constants(inputs, data, source);
    if (const auto& constants = model.constants(); !constants.empty())
        inputs.constants = torch::tensor(std::vector<float>(constants.begin(), constants.end())).unsqueeze(0);
    if (model.time()) inputs.time = torch::tensor({static_cast<float>(*model.time())});
    for (auto* tensor : {&inputs.constants, &inputs.time})
        if (tensor->defined()) *tensor = tensor->to(device);
}

CaseMesh::CaseMesh(const CaseSource& source, std::span<const Predictor> models, const MeshReading& reading,
                   const std::filesystem::path& output, std::shared_ptr<const DeviceMesh> device_mesh)
    : source_(source), reading_(reading), device_mesh_(std::move(device_mesh)),
      on_cells_(models.front().data().on_cells)
{
    const auto take = [&](std::string_view input) {
        return std::ranges::any_of(models, [&](const auto& model) { return model.data().has_input(input); });
    };
    const auto& where = reading_.where;
    const bool is_first = device_mesh_->all().rank() == 0;
    with_directions_ = take("wall_direction");
    read_together(device_mesh_->all(), [&] {
        if (!is_first) return;
        whole_ = reading_.read ? reading_.read() : read_mesh(source_.file);
        reading_.prepare(whole_);
        if (take("normals") || reading_.with_forces) {
            const auto told =
                std::ranges::find_if(models, [](const auto& model) { return model.data().has_input("normals"); });
            const auto& model = told == models.end() ? models.front() : *told;
            report_facing(where, orient_surface(whole_, orient_of(model.data()), model.data().normals),
                          model.facing().surfaces);
        }
        for (const auto& model : models)
            if (const auto normals = point_normals_in_use(model.data()); !normals.empty())
                add_point_normals(whole_, normals, where);
        if (take("areas")) add_areas(whole_, on_cells_, where);  // shares of points and the mean are of the whole
        if (reading_.with_geometry) add_geometry(whole_, on_cells_);
    });
    part_ = hand_out_mesh(whole_, 0, output, *device_mesh_);
    const auto owned = on_cells_ ? part_.subdomain.cells.owned() : part_.subdomain.points.owned();
    rows_.assign(owned.begin(), owned.end());
    if (!reading_.with_geometry) return;
    geometry_ = take_geometry(part_.subdomain.mesh, std::ssize(rows_), on_cells_);
    if (is_first) take_geometry(whole_, 0, on_cells_);
}

void CaseMesh::report_facing(const std::string& where, const SurfaceFacing& found, const FacingCounts& trained) const
{
    if (device_mesh_->all().rank() != 0) return;
    if (const auto fault = facing_fault(found, trained, "--orient outward turns it."); !fault.empty())
        reading_.report(where + ": " + fault);
}

const Wall& CaseMesh::wall_for(const Predictor& model, const DataConfig& data)
{
    if (wall_ && (!source_.wall.empty() || wall_patches_ == data.wall_patches)) return *wall_;
    wall_ = read_wall(source_.wall, source_.file, data.wall_patches, orient_of(data));
    wall_patches_ = data.wall_patches;
    has_distances_ = false;
    const bool is_own_wall = source_.wall.empty() || source_.wall == source_.file;
    report_facing(is_own_wall ? reading_.where : source_.wall.string(), wall_->facing, model.facing().walls);
    return *wall_;
}

PointInputs CaseMesh::inputs(const Predictor& model, const DataConfig& data, const at::Device& device)
{
    CaseFrame frame;
    at::Tensor rows;
    std::shared_ptr<const CaseBody> body;
    read_together(device_mesh_->all(), [&] {
        auto& mesh = part_.subdomain.mesh;
        frame = case_frame(data.frame, part_.bounds, source_);
        const bool has_wall = data.needs_wall() || model.needs_body() || !source_.wall.empty();
        const auto* wall = has_wall ? &wall_for(model, data) : nullptr;
        if (data.needs_wall() && !has_distances_) {
            std::erase_if(arrays_at(mesh, on_cells_), [](const DataArray& array) {
                return array.name() == kDistances || array.name() == kDirections;
            });
            add_distances(mesh, on_cells_, *wall, reading_.where, with_directions_);
            has_distances_ = true;
        }
        rows = point_inputs(mesh, rows_, data, frame, reading_.where);
        if (model.needs_body()) body = case_body(*wall, frame);
    });
    auto inputs = sharded_inputs(rows.to(device), rows_, device_mesh_);
    add_case_inputs(inputs, model, data, source_, device);
    inputs.body = body;
    if (const auto* other = model.other_part(); other && !source_.other_part.empty())
        std::tie(inputs.other_part, other_places_) =
            read_other_part(source_.other_part, *other, frame, device_mesh_, device);
    return inputs;
}

}  // namespace meshard
