// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// One state of a simulation: where it is read from, and its time.
struct SeriesState {
    double time = 0;                          ///< in the source's own unit
    std::filesystem::path file;               ///< what `read_mesh` reads
    std::optional<double> time_in_file = {};  ///< `ReadOptions::time`, where the file has several times
};

/// The states of one run of a solver, by ascending time.
struct Series {
    std::string id;
    std::filesystem::path path;  ///< index, file, or the folder of the first state's file
    std::vector<SeriesState> states;
};

/// Lists the states of one series, by ascending time, without reading meshes:
///
/// | path              | states                                                                                    |
/// | ----------------- | ----------------------------------------------------------------------------------------- |
/// | .pvd .series      | one a time: its file, or the index itself where several files (parts) have one time       |
/// | .vtkhdf .hdf      | its steps                                                                                 |
/// | .vtu .vtp         | those of `TimeValues`                                                                     |
/// | .zarr .h5 .nc     | the steps of arrays in time (`GridFile::times`)                                           |
/// | .foam, folder     | time folders of an OpenFOAM case and of its processors (`foam_times`), 0 among them       |
/// | .case .cgns .exo  | the times that VTK finds                                                                  |
///
/// Any other file, and these without times, is a series of one state; its time is that of the field array `TimeValue`,
/// else 0.
/// @throws IoError if the path or a file that it lists is missing or damaged, if a time is not finite, or if two states
/// have the same time.
std::vector<SeriesState> read_series(const std::filesystem::path& path);

/// Finds the series that match `pattern` (see `files_matching`) below `root`, in the natural order of their ids
/// (`run_2` before `run_10`).
///
/// - Paths that hold a whole series, that is an index (.pvd, .series, .foam, the folder of a case) or, one of them at
///   least, more than one state: each is a run, and the last wildcard is the run's id.
/// - Files with one state each (`run_*/out_*.vtu`): the last wildcard stands for the state, and the one before it for
///   the run's id. With one wildcard there is one run, called after the pattern's folder (`run_7/out_*.vtu`), else
///   after the fixed part of its name (`out_*.vtu`), else after `root` (`*.vtu`).
///
/// Times of files with one state are those of the table; without a table those of the field array `TimeValue`, if all
/// files of the run have it; if none has it, the number in what the last wildcard stands for (`0001`, `0.25`, `250ms`,
/// `t1e-3`; a minus is a sign unless it follows a letter or digit), in the unit of the names.
/// @param times   may be empty: a table of times below `root`, .csv with the columns `file` (path from `root` or from
/// the table's folder, or name) and `time`; a * in it stands for the run's id
/// @throws InvalidInput if nothing matches, if two runs have one id, if two states of a run have the same time, or if
/// the names give no time: none, or several numbers, or texts beside the number that differ within a run.
/// @throws IoError as `read_series`, and if the table is missing or damaged or lacks a file.
std::vector<Series> find_series(const std::filesystem::path& root, const std::string& pattern,
                                const std::string& times = {});

}  // namespace meshard
