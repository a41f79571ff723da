// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/grids/grid_cases.h"

#include "apps/learning/cases/run_step.h"
#include "apps/learning/settings/grid_settings.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <torch/types.h>

namespace meshard {
namespace {

std::vector<double> numbers_of(const at::Tensor& values)
{
    const auto doubles = values.to(torch::kDouble).contiguous();
    return {doubles.const_data_ptr<double>(), doubles.const_data_ptr<double>() + doubles.numel()};
}

StoredCase stored_case_of(const GridRows& rows, const std::string& id)
{
    StoredCase known;
    known.case_id = id;
    known.num_rows = rows.told.size(0);
    known.num_inputs = rows.told.size(1);
    known.channels = rows.channels;
    known.statistics.emplace_back().add(rows.target);
    known.lowest = numbers_of(rows.told.amin(0));
    known.highest = numbers_of(rows.told.amax(0));
    return known;
}

}  // namespace

GridWidths grid_widths(const CaseTensors& example, const DataConfig& data)
{
    return {.in_channels = example.inputs.embedding.size(-1) + static_cast<std::int64_t>(data.constants.size()),
            .out_channels = example.target.size(-1),
            .extents = example.inputs.grid};
}

std::vector<std::int64_t> domain_of_grids(const TrainingRunConfig& config, const CaseSource& first,
                                          std::int64_t num_ranks)
{
    constexpr std::int64_t kFewest = 4;  // ranks that can cut two directions
    if (!config.domain.empty() || num_ranks < kFewest || !reads_neighbors(config.model)) return config.domain;
    const auto where = fmt::format("case {} ({})", first.id, first.file.string());
    return cut_of_least_halo(extents_of(read_image(first.file), config.data.on_cells, where),
                             rows_together(config.model), num_ranks);
}

LoadedGrids load_grids(const std::vector<CaseSource>& sources, const TrainingRunConfig& config,
                       const std::shared_ptr<const DeviceMesh>& blocks, const std::optional<CaseTensors>& like)
{
    LoadedGrids grids;
    for (const auto& source : sources) {
        const auto where = fmt::format("case {} ({})", source.id, source.file.string());
        const auto& step = source.step;
        auto grid = read_image(source.file);
        const auto rows = step ? grid_rows_of_step(read_step(*step, StateArrays(config.data), where), std::move(grid),
                                                   config.data, true, where)
                               : grid_rows(grid, config.data, true, where);
        const auto layout = grid_layout(rows.extents, rows_together(config.model), blocks, where);
        grids.known.push_back(stored_case_of(rows, source.id));
        grids.told.add(rows.told);
        grids.examples.push_back(grid_case_tensors(rows, source, config.data, layout));
        const auto& first = like ? *like : grids.examples.front();
        const auto widths = grid_widths(grids.examples.back(), config.data), before = grid_widths(first, config.data);
        const auto said = [&](const GridWidths& one) {
            return fmt::format("{} {}, {} numbers each to learn from and {} to learn", extents_text(one.extents),
                               config.data.on_cells ? "cells" : "points", one.in_channels, one.out_channels);
        };
        const auto arguments = [&](const GridWidths& one) {
            try {
                return grid_model_arguments(config.model, one);
            } catch (const InvalidInput& wrong) {
                throw InvalidInput(where + ": " + wrong.what());
            }
        };
        if (arguments(widths) == arguments(before)) continue;
        throw InvalidInput(
            fmt::format("{} has {}, and case {} has {}; {} takes cases that are alike in this. Leave one of them out.",
                        where, said(widths), first.id, said(before), config.model.name));
    }
    return grids;
}

}  // namespace meshard
