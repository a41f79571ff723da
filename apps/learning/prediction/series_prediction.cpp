// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/series_prediction.h"

#include "apps/console/console.h"
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/cases/run_step.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/prediction/grid_output.h"
#include "apps/learning/prediction/prediction_spread.h"
#include "apps/learning/prediction/prediction_table.h"
#include "apps/learning/prediction/series_roll_out.h"
#include "apps/learning/prediction/told_values.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/interruption.h"
#include "io/bytes/made_folders.h"
#include "io/bytes/mapped_file.h"
#include "io/mesh_io.h"
#include "io/series.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"
#include "sharding/tensor/host_values.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {
namespace {

constexpr const char* kTimeValue = "TimeValue";

/// Returns the index of the states that are written one by one: the output itself, or beside a .vtkhdf NAME_steps.pvd.
std::filesystem::path index_of(const std::filesystem::path& output)
{
    if (lower_extension(output) == ".pvd") return output;
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

/// Gives a state the arrays of another one, in their order and types: told states have the types of the start's files,
/// and no spread, which is 0.
void lay_out_as(Mesh& state, const Mesh& like)
{
    const auto converted = [](const DataArray* from, const DataArray& like) {
        DataArray array(like.name(), like.type(), like.num_rows(), like.num_components());
        if (!from) return array;
        if (from->type() == like.type()) return *from;
        with_scalar_type(like.type(), [&]<class T>() {
            std::ranges::transform(from->to_doubles(), array.mutable_values<T>().begin(),
                                   [](double value) { return static_cast<T>(value); });
        });
        return array;
    };
    state.points = converted(&state.points, like.points);
    for (auto group : {&Mesh::point_data, &Mesh::cell_data}) {
        std::vector<DataArray> arrays;
        for (const auto& array : like.*group)
            arrays.push_back(converted(find_array(state.*group, array.name()), array));
        state.*group = std::move(arrays);
    }
}

/// Gives each row the numbers of the whole state: a file with several states has no field data.
void spread_constants(Mesh& state, bool on_cells)
{
    for (const auto& constant : state.field_data) {
        if (constant.name() == kTimeValue) continue;
        DataArray array(constant.name(), constant.type(), on_cells ? state.num_cells() : state.num_points(),
                        constant.num_components());
        const auto row = constant.bytes();
        for (auto to = array.mutable_bytes(); !to.empty(); to = to.subspan(row.size()))
            std::ranges::copy(row, to.begin());
        arrays_at(state, on_cells).push_back(std::move(array));
    }
}

/// Joins the states in the output, if that is one file, and removes them.
void join_states(const std::filesystem::path& output, bool on_cells)
{
    const auto index = index_of(output);
    if (output == index) return;
    const auto states = read_series(index);
    std::vector<double> times;
    for (const auto& state : states) times.push_back(state.time);
    const auto read = [&](const std::filesystem::path& file) {
        auto state = read_mesh(file);
        spread_constants(state, on_cells);
        return state;
    };
    const auto last = read(states.back().file);
    write_vtkhdf_series(output, times, [&](std::size_t i) {
        auto state = read(states[i].file);
        lay_out_as(state, last);
        return state;
    });
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

/// Adds an array behind the others, in place of those of its name.
void put_last(std::vector<DataArray>& arrays, DataArray array)
{
    std::erase_if(arrays, [&](const DataArray& other) { return other.name() == array.name(); });
    arrays.push_back(std::move(array));
}

/// Returns the arrays of the fields, and with a spread those of it behind each.
/// @param values   (rows, channels) of all fields  @param spread   of the same; undefined: none
std::vector<DataArray> arrays_of_fields(const at::Tensor& values, const at::Tensor& spread, const StateArrays& arrays,
                                        const std::vector<std::int64_t>& channels)
{
    std::vector<DataArray> of_fields;
    std::int64_t channel = 0;
    const auto add = [&](const at::Tensor& of_all, const std::string& name, std::int64_t count) {
        of_fields.push_back(DataArray::from(name, values_on_host<float>(of_all.narrow(1, channel, count)),
                                            static_cast<std::int32_t>(count)));
    };
    for (std::size_t f = 0; f < channels.size(); ++f) {
        add(values, arrays.fields[f].state, channels[f]);
        if (spread.defined()) add(spread, arrays.fields[f].name + "_spread", channels[f]);
        channel += channels[f];
    }
    return of_fields;
}

DataArray time_value(double time)
{
    return DataArray::from(kTimeValue, std::vector<double>{time});
}

/// The mesh of a state that is written, on the first rank.
class StateMesh {
public:
    StateMesh(const Mesh& start, const StateArrays& arrays) : mesh_(start), arrays_(arrays)
    {
        remove_computed_inputs(mesh_);
        for (auto* group : {&mesh_.point_data, &mesh_.cell_data})
            std::erase_if(*group, [&](const DataArray& array) { return !is_told(array.name()); });
        std::erase_if(mesh_.field_data, [&](const DataArray& array) { return !is_told(array.name()); });
    }

    /// Takes the arrays that are no state from a mesh with the same rows. @throws InvalidInput, beginning with
    /// `where`, for one that is missing
    void take_arrays(const Mesh& from, const std::string& where)
    {
        for (const auto* names : {&arrays_.arrays, &arrays_.given})
            for (const auto& name : *names)
                if (name == kCoordinates)
                    mesh_.points = from.points;
                else if (find_array(mesh_.field_data, name) && find_array(from.field_data, name))
                    *std::ranges::find(mesh_.field_data, name, &DataArray::name) = *find_array(from.field_data, name);
                else
                    put(require_array(from, arrays_.on_cells, name, where));
    }

    /// Takes the arrays of a field from a state of the start.
    void keep(const Mesh& state, const FieldConfig& field)
    {
        if (field.state != kCoordinates) put(*find_array(arrays_at(state, arrays_.on_cells), field.state));
    }

    /// Takes what `arrays_of_fields` returns, of all rows.
    void take_fields(std::vector<DataArray> fields)
    {
        for (auto& array : fields) {
            if (array.name() == kCoordinates) {
                array.rename(mesh_.points.name());
                mesh_.points = std::move(array);
            } else {
                put(std::move(array));
            }
        }
    }

    void write(const std::filesystem::path& file, double time)
    {
        mesh_.field_data.push_back(time_value(time));
        write_mesh(file, mesh_);
        mesh_.field_data.pop_back();
    }

private:
    bool is_told(const std::string& name) const
    {
        return contains(arrays_.arrays, name) || contains(arrays_.given, name) || contains(arrays_.kept, name);
    }
    void put(DataArray array) { put_last(arrays_at(mesh_, arrays_.on_cells), std::move(array)); }

    Mesh mesh_;
    const StateArrays& arrays_;
};

/// Writes the states of a series. All functions are collective.
class StateWriter {
public:
    StateWriter(const SeriesPlan& plan, SeriesRollOut& roll_out, const RankGroup& ranks)
        : plan_(plan), roll_out_(roll_out), ranks_(ranks)
    {
    }
    StateWriter(const StateWriter&) = delete;
    StateWriter& operator=(const StateWriter&) = delete;
    virtual ~StateWriter() = default;

    /// Writes a state that is told.
    virtual void write_told(std::size_t i, const std::filesystem::path& file) = 0;
    /// Writes a predicted state. @param values, spread   as of `arrays_of_fields`, of this rank's rows
    virtual void write(std::size_t i, const std::filesystem::path& file, const at::Tensor& values,
                       const at::Tensor& spread, const std::vector<std::int64_t>& channels) = 0;

protected:
    const SeriesPlan& plan_;
    SeriesRollOut& roll_out_;
    const RankGroup& ranks_;
};

/// Writes meshes, which the first rank holds whole.
class MeshWriter : public StateWriter {
public:
    MeshWriter(const SeriesPlan& plan, SeriesRollOut& roll_out, const RankGroup& ranks)
        : StateWriter(plan, roll_out, ranks)
    {
        if (is_first()) written_.emplace(roll_out_.whole(), roll_out_.arrays());
    }

    void write_told(std::size_t i, const std::filesystem::path& file) override
    {
        read_together(ranks_, [&] {
            if (!is_first()) return;
            const auto state = read_state(plan_.start(i));
            StateMesh one(state, roll_out_.arrays());
            for (const auto& field : roll_out_.arrays().fields) one.keep(state, field);
            one.write(file, plan_.time(i));
        });
    }

    void write(std::size_t i, const std::filesystem::path& file, const at::Tensor& values, const at::Tensor& spread,
               const std::vector<std::int64_t>& channels) override
    {
        const auto rows = roll_out_.rows();
        const auto whole = rows_on_first_rank(values, rows, ranks_);
        const auto whole_spread = spread.defined() ? rows_on_first_rank(spread, rows, ranks_) : at::Tensor();
        read_together(ranks_, [&] {
            if (!is_first()) return;
            if (plan_.followed(i)) written_->take_arrays(roll_out_.read_whole(i), plan_.start(i).file.string());
            written_->take_fields(arrays_of_fields(whole, whole_spread, roll_out_.arrays(), channels));
            written_->write(file, plan_.time(i));
        });
    }

private:
    bool is_first() const { return ranks_.rank() == 0; }

    std::optional<StateMesh> written_;
};

/// Writes images, of which each rank has a block.
class GridWriter : public StateWriter {
public:
    GridWriter(const SeriesPlan& plan, SeriesRollOut& roll_out, const RankGroup& ranks)
        : StateWriter(plan, roll_out, ranks)
    {
        read_together(ranks_, [&] { besides_ = opened(plan_.known(plan_.next() - 1)); });
    }

    void write_told(std::size_t i, const std::filesystem::path& file) override
    {
        std::unique_ptr<GridFile> state;
        ImageGrid grid;
        read_together(ranks_, [&] {
            state = opened(plan_.start(i));
            grid = grid_with_arrays(*state, i);
            for (const auto& field : roll_out_.arrays().fields) put(grid, declared(*state, field.state));
        });
        write_grid(file, grid, *state, {roll_out_.box(), roll_out_.arrays().on_cells, 0}, ranks_);
    }

    void write(std::size_t i, const std::filesystem::path& file, const at::Tensor& values, const at::Tensor& spread,
               const std::vector<std::int64_t>& channels) override
    {
        ImageGrid grid;
        read_together(ranks_, [&] {
            if (const auto* followed = plan_.followed(i)) besides_ = opened(*followed);
            grid = grid_with_arrays(*besides_, i);
        });
        auto fields = arrays_of_fields(values, spread, roll_out_.arrays(), channels);
        const auto num_fields = std::ssize(fields);
        for (auto& array : fields) put(grid, std::move(array));
        write_grid(file, grid, *besides_, {roll_out_.box(), roll_out_.arrays().on_cells, num_fields}, ranks_);
    }

private:
    static std::unique_ptr<GridFile> opened(const SeriesState& state)
    {
        return GridFile::open(state.file, state.time_in_file);
    }

    /// The grid of a state with the arrays of a file that are no fields.
    ImageGrid grid_with_arrays(const GridFile& file, std::size_t i) const
    {
        auto grid = roll_out_.image();
        grid.point_data.clear();
        grid.cell_data.clear();
        grid.field_data = {time_value(plan_.time(i))};
        const auto& arrays = roll_out_.arrays();
        for (const auto* names : {&arrays.arrays, &arrays.given})
            for (const auto& name : *names) {
                const auto* constant = find_array(file.grid().field_data, name);
                if (constant && !has(file, name))
                    grid.field_data.push_back(*constant);
                else
                    put(grid, declared(file, name));
            }
        if (arrays.has_mask_array()) put(grid, declared(file, arrays.mask));
        return grid;
    }
    bool has(const GridFile& file, const std::string& name) const
    {
        return find_array(arrays_at(file.grid(), roll_out_.arrays().on_cells), name) != nullptr;
    }
    DataArray declared(const GridFile& file, const std::string& name) const
    {
        return require_array(file.grid(), roll_out_.arrays().on_cells, name, file.where());
    }
    void put(ImageGrid& grid, DataArray array) const
    {
        put_last(arrays_at(grid, roll_out_.arrays().on_cells), std::move(array));
    }

    std::unique_ptr<const GridFile> besides_;  // has the arrays that are no fields
};

constexpr std::string_view kIdentity = "<!-- prediction ", kEndOfComment = " -->";

/// @throws InvalidInput if an index says that its states are of another prediction
void require_identity(const std::filesystem::path& index, const std::string& identity)
{
    const auto text = MappedFile::open(index, "predict");
    const auto begin = text->text().find(kIdentity);
    if (begin == std::string_view::npos || text->text().substr(begin + kIdentity.size()).starts_with(identity)) return;
    throw InvalidInput("{} was predicted by another model, or with other numbers (--set, --seed, "
                       "--noise-levels). Leave --resume out to begin anew.",
                       index.string());
}

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

    /// Writes the index of the first `count` states, with what tells this prediction from others (`identity_of`).
    void write_index(const SeriesPlan& plan, std::size_t count, const std::string& identity) const
    {
        auto text = fmt::format("<?xml version=\"1.0\"?>\n{}{}{}\n<VTKFile type=\"Collection\" version=\"0.1\">\n"
                                "  <Collection>\n",
                                kIdentity, identity, kEndOfComment);
        for (std::size_t i = 0; i < count; ++i)
            text += fmt::format("    <DataSet timestep=\"{}\" part=\"0\" file=\"{}\"/>\n", plan.time(i), name(i));
        write_file_atomically(index_, text + "  </Collection>\n</VTKFile>\n");
    }

private:
    std::filesystem::path index_;
    std::string extension_;
};

/// Returns a hash of what decides how states are predicted from a start; `require_tracks` looks at their number.
std::string identity_of(std::span<Predictor> models, const PredictionOptions& options, const SeriesPrediction& series)
{
    auto text = fmt::format("{} {}", series.seed, series.num_levels);
    for (const auto& model : models) text += " " + hash_file(model.checkpoint());
    for (const auto& [name, value] : options.values) text += fmt::format(" {}={}", name, value);
    return hash_text(xxh64_of_text(text));
}

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
    GridRanks grid_ranks(world);
    const auto& all = grid_ranks.in_a_row()->all();
    const bool is_first = world.rank() == 0;
    const auto& data = models.front().data();
    const auto name = start.filename().string();

    std::optional<SeriesPlan> planned;
    const auto index = index_of(output);
    const bool is_joined = series.goes_on && !std::filesystem::exists(index) && std::filesystem::exists(output);
    read_together(all, [&] {
        planned.emplace(models.front(), start, is_joined ? output : index, series);
        if (is_joined && planned->next() < planned->num_states())
            throw InvalidInput("{} has {} states, and this prediction {}. Give it as the start of another "
                               "one to go on.",
                               output.string(), planned->next(), planned->num_states());
    });
    const auto& plan = *planned;
    if (is_joined) return;
    for (std::size_t i = 0; i < plan.num_states() && !plan.goes_on(); ++i) {
        const auto* state = i < plan.history() ? &plan.start(i) : plan.followed(i);
        if (state && is_state_of(index, state->file))
            throw UsageError("the state {}, which is read, is among those of {} that would be replaced. "
                             "Name another output.",
                             state->file.string(), output.string());
    }
    const auto finish = [&] {
        read_together(all, [&] {
            if (is_first) join_states(output, data.on_cells);
        });
    };
    std::string identity;
    read_together(all, [&] {
        if (!is_first) return;
        identity = identity_of(models, options, series);
        if (plan.goes_on()) require_identity(index, identity);
    });
    if (plan.next() == plan.num_states()) return finish();

    std::vector<SeriesTrack> tracks;
    const auto cases = said_cases(models, options, name, is_first);
    for (std::size_t m = 0; m < models.size(); ++m) {
        auto& model = models[m];
        if (series.num_levels > 0) model.set_noise_levels(series.num_levels);
        for (std::int64_t sample = 0; sample < series.num_samples; ++sample)
            tracks.push_back({&model, cases[m].data, cases[m].source, series.seed + tracks.size()});
    }
    const auto num_tracks = tracks.size();
    read_together(all, [&] { plan.require_tracks(num_tracks); });
    MeshReading reading{.where = name};
    reading.report = [](const std::string& fault) { warn("predict", fault); };
    reading.with_geometry = reading.with_forces = !series.forces.empty();
    SeriesRollOut roll_out(plan, models, std::move(tracks), reading, output, options.memory, world, grid_ranks);
    if (plan.goes_on()) roll_out.require_same_start();
    for (std::size_t m = 0; m < models.size(); ++m)
        warn_of_ranges(models[m], roll_out.inputs(m * num_tracks / models.size()), name, models.size() > 1, all);
    std::optional<MadeFolders> folders;
    std::unique_ptr<StateWriter> writer;
    if (roll_out.is_of_grids())
        writer = std::make_unique<GridWriter>(plan, roll_out, all);
    else
        writer = std::make_unique<MeshWriter>(plan, roll_out, all);
    std::optional<ForceTable> table;
    const JudgedFields layout(data.fields, models.front().channels());
    const SeriesOutput files(index, roll_out.is_of_grids()                       ? ".vti"
                                    : roll_out.whole().kind == MeshKind::Surface ? ".vtp"
                                                                                 : ".vtu");
    read_together(all, [&] {
        if (!is_first) return;
        folders.emplace(files.file(0));
        if (!series.forces.empty()) table.emplace(series.forces, plan.goes_on() ? plan.next() : 0);
    });
    if (!plan.goes_on()) {
        for (std::size_t i = 0; i < plan.history(); ++i) writer->write_told(i, files.file(i));
        read_together(all, [&] {
            if (is_first) files.write_index(plan, plan.history(), identity);
        });
    }

    for (auto i = plan.next(); i < plan.num_states(); ++i) {
        say_on_interruption_of("predict",
                               fmt::format("{} of {} states are written. Go on with --resume.", i, plan.num_states()));
        throw_if_interrupted();
        PredictionSpread predictions;
        std::vector<at::Tensor> next;
        const bool is_last = i + 1 == plan.num_states();
        std::vector<ForceSums> sums;
        for (std::size_t track = 0; track < num_tracks; ++track) {
            next.push_back(roll_out.next(track));
            const auto own = to_local(next.back()).squeeze(0).cpu();
            predictions.add(own);
            if (!series.forces.empty())
                sums.push_back(
                    case_sums(own, own, roll_out.geometry(i, next.back()), layout, torch::zeros({own.size(1)}), all)
                        .forces);
        }
        const auto values = predictions.mean();
        read_together(all, [&] {
            auto is_good = torch::isfinite(values);
            if (const auto left_out = roll_out.states().left_out(roll_out.inputs(0)); left_out.defined())
                is_good.logical_or_(to_local(left_out).squeeze(0).cpu());
            if (!is_good.all().item<bool>())
                throw Error("the state predicted at {} is not finite: the roll-out has diverged. The {} "
                            "states before it are in {}.",
                            plan.time(i), i, output.string());
        });
        if (num_tracks > 1 && !is_last) {
            for (std::size_t track = 0; track < num_tracks; ++track)
                writer->write(i, state_of_track(files.file(i), track), to_local(next[track]).squeeze(0).cpu(), {},
                              models.front().channels());
        }
        writer->write(i, files.file(i), values, predictions.spread(), models.front().channels());
        read_together(all, [&] {
            if (!is_first) return;
            if (table) {
                const auto forces = predicted_forces(sums, models.front(), layout, cases.front());
                if (forces.of_fields.empty()) throw InvalidInput("no drag and lift: {}.", forces.why);
                table->add(i, plan.time(i), forces);
            }
            files.write_index(plan, i + 1, identity);
            if (num_tracks == 1) return;
            // In the end also what a kill left.
            for (auto old = is_last ? 0 : i - plan.history(); old < (is_last ? i : i - plan.history() + 1); ++old)
                for (std::size_t track = 0; track < num_tracks; ++track)
                    std::filesystem::remove(state_of_track(files.file(old), track));
        });
        if (is_last) break;
        roll_out.go_on(i, next);
    }
    read_together(all, [&] {  // removes the states of a longer prediction that was here before
        for (auto old = plan.num_states(); is_first && std::filesystem::remove(files.file(old)); ++old) {
        }
    });
    finish();
}

}  // namespace meshard
