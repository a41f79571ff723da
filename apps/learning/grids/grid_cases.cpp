// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/grids/grid_cases.h"

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/categories.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/grids/grid_states.h"
#include "apps/learning/settings/grid_settings.h"
#include "partition/error.h"
#include "sharding/tensor/host_values.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace meshard {
namespace {

std::string name_in_messages(const CaseSource& source)
{
    return fmt::format("case {} ({})", source.id, source.file.string());
}

/// Statistics of rows, a million at a time, since they are computed in double precision.
ChannelStatistics statistics_of(const at::Tensor& rows)
{
    ChannelStatistics statistics;
    for (const auto& some : rows.split(std::int64_t{1} << 20)) statistics.add(some);
    return statistics;
}

/// Describes this rank's rows that count.
StoredCase described(GridRows rows, const std::string& id, const DataConfig& data)
{
    const auto counts = counted_rows(rows.target);
    if (!counts.all().item<bool>()) {
        rows.told = rows.told.index({counts});
        rows.target = rows.target.index({counts});
    }
    StoredCase known;
    known.case_id = id;
    known.num_counted = rows.told.size(0);
    known.num_inputs = rows.told.size(1);
    known.channels = rows.channels;
    known.extents = rows.extents;
    known.statistics = {statistics_of(rows.target)};
    known.told_statistics = {statistics_of(rows.told)};
    known.categories.resize(data.categories.names.size());
    if (known.num_counted == 0) return known;
    add_categories(known.categories, rows.told, category_channels(data, rows.channels).first, data.categories,
                   "case " + id);
    known.lowest = values_on_host<double>(rows.told.amin(0));
    known.highest = values_on_host<double>(rows.told.amax(0));
    return known;
}

/// Merges the descriptions that each rank has of its rows of a case. Collective. @throws InvalidInput, on all ranks,
/// for a case of which no row counts
void merge_over_ranks(StoredCase& known, const CategorySettings& categories, const RankGroup& ranks)
{
    std::vector<std::int64_t> own{known.num_counted};
    const auto add = [&](const std::vector<double>& numbers, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i)
            own.push_back(std::bit_cast<std::int64_t>(known.num_counted > 0 ? numbers[i] : 0.0));
    };
    const auto num_targets = known.num_targets(), num_inputs = known.num_inputs;
    add(known.statistics[0].mean(), num_targets);
    add(known.statistics[0].squared_differences(), num_targets);
    add(known.told_statistics[0].mean(), num_inputs);
    add(known.told_statistics[0].squared_differences(), num_inputs);
    add(known.lowest, num_inputs);
    add(known.highest, num_inputs);
    for (const auto& kinds : known.categories) {
        own.push_back(std::ssize(kinds));
        for (std::size_t i = 0; i < kMostCategories; ++i)
            own.push_back(std::bit_cast<std::int64_t>(i < kinds.size() ? kinds[i] : 0.0));
    }
    const auto all = ranks.all_gather_integers(own);
    known.num_rows = c10::multiply_integers(known.extents);
    known.num_counted = 0;
    known.statistics = {{}};
    known.told_statistics = {{}};
    known.lowest.clear();
    known.highest.clear();
    for (const auto& of_rank : all) {
        if (of_rank[0] == 0) continue;
        known.num_counted += of_rank[0];
        auto at = of_rank.begin() + 1;
        const auto next = [&](std::int64_t count) {
            std::vector<double> numbers;
            for (; count > 0; --count) numbers.push_back(std::bit_cast<double>(*at++));
            return numbers;
        };
        for (const auto& [statistics, count] :
             {std::pair(&known.statistics[0], num_targets), std::pair(&known.told_statistics[0], num_inputs)}) {
            const auto mean = next(count), squared_differences = next(count);
            statistics->merge({of_rank[0], mean, squared_differences});
        }
        const auto lowest = next(num_inputs), highest = next(num_inputs);
        if (known.lowest.empty()) known.lowest = lowest, known.highest = highest;
        for (std::size_t i = 0; i < lowest.size(); ++i) {
            known.lowest[i] = std::min(known.lowest[i], lowest[i]);
            known.highest[i] = std::max(known.highest[i], highest[i]);
        }
        std::vector<std::vector<double>> kinds(known.categories.size());
        for (auto& one : kinds) {
            const auto count = static_cast<std::size_t>(*at++);
            one = next(kMostCategories);
            one.resize(count);
        }
        merge_categories(known.categories, kinds, categories, "case " + known.case_id);
    }
    if (known.num_counted == 0)
        throw InvalidInput("case {}: data.mask leaves nothing of it. Leave the case out.", known.case_id);
}

}  // namespace

GridWidths grid_widths(const StoredCase& known, const DataConfig& data)
{
    auto num_told = known.num_inputs + std::ssize(data.constants);
    for (const auto& kinds : data.categories.values) num_told += std::ssize(kinds) - 1;
    return {.in_channels = num_told, .out_channels = known.num_targets(), .extents = known.extents};
}

std::vector<std::int64_t> domain_of_grids(const TrainingRunConfig& config, const CaseSource& first,
                                          std::int64_t num_ranks)
{
    if (!config.domain.empty() || !reads_neighbors(config.model)) return config.domain;
    return cut_of_grid({}, config.model,
                       extents_of(GridFile::open(first.file)->grid(), config.data.on_cells, name_in_messages(first)),
                       num_ranks);
}

GridReading::GridReading(const TrainingRunConfig& config, std::shared_ptr<const DeviceMesh> blocks,
                         std::map<std::string, std::filesystem::path> stored)
    : model_(config.model), data_(config.data), blocks_(std::move(blocks)), stored_(std::move(stored))
{
}

const GridLayout& GridReading::layout(const std::vector<std::int64_t>& extents, const std::string& where) const
{
    const std::lock_guard lock(mutex_);
    const auto found = layouts_.find(extents);
    if (found != layouts_.end()) return found->second;
    return layouts_.emplace(extents, grid_layout(extents, rows_together(model_), blocks_, where, shares_))
        .first->second;
}

GridRows GridReading::read(const CaseSource& source) const
{
    const auto stored = stored_.find(source.id);
    if (stored == stored_.end()) return read_from(source.file, source);
    try {
        return read_from(stored->second, source);
    } catch (const IoError& wrong) {
        throw IoError("{} Or remove {}: meshard prepare makes it again.", wrong.what(), stored->second.string());
    }
}

GridRows GridReading::read_from(const std::filesystem::path& path, const CaseSource& source) const
{
    const auto where = name_in_messages(source);
    const auto file = GridFile::open(path);
    const auto& cut = layout(extents_of(file->grid(), data_.on_cells, where), where);
    const auto box = cut.own_box(file->grid(), data_.on_cells);
    if (!source.step) return grid_rows(*file, box, data_, true, where);
    return GridStates(file->grid(), box, data_, where).step(*source.step);
}

CaseTensors GridReading::tensors(const CaseRows& own, const StoredCase& known, const CaseSource& source) const
{
    const auto& cut = layout(known.extents, name_in_messages(source));
    auto example = grid_case_tensors(own.told, own.target, known.channels, source, data_, cut);
    if (data_.mask.empty()) return example;
    const auto weight = static_cast<double>(known.num_rows) / static_cast<double>(known.num_counted);
    example.measures = cut.joined(counted_rows(own.target).unsqueeze(1).to(at::kFloat) * weight);
    return example;
}

std::int64_t GridReading::num_bytes(const StoredCase& known) const
{
    const auto& rows = *layout(known.extents, known.case_id).of_rows->axes[0].extents;
    return *std::ranges::max_element(rows) * (known.num_inputs + known.num_targets() + (data_.mask.empty() ? 0 : 1)) *
           static_cast<std::int64_t>(sizeof(float));
}

void GridReading::share_out(const Shares& shares)
{
    const std::lock_guard lock(mutex_);
    shares_ = shares;
    layouts_.clear();
}

Shares GridReading::attained(const Shares& shares, const StoredCase& known) const
{
    const auto cut = grid_layout(known.extents, rows_together(model_), blocks_, known.case_id, shares);
    Shares attained;
    for (const auto rows : *cut.of_rows->axes[0].extents)
        attained.push_back(static_cast<double>(rows) / static_cast<double>(known.num_rows));
    return attained;
}

void GridReading::require_alike(const StoredCase& known, const std::string& where, const StoredCase& first) const
{
    const auto widths = grid_widths(known, data_), before = grid_widths(first, data_);
    const auto said = [&](const GridWidths& one) {
        return fmt::format("{} {}, {} numbers each to learn from and {} to learn", extents_text(one.extents),
                           data_.on_cells ? "cells" : "points", one.in_channels, one.out_channels);
    };
    const auto arguments = [&](const GridWidths& one) {
        try {
            return grid_model_arguments(model_, one);
        } catch (const InvalidInput& wrong) {
            throw InvalidInput("{}: {}", where, wrong.what());
        }
    };
    if (arguments(widths) == arguments(before)) return;
    throw InvalidInput("{} has {}, and case {} has {}; {} takes cases that are alike in this. Leave one of them out.",
                       where, said(widths), first.case_id, said(before), model_.name);
}

std::vector<StoredCase> GridReading::describe(const std::vector<CaseSource>& sources, const StoredCase* like) const
{
    std::vector<StoredCase> cases;
    const auto ranks = blocks_->in_a_row();
    read_together(ranks->all(), [&] {
        for (const auto& source : sources) {
            cases.push_back(described(read(source), source.id, data_));
            require_alike(cases.back(), name_in_messages(source), like ? *like : cases.front());
        }
    });
    for (auto& known : cases) merge_over_ranks(known, data_.categories, ranks->all());
    return cases;
}

}  // namespace meshard
