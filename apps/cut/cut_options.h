// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace meshard {

/// What `partition` and `repartition` ask their users, as text where it is checked later.
struct CutArguments {
    std::string output;
    std::int32_t num_parts = 0;
    bool has_num_parts = false;    ///< whether it was given
    std::string method = "metis";  ///< a name, `file:PATH` or `array:NAME`
    std::string levels;
    std::string objective = "both";
    std::string weights;
    std::string capacities;
    std::string ghosts = "face";
    std::int32_t ghost_layers = 1;
    double imbalance = 1.03;
    std::int32_t seed = 0;
    bool quality = false;
    bool refine = false;
    bool no_refine = false;
    bool contiguous = false;
    bool allow_empty = false;
    bool dry_run = false;
    std::string preview;
    std::string csv;
    std::string compress = "none";  ///< of the pieces
    std::string dump;               ///< kinds of `dump_partition`
    std::int32_t threads = 1;
    std::int64_t max_memory = 0;  ///< bytes that a process may take; 0: no bound
    bool json = false;
};

void add_cut_options(CLI::App& app, CutArguments& arguments);

/// Checks what can be checked without the mesh, and fills in what follows from it: the number of parts from the levels.
/// @throws UsageError
void check_cut_arguments(CutArguments& arguments);

/// Whether the method is a partition that exists already, of a file or an array.
bool is_given_partition(const std::string& method);

/// Parts in each level, e.g. 4, 2; none where there are no levels. @throws UsageError
std::vector<std::int32_t> parse_levels(const std::string& text);

/// What ghosts count for beside the cut, by the name of an objective. @throws UsageError
double ghost_share(const std::string& objective);

/// Kinds of `dump_partition`. @throws UsageError
std::vector<std::string> dump_kinds(const CutArguments& arguments);

/// Names of what is to be balanced; none where all rows count the same.
std::vector<std::string> weight_names(const CutArguments& arguments);

/// Finds out before any work what would stop the last step. @throws IoError
void check_output_folder(const std::string& output);

}  // namespace meshard
