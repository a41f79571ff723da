// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/run_step.h"
#include "apps/learning/cases/state_channels.h"
#include "apps/learning/grids/grid_states.h"
#include "apps/learning/prediction/case_mesh.h"
#include "apps/learning/prediction/series_prediction.h"
#include "io/series.h"
#include "io/vtk/image_file.h"
#include "partition/mesh/data_array.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Which states of a simulation there are, and which are to be predicted.
class SeriesPlan {
public:
    /// Goes on from the first states of `start`, or from those that `output` has.
    /// @throws InvalidInput, IoError as `predict_series`
    SeriesPlan(const Predictor& model, const std::filesystem::path& start, const std::filesystem::path& output,
               const SeriesPrediction& wish);

    /// Predicts all states of a run but its first ones, which are told.
    SeriesPlan(const Predictor& model, const Series& run);

    std::size_t history() const { return history_; }
    std::size_t num_states() const { return times_.size(); }
    /// The first state that is not written yet; those before the history are the start's own.
    std::size_t next() const { return std::max(done_.size(), history_); }
    bool goes_on() const { return !done_.empty(); }
    double time(std::size_t i) const { return times_[i]; }
    double step_to(std::size_t i) const { return times_[i] - times_[i - 1]; }
    const SeriesState& start(std::size_t i) const { return start_[i]; }
    /// A state that is there: of the start, or predicted before.
    const SeriesState& known(std::size_t i) const { return goes_on() ? done_[i] : start_[i]; }
    /// The same of one of several tracks, of which `known` has the mean (`state_of_track`).
    SeriesState known(std::size_t i, std::size_t track) const;
    /// @throws InvalidInput if what was written before is not that of so many tracks
    void require_tracks(std::size_t num_tracks) const;
    /// The start's state whose arrays are those of a predicted state; null where the start has none.
    const SeriesState* followed(std::size_t i) const { return follows_ && i < start_.size() ? &start_[i] : nullptr; }

private:
    std::size_t history_;
    std::vector<SeriesState> start_, done_;
    std::vector<double> times_;
    bool follows_ = false;
};

/// Names the file of a track's own state beside that of the mean: `NAME_0007.track_2.vtp`.
std::filesystem::path state_of_track(const std::filesystem::path& state, std::size_t track);

/// A model that goes its own way through a simulation.
struct SeriesTrack {
    Predictor* model = nullptr;
    DataConfig data;           ///< of the model, with the numbers of this simulation in place
    CaseSource source;         ///< its columns are the simulation's constants
    std::uint64_t member = 0;  ///< which of an ensemble it is: a denoiser draws its states from noise of its own
};

/// The steps of models through a simulation, each from a state to the next. Several tracks may have one model. All
/// functions but those that only look are collective.
class SeriesRollOut {
public:
    /// Reads the states that are told, and hands out the rows of the first one as `CaseMesh` does.
    /// @param tracks   of models with the same fields
    /// @param memory   of the models; nothing: as `Predictor::memory_for` chooses
    /// @throws UnusableInput as `predict_series`
    SeriesRollOut(const SeriesPlan& plan, std::span<Predictor> models, std::vector<SeriesTrack> tracks,
                  MeshReading reading, const std::filesystem::path& output, std::optional<MemoryMode> memory,
                  World& world, GridRanks& ranks);

    /// Of grids each rank reads its block of a state, of meshes the first one a whole state.
    bool is_of_grids() const { return grid_.has_value(); }
    const ImageGrid& image() const { return grid_->image; }  ///< of grids, without rows
    const GridBox& box() const { return grid_->box; }        ///< of grids: this rank's rows
    const Mesh& whole() { return mesh_->whole(); }           ///< of meshes, on the first rank
    /// Returns the ids of this rank's rows.
    std::vector<std::int64_t> rows() const { return grid_ ? grid_->layout.own_places() : mesh_->rows(); }
    const StateArrays& arrays() const { return arrays_; }
    const StateChannels& states() const { return states_; }
    /// What a track's model is told next.
    const PointInputs& inputs(std::size_t track) const { return inputs_[track]; }

    /// Predicts the next state of a track, in its own units: (1, N, channels), sharded.
    at::Tensor next(std::size_t track);

    /// Goes on to the step from state `i` on, with what the start says of it besides.
    /// @param states   of each track, as `next` gives them
    /// @throws as `told_besides`
    void go_on(std::size_t i, std::span<const at::Tensor> states);

    /// Returns the fields of a state of the start, (1, N, channels), sharded. @throws as `told_fields`
    at::Tensor true_state(std::size_t i)
    {
        return fields_of(plan_.start(i), [&]() -> const Mesh& { return read_whole(i); });
    }

    /// Reads a state of the start, of meshes; the last one is kept. Not collective: on the first rank.
    /// @throws as `read_state` and `require_same_rows`
    const Mesh& read_whole(std::size_t i);

    /// Returns `row_geometry` of this rank's rows of a mesh in state `i`, of points that move where they are then: by
    /// the predicted state, or as given.
    at::Tensor geometry(std::size_t i, const at::Tensor& state);

    /// Goes on only from states that began as this start does. @throws InvalidInput otherwise
    void require_same_start();

    /// Returns this rank's rows, (1, rows, columns), of what the first rank has of a mesh, (all rows, columns), as the
    /// inputs are.
    /// @param whole   undefined on the other ranks
    at::Tensor own_rows(at::Tensor whole) const;

private:
    /// A run of grids.
    struct Grid {
        ImageGrid image;
        GridLayout layout;
        GridBox box;
        std::optional<GridStates> states;
    };

    at::Tensor fields_of(const SeriesState& state, const std::function<const Mesh&()>& read);
    void open_grid(const Predictor& model, World& world, GridRanks& ranks);
    at::Tensor laid_out(const at::Tensor& own) const;

    const SeriesPlan& plan_;
    std::size_t next_;  // the state that is predicted next
    std::string where_;
    at::Device device_;
    std::shared_ptr<const DeviceMesh> device_mesh_;  // all ranks in a row
    StateArrays arrays_;
    StateChannels states_;
    std::optional<CaseMesh> mesh_;
    std::optional<Grid> grid_;
    std::optional<std::pair<std::size_t, Mesh>> read_;  // the state that `read_whole` read last
    std::vector<SeriesTrack> tracks_;
    std::vector<PointInputs> inputs_;
    std::vector<FieldScaling> scalings_;
    std::vector<CaseFrame> frames_;
};

}  // namespace meshard
