// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/steps/run_cases.h"

#include "apps/console/console.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/cases/case_cutting.h"
#include "apps/learning/grids/grid_cases.h"
#include "apps/learning/grids/grid_store.h"
#include "sharding/tensor/shard_tensor.h"

#include <algorithm>
#include <utility>

namespace meshard {
namespace {

// Cases that stay in memory may take 1 / this of the free memory of a device or the host.
constexpr std::int64_t kShareOfCases = 4;

ChannelStatistics without_unit(const CaseSet& train, std::int64_t i,
                               const std::map<std::string, FieldScaling>& scalings)
{
    const auto& [shift, scale] = scalings.at(train.id(i));
    return scale.defined() ? train.statistics(i).mapped(shift, scale) : train.statistics(i);
}

/// Normalises what points are told of the states of runs, and leaves the inputs before that as they are.
Normalizer state_normalizer(const CaseSet& train, std::int64_t first)
{
    auto normalizer = train.told_statistics().normalizer();
    normalizer.mean.narrow(0, 0, first).fill_(0);
    normalizer.std.narrow(0, 0, first).fill_(1);
    return normalizer;
}

}  // namespace

RunCases prepare_cases(const TrainingRunConfig& config, const CaseLists& lists, const CasePreparation& preparation,
                       const std::shared_ptr<const DeviceMesh>& device_mesh, const at::Device& device, TrainingLog& log,
                       const volatile std::sig_atomic_t& stop_requested)
{
    const auto& data = config.data;
    if (data.is_grid)
        throw UsageError("data.grid: each rank reads its blocks of the grids from their files; nothing is cut before.");
    const auto domain = device_mesh->sub_mesh("domain");
    const auto num_ranks = preparation.num_domain_ranks > 0 ? preparation.num_domain_ranks : domain->num_ranks();
    ShardCache cache{data.shards, data.num_parts > 0 ? data.num_parts : num_ranks * parts_a_rank(config), config.seed,
                     preparation.verify_sources, computed_inputs(data)};
    if (data.series.is_on) {
        cache.states = std::make_shared<const StateArrays>(data);
        cache.run_cuts = std::make_shared<RunCuts>();
    }
    const CaseStore store = data.store.empty() ? CaseStore{data.shards / "store", config.run_dir() / "store", data}
                                               : CaseStore{data.store, {}, data};
    const auto sources = lists.all();
    const auto shards = cut_cases(sources, cache, device_mesh->all(), log, stop_requested,
                                  [&](const auto& source, const auto& of_case, const auto& before) {
                                      return try_store_case(store, source, of_case, before);
                                  });

    const CaseReading reading{.data = data,
                              .seed = config.seed,
                              .order = config.training.exact ? RowOrder::Ids : RowOrder::Parts,
                              .domain = domain,
                              .shares = Shares(domain->num_ranks(), 1),
                              .device = device};
    std::size_t i = 0;
    const auto opened = [&](const std::vector<CaseSource>& of_split, const CaseSet* like) {
        std::vector<StoredCase> stored;
        for (std::size_t n = 0; n < of_split.size(); ++n, ++i)
            stored.push_back(open_stored_case(store, sources[i], shards[i]));
        return CaseSet(of_split, std::move(stored), reading, like);
    };
    auto train = opened(lists.train, nullptr);
    auto val = opened(lists.val, &train);
    auto test = opened(lists.test, &train);
    RunCases cases{std::move(train), std::move(val), std::move(test), {}, cache.num_parts};
    for (std::size_t n = 0; n < shards.size(); ++n) cases.shards[sources[n].id] = shards[n];
    if (data.series.is_on) cases.of_inputs = state_normalizer(cases.train, first_channel(data, {}));
    cases.facing = facing_in(std::span(shards).first(lists.train.size()));
    const bool hears_of_it =
        data.has_input("normals") || data.needs_wall() || !data.wall.empty() || !config.forces.area.empty();
    if (const auto fault = facing_fault(cases.facing); !fault.empty() && hears_of_it) log.say("warning: " + fault);
    return cases;
}

std::vector<CaseFigures> RunCases::figures(const DataConfig& data, const RankGroup& ranks) const
{
    std::vector<std::filesystem::path> stored, cut;
    for (const auto* set : {&train, &val, &test}) {
        for (std::int64_t i = 0; i < set->size(); ++i) {
            stored.push_back(set->folder(i));
            cut.push_back(shards.at(set->id(i)));
        }
    }
    return kept_case_figures(stored, cut, data, JudgedFields(data.fields, train.channels()), ranks);
}

RunCases prepare_grids(const TrainingRunConfig& config, const CaseLists& lists,
                       const std::shared_ptr<const DeviceMesh>& blocks, const at::Device& device, TrainingLog& log)
{
    const auto domain = blocks->in_a_row();
    const auto sources = lists.all();
    std::map<std::string, std::filesystem::path> stored;
    if (!config.data.series.is_on) {
        const GridStore store(config.data);
        stored = store.find(sources);
        if (const auto said = store.said_of(sources, stored); !said.empty()) log.say(said);
    }
    const CaseReading reading{.data = config.data,
                              .seed = config.seed,
                              .order = RowOrder::Ids,
                              .domain = domain,
                              .shares = Shares(domain->num_ranks(), 1),
                              .device = device,
                              .grids = std::make_shared<GridReading>(config, blocks, std::move(stored))};
    const auto described = [&](const std::vector<CaseSource>& of_split, const CaseSet* like) {
        return CaseSet(of_split, reading.grids->describe(of_split, like ? &like->stored(0) : nullptr), reading, like);
    };
    auto train = described(lists.train, nullptr);
    auto val = described(lists.val, &train);
    auto test = described(lists.test, &train);
    const auto of_inputs = train.told_statistics().normalizer();
    RunCases cases{std::move(train), std::move(val), std::move(test), {}, domain->num_ranks(), {}, of_inputs};
    for (const auto& source : sources) cases.shards[source.id].clear();  // a grid has no shards
    return cases;
}

void keep_cases(RunCases& cases, const DataConfig& data, const at::Device& device, const RankGroup& all,
                TrainingLog& log)
{
    const auto room = [&](const at::Device& where) {
        return memory_of(where) / kShareOfCases / ranks_a_device(where, all);
    };
    const auto given = data.memory_budget;
    const auto in_host = given ? static_cast<std::int64_t>(1e9 * *given) : room(at::kCPU);
    const auto on_device = device.is_cpu() ? 0 : given ? std::min(room(device), in_host) : room(device);
    const auto bytes = cases.num_bytes();
    // Ranks differ in memory, and all must do the same: those that read in turn tell each other how long they waited.
    const bool fits_on_device = all.all_agree(bytes <= on_device), fits_in_host = all.all_agree(bytes <= in_host);
    if (!fits_on_device && !fits_in_host) {
        log.say("the cases take {:.3g} GB a rank, and {:.3g} may stay in memory (data.memory): each is "
                "read when it is its turn",
                static_cast<double>(bytes) * 1e-9, static_cast<double>(in_host) * 1e-9);
        return;
    }
    for (auto* set : {&cases.train, &cases.val, &cases.test}) set->keep(fits_on_device);
    if (device.is_cpu() || fits_on_device) return;
    log.say("the cases take {:.3g} GB a rank, and each is copied to the device for its step",
            static_cast<double>(bytes) * 1e-9);
}

ChannelStatistics target_statistics(const CaseSet& train, bool exact,
                                    const std::map<std::string, FieldScaling>& scalings)
{
    const auto has_units = std::ranges::none_of(scalings, [](const auto& one) { return one.second.scale.defined(); });
    if (!exact && has_units) return train.statistics();
    ChannelStatistics statistics;
    if (!exact) {
        for (std::int64_t i = 0; i < train.size(); ++i) statistics.merge(without_unit(train, i, scalings));
        return statistics;
    }
    CaseSequence all(train, [&, index = std::int64_t{0}]() mutable {
        return index < train.size() ? std::optional(CaseTurn{.index = index++}) : std::nullopt;
    });
    for (std::int64_t i = 0; i < train.size(); ++i) {
        const auto example = all.next();
        const auto scaling = scalings.at(example.id).on(to_local(example.target).device());
        statistics.add(scaling.without_unit(example.target).squeeze(0));
    }
    return statistics;
}

std::map<std::string, ChannelStatistics> statistics_of_sets(const CaseSet& train,
                                                            const std::map<std::string, FieldScaling>& scalings)
{
    std::map<std::string, ChannelStatistics> all;
    for (std::int64_t i = 0; i < train.size(); ++i) {
        if (const auto& set = train.sources()[i].set; !set.empty()) all[set].merge(without_unit(train, i, scalings));
    }
    return all;
}

}  // namespace meshard
