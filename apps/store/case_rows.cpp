// SPDX-License-Identifier: Apache-2.0
#include "apps/store/case_rows.h"

#include "apps/store/row_file.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace meshard {
namespace {

/// A row that is read: its id, and where its numbers are.
using FoundRow = std::pair<std::int64_t, const float*>;

struct IdRange {
    std::int64_t begin = 0, end = 0;
};

/// Ids of the rows that a rank has by RowOrder::Ids.
IdRange ids_of_rank(const StoredCase& stored, const RankOfCase& rank)
{
    const auto extents = even_extents(stored.num_rows, rank.num_ranks);
    const auto begin = std::accumulate(extents.begin(), extents.begin() + rank.rank, std::int64_t{0});
    return {begin, begin + extents[rank.rank]};
}

/// The parts in whose files a rank's rows are.
std::pair<std::int32_t, std::int32_t> parts_of_rank(const StoredCase& stored, const RankOfCase& rank)
{
    if (rank.order == RowOrder::Ids) return {0, static_cast<std::int32_t>(stored.parts.size())};
    const auto runs = part_runs(stored.rows_of_parts(), rank.num_ranks);
    return {runs[rank.rank], runs[rank.rank + 1]};
}

RowFile open_part(const StoredCase& stored, std::int32_t part)
{
    RowFile file(stored.folder / stored.parts[part].file, stored.key);
    if (file.rows().num_rows() != stored.parts[part].num_rows || file.rows().num_columns != stored.num_inputs + stored.num_targets() ||
        std::ssize(file.rows().block_begins) != StoredOrder(stored.num_rows, stored.case_id).num_blocks() + 1) {
        throw IoError("store: " + (stored.folder / stored.parts[part].file).string() +
                      " has other rows than case.json beside it says. Remove their folder: it is made again from the case.");
    }
    return file;
}

/// The stored row that is i-th in the order of ids. Of files that were not read whole nobody has compared the hash.
std::int64_t stored_row(const StoredRows& rows, std::int64_t i, const StoredCase& stored, std::int32_t part)
{
    const auto row = rows.order[i];
    if (row >= 0 && row < rows.num_rows()) return row;
    throw IoError("store: " + (stored.folder / stored.parts[part].file).string() + " is damaged: row " + std::to_string(row) + " of " +
                  std::to_string(rows.num_rows()) + ". Remove its folder: it is made again from the case.");
}

/// The first stored row of a block whose place is not before this one. The rows of a part are a random choice of the block's: a search from where the place
/// would be if they lay evenly looks at a page or two of the ids, where one by halves would read all of them.
std::int64_t first_row_at(const StoredRows& rows, const StoredOrder& order, std::int64_t block, std::int64_t place)
{
    const auto begin = rows.block_begins[block], end = rows.block_begins[block + 1];
    const auto first_place = order.begin_of(block), num_places = order.begin_of(block + 1) - first_place;
    const auto is_before = [&](std::int64_t row) { return order.place_of(rows.ids[row]) < place; };
    auto low = begin + (place - first_place) * (end - begin) / num_places, high = low;  // no row below `low` is at the place or behind, in the end
    for (std::int64_t step = 1; low > begin && !is_before(low - 1); step *= 2) low = std::max(begin, low - step);
    for (std::int64_t step = 1; high < end && is_before(high); step *= 2) high = std::min(end, high + step);
    const auto first = rows.ids.begin();
    return std::partition_point(first + low, first + high, [&](std::int64_t id) { return order.place_of(id) < place; }) - first;
}

/// Chosen rows that lie together.
void find_ranges(const StoredRows& rows, const StoredOrder& order, const std::vector<PlaceRange>& ranges, std::vector<FoundRow>& found)
{
    for (const auto& range : ranges) {
        const auto block = order.block_of(range.first);
        const auto end = first_row_at(rows, order, block, range.first + range.count);
        for (auto row = first_row_at(rows, order, block, range.first); row < end; ++row) found.emplace_back(rows.ids[row], rows.row(row));
    }
}

/// Chosen rows anywhere: both go by ascending ids.
void find_ids(const StoredRows& rows, const std::vector<std::int64_t>& ids, const StoredCase& stored, std::int32_t part, std::vector<FoundRow>& found)
{
    auto next = ids.begin();
    for (std::int64_t i = 0; i < rows.num_rows(); ++i) {
        const auto row = stored_row(rows, i, stored, part);
        next = std::lower_bound(next, ids.end(), rows.ids[row]);
        if (next == ids.end()) return;
        if (*next == rows.ids[row]) found.emplace_back(*next, rows.row(row));
    }
}

}  // namespace

Extents rows_of_ranks(const StoredCase& stored, std::int64_t num_ranks, RowOrder order)
{
    if (order == RowOrder::Ids) return even_extents(stored.num_rows, num_ranks);
    const auto rows = stored.rows_of_parts();
    const auto runs = part_runs(rows, num_ranks);
    Extents extents;
    for (std::int64_t rank = 0; rank < num_ranks; ++rank)
        extents.push_back(std::accumulate(rows.begin() + runs[rank], rows.begin() + runs[rank + 1], std::int64_t{0}));
    return extents;
}

std::int64_t bytes_of_rows(const StoredCase& stored, std::int64_t num_ranks, RowOrder order)
{
    const auto numbers = stored.num_inputs + 3 + stored.num_targets();  // places are told once more by themselves
    return std::ranges::max(rows_of_ranks(stored, num_ranks, order)) * (numbers * 4 + 8);
}

CaseRows read_rows(const StoredCase& stored, const RankOfCase& rank, const RowChoice* choice, bool in_locked_memory)
{
    const auto [first_part, end_part] = parts_of_rank(stored, rank);
    const auto own = rank.order == RowOrder::Ids ? ids_of_rank(stored, rank) : IdRange{0, stored.num_rows};
    const StoredOrder order(stored.num_rows, stored.case_id);
    std::vector<RowFile> files;  // keeps them mapped
    std::vector<FoundRow> found;
    for (auto part = first_part; part < end_part; ++part) {
        const auto& rows = files.emplace_back(open_part(stored, part)).rows();
        if (!choice) {
            files.back().verify();
            if (rank.order == RowOrder::Parts) found.reserve(found.size() + static_cast<std::size_t>(rows.num_rows()));
            for (std::int64_t i = 0; i < rows.num_rows(); ++i) {
                const auto row = stored_row(rows, i, stored, part);
                if (rows.ids[row] >= own.begin && rows.ids[row] < own.end) found.emplace_back(rows.ids[row], rows.row(row));
            }
            continue;
        }
        if (choice->ranges.empty())
            find_ids(rows, choice->ids, stored, part, found);
        else
            find_ranges(rows, order, choice->ranges, found);
    }
    if (choice) std::erase_if(found, [&](const FoundRow& row) { return row.first < own.begin || row.first >= own.end; });
    if (end_part - first_part > 1 || choice) std::ranges::sort(found);

    const auto num_rows = static_cast<std::int64_t>(found.size()), num_targets = stored.num_targets();
    const auto options = at::TensorOptions(at::kFloat).pinned_memory(in_locked_memory);
    CaseRows result{at::empty({num_rows, stored.num_inputs}, options), at::empty({num_rows, num_targets}, options), std::vector<std::int64_t>(found.size())};
    auto* told = result.told.mutable_data_ptr<float>();
    auto* target = result.target.mutable_data_ptr<float>();
    auto chosen = choice ? choice->ids.begin() : std::vector<std::int64_t>::const_iterator{};
    for (std::int64_t i = 0; i < num_rows; ++i) {
        const auto [id, values] = found[i];
        std::copy_n(values, stored.num_inputs, told + i * stored.num_inputs);
        std::copy_n(values + stored.num_inputs, num_targets, target + i * num_targets);
        if (choice) {
            while (chosen != choice->ids.end() && *chosen < id) ++chosen;  // both ascend
            result.ids[i] = chosen - choice->ids.begin();
        } else {
            result.ids[i] = id;
        }
    }
    return result;
}

std::vector<std::filesystem::path> files_of_rank(const StoredCase& stored, const RankOfCase& rank)
{
    const auto [first, end] = parts_of_rank(stored, rank);
    std::vector<std::filesystem::path> files;
    for (auto part = first; part < end; ++part) files.push_back(stored.folder / stored.parts[part].file);
    return files;
}

void check_files(const StoredCase& stored, const RankOfCase& rank)
{
    const auto [first, end] = parts_of_rank(stored, rank);
    for (auto part = first; part < end; ++part) open_part(stored, part);
}

CaseTensors case_tensors(CaseRows rows, const StoredCase& stored, const CaseSource& source, const DataConfig& data, RowOrder order,
                         const std::shared_ptr<const DeviceMesh>& domain, std::optional<std::int64_t> num_chosen)
{
    const auto axis = domain->axis("domain");
    IndexMap map{.num_global = num_chosen.value_or(stored.num_rows),
                 .num_owned = static_cast<std::int32_t>(rows.ids.size()),
                 .global_ids = std::move(rows.ids),
                 .ghost_owners = {}};
    auto index_map = std::make_shared<const IndexMap>(std::move(map));
    SpecPtr spec;
    if (num_chosen) {
        spec = shard_spec(std::move(index_map), domain, 1);
    } else {
        std::vector<AxisLayout> axes(domain->num_axes());
        axes[axis] = {Shard(1), std::make_shared<const Extents>(rows_of_ranks(stored, domain->size(axis), order)), 1};
        spec = make_spec(domain, axes, std::move(index_map));
    }
    CaseTensors tensors{
        .id = source.id, .num_points = spec->index_map->num_global, .inputs = sharded_inputs(rows.told, spec), .target = {}, .channels = stored.channels};
    tell_of_case(tensors.inputs, data, source);
    tensors.target = from_local(rows.target.unsqueeze(0), spec);
    return tensors;
}

}  // namespace meshard
