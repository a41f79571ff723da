// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/prediction.h"

#include "apps/console/console.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/cases/case_body.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/cases/field_scaling.h"
#include "apps/learning/cases/mesh_handover.h"
#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/prediction/other_part.h"
#include "apps/learning/prediction/prediction_spread.h"
#include "apps/learning/prediction/usable_input.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/made_folders.h"
#include "io/mesh_io.h"
#include "io/shards/piece_io.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>

namespace meshard {
namespace {

constexpr const char* kSuffix = "_predicted";
constexpr const char* kSpreadSuffix = "_spread";

/// The head's coefficients, as Cd_head and Cl_head of the whole mesh: the means of several predictions.
void add_coefficients(Mesh& mesh, const std::map<std::string, std::vector<double>>& of_head)
{
    for (const auto& [coefficient, values] : of_head) {
        const auto called = coefficient + "_head";
        std::erase_if(mesh.field_data, [&](const DataArray& array) { return array.name() == called; });  // of an earlier prediction
        const auto mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
        mesh.field_data.push_back(DataArray::from(called, std::vector<double>{mean}));
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

/// The case as its table would say it.
CaseSource told_source(const std::string& name, const std::map<std::string, double>& values)
{
    CaseSource source{name, {}, {}};
    for (const auto& [column, value] : values) {
        char text[32];
        std::snprintf(text, sizeof text, "%.17g", value);
        source.columns[column] = text;
    }
    return source;
}

/// Of each prediction, by its sums. Signs are those of the mean prediction.
PredictedForces predicted_forces(const std::vector<ForceSums>& sums, const Predictor& model, const JudgedFields& layout, const CaseSource& source)
{
    PredictedForces found;
    if (layout.pressure < 0) {
        found.why = "no field has the kind of a pressure (data.fields.NAME.kind)";
    } else if (!(sums.front().area > 0)) {
        found.why = "the mesh has no areas";
    }
    const auto flow = found.why.empty() ? flow_reference(told_forces(model), source, layout.pressure_kind, found.why) : std::nullopt;
    if (!flow) return found;
    Vector3 mean_shear{};
    for (const auto& one : sums) {
        for (int c = 0; c < 3; ++c) mean_shear[c] += one.predicted_shear[c] / static_cast<double>(sums.size());
    }
    for (auto one : sums) {
        one.true_shear = mean_shear;
        const auto coefficient = coefficients(one, *flow);
        found.drag.push_back(coefficient.drag_predicted);
        found.lift.push_back(coefficient.lift_predicted);
    }
    return found;
}

/// Of each model that knows them of its training cases.
std::map<std::string, std::vector<double>> coefficients_by_shape(std::span<const Predictor> models, const ShapeSums& shape, const ForceSums& forces,
                                                                 const std::array<double, 6>& bounds, const JudgedFields& layout, const CaseSource& source)
{
    std::map<std::string, std::vector<double>> all;
    for (const auto& model : models) {
        std::string why;
        const auto flow = flow_reference(told_forces(model), source, layout.pressure_kind, why);
        if (!flow || !model.shape_coefficients()) continue;
        const auto found = model.shape_coefficients()->of(shape, forces, bounds, *flow, constants_of_case(model.data(), source));
        if (!found) continue;
        all["Cd"].push_back(found->drag);
        all["Cl"].push_back(found->lift);
    }
    return all;
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

void add_fields(std::vector<DataArray>& arrays, const at::Tensor& values, const at::Tensor& spread, const Predictor& predictor)
{
    const auto& data = predictor.data();
    std::int64_t channel = 0;
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
        const auto count = predictor.channels()[f];
        const auto field = values.narrow(1, channel, count).contiguous();
        auto name = data.fields[f].name;
        if (!torch::isfinite(field).all().item<bool>())
            throw Error("the predicted field '" + name + "' is not finite everywhere: the model of this run is broken.");
        if (find_array(arrays, name)) name += kSuffix;
        const auto put = [&](const std::string& called, const at::Tensor& rows) {
            std::erase_if(arrays, [&](const DataArray& array) { return array.name() == called; });  // of an earlier prediction
            const auto* begin = rows.data_ptr<float>();
            arrays.push_back(DataArray::from(called, std::vector<float>(begin, begin + rows.numel()), static_cast<std::int32_t>(count)));
        };
        put(name, field);
        if (spread.defined()) put(name + kSpreadSuffix, spread.narrow(1, channel, count).contiguous());
        channel += count;
    }
}

ForceSettings told_forces(const Predictor& model)
{
    auto forces = model.forces();
    if (forces.area.empty()) forces.area = "area";
    return forces;
}

std::vector<std::string> missing_for_forces(const Predictor& model, const std::map<std::string, double>& values)
{
    const auto forces = told_forces(model);
    const auto source = told_source("", values);
    std::vector<std::string> missing;
    const auto look = [&](const std::string& text, bool is_positive) {
        const auto number = number_of_case(text, source);
        if ((!number || (is_positive && !(*number > 0))) && std::ranges::find(missing, text) == missing.end()) missing.push_back(text);
    };
    look(forces.area, true);
    for (const auto& component : forces.velocity) look(component, false);
    if (JudgedFields(model.data().fields, model.channels()).pressure_kind == "static") look(forces.density, true);
    return missing;
}

double told_value(const PredictionOptions& options, const std::string& column)
{
    const auto found = options.values.find(column);
    if (found == options.values.end()) throw UsageError("the model is told '" + column + "' of a case. Give it with --set " + column + "=...");
    return found->second;
}

FieldScaling told_scaling(const PredictionOptions& options, const Predictor& model, const std::string& name)
{
    return field_scaling(model.data(), model.channels(), name, [&](const std::string& quantity) {
        if (const auto given = options.values.find(quantity); given != options.values.end()) return given->second;
        if (const auto said = model.data().reference.find(quantity); said != model.data().reference.end()) return said->second;
        if (const auto columns = model.data().reference_columns.find(quantity); columns != model.data().reference_columns.end())
            return quantity_of(quantity, columns->second, [&](const std::string& column) { return told_value(options, column); });
        throw UsageError("the model's fields are measured by " + quantity + ", which the training cases had in their table. Give it with --set " + quantity +
                         "=...");
    });
}

void warn_of_ranges(const Predictor& model, const PointInputs& inputs, const std::string& name, bool is_of_several, const RankGroup& ranks)
{
    for (const auto& sentence : model.ranges().beyond(inputs, model.data(), ranks)) {
        if (ranks.rank() == 0)
            warn("predict", name + ": beyond the training cases" + (is_of_several ? " of " + model.checkpoint().string() : "") + ": " + sentence);
    }
}

/// @param told   what was said of the input already: a surface may be its own wall
static void warn_of_facing(const std::string& name, const SurfaceFacing& found, const FacingCounts& trained, std::set<std::string>& told)
{
    const auto fault = facing_fault(found, trained, "--orient outward turns it.");
    if (!fault.empty() && told.insert(name + ": " + fault).second) warn("predict", name + ": " + fault);
}

std::int64_t memory_for_points(const World& world, const RankGroup& all)
{
    const auto device = world.device();
    return memory_of(device) / 4 / (device.is_cpu() ? world.size() : ranks_a_device(world, all));
}

void require_same_fields(std::span<const Predictor> models, bool with_dropout)
{
    const auto names = [](const Predictor& model) {
        std::string text;
        for (std::size_t f = 0; f < model.channels().size(); ++f)
            text += (f == 0 ? "" : ", ") + model.data().fields[f].name + ":" + std::to_string(model.channels()[f]);
        return text + (model.data().on_cells ? " on cells" : " on points") + (model.data().is_grid ? " of grids" : "");
    };
    for (const auto& model : models) {
        if (names(model) != names(models.front())) {
            throw InvalidInput(model.checkpoint().string() + " predicts " + names(model) + ", and " + models.front().checkpoint().string() + " " +
                               names(models.front()) + ". Several runs predict together only if their fields are the same.");
        }
        if (with_dropout && !model.has_dropout())
            throw InvalidInput(model.checkpoint().string() + ": the model has no dropout, so that all its draws would be the same. Leave --dropout-draws out.");
    }
}

std::vector<std::string> doubts_of_ensemble(std::span<const Predictor> models)
{
    std::vector<std::string> doubts;
    const Predictor* best = nullptr;
    for (std::size_t i = 0; i < models.size(); ++i) {
        const auto& file = models[i].checkpoint();
        const auto same = std::ranges::find_if(models.first(i), [&](const auto& other) { return other.has_weights_of(models[i]); });
        if (same != models.begin() + static_cast<std::ptrdiff_t>(i))
            doubts.push_back(file.string() + " is the same model as " + same->checkpoint().string() +
                             ": it counts twice in the mean, and the spread is too small.");
        if (models[i].validation_error() && (!best || *models[i].validation_error() < *best->validation_error())) best = &models[i];
    }
    for (const auto& model : models) {
        if (!model.validation_error() || *model.validation_error() < kFarWorse * *best->validation_error()) continue;
        char text[128];
        std::snprintf(text, sizeof text, "%.3g, and %.3g of ", *model.validation_error(), *best->validation_error());
        doubts.push_back(model.checkpoint().string() + " had a relative error in validation of " + text + best->checkpoint().string() +
                         ": the mean may be worse than the best alone. Compare with `meshard report`, or leave it out.");
    }
    return doubts;
}

PredictedForces predict_file(std::span<Predictor> models, const std::filesystem::path& input, const std::filesystem::path& named_output,
                             const PredictionOptions& options, World& world)
{
    const auto output = followed_links(named_output);  // pieces lie beside the index itself, not beside a link to it
    if (options.orient)
        for (auto& model : models) model.set_orient(*options.orient);
    const auto kind = kind_of_output(named_output);
    const bool in_pieces = named_output.extension() == ".pvtp" || named_output.extension() == ".pvtu";
    const auto folder = std::filesystem::absolute(output).parent_path();
    const auto device_mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const auto& all = device_mesh->all();
    const auto& data = models.front().data();  // of the fields the same in all
    const auto name = input.filename().string(), wall_name = options.wall.empty() ? name : options.wall.filename().string();
    const auto tells = [&](std::string_view what) { return std::ranges::any_of(models, [&](const auto& model) { return model.data().tells(what); }); };

    std::set<std::string> told_of_facing;
    Mesh whole;
    read_together(all, [&] {
        if (world.rank() != 0) return;
        whole = read_mesh(input);
        whole.kind = kind;
        if ((data.on_cells ? whole.num_cells() : whole.num_points()) == 0) {
            throw InvalidInput(input.string() + " has no " + (data.on_cells ? "cells" : "points") + " to predict on.");
        }
        if (tells("normals") || options.with_forces) {
            const auto found = orient_surface(whole, orient_of(data), data.normals);
            warn_of_facing(name, found, models.front().facing().surfaces, told_of_facing);
        }
        for (const auto& model : models) {
            if (const auto normals = point_normals_in_use(model.data()); !normals.empty()) add_point_normals(whole, normals, input.string());
        }
        if (tells("areas")) add_areas(whole, data.on_cells, input.string());  // shares of points and the mean are of the whole
        if (options.with_forces) add_geometry(whole, data.on_cells);
    });
    auto part = hand_out_mesh(whole, 0, output, *device_mesh);
    auto& subdomain = part.subdomain;
    const auto rows = data.on_cells ? subdomain.cells.owned() : subdomain.points.owned();
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    at::Tensor geometry;
    if (options.with_forces) {
        geometry = take_geometry(subdomain.mesh, num_rows, data.on_cells);
        if (world.rank() == 0) take_geometry(whole, 0, data.on_cells);
    }

    const auto device = world.device();
    const auto bytes = memory_for_points(world, device_mesh->all());
    const JudgedFields layout(data.fields, models.front().channels());
    const auto value_of = [&](const std::string& column) { return told_value(options, column); };
    std::map<std::string, std::vector<double>> by_heads;  // Cd, Cl
    PredictionSpread predictions;
    std::vector<ForceSums> forces;
    std::vector<std::string> wall_patches;  // whose distances the mesh has
    bool has_distances = false;
    for (auto& model : models) {
        const bool is_first = &model == &models.front();
        CaseFrame frame;
        at::Tensor told;
        FieldScaling scaling;
        std::shared_ptr<const CaseBody> body;
        read_together(all, [&] {
            frame = frame_of(model.data(), part.bounds, name, options.values, world.rank() == 0 && is_first);
            if (model.data().needs_wall() && !(has_distances && (wall_patches == model.data().wall_patches || !options.wall.empty()))) {
                auto& arrays = data.on_cells ? subdomain.mesh.cell_data : subdomain.mesh.point_data;
                std::erase_if(arrays, [](const DataArray& array) { return array.name() == kDistances || array.name() == kDirections; });
                wall_patches = model.data().wall_patches;
                has_distances = true;
                const auto wall = read_wall(options.wall, input, wall_patches, orient_of(data));
                if (world.rank() == 0) warn_of_facing(wall_name, wall.facing, model.facing().walls, told_of_facing);
                add_distances(subdomain.mesh, data.on_cells, wall, name, tells("wall_direction"));
            }
            told = point_inputs(subdomain.mesh, rows, model.data(), frame, name);
            scaling = told_scaling(options, model, name);
            if (!model.takes_body()) return;
            const auto wall = read_wall(options.wall, input, model.data().wall_patches, orient_of(data));
            if (world.rank() == 0 && !model.data().needs_wall()) warn_of_facing(wall_name, wall.facing, model.facing().walls, told_of_facing);
            body = case_body(wall, frame);
        });
        model.move_to(device);
        model.set_memory(options.memory ? *options.memory : model.memory_for(num_rows, bytes));
        auto inputs = sharded_inputs(told.to(device), rows, device_mesh);
        tell_of_case(inputs, model, value_of, device);
        inputs.body = body;
        if (const auto* other = model.other_part()) {
            if (!options.other_part.empty())
                inputs.other_part = read_other_part(options.other_part, *other, frame, device_mesh, device);
            else if (world.rank() == 0 && is_first)
                warn("predict", name + ": " + kOtherPartUnknown + " Give its file with --other-part.");
        }
        warn_of_ranges(model, inputs, name, models.size() > 1, device_mesh->all());
        for (std::int64_t draw = 0; draw < std::max<std::int64_t>(1, options.num_draws); ++draw) {
            if (options.num_draws > 0) model.draw_dropout(static_cast<std::uint64_t>(draw));
            std::vector<double> of_head;
            const auto fields = to_local(model.predict(inputs, scaling, &of_head)).squeeze(0).cpu();  // (rows, channels)
            for (std::size_t k = 0; k < of_head.size(); ++k) by_heads[model.names_of_head()[k] == "cd" ? "Cd" : "Cl"].push_back(of_head[k]);
            if (options.with_forces) forces.push_back(case_sums(fields, fields, geometry, layout, model.training_mean(scaling), device_mesh->all()).forces);
            predictions.add(fields);
        }
    }
    remove_computed_inputs(subdomain.mesh);
    remove_computed_inputs(whole);
    const auto fields = predictions.mean(), spread = predictions.spread();
    PredictedForces found;
    if (options.with_forces) {
        const auto source = told_source(name, options.values);
        found = predicted_forces(forces, models.front(), layout, source);
        found.of_shape = coefficients_by_shape(models, shape_sums(whole, device_mesh->all()), forces.front(), part.bounds, layout, source);
    }
    found.of_head = std::move(by_heads);
    for (auto* mesh : {&whole, &subdomain.mesh}) add_coefficients(*mesh, found.of_head);

    const auto values = in_pieces ? fields : rows_on_first_rank(fields, rows, all);
    const auto deviations = in_pieces || !spread.defined() ? spread : rows_on_first_rank(spread, rows, all);
    read_together(all, [&] {
        auto& mesh = in_pieces ? subdomain.mesh : whole;
        if (in_pieces || world.rank() == 0) add_fields(data.on_cells ? mesh.cell_data : mesh.point_data, values, deviations, models.front());
    });
    std::optional<MadeFolders> folders;
    if (world.rank() == 0) folders.emplace(output);
    if (!in_pieces) {
        if (world.rank() == 0) write_mesh(named_output, whole);
        all.barrier();
        return found;
    }
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
    return found;
}

}  // namespace meshard
