// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/report/case_evaluation.h"

#include "apps/console/console.h"
#include "apps/console/repeated_times.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/field_scaling.h"
#include "apps/learning/cases/run_step.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/evaluation/error_histogram.h"
#include "apps/learning/grids/grid_case.h"
#include "apps/learning/prediction/case_mesh.h"
#include "apps/learning/prediction/prediction.h"
#include "apps/learning/prediction/series_roll_out.h"
#include "apps/learning/settings/run_record.h"
#include "io/bytes/file_pattern.h"
#include "io/bytes/interruption.h"
#include "io/series.h"
#include "io/vtk/image_file.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <tuple>
#include <utility>

namespace meshard {
namespace {

constexpr std::int64_t kBins = 100;  // pieces of `drag_along_x`

void require_true_fields(const Mesh& mesh, const DataConfig& data, const std::string& where)
{
    for (const auto& field : data.fields) require_array(mesh, data.on_cells, field.from, where);
}

void require_finite(const CaseSums& sums, const std::string& id)
{
    for (const auto& channel : sums.channels) {
        if (!std::isfinite(channel.error_squared))
            throw Error("case {}: the prediction is not finite everywhere: the model is broken.", id);
    }
}

/// Evaluates all points or cells of a case on a regular grid, without forces.
EvaluatedCase evaluate_grid(JudgedModel& model, const JudgedCase& judged, std::size_t index, World& world,
                            GridRanks& ranks, const SeeCase& see)
{
    auto& predictor = model.predictor;
    const auto& data = predictor.data();
    const auto& source = judged.first;
    const auto where = source.file.string();
    const auto& all = ranks.in_a_row()->all();
    std::unique_ptr<GridFile> file;
    std::vector<std::int64_t> extents;
    read_together(all, [&] {
        file = GridFile::open(source.file);
        extents = extents_of(file->grid(), data.on_cells, where);
    });
    const auto& blocks = ranks.blocks(predictor.cut_of_grid(extents, world.size()));
    GridLayout cut;
    GridRows rows;  // this rank's
    read_together(all, [&] {
        cut = grid_layout(extents, predictor.rows_together(), blocks, where);
        rows = grid_rows(*file, cut.own_box(file->grid(), data.on_cells), data, true, where);
        if (rows.channels != predictor.channels())
            throw InvalidInput("{}: a field has another number of components than in training.", where);
    });
    auto example =
        on_device(grid_case_tensors(rows.told, rows.target, rows.channels, source, data, cut), world.device());
    add_case_inputs(example.inputs, predictor, data, source, world.device());
    const auto start = std::chrono::steady_clock::now();
    const auto scaling = field_scaling(data, predictor.channels(), source);
    at::Tensor of_all;
    try {
        of_all = predictor.predict(example.inputs, scaling);
    } catch (const InvalidInput& wrong) {
        throw InvalidInput("{}, a grid of {}: {}", where, extents_text(rows.extents), wrong.what());
    }
    const auto predicted = to_local(of_all).squeeze(0).cpu();  // (rows, channels)
    EvaluatedCase result{.source = source, .split = judged.second};
    result.seconds = seconds_since(start);
    result.has_ranges = !predictor.ranges().is_empty();
    result.beyond = predictor.ranges().beyond(example.inputs, data, all);
    const JudgedFields layout(data.fields, predictor.channels());
    const auto truth = to_local(example.target).squeeze(0).cpu();
    const auto sums = case_sums(predicted, truth, {}, layout, predictor.training_mean(scaling), all);
    require_finite(sums, source.id);
    result.num_points = static_cast<std::int64_t>(sums.channels.front().count);
    if (result.num_points == 0) throw InvalidInput("{}: data.mask leaves nothing of it. Leave the case out.", where);
    result.metrics = sums.metrics(layout);
    if (see) {
        const auto places = cut.own_places();
        const auto left_out = counted_rows(truth).logical_not().unsqueeze(1);
        const auto whole = rows_on_first_rank(predicted.masked_fill(left_out, NAN), places, all),
                   true_whole = rows_on_first_rank(truth, places, all);
        if (world.rank() == 0) see({index, image_mesh(file->grid()), whole, true_whole});
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
        if (!contains(notes, sentence)) notes.push_back(sentence);
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
    predictor.set_memory(memory_for_points(predictor, std::ssize(rows), world.device(), all));
    if (predictor.other_part() && source.other_part.empty()) note(kOtherPartUnknown);
    auto beyond = predictor.ranges().beyond(inputs, data, all);
    if (const auto size = predictor.ranges().other_size(bounds); !size.empty()) beyond.push_back(size);
    const auto start = std::chrono::steady_clock::now();
    const auto scaling = field_scaling(data, predictor.channels(), source);
    std::vector<double> of_head;
    const auto predicted = to_local(predictor.predict(inputs, scaling, &of_head)).squeeze(0).cpu();  // (rows, channels)

    EvaluatedCase result{.source = source, .split = judged.second, .num_points = inputs.embedding.size(1)};
    result.seconds = seconds_since(start);
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
    if (flow) {
        if (!flow->why_no_moments.empty()) note("no moments: " + flow->why_no_moments + ".");
        if (const auto& by_shape = predictor.shape_coefficients()) {
            const auto found = by_shape->of(shape_sums(mesh.whole(), all), sums.forces, bounds, *flow,
                                            constants_of_case(data, source));
            if (found) {
                result.of_shape = {found->drag, found->lift};
                result.isolation = found->isolation;
            }
        }
        result.low_x = bounds[0];
        result.high_x = bounds[1];
        result.drag_along_x = drag_along_x(predicted, truth, geometry, layout, sums.forces, *flow, result.low_x,
                                           result.high_x, kBins, all);
    } else if (!(data.in_volume && !model.run.empty() && num_trained_parts(model.run) > 1)) {
        note("no drag and lift: " + why + ".");  // of two parts the surface has them
    }
    if (see) {
        const auto all_predicted = rows_on_first_rank(predicted, rows, all),
                   all_truth = rows_on_first_rank(truth, rows, all);
        if (world.rank() == 0) see({index, mesh.whole(), all_predicted, all_truth});
    }
    return result;
}

/// Mean weights of the rows of a mesh, (rows, 1): cells by area, or volume, and points alike.
at::Tensor mean_weights(const Mesh& mesh, bool on_cells)
{
    const auto num_rows = on_cells ? mesh.num_cells() : mesh.num_points();
    auto weights = at::ones({num_rows, 1}, at::kDouble);
    if (on_cells) {
        auto geometry = row_geometry(mesh, true);
        weights.copy_(at::from_blob(geometry.data(), {num_rows, kGeometryColumns}, at::kDouble).narrow(1, 6, 1));
    }
    return weights / weights.sum();
}

/// Rolls out a run, and predicts each of its states from the true one before it, too.
EvaluatedCase evaluate_run(JudgedModel& model, const JudgedCase& judged, std::size_t index,
                           const std::filesystem::path& folder, World& world, GridRanks& ranks, const SeeCase& see,
                           std::vector<std::string>& notes)
{
    auto& predictor = model.predictor;
    const auto& [source, split] = judged;
    const auto& data = predictor.data();
    const auto& channels = predictor.channels();
    const auto& all = ranks.in_a_row()->all();
    const SeriesPlan plan(predictor, *source.step->run);
    const MeshReading reading{.where = source.file.string(),
                              .report = [&](const std::string& fault) { notes.push_back(fault); }};
    const SeriesTrack track{&predictor, data, source};
    SeriesRollOut roll_out(plan, {&predictor, 1}, {track, track}, reading, folder / ("case_" + source.id), {}, world,
                           ranks);
    const auto& states = roll_out.states();
    const auto rows_of = [&](const at::Tensor& state) {
        return rows_on_first_rank(to_local(state).squeeze(0).cpu(), roll_out.rows(), all);
    };

    EvaluatedCase result{.source = source, .split = split};
    result.has_ranges = !predictor.ranges().is_empty();
    result.beyond = predictor.ranges().beyond(roll_out.inputs(0), data, all);
    RolledOutRun run{.run = source.id};
    for (const auto& field : data.fields) run.fields.push_back(field.name);
    for (auto i = plan.next(); i < plan.num_states(); ++i) run.times.push_back(plan.time(i));
    // What leaves points out of what is told leaves them out of predictions, too.
    const auto left_out = states.left_out(roll_out.inputs(0));
    const auto true_state = [&](std::size_t i) {
        const auto state = roll_out.true_state(i);
        return left_out.defined() ? state.masked_fill(left_out, NAN) : state;
    };
    const auto first = true_state(plan.next() - 1);
    auto weights = first.narrow(-1, 0, 1).isnan().logical_not().to(at::kDouble);
    result.num_points = weights.sum().item<std::int64_t>();
    weights = weights / result.num_points;
    if (!roll_out.is_of_grids()) {
        at::Tensor of_mesh;
        read_together(all, [&] {
            if (world.rank() == 0) of_mesh = mean_weights(roll_out.whole(), data.on_cells);
        });
        weights = roll_out.own_rows(of_mesh);
    }
    const auto mean = predictor.told_mean().narrow(0, states.first(), states.num_fields()).to(world.device());
    for (auto i = plan.next(); i < plan.num_states(); ++i) {
        throw_if_interrupted();
        const auto start = std::chrono::steady_clock::now();
        const auto predicted = roll_out.next(0);
        result.seconds = result.seconds.value_or(0) + seconds_since(start);
        const auto of_one_step = i == plan.next() ? predicted : roll_out.next(1);
        const auto truth = true_state(i);
        run.errors.push_back(field_errors(predicted, truth, channels));
        run.of_persistence.push_back(field_errors(first, truth, channels));
        run.of_mean.push_back(field_errors(at::zeros_like(truth) + mean, truth, channels));
        run.of_one_step.push_back(field_errors(of_one_step, truth, channels));
        auto [integral, energy] = field_drifts(predicted, truth, weights, channels);
        run.integral_drift.push_back(std::move(integral));
        run.energy_drift.push_back(std::move(energy));
        if (see) {
            const auto whole = rows_of(predicted), true_whole = rows_of(truth);
            if (world.rank() == 0) {
                if (roll_out.is_of_grids())
                    see({index, image_mesh(roll_out.image()), whole, true_whole, i - plan.next()});
                else
                    see({index, roll_out.read_whole(i), whole, true_whole, i - plan.next()});
            }
        }
        if (i + 1 == plan.num_states()) break;
        roll_out.go_on(i, std::array{predicted, truth});
    }
    result.metrics = roll_out_metrics(run);
    for (std::size_t i = 0; i < run.times.size(); ++i) {
        if (std::ranges::all_of(run.errors[i], [](double error) { return std::isfinite(error); })) continue;
        notes.push_back(fmt::format("run {}: the roll-out has diverged: the state predicted at {:g} is not finite.",
                                    source.id, run.times[i]));
        break;
    }
    result.rolled_out = std::move(run);
    return result;
}

std::string sizes_of(const CaseLists& cases)
{
    return fmt::format("{} of train, {} of val and {} of test", cases.train.size(), cases.val.size(),
                       cases.test.size());
}

/// Leaves of the steps of each run the first one, which stands for the run.
void keep_runs(std::vector<CaseSource>& steps)
{
    const auto repeated = std::ranges::unique(steps, {}, [](const auto& source) { return source.step->run; });
    steps.erase(repeated.begin(), repeated.end());
    for (auto& source : steps) {
        source.id = source.split_id();
        source.file = source.step->run->path;
    }
}

/// Lists the states of a series that the run does not know.
std::shared_ptr<const Series> run_of_file(const std::filesystem::path& file, const std::string& id,
                                          std::int64_t history)
{
    Series run{id, file, read_series(file)};
    if (std::ssize(run.states) <= history)
        throw InvalidInput("{} has {} state{}; the model is told {}, and judged on those that follow.", file.string(),
                           run.states.size(), run.states.size() == 1 ? "" : "s", history);
    return std::make_shared<const Series>(std::move(run));
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
        if (key != "data.root" && key != "data.forces.length" && key != "data.forces.center" &&
            !(key.starts_with("data.sets.") && key.ends_with(".root")))
            throw UsageError(
                "'{}': of a run that is trained, only data.root, data.sets.NAME.root, data.forces.length and "
                "data.forces.center can be said anew.",
                word);
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
        append(model.case_tables, files);
    }
    for (const auto& set : config.data.sets) {
        for (const auto& table : set.case_tables.empty() ? config.data.case_tables : set.case_tables) {
            const auto files = files_matching(set.root, table);
            append(model.case_tables, files);
        }
    }
    try {
        model.cases = find_cases(config).of_part(part);
        if (config.data.series.is_on)
            for (auto* cases : {&model.cases.train, &model.cases.val, &model.cases.test}) keep_runs(*cases);
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
        const auto is_file_of = [&](const auto& one) { return is_same_file(word, one.first.file); };
        const bool is_repeated =
            std::ranges::any_of(cases, is_file_of) || std::ranges::any_of(known, [&](const auto& one) {
                return word == one.first.id || word == one.second || word == "all";
            });
        if (cases.size() > before || is_repeated) continue;
        if (std::filesystem::exists(word)) {
            CaseSource source{std::filesystem::path(word).stem().string(), word, {}};
            if (const auto& series = model.predictor.data().series; series.is_on)
                source.step = RunStep{run_of_file(word, source.id, series.history), series.history - 1};
            cases.emplace_back(std::move(source), "given");
            continue;
        }
        if (!model.why_no_cases.empty())
            throw IoError("'{}' is no file here, and if it is a case or a split of the run {}, {}", word,
                          model.run.string(), model.why_no_cases);
        if (word == "train" || word == "val" || word == "test")
            throw UsageError("the run has no cases of '{}'; it has {}.", word, sizes_of(model.cases));
        std::vector<std::string> names{"train", "val", "test", "all"};
        for (const auto& one : known) names.push_back(one.first.id);
        throw UsageError("'{}' is no mesh file, no case of the run and no split with cases; expected "
                         "train, val, test, all, ids or files.{}",
                         word, suggestion(word, names));
    }
    return cases;
}

Evaluation evaluate(JudgedModel& model, std::span<const JudgedCase> cases, const std::filesystem::path& folder,
                    World& world, const SeeCase& see)
{
    Evaluation evaluation{.model = model.predictor.checkpoint().string(), .notes = model.notes};
    if (const auto& errors = model.predictor.held_out_errors())
        evaluation.interval = {interval_of(errors->drag), interval_of(errors->lift)};
    evaluation.guess = {table_mean(model.cases.train, model.forces.drag),
                        table_mean(model.cases.train, model.forces.lift)};
    model.predictor.move_to(world.device());
    GridRanks ranks(world);
    const auto& device_mesh = ranks.in_a_row();
    for (std::size_t i = 0; i < cases.size(); ++i) {
        if (world.rank() == 0)
            show_progress("case " + cases[i].first.id, static_cast<double>(i) / static_cast<double>(cases.size()));
        if (model.predictor.data().series.is_on) {
            evaluation.cases.push_back(evaluate_run(model, cases[i], i, folder, world, ranks, see, evaluation.notes));
            continue;
        }
        if (model.predictor.data().is_grid) {
            evaluation.cases.push_back(evaluate_grid(model, cases[i], i, world, ranks, see));
            continue;
        }
        evaluation.cases.push_back(
            evaluate_case(model, cases[i], i, folder, world, device_mesh, see, evaluation.notes));
    }
    if (world.rank() == 0) show_progress("");
    return evaluation;
}

}  // namespace meshard
