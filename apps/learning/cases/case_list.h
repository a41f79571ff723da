// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/run_step.h"
#include "apps/learning/settings/training_config.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// One simulation: its file and its row of the case table; or one step of a simulation in time.
struct CaseSource {
    std::string id;  ///< what the last `*` of the pattern stands for
    std::filesystem::path file;
    std::map<std::string, std::string> columns;
    std::filesystem::path wall = {};  ///< the wall's surface if it has a file of its own; else empty
    /// The file of the volume if the case has two parts; `file` is then the surface.
    std::filesystem::path volume = {};
    std::string set = {};                   ///< the name of its set, if there are several; the id begins with it
    std::filesystem::path other_part = {};  ///< the file of the other part, in the lists of `CaseLists::of_part`
    std::optional<RunStep> step = {};       ///< of a case that is a step of a run; `file` is then the last state's

    /// The id by which `data.split` names it: its own, or of a step that of its run.
    std::string split_id() const { return step ? id.substr(0, id.rfind('@')) : id; }

    /// @throws InvalidInput if the table has no such column or no number there, with the nearest name.
    double number(const std::string& column) const;
};

struct CaseLists {
    std::vector<CaseSource> train;
    std::vector<CaseSource> val;
    std::vector<CaseSource> test;

    std::int64_t num_left_out = 0;  ///< cases that have only one of the two wanted parts
    /// Ids that `data.split.column` puts into a split, but that have no file; they are left out.
    std::vector<std::string> without_file;

    std::vector<CaseSource> all() const;

    /// Lists each case (of simulations each run) with its split, the sizes of its files, and its row of the table.
    Facts facts() const;

    /// Returns the cases with `file` set to one part: 0, the surface or the only part, or 1, the volume. `other_part`
    /// is the other.
    CaseLists of_part(std::size_t part) const;
};

/// Finds the cases of all sets and splits them; of simulations in time whole runs are split, and each of their steps is
/// a case, RUN@STATE. Cases that the split does not name are left out, and, where cases have two parts, cases that have
/// only one.
/// @param volume   the other part of cases that have two
/// @throws IoError if a folder or file is missing; InvalidInput if no file matches, an id occurs twice, a named case
/// has no file, a case lacks the surface that `data.wall` asks for, the table lacks the column, or no case is left to
/// train on, in all or in a set that has a share of the training cases.
CaseLists find_cases(const DataConfig& data, std::int64_t seed, const DataConfig* volume = nullptr);
inline CaseLists find_cases(const TrainingRunConfig& config)
{
    return find_cases(config.data, config.seed, config.volume ? &*config.volume : nullptr);
}

/// Reads a case table (.json, .csv) by its column `id`. @throws IoError if it cannot be read, or an id is missing or
/// occurs twice
std::map<std::string, std::map<std::string, std::string>> read_case_table(const std::filesystem::path& path);

/// Returns the ids that a file has or might have as a case of these data: what the last `*` of the pattern stands for
/// in its path, or if it does not match the name without extension. Of several sets the id in each in whose folder the
/// file lies, or else in all.
std::vector<std::string> training_ids(const DataConfig& data, const std::filesystem::path& file);

/// Returns a permutation of 0 .. n-1 that depends on `seed` only, the same on every machine.
std::vector<std::int64_t> shuffled_order(std::int64_t n, std::uint64_t seed);

}  // namespace meshard
