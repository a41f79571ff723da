// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/block_codec.h"
#include "partition/error.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace meshard {

/// How the program ends (docs/commands.md).
namespace exit_code {
inline constexpr int ok = 0;
inline constexpr int check_failed = 1;   ///< something that was checked or compared does not hold
inline constexpr int usage = 2;          ///< command line or configuration
inline constexpr int input = 3;          ///< a file or what is in it; an output that cannot be written
inline constexpr int run_time = 4;       ///< anything else: memory, a fault of meshard's own
inline constexpr int ranks = 5;          ///< another rank is missing, dead or too late
inline constexpr int refused = 6;        ///< an operator has no exact rule for sharded tensors
inline constexpr int interrupted = 130;  ///< Ctrl-C, SIGTERM, or the terminal was closed
}  // namespace exit_code

/// The command line or a configuration is wrong; the program ends with exit code 2.
class UsageError : public Error {
public:
    using Error::Error;
};

/// Exit code of the error being handled.
int exit_code_of_current_error();

/// One word after `meshard`.
struct Verb {
    std::string_view name;
    std::string_view purpose;                            ///< one line for `meshard --help`
    int (*run)(std::span<const std::string> arguments);  ///< gives the exit code; null if it lives in the sibling program
};

/// All verbs, in the order of `meshard --help`.
std::span<const Verb> verbs();

/// Parses `arguments` into the variables bound to `app`, whose name is the verb's.
///
/// @return false if help was asked for, and printed.
/// @throws UsageError naming the first thing that is wrong, with the nearest option for an unknown one.
bool parse_arguments(CLI::App& app, std::span<const std::string> arguments);

/// `text` as numbers with commas between, e.g. `1,0,0`. `option` begins the message of the UsageError thrown when it is
/// not `count` finite numbers (any count if 0).
std::vector<double> parse_numbers(std::string_view text, std::string_view option, std::size_t count = 0);

/// The option `--compress` of verbs that write meshes.
void add_compress_option(CLI::App& app, std::string& name);

/// @throws UsageError for another word than none, zlib and lz4, or one that this build was made without.
Compression parse_compression(const std::string& name);

/// One line on stderr: `meshard VERB: warning: ...`.
void warn(std::string_view verb, std::string_view text);

/// One line on stderr that the next one overwrites, and only if stderr is a terminal; an empty text clears it. With the share
/// that is `done`, 0 to 1, there are a bar and a percentage before the text.
void show_progress(std::string_view text, std::optional<double> done = std::nullopt);

}  // namespace meshard
