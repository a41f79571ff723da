// meshard predict: predicts fields on meshes with trained models and writes the meshes with them.
#include "apps/console/kept_warnings.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/cases/case_list.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/prediction/prediction.h"
#include "apps/learning/prediction/prediction_table.h"
#include "apps/learning/prediction/series_prediction.h"
#include "apps/learning/prediction/told_values.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/made_folders.h"
#include "io/checkpoints/model_checkpoint.h"
#include "io/mesh_io.h"
#include "io/vtk/grid_file.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <c10/util/StringUtil.h>
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

namespace meshard {
namespace {

struct PredictArguments {
    std::vector<std::string> runs;
    std::string model;  // a checkpoint in place of runs
    DataOptions data;
    std::vector<std::string> inputs;
    std::string output;
    PredictionOptions prediction;
    std::optional<Orient> orient;          // in place of what the runs say (data.orient)
    std::vector<std::string> walls;        // one for all inputs, or one each
    std::vector<std::string> other_parts;  // one for all inputs, or one each
    std::string table, csv;
    SeriesPrediction series;
    std::string of_samples;  // an option that belongs to models which draw their states
    bool json = false;
    LocalRanks ranks;
    std::string device = "auto";
    InputAsOutput input_as_output{};
};

/// Returns whether a folder is a run, which has checkpoints, and not a mesh (an OpenFOAM case is a folder, too).
bool is_run_folder(const std::filesystem::path& path)
{
    return std::filesystem::exists(path / "checkpoints" / "best.safetensors") ||
           std::filesystem::exists(path / "checkpoints" / "last.safetensors");
}

/// Refuses what does not go with --steps.
void check_series(const PredictArguments& options)
{
    const auto refuse = [](const std::string& option, const std::string& why) {
        throw UsageError("{} does not go with --steps: {}.", option, why);
    };
    if (!options.model.empty()) refuse("--model", "a file of weights does not say what a state is. Give the run");
    if (options.inputs.size() > 1) refuse(options.inputs[1], "one start is continued at a time");
    const auto extension = lower_extension(options.output);
    if (extension != ".pvd" && extension != ".vtkhdf")
        refuse("-o " + options.output, "a series is written: .pvd with a file a state, or .vtkhdf");
    if (options.prediction.with_forces && options.csv.empty())
        refuse("--forces", "drag and lift of states are written to a table. Give --csv FILE, too");
    if (options.prediction.num_draws > 0) refuse("--dropout-draws", "give several runs for a spread");
    if (!options.prediction.sensitivities.empty()) refuse("--sensitivity", "it is of one state of a surface");
    if (!options.table.empty()) refuse("--table", "there is one start; give its values with --set");
    if (options.json) refuse("--json", "the series is the report");
}

bool parse(std::span<const std::string> arguments, PredictArguments& options)
{
    CLI::App app("Predicts a run's fields on new meshes and writes them beside the meshes' own arrays, in physical "
                 "units. A field is\n"
                 "called as in the run's configuration (data.fields), with `_predicted` added where the mesh has such "
                 "an array already.\n"
                 "Of several runs the mean of their predictions is written, and their spread as NAME_spread. Of a run "
                 "with surface\n"
                 "and volume the output's type says which: .vtu and .pvtu have the volume's fields, .vtp and .pvtp the "
                 "surface's.\n"
                 "With --model the weights of a file predict, without a run.",
                 "predict");
    std::vector<std::string> settings, words;
    std::string constants, time, association = "cell", memory = "auto";
    add_named(app, "input", words, "[RUN_DIR...] INPUT...",
              "folders of runs of `meshard train`, one or several, or a file of weights as of --model; then the "
              "meshes to predict on")
        ->required();
    add_named(app, "--model", options.model, "FILE",
              "weights in place of a run: .mdlus, .pt or .safetensors; a global_stats.json beside it has the "
              "fields' mean and std");
    add_named(app, "-o,--output", options.output, "OUT",
              "file to write: .vtp, .vtu; .pvtp, .pvtu with a piece a rank; .vti of grids; with --steps "
              ".pvd, .vtkhdf; of several inputs a folder")
        ->required();
    add_overwrite_option(app, options.input_as_output);
    add_named(app, "--set", settings, "NAME=VALUE",
              "value of a column of the case table in training, e.g. length=1.044, or of data.reference, e.g. "
              "U_inf=40; may be repeated");
    add_named(
        app, "--wall", options.walls, "FILE",
        "surface whose distance is an input, or that domino encodes, once for all inputs or once for each in turn")
        ->allow_extra_args(false);
    add_orient_option(app, options.orient, "what the run did in training (data.orient)");
    add_named(app, "--other-part", options.other_parts, "FILE",
              "the volume of a surface, or the surface of a volume, whose points abupt is told, once for all "
              "inputs or once for each in turn")
        ->allow_extra_args(false);
    app.add_flag(
        "--forces", options.prediction.with_forces,
        "say Cd, Cl, Cs, and with moment_length moments; area, U_inf, ... as in the run, or by --set or --table");
    auto* sensitivity =
        app.add_option("--sensitivity", options.prediction.sensitivities,
                       "write how Cd, Cl, Cs, Cmx, Cmy or Cmz changes with each point: arrays dCd_dx, and dCd_dn "
                       "along the normal; repeatable");
    sensitivity->allow_extra_args(false)->type_name("NAME");
    add_named(app, "--table", options.table, "FILE",
              "values of each input before those of --set, .csv or .json; its column id is the file's name, or "
              "the id that it has in training");
    add_named(app, "--csv", options.csv, "FILE", "table of coefficients to write, with a row an input; with --forces");
    add_json_option(app, options.json);
    add_named(app, "--dropout-draws", options.prediction.num_draws, "N",
              "predict so many times with the model's dropout, as in training: mean, and spread as NAME_spread "
              "(Monte Carlo dropout)")
        ->check(CLI::Range(2, 100000))
        ->excludes(sensitivity);
    auto* steps = app.add_option("--steps", options.series.num_steps,
                                 "of a run that learnt simulations in time: predict so many states, each from the one "
                                 "before it, from INPUT on, a mesh or a series");
    steps->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000000}))->type_name("N");
    add_named(app, "--step", options.series.step, "DT",
              "with --steps: time between two states, in place of that of INPUT, if it is a series, or of the "
              "training")
        ->check(CLI::PositiveNumber)
        ->needs(steps);
    app.add_flag("--resume", options.series.goes_on,
                 "with --steps: go on after the last state of an output that was interrupted")
        ->needs(steps);
    auto* samples =
        app.add_option("--samples", options.series.num_samples,
                       "with --steps, of a run of dit: go so many ways, each drawn from noise of its own: mean, and "
                       "spread as NAME_spread");
    samples->check(CLI::PositiveNumber)->type_name("N")->capture_default_str()->needs(steps);
    auto* seed = app.add_option("--seed", options.series.seed, "of the first of them; the next have the next");
    seed->type_name("S")->capture_default_str()->needs(steps);
    auto* levels =
        app.add_option("--noise-levels", options.series.num_levels,
                       "levels of noise that a state is drawn through; the model is called twice at each but the last");
    levels->check(CLI::PositiveNumber)->type_name("N")->default_str("as in validation")->needs(steps);
    add_shown(app, "--memory", memory, "MODE",
              "what a Transolver keeps of each point between layers: stored, recomputed (half), streamed "
              "(nothing; slower) or auto")
        ->check(CLI::IsMember({"auto", "stored", "recomputed", "streamed"}));
    add_device_option(app, options.device);
    add_rank_options(app, options.ranks);
    auto* of_file = app.add_option_group("With --model, where its file does not say it");
    add_named(*of_file, "--constants", constants, "A,...",
              "what the model is told of the whole case, in the order of its training, e.g. density and speed: "
              "1.205,38.9");
    add_named(*of_file, "--time", time, "T", "time of the case, for a model with time_input");
    add_named(*of_file, "--neighbors", options.data.num_neighbors, "K",
              "nearest points that each point hears, for MeshGraphNet")
        ->check(CLI::PositiveNumber)
        ->default_str("6");
    add_named(*of_file, "--center", options.data.center, "WHAT",
              "what is subtracted from the points: bounds (centre of the bounding box), none, or x,y,z")
        ->default_str("none");
    add_named(*of_file, "--length", options.data.length, "WHAT",
              "what the points are divided by: bounds (longest edge of the bounding box), none, a number, or three")
        ->default_str("none");
    add_named(*of_file, "--fields", options.data.fields, "NAME[:N],...",
              "names of the channels, with their number where it is not 1, e.g. pressure,shear_stress:3")
        ->default_str("one array, prediction");
    add_shown(*of_file, "--association", association, "WHERE", "where the fields live: cell or point");
    if (!parse_arguments(app, arguments)) return false;

    if (options.model.empty() && words.size() > 1 && std::filesystem::is_regular_file(words.front()) &&
        is_checkpoint_file(words.front())) {
        options.model = words.front();
        words.erase(words.begin());
    }
    if (options.model.empty()) {
        for (const auto* option : of_file->get_options()) {
            if (option->count() > 0)
                throw UsageError("{} belongs to --model; a run's folder says it itself.", option->get_name());
        }
        do {
            options.runs.push_back(words.front());
            words.erase(words.begin());
        } while (!words.empty() && is_run_folder(words.front()));
        if (words.empty()) throw UsageError("which meshes? Give INPUT after {}.", options.runs.back());
    }
    options.inputs = words;
    if (options.series.num_steps > 0) check_series(options);
    for (const auto* option : {samples, seed, levels})
        if (option->count() > 0) options.of_samples = option->get_name();
    require_sensitive(options.prediction.sensitivities);
    if (!options.prediction.sensitivities.empty()) options.prediction.with_forces = true;
    if (!options.csv.empty() && !options.prediction.with_forces)
        throw UsageError("--csv is a table of drag and lift, and needs --forces.");
    if (memory != "auto") options.prediction.memory = memory_mode(memory);
    if (association != "cell" && association != "point")
        throw UsageError("--association is '{}'; expected cell or point.", association);
    options.data.on_cells = association == "cell";
    if (!constants.empty()) options.data.constants = parse_numbers(constants, "--constants");
    if (!time.empty()) options.data.time = parse_numbers(time, "--time", 1)[0];
    for (const auto& word : settings) {
        const auto equals = word.find('=');
        if (equals == std::string::npos || equals == 0)
            throw UsageError("--set {}: expected NAME=VALUE, e.g. length=1.044.", word);
        options.prediction.values[word.substr(0, equals)] =
            parse_numbers(word.substr(equals + 1), "--set " + word.substr(0, equals), 1)[0];
    }
    return true;
}

/// Loads the models.
/// @param part   0 for the surface, 1 for the volume of runs that have both
std::vector<Predictor> make_predictors(const PredictArguments& options, std::size_t part)
{
    const auto part_of = [part](const std::string& path) { return num_trained_parts(path) > 1 ? part : 0; };
    std::vector<Predictor> models;
    for (const auto& run : options.runs) models.push_back(Predictor::from_run(run, part_of(run)));
    if (models.empty()) models.push_back(Predictor::from_file(options.model, options.data, part_of(options.model)));
    if (options.orient)
        for (auto& model : models) model.set_orient(*options.orient);
    require_same_fields(models, options.prediction.num_draws > 0);
    return models;
}

/// Throws for options that models of grids cannot use, and for files that are no grids.
void require_grids(const PredictArguments& options)
{
    if (options.prediction.with_forces)
        throw UsageError("--forces: a regular grid has no surface on which forces act. Leave it out.");
    for (const std::filesystem::path input : options.inputs) {
        if (!is_grid_file(input))
            throw UsageError("{} is no grid, and the model is one of grids: it predicts on .vti, .pvti, .vtr, .pvtr, "
                             ".vtkhdf, .h5, .nc and .zarr.",
                             input.string());
    }
    const std::filesystem::path output = options.output;
    if (output.has_extension() && lower_extension(output) != ".vti" && options.inputs.size() == 1)
        throw UsageError("-o {} must end in .vti: the model is one of grids.", options.output);
}

/// Throws unless the files exist, and are one for all inputs or one for each.
void require_one_or_each(const std::string& option, const std::vector<std::string>& files, std::size_t num_inputs)
{
    for (const auto& file : files) {
        if (!std::filesystem::exists(file)) throw IoError("{} {} does not exist.", option, file);
    }
    if (files.size() > 1 && files.size() != num_inputs)
        throw UsageError("{} is given {} times for {} inputs. Give one for all, or one for each.", option, files.size(),
                         num_inputs);
}

/// Returns the file for an input; empty if none is given.
std::filesystem::path one_for(std::size_t input, const std::vector<std::string>& files)
{
    return files.empty() ? "" : files.size() == 1 ? files.front() : files[input];
}

/// Input and output of each prediction.
using Jobs = std::vector<std::pair<std::filesystem::path, std::filesystem::path>>;

/// @param of_volumes   results in a folder are .vtu, whatever the inputs are
Jobs jobs(const PredictArguments& options, bool of_grids, bool of_volumes = false)
{
    Jobs jobs;
    const std::filesystem::path output = options.output;
    if (const auto& first = options.inputs.front(); options.inputs.size() == 1 && !std::filesystem::exists(first))
        throw IoError("{} does not exist.", first);
    require_one_or_each("--wall", options.walls, options.inputs.size());
    require_one_or_each("--other-part", options.other_parts, options.inputs.size());
    const auto file_types = of_grids ? std::set<std::filesystem::path>{".vti"}
                                     : std::set<std::filesystem::path>{".vtp", ".vtu", ".pvtp", ".pvtu"};
    if (file_types.count(lower_extension(output))) {
        if (options.inputs.size() > 1)
            throw UsageError("-o {} is one file for {} inputs; name a folder.", options.output, options.inputs.size());
        jobs.emplace_back(options.inputs.front(), output);
        return jobs;
    }
    if (output.has_extension() && options.inputs.size() == 1) {
        throw UsageError("-o {} must end in {}, or be a folder.", options.output,
                         of_grids ? ".vti" : ".vtp, .vtu, .pvtp or .pvtu");
    }
    for (const std::filesystem::path input : options.inputs) {
        const bool is_unstructured =
            of_volumes || lower_extension(input) == ".vtu" || lower_extension(input) == ".pvtu";
        auto name = input.stem();
        name += of_grids ? ".vti" : is_unstructured ? ".vtu" : ".vtp";
        for (const auto& [other, taken] : jobs) {
            if (taken == output / name) throw UsageError("two inputs would be written to {}.", taken.string());
        }
        jobs.emplace_back(input, output / name);
    }
    return jobs;
}

/// Throws if an output is an input.
void require_outputs(const PredictArguments& options, const Jobs& jobs, std::span<const Predictor> models)
{
    std::vector<std::filesystem::path> read;
    for (const auto& model : models) read.push_back(model.checkpoint());
    for (const auto* files : {&options.inputs, &options.walls, &options.other_parts})
        read.insert(read.end(), files->begin(), files->end());
    if (!options.table.empty()) read.emplace_back(options.table);
    std::vector<std::filesystem::path> written;
    for (const auto& [input, output] : jobs) written.push_back(output);
    if (!options.csv.empty()) written.emplace_back(options.csv);
    require_outputs(written, read, options.input_as_output);
}

std::string names_of(const std::vector<std::filesystem::path>& files)
{
    std::string names;
    for (const auto& file : files) names += (names.empty() ? "" : ", ") + file.string();
    return names;
}

/// Returns the values for each input: those of its row in the table, others from `--set`.
std::vector<std::map<std::string, double>> values_of_inputs(const PredictArguments& options, const Predictor& model)
{
    std::vector<std::map<std::string, double>> all(options.inputs.size(), options.prediction.values);
    if (options.table.empty()) return all;
    if (!std::filesystem::exists(options.table)) throw IoError("--table {} does not exist.", options.table);
    const auto rows = read_case_table(options.table);
    for (std::size_t i = 0; i < all.size(); ++i) {
        const std::filesystem::path input = options.inputs[i];
        std::vector<std::string> names{input.string(), input.filename().string(), input.stem().string()};
        const auto ids = training_ids(model.data(), input);
        append(names, ids);
        // The table of one set calls its cases without the name of the set.
        for (const auto& id : ids) names.push_back(id.substr(id.find(':') + 1));
        const auto is_there = [&](const auto& one) { return rows.contains(one); };
        const auto name = std::ranges::find_if(names, is_there);
        if (name == names.end())
            throw InvalidInput("--table {} has no row for {}: none has the id '{}'.", options.table, input.string(),
                               c10::Join("', '", std::set(names.begin() + 1, names.end())));
        if (contains(ids, *name) && std::ranges::count_if(ids, is_there) > 1)
            throw InvalidInput("--table {} has rows of several data.sets for {}, '{}'. Give the row that "
                               "is meant the file's name, '{}', as its id.",
                               options.table, input.string(), c10::Join("', '", ids), names[1]);
        for (const auto& [column, text] : rows.at(*name))
            if (const auto number = number_in(text)) all[i][column] = *number;
    }
    return all;
}

/// Joins the first inputs of a list by commas.
std::string some_of(const std::vector<std::filesystem::path>& inputs)
{
    constexpr std::size_t most = 3;
    const std::vector<std::filesystem::path> first(
        inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(std::min(most, inputs.size())));
    return names_of(first) + (inputs.size() > most ? fmt::format(" and {} more", inputs.size() - most) : "");
}

/// Warns before any prediction for which inputs drag and lift cannot be computed, and which values are missing.
void warn_of_missing(const PredictArguments& options, const std::vector<std::map<std::string, double>>& values,
                     const Predictor& model)
{
    std::set<std::string> missing;
    std::vector<std::filesystem::path> inputs;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto of_input = missing_for_forces(model, values[i]);
        if (of_input.empty()) continue;
        missing.insert(of_input.begin(), of_input.end());
        inputs.emplace_back(options.inputs[i]);
    }
    if (inputs.empty()) return;
    warn("predict",
         "no drag and lift of {}: the run does not say {}. Give --set {}=NUMBER for all inputs, "
         "or columns of --table.",
         some_of(inputs), c10::Join(", ", missing), c10::Join("=NUMBER --set ", missing));
}

void print_input(const PredictedInput& one, const std::vector<Predictor>& models)
{
    std::cout << one.output.string() << (models.size() > 1 ? " (models: " : " (model: ");
    for (const auto& model : models)
        std::cout << (&model == &models.front() ? "" : ", ") << model.checkpoint().string();
    std::cout << ")" << std::endl;
    const auto print = [](const std::map<std::string, std::vector<double>>& coefficients, const char* by) {
        for (const auto& [coefficient, values] : coefficients)
            std::cout << "  " << coefficient << " " << MeanOfPredictions(values).text() << " (by " << by << ")"
                      << std::endl;
    };
    print(one.forces.of_head, "the model's head");
    std::string text;
    std::size_t num_predictions = 0;
    for (const auto* name : kForceCoefficients) {
        const auto found = one.forces.of_fields.find(name);
        if (found == one.forces.of_fields.end()) continue;
        num_predictions = found->second.size();
        text += fmt::format("{}{} {}", text.empty() ? "  " : ", ", name, MeanOfPredictions(found->second).text());
    }
    if (!text.empty())
        std::cout << text << (num_predictions > 1 ? fmt::format(" ({} predictions)", num_predictions) : "")
                  << std::endl;
    for (const auto& [name, interval] : one.forces.intervals)
        std::cout << fmt::format("  {}: {:.0f} % of such cases lie within ±{:.2g} (by the validation cases)\n", name,
                                 100 * kCoverage, interval);
    print(one.forces.of_shape, "the shape alone");
}

/// Reads the mesh that is predicted next while another one is computed.
class MeshAhead {
public:
    /// Begins with a file, unless its format is read by libraries that two threads cannot use at once.
    void begin(const std::filesystem::path& file)
    {
        const std::set<std::filesystem::path> own_readers{".vtp", ".vtu", ".stl", ".ply", ".obj"};
        if (own_readers.count(lower_extension(file)))
            ahead_ = std::async(std::launch::async, [file] {
                const KeptWarnings warnings;
                auto mesh = read_mesh(file);
                return std::pair(std::move(mesh), warnings.texts());
            });
    }

    /// Returns what gives the mesh of that file, with the warnings and errors of reading it; empty if none was begun.
    std::function<Mesh()> take()
    {
        if (!ahead_.valid()) return {};
        return [ahead = std::make_shared<decltype(ahead_)>(std::move(ahead_))] {
            auto [mesh, warnings] = ahead->get();
            for (const auto& text : warnings) warn("predict", text);
            return std::move(mesh);
        };
    }

private:
    std::future<std::pair<Mesh, std::vector<std::string>>> ahead_;
};

/// Prints on rank 0 an error that all ranks have found, and returns its code.
int fail_on_all_ranks(const World& world, const std::string& message, int code)
{
    if (world.rank() == 0) std::cerr << "meshard predict: " << message << std::endl;
    return code;
}

}  // namespace

int predict_command(std::span<const std::string> arguments)
{
    PredictArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    say_on_interruption_of("predict", "Nothing is half-written; the same command begins anew.");
    cache_freed_memory();

    // Returns the jobs, and the models of the first one. The output's name suggests whether these are models of grids,
    // so that errors that do not depend on the model are found before one is read.
    const auto predict_steps = [&](World* world) {
        if (!std::filesystem::exists(options.inputs.front()))
            throw IoError("{} does not exist.", options.inputs.front());
        auto models = make_predictors(options, 0);
        if (!models.front().data().series.is_on)
            throw UsageError("--steps: {} learnt no simulation in time (data.series). Leave it out.",
                             models.front().checkpoint().string());
        for (const auto& model : models)
            if (!options.of_samples.empty() && !model.draws_samples())
                throw UsageError("{}: the states of {} follow from the start, and none is drawn. Leave it "
                                 "out, or name runs of dit.",
                                 options.of_samples, model.checkpoint().string());
        require_outputs(options, {{options.inputs.front(), options.output}}, models);
        options.series.forces = options.csv;
        if (!options.csv.empty() && models.front().data().is_grid) require_grids(options);
        if (!world) return require_asked_for(models, options.prediction, options.walls, options.other_parts);
        if (world->rank() == 0)
            for (const auto& doubt : ensemble_warnings(models)) warn("predict", doubt);
        predict_series(models, options.inputs.front(), options.output, options.prediction, options.series, *world);
        if (world->rank() == 0) std::cout << options.output << std::endl;
    };
    const auto begin = [&] {
        const bool looks_like_grids = lower_extension(options.output) == ".vti";
        auto work = jobs(options, looks_like_grids);
        auto models = make_predictors(options, part_of_file(work.front().second));
        if (models.front().data().series.is_on)
            throw UsageError("{} learnt steps of simulations in time. Say with --steps N how many states to "
                             "predict, and write a series, -o NAME.pvd.",
                             models.front().checkpoint().string());
        const bool of_grids = models.front().data().is_grid;
        if (of_grids) require_grids(options);
        // Of runs that have both parts the input's type tells which one is meant.
        const auto& first = options.runs.empty() ? options.model : options.runs.front();
        const bool of_volumes = !of_grids && models.front().data().in_volume && num_trained_parts(first) == 1;
        if (of_grids != looks_like_grids || of_volumes) work = jobs(options, of_grids, of_volumes);
        require_outputs(options, work, models);
        return std::pair(std::move(work), std::move(models));
    };
    const auto verify = [&](int) {
        if (options.series.num_steps > 0) return predict_steps(nullptr);
        auto [work, models] = begin();
        std::set<std::size_t> parts{part_of_file(work.front().second)};
        for (const auto& [input, output] : work) {
            if (const auto part = part_of_file(output); parts.insert(part).second)
                std::ranges::move(make_predictors(options, part), std::back_inserter(models));
        }
        // Where inputs are surfaces and volumes, the models of one or the other must ask for what is told.
        require_asked_for(models, options.prediction, options.walls, options.other_parts);
    };
    const auto body = [&](World& world) {
        if (options.series.num_steps > 0) {
            predict_steps(&world);
            return exit_code::ok;
        }
        auto [work, models] = begin();
        auto part = part_of_file(work.front().second);
        if (world.rank() == 0) {
            for (const auto& note : models.front().notes()) warn("predict", note);
            for (const auto& doubt : ensemble_warnings(models)) warn("predict", doubt);
        }
        if (!world.device().is_cpu()) {
            const auto where = device_text(world, DeviceMesh::create(world, {world.size()}, {"domain"})->all());
            if (world.rank() == 0) std::cerr << "meshard predict: " << where << std::endl;
        }
        const auto values = values_of_inputs(options, models.front());
        auto told = requested_names(models, options.prediction.with_forces);
        std::erase_if(told, [&](const auto& name) {
            return std::ranges::none_of(values, [&](const auto& of_input) { return of_input.contains(name); });
        });
        if (options.prediction.with_forces && world.rank() == 0) warn_of_missing(options, values, models.front());
        std::vector<PredictedInput> rows;
        std::vector<std::filesystem::path> unusable;
        std::map<std::string, std::vector<std::filesystem::path>> without_forces;  // inputs by the reason
        MeshAhead ahead;
        for (std::size_t i = 0; i < work.size(); ++i) {
            const auto& [input, output] = work[i];
            if (work.size() > 1)
                say_on_interruption_of("predict",
                                       fmt::format("{} of {} inputs are predicted, in {}. Go on with {}{}",
                                                   i - unusable.size(), work.size(), options.output, input.string(),
                                                   i + 1 < work.size() ? " and those after it." : ", the last one."));
            if (part_of_file(output) != part) {
                part = part_of_file(output);
                models = make_predictors(options, part);
            }
            auto how = options.prediction;
            how.values = values[i];
            how.wall = one_for(i, options.walls);
            how.other_part = one_for(i, options.other_parts);
            auto& row = rows.emplace_back(PredictedInput{input, output, {}, {}, {}, {}});
            for (const auto& [column, value] : values[i])
                if (told.contains(column)) row.values[column] = value;
            const auto read = ahead.take();
            const bool of_grids = models.front().data().is_grid;
            if (world.rank() == 0 && !of_grids && i + 1 < work.size()) ahead.begin(work[i + 1].first);
            KeptWarnings warnings(true);
            try {
                if (of_grids)
                    predict_grid(models, input, output, how, world);
                else
                    row.forces = predict_file(models, input, output, how, world, read);
                row.warnings = warnings.texts();
            } catch (const UnusableInput& error) {
                if (work.size() == 1) return fail_on_all_ranks(world, error.what(), error.exit_code());
                if (world.rank() == 0) warn("predict", "{} {} is left out.", error.what(), input.string());
                unusable.push_back(input);
                row.output.clear();
                row.note = error.what();
                row.forces = {};
            }
            if (world.rank() != 0) continue;
            if (how.with_forces && row.note.empty() && row.forces.of_fields.empty()) {
                row.note = row.forces.why;
                if (missing_for_forces(models.front(), how.values).empty()) without_forces[row.note].push_back(input);
            }
            if (!row.output.empty() && !options.json) print_input(row, models);
            if (options.csv.empty()) continue;
            const MadeFolders folders(options.csv);
            write_file_atomically(options.csv, to_csv(rows, {told.begin(), told.end()}));
        }
        for (const auto& [why, inputs] : without_forces)
            warn("predict", "{}: no drag and lift: {}.", some_of(inputs), why);
        if (options.json && world.rank() == 0) print_json(to_json(rows, models));
        if (unusable.empty()) return exit_code::ok;
        return fail_on_all_ranks(
            world,
            fmt::format("{} of {} inputs could not be predicted: {}{}", unusable.size(), work.size(),
                        names_of(unusable),
                        unusable.size() < work.size() ? fmt::format(". The others are in {}.", options.output) : "."),
            exit_code::input);
    };
    return run_on_ranks(options.ranks, "predict", arguments, verify, body, options.device);
}

}  // namespace meshard
