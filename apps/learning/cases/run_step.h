// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/training_config.h"
#include "io/series.h"
#include "partition/csr.h"
#include "partition/cut/partition.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// A step of a simulation: some states of a run, and the state that follows them.
struct RunStep {
    std::shared_ptr<const Series> run;
    std::int64_t index = 0;  ///< of the last state that is told

    /// Returns a state that is told: 0 is the last one, 1 the one before it.
    const SeriesState& told(std::int64_t back) const { return run->states[index - back]; }
    const SeriesState& next() const { return run->states[index + 1]; }
    const SeriesState& first() const { return run->states.front(); }
    double duration() const { return next().time - told(0).time; }
};

/// The array of a step's mesh with all that a point is told of the states, in the order of `StateChannels`.
inline constexpr const char* kTold = "meshard:told";

/// An option in the manifest of a step's shards: the box of its run's first state, which gives the frame of all.
inline constexpr const char* kFrameBounds = "frame_bounds";

/// Which arrays of a run's states become which arrays of a step's mesh.
struct StateArrays {
    explicit StateArrays(const DataConfig& data);

    bool tells_motion() const;  ///< the points' coordinates are a field, or given
    bool has_mask_array() const { return !mask.empty() && mask != kMaskOfNan; }
    /// Returns one line that names all settings on which the mesh of a step depends.
    std::string description() const;

    bool on_cells;
    std::vector<FieldConfig> fields;
    CategorySettings categories;
    std::vector<std::string> arrays;  ///< `DataConfig::told_arrays`
    std::vector<std::string> given;
    std::string mask;               ///< `DataConfig::mask`
    std::vector<std::string> kept;  ///< arrays of the last state that the mesh keeps, for inputs
    LearntState learnt;
    std::int64_t history;
};

/// Reads a state. @throws as `read_mesh`
Mesh read_state(const SeriesState& state);

/// Says which state a message is about. @param where   of which run or case it is
std::string state_text(const std::string& where, const SeriesState& state);

/// The rows of a state that were read, all or some of them, and what messages about it begin with.
struct ReadState {
    /// @param where   as of `state_text`
    ReadState(const Mesh& mesh, bool on_cells, const SeriesState& state, const std::string& where);
    /// @param where   of which state it is   @param place   names a row in messages
    /// @param counts   whether a row counts; those that do not may have any values
    ReadState(const std::vector<DataArray>& arrays, const std::vector<DataArray>& constants, std::int64_t num_rows,
              bool on_cells, std::string where, std::function<std::string(std::int64_t)> place,
              std::function<bool(std::int64_t)> counts);

    const std::vector<DataArray>* arrays;
    const std::vector<DataArray>* constants;  ///< of the whole state (VTK's field data), for what `arrays` lacks
    const DataArray* points;                  ///< of a mesh whose points are the rows; else null
    std::int64_t num_rows;
    bool on_cells;
    std::string where;
    std::function<std::string(std::int64_t)> place;
    std::function<bool(std::int64_t)> counts;  ///< empty: all do
};

/// Joins what a point is told besides states: categories and other arrays, the given arrays, and the step.
/// @param given   has the arrays of `StateArrays::given`; null if there are none
/// @param step    time to the next state
/// @throws as `told`
DataArray told_besides(const ReadState& state, const ReadState* given, double step, const StateArrays& arrays);

/// Joins all that a point is told of states, as the array `kTold`.
/// @param states   told states: the last one, the one before it, ...
/// @param given, step   as of `told_besides`
/// @throws InvalidInput, beginning with the state's `where`, for an array that is missing (with the nearest name) or
/// not finite
DataArray told(std::span<const ReadState> states, const ReadState* given, double step, const StateArrays& arrays);

/// Joins the fields of a state. @throws as `told`
DataArray told_fields(const ReadState& state, const StateArrays& arrays);

/// Returns what is learnt of each field: the next state, or its change. @param step   time between the states
/// @throws as `told`, and InvalidInput if the states have not as many components
std::vector<DataArray> learnt_fields(const ReadState& now, const ReadState& next, double step,
                                     const StateArrays& arrays);

/// Adds the array of `told` to the mesh of a run's last state. @throws as `told`
void add_told(Mesh& mesh, std::span<const ReadState> states, const ReadState* given, double step,
              const StateArrays& arrays);

/// @throws InvalidInput, beginning with `where`, if the states of a run have not the same cells and as many points, or
/// ids of points or cells, distinct whole numbers in an array, that are the same in another order
void require_same_rows(const Mesh& first, const Mesh& state, const SeriesState& of_state, const std::string& where);

/// Makes the mesh of a step: that of the last state, with what is told (`kTold`) and what is learnt of each field
/// (`FieldConfig::from`).
/// @throws as `read_state`, `add_told` and `require_same_rows`
Mesh read_step(const RunStep& step, const StateArrays& arrays, const std::string& where);

/// A cut with METIS, of a run as of its first state.
struct RunCut {
    Csr graph;
    Partition partition;
    PartitionQuality quality;
    std::array<double, 6> bounds{};  ///< of a run: the first state's box, lowest and highest x, y and z
};

/// Cuts a mesh; the bounds stay 0.
RunCut cut_by_metis(const Mesh& mesh, std::int64_t num_parts, std::int64_t seed);

/// The cuts of the last few runs. All states of a run are cut alike, as the first one: so a rank that has predicted a
/// state's rows is told them in the next step.
class RunCuts {
public:
    /// Returns the cut of a step's run with METIS. Any thread may call it. @throws as `read_state` and METIS
    std::shared_ptr<const RunCut> of(const RunStep& step, std::int64_t num_parts, std::int64_t seed);

private:
    std::mutex mutex_;
    std::deque<std::pair<std::shared_ptr<const Series>, std::shared_ptr<const RunCut>>> kept_;
};

}  // namespace meshard
