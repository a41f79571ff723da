// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/training_config.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// One simulation: its file, and its row of the case table.
struct CaseSource {
    std::string id;  ///< what the last `*` of the pattern stands for
    std::filesystem::path file;
    std::map<std::string, std::string> columns;
    std::filesystem::path wall = {};        ///< the surface whose distance the model is told; empty for none, or where it is of the file itself
    std::filesystem::path volume = {};      ///< the file of its volume, of cases with two parts, whose surface `file` is
    std::string set = {};                   ///< that it belongs to, of several; its name begins the id
    std::filesystem::path other_part = {};  ///< of a case of `CaseLists::of_part`: the file of its other part

    /// @throws InvalidInput if the table has no such column or no number there, with the nearest name.
    double number(const std::string& column) const;
};

struct CaseLists {
    std::vector<CaseSource> train;
    std::vector<CaseSource> val;
    std::vector<CaseSource> test;

    std::int64_t num_left_out = 0;          ///< that have only one of the two parts that are wanted
    std::vector<std::string> without_file;  ///< ids that `data.split.column` puts into a split, and of which there is no file: left out

    std::vector<CaseSource> all() const;

    /// Each case with its split, files and their sizes, and row of the table.
    Facts facts() const;

    /// The same cases with the file of a part: 0, the surface or the only one, or 1, the volume. That of the other is `other_part`.
    CaseLists of_part(std::size_t part) const;
};

/// Finds the cases of all sets and splits them. Files whose case the split does not name are left out, and of cases with two parts those that have only one.
/// @throws IoError if a folder or file is missing; InvalidInput if no file matches, an id occurs twice, a named case has no
///         file, or no surface where `data.wall` asks for one, the table has no such column, or no case is left to train on, or
///         none of a set that has a share of the training cases.
/// @param volume   the other part of cases that have two
CaseLists find_cases(const DataConfig& data, std::int64_t seed, const DataConfig* volume = nullptr);
inline CaseLists find_cases(const TrainingRunConfig& config)
{
    return find_cases(config.data, config.seed, config.volume ? &*config.volume : nullptr);
}

/// Rows of a case table (.json, .csv), by their column `id`. @throws IoError if it cannot be read, or a row has no id or that of another
std::map<std::string, std::map<std::string, std::string>> read_case_table(const std::filesystem::path& path);

/// What the last `*` in the file's part of a pattern stands for in the name of a file; of one that does not match the name without its extension.
std::string id_in_name(const std::string& pattern, const std::filesystem::path& file);

/// A permutation of 0 .. n-1 that depends on `seed` only, the same on every machine.
std::vector<std::int64_t> shuffled_order(std::int64_t n, std::uint64_t seed);

}  // namespace meshard
