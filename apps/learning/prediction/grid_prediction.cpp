// SPDX-License-Identifier: Apache-2.0
// predict_grid of prediction.h.
#include "apps/console/console.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/mesh_handover.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/grids/grid_case.h"
#include "apps/learning/prediction/case_mesh.h"
#include "apps/learning/prediction/prediction.h"
#include "apps/learning/prediction/prediction_spread.h"
#include "io/bytes/made_folders.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kRowsAtOnce = 1 << 20;  // about as many rows of a file are in memory while it is written

/// Writes a grid with all arrays of a file and those that were predicted, slab by slab along its slowest direction.
/// Collective.
/// @param own          which rows of the grid this rank has
/// @param predicted    arrays with these rows, in the order in which they are written behind those of `arrays`
/// @param arrays       arrays of the file, without rows
void write_predicted(const std::filesystem::path& output, const GridFile& file, std::vector<DataArray> arrays,
                     std::span<const DataArray> predicted, const GridBox& own, bool on_cells, const RankGroup& ranks)
{
    const bool is_first = ranks.rank() == 0;
    std::optional<MadeFolders> folders;
    std::optional<ImageWriter> writer;
    auto grid = file.grid();
    auto& kept = on_cells ? grid.cell_data : grid.point_data;
    kept = arrays;
    kept.insert(kept.end(), predicted.begin(), predicted.end());
    const auto for_each_slab = [](const GridBox& whole, const std::function<void(const GridBox&)>& f) {
        const auto slowest = whole.count[2] > 1 ? 2 : 1;
        const auto thickness = std::max<std::int64_t>(1, kRowsAtOnce * whole.count[slowest] / whole.num_rows());
        for (auto slab = whole; slab.first[slowest] < whole.count[slowest]; slab.first[slowest] += thickness) {
            slab.count[slowest] = std::min(thickness, whole.count[slowest] - slab.first[slowest]);
            f(slab);
        }
    };
    const auto copy_group = [&](const std::vector<DataArray>& of_file, bool of_cells) {
        for (const auto& array : of_file) {
            if (array.type() == ScalarType::String) continue;
            for_each_slab(whole_box(grid, of_cells),
                          [&](const GridBox& slab) { writer->write(file.read(array.name(), of_cells, slab).bytes()); });
        }
    };
    const auto write_fields = [&] {
        for (const auto& array : predicted) {
            for_each_slab(whole_box(grid, on_cells), [&](const GridBox& slab) {
                std::vector<std::int64_t> rows, places;
                for_each_run(intersection(own, slab), own, slab,
                             [&](std::int64_t row, std::int64_t place, std::int64_t count) {
                                 for (std::int64_t i = 0; i < count; ++i) {
                                     rows.push_back(row + i);
                                     places.push_back(place + i);
                                 }
                             });
                const auto all = at::from_blob(const_cast<std::byte*>(array.bytes().data()),
                                               {array.num_rows(), array.num_components()}, at::kFloat);
                const auto values = rows_on_first_rank(all.index_select(0, at::tensor(rows, at::kLong)), places, ranks);
                read_together(ranks, [&] {
                    if (is_first)
                        writer->write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
                });
            });
        }
    };
    read_together(ranks, [&] {
        if (!is_first) return;
        folders.emplace(output);
        writer.emplace(output, grid);
        for (const auto& array : grid.field_data) writer->write(array.bytes());
        copy_group(on_cells ? grid.point_data : arrays, false);
        if (on_cells) copy_group(arrays, true);
    });
    write_fields();
    read_together(ranks, [&] {
        if (!is_first) return;
        if (!on_cells) copy_group(grid.cell_data, true);
        writer->commit();
    });
}

}  // namespace

void predict_grid(std::span<Predictor> models, const std::filesystem::path& input, const std::filesystem::path& output,
                  const PredictionOptions& options, World& world)
{
    GridRanks grid_ranks(world);
    const auto& all = grid_ranks.in_a_row()->all();
    const auto name = input.filename().string();
    const bool on_cells = models.front().data().on_cells;
    std::unique_ptr<GridFile> file;
    std::vector<std::int64_t> extents;
    read_together(all, [&] {
        file = GridFile::open(input);
        extents = extents_of(file->grid(), on_cells, input.string());
    });
    const auto& blocks = grid_ranks.blocks(models.front().cut_of_grid(extents, world.size()));
    GridLayout layout;
    GridBox own;
    read_together(all, [&] {
        std::int64_t together = 1;  // of all models, so that a rank has the same rows of each
        for (const auto& model : models) together = std::lcm(together, model.rows_together());
        layout = grid_layout(extents, together, blocks, input.string());
        own = layout.own_box(file->grid(), on_cells);
    });
    PredictionSpread predictions;
    at::Tensor left_out;  // (rows, 1): what a model's mask leaves out
    for (auto& model : models) {
        const auto said = said_case(model, options, name, false);
        const auto scaling = field_scaling(said.data, model.channels(), said.source);
        GridRows rows;
        read_together(all, [&] { rows = grid_rows(*file, own, said.data, false, input.string()); });
        const auto uncounted = counted_rows(rows.told).logical_not().unsqueeze(1);
        left_out = left_out.defined() ? left_out.logical_or(uncounted) : uncounted;
        model.move_to(world.device());
        auto inputs = layout.inputs(rows.told.to(world.device()));
        add_case_inputs(inputs, model, said.data, said.source, world.device());
        warn_of_ranges(model, inputs, name, models.size() > 1, all);
        for (std::int64_t draw = 0; draw < std::max<std::int64_t>(1, options.num_draws); ++draw) {
            if (options.num_draws > 0) model.draw_dropout(static_cast<std::uint64_t>(draw));
            try {
                predictions.add(to_local(model.predict(inputs, scaling)).squeeze(0).cpu());
            } catch (const InvalidInput& wrong) {
                throw UnusableInput(input.string() + ", a grid of " + extents_text(rows.extents) + ": " + wrong.what(),
                                    exit_code::input);
            }
        }
    }
    auto arrays = on_cells ? file->grid().cell_data : file->grid().point_data;
    std::vector<DataArray> predicted;
    read_together(all, [&] {
        const auto spread = predictions.spread();
        add_fields(arrays, predictions.mean(), spread, models.front());
        const auto count = std::ssize(models.front().data().fields) * (spread.defined() ? 2 : 1);
        predicted.assign(arrays.end() - count, arrays.end());
        arrays.erase(arrays.end() - count, arrays.end());
        for (auto& array : predicted)
            at::from_blob(array.mutable_bytes().data(), {array.num_rows(), array.num_components()}, at::kFloat)
                .masked_fill_(left_out, NAN);
    });
    write_predicted(output, *file, arrays, predicted, own, on_cells, all);
}

}  // namespace meshard
