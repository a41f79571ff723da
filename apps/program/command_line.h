// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/console/console.h"
#include "io/bytes/block_codec.h"
#include "sharding/messages/agreement.h"

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
    std::string_view purpose;                            ///< one line for `meshard --help`
    int (*run)(std::span<const std::string> arguments);  ///< returns the exit code; null if the verb is in the other program (sibling_program.h)
};

/// All verbs, in the order of `meshard --help`.
std::span<const Verb> verbs();

/// Parses `arguments` into the variables bound to `app`, which has the verb's name. What was given becomes part of `facts_of_command`; of words that settings
/// are read from, only the file.
///
/// @return false if help was requested, and printed.
/// @throws UsageError for the first wrong argument; for an unknown option the message names the nearest one.
bool parse_arguments(CLI::App& app, std::span<const std::string> arguments);

/// What this process was asked to do, and with what: the verb, what `add_facts` added (versions, settings, cases), the options that were given, the working
/// folder. All ranks of a run must have the same.
Facts facts_of_command();
void add_facts(const Facts& facts);

/// The ranks that a verb starts on this machine.
struct LocalRanks {
    int number = 0;               ///< 0: as a launcher says, else one
    bool oversubscribes = false;  ///< more than this machine's cores bear
};

/// Adds the options `--nproc` and `--oversubscribe`.
void add_rank_options(CLI::App& app, LocalRanks& ranks,
                      const std::string& meaning = "start this many ranks on this machine (torchrun, mpirun and srun work too)");

/// Adds the option `--compress` of verbs that write meshes.
void add_compress_option(CLI::App& app, std::string& name);

/// @throws UsageError for other words than none, zlib and lz4, or one that this build does not have.
Compression parse_compression(const std::string& name);

}  // namespace meshard
