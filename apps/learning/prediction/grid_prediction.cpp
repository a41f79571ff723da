// SPDX-License-Identifier: Apache-2.0
// predict_grid of prediction.h.
#include "apps/console/console.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/grids/grid_case.h"
#include "apps/learning/prediction/case_mesh.h"
#include "apps/learning/prediction/grid_output.h"
#include "apps/learning/prediction/prediction.h"
#include "apps/learning/prediction/prediction_spread.h"
#include "apps/learning/prediction/told_values.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

namespace meshard {

void predict_grid(std::span<Predictor> models, const std::filesystem::path& input, const std::filesystem::path& output,
                  const PredictionOptions& options, World& world)
{
    GridRanks grid_ranks(world);
    const auto& all = grid_ranks.in_a_row()->all();
    const auto name = input.filename().string();
    const bool on_cells = models.front().data().on_cells;
    const auto cases = said_cases(models, options, name, false);
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
    for (std::size_t m = 0; m < models.size(); ++m) {
        auto& model = models[m];
        const auto& said = cases[m];
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
    auto grid = file->grid();
    auto& arrays = arrays_at(grid, on_cells);
    const auto spread = predictions.spread();
    const auto num_predicted = std::ssize(models.front().data().fields) * (spread.defined() ? 2 : 1);
    read_together(all, [&] {
        const auto replaced = add_fields(arrays, predictions.mean(), spread, models.front());
        if (all.rank() == 0) warn_of_replaced(name, replaced);
        for (auto& array : std::span(arrays).last(num_predicted))
            at::from_blob(array.mutable_bytes().data(), {array.num_rows(), array.num_components()}, at::kFloat)
                .masked_fill_(left_out, NAN);
    });
    write_grid(output, grid, *file, {own, on_cells, num_predicted}, all);
}

}  // namespace meshard
