// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/report/case_evaluation.h"

#include "apps/console/console.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/field_scaling.h"
#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/evaluation/error_histogram.h"
#include "apps/learning/grids/grid_case.h"
#include "apps/learning/prediction/case_mesh.h"
#include "apps/learning/prediction/prediction.h"
#include "apps/learning/settings/run_record.h"
#include "io/bytes/file_pattern.h"
#include "io/vtk/image_file.h"
#include "partition/error.h"
#include "partition/nearest_name.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>
#include <utility>

namespace meshard {
namespace {

constexpr std::int64_t kBins = 100;  // pieces of `drag_along_x`

void require_true_fields(const Mesh& mesh, const DataConfig& data, const std::string& where)
{
    const auto& arrays = data.on_cells ? mesh.cell_data : mesh.point_data;
    for (const auto& field : data.fields) require_array(arrays, field.from, where, data.on_cells ? "cell" : "point");
}

void require_finite(const CaseSums& sums, const std::string& id)
{
    for (const auto& channel : sums.channels) {
        if (!std::isfinite(channel.error_squared))
            throw Error("case " + id + ": the prediction is not finite everywhere: the model is broken.");
    }
}

/// Evaluates all points or cells of a case on a regular grid, without forces.
EvaluatedCase evaluate_grid(JudgedModel& model, const JudgedCase& judged, std::size_t index, World& world,
                            const std::shared_ptr<const DeviceMesh>& device_mesh, const SeeCase& see)
{
    auto& predictor = model.predictor;
    const auto& data = predictor.data();
    const auto& source = judged.first;
    const auto where = source.file.string();
    const auto grid = read_image(source.file);
    const auto rows = grid_rows(grid, data, true, where);
    if (rows.channels != predictor.channels())
        throw InvalidInput(where + ": a field has another number of components than in training.");
    auto example =
        grid_case_tensors(rows, source, data, spec_of_grid(rows.extents, predictor.rows_together(), device_mesh));
    example = on_device(example, world.device());
    add_case_inputs(example.inputs, predictor, data, source, world.device());
    const auto start = std::chrono::steady_clock::now();
    const auto scaling = field_scaling(data, predictor.channels(), source);
    at::Tensor of_all;
    try {
        of_all = predictor.predict(example.inputs, scaling);
    } catch (const InvalidInput& wrong) {
        throw InvalidInput(fmt::format("{}, a grid of {}: {}", where, extents_text(rows.extents), wrong.what()));
    }
    const auto predicted = to_local(of_all).squeeze(0).cpu();  // (rows, channels)
    EvaluatedCase result{.source = source, .split = judged.second, .num_points = example.num_points};
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const JudgedFields layout(data.fields, predictor.channels());
    const auto truth = to_local(example.target).squeeze(0).cpu();
    const auto sums = case_sums(predicted, truth, {}, layout, predictor.training_mean(scaling), device_mesh->all());
    require_finite(sums, source.id);
    result.metrics = sums.metrics(layout);
    if (see) {
        const auto whole = full_tensor(of_all).squeeze(0).cpu();
        if (world.rank() == 0) see(index, image_mesh(grid), whole, rows.target);
    }
    return result;
}

EvaluatedCase evaluate_case(JudgedModel& model, const JudgedCase& judged, std::size_t index,
                            const std::filesystem::path& folder, World& world,
                            const std::shared_ptr<const DeviceMesh>& device_mesh, const SeeCase& see,
                            std::vector<std::string>& notes)
{
    auto& predictor = model.predictor;
    const auto& data = predictor.data();
    const auto& source = judged.first;
    const auto where = source.file.string();
    const auto& all = device_mesh->all();

    const auto note = [&](const std::string& sentence) {
        if (std::ranges::find(notes, sentence) == notes.end()) notes.push_back(sentence);
    };
    MeshReading reading{
        .where = where, .report = note, .with_geometry = true, .with_forces = !model.forces.area.empty()};
    reading.prepare = [&](const Mesh& mesh) { require_true_fields(mesh, data, where); };
    CaseMesh mesh(source, std::span(&predictor, 1), reading, folder / ("case_" + source.id), device_mesh);
    const auto& rows = mesh.rows();
    const auto& geometry = mesh.geometry();
    const auto& bounds = mesh.bounds();
    const auto inputs = mesh.inputs(predictor, data, world.device());
    const auto truth = field_values(mesh.subdomain().mesh, rows, data, where);
    predictor.set_memory(predictor.memory_for(std::ssize(rows), memory_for_points(world, all)));
    if (predictor.other_part() && source.other_part.empty()) note(kOtherPartUnknown);
    auto beyond = predictor.ranges().beyond(inputs, data, all);
    const auto start = std::chrono::steady_clock::now();
    const auto scaling = field_scaling(data, predictor.channels(), source);
    std::vector<double> of_head;
    const auto predicted = to_local(predictor.predict(inputs, scaling, &of_head)).squeeze(0).cpu();  // (rows, channels)

    EvaluatedCase result{.source = source, .split = judged.second, .num_points = inputs.embedding.size(1)};
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const JudgedFields layout(data.fields, predictor.channels());
    const auto sums = case_sums(predicted, truth, geometry, layout, predictor.training_mean(scaling), all);
    require_finite(sums, source.id);
    result.metrics = sums.metrics(layout);
    const auto histograms = error_histograms(predicted, truth, layout, predictor.training_deviation(scaling), all);
    for (std::size_t f = 0; f < histograms.size(); ++f)
        result.error_histograms.emplace_back(data.fields[f].name, histograms[f]);
    const auto regions = error_regions(predicted, truth, geometry, layout, bounds, all);
    for (std::size_t f = 0; f < regions.size(); ++f) result.error_regions.emplace_back(data.fields[f].name, regions[f]);
    result.on_cells = data.on_cells;
    result.has_ranges = !predictor.ranges().is_empty();
    result.beyond = std::move(beyond);
    std::string why;
    const auto flow = add_forces(result, sums, layout, model.forces, why);
    add_of_head(result, predictor.names_of_head(), of_head, model.forces);
    if (!flow) {
        note("no drag and lift: " + why + ".");
    } else {
        if (const auto& by_shape = predictor.shape_coefficients()) {
            const auto found = by_shape->of(shape_sums(mesh.whole(), all), sums.forces, bounds, *flow,
                                            constants_of_case(data, source));
            if (found)
                std::tie(result.drag_of_shape, result.lift_of_shape, result.isolation) =
                    std::tuple(found->drag, found->lift, found->isolation);
        }
        result.low_x = bounds[0];
        result.high_x = bounds[1];
        result.drag_along_x = drag_along_x(predicted, truth, geometry, layout, sums.forces, *flow, result.low_x,
                                           result.high_x, kBins, all);
    }
    if (see) {
        const auto all_predicted = rows_on_first_rank(predicted, rows, all),
                   all_truth = rows_on_first_rank(truth, rows, all);
        if (world.rank() == 0) see(index, mesh.whole(), all_predicted, all_truth);
    }
    return result;
}

/// Returns the run in whose `checkpoints` a file lies; empty for none.
std::filesystem::path run_of(const std::filesystem::path& checkpoint)
{
    const auto folder = std::filesystem::absolute(checkpoint).lexically_normal().parent_path();
    const auto run = folder.parent_path();
    return folder.filename() == "checkpoints" && std::filesystem::exists(run / "resolved_config.yaml")
               ? run
               : std::filesystem::path();
}

std::string sizes_of(const CaseLists& cases)
{
    return fmt::format("{} of train, {} of val and {} of test", cases.train.size(), cases.val.size(),
                       cases.test.size());
}

bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b)
{
    std::error_code error;
    return std::filesystem::equivalent(a, b, error) && !error;
}

}  // namespace

std::vector<std::string> take_data_path_overrides(std::vector<std::string>& words)
{
    std::vector<std::string> places;
    std::erase_if(words, [&](const std::string& word) {
        const auto key = std::string_view(word).substr(0, word.find('='));
        if (key.size() == word.size() || !key.starts_with("data.")) return false;
        if (key != "data.root" && !(key.starts_with("data.sets.") && key.ends_with(".root")))
            throw UsageError("'" + word +
                             "': of a run that is trained, only data.root and data.sets.NAME.root can be said anew.");
        places.push_back(word);
        return true;
    });
    return places;
}

JudgedModel judged_model(const std::filesystem::path& path, std::size_t part, std::span<const std::string> settings_now)
{
    const bool is_file = std::filesystem::is_regular_file(path);
    const auto run = is_file ? run_of(path) : path;
    JudgedModel model{
        is_file ? Predictor::from_file(path, {}, part) : Predictor::from_run(path, part), {}, {}, {}, {}, run};
    if (model.predictor.data().series.is_on)
        throw InvalidInput(fmt::format("{} learnt steps of simulations in time, which are judged while it trains: see "
                                       "val_rollout.csv and test_rollout.csv of its folder. Here they are not yet; "
                                       "`meshard predict --steps` writes the states.",
                                       path.string()));
    model.notes = model.predictor.notes();
    if (run.empty()) {
        model.notes.push_back(
            path.string() +
            " lies in no run's folder: cases must be named by their files, and there are no drag and lift.");
        return model;
    }
    const auto settings = read_run_settings(run, settings_now);
    const auto config = training_config(settings);
    model.forces = config.forces;
    for (const auto& table : config.data.case_tables) {
        const auto files = files_matching(config.data.root, table);
        model.case_tables.insert(model.case_tables.end(), files.begin(), files.end());
    }
    for (const auto& set : config.data.sets) {
        for (const auto& table : set.case_tables.empty() ? config.data.case_tables : set.case_tables) {
            const auto files = files_matching(set.root, table);
            model.case_tables.insert(model.case_tables.end(), files.begin(), files.end());
        }
    }
    try {
        model.cases = find_cases(config).of_part(part);
    } catch (const Error& error) {
        model.why_no_cases = std::string("the data of the run are not found: ") + error.what();
        model.notes.push_back(model.why_no_cases);
    }
    return model;
}

std::vector<JudgedCase> judged_cases(const JudgedModel& model, std::span<const std::string> words)
{
    std::vector<JudgedCase> known;
    for (const auto& source : model.cases.train) known.emplace_back(source, "train");
    for (const auto& source : model.cases.val) known.emplace_back(source, "val");
    for (const auto& source : model.cases.test) known.emplace_back(source, "test");

    std::vector<std::string> wanted(words.begin(), words.end());
    if (wanted.empty()) wanted.emplace_back(model.cases.test.empty() ? "val" : "test");
    std::vector<JudgedCase> cases;
    for (const auto& word : wanted) {
        const auto before = cases.size();
        for (const auto& one : known) {
            const bool is_named =
                word == "all" || word == one.second || word == one.first.id || is_same_file(word, one.first.file);
            const bool is_there =
                std::ranges::any_of(cases, [&](const auto& other) { return other.first.file == one.first.file; });
            if (is_named && !is_there) cases.push_back(one);
        }
        const bool is_repeated = std::ranges::any_of(
            known, [&](const auto& one) { return word == one.first.id || word == one.second || word == "all"; });
        if (cases.size() > before || is_repeated) continue;
        if (std::filesystem::exists(word)) {
            cases.emplace_back(CaseSource{std::filesystem::path(word).stem().string(), word, {}}, "given");
            continue;
        }
        if (!model.why_no_cases.empty())
            throw IoError(fmt::format("'{}' is no file here, and if it is a case or a split of the run {}, {}", word,
                                      model.run.string(), model.why_no_cases));
        if (word == "train" || word == "val" || word == "test")
            throw UsageError(fmt::format("the run has no cases of '{}'; it has {}.", word, sizes_of(model.cases)));
        std::vector<std::string> names{"train", "val", "test", "all"};
        for (const auto& one : known) names.push_back(one.first.id);
        const auto nearest = nearest_name(word, names);
        throw UsageError(fmt::format("'{}' is no mesh file, no case of the run and no split with cases; expected "
                                     "train, val, test, all, ids or files.{}",
                                     word, nearest.empty() ? "" : " Did you mean '" + nearest + "'?"));
    }
    return cases;
}

Evaluation evaluate(JudgedModel& model, std::span<const JudgedCase> cases, const std::filesystem::path& folder,
                    World& world, const SeeCase& see)
{
    Evaluation evaluation{.model = model.predictor.checkpoint().string(), .notes = model.notes};
    evaluation.drag_guess = table_mean(model.cases.train, model.forces.drag);
    evaluation.lift_guess = table_mean(model.cases.train, model.forces.lift);
    model.predictor.move_to(world.device());
    const auto device_mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    for (std::size_t i = 0; i < cases.size(); ++i) {
        if (world.rank() == 0)
            show_progress("case " + cases[i].first.id, static_cast<double>(i) / static_cast<double>(cases.size()));
        if (model.predictor.data().is_grid) {
            evaluation.cases.push_back(evaluate_grid(model, cases[i], i, world, device_mesh, see));
            continue;
        }
        evaluation.cases.push_back(
            evaluate_case(model, cases[i], i, folder, world, device_mesh, see, evaluation.notes));
    }
    if (world.rank() == 0) show_progress("");
    return evaluation;
}

}  // namespace meshard
