// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace meshard {

/// The options of `partition` and `repartition`; those that are parsed later are still text.
struct CutArguments {
    std::string output;
    std::int32_t num_parts = 0;
    bool has_num_parts = false;    ///< whether -n was given
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
    std::string compress = "none";  ///< compression of the pieces
    std::string dump;               ///< kinds that `dump_partition` writes
    std::int32_t threads = 1;
    std::int64_t max_memory = 0;  ///< most bytes that a process may use; 0: no limit
    bool json = false;
};

void add_cut_options(CLI::App& app, CutArguments& arguments);

/// Checks the options as far as possible without the mesh, and computes the number of parts from the levels.
/// @throws UsageError
void check_cut_arguments(CutArguments& arguments, const std::string& input);

/// Returns whether the method is an existing partition, from a file or an array.
bool is_given_partition(const std::string& method);

/// Parses the number of parts in each level, e.g. `4,2`. @throws UsageError
std::vector<std::int32_t> parse_levels(const std::string& text);

/// Returns the weight of ghosts, relative to cut edges, for an objective. @throws UsageError
double ghost_share(const std::string& objective);

/// Returns the kinds of dump given in --dump. @throws UsageError
std::vector<std::string> dump_kinds(const CutArguments& arguments);

/// Returns the relative sizes of the parts; empty if all are equal. @throws UsageError, also if they are not as many as
/// the parts, once that number is known
std::vector<double> part_capacities(const CutArguments& arguments);

/// Returns the names of the weights to balance; empty if all rows have the same weight.
std::vector<std::string> weight_names(const CutArguments& arguments);

/// Checks before any work that the output folder can be made. @throws IoError
void check_output_folder(const std::string& output);

}  // namespace meshard
