// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/series_roll_out.h"

#include "apps/learning/cases/run_step.h"
#include "apps/learning/cases/usable_input.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace meshard {
namespace {

/// Reads what the first rank tells the others of the start: the first state's mesh with the array `kTold`.
Mesh told_mesh(const SeriesPlan& plan, const StateArrays& arrays, const std::string& where)
{
    auto mesh = read_state(plan.start(0));
    std::vector<Mesh> told;
    std::vector<ReadState> states;
    told.reserve(plan.history());
    for (std::size_t back = 1; back <= plan.history(); ++back) {
        const auto& state = plan.known(plan.next() - back);
        told.push_back(read_state(state));
        require_same_rows(mesh, told.back(), state, where);
        states.emplace_back(told.back(), state, where);
    }
    std::optional<Mesh> of_next;
    std::optional<ReadState> given;
    if (const auto* followed = plan.followed(plan.next()); followed && !arrays.given.empty())
        given.emplace(of_next.emplace(read_state(*followed)), *followed, where);
    add_told(mesh, states, given ? &*given : nullptr, plan.step_to(plan.next()), arrays);
    return mesh;
}

/// Makes a tensor, (rows, components), of an array of floats.
at::Tensor tensor_of(const DataArray& array)
{
    const auto values = array.values<float>();
    return torch::tensor(at::ArrayRef<float>(values.data(), values.size()))
        .view({array.num_rows(), array.num_components()});
}

/// Replaces the time to the next state.
at::Tensor with_step(const at::Tensor& arrays, double step)
{
    auto local = to_local(arrays).clone();
    local.select(-1, local.size(-1) - 1).fill_(step);
    return from_local(local, spec_of(arrays));
}

}  // namespace

SeriesPlan::SeriesPlan(const Predictor& model, const std::filesystem::path& start, const std::filesystem::path& output,
                       const SeriesPrediction& wish)
    : history_(static_cast<std::size_t>(model.data().series.history)), start_(read_series(start))
{
    const auto& series = model.data().series;
    const auto num_steps = static_cast<std::size_t>(wish.num_steps);
    if (start_.size() < history_)
        throw InvalidInput(fmt::format("{} has {} state{}, and the model is told {}.", start.string(), start_.size(),
                                       start_.size() == 1 ? "" : "s", history_));
    if (!series.given.empty() && (wish.step || start_.size() < history_ + num_steps)) {
        throw InvalidInput(fmt::format(
            "{}: the model is told '{}' of the state to be predicted, which a series "
            "must give for each of the {} steps{}.",
            start.string(), series.given.front(), num_steps,
            wish.step ? " at its own times; leave --step out"
                      : fmt::format("; it has {} states, of which {} are the start", start_.size(), history_)));
    }
    follows_ = !wish.step && start_.size() > history_;
    const auto step = wish.step.value_or(series.mean_step);
    for (std::size_t i = 0; i < history_ + num_steps; ++i) {
        const bool is_said = i < history_ || (follows_ && i < start_.size());
        times_.push_back(is_said ? start_[i].time : times_.back() + step);
    }
    if (!wish.goes_on || !std::filesystem::exists(output)) return;
    done_ = read_series(output);
    if (done_.size() < history_ || done_.size() > times_.size())
        throw InvalidInput(fmt::format("{} has {} states, and this prediction {} to {}: it is another one. Leave "
                                       "--resume out to begin anew.",
                                       output.string(), done_.size(), history_, times_.size()));
    for (std::size_t i = 0; i < done_.size(); ++i) {
        if (std::abs(done_[i].time - times_[i]) > 1e-9 * std::max(1.0, std::abs(times_[i])))
            throw InvalidInput(fmt::format("{}: its state {} is of time {}, and this prediction's of {}: it is "
                                           "another one. Leave --resume out to begin anew.",
                                           output.string(), i, done_[i].time, times_[i]));
    }
}

SeriesPlan::SeriesPlan(const Predictor& model, const Series& run)
    : history_(static_cast<std::size_t>(model.data().series.history)), start_(run.states), follows_(true)
{
    for (const auto& state : start_) times_.push_back(state.time);
}

SeriesRollOut::StartGrid::StartGrid(const SeriesPlan& plan, const StateArrays& arrays, const DataConfig& data,
                                    const std::string& where)
    : image(read_image(plan.start(0).file)), mesh(told_mesh(plan, arrays, where)),
      told(grid_rows_of_step(mesh, image, data, false, where))
{
}

void SeriesRollOut::StartGrid::cut(std::int64_t rows_together, const std::shared_ptr<const DeviceMesh>& domain,
                                   const std::string& where)
{
    layout = grid_layout(told.extents, rows_together, domain, where);
    rows = layout.own_places();
}

SeriesRollOut::SeriesRollOut(const SeriesPlan& plan, std::span<Predictor> models, std::vector<SeriesTrack> tracks,
                             MeshReading reading, const std::filesystem::path& output, std::optional<MemoryMode> memory,
                             World& world, const std::shared_ptr<const DeviceMesh>& device_mesh)
    : plan_(plan), next_(plan.next()), where_(reading.where), device_(world.device()), device_mesh_(device_mesh),
      arrays_(models.front().data()), states_(models.front().data(), models.front().channels()),
      tracks_(std::move(tracks))
{
    const auto& all = device_mesh_->all();
    if (models.front().data().is_grid) {
        read_together(all, [&] { grid_.emplace(plan_, arrays_, models.front().data(), where_); });
        grid_->cut(models.front().rows_together(), device_mesh_, where_);
    } else {
        auto source = tracks_.front().source;
        source.file = plan_.start(0).file;
        reading.prepare = [&](Mesh& whole) { whole = told_mesh(plan_, arrays_, where_); };
        mesh_.emplace(source, models, reading, output, device_mesh_);
    }
    const auto bytes = memory_for_points(device_, all);
    for (const auto& [model, data, source, member] : tracks_) {
        model->move_to(device_);
        model->set_memory(memory ? *memory : model->memory_for(std::ssize(rows()), bytes));
        frames_.push_back(mesh_ ? case_frame(data.frame, mesh_->bounds(), source) : CaseFrame());
        auto told = mesh_ ? mesh_->inputs(*model, data, device_)
                          : grid_->layout.inputs(grid_->layout.own_rows(grid_->told.told).to(device_));
        if (grid_) add_case_inputs(told, *model, data, source, device_);
        inputs_.push_back(states_.with_state(told, states_.state(told), frames_.back()));
        scalings_.push_back(field_scaling(data, model->channels(), source));
    }
}

at::Tensor SeriesRollOut::next(std::size_t track)
{
    auto& [model, data, source, member] = tracks_[track];
    model->seed_sample(seed_of_state(member, static_cast<std::int64_t>(next_)));
    return states_.next(inputs_[track], model->predict(inputs_[track], scalings_[track]));
}

std::optional<DataArray> SeriesRollOut::told_after(std::size_t i, const Mesh& state) const
{
    const auto* given = i + 1 < plan_.num_states() ? plan_.followed(i + 1) : nullptr;
    if (!given) return {};
    std::optional<Mesh> of_next;
    std::optional<ReadState> read_next;
    if (!arrays_.given.empty()) read_next.emplace(of_next.emplace(read_state(*given)), *given, where_);
    return told_besides({state, *plan_.followed(i), where_}, read_next ? &*read_next : nullptr, plan_.step_to(i + 1),
                        arrays_);
}

void SeriesRollOut::go_on(std::size_t i, std::span<const at::Tensor> states, const std::optional<DataArray>& besides)
{
    next_ = i + 1;
    const auto of_next = plan_.followed(i + 1) ? own_rows(besides ? tensor_of(*besides) : at::Tensor())
                                               : with_step(states_.arrays(inputs_.front()), plan_.step_to(i + 1));
    for (std::size_t track = 0; track < tracks_.size(); ++track)
        inputs_[track] =
            states_.after(states_.with_arrays(inputs_[track], of_next), inputs_[track], states[track], frames_[track]);
}

at::Tensor SeriesRollOut::state_values(const Mesh& state, const SeriesState& of_state) const
{
    auto mesh = state;
    const ReadState read(state, of_state, where_);
    add_told(mesh, std::array{read}, &read, 0, arrays_);
    const auto& told = *find_array(arrays_.on_cells ? mesh.cell_data : mesh.point_data, kTold);
    return tensor_of(told).narrow(1, 0, states_.num_fields());
}

at::Tensor SeriesRollOut::own_rows(at::Tensor whole) const
{
    const auto& all = device_mesh_->all();
    const std::array<std::int64_t, 2> shape{whole.defined() ? whole.size(0) : 0, whole.defined() ? whole.size(1) : 0};
    const auto of_first = all.all_gather_integers(shape).front();
    whole = whole.defined() ? whole.contiguous() : torch::empty({of_first[0], of_first[1]});
    all.broadcast(whole, 0);
    return from_local(whole.index_select(0, torch::tensor(rows())).unsqueeze(0).to(device_),
                      spec_of(inputs_.front().embedding));
}

}  // namespace meshard
