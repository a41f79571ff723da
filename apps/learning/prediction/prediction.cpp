// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/prediction.h"

#include "apps/console/console.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/cases/field_scaling.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/prediction/case_mesh.h"
#include "apps/learning/prediction/prediction_spread.h"
#include "apps/learning/prediction/prediction_table.h"
#include "apps/learning/prediction/told_values.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/made_folders.h"
#include "io/mesh_io.h"
#include "io/shards/piece_io.h"
#include "ops/rows/ghost_exchange.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/vector_algebra.h"
#include "partition/nearest_name.h"
#include "sharding/tensor/host_values.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

namespace meshard {
namespace {

constexpr const char* kSuffix = "_predicted";
constexpr const char* kSpreadSuffix = "_spread";

/// Adds an array in place of those of its name, which an earlier prediction has left.
void replace(std::vector<DataArray>& arrays, DataArray array, std::vector<std::string>& replaced)
{
    if (std::erase_if(arrays, [&](const DataArray& other) { return other.name() == array.name(); }) > 0)
        replaced.push_back(array.name());
    arrays.push_back(std::move(array));
}

/// Adds the head's coefficients to the mesh as Cd_head and Cl_head, the means of several predictions. Returns the
/// names of those of an earlier prediction.
std::vector<std::string> add_coefficients(Mesh& mesh, const std::map<std::string, std::vector<double>>& of_head)
{
    std::vector<std::string> replaced;
    for (const auto& [coefficient, values] : of_head) {
        const auto mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
        replace(mesh.field_data, DataArray::from(coefficient + "_head", std::vector<double>{mean}), replaced);
    }
    return replaced;
}

MeshKind kind_of_output(const std::filesystem::path& output)
{
    const auto extension = lower_extension(output);
    if (extension == ".vtp" || extension == ".pvtp") return MeshKind::Surface;
    if (extension == ".vtu" || extension == ".pvtu") return MeshKind::Unstructured;
    throw UsageError("the output {} must end in .vtp, .vtu, .pvtp or .pvtu.", output.string());
}

/// Says what a run learnt of the next state of a simulation, and the numbers that it is told of a point, in their
/// order.
std::string states_text(const DataConfig& data)
{
    if (!data.series.is_on) return "learnt no simulations in time";
    const auto& next =
        std::ranges::find(kLearntStates, data.series.learnt, &std::pair<std::string, LearntState>::second)->first;
    std::vector<std::string> arrays, told = data.inputs;
    for (const auto& field : data.fields) arrays.push_back(field.state);
    append(told, data.series.told);
    return fmt::format("learnt the {} of {} (data.next), told {}{}{}", next, fmt::join(arrays, ", "),
                       fmt::join(told, ", "), data.series.moves_as_given() ? " and how points move" : "",
                       data.mask.empty() ? "" : ", without what data.mask " + data.mask + " leaves out");
}

/// Compares the shape with the training cases of each model that has theirs: sets the coefficients by the shape alone
/// and how far it lies from them.
void compare_shape(std::span<const Predictor> models, const ShapeSums& shape, const ForceSums& forces,
                   const std::array<double, 6>& bounds, const JudgedFields& layout, const PredictionOptions& options,
                   const CaseSource& source, PredictedForces& found_forces)
{
    std::size_t num_outside = 0;
    for (const auto& model : models) {
        std::string why;
        const auto flow = flow_reference(force_settings_of(model, options.values), source, layout.pressure_kind, why);
        if (!flow || !model.shape_coefficients()) continue;
        const auto found =
            model.shape_coefficients()->of(shape, forces, bounds, *flow, constants_of_case(model.data(), source));
        if (!found) continue;
        found_forces.of_shape["Cd"].push_back(found->drag);
        found_forces.of_shape["Cl"].push_back(found->lift);
        found_forces.isolation.push_back(found->isolation);
        num_outside += found->is_outside ? 1 : 0;
    }
    found_forces.is_far = num_outside > 0 && num_outside == found_forces.isolation.size();
}

/// Says that a case lies far from the training cases. @param by_shape   by its shape, else as the models see it
std::string far_text(const PredictedForces& found, bool by_shape)
{
    return fmt::format(
        "{} {:.3g} times as far from the {} as training cases lie from theirs, farther than any of them does: do not "
        "rely on this prediction.",
        by_shape ? "its shape and constants lie" : "what the model's last layer is given of it lies",
        *MeanOfPredictions(by_shape ? found.isolation : found.feature_isolation).mean,
        by_shape ? "nearest training case" : "training cases' mean");
}

/// Finds the intervals of drag and lift from the validation cases of all models together.
std::map<std::string, double> intervals_of(std::span<const Predictor> models)
{
    std::vector<HeldOutErrors> of_models;
    for (const auto& model : models)
        if (model.held_out_errors()) of_models.push_back(*model.held_out_errors());
    const auto errors = HeldOutErrors::of_mean(of_models);
    std::map<std::string, double> intervals;
    if (const auto drag = interval_of(errors.drag)) intervals["Cd"] = *drag;
    if (const auto lift = interval_of(errors.lift)) intervals["Cl"] = *lift;
    return intervals;
}

/// A model in another precision as long as this object exists.
class WithType {
public:
    WithType(Predictor& model, at::ScalarType type) : model_(model) { model_.set_type(type); }
    ~WithType() { model_.set_type(torch::kFloat); }
    WithType(const WithType&) = delete;
    WithType& operator=(const WithType&) = delete;

private:
    Predictor& model_;
};

// What backward needs of a point, in points of a prediction.
constexpr std::int64_t kMoreInBackward = 8;

/// Computes the means of the models' sensitivities, of all rows. Collective.
std::vector<ShapeSensitivity> sensitivities(std::span<Predictor> models, CaseMesh& mesh,
                                            const PredictionOptions& options, const std::string& name,
                                            std::span<const SaidCase> cases, const FlowReference& flow,
                                            const ForceSigns& signs, const RankGroup& ranks, const at::Device& device)
{
    const torch::AutoGradMode with_gradients(true);
    const MovableSurface surface(mesh.whole(), ranks, device);
    const auto type = options.in_double ? torch::kDouble : torch::kFloat;
    const auto share = 1 / static_cast<double>(models.size());
    std::vector<ShapeSensitivity> means;
    bool speaks = ranks.rank() == 0;
    if (const auto num_apart = speaks ? surface.num_apart() : 0; num_apart > 0)
        warn("predict",
             "{}: {} of the {} points of polygons lie where another one does, so that polygons "
             "which meet there do not move together: each sensitivity, d..._dn above all, is of "
             "a surface that comes apart there. Join them: meshard convert INPUT JOINED "
             "--join-points 0.",
             name, num_apart, surface.points().size(0));
    for (std::size_t m = 0; m < models.size(); ++m) {
        auto& model = models[m];
        const auto& said = cases[m];
        const auto inputs = mesh.inputs(model, said.data, device);
        const auto wall = mesh.wall() ? moving_wall(*mesh.wall(), surface) : MovingWall();
        const ShapeOfCase shape{said.data,
                                case_frame(said.data.frame, mesh.bounds(), said.source),
                                mesh.wall() ? &wall : nullptr,
                                mesh.other_places(),
                                mesh.rows(),
                                name};
        if (speaks && wall.num_staying > 0) {
            warn("predict",
                 "{}: {} of the {} points of the wall do not lie on the surface: for the "
                 "sensitivity they stay where they are.",
                 name, wall.num_staying, wall.vertices.size(0));
            speaks = false;
        }
        const auto moved = shape_inputs(surface, inputs, shape, type, ranks);
        const WithType of_model(model, type);
        model.set_memory(options.memory
                             ? *options.memory
                             : memory_for_points(model, kMoreInBackward * std::ssize(mesh.rows()), device, ranks));
        const auto found = shape_sensitivities(options.sensitivities, model, surface, shape, moved,
                                               field_scaling(said.data, model.channels(), said.source),
                                               JudgedFields(said.data.fields, model.channels()), flow, signs, ranks);
        means.resize(found.size());
        for (std::size_t k = 0; k < found.size(); ++k) {
            means[k].coefficient = found[k].coefficient;
            means[k].value += share * found[k].value;
            const auto gradient = share * found[k].gradient;
            means[k].gradient = means[k].gradient.defined() ? means[k].gradient + gradient : gradient;
        }
    }
    for (auto& one : means) {
        ranks.all_reduce(one.gradient);
        one.normal = normal_part(one.gradient, surface, signs.normal);
    }
    return means;
}

/// Returns the sums of the mean prediction, whose shear stress stands for that of a truth.
ForceSums with_mean_shear(const std::vector<ForceSums>& sums)
{
    auto mean = sums.front();
    mean.true_shear = {};
    for (const auto& one : sums) add_scaled(mean.true_shear, one.predicted_shear, 1 / static_cast<double>(sums.size()));
    return mean;
}

}  // namespace

PredictedForces predicted_forces(const std::vector<ForceSums>& sums, const Predictor& model, const JudgedFields& layout,
                                 const SaidCase& said)
{
    PredictedForces found;
    if (layout.pressure < 0) {
        found.why = "no field has the kind of a pressure (data.fields.NAME.kind)";
    } else if (!(sums.front().area > 0)) {
        found.why = "the mesh has no areas";
    }
    const auto flow =
        found.why.empty() ? flow_reference(said.forces, said.source, layout.pressure_kind, found.why) : std::nullopt;
    if (!flow) return found;
    const auto mean = with_mean_shear(sums);
    for (auto one : sums) {
        one.true_shear = mean.true_shear;
        for (const auto& coefficient : coefficients(one, *flow).all)
            found.of_fields[coefficient.name].push_back(coefficient.predicted);
    }
    if (!model.forces().length.empty() || said.source.columns.contains(kMomentLength))
        found.why_no_moments = flow->why_no_moments;
    return found;
}

std::vector<std::string> add_fields(std::vector<DataArray>& arrays, const at::Tensor& values, const at::Tensor& spread,
                                    const Predictor& predictor)
{
    std::vector<std::string> replaced;
    const auto& data = predictor.data();
    std::int64_t channel = 0;
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
        const auto count = predictor.channels()[f];
        const auto field = values.narrow(1, channel, count);
        auto name = data.fields[f].name;
        if (!torch::isfinite(field).all().item<bool>())
            throw Error("the predicted field '{}' is not finite everywhere: the model of this run is broken.", name);
        if (find_array(arrays, name)) name += kSuffix;
        const auto put = [&](const std::string& called, const at::Tensor& rows) {
            replace(arrays, DataArray::from(called, values_on_host<float>(rows), static_cast<std::int32_t>(count)),
                    replaced);
        };
        put(name, field);
        if (spread.defined()) put(name + kSpreadSuffix, spread.narrow(1, channel, count));
        channel += count;
    }
    return replaced;
}

std::vector<std::string> add_sensitivities(Mesh& mesh, const std::vector<ShapeSensitivity>& all,
                                           std::span<const std::int64_t> ids)
{
    std::vector<std::string> replaced;
    const auto rows = torch::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()), torch::kLong);
    const auto put = [&](const std::string& called, const at::Tensor& of_whole, std::int32_t num_components) {
        auto values = values_on_host<double>(ids.empty() ? of_whole : of_whole.index_select(0, rows));
        replace(mesh.point_data, DataArray::from(called, std::move(values), num_components), replaced);
    };
    for (const auto& one : all) {
        put("d" + one.coefficient + "_dx", one.gradient, 3);
        put("d" + one.coefficient + "_dn", one.normal, 1);
    }
    return replaced;
}

void warn_of_replaced(const std::string& name, const std::vector<std::string>& arrays)
{
    if (!arrays.empty())
        warn("predict", "{}: it has {} of an earlier prediction, which {} replaced in the output.", name,
             fmt::join(arrays, ", "), arrays.size() > 1 ? "are" : "is");
}

void warn_of_ranges(const Predictor& model, const PointInputs& inputs, const std::string& name, bool is_of_several,
                    const RankGroup& ranks)
{
    for (const auto& sentence : model.ranges().beyond(inputs, model.data(), ranks)) {
        if (ranks.rank() == 0)
            warn("predict", "{}: beyond the training cases{}: {}", name,
                 is_of_several ? " of " + model.checkpoint().string() : "", sentence);
    }
}

MemoryMode memory_for_points(const Predictor& model, std::int64_t num_points, const at::Device& device,
                             const RankGroup& all)
{
    const auto bytes = memory_of(device) / 4 / (device.is_cpu() ? all.size() : ranks_a_device(device, all));
    // Ranks differ in points and memory. The modes are in the order of what they take, the thriftiest last.
    auto mode = at::full({1}, static_cast<int>(model.memory_for(num_points, bytes)), at::kInt);
    all.all_reduce(mode, Reduction::Max);
    return static_cast<MemoryMode>(mode.item<int>());
}

void require_same_fields(std::span<const Predictor> models, bool with_dropout)
{
    const auto names = [](const Predictor& model) {
        std::string text;
        for (std::size_t f = 0; f < model.channels().size(); ++f)
            text += fmt::format("{}{}:{}", f == 0 ? "" : ", ", model.data().fields[f].name, model.channels()[f]);
        return text + (model.data().on_cells ? " on cells" : " on points") + (model.data().is_grid ? " of grids" : "");
    };
    const Predictor* turned = nullptr;  // a model that is told normals of a surface that is turned outward
    for (const auto& model : models) {
        if (names(model) != names(models.front())) {
            throw InvalidInput(
                "{} predicts {}, and {} {}. Several runs predict together only if their fields are the same.",
                model.checkpoint().string(), names(model), models.front().checkpoint().string(), names(models.front()));
        }
        for (std::size_t f = 0; f < model.data().fields.size(); ++f) {
            const auto kind_of = [f](const Predictor& one) {
                const auto& kind = one.data().fields[f].kind;
                return kind.empty() ? "of no kind" : "of the kind " + kind;
            };
            if (kind_of(model) == kind_of(models.front())) continue;
            throw InvalidInput(
                "{} predicts a field '{}' {}, and {} one {}, which is another quantity. Several runs predict together "
                "only if the kinds of their fields (data.fields.NAME.kind) are the same: predict with each alone.",
                model.checkpoint().string(), model.data().fields[f].name, kind_of(model),
                models.front().checkpoint().string(), kind_of(models.front()));
        }
        if (const auto own = states_text(model.data()), first = states_text(models.front().data()); own != first)
            throw InvalidInput(
                "{} {}, and {} {}. Several runs predict together only if they are told the same of a state and learnt "
                "the same of the next one: predict with each alone.",
                model.checkpoint().string(), own, models.front().checkpoint().string(), first);
        if (orient_of(model.data()) != orient_of(models.front().data()))
            throw InvalidInput(
                "{} and {} learnt surfaces of different orientation (data.orient). Predict with each alone, or say for "
                "both which way surfaces face with --orient.",
                model.checkpoint().string(), models.front().checkpoint().string());
        if (orient_of(model.data()) == Orient::Outward && model.data().has_input("normals")) {
            if (turned && turned->data().normals != model.data().normals)
                throw InvalidInput("{} is told the normals '{}', and {} the normals '{}', of which only one can be "
                                   "turned outward with the surface. Predict with each alone.",
                                   model.checkpoint().string(), model.data().normals, turned->checkpoint().string(),
                                   turned->data().normals);
            turned = &model;
        }
        if (with_dropout && !model.has_dropout())
            throw InvalidInput(
                "{}: the model has no dropout, so that all its draws would be the same. Leave --dropout-draws out.",
                model.checkpoint().string());
    }
}

std::vector<std::string> ensemble_warnings(std::span<const Predictor> models)
{
    std::vector<std::string> doubts;
    const Predictor* best = nullptr;
    for (std::size_t i = 0; i < models.size(); ++i) {
        const auto& file = models[i].checkpoint();
        const auto same =
            std::ranges::find_if(models.first(i), [&](const auto& other) { return other.has_weights_of(models[i]); });
        if (same != models.begin() + static_cast<std::ptrdiff_t>(i))
            doubts.push_back(
                fmt::format("{} is the same model as {}: it counts twice in the mean, and the spread is too small.",
                            file.string(), same->checkpoint().string()));
        if (models[i].validation_error() && (!best || *models[i].validation_error() < *best->validation_error()))
            best = &models[i];
    }
    for (const auto& model : models) {
        if (!model.validation_error() || *model.validation_error() < kFarWorse * *best->validation_error()) continue;
        doubts.push_back(fmt::format("{} had a relative error in validation of {:.3g}, and {:.3g} of {}: the mean may "
                                     "be worse than the best alone. Compare with "
                                     "`meshard report`, or leave it out.",
                                     model.checkpoint().string(), *model.validation_error(), *best->validation_error(),
                                     best->checkpoint().string()));
    }
    return doubts;
}

CaseMesh read_case(std::span<const Predictor> models, const CaseSource& source, const MeshInput& input,
                   const PredictionOptions& options, const std::shared_ptr<const DeviceMesh>& device_mesh)
{
    MeshReading reading{.where = input.name, .read = input.read};
    reading.prepare = [&](Mesh& mesh) {
        if (input.kind) mesh.kind = *input.kind;
        const bool on_cells = models.front().data().on_cells;
        if ((on_cells ? mesh.num_cells() : mesh.num_points()) == 0)
            throw InvalidInput("{} has no {} to predict on.", input.file.empty() ? input.name : input.file.string(),
                               on_cells ? "cells" : "points");
    };
    // A surface that is its own wall is warned of once.
    reading.report = [faults = std::make_shared<std::set<std::string>>()](const std::string& fault) {
        if (faults->insert(fault).second) warn("predict", fault);
    };
    reading.with_geometry = reading.with_forces = options.with_forces;
    return {source, models, reading, input.output, device_mesh};
}

MeshPrediction predict_mesh(std::span<Predictor> models, const MeshInput& input, const PredictionOptions& options,
                            const std::shared_ptr<const DeviceMesh>& device_mesh, const at::Device& device)
{
    require_sensitive(options.sensitivities);
    const auto& all = device_mesh->all();
    const auto& data = models.front().data();  // of the fields the same in all
    const auto& name = input.name;
    const bool speaks = all.rank() == 0;

    auto cases = said_cases(models, options, name, speaks);
    for (auto& said : cases) said.source.file = input.file;
    const auto& first = cases.front();
    const auto& source = first.source;
    auto mesh = read_case(models, source, input, options, device_mesh);
    const auto& rows = mesh.rows();

    const JudgedFields layout(data.fields, models.front().channels());
    std::map<std::string, std::vector<double>> by_heads;  // Cd, Cl
    PredictionSpread predictions;
    std::vector<ForceSums> forces;
    std::vector<FeatureDistance::Distance> seen;
    for (std::size_t m = 0; m < models.size(); ++m) {
        auto& model = models[m];
        const auto& said = cases[m];
        const auto scaling = field_scaling(said.data, model.channels(), said.source);
        model.move_to(device);
        model.set_memory(options.memory ? *options.memory : memory_for_points(model, std::ssize(rows), device, all));
        const auto inputs = mesh.inputs(model, said.data, device);
        if (model.other_part() && options.other_part.empty() && speaks && m == 0)
            warn("predict", name + ": " + kOtherPartUnknown + " Give its file with --other-part.");
        warn_of_ranges(model, inputs, name, models.size() > 1, all);
        if (const auto size = model.ranges().other_size(mesh.bounds()); !size.empty() && speaks && m == 0)
            warn("predict", "{}: {}.", name, size);
        if (options.with_forces)
            if (const auto distance = model.feature_distance(inputs)) seen.push_back(*distance);
        for (std::int64_t draw = 0; draw < std::max<std::int64_t>(1, options.num_draws); ++draw) {
            if (options.num_draws > 0) model.draw_dropout(static_cast<std::uint64_t>(draw));
            std::vector<double> of_head;
            const auto fields =
                to_local(model.predict(inputs, scaling, &of_head)).squeeze(0).cpu();  // (rows, channels)
            for (std::size_t k = 0; k < of_head.size(); ++k)
                by_heads[model.names_of_head()[k] == "cd" ? "Cd" : "Cl"].push_back(of_head[k]);
            if (options.with_forces)
                forces.push_back(
                    case_sums(fields, fields, mesh.geometry(), layout, model.training_mean(scaling), all).forces);
            predictions.add(fields);
        }
    }
    PredictedForces found;
    if (options.with_forces) found = predicted_forces(forces, models.front(), layout, first);
    std::vector<ShapeSensitivity> by_points;
    if (!options.sensitivities.empty()) {
        if (!found.why.empty())
            throw UnusableInput(
                fmt::format("{}: no sensitivity of {}: {}.", name, options.sensitivities.front(), found.why),
                exit_code::input);
        const auto flow = *flow_reference(first.forces, source, layout.pressure_kind, found.why);
        const auto moment = std::ranges::find_if(options.sensitivities, is_moment);
        if (moment != options.sensitivities.end() && !flow.length)
            throw UnusableInput(
                fmt::format("{}: no sensitivity of {}: {}. Give it with --set.", name, *moment, flow.why_no_moments),
                exit_code::input);
        const auto signs = signs_of(with_mean_shear(forces), flow.drag);
        by_points = sensitivities(models, mesh, options, name, cases, flow, signs, all, device);
    }
    auto& whole = mesh.whole();
    auto& subdomain = mesh.subdomain();
    remove_computed_inputs(subdomain.mesh);
    remove_computed_inputs(whole);
    if (options.with_forces) {
        if (!found.why_no_moments.empty() && speaks) warn("predict", "{}: no moments: {}.", name, found.why_no_moments);
        if (!found.of_fields.empty()) found.intervals = intervals_of(models);
        for (const auto& one : seen) found.feature_isolation.push_back(one.isolation);
        compare_shape(models, shape_sums(whole, all), forces.front(), mesh.bounds(), layout, options, source, found);
        const bool is_shape_far = found.is_far;
        found.is_far |= !seen.empty() && std::ranges::all_of(seen, &FeatureDistance::Distance::is_outside);
        if (found.is_far && speaks) warn("predict", name + ": " + far_text(found, is_shape_far));
    }
    found.of_head = std::move(by_heads);
    for (auto* one : {&whole, &subdomain.mesh}) {
        const auto replaced = add_coefficients(*one, found.of_head);
        if (speaks && one == &whole) warn_of_replaced(name, replaced);
    }
    return {std::move(whole), std::move(subdomain), rows, predictions.mean(), predictions.spread(),
            std::move(found), std::move(by_points)};
}

PredictedForces predict_file(std::span<Predictor> models, const std::filesystem::path& input,
                             const std::filesystem::path& named_output, const PredictionOptions& options, World& world,
                             const std::function<Mesh()>& read)
{
    const auto output = followed_links(named_output);  // pieces lie beside the index itself, not beside a link to it
    const auto kind = kind_of_output(named_output);
    const bool in_pieces = lower_extension(named_output) == ".pvtp" || lower_extension(named_output) == ".pvtu";
    const auto folder = std::filesystem::absolute(output).parent_path();
    const auto device_mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const auto& all = device_mesh->all();
    auto predicted = predict_mesh(
        models, {.name = input.filename().string(), .file = input, .read = read, .kind = kind, .output = output},
        options, device_mesh, world.device());
    const auto& rows = predicted.rows;
    auto& whole = predicted.whole;
    auto& subdomain = predicted.subdomain;
    const auto& found = predicted.forces;
    const bool on_cells = models.front().data().on_cells;

    const auto& spread = predicted.spread;
    // A piece has all points of its cells, of which other ranks may own some.
    const auto plan =
        in_pieces && !on_cells ? ExchangePlan::find(subdomain.points, all) : std::shared_ptr<const ExchangePlan>();
    const auto as_written = [&](const at::Tensor& own) {
        if (!in_pieces) return rows_on_first_rank(own, rows, all);
        return plan ? with_ghosts(own, plan) : own;
    };
    const auto values = as_written(predicted.fields);
    const auto deviations = spread.defined() ? as_written(spread) : spread;
    read_together(all, [&] {
        auto& written = in_pieces ? subdomain.mesh : whole;
        if (!in_pieces && world.rank() != 0) return;
        auto replaced = add_fields(arrays_at(written, on_cells), values, deviations, models.front());
        std::ranges::copy(add_sensitivities(written, predicted.sensitivities,
                                            in_pieces ? subdomain.points.global_ids : std::vector<std::int64_t>()),
                          std::back_inserter(replaced));
        if (world.rank() == 0) warn_of_replaced(input.filename().string(), replaced);
    });
    std::optional<MadeFolders> folders;
    if (world.rank() == 0) folders.emplace(output);
    if (!in_pieces) {
        if (world.rank() == 0) write_mesh(named_output, whole);
        all.barrier();
        return found;
    }
    const auto pieces = output.stem().string() + "_pieces";
    const auto piece_name = [&](int rank) { return fmt::format("{}/piece_{:04}{}", pieces, rank, extension_of(kind)); };
    if (world.rank() == 0)
        std::filesystem::remove(
            output);  // an earlier index must not name pieces of two runs, should this one end early
    all.barrier();
    std::filesystem::create_directories(folder / pieces);
    write_piece(folder / piece_name(world.rank()), subdomain);
    all.barrier();
    if (world.rank() == 0) {
        std::vector<std::string> sources;
        for (int rank = 0; rank < world.size(); ++rank) sources.push_back(piece_name(rank));
        write_piece_index(output, subdomain, sources);
    }
    all.barrier();
    return found;
}

}  // namespace meshard
