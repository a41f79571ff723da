// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/steps/case_set.h"

#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace meshard {
namespace {

// Cases of a store, and grids, which are larger.
constexpr std::size_t kMostAhead = 2, kMostGridsAhead = 1;

}  // namespace

CaseTensors sampled_case(const CaseTensors& example, const std::vector<std::int64_t>& drawn, bool knows_all)
{
    const auto count = std::ssize(drawn);
    const auto spec = spec_of(example.target);
    const auto& ids = spec->index_map->global_ids;
    IndexMap map{.num_global = count, .num_owned = 0, .global_ids = {}, .ghost_owners = {}};
    std::vector<std::int64_t> rows, own_ids;
    auto next = drawn.begin();
    for (std::size_t row = 0; row < ids.size(); ++row) {
        next = std::lower_bound(next, drawn.end(), ids[row]);
        if (next == drawn.end()) break;
        if (*next != ids[row]) continue;
        rows.push_back(static_cast<std::int64_t>(row));
        own_ids.push_back(ids[row]);
        map.global_ids.push_back(next - drawn.begin());
    }
    map.num_owned = static_cast<std::int32_t>(rows.size());
    const auto sampled = shard_spec(std::make_shared<const IndexMap>(std::move(map)), spec->device_mesh, 1);
    auto index = at::tensor(rows, at::kLong);
    // The index is copied from page-locked memory; otherwise the host would wait for all work queued on the device.
    if (const auto device = to_local(example.target).device(); !device.is_cpu())
        index = index.pin_memory().to(device, /*non_blocking=*/true);
    const auto taken = [&](const at::Tensor& whole) {
        return from_local(to_local(whole).index_select(1, index), sampled);
    };
    auto result = example;
    result.num_points = count;
    result.inputs.embedding = taken(example.inputs.embedding);
    result.inputs.positions = taken(example.inputs.positions);
    result.target = taken(example.target);
    if (example.measures.defined()) result.measures = taken(example.measures);
    if (knows_all)
        result.inputs.drawn_from = std::make_shared<const AllPoints>(
            AllPoints{example.inputs.embedding, example.inputs.positions, at::tensor(own_ids, at::kLong)});
    return result;
}

RankOfCase CaseReading::rank() const
{
    return {domain->coordinate(domain->axis("domain")), shares, order};
}

CaseSet::CaseSet(std::vector<CaseSource> sources, std::vector<StoredCase> stored, CaseReading reading,
                 const CaseSet* like)
    : sources_(std::move(sources)), stored_(std::move(stored)), reading_(std::move(reading))
{
    for (std::int64_t i = 0; i < size(); ++i) {
        const auto& first = like ? *like : *this;
        if (stored_[i].channels == first.channels()) continue;
        throw InvalidInput("case {}: a field has another number of components than in case {}.", id(i), first.id(0));
    }
}

std::int64_t CaseSet::num_points() const
{
    std::int64_t count = 0;
    for (const auto& stored : stored_) count += stored.num_rows;
    return count;
}

std::int64_t CaseSet::num_bytes() const
{
    std::int64_t bytes = 0;
    for (const auto& stored : stored_)
        bytes += reading_.grids ? reading_.grids->num_bytes(stored)
                                : bytes_of_rows(stored, reading_.shares, reading_.order, reads_measures());
    return bytes;
}

std::int64_t CaseSet::num_file_bytes() const
{
    std::int64_t bytes = 0;
    for (const auto& stored : stored_) bytes += stored.num_bytes();
    return bytes;
}

std::vector<std::filesystem::path> CaseSet::files_of(std::int64_t i) const
{
    return files_of_rank(stored_[i], reading_.rank(), looks_at_measures());
}

ChannelStatistics CaseSet::told_statistics() const
{
    ChannelStatistics statistics;
    for (const auto& one : stored_)
        for (const auto& part : one.told_statistics) statistics.merge(part);
    return statistics;
}

ChannelStatistics CaseSet::statistics() const
{
    ChannelStatistics all;
    for (const auto& stored : stored_) {
        for (const auto& of_part : stored.statistics) all.merge(of_part);
    }
    return all;
}

at::Tensor CaseSet::input_bounds(std::int64_t i) const
{
    return at::stack({at::tensor(stored_[i].lowest), at::tensor(stored_[i].highest)}).to(at::kFloat).unsqueeze(0);
}

ChannelStatistics CaseSet::statistics(std::int64_t i) const
{
    ChannelStatistics all;
    for (const auto& of_part : stored_[i].statistics) all.merge(of_part);
    return all;
}

at::Tensor CaseSet::volumes(std::int64_t i, std::span<const std::int64_t> ids) const
{
    const auto& stored = stored_[i];
    if (stored.measures.kind != MeasureKind::Volumes || stored.measures.blocks.empty()) return {};
    const MeasureFile file(stored);
    const auto of_places = file.values();
    auto volumes = at::empty({std::ssize(ids)}, at::kDouble);
    auto* out = volumes.mutable_data_ptr<double>();
    for (const auto place : StoredOrder(stored.num_rows, stored.case_id).places_of(ids))
        *out++ = stored.measures.mean * static_cast<double>(of_places[place]);
    return volumes;
}

void CaseSet::keep(bool on_device)
{
    for (std::int64_t i = 0; i < size(); ++i) {
        auto example = tensors_of({.index = i}, read({.index = i}));
        if (!reading_.device.is_cpu())
            example = on_device ? meshard::on_device(example, reading_.device) : page_locked(example);
        kept_.push_back(std::move(example));
    }
    is_kept_ = true;
    is_on_device_ = on_device;
}

void CaseSet::share_out(const Shares& shares)
{
    reading_.shares = shares;
    if (reading_.grids) reading_.grids->share_out(shares);
    if (!is_kept_) return;
    kept_.clear();
    keep(is_on_device_);
}

Shares CaseSet::attained(const Shares& shares) const
{
    return reading_.grids ? reading_.grids->attained(shares, stored_.front()) : shares;
}

/// Whether all points of the turn's case are read; some models need all of them.
bool CaseSet::reads_all(const CaseTurn& turn) const
{
    return turn.time == 0 || reading_.data.needs_all_points ||
           draws_all(reading_.data.num_sampled, num_points(turn.index));
}

/// Returns the points that train in the turn, for a case that has more of them.
RowChoice CaseSet::drawn_in(const CaseTurn& turn) const
{
    const auto& stored = stored_[turn.index];
    const auto count = reading_.data.num_sampled;
    const StoredOrder order(stored.num_rows, stored.case_id);
    switch (reading_.data.sampling) {
    case SamplingKind::Uniform:
        return {drawn_points(stored.num_rows, count, reading_.seed, stored.case_id, turn.time), {}};
    case SamplingKind::Blocks:
        return {order.drawn_ids(count, reading_.seed, turn.time), order.drawn_ranges(count, reading_.seed, turn.time)};
    case SamplingKind::Areas:
        break;
    }
    const MeasureFile measures(stored);
    auto [ids, ranges] = drawn_by_measure(order, stored.measures.blocks, measures.values(), count, reading_.seed,
                                          stored.case_id, turn.time);
    return {std::move(ids), std::move(ranges)};
}

CaseRows CaseSet::read(const CaseTurn& turn) const
{
    if (reading_.grids) {
        auto [extents, told, target, channels] = reading_.grids->read(sources_[turn.index]);
        return {.told = std::move(told), .target = std::move(target), .measures = {}, .ids = {}};
    }
    std::optional<RowChoice> choice;
    if (!reads_all(turn)) choice = drawn_in(turn);
    return read_rows(stored_[turn.index], reading_.rank(),
                     {.choice = choice ? &*choice : nullptr,
                      .with_measures = reads_measures(),
                      .in_locked_memory = !reading_.device.is_cpu()});
}

CaseTensors CaseSet::tensors_of(const CaseTurn& turn, CaseRows rows) const
{
    if (reading_.grids) return reading_.grids->tensors(rows, stored_[turn.index], sources_[turn.index]);
    std::optional<std::int64_t> num_chosen;
    if (!reads_all(turn)) num_chosen = reading_.data.num_sampled;
    return case_tensors(std::move(rows), stored_[turn.index], sources_[turn.index], reading_.data, reading_.shares,
                        reading_.order, reading_.domain, num_chosen);
}

CaseSequence::CaseSequence(const CaseSet& cases, std::function<std::optional<CaseTurn>()> next_turn)
    : cases_(cases), next_turn_(std::move(next_turn))
{
    if (!cases_.is_kept())
        ahead_ = std::make_unique<ReadAhead>([this] { return read_next(); },
                                             cases_.reading_.grids ? kMostGridsAhead : kMostAhead);
}

std::optional<CaseRows> CaseSequence::read_next()
{
    const auto turn = next_turn_();
    if (!turn) return {};
    if (turn->epoch != checked_epoch_ && !cases_.reading_.grids) {
        for (const auto& stored : cases_.stored_)
            check_files(stored, cases_.reading_.rank(), cases_.looks_at_measures());
        checked_epoch_ = turn->epoch;
    }
    auto rows = cases_.read(*turn);
    const std::lock_guard lock(mutex_);
    turns_.push_back(*turn);
    return rows;
}

CaseTensors CaseSequence::next()
{
    CaseTurn turn;
    CaseTensors example;
    if (ahead_) {
        auto rows = ahead_->take();
        {
            const std::lock_guard lock(mutex_);
            turn = turns_.front();
            turns_.pop_front();
        }
        example = cases_.tensors_of(turn, std::move(rows));
    } else {
        const auto given = next_turn_();
        if (!given) throw Error("CaseSequence: all cases were taken.");
        turn = *given;
        example = cases_.kept_[turn.index];
    }
    const bool is_drawn_yet = ahead_ && !cases_.reads_all(turn);
    const auto& data = cases_.reading_.data;
    if (turn.time > 0 && !is_drawn_yet && !draws_all(data.num_sampled, example.num_points))
        example = sampled_case(example, cases_.drawn_in(turn).ids, data.needs_all_points);
    return on_device(example, cases_.reading_.device);
}

}  // namespace meshard
