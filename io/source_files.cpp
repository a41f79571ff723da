// SPDX-License-Identifier: Apache-2.0
#include "io/source_files.h"

#include "io/bytes/mapped_file.h"
#include "io/foam/foam_reader.h"
#include "partition/error.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <glob.h>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace meshard {

namespace {

namespace fs = std::filesystem;

/// The separators between file names in a file of this extension; empty if such a file names no others.
std::string_view separators_in(const fs::path& path)
{
    std::string extension = path.extension().string();
    std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
    constexpr std::string_view quoted[] = {".pvtu", ".pvtp", ".vtm", ".vtpc", ".pvd", ".series"};
    if (std::ranges::find(quoted, extension) != std::end(quoted)) return "\"";
    return extension == ".case" ? " \t\r\n" : "";
}

/// Files of that name; `*`, which EnSight writes for a digit, matches any single character.
std::vector<fs::path> files_named(const fs::path& folder, std::string_view name)
{
    std::string pattern = (folder / name).string();
    if (pattern.find('*') == std::string::npos) return {pattern};
    std::ranges::replace(pattern, '*', '?');
    glob_t found{};
    std::vector<fs::path> files;
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    return files;
}

/// Takes every word that is the name of a file: the result may have more files than are read.
void add_with_named_files(const fs::path& path, std::set<fs::path>& files)
{
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored) || !files.insert(path.lexically_normal()).second) return;
    const auto separators = separators_in(path);
    if (separators.empty()) return;
    const auto file = MappedFile::open(path, "read_mesh");
    constexpr std::size_t longest_name = 4096;
    for (std::string_view text = file->text(); !text.empty();) {
        const auto end = std::min(text.find_first_of(separators), text.size());
        if (const auto word = text.substr(0, end); !word.empty() && word.size() < longest_name) {
            for (const auto& name : files_named(path.parent_path(), word)) add_with_named_files(name, files);
        }
        text.remove_prefix(std::min(end + 1, text.size()));
    }
}

std::optional<double> time_named(const std::string& name)
{
    double time = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), time);
    return error == std::errc() && end == name.data() + name.size() ? std::optional(time) : std::nullopt;
}

/// Of times before the latest only the meshes: a mesh is valid until a later one replaces it.
void add_case_files(const fs::path& folder, bool only_meshes, int depth, std::set<fs::path>& files)
{
    constexpr int deepest = 8;  // a link may lead back up
    if (depth > deepest) return;
    std::optional<double> latest;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const auto time = entry.is_directory() ? time_named(entry.path().filename().string()) : std::nullopt;
        if (time && (!latest || *time > *latest)) latest = time;
    }
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const auto name = entry.path().filename().string();
        if (entry.is_directory(ignored)) {
            const auto time = time_named(name);
            add_case_files(entry.path(), name != "polyMesh" && (only_meshes || (time && *time < *latest)), depth + 1, files);
        } else if (!only_meshes && entry.is_regular_file(ignored)) {
            files.insert(entry.path().lexically_normal());
        }
    }
}

}  // namespace

std::vector<fs::path> source_files(const fs::path& path)
{
    std::set<fs::path> files;
    std::error_code ignored;
    if (is_foam_case(path)) {
        try {
            add_case_files(fs::is_directory(path, ignored) ? path : fs::absolute(path).parent_path(), false, 0, files);
        } catch (const fs::filesystem_error& error) {
            throw IoError("read_mesh: " + path.string() + " cannot be read: " + error.code().message() + ".");
        }
    } else {
        add_with_named_files(path, files);
    }
    if (files.empty()) throw IoError("read_mesh: " + path.string() + " is neither a file nor an OpenFOAM case.");
    return {files.begin(), files.end()};
}

}  // namespace meshard
