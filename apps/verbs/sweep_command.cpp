// meshard sweep: trains one configuration with other settings, folds and seeds, and compares the runs in a table.
#include "apps/console/repeated_times.h"
#include "apps/console/text_table.h"
#include "apps/learning/settings/run_record.h"
#include "apps/learning/settings/training_config.h"
#include "apps/learning/sweep/child_program.h"
#include "apps/learning/sweep/run_results.h"
#include "apps/learning/sweep/sweep_plan.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/file_lock.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

namespace meshard {
namespace {

struct SweepArguments {
    ConfigWords config;
    std::vector<GridKey> grid;
    std::int64_t num_folds = 0;
    std::int64_t num_seeds = 1;
    std::string budget;
    double seconds = 0;  // 0: no limit
    std::string output;
    std::string device;
    LocalRanks ranks;
    bool accepts_data = false;
    bool is_dry = false;
};

bool parse(std::span<const std::string> arguments, SweepArguments& options)
{
    CLI::App app("Trains a configuration with each place of a grid of settings, on each fold and with each seed, one "
                 "run after the other, and\n"
                 "compares their last validations: mean and spread over folds and seeds. The cases of the test split "
                 "are in no run. The same\n"
                 "command again goes on where the last one ended.",
                 "sweep");
    std::vector<std::string> grid;
    add_config_option(app, options.config,
                      "configuration of `meshard train` (YAML), then settings that override it in all runs, e.g. "
                      "training.num_epochs=20");
    add_named(app, "-o,--output", options.output, "DIR", "folder of the runs, of sweep.json and sweep.csv")->required();
    add_named(app, "--grid", grid, "KEY=[VALUE, ...]",
              "key and its values, e.g. 'training.optimizer.lr=[1e-3, 3e-3]'; may be repeated: every combination "
              "is a place of the grid")
        ->allow_extra_args(false);
    add_named(app, "--folds", options.num_folds, "K",
              "deal the cases of train and val anew into so many folds, each of which is the validation once")
        ->check(CLI::Range(2, 1000000))
        ->default_str("the split as it is");
    add_shown(app, "--seeds", options.num_seeds, "N", "runs with different seeds, from the configuration's seed on")
        ->check(CLI::Range(1, 1000000));
    add_named(app, "--budget", options.budget, "TIME", "time after which no run goes on, e.g. 90s, 60m, 1.5h")
        ->default_str("any");
    add_named(app, "--device", options.device, "NAME", "as `meshard train` takes it");
    add_rank_options(app, options.ranks, "ranks of each run, started on this machine");
    app.add_flag("--accept-data", options.accepts_data, "as `meshard train` takes it");
    app.add_flag("--dry-run", options.is_dry, "list the runs, and end");
    if (!parse_arguments(app, arguments)) return false;
    for (const auto& word : grid) options.grid.push_back(grid_key(word));
    for (std::size_t i = 0; i < options.grid.size(); ++i) {
        for (std::size_t k = 0; k < i; ++k) {
            if (options.grid[i].key == options.grid[k].key)
                throw UsageError("--grid names {} twice. Give all its values at once.", options.grid[i].key);
        }
    }
    if (!options.budget.empty()) options.seconds = seconds_of(options.budget);
    return true;
}

/// Writes a list of texts in YAML.
std::string yaml_list(const std::vector<std::string>& texts)
{
    std::string list;
    for (const auto& text : texts) {
        std::string quoted;
        for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
        list += (list.empty() ? "'" : ", '") + quoted + "'";
    }
    return "[" + list + "]";
}

std::string content_of(const std::filesystem::path& file)
{
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
}

/// Records the sweep in its folder. Throws if the folder has another sweep's runs, with another configuration, other
/// settings, folds or cases.
void claim_folder(const SweepArguments& options, const std::vector<SweepRun>& runs, const std::filesystem::path& folder)
{
    std::string text = fmt::format("config: {}\n{}\n", options.config.file(), content_of(options.config.file()));
    for (const auto& word : options.config.overrides()) text += fmt::format("setting: {}\n", word);
    text += fmt::format("folds: {}\n", options.num_folds);
    for (const auto& run : runs) {
        if (run.seed == runs.front().seed && run.point == runs.front().point)
            text += fmt::format("val: {}, train: {}\n", yaml_list(run.val), yaml_list(run.train));
    }
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
        throw IoError("the folder of the sweep, {}, cannot be made: {}. Choose another with -o.", folder.string(),
                      error.message());
    const auto record = folder / "sweep.txt";
    if (!std::filesystem::exists(record)) {
        if (!std::filesystem::is_empty(folder))
            throw UsageError("{} holds files, and no sweep. Name a new folder with -o.", folder.string());
        write_file_atomically(record, text);
    } else if (content_of(record) != text) {
        throw UsageError("{} holds a sweep of another configuration, other settings, folds or cases "
                         "(sweep.txt). Name another folder with -o; "
                         "grid, seeds and budget may change.",
                         folder.string());
    }
}

/// Returns whether a word of the command line sets or removes the split, which the sweep itself chooses in each run.
bool is_of_split(const std::string& word)
{
    const auto path = word.substr(word.starts_with("~") ? 1 : 0);
    const auto key = path.substr(0, path.find('=')) + ".";
    return key.starts_with("data.split.") || (key.starts_with("data.sets.") && key.find(".split.") != key.npos);
}

/// Returns the words of all runs: those of the command line, without the splits of the data and of its sets, and the
/// folder of the cut cases, which the runs share.
std::vector<std::string> words_of_all(std::vector<std::string> words, const Settings& settings,
                                      const std::filesystem::path& folder)
{
    std::vector<std::string> splits{"data.split"};
    for (const auto& name : settings.names_below("data.sets")) splits.push_back("data.sets." + name + ".split");
    for (const auto& split : splits) {
        bool is_said = false;
        for (const auto& one : settings.all()) {
            if (!one.path.starts_with(split + ".")) continue;
            is_said = true;
            if (one.source == "command line")
                settings.refuse(one.path, "stands within a group, and a sweep chooses the split itself. Give the "
                                          "group's other keys one by one, e.g. data.sets.NAME.root=...");
        }
        if (is_said) words.push_back("~" + split);
    }
    if (!settings.has("data.shards")) words.push_back("data.shards=" + (folder / "shards").string());
    return words;
}

/// Returns the words that say the settings of a run, those of all runs first.
std::vector<std::string> setting_words(const SweepRun& run, std::vector<std::string> words,
                                       const std::filesystem::path& folder)
{
    append(words, run.words);
    words.insert(words.end(),
                 {"data.split.train=" + yaml_list(run.train), "data.split.val=" + yaml_list(run.val),
                  "seed=" + std::to_string(run.seed), "run_id=" + run.name, "output_dir=" + folder.string()});
    return words;
}

/// Refuses the folder of a run that has other settings than the sweep would give it: names of folders have the last
/// words of keys only, and letters that suit a file.
/// @param words   that say the settings
void require_same_settings(const SweepArguments& options, const std::filesystem::path& dir,
                           const std::vector<std::string>& words)
{
    if (!std::filesystem::exists(dir / "resolved_config.yaml")) return;
    const auto is_compared = [](const std::string& key) {
        return key != "training.max_minutes" && key != "output_dir" && key != "device";
    };
    const auto planned = read_training_settings(options.config.file(), words).facts(),
               made = read_run_settings(dir).facts();
    for (const auto& facts : {planned, made}) {
        for (const auto& [key, value] : facts) {
            const auto value_in = [&key](const Facts& those) {
                const auto found = std::ranges::find_if(those, [&](const auto& fact) { return fact.first == key; });
                return found == those.end() ? "not set" : found->second;
            };
            if (!is_compared(key) || value_in(planned) == value_in(made)) continue;
            throw UsageError("{} holds a run of another sweep: its {} is {}, and this sweep's would be {}. "
                             "Name another folder with -o.",
                             dir.string(), key, value_in(made), value_in(planned));
        }
    }
}

/// Returns the words of `meshard train` that begin or continue a run.
/// @param common    words of all runs that say the settings
/// @param minutes   time after which the run stops and can be continued; 0: no limit
std::vector<std::string> words_of(const SweepArguments& options, const SweepRun& run,
                                  const std::vector<std::string>& common, const std::filesystem::path& folder,
                                  double minutes)
{
    std::vector<std::string> words{"train"};
    const auto dir = folder / run.name;
    const bool goes_on = std::filesystem::exists(dir / "checkpoints" / "last.safetensors");
    if (goes_on) {
        words.insert(words.end(), {"--resume", dir.string()});
    } else {
        words.insert(words.end(), {options.config.file(), "--overwrite"});
        const auto settings = setting_words(run, common, folder);
        append(words, settings);
    }
    // A continued run had another limit.
    if (minutes > 0 || goes_on) words.push_back("training.max_minutes=" + std::to_string(minutes));
    if (!options.device.empty()) words.insert(words.end(), {"--device", options.device});
    if (options.ranks.number > 0) words.insert(words.end(), {"--nproc", std::to_string(options.ranks.number)});
    if (options.ranks.oversubscribes) words.emplace_back("--oversubscribe");
    if (options.accepts_data) words.emplace_back("--accept-data");
    return words;
}

std::string last_line_of(const std::filesystem::path& log)
{
    std::ifstream stream(log);
    std::string last;
    for (std::string line; std::getline(stream, line);) {
        if (!line.empty()) last = line;
    }
    return last;
}

void say_result(const SweptRun& swept, std::size_t index, std::size_t count)
{
    std::cout << "[" << index + 1 << "/" << count << "] " << swept.run.name << ": " << swept.state;
    if (swept.result) {
        std::cout << ", val rel_l2 " << number_text(swept.result->error);
        if (swept.result->drag_error) std::cout << ", Cd mae " << number_text(*swept.result->drag_error);
        std::cout << ", " << fixed_text(swept.result->seconds, 1) << " s in steps";
    }
    std::cout << std::endl;
}

}  // namespace

int sweep_command(std::span<const std::string> arguments)
{
    SweepArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    check_local_ranks(options.ranks);
    const auto config_of = [&options](const std::vector<std::string>& place) {
        std::vector<std::string> words;
        append(words, options.config.overrides());
        append(words, place);
        return training_config(read_training_settings(options.config.file(), words));
    };
    std::vector<std::string> first_place;
    for (const auto& one : options.grid) first_place.push_back(one.key + "=" + one.values.front());
    const auto config = config_of(first_place);
    // Words of the command line may replace the file's split, which each run must remove nevertheless.
    std::vector<std::string> without_split;
    std::ranges::copy_if(options.config.overrides(), std::back_inserter(without_split),
                         [](const auto& word) { return !is_of_split(word); });
    const auto of_file = read_training_settings(options.config.file(), without_split);
    const auto runs = sweep_runs(find_cases(config), options.grid, options.num_folds, options.num_seeds, config.seed);
    for (const auto& run : runs) {  // a place that no run can take is an error before the first run
        if (run.seed == runs.front().seed && run.fold == runs.front().fold) config_of(run.words);
    }
    if (options.is_dry) {
        for (const auto& run : runs) {
            std::cout << run.name << ": " << run.train.size() << " train, " << run.val.size() << " val";
            for (const auto& word : run.words) std::cout << ", " << word;
            std::cout << "\n";
        }
        return exit_code::ok;
    }
    const auto folder = std::filesystem::absolute(options.output).lexically_normal();
    const auto common = words_of_all(std::move(without_split), of_file, folder);
    claim_folder(options, runs, folder);
    const auto lock = FileLock::try_acquire(folder);
    if (!lock) throw IoError("another process works on the sweep {}. Wait for its end.", folder.string());

    for (const auto& run : runs) require_same_settings(options, folder / run.name, setting_words(run, common, folder));

    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] { return seconds_since(start); };
    std::vector<SweptRun> swept;
    for (const auto& run : runs) swept.push_back({.run = run, .result = {}});
    const auto write_tables = [&] {
        const auto table = sweep_csv(swept),
                   numbers =
                       sweep_json(swept).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
        write_files_atomically(
            std::array{FileContent{folder / "sweep.csv", table}, FileContent{folder / "sweep.json", numbers}});
    };
    bool has_reached_time_limit = false, has_failed = false;
    for (std::size_t i = 0; i < swept.size(); ++i) {
        auto& one = swept[i];
        const auto dir = folder / one.run.name;
        one.result = result_of(dir);
        if (!one.result) {
            const auto left = options.seconds - seconds();
            has_reached_time_limit = has_reached_time_limit || (options.seconds > 0 && left <= 0);
            if (has_reached_time_limit) continue;
            const auto own = config.training.max_minutes;  // the configuration may limit a run, too
            auto minutes = options.seconds > 0 ? std::max(0.01, left / 60) : own;
            if (own > 0) minutes = std::min(minutes, own);
            auto log = dir;
            log += ".log";
            const auto code = run_child_program(words_of(options, one.run, common, folder, minutes), log);
            one.result = result_of(dir);
            one.state = one.result                                                ? "done"
                        : code == exit_code::ok || code == exit_code::interrupted ? "stopped"
                                                                                  : "failed";
            say_result(one, i, swept.size());
            write_tables();
            if (is_asked_to_end() || code == exit_code::interrupted) return exit_code::interrupted;
            if (one.state == "failed") {
                has_failed = true;
                std::cerr << "meshard sweep: warning: " << one.run.name << " has ended with " << code << ": "
                          << last_line_of(log) << std::endl;
                if (code == exit_code::usage || code == exit_code::input)
                    throw Error("a run was refused; its messages are in {}.", log.string());
            }
        } else {
            one.state = "done";
            say_result(one, i, swept.size());
        }
    }
    write_tables();
    std::cout << sweep_text(swept) << "all numbers: " << (folder / "sweep.json").string()
              << ", a line a run: " << (folder / "sweep.csv").string() << std::endl;
    const auto num_done = std::ranges::count_if(swept, [](const auto& one) { return one.result.has_value(); });
    const auto can_go_on = [](const auto& one) { return one.state == "stopped" || one.state == "waiting"; };
    if (std::ranges::any_of(swept, can_go_on)) {
        if (options.seconds > 0 && seconds() >= options.seconds)
            std::cout << "the budget of " << options.budget << " is used up: ";
        std::cout << num_done << " of " << swept.size() << " runs are done; the same command goes on" << std::endl;
    }
    return has_failed ? exit_code::check_failed : exit_code::ok;
}

}  // namespace meshard
