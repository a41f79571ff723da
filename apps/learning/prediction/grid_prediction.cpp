// SPDX-License-Identifier: Apache-2.0
// predict_grid of prediction.h.
#include "apps/console/console.h"
#include "apps/learning/grids/grid_case.h"
#include "apps/learning/prediction/case_mesh.h"
#include "apps/learning/prediction/prediction.h"
#include "apps/learning/prediction/prediction_spread.h"
#include "apps/learning/prediction/usable_input.h"
#include "io/bytes/made_folders.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshard {

void predict_grid(std::span<Predictor> models, const std::filesystem::path& input, const std::filesystem::path& output,
                  const PredictionOptions& options, World& world)
{
    const auto device_mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const auto name = input.filename().string();
    ImageGrid grid;
    read_together(device_mesh->all(),
                  [&] { grid = read_image(input); });  // on every rank, each of which takes its rows
    PredictionSpread predictions;
    for (auto& model : models) {
        const auto said = said_case(model, options, name, false);
        const auto scaling = field_scaling(said.data, model.channels(), said.source);
        GridRows rows;
        read_together(device_mesh->all(), [&] { rows = grid_rows(grid, said.data, false, input.string()); });
        model.move_to(world.device());
        const auto layout = grid_layout(rows.extents, model.rows_together(), device_mesh, input.string());
        auto inputs = layout.inputs(rows.told.to(world.device()));
        add_case_inputs(inputs, model, said.data, said.source, world.device());
        warn_of_ranges(model, inputs, name, models.size() > 1, device_mesh->all());
        for (std::int64_t draw = 0; draw < std::max<std::int64_t>(1, options.num_draws); ++draw) {
            if (options.num_draws > 0) model.draw_dropout(static_cast<std::uint64_t>(draw));
            try {
                predictions.add(full_tensor(model.predict(inputs, scaling)).squeeze(0).cpu());
            } catch (const InvalidInput& wrong) {
                throw UnusableInput(input.string() + ", a grid of " + extents_text(rows.extents) + ": " + wrong.what(),
                                    exit_code::input);
            }
        }
    }
    read_together(device_mesh->all(), [&] {
        if (world.rank() != 0) return;
        const auto& data = models.front().data();
        add_fields(data.on_cells ? grid.cell_data : grid.point_data, predictions.mean(), predictions.spread(),
                   models.front());
    });
    if (world.rank() == 0) {
        const MadeFolders folders(output);
        write_image(output, grid);
    }
    device_mesh->all().barrier();
}

}  // namespace meshard
