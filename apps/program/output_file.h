// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace meshard {

// What all verbs do alike with files that the user names for their results. Folders that are missing are made by `MadeFolders`, links are followed by
// `AtomicFile`.

/// What becomes of an output that is one of the inputs.
enum class InputAsOutput : unsigned char {
    Refused,  ///< the verb has no `--overwrite`
    Asked,    ///< `--overwrite` was not said
    Replaced
};

/// Adds `--overwrite` of verbs that may replace an input.
void add_overwrite_option(CLI::App& app, InputAsOutput& answer);

/// Called before anything is read, on every rank.
/// @param inputs   meshes, cases, shards folders and other files that the verb reads; what does not exist is passed over
/// @throws UsageError where an output, by whatever name or link, or a piece that belongs to it, is a file that is read, unless it shall be replaced; IoError
/// where it
///         cannot be a file (`file_to_write`), or as `require_writable_folder`
void require_outputs(const std::vector<std::filesystem::path>& outputs, const std::vector<std::filesystem::path>& inputs, InputAsOutput answer);
void require_output(const std::filesystem::path& output, const std::vector<std::filesystem::path>& inputs, InputAsOutput answer);

/// The same of a folder for results of a run, of which `cases.csv` could be one of its case tables.
/// @throws as `require_output`
void require_result_folder(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& case_tables);

/// A shards folder has a file for each part, with a header, names of arrays, and a line of the manifest and the index: of small parts that is most of it.
/// @param num_rows   of the mesh that is cut
/// @param place      a folder of the disk to which the folder goes
/// @return what is to be warned of: how large the folder becomes, without a full stop; empty where that is not much, or most of it are the rows
/// @throws UsageError where the disk has less room
std::string size_of_small_parts(std::int64_t num_parts, std::int64_t num_rows, const std::filesystem::path& place);

/// @param what   begins the message
/// @throws IoError unless `folder` is one in which the user may write, or can be made
void require_writable_folder(const std::filesystem::path& folder, const std::string& what);

}  // namespace meshard
