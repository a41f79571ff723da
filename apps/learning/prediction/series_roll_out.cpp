// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/series_roll_out.h"

#include "apps/learning/cases/mesh_handover.h"
#include "apps/learning/cases/run_step.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/evaluation/case_sums.h"
#include "partition/error.h"
#include "sharding/tensor/host_values.h"
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
        states.emplace_back(told.back(), arrays.on_cells, state, where);
    }
    std::optional<Mesh> of_next;
    std::optional<ReadState> given;
    if (const auto* followed = plan.followed(plan.next()); followed && !arrays.given.empty())
        given.emplace(of_next.emplace(read_state(*followed)), arrays.on_cells, *followed, where);
    add_told(mesh, states, given ? &*given : nullptr, plan.step_to(plan.next()), arrays);
    return mesh;
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
        throw InvalidInput("{} has {} state{}, and the model is told {}.", start.string(), start_.size(),
                           start_.size() == 1 ? "" : "s", history_);
    if (!series.given.empty() && (wish.step || start_.size() < history_ + num_steps)) {
        throw InvalidInput("{}: the model is told '{}' of the state to be predicted, which a series "
                           "must give for each of the {} steps{}.",
                           start.string(), series.given.front(), num_steps,
                           wish.step
                               ? " at its own times; leave --step out"
                               : fmt::format("; it has {} states, of which {} are the start", start_.size(), history_));
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
        throw InvalidInput("{} has {} states, and this prediction {} to {}: it is another one. Leave "
                           "--resume out to begin anew.",
                           output.string(), done_.size(), history_, times_.size());
    for (std::size_t i = 0; i < done_.size(); ++i) {
        if (std::abs(done_[i].time - times_[i]) > 1e-9 * std::max(1.0, std::abs(times_[i])))
            throw InvalidInput("{}: its state {} is of time {}, and this prediction's of {}: it is "
                               "another one. Leave --resume out to begin anew.",
                               output.string(), i, done_[i].time, times_[i]);
    }
}

SeriesPlan::SeriesPlan(const Predictor& model, const Series& run)
    : history_(static_cast<std::size_t>(model.data().series.history)), start_(run.states), follows_(true)
{
    for (const auto& state : start_) times_.push_back(state.time);
}

std::filesystem::path state_of_track(const std::filesystem::path& state, std::size_t track)
{
    return state.parent_path() / fmt::format("{}.track_{}{}", state.stem().string(), track, state.extension().string());
}

SeriesState SeriesPlan::known(std::size_t i, std::size_t track) const
{
    auto state = known(i);
    if (i >= history_) state.file = state_of_track(state.file, track);
    return state;
}

void SeriesPlan::require_tracks(std::size_t num_tracks) const
{
    if (!goes_on() || next() == history_) return;
    const auto has = [&](std::size_t track) { return std::filesystem::exists(known(next() - 1, track).file); };
    if (num_tracks == 1 ? !has(0) : has(num_tracks - 1) && !has(num_tracks)) return;
    throw InvalidInput("{}: the states from which {} would go on are not beside it: it is complete, or "
                       "of another number of runs and samples. Leave --resume out to begin anew.",
                       known(next() - 1).file.string(),
                       num_tracks == 1 ? "it" : fmt::format("{} runs or samples", num_tracks));
}

SeriesRollOut::SeriesRollOut(const SeriesPlan& plan, std::span<Predictor> models, std::vector<SeriesTrack> tracks,
                             MeshReading reading, const std::filesystem::path& output, std::optional<MemoryMode> memory,
                             World& world, GridRanks& ranks)
    : plan_(plan), next_(plan.next()), where_(reading.where), device_(world.device()), device_mesh_(ranks.in_a_row()),
      arrays_(models.front().data()), states_(models.front().data(), models.front().channels()),
      tracks_(std::move(tracks))
{
    const auto& all = device_mesh_->all();
    at::Tensor told_of_grid;
    if (models.front().data().is_grid) {
        open_grid(models.front(), world, ranks);
        read_together(all, [&] {
            std::vector<const SeriesState*> states;
            for (std::size_t back = 1; back <= plan_.history(); ++back)
                states.push_back(&plan_.known(plan_.next() - back));
            told_of_grid =
                grid_->states->told(states, plan_.followed(plan_.next()), plan_.step_to(plan_.next())).to(device_);
            require_told(told_of_grid.size(-1), models.front().data(), where_);
        });
    } else {
        auto source = tracks_.front().source;
        source.file = plan_.start(0).file;
        reading.prepare = [&](Mesh& whole) {
            whole = told_mesh(plan_, arrays_, where_);
            const auto& rows = arrays_at(whole, arrays_.on_cells);
            require_told(find_array(rows, kTold)->num_components(), models.front().data(), where_);
        };
        mesh_.emplace(source, models, reading, output, device_mesh_);
    }
    for (const auto& [model, data, source, member] : tracks_) {
        model->move_to(device_);
        model->set_memory(memory ? *memory
                                 : memory_for_points(*model, grid_ ? grid_->box.num_rows() : std::ssize(mesh_->rows()),
                                                     device_, all));
        frames_.push_back(mesh_ ? case_frame(data.frame, mesh_->bounds(), source) : CaseFrame());
        auto told = mesh_ ? mesh_->inputs(*model, data, device_) : grid_->layout.inputs(told_of_grid);
        if (grid_) add_case_inputs(told, *model, data, source, device_);
        auto& inputs = inputs_.emplace_back(states_.with_state(told, states_.state(told), frames_.back()));
        scalings_.push_back(field_scaling(data, model->channels(), source));
        if (!plan_.goes_on() || tracks_.size() == 1) continue;
        for (auto back = plan_.history(); back > 0; --back) {
            const auto state = plan_.known(plan_.next() - back, inputs_.size() - 1);
            Mesh mesh;
            const auto own = fields_of(state, [&]() -> const Mesh& { return mesh = read_state(state); });
            inputs = states_.after(told, inputs, own, frames_.back());
        }
    }
}

at::Tensor SeriesRollOut::next(std::size_t track)
{
    auto& [model, data, source, member] = tracks_[track];
    model->seed_sample(seed_of_state(member, static_cast<std::int64_t>(next_)));
    return states_.next(inputs_[track], model->predict(inputs_[track], scalings_[track]));
}

void SeriesRollOut::open_grid(const Predictor& model, World& world, GridRanks& ranks)
{
    const auto& all = device_mesh_->all();
    const auto& data = model.data();
    std::vector<std::int64_t> extents;
    read_together(all, [&] {
        grid_.emplace().image = GridFile::open(plan_.start(0).file)->grid();
        extents = extents_of(grid_->image, data.on_cells, where_);
    });
    const auto& blocks = ranks.blocks(model.cut_of_grid(extents, world.size()));
    read_together(all, [&] {
        grid_->layout = grid_layout(extents, model.rows_together(), blocks, where_);
        grid_->box = grid_->layout.own_box(grid_->image, data.on_cells);
        grid_->states.emplace(grid_->image, grid_->box, data, where_);
    });
}

const Mesh& SeriesRollOut::read_whole(std::size_t i)
{
    if (read_ && read_->first == i) return read_->second;
    const auto& state = plan_.start(i);
    auto mesh = read_state(state);
    require_same_rows(whole(), mesh, state, where_);
    return read_.emplace(i, std::move(mesh)).second;
}

void SeriesRollOut::go_on(std::size_t i, std::span<const at::Tensor> states)
{
    next_ = i + 1;
    const auto* given = plan_.followed(i + 1);
    at::Tensor of_next;
    if (!given) {
        of_next = with_step(states_.arrays(inputs_.front()), plan_.step_to(i + 1));
    } else {
        const auto step = plan_.step_to(i + 1);
        at::Tensor besides;
        read_together(device_mesh_->all(), [&] {
            const auto& state = *plan_.followed(i);
            if (grid_) {
                besides = grid_->states->told_besides(state, given, step);
            } else if (device_mesh_->all().rank() == 0) {
                std::optional<Mesh> of_given;
                std::optional<ReadState> read_given;
                if (!arrays_.given.empty())
                    read_given.emplace(of_given.emplace(read_state(*given)), arrays_.on_cells, *given, where_);
                besides = float_rows(told_besides({read_whole(i), arrays_.on_cells, state, where_},
                                                  read_given ? &*read_given : nullptr, step, arrays_));
            }
        });
        of_next = grid_ ? laid_out(besides) : own_rows(besides);
        const auto& inputs = inputs_.front();
        const auto num_others = states_.arrays(inputs).size(-1);
        const auto& data = tracks_.front().data;
        require_told(std::ssize(data.series.told) - num_others + of_next.size(-1), data,
                     state_text(where_, *plan_.followed(i)));
    }
    for (std::size_t track = 0; track < tracks_.size(); ++track)
        inputs_[track] =
            states_.after(states_.with_arrays(inputs_[track], of_next), inputs_[track], states[track], frames_[track]);
}

/// @param read   reads it, of meshes
at::Tensor SeriesRollOut::fields_of(const SeriesState& state, const std::function<const Mesh&()>& read)
{
    at::Tensor values;
    read_together(device_mesh_->all(), [&] {
        if (grid_)
            values = grid_->states->told_fields(state);
        else if (device_mesh_->all().rank() == 0)
            values = float_rows(told_fields({read(), arrays_.on_cells, state, where_}, arrays_));
        if (values.defined() && values.size(-1) != states_.num_fields())
            throw InvalidInput("{}: the fields have {} components, and those of the model {}.",
                               state_text(where_, state), values.size(-1), states_.num_fields());
    });
    return grid_ ? laid_out(values) : own_rows(values);
}

void SeriesRollOut::require_same_start()
{
    for (std::size_t i = 0; i < plan_.history(); ++i) {
        const auto& before = plan_.known(i);
        Mesh mesh;
        const auto expected = to_local(true_state(i));
        const auto found = to_local(fields_of(before, [&]() -> const Mesh& { return mesh = read_state(before); }));
        read_together(device_mesh_->all(), [&] {
            if (!at::allclose(found, expected, 0, 0, true))
                throw InvalidInput("{} is not the state {} of the start: it is another prediction. Leave "
                                   "--resume out to begin anew.",
                                   before.file.string(), i);
        });
    }
}

at::Tensor SeriesRollOut::geometry(std::size_t i, const at::Tensor& state)
{
    if (!states_.moves_points()) return mesh_->geometry();
    const bool is_given = states_.moves_as_given();
    const auto& all = device_mesh_->all();
    at::Tensor places;
    if (!is_given) places = rows_on_first_rank(to_local(states_.places(state)).squeeze(0).cpu(), mesh_->rows(), all);
    at::Tensor of_mesh;
    read_together(all, [&] {
        if (all.rank() != 0) return;
        auto moved = whole();
        moved.points =
            is_given ? read_whole(i).points : DataArray::from(moved.points.name(), values_on_host<float>(places), 3);
        of_mesh = torch::tensor(row_geometry(moved, arrays_.on_cells), torch::kDouble).view({-1, kGeometryColumns});
    });
    return to_local(own_rows(of_mesh)).squeeze(0).cpu();
}

at::Tensor SeriesRollOut::laid_out(const at::Tensor& own) const
{
    return from_local(own.unsqueeze(0).to(device_), spec_of(inputs_.front().embedding));
}

at::Tensor SeriesRollOut::own_rows(at::Tensor whole) const
{
    const auto& all = device_mesh_->all();
    std::array<std::int64_t, 3> shape{};
    if (whole.defined()) shape = {whole.size(0), whole.size(1), static_cast<std::int64_t>(whole.scalar_type())};
    const auto of_first = all.all_gather_integers(shape).front();
    whole = whole.defined() ? whole.contiguous()
                            : torch::empty({of_first[0], of_first[1]}, static_cast<at::ScalarType>(of_first[2]));
    all.broadcast(whole, 0);
    return laid_out(whole.index_select(0, torch::tensor(mesh_->rows())));
}

}  // namespace meshard
