// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/console/console.h"
#include "io/bytes/block_codec.h"
#include "sharding/messages/agreement.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace meshard {

/// A command of the program, e.g. `meshard info`.
struct Verb {
    std::string_view name;
    std::string_view purpose;  ///< one line for `meshard --help`
    /// Returns the exit code. It is null for a verb of the other program (sibling_program.h).
    int (*run)(std::span<const std::string> arguments);
};

/// All verbs, in the order of `meshard --help`.
std::span<const Verb> verbs();

/// Parses `arguments` into the variables bound to `app`, whose name is the verb's. The given values become part of
/// `facts_of_command`; settings `key=value` do not, but a file of settings does.
///
/// @return false if help was requested, and printed.
/// @throws UsageError for the first wrong argument; for an unknown option the message names the nearest one.
bool parse_arguments(CLI::App& app, std::span<const std::string> arguments);

/// Returns what this process was asked to do, and with what: the verb, what `add_facts` added (versions, settings,
/// cases), the given options, the working folder. The facts must be equal on all ranks of a run.
Facts facts_of_command();
void add_facts(const Facts& facts);

/// A configuration of `meshard train` and the settings that override it.
struct ConfigWords {
    std::vector<std::string> words;

    const std::string& file() const { return words.front(); }
    std::span<const std::string> overrides() const { return std::span(words).subspan(1); }
};

/// Adds the first arguments of verbs that take a configuration.
void add_config_option(CLI::App& app, ConfigWords& config, const std::string& meaning);

/// The ranks that a verb starts on this machine.
struct LocalRanks {
    int number = 0;               ///< 0: the launcher's number, else one
    bool oversubscribes = false;  ///< allows more than four ranks a core
};

/// Adds the options `--nproc` and `--oversubscribe`.
void add_rank_options(
    CLI::App& app, LocalRanks& ranks,
    const std::string& meaning = "start this many ranks on this machine (torchrun, mpirun and srun work too)");

/// Adds the flag `--json` of verbs with a report.
void add_json_option(CLI::App& app, bool& json);

/// Adds the flag `--no-verify` of verbs that read shards.
void add_verify_option(CLI::App& app, bool& no_verify);

/// Adds the option `--compress` of verbs that write meshes.
void add_compress_option(CLI::App& app, std::string& name);

/// @throws UsageError for other words than none, zlib and lz4, or one that this build does not have.
Compression parse_compression(const std::string& name);

}  // namespace meshard
