// SPDX-License-Identifier: Apache-2.0
// meshard train: a configuration -> a run folder with checkpoints and metrics.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "apps/case_list.h"
#include "apps/command_line.h"
#include "apps/rank_program.h"
#include "apps/settings.h"
#include "apps/training.h"
#include "apps/training_config.h"
#include "apps/verbs.h"
#include "apps/version.h"
#include "io/atomic_file.h"

namespace meshard {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int)
{
    if (stop_requested) _exit(exit_code::interrupted);   // the second time: at once
    stop_requested = 1;
}

struct TrainArguments {
    std::string config;
    std::vector<std::string> overrides;
    int num_ranks = 0;
    std::string resume;
    bool validate = false;
    bool print_config = false;
    bool list_keys = false;
    bool overwrite = false;
};

bool parse(std::span<const std::string> arguments, TrainArguments& options)
{
    CLI::App app("Trains a model on the cases of a folder: cuts them into shards, spreads each case over the ranks, and leaves\n"
                 "checkpoints and metrics in OUTPUT_DIR/RUN_ID. Settings come from the file, then from key=value words.",
                 "train");
    std::vector<std::string> words;
    app.add_option("config", words, "configuration (YAML), then settings that replace its own, e.g. training.num_epochs=20; ~key removes one")
        ->type_name("CONFIG.yaml [key=value|~key ...]");
    app.add_option("--nproc", options.num_ranks, "start this many ranks on this machine (torchrun, mpirun and srun work too)")
        ->check(CLI::PositiveNumber)->type_name("N");
    app.add_option("--resume", options.resume, "go on with this run, from its last checkpoint")->type_name("RUN_DIR");
    app.add_flag("--validate", options.validate, "check the configuration, build the model and read one case; no training");
    app.add_flag("--print-config", options.print_config, "print every setting with its source, and end");
    app.add_flag("--list-keys", options.list_keys, "print every key with its default and meaning, and end");
    app.add_flag("--overwrite", options.overwrite, "replace an earlier run of the same name");
    if (!parse_arguments(app, arguments)) return false;

    if (options.resume.empty() && !words.empty()) {
        options.config = words.front();
        words.erase(words.begin());
    }
    options.overrides = words;
    if (options.config.empty() && options.resume.empty() && !options.list_keys) throw UsageError("which configuration? Give CONFIG.yaml.");
    return true;
}

/// Files that say how a run came about, beside its results.
void write_records(const TrainArguments& options, std::span<const std::string> arguments, const Settings& settings, const std::filesystem::path& dir)
{
    std::string command = "meshard train";
    for (const auto& word : arguments) command += " " + word;
    write_file_atomically(dir / "command.txt", command + "\n");
    write_file_atomically(dir / "resolved_config.yaml", settings.to_yaml(true));
    std::string versions = "meshard " + program_version() + "\n";
    for (const auto& [name, version] : library_versions()) versions += name + " " + version + "\n";
    write_file_atomically(dir / "version.txt", versions);
    std::filesystem::copy_file(options.config, dir / "config.yaml", std::filesystem::copy_options::overwrite_existing);
}

/// Makes the run's folder. An earlier run is never mixed with a new one.
void prepare_run_dir(const TrainArguments& options, const std::filesystem::path& dir)
{
    if (options.overwrite && !options.resume.empty()) throw UsageError("--overwrite and --resume exclude each other.");
    if (options.resume.empty()) {   // what is left here is of a run that is replaced, or that never came to its first step
        std::filesystem::remove(dir / "metrics.jsonl");
        std::filesystem::remove_all(dir / "checkpoints");
    }
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    if (error || access(dir.c_str(), W_OK | X_OK) != 0) {
        throw IoError("the run's folder " + dir.string() + " cannot be made or written" + (error ? ": " + error.message() : "") + ". Set output_dir to another.");
    }
}

bool has_trained(const std::filesystem::path& dir)
{
    if (std::filesystem::exists(dir / "checkpoints")) return true;
    std::ifstream metrics(dir / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
        if (line.find("\"train_step\"") != std::string::npos) return true;
    }
    return false;
}

void refuse_existing_run(const TrainArguments& options, const std::filesystem::path& dir)
{
    if (options.overwrite || !options.resume.empty() || options.validate) return;
    if (!has_trained(dir)) return;
    throw IoError("the run " + dir.string() + " exists. Go on with it (--resume " + dir.string() +
                  "), replace it (--overwrite), or choose another run_id.");
}

}  // namespace

int train_command(std::span<const std::string> arguments)
{
    TrainArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    if (options.list_keys) {
        std::cout << describe(training_rules());
        return exit_code::ok;
    }
    if (!options.resume.empty()) {
        options.config = (std::filesystem::path(options.resume) / "resolved_config.yaml").string();
        // The folder may have been moved since: where it lies now counts.
        const auto dir = std::filesystem::absolute(options.resume).lexically_normal();
        const auto named = dir.filename().empty() ? dir.parent_path() : dir;
        options.overrides.insert(options.overrides.begin(), {"run_id=" + named.filename().string(), "output_dir=" + named.parent_path().string()});
        if (!std::filesystem::exists(named / "checkpoints" / "last.safetensors")) {
            throw IoError(options.resume + " has no checkpoints/last.safetensors to go on from.");
        }
    }
    const auto settings = read_training_settings(options.config, options.overrides);
    const auto config = training_config(settings);
    if (options.print_config) {
        std::cout << settings.to_yaml(true);
        return exit_code::ok;
    }
    const auto cases = find_cases(config.data, config.seed);
    keep_freed_memory();
    if (config.backend != "auto") setenv("MESHARD_BACKEND", config.backend.c_str(), 1);   // also of the ranks started here

    const auto verify = [&](int num_ranks) {
        mesh_shape(config, num_ranks);
        refuse_existing_run(options, config.run_dir());
        if (!options.validate) prepare_run_dir(options, config.run_dir());
    };
    const auto body = [&](World& world) {
        mesh_shape(config, world.size());
        if (world.rank() == 0 && !options.validate) {
            refuse_existing_run(options, config.run_dir());   // a launcher's ranks come here without `verify`
            prepare_run_dir(options, config.run_dir());
            if (options.resume.empty()) write_records(options, arguments, settings, config.run_dir());
        }
        std::signal(SIGINT, request_stop);
        std::signal(SIGTERM, request_stop);
        const TrainingStart start{!options.resume.empty(), options.validate};
        return train(config, cases, start, world, stop_requested) ? exit_code::ok : exit_code::interrupted;
    };
    return run_on_ranks(options.num_ranks, "train", arguments, verify, body);
}

}  // namespace meshard
