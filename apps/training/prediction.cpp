// SPDX-License-Identifier: Apache-2.0
#include "apps/training/prediction.h"

#include "apps/cases/case_tensors.h"
#include "apps/cases/computed_inputs.h"
#include "apps/cases/field_scaling.h"
#include "apps/cases/mesh_handover.h"
#include "apps/program/command_line.h"
#include "apps/program/rank_device.h"
#include "io/mesh_io.h"
#include "io/shards/piece_io.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/torch.h>

#include <algorithm>

namespace meshard {
namespace {

constexpr const char* kSuffix = "_predicted";

bool has_array(const Mesh& mesh, bool on_cells, const std::string& name)
{
    return find_array(on_cells ? mesh.cell_data : mesh.point_data, name) != nullptr;
}

/// Adds the channels of `values`, (rows, channels), as arrays. Refuses what is not finite.
void add_fields(Mesh& mesh, const at::Tensor& values, const Predictor& predictor)
{
    const auto& data = predictor.data();
    std::int64_t channel = 0;
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
        const auto count = predictor.channels()[f];
        const auto field = values.narrow(1, channel, count).contiguous();
        channel += count;
        auto name = data.fields[f].name;
        if (!torch::isfinite(field).all().item<bool>())
            throw Error("the predicted field '" + name + "' is not finite everywhere: the model of this run is broken.");
        if (has_array(mesh, data.on_cells, name)) name += kSuffix;
        auto& arrays = data.on_cells ? mesh.cell_data : mesh.point_data;
        std::erase_if(arrays, [&](const DataArray& array) { return array.name() == name; });  // of an earlier prediction
        const auto* begin = field.data_ptr<float>();
        arrays.push_back(DataArray::from(name, std::vector<float>(begin, begin + field.numel()), static_cast<std::int32_t>(count)));
    }
}

CaseFrame frame_of(const DataConfig& data, const std::array<double, 6>& bounds, const std::string& name, const std::map<std::string, double>& values,
                   bool is_speaker)
{
    auto config = data.frame;
    CaseSource source{name, {}, {}};
    if (const auto value = values.find(config.length); value != values.end()) {
        config.length = "none";
        auto frame = case_frame(config, bounds, source);
        if (!(value->second > 0)) throw UsageError("--set " + value->first + " must be above 0.");
        frame.lengths.fill(value->second);
        return frame;
    }
    if (is_column(config.length)) {
        if (is_speaker) {
            warn("predict",
                 name + ": no value for '" + config.length + "'; the longest edge of the bounding box is taken. Give it with --set " + config.length + "=...");
        }
        config.length = "bounds";
    }
    return case_frame(config, bounds, source);
}

MeshKind kind_of_output(const std::filesystem::path& output)
{
    const auto extension = output.extension();
    if (extension == ".vtp" || extension == ".pvtp") return MeshKind::Surface;
    if (extension == ".vtu" || extension == ".pvtu") return MeshKind::Unstructured;
    throw UsageError("the output " + output.string() + " must end in .vtp, .vtu, .pvtp or .pvtu.");
}

}  // namespace

bool is_column(const std::string& length)
{
    return length != "bounds" && length != "none" && length.find_first_not_of("0123456789.+-eE,") != std::string::npos;
}

void tell_of_case(PointInputs& inputs, const Predictor& predictor, const std::function<double(const std::string&)>& value_of, const at::Device& device)
{
    auto constants = predictor.constants();
    for (const auto& name : predictor.data().constants) constants.push_back(value_of(name));
    if (!constants.empty()) inputs.constants = torch::tensor(std::vector<float>(constants.begin(), constants.end())).unsqueeze(0).to(device);

    auto time = predictor.time();
    if (!predictor.data().time.empty()) time = value_of(predictor.data().time);
    if (time) inputs.time = torch::tensor({static_cast<float>(*time)}).to(device);
}

std::int64_t memory_for_points(const World& world, const RankGroup& all)
{
    const auto device = world.device();
    return memory_of(device) / 4 / (device.is_cpu() ? world.size() : ranks_a_device(world, all));
}

void predict_file(Predictor& predictor, const std::filesystem::path& input, const std::filesystem::path& output, const std::map<std::string, double>& values,
                  const std::filesystem::path& wall, std::optional<MemoryMode> memory, World& world)
{
    const auto kind = kind_of_output(output);
    const bool in_pieces = output.extension() == ".pvtp" || output.extension() == ".pvtu";
    const auto folder = std::filesystem::absolute(output).parent_path();
    const auto device_mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const auto& data = predictor.data();

    Mesh whole;
    if (world.rank() == 0) {
        whole = read_mesh(input);
        whole.kind = kind;
        if ((data.on_cells ? whole.num_cells() : whole.num_points()) == 0) {
            throw InvalidInput(input.string() + " has no " + (data.on_cells ? "cells" : "points") + " to predict on.");
        }
        if (data.tells("areas")) add_areas(whole, data.on_cells, input.string());  // shares of points and the mean are of the whole
    }
    auto part = hand_out_mesh(whole, 0, output, *device_mesh);
    auto& subdomain = part.subdomain;
    const auto rows = data.on_cells ? subdomain.cells.owned() : subdomain.points.owned();
    const auto frame = frame_of(data, part.bounds, input.filename().string(), values, world.rank() == 0);

    if (data.needs_wall()) {
        const auto surface = read_wall(wall, input, data.wall_patches);
        add_distances(subdomain.mesh, data.on_cells, surface, input.filename().string(), data.tells("wall_direction"));
    }
    const auto told = point_inputs(subdomain.mesh, rows, data, frame, input.filename().string());
    remove_computed_inputs(subdomain.mesh);
    remove_computed_inputs(whole);
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    const auto device = world.device();
    predictor.move_to(device);
    const auto bytes = memory_for_points(world, device_mesh->all());
    predictor.set_memory(memory ? *memory : predictor.memory_for(num_rows, bytes));
    auto inputs = sharded_inputs(told.to(device), rows, device_mesh);
    const auto value_of = [&](const std::string& name) {
        const auto found = values.find(name);
        if (found == values.end()) throw UsageError("the model is told '" + name + "' of a case. Give it with --set " + name + "=...");
        return found->second;
    };
    tell_of_case(inputs, predictor, value_of, device);
    const auto scaling = field_scaling(data, predictor.channels(), input.filename().string(), [&](const std::string& name) {
        if (const auto given = values.find(name); given != values.end()) return given->second;
        if (const auto said = data.reference.find(name); said != data.reference.end()) return said->second;
        throw UsageError("the model's fields are measured by " + name + ", which the training cases had in their table. Give it with --set " + name + "=...");
    });
    const auto fields = to_local(predictor.predict(inputs, scaling)).squeeze(0).cpu();  // (rows, channels)

    if (!in_pieces) {
        const auto all = rows_on_first_rank(fields, rows, device_mesh->all());
        if (world.rank() == 0) {
            add_fields(whole, all, predictor);
            write_mesh(output, whole);
        }
        device_mesh->all().barrier();
        return;
    }
    add_fields(subdomain.mesh, fields, predictor);
    const auto pieces = output.stem().string() + "_pieces";
    const auto piece_name = [&](int rank) {
        auto number = std::to_string(rank);
        number.insert(0, 4 - std::min<std::size_t>(4, number.size()), '0');
        return pieces + "/piece_" + number + extension_of(kind);
    };
    if (world.rank() == 0) std::filesystem::remove(output);  // an earlier index must not name pieces of two runs, should this one end early
    device_mesh->all().barrier();
    std::filesystem::create_directories(folder / pieces);
    write_piece(folder / piece_name(world.rank()), subdomain);
    device_mesh->all().barrier();
    if (world.rank() == 0) {
        std::vector<std::string> sources;
        for (int rank = 0; rank < world.size(); ++rank) sources.push_back(piece_name(rank));
        write_piece_index(output, subdomain, sources);
    }
    device_mesh->all().barrier();
}

}  // namespace meshard
