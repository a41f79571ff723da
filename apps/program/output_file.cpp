// SPDX-License-Identifier: Apache-2.0
#include "apps/program/output_file.h"

#include "apps/program/command_line.h"
#include "io/bytes/atomic_file.h"
#include "io/foam/foam_reader.h"
#include "io/shards/manifest.h"
#include "io/shards/subdomain_io.h"
#include "io/source_files.h"
#include "partition/nearest_name.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace meshard {

namespace {

namespace fs = std::filesystem;

using FileId = std::pair<dev_t, ino_t>;

/// Returns the identity of the file to which a path or link leads; nothing if there is none.
std::optional<FileId> id_of(const fs::path& path)
{
    struct stat found = {};
    return ::stat(path.c_str(), &found) == 0 ? std::optional(FileId(found.st_dev, found.st_ino)) : std::nullopt;
}

bool is_same(const fs::path& a, const fs::path& b)
{
    const auto id = id_of(a);
    return id && id == id_of(b);
}

fs::path folder_of(const fs::path& file)
{
    return fs::absolute(file).lexically_normal().parent_path();
}

/// Returns the files that make up an input. An unreadable input has none here, since its reader reports the error.
std::vector<fs::path> files_of(const fs::path& input)
{
    try {
        if (!is_shards_folder(input))
            return fs::is_directory(input) && !is_foam_case(input) ? std::vector<fs::path>() : source_files(input);
        const auto manifest = read_manifest(input);
        std::vector<fs::path> files{input / "manifest.json", input / index_name(manifest.kind)};
        for (const auto& part : manifest.parts) files.push_back(input / part.file);
        return files;
    } catch (const std::exception&) {
        return {};
    }
}

bool is_index(const fs::path& file)
{
    return lower_extension(file) == ".pvtu" || lower_extension(file) == ".pvtp";
}

/// Returns whether `file` is a piece of the index `output`: pieces are called NAME_0000 beside it, or are in the folder
/// NAME_pieces.
bool is_piece(const fs::path& file, const fs::path& output)
{
    if (!is_index(output)) return false;
    const auto name = file.stem().string(), begin = output.stem().string() + "_";
    if (is_same(folder_of(file), folder_of(output) / (begin + "pieces"))) return true;
    return is_same(folder_of(file), folder_of(output)) && name.starts_with(begin) && name.size() > begin.size() &&
           std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin.size()), name.end(),
                       [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

void add_overwrite_option(CLI::App& app, InputAsOutput& answer)
{
    answer = InputAsOutput::Asked;
    app.add_flag_callback(
        "--overwrite", [&answer] { answer = InputAsOutput::Replaced; },
        "replace an input where the output is the same file");
}

void require_outputs(const std::vector<fs::path>& outputs, const std::vector<fs::path>& inputs, InputAsOutput answer)
{
    std::vector<fs::path> read;
    std::map<FileId, fs::path> by_id;
    std::map<fs::path, fs::path> by_target;
    for (const auto& output : outputs) {
        const auto target = file_to_write(output);
        if (const auto [other, is_new] = by_target.emplace(fs::weakly_canonical(fs::absolute(target)), output); !is_new)
            throw UsageError("the outputs {} and {} are one file. Name two.", other->second.string(), output.string());
        require_writable_folder(folder_of(target), "the folder of the output " + output.string());
        const auto id = id_of(target);
        if (answer == InputAsOutput::Replaced || (!id && !is_index(target))) continue;
        if (read.empty()) {
            for (const auto& input : inputs) {
                const bool is_case = is_foam_case(input);
                for (const auto& file : files_of(input)) {
                    // A mesh that an earlier run wrote into a case's folder is listed among the case's files, but is no
                    // input.
                    if (is_case && lower_extension(file) == lower_extension(output)) continue;
                    read.push_back(file);
                    if (const auto of_file = id_of(file)) by_id.emplace(*of_file, file);
                }
            }
        }
        const auto refuse = [&](const std::string& what, const fs::path& file) {
            throw UsageError("the output {} {} {}, which is read. Name another output{}", output.string(), what,
                             file.string(),
                             answer == InputAsOutput::Asked ? ", or replace the input with --overwrite." : ".");
        };
        if (const auto found = id ? by_id.find(*id) : by_id.end(); found != by_id.end()) refuse("is", found->second);
        if (!is_index(target)) continue;
        for (const auto& file : read) {
            if (is_piece(file, target)) refuse("has the piece", file);
        }
    }
}

void require_output(const fs::path& output, const std::vector<fs::path>& inputs, InputAsOutput answer)
{
    require_outputs({output}, inputs, answer);
}

void require_result_folder(const fs::path& folder, const std::vector<fs::path>& case_tables)
{
    require_outputs({folder / "cases.csv", folder / "evaluation.json", folder / "report.json"}, case_tables,
                    InputAsOutput::Refused);
}

void require_writable_folder(const fs::path& folder, const std::string& what)
{
    std::error_code error;
    auto above = fs::absolute(folder).lexically_normal();
    while (!fs::exists(above, error) && above.has_relative_path()) above = above.parent_path();
    const std::string reason = !fs::is_directory(above, error)             ? "it is no folder"
                               : ::access(above.c_str(), W_OK | X_OK) != 0 ? std::strerror(errno)
                                                                           : "";
    if (!reason.empty())
        throw IoError("{} cannot be made or written: {}: {}. Choose another.", what, above.string(), reason);
}

}  // namespace meshard
