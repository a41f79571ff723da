// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace meshard {

// All verbs check their output files by these functions. `MadeFolders` makes missing folders, and `AtomicFile` follows
// links.

/// What happens to an output that is also an input.
enum class InputAsOutput : unsigned char {
    Refused,  ///< the verb has no `--overwrite`
    Asked,    ///< the user did not give `--overwrite`
    Replaced
};

/// Adds `--overwrite` to a verb that may replace an input.
void add_overwrite_option(CLI::App& app, InputAsOutput& answer);

/// Checks that the outputs can be written and replace no input. Every rank calls it before anything is read.
/// @param inputs   meshes, cases, shards folders and other files that the verb reads; missing ones are skipped
/// @throws UsageError if two outputs are one file, or if an output or one of its pieces is, by any name or link, a file
///         that is read, unless `answer` is Replaced; IoError if an output cannot be a file (`file_to_write`), or as
///         `require_writable_folder`
void require_outputs(const std::vector<std::filesystem::path>& outputs,
                     const std::vector<std::filesystem::path>& inputs, InputAsOutput answer);
void require_output(const std::filesystem::path& output, const std::vector<std::filesystem::path>& inputs,
                    InputAsOutput answer);

/// Checks the result files of a run in `folder`; its `cases.csv` could be one of the run's case tables.
/// @throws as `require_output`
void require_result_folder(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& case_tables);

/// Checks that the user can write into `folder`, or make it.
/// @param what   begins the message
/// @throws IoError unless that is so
void require_writable_folder(const std::filesystem::path& folder, const std::string& what);

}  // namespace meshard
