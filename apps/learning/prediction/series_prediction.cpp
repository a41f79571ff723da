// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/series_prediction.h"

#include "apps/console/console.h"
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/cases/run_step.h"
#include "apps/learning/cases/state_channels.h"
#include "apps/learning/grids/grid_case.h"
#include "apps/learning/prediction/case_mesh.h"
#include "apps/learning/prediction/prediction_spread.h"
#include "apps/learning/prediction/prediction_table.h"
#include "apps/learning/prediction/usable_input.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/interruption.h"
#include "io/bytes/made_folders.h"
#include "io/mesh_io.h"
#include "io/series.h"
#include "io/vtk/image_file.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {
namespace {

/// Returns the index of the states that are written one by one: the output itself, or beside a .vtkhdf NAME_steps.pvd.
std::filesystem::path index_of(const std::filesystem::path& output)
{
    if (output.extension() == ".pvd") return output;
    return output.parent_path() / (output.stem().string() + "_steps.pvd");
}

/// Joins the states in the output, if that is one file, and removes them.
void join_states(const std::filesystem::path& output)
{
    const auto index = index_of(output);
    if (output == index) return;
    const auto states = read_series(index);
    std::vector<double> times;
    for (const auto& state : states) times.push_back(state.time);
    write_vtkhdf_series(output, times, [&](std::size_t i) { return read_mesh(states[i].file); });
    std::filesystem::remove(index);
    for (const auto& state : states) std::filesystem::remove(state.file);
    std::error_code is_kept;  // a folder with other files
    std::filesystem::remove(states.front().file.parent_path(), is_kept);
}

/// Which states there are, and which are to be predicted.
class SeriesPlan {
public:
    /// @throws InvalidInput, IoError as `predict_series`
    SeriesPlan(const Predictor& model, const std::filesystem::path& start, const std::filesystem::path& output,
               const SeriesPrediction& wish)
        : history_(static_cast<std::size_t>(model.data().series.history)), start_(read_series(start))
    {
        const auto& series = model.data().series;
        const auto num_steps = static_cast<std::size_t>(wish.num_steps);
        if (start_.size() < history_)
            throw InvalidInput(fmt::format("{} has {} state{}, and the model is told {}.", start.string(),
                                           start_.size(), start_.size() == 1 ? "" : "s", history_));
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
        if (!wish.goes_on) return;
        const auto& written = std::filesystem::exists(index_of(output)) ? index_of(output) : output;
        if (!std::filesystem::exists(written)) return;
        done_ = read_series(written);
        is_finished_ = written.extension() != ".pvd";
        if (is_finished_ && done_.size() != times_.size())
            throw InvalidInput(fmt::format("{} has {} states, and this prediction {}. Give it as the start of another "
                                           "one to go on.",
                                           output.string(), done_.size(), times_.size()));
        if (done_.size() < history_ || done_.size() > times_.size())
            throw InvalidInput(fmt::format("{} has {} states, and this prediction {} to {}: it is another one. Leave "
                                           "--resume out to begin anew.",
                                           written.string(), done_.size(), history_, times_.size()));
        for (std::size_t i = 0; i < done_.size(); ++i) {
            if (std::abs(done_[i].time - times_[i]) > 1e-9 * std::max(1.0, std::abs(times_[i])))
                throw InvalidInput(fmt::format("{}: its state {} is of time {}, and this prediction's of {}: it is "
                                               "another one. Leave --resume out to begin anew.",
                                               written.string(), i, done_[i].time, times_[i]));
        }
    }

    std::size_t history() const { return history_; }
    std::size_t num_states() const { return times_.size(); }
    /// The first state that is not written yet; those before the history are the start's own.
    std::size_t next() const { return std::max(done_.size(), history_); }
    bool goes_on() const { return !done_.empty(); }
    bool is_finished() const { return is_finished_; }
    double time(std::size_t i) const { return times_[i]; }
    double step_to(std::size_t i) const { return times_[i] - times_[i - 1]; }
    const SeriesState& start(std::size_t i) const { return start_[i]; }
    /// A state that is there: of the start, or predicted before.
    const SeriesState& known(std::size_t i) const { return goes_on() ? done_[i] : start_[i]; }
    /// The start's state whose arrays are those of a predicted state; null where the start has none.
    const SeriesState* followed(std::size_t i) const { return follows_ && i < start_.size() ? &start_[i] : nullptr; }

private:
    std::size_t history_;
    std::vector<SeriesState> start_, done_;
    std::vector<double> times_;
    bool follows_ = false, is_finished_ = false;
};

/// Reads what the first rank tells the others of the start: the first state's mesh with the array `kTold`.
Mesh told_mesh(const SeriesPlan& plan, const StateArrays& arrays, const std::string& where)
{
    auto mesh = read_state(plan.start(0));
    std::vector<Mesh> told;
    std::vector<const Mesh*> states;
    told.reserve(plan.history());
    for (std::size_t back = 1; back <= plan.history(); ++back) {
        const auto& state = plan.known(plan.next() - back);
        told.push_back(read_state(state));
        require_same_rows(mesh, told.back(), state, where);
        states.push_back(&told.back());
    }
    std::optional<Mesh> given;
    if (const auto* followed = plan.followed(plan.next()); followed && !arrays.given.empty())
        given = read_state(*followed);
    add_told(mesh, states, given ? &*given : nullptr, plan.step_to(plan.next()), arrays, where);
    return mesh;
}

/// The mesh of a state that is written, on the first rank.
class StateMesh {
public:
    /// @param grid   whose points and cells are those of the mesh; null for a mesh that is none
    StateMesh(const Mesh& start, const StateArrays& arrays, const ImageGrid* grid)
        : mesh_(start), arrays_(arrays), grid_(grid)
    {
        remove_computed_inputs(mesh_);
        for (auto* group : {&mesh_.point_data, &mesh_.cell_data})
            std::erase_if(*group, [&](const DataArray& array) { return !is_told(array.name()); });
        mesh_.field_data.clear();
    }

    /// Takes the arrays that are no state from a mesh with the same rows.
    void take_arrays(const Mesh& from)
    {
        for (const auto* names : {&arrays_.arrays, &arrays_.given})
            for (const auto& name : *names) put(*find_array(arrays_.on_cells ? from.cell_data : from.point_data, name));
    }

    /// Takes the arrays of a field from a state of the start.
    void keep(const Mesh& state, const FieldConfig& field)
    {
        if (field.state != kCoordinates)
            put(*find_array(arrays_.on_cells ? state.cell_data : state.point_data, field.state));
    }

    /// @param values   (rows, channels) of all fields  @param spread   of the same; undefined: none
    void take_fields(const at::Tensor& values, const at::Tensor& spread, const std::vector<std::int64_t>& channels)
    {
        std::int64_t channel = 0;
        for (std::size_t f = 0; f < channels.size(); ++f) {
            const auto& name = arrays_.fields[f].state;
            auto array = array_of(values.narrow(1, channel, channels[f]), name);
            if (name == kCoordinates) {
                array.rename(mesh_.points.name());
                mesh_.points = std::move(array);
            } else {
                put(std::move(array));
            }
            if (spread.defined())
                put(array_of(spread.narrow(1, channel, channels[f]), arrays_.fields[f].name + "_spread"));
            channel += channels[f];
        }
    }

    void write(const std::filesystem::path& file, double time)
    {
        mesh_.field_data = {DataArray::from("TimeValue", std::vector<double>{time})};
        if (!grid_) return write_mesh(file, mesh_);
        auto grid = *grid_;
        grid.point_data = mesh_.point_data;
        grid.cell_data = mesh_.cell_data;
        grid.field_data = mesh_.field_data;
        write_image(file, grid);
    }

private:
    bool is_told(const std::string& name) const
    {
        const auto has = [&](const std::vector<std::string>& names) {
            return std::ranges::find(names, name) != names.end();
        };
        return has(arrays_.arrays) || has(arrays_.given) || has(arrays_.kept);
    }
    static DataArray array_of(const at::Tensor& values, const std::string& name)
    {
        const auto rows = values.contiguous();
        const auto* begin = rows.const_data_ptr<float>();
        return DataArray::from(name, std::vector<float>(begin, begin + rows.numel()),
                               static_cast<std::int32_t>(rows.size(1)));
    }
    void put(DataArray array)
    {
        auto& group = arrays_.on_cells ? mesh_.cell_data : mesh_.point_data;
        std::erase_if(group, [&](const DataArray& other) { return other.name() == array.name(); });
        group.push_back(std::move(array));
    }

    Mesh mesh_;
    const StateArrays& arrays_;
    const ImageGrid* grid_;
};

/// The series that is written: an index, and a file a state beside it.
class SeriesOutput {
public:
    SeriesOutput(std::filesystem::path index, std::string extension)
        : index_(std::move(index)), extension_(std::move(extension))
    {
    }

    std::string name(std::size_t i) const
    {
        const auto stem = index_.stem().string();
        return fmt::format("{0}/{0}_{1:04}{2}", stem, i, extension_);
    }
    std::filesystem::path file(std::size_t i) const { return index_.parent_path() / name(i); }

    /// Writes the index of the first `count` states.
    void write_index(const SeriesPlan& plan, std::size_t count) const
    {
        std::string text = "<?xml version=\"1.0\"?>\n<VTKFile type=\"Collection\" version=\"0.1\">\n  <Collection>\n";
        for (std::size_t i = 0; i < count; ++i)
            text += fmt::format("    <DataSet timestep=\"{}\" part=\"0\" file=\"{}\"/>\n", plan.time(i), name(i));
        write_file_atomically(index_, text + "  </Collection>\n</VTKFile>\n");
    }

private:
    std::filesystem::path index_;
    std::string extension_;
};

/// The table of drag and lift, a line a state.
class ForceTable {
public:
    /// Keeps the lines of the first `num_done` states from an earlier part of the prediction.
    ForceTable(std::filesystem::path file, std::size_t num_done) : file_(std::move(file))
    {
        std::ifstream before(num_done > 0 ? file_ : std::filesystem::path());
        for (std::string line; std::getline(before, line);) {
            std::size_t state = 0;
            if (std::sscanf(line.c_str(), "%zu,", &state) == 1 && state < num_done) text_ += line + "\n";
        }
    }

    void add(std::size_t state, double time, const PredictedForces& forces)
    {
        const MeanOfPredictions drag(forces.drag), lift(forces.lift);
        text_ += fmt::format("{},{}", state, time);
        for (const auto& value : {drag.mean, lift.mean, drag.deviation, lift.deviation})
            text_ += value ? fmt::format(",{}", *value) : ",";
        text_ += "\n";
        write_file_atomically(file_, "state,time,Cd,Cl,Cd_std,Cl_std\n" + text_);
    }

private:
    std::filesystem::path file_;
    std::string text_;
};

/// Makes a tensor (1, rows, columns) of this rank's rows of an array that the first rank has. Collective.
at::Tensor own_rows(const std::optional<DataArray>& whole, const std::vector<std::int64_t>& rows, const SpecPtr& spec,
                    const at::Device& device, const RankGroup& all)
{
    const std::array<std::int64_t, 2> shape{whole ? whole->num_rows() : 0, whole ? whole->num_components() : 0};
    const auto of_first = all.all_gather_integers(shape).front();
    auto values = torch::empty({of_first[0], of_first[1]});
    if (whole) std::ranges::copy(whole->values<float>(), values.data_ptr<float>());
    all.broadcast(values, 0);
    return from_local(values.index_select(0, torch::tensor(rows)).unsqueeze(0).to(device), spec);
}

/// Replaces the time to the next state.
at::Tensor with_step(const at::Tensor& arrays, double step)
{
    auto local = to_local(arrays).clone();
    local.select(-1, local.size(-1) - 1).fill_(step);
    return from_local(local, spec_of(arrays));
}

/// A start that is a regular grid, which each rank reads whole and of which it takes its rows.
struct StartGrid {
    StartGrid(const SeriesPlan& plan, const StateArrays& arrays, const DataConfig& data, const std::string& where)
        : image(read_image(plan.start(0).file)), mesh(told_mesh(plan, arrays, where)),
          told(grid_rows_of_step(mesh, image, data, false, where))
    {
    }

    void cut(std::int64_t rows_together, const std::shared_ptr<const DeviceMesh>& domain)
    {
        spec = spec_of_grid(told.extents, rows_together, domain);
        const auto me = domain->coordinate(domain->axis("domain"));
        rows.resize(static_cast<std::size_t>((*spec->axes[0].extents)[me]));
        std::iota(rows.begin(), rows.end(), spec->axes[0].offset(me));
    }

    PointInputs inputs(const at::Device& device) const
    {
        PointInputs inputs;
        inputs.embedding = own_rows_of_grid(told.told.to(device), spec);
        inputs.grid = told.extents;
        return inputs;
    }

    ImageGrid image;
    Mesh mesh;
    GridRows told;
    SpecPtr spec;
    std::vector<std::int64_t> rows;  // of this rank
};

}  // namespace

void predict_series(std::span<Predictor> models, const std::filesystem::path& start,
                    const std::filesystem::path& output, const PredictionOptions& options,
                    const SeriesPrediction& series, World& world)
{
    const auto device_mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const auto& all = device_mesh->all();
    const bool is_first = world.rank() == 0;
    const auto& data = models.front().data();
    const auto name = start.filename().string();
    const auto device = world.device();
    const StateArrays arrays(data);
    const StateChannels states(data, models.front().channels());

    std::optional<SeriesPlan> planned;
    read_together(all, [&] { planned.emplace(models.front(), start, output, series); });
    const auto& plan = *planned;
    if (plan.is_finished()) return;
    const auto finish = [&] {
        read_together(all, [&] {
            if (is_first) join_states(output);
        });
    };
    if (plan.next() == plan.num_states()) return finish();

    auto source = said_case(models.front(), options, name, false).source;
    source.file = plan.start(0).file;
    std::optional<CaseMesh> mesh;
    std::optional<StartGrid> grid;
    if (data.is_grid) {
        read_together(all, [&] { grid.emplace(plan, arrays, data, name); });
        grid->cut(models.front().rows_together(), device_mesh);
    } else {
        MeshReading reading{.where = name};
        reading.prepare = [&](Mesh& whole) { whole = told_mesh(plan, arrays, name); };
        reading.report = [](const std::string& fault) { warn("predict", fault); };
        reading.with_geometry = reading.with_forces = !series.forces.empty();
        mesh.emplace(source, models, reading, output, device_mesh);
    }
    const auto& whole = grid ? grid->mesh : mesh->whole();  // on the first rank
    const auto& rows = grid ? grid->rows : mesh->rows();

    std::vector<PointInputs> inputs;
    std::vector<FieldScaling> scalings;
    std::vector<CaseFrame> frames;
    const auto bytes = memory_for_points(world, all);
    for (auto& model : models) {
        const auto said = said_case(model, options, name, is_first && inputs.empty());
        model.move_to(device);
        model.set_memory(options.memory ? *options.memory : model.memory_for(std::ssize(rows), bytes));
        if (mesh) frames.push_back(case_frame(said.data.frame, mesh->bounds(), source));
        auto told = mesh ? mesh->inputs(model, said.data, device) : grid->inputs(device);
        if (grid) {
            frames.emplace_back();
            add_case_inputs(told, model, said.data, said.source, device);
        }
        warn_of_ranges(model, told, name, models.size() > 1, all);
        inputs.push_back(states.with_state(told, states.state(told), frames.back()));
        scalings.push_back(field_scaling(said.data, model.channels(), said.source));
    }

    std::optional<MadeFolders> folders;
    std::optional<StateMesh> written;
    std::optional<ForceTable> table;
    const JudgedFields layout(data.fields, models.front().channels());
    const SeriesOutput files(index_of(output), grid ? ".vti" : whole.kind == MeshKind::Surface ? ".vtp" : ".vtu");
    const auto* image = grid ? &grid->image : nullptr;
    read_together(all, [&] {
        if (!is_first) return;
        folders.emplace(files.file(0));
        written.emplace(whole, arrays, image);
        if (!series.forces.empty()) table.emplace(series.forces, plan.goes_on() ? plan.next() : 0);
        if (plan.goes_on()) return;
        for (std::size_t i = 0; i < plan.history(); ++i) {
            const auto state = read_state(plan.start(i));
            StateMesh one(state, arrays, image);
            for (const auto& field : arrays.fields) one.keep(state, field);
            one.write(files.file(i), plan.time(i));
        }
        files.write_index(plan, plan.history());
    });

    for (auto i = plan.next(); i < plan.num_states(); ++i) {
        say_on_interruption_of("predict",
                               fmt::format("{} of {} states are written. Go on with --resume.", i, plan.num_states()));
        throw_if_interrupted();
        PredictionSpread predictions;
        std::vector<at::Tensor> next;
        std::vector<ForceSums> sums;
        for (std::size_t m = 0; m < models.size(); ++m) {
            next.push_back(states.next(inputs[m], models[m].predict(inputs[m], scalings[m])));
            const auto own = to_local(next.back()).squeeze(0).cpu();
            predictions.add(own);
            if (!series.forces.empty())
                sums.push_back(case_sums(own, own, mesh->geometry(), layout, torch::zeros({own.size(1)}), all).forces);
        }
        const auto values = rows_on_first_rank(predictions.mean(), rows, all);
        const auto deviations = models.size() > 1 ? rows_on_first_rank(predictions.spread(), rows, all) : at::Tensor();
        std::optional<DataArray> besides;
        const auto* followed = plan.followed(i);
        const auto* given = i + 1 < plan.num_states() ? plan.followed(i + 1) : nullptr;
        read_together(all, [&] {
            if (!is_first) return;
            if (!torch::isfinite(values).all().item<bool>())
                throw Error(fmt::format("the state predicted at {} is not finite: the roll-out has diverged. The {} "
                                        "states before it are in {}.",
                                        plan.time(i), i, output.string()));
            if (followed) {
                const auto state = read_state(*followed);
                require_same_rows(whole, state, *followed, name);
                written->take_arrays(state);
                std::optional<Mesh> of_next;
                if (given && !arrays.given.empty()) of_next = read_state(*given);
                if (given)
                    besides = told_besides(state, of_next ? &*of_next : nullptr, plan.step_to(i + 1), arrays, name);
            }
            written->take_fields(values, deviations, models.front().channels());
            written->write(files.file(i), plan.time(i));
            if (table) {
                const auto forces = predicted_forces(sums, models.front(), layout, source);
                if (forces.drag.empty()) throw InvalidInput(fmt::format("no drag and lift: {}.", forces.why));
                table->add(i, plan.time(i), forces);
            }
            files.write_index(plan, i + 1);
        });
        if (i + 1 == plan.num_states()) break;
        const auto spec = spec_of(inputs.front().embedding);
        const auto of_next = given ? own_rows(besides, rows, spec, device, all)
                                   : with_step(states.arrays(inputs.front()), plan.step_to(i + 1));
        for (std::size_t m = 0; m < models.size(); ++m)
            inputs[m] = states.after(states.with_arrays(inputs[m], of_next), inputs[m], next[m], frames[m]);
    }
    finish();
}

}  // namespace meshard
