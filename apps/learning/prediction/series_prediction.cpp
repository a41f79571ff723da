// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/series_prediction.h"

#include "apps/console/console.h"
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/cases/run_step.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/prediction/prediction_spread.h"
#include "apps/learning/prediction/prediction_table.h"
#include "apps/learning/prediction/series_roll_out.h"
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
#include <cstdio>
#include <fstream>
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

/// Whether a file has the folder and the beginning of the name of the states that are written beside an index.
bool is_state_of(const std::filesystem::path& index, const std::filesystem::path& file)
{
    const auto stem = index.stem().string();
    return std::filesystem::weakly_canonical(file).parent_path() ==
               std::filesystem::weakly_canonical(std::filesystem::absolute(index).parent_path() / stem) &&
           file.filename().string().starts_with(stem + "_");
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
    const auto folder = states.front().file.parent_path();
    std::vector<std::filesystem::path> own;  // states, and what a kill left of one
    const auto beginning = index.stem().string() + "_";
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const auto name = entry.path().filename().string();
        if (name.starts_with(beginning) || name.starts_with("." + beginning)) own.push_back(entry.path());
    }
    for (const auto& file : own) std::filesystem::remove(file);
    std::error_code is_kept;  // a folder with other files
    std::filesystem::remove(folder, is_kept);
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

/// The table of the coefficients, a line a state.
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
        std::string names, deviations_names, deviations;
        text_ += fmt::format("{},{}", state, time);
        for (const std::string name : kForceCoefficients) {
            const auto found = forces.of_fields.find(name);
            if (found == forces.of_fields.end()) continue;
            const MeanOfPredictions values(found->second);
            names += "," + name;
            deviations_names += "," + name + "_std";
            text_ += fmt::format(",{}", *values.mean);
            deviations += values.deviation ? fmt::format(",{}", *values.deviation) : ",";
        }
        text_ += deviations + "\n";
        write_file_atomically(file_, "state,time" + names + deviations_names + "\n" + text_);
    }

private:
    std::filesystem::path file_;
    std::string text_;
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

    std::optional<SeriesPlan> planned;
    const auto index = index_of(output);
    const bool is_joined = series.goes_on && !std::filesystem::exists(index) && std::filesystem::exists(output);
    read_together(all, [&] {
        planned.emplace(models.front(), start, is_joined ? output : index, series);
        if (is_joined && planned->next() < planned->num_states())
            throw InvalidInput(fmt::format("{} has {} states, and this prediction {}. Give it as the start of another "
                                           "one to go on.",
                                           output.string(), planned->next(), planned->num_states()));
    });
    const auto& plan = *planned;
    if (is_joined) return;
    for (std::size_t i = 0; i < plan.num_states() && !plan.goes_on(); ++i) {
        const auto* state = i < plan.history() ? &plan.start(i) : plan.followed(i);
        if (state && is_state_of(index, state->file))
            throw UsageError(fmt::format("the state {}, which is read, is among those of {} that would be replaced. "
                                         "Name another output.",
                                         state->file.string(), output.string()));
    }
    const auto finish = [&] {
        read_together(all, [&] {
            if (is_first) join_states(output);
        });
    };
    if (plan.next() == plan.num_states()) return finish();

    std::vector<SeriesTrack> tracks;
    for (auto& model : models) {
        const auto said = said_case(model, options, name, is_first && tracks.empty());
        if (series.num_levels > 0) model.set_noise_levels(series.num_levels);
        for (std::int64_t sample = 0; sample < series.num_samples; ++sample)
            tracks.push_back({&model, said.data, said.source, series.seed + tracks.size()});
    }
    const auto num_tracks = tracks.size();
    const auto source = tracks.front().source;
    MeshReading reading{.where = name};
    reading.report = [](const std::string& fault) { warn("predict", fault); };
    reading.with_geometry = reading.with_forces = !series.forces.empty();
    SeriesRollOut roll_out(plan, models, std::move(tracks), reading, output, options.memory, world, device_mesh);
    for (std::size_t m = 0; m < models.size(); ++m)
        warn_of_ranges(models[m], roll_out.inputs(m * num_tracks / models.size()), name, models.size() > 1, all);
    const auto& arrays = roll_out.arrays();
    const auto& whole = roll_out.whole();  // on the first rank
    const auto& rows = roll_out.rows();

    std::optional<MadeFolders> folders;
    std::optional<StateMesh> written;
    std::optional<ForceTable> table;
    const JudgedFields layout(data.fields, models.front().channels());
    const SeriesOutput files(index, roll_out.image() ? ".vti" : whole.kind == MeshKind::Surface ? ".vtp" : ".vtu");
    const auto* image = roll_out.image();
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
        for (std::size_t track = 0; track < num_tracks; ++track) {
            next.push_back(roll_out.next(track));
            const auto own = to_local(next.back()).squeeze(0).cpu();
            predictions.add(own);
            if (!series.forces.empty())
                sums.push_back(
                    case_sums(own, own, roll_out.geometry(), layout, torch::zeros({own.size(1)}), all).forces);
        }
        const auto values = rows_on_first_rank(predictions.mean(), rows, all);
        const auto deviations = num_tracks > 1 ? rows_on_first_rank(predictions.spread(), rows, all) : at::Tensor();
        std::optional<DataArray> besides;
        const auto* followed = plan.followed(i);
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
                besides = roll_out.told_after(i, state);
            }
            written->take_fields(values, deviations, models.front().channels());
            written->write(files.file(i), plan.time(i));
            if (table) {
                const auto forces = predicted_forces(sums, models.front(), layout, source);
                if (forces.of_fields.empty()) throw InvalidInput(fmt::format("no drag and lift: {}.", forces.why));
                table->add(i, plan.time(i), forces);
            }
            files.write_index(plan, i + 1);
        });
        if (i + 1 == plan.num_states()) break;
        roll_out.go_on(i, next, besides);
    }
    finish();
}

}  // namespace meshard
