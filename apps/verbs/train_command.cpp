// SPDX-License-Identifier: Apache-2.0
// meshard train: trains a model as a configuration says, and writes a run folder with checkpoints and metrics.
#include "apps/console/console.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/cases/case_list.h"
#include "apps/learning/report/report.h"
#include "apps/learning/settings/run_record.h"
#include "apps/learning/settings/settings.h"
#include "apps/learning/settings/training_config.h"
#include "apps/learning/training/training.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"
#include "apps/program/version.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/file_lock.h"
#include "io/bytes/interruption.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <unistd.h>
#include <utility>

namespace meshard {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int)
{
    if (is_further_wish_to_end()) _exit(exit_code::interrupted);
    stop_requested = 1;
}

struct TrainArguments {
    std::string config;
    std::vector<std::string> overrides;
    LocalRanks ranks;
    std::string resume, device;
    bool validate = false;
    bool print_config = false;
    bool print_plan = false;
    bool list_keys = false;
    bool overwrite = false;
    bool verify_sources = false;
    bool accepts_data = false;
    std::int64_t profile_steps = 0;
};

bool parse(std::span<const std::string> arguments, TrainArguments& options)
{
    CLI::App app(
        "Trains a model on the cases of a folder: cuts them into shards, distributes each case over the ranks, and "
        "writes\n"
        "checkpoints and metrics to OUTPUT_DIR/RUN_ID. Settings are read from the file, then from key=value words.",
        "train");
    std::vector<std::string> words;
    add_named(app, "config", words, "CONFIG.yaml [key=value|~key ...]",
              "configuration (YAML), then settings that override it, e.g. training.num_epochs=20; ~key removes one");
    add_named(app, "--device", options.device, "NAME", std::string(kDeviceMeaning) + " (key device)");
    add_rank_options(app, options.ranks);
    add_named(app, "--resume", options.resume, "RUN_DIR",
              "continue this run from its last checkpoint; key=value words become part of its settings");
    app.add_flag("--validate", options.validate,
                 "check the configuration, build the model and read one case; no training");
    app.add_flag("--print-plan", options.print_plan,
                 "read one case as --validate does, print the plan (model, ranks, points, memory, the form of each "
                 "block), and end");
    app.add_flag("--print-config", options.print_config, "print every setting with its source, and end");
    app.add_flag("--list-keys", options.list_keys, "print every key with its default and meaning, and end");
    app.add_flag("--overwrite", options.overwrite, "replace an earlier run of the same name");
    add_named(app, "--profile", options.profile_steps, "STEPS",
              "trace this many steps after the first, a file a rank (RUN_DIR/profile/rank_0.json), and print what "
              "their time went into")
        ->check(CLI::PositiveNumber);
    app.add_flag("--verify-sources", options.verify_sources,
                 "read every source completely, to check that cached shards are still those of it");
    app.add_flag(
        "--accept-data", options.accepts_data,
        "train although the data contradict themselves (forces, kinds, signs, cases in two splits), or changed "
        "since the run began");
    if (!parse_arguments(app, arguments)) return false;

    if (options.resume.empty() && !words.empty()) {
        options.config = words.front();
        words.erase(words.begin());
    }
    options.overrides = words;
    if (!options.device.empty()) {
        for (const auto& word : words) {
            if (word.starts_with("device=") && word != "device=" + options.device)
                throw UsageError("--device {} and {} contradict each other. Leave one out.", options.device, word);
        }
        options.overrides.push_back("device=" + options.device);
    }
    if (options.config.empty() && options.resume.empty() && !options.list_keys)
        throw UsageError("the configuration is missing. Give CONFIG.yaml.");
    return true;
}

std::string command_line(std::span<const std::string> arguments)
{
    std::string command = "meshard train";
    for (const auto& word : arguments) command += " " + word;
    return command + "\n";
}

/// Prints the keys of the file that are not used, because the command line names another model than theirs.
void say_dropped(const std::vector<std::string>& keys, const std::string& model)
{
    if (keys.empty()) return;
    std::cerr << "meshard train: model.name=" << model << " stands on the command line, and " << model << " has no";
    for (const auto& key : keys) std::cerr << (key == keys.front() ? " " : ", ") << key;
    std::cerr << ": not used\n";
}

/// Warns of keys that do nothing beside the others.
void say_without_effect(const Settings& settings, const std::string& model)
{
    const auto keys = keys_without_effect(settings, training_rules(model));
    if (!keys.empty()) warn("train", "without effect: {}.", fmt::join(keys, ", "));
}

/// Writes the files that record how a run was started.
void write_records(const TrainArguments& options, std::span<const std::string> arguments, const Settings& settings,
                   const std::filesystem::path& dir)
{
    write_file_atomically(dir / "command.txt", command_line(arguments));
    write_run_settings(dir, settings);
    std::string versions = fmt::format("meshard {}\n", program_version());
    for (const auto& [name, version] : library_versions()) versions += fmt::format("{} {}\n", name, version);
    write_file_atomically(dir / "version.txt", versions);
    std::ostringstream config;
    config << std::ifstream(options.config).rdbuf();
    write_file_atomically(dir / "config.yaml", config.str());
}

/// Updates these files when a run is resumed: new settings are kept for the next `--resume`, too.
void add_to_records(std::span<const std::string> arguments, const Settings& settings, bool is_changed,
                    const std::filesystem::path& dir)
{
    std::ostringstream commands;
    commands << std::ifstream(dir / "command.txt").rdbuf();
    write_file_atomically(dir / "command.txt", commands.str() + command_line(arguments));
    if (is_changed) write_run_settings(dir, settings);
}

bool has_trained(const std::filesystem::path& dir)
{
    std::error_code error;
    if (std::filesystem::exists(dir / "checkpoints") && !std::filesystem::is_empty(dir / "checkpoints", error))
        return true;
    std::ifstream metrics(dir / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
        if (line.find("\"train_step\"") != std::string::npos) return true;
    }
    return false;
}

/// Removes files that a killed process had begun to write. The caller holds the folder's lock.
void remove_half_written(const std::filesystem::path& dir)
{
    for (const auto& folder : {dir, dir / "checkpoints"}) {
        std::error_code error;
        std::vector<std::filesystem::path> found;
        for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
            if (entry.is_regular_file(error) && entry.path().filename().string().find(".partial") != std::string::npos)
                found.push_back(entry.path());
        }
        for (const auto& path : found) std::filesystem::remove(path, error);  // files that cannot be removed do no harm
    }
}

/// Removes what was written about a run: tables of its cases, reports, events.
void remove_judgements(const std::filesystem::path& dir)
{
    for (const char* folder : {"evaluation", "profile", "report", "tensorboard"})
        std::filesystem::remove_all(dir / folder);
    for (const std::string split : {"val", "test"}) {
        for (const char* end : {"_cases.csv", "_volume_cases.csv", "_rollout.csv"})
            std::filesystem::remove(dir / (split + end));
    }
}

/// Makes and locks a run's folder: no other process can train into it while this object exists. Files of an earlier run
/// are removed or refused.
class RunFolder {
public:
    /// @param removes   whether an earlier run's files are removed, or only checked
    /// @throws IoError if it cannot be written, another process trains into it, or it has a run that is neither resumed
    ///         nor overwritten.
    RunFolder(const TrainArguments& options, const std::filesystem::path& dir, bool removes)
        : lock_(made_and_locked(options, dir))
    {
        if (options.resume.empty()) replace(options, dir, removes);
        remove_half_written(dir);
    }

private:
    static FileLock made_and_locked(const TrainArguments& options, const std::filesystem::path& dir)
    {
        if (options.overwrite && !options.resume.empty())
            throw UsageError("--overwrite and --resume exclude each other.");
        std::error_code error;
        std::filesystem::create_directories(dir, error);
        if (error || access(dir.c_str(), W_OK | X_OK) != 0) {
            throw IoError("the run's folder {} cannot be made or written{}. Choose another output_dir.", dir.string(),
                          error ? ": " + error.message() : "");
        }
        auto lock = FileLock::try_acquire(dir);
        if (!lock)
            throw IoError("the run {} is being trained by another process. Wait for its end, or choose another run_id.",
                          dir.string());
        return std::move(*lock);
    }

    static void replace(const TrainArguments& options, const std::filesystem::path& dir, bool removes)
    {
        if (!options.overwrite && has_trained(dir)) {
            const bool can_go_on = std::filesystem::exists(dir / "checkpoints" / "last.safetensors");
            throw IoError("the run {} exists{} it (--overwrite), or choose another run_id.", dir.string(),
                          can_go_on ? fmt::format(". Continue it (--resume {}), replace", dir.string())
                                    : ", with steps but no checkpoint. Replace");
        }
        if (!removes) return;
        if (!options.overwrite && std::filesystem::exists(dir / "metrics.jsonl"))
            std::cerr << "meshard train: the run " << dir.string()
                      << " was begun before and has no checkpoint: it begins anew" << std::endl;
        // These are files of a run that is replaced, or that ended before its first step.
        if (options.overwrite || std::filesystem::exists(dir / "metrics.jsonl")) remove_judgements(dir);
        std::filesystem::remove(dir / "metrics.jsonl");
        const auto checkpoints = dir / "checkpoints";
        if (!std::filesystem::is_symlink(checkpoints)) {
            std::filesystem::remove_all(checkpoints);
            return;
        }
        std::error_code leads_nowhere;
        // The link itself stays.
        for (const auto& entry : std::filesystem::directory_iterator(checkpoints, leads_nowhere))
            std::filesystem::remove_all(entry);
    }

    FileLock lock_;
};

}  // namespace

int train_command(std::span<const std::string> arguments)
{
    TrainArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    if (options.list_keys) {
        std::cout << describe(training_rules());
        return exit_code::ok;
    }
    const bool is_changed = !options.overrides.empty();
    if (!options.resume.empty()) {
        for (const auto& word : options.overrides)
            if (word.starts_with("run_id=") || word.starts_with("output_dir="))
                throw UsageError("{}: --resume goes on in the folder that it names, {}. Leave it out; to go "
                                 "on elsewhere, copy the folder and resume the copy.",
                                 word, options.resume);
        options.config = (std::filesystem::path(options.resume) / "resolved_config.yaml").string();
        // The folder may have been moved, so its current path is used.
        const auto dir = std::filesystem::absolute(options.resume).lexically_normal();
        const auto named = dir.filename().empty() ? dir.parent_path() : dir;
        options.overrides.insert(options.overrides.begin(),
                                 {"run_id=" + named.filename().string(), "output_dir=" + named.parent_path().string()});
        if (!std::filesystem::exists(named / "checkpoints" / "last.safetensors")) {
            throw IoError("{} has no checkpoints/last.safetensors from which to continue.", options.resume);
        }
    }
    std::vector<std::string> dropped;
    const auto settings = options.resume.empty() ? read_training_settings(options.config, options.overrides, &dropped)
                                                 : read_run_settings(options.resume, options.overrides, &dropped);
    const auto config = training_config(settings);
    if (options.print_config) {
        say_dropped(dropped, config.model.name);
        std::cout << settings.to_yaml(true);
        return exit_code::ok;
    }
    const auto cases = find_cases(config);
    add_facts(settings.facts());
    add_facts(cases.facts());
    cache_freed_memory();
    say_on_interruption_of(
        "train", fmt::format("Cases that are cut and stored stay in {}; the same command goes on with the others.",
                             config.data.shards.string()));
    // Ranks that are started here inherit the variable.
    if (config.backend != "auto") setenv("MESHARD_BACKEND", config.backend.c_str(), 1);

    const bool is_trial = options.validate || options.print_plan;
    const auto verify = [&](int num_ranks) {
        mesh_shape(config, num_ranks);
        if (!is_trial) RunFolder(options, config.run_dir(), false);
    };
    const auto body = [&](World& world) {
        mesh_shape(config, world.size());
        if (world.rank() == 0) {
            say_dropped(dropped, config.model.name);
            say_without_effect(settings, config.model.name);
        }
        std::optional<RunFolder> folder;
        if (world.rank() == 0 && !is_trial) {
            folder.emplace(options, config.run_dir(), true);  // ranks started by a launcher get here without `verify`
            if (options.resume.empty()) write_records(options, arguments, settings, config.run_dir());
        }
        // Before the first step an interruption ends the program at once: there is nothing to save.
        const auto before_first_step = [&] {
            handle_interruption(request_stop);
            throw_if_interrupted();
            if (!options.resume.empty() && world.rank() == 0)
                add_to_records(arguments, settings, is_changed, config.run_dir());
        };
        const auto after_last_step = [&] {
            if (!config.writes_report) return;
            const auto folder = std::filesystem::absolute(config.run_dir()) / "report";
            write_report({.runs = {config.run_dir()}}, folder, world);
            if (world.rank() == 0) std::cerr << "report: " << (folder / "report.html").string() << std::endl;
        };
        const TrainingStart start{!options.resume.empty(), options.validate,      options.print_plan,
                                  options.verify_sources,  options.profile_steps, before_first_step,
                                  after_last_step,         options.accepts_data};
        return train(config, cases, start, world, stop_requested) ? exit_code::ok : exit_code::interrupted;
    };
    // A reader of the messages (`| tee run.log`) may be ended first by the same Ctrl-C; the checkpoint must still be
    // written.
    std::signal(SIGPIPE, SIG_IGN);
    return run_on_ranks(options.ranks, "train", arguments, verify, body, config.device);
}

}  // namespace meshard
