// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/store/case_rows.h"

#include "apps/learning/store/row_file.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <ranges>
#include <utility>

namespace meshard {
namespace {

/// A row's id and the address of its values.
using FoundRow = std::pair<std::int64_t, const float*>;

struct IdRange {
    std::int64_t begin = 0, end = 0;
};

/// Returns the ids of the rows that a rank has by RowOrder::Ids.
IdRange ids_of_rank(const StoredCase& stored, const RankOfCase& rank)
{
    const auto extents = even_extents(stored.num_rows, rank.num_ranks());
    const auto begin = std::accumulate(extents.begin(), extents.begin() + rank.rank, std::int64_t{0});
    return {begin, begin + extents[rank.rank]};
}

/// Returns the first part whose file has rows of this rank, and the end of those parts.
std::pair<std::int32_t, std::int32_t> parts_of_rank(const StoredCase& stored, const RankOfCase& rank)
{
    if (rank.order == RowOrder::Ids) return {0, static_cast<std::int32_t>(stored.parts.size())};
    const auto runs = part_runs(stored.rows_of_parts(), rank.shares);
    return {runs[rank.rank], runs[rank.rank + 1]};
}

RowFile open_part(const StoredCase& stored, std::int32_t part)
{
    RowFile file(stored.folder / stored.parts[part].file, stored.key,
                 {stored.page_hashes, stored.parts[part].first_page});
    if (file.rows().num_rows() != stored.parts[part].num_rows ||
        file.rows().num_columns != stored.num_inputs + stored.num_targets() ||
        std::ssize(file.rows().block_begins) != StoredOrder(stored.num_rows, stored.case_id).num_blocks() + 1) {
        throw unusable_file(stored.folder / stored.parts[part].file, "has other rows than case.json beside it says");
    }
    return file;
}

IoError damaged(const StoredCase& stored, std::int32_t part, std::int64_t row)
{
    return unusable_file(stored.folder / stored.parts[part].file,
                         fmt::format("is damaged: row {} of {}", row, stored.num_rows));
}

/// A set of some of the numbers 0 ... `num_ids` - 1, as bits.
class IdSet {
public:
    explicit IdSet(std::int64_t num_ids) : words_(static_cast<std::size_t>(num_ids / 64 + 1)) {}

    void add(std::int64_t id) { words_[id >> 6] |= std::uint64_t{1} << (id & 63); }
    bool has(std::int64_t id) const { return (words_[id >> 6] >> (id & 63) & 1) != 0; }

    /// Counts the members and prepares `place_of`; to be called after the last `add`.
    std::int64_t count()
    {
        std::int64_t sum = 0;
        before_.clear();
        for (const auto word : words_) {
            before_.push_back(sum);
            sum += std::popcount(word);
        }
        return sum;
    }
    /// Returns how many members are below `id`.
    std::int64_t place_of(std::int64_t id) const
    {
        return before_[id >> 6] + std::popcount(words_[id >> 6] & ((std::uint64_t{1} << (id & 63)) - 1));
    }

private:
    std::vector<std::uint64_t> words_;
    std::vector<std::int64_t> before_;  // number of members in earlier words
};

/// Finds the first stored row of a block whose place is `place` or later. A part holds a random choice of the block's
/// rows, so the search begins where the place would be if they lay evenly: that touches a page or two of the ids, where
/// bisection would touch many.
std::int64_t first_row_at(const RowFile& file, const StoredOrder& order, std::int64_t block, std::int64_t place)
{
    const auto& rows = file.rows();
    const auto begin = rows.block_begins[block], end = rows.block_begins[block + 1];
    const auto first_place = order.begin_of(block), num_places = order.begin_of(block + 1) - first_place;
    const auto is_before = [&](std::int64_t row) { return order.place_of(file.id(row)) < place; };
    // The search ends with every row below `low` before the place.
    auto low = begin + (place - first_place) * (end - begin) / num_places, high = low;
    for (std::int64_t step = 1; low > begin && !is_before(low - 1); step *= 2) low = std::max(begin, low - step);
    for (std::int64_t step = 1; high < end && is_before(high); step *= 2) high = std::min(end, high + step);
    const auto candidates = std::views::iota(low, high);
    return low + (std::ranges::partition_point(candidates, is_before) - candidates.begin());
}

/// Whether most pages hold a chosen row, so that reading all pages ahead is faster.
bool are_dense(std::int64_t num_chosen, std::int64_t num_bytes)
{
    constexpr std::int64_t page = 4096;
    return num_chosen * page >= num_bytes;
}

/// Finds chosen rows that lie together. The pages of all ranges are requested before the first is looked at, since the
/// file may not be in memory yet.
void find_ranges(const RowFile& file, const StoredOrder& order, const RowChoice& choice, std::vector<FoundRow>& found)
{
    const auto& rows = file.rows();
    const auto& ranges = choice.ranges;
    std::int64_t num_in_ranges = 0;
    for (const auto& range : ranges) {
        num_in_ranges += range.count;
        const auto block = order.block_of(range.first), first = order.begin_of(block),
                   num_places = order.begin_of(block + 1) - first;
        const auto begin = rows.block_begins[block], num_rows = rows.block_begins[block + 1] - begin;
        constexpr std::int64_t margin = 512;  // the search may go this many rows beyond its first guess
        const auto low = std::max(begin, begin + (range.first - first) * num_rows / num_places - margin);
        const auto high =
            std::min(begin + num_rows, begin + (range.first + range.count - first) * num_rows / num_places + margin);
        if (low < high) MappedFile::will_be_read(std::as_bytes(rows.ids.subspan(low, high - low)));
    }
    const auto num_chosen = std::ssize(choice.ids);
    const bool reads_ahead =
        are_dense(num_chosen, num_in_ranges * rows.num_columns * static_cast<std::int64_t>(sizeof(float)));
    std::vector<std::pair<std::int64_t, std::int64_t>> runs;
    for (const auto& range : ranges) {
        const auto block = order.block_of(range.first);
        const auto begin = first_row_at(file, order, block, range.first),
                   end = first_row_at(file, order, block, range.first + range.count);
        if (begin >= end) continue;
        runs.emplace_back(begin, end);
        if (reads_ahead)
            MappedFile::will_be_read(
                std::as_bytes(rows.values.subspan(begin * rows.num_columns, (end - begin) * rows.num_columns)));
    }
    const bool has_others = num_in_ranges > num_chosen;
    for (const auto& [begin, end] : runs) {
        file.verify(std::as_bytes(rows.ids.subspan(begin, end - begin)));
        if (reads_ahead)
            file.verify(std::as_bytes(rows.values.subspan(begin * rows.num_columns, (end - begin) * rows.num_columns)));
        for (auto row = begin; row < end; ++row) {
            if (!has_others || std::ranges::binary_search(choice.ids, rows.ids[row]))
                found.emplace_back(rows.ids[row], reads_ahead ? rows.row(row) : file.values(row));
        }
    }
}

/// Finds chosen rows that may lie anywhere in the file.
void find_ids(const RowFile& file, const IdSet& chosen, std::int64_t num_chosen, const StoredCase& stored,
              std::int32_t part, std::vector<FoundRow>& found)
{
    const auto& rows = file.rows();
    MappedFile::will_be_read(std::as_bytes(rows.ids));
    const bool reads_all = are_dense(num_chosen, static_cast<std::int64_t>(rows.values.size_bytes()));
    if (reads_all) MappedFile::will_be_read(std::as_bytes(rows.values));
    file.verify(std::as_bytes(rows.ids));
    if (reads_all) file.verify(std::as_bytes(rows.values));
    for (std::int64_t row = 0; row < rows.num_rows(); ++row) {
        const auto id = rows.ids[row];
        // Files of earlier versions have no page hashes, by which `verify` would notice a damaged id.
        if (id < 0 || id >= stored.num_rows) throw damaged(stored, part, id);
        if (chosen.has(id)) found.emplace_back(id, reads_all ? rows.row(row) : file.values(row));
    }
}

/// Copies stored rows into the tensors of a case.
class RowCopy {
public:
    RowCopy(const StoredCase& stored, std::int64_t num_rows, bool in_locked_memory)
        : num_inputs_(stored.num_inputs), num_targets_(stored.num_targets())
    {
        const auto options = at::TensorOptions(at::kFloat).pinned_memory(in_locked_memory);
        rows = {at::empty({num_rows, num_inputs_}, options),
                at::empty({num_rows, num_targets_}, options),
                {},
                std::vector<std::int64_t>(num_rows)};
        told_ = rows.told.mutable_data_ptr<float>();
        target_ = rows.target.mutable_data_ptr<float>();
    }

    void operator()(const float* from, std::int64_t i)
    {
        std::copy_n(from, num_inputs_, told_ + i * num_inputs_);
        std::copy_n(from + num_inputs_, num_targets_, target_ + i * num_targets_);
    }

    CaseRows rows;

private:
    std::int64_t num_inputs_, num_targets_;
    float *told_ = nullptr, *target_ = nullptr;
};

/// Reads all rows that a rank has in the order in which they are stored, and puts them in the order of their ids.
CaseRows read_all_rows(const StoredCase& stored, const std::vector<RowFile>& files, std::int32_t first_part,
                       IdRange own, bool in_locked_memory)
{
    IdSet ids(stored.num_rows);
    std::int64_t num_rows = 0;
    const auto is_own = [&](std::int64_t id) { return id >= own.begin && id < own.end; };
    for (std::size_t i = 0; i < files.size(); ++i) {
        files[i].verify();
        for (const auto id : files[i].rows().ids) {
            if (id < 0 || id >= stored.num_rows) throw damaged(stored, first_part + static_cast<std::int32_t>(i), id);
            if (!is_own(id)) continue;
            ids.add(id);
            ++num_rows;
        }
    }
    if (ids.count() != num_rows)
        throw IoError("store: {} has rows twice. Remove the folder: it is made again from the case.",
                      stored.folder.string());
    RowCopy copy(stored, num_rows, in_locked_memory);
    for (const auto& file : files) {
        const auto& stored_rows = file.rows();
        for (std::int64_t row = 0; row < stored_rows.num_rows(); ++row) {
            const auto id = stored_rows.ids[row];
            if (!is_own(id)) continue;
            const auto place = ids.place_of(id);
            copy.rows.ids[place] = id;
            copy(stored_rows.row(row), place);
        }
    }
    return std::move(copy.rows);
}

/// Reads the measures of rows with these ascending ids: (rows, 1).
at::Tensor measures_of(const StoredCase& stored, std::span<const std::int64_t> ids, const RowReading& reading)
{
    const MeasureFile file(stored);
    const auto of_places = file.values();
    auto measures =
        at::empty({std::ssize(ids), 1}, at::TensorOptions(at::kFloat).pinned_memory(reading.in_locked_memory));
    auto* out = measures.mutable_data_ptr<float>();
    for (const auto place : StoredOrder(stored.num_rows, stored.case_id).places_of(ids)) *out++ = of_places[place];
    return measures;
}

}  // namespace

Extents rows_of_ranks(const StoredCase& stored, const Shares& shares, RowOrder order)
{
    const auto num_ranks = std::ssize(shares);
    if (order == RowOrder::Ids) return even_extents(stored.num_rows, num_ranks);
    const auto rows = stored.rows_of_parts();
    const auto runs = part_runs(rows, shares);
    Extents extents;
    for (std::int64_t rank = 0; rank < num_ranks; ++rank)
        extents.push_back(std::accumulate(rows.begin() + runs[rank], rows.begin() + runs[rank + 1], std::int64_t{0}));
    return extents;
}

std::int64_t bytes_of_rows(const StoredCase& stored, const Shares& shares, RowOrder order, bool with_measures)
{
    // The tensor of positions repeats three of the inputs.
    const auto numbers = stored.num_inputs + 3 + stored.num_targets() + (with_measures ? 1 : 0);
    return std::ranges::max(rows_of_ranks(stored, shares, order)) * (numbers * 4 + 8);
}

CaseRows read_rows(const StoredCase& stored, const RankOfCase& rank, const RowReading& reading)
{
    const auto* choice = reading.choice;
    const auto [first_part, end_part] = parts_of_rank(stored, rank);
    const auto own = rank.order == RowOrder::Ids ? ids_of_rank(stored, rank) : IdRange{0, stored.num_rows};
    std::vector<RowFile> files;  // keeps the files mapped
    for (auto part = first_part; part < end_part; ++part) files.push_back(open_part(stored, part));
    if (!choice) {
        for (const auto& file : files) file.will_be_read();
        auto rows = read_all_rows(stored, files, first_part, own, reading.in_locked_memory);
        if (reading.with_measures) rows.measures = measures_of(stored, rows.ids, reading);
        return rows;
    }

    std::vector<FoundRow> found;
    const StoredOrder order(stored.num_rows, stored.case_id);
    std::optional<IdSet> chosen;
    if (choice->ranges.empty()) {
        chosen.emplace(stored.num_rows);
        for (const auto id : choice->ids) chosen->add(id);
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
        if (chosen)
            find_ids(files[i], *chosen, std::ssize(choice->ids), stored, first_part + static_cast<std::int32_t>(i),
                     found);
        else
            find_ranges(files[i], order, *choice, found);
    }
    std::erase_if(found, [&](const FoundRow& row) { return row.first < own.begin || row.first >= own.end; });
    std::ranges::sort(found);
    RowCopy copy(stored, std::ssize(found), reading.in_locked_memory);
    if (reading.with_measures) {
        std::vector<std::int64_t> ids;
        for (const auto& row : found) ids.push_back(row.first);
        copy.rows.measures = measures_of(stored, ids, reading);
    }
    auto next = choice->ids.begin();
    for (std::int64_t i = 0; i < std::ssize(found); ++i) {
        const auto [id, values] = found[i];
        copy(values, i);
        while (next != choice->ids.end() && *next < id) ++next;  // both lists ascend
        copy.rows.ids[i] = next - choice->ids.begin();
    }
    return std::move(copy.rows);
}

std::vector<std::filesystem::path> files_of_rank(const StoredCase& stored, const RankOfCase& rank, bool with_measures)
{
    const auto [first, end] = parts_of_rank(stored, rank);
    std::vector<std::filesystem::path> files;
    for (auto part = first; part < end; ++part) files.push_back(stored.folder / stored.parts[part].file);
    if (with_measures && !stored.measures.blocks.empty()) files.push_back(MeasureFile::path_of(stored));
    return files;
}

void check_files(const StoredCase& stored, const RankOfCase& rank, bool with_measures)
{
    const auto [first, end] = parts_of_rank(stored, rank);
    for (auto part = first; part < end; ++part) open_part(stored, part);
    if (with_measures && !stored.measures.blocks.empty()) const MeasureFile whole(stored);
}

CaseTensors case_tensors(CaseRows rows, const StoredCase& stored, const CaseSource& source, const DataConfig& data,
                         const Shares& shares, RowOrder order, const std::shared_ptr<const DeviceMesh>& domain,
                         std::optional<std::int64_t> num_chosen)
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
        axes[axis] = {Shard(1), std::make_shared<const Extents>(rows_of_ranks(stored, shares, order)), 1};
        spec = make_spec(domain, axes, std::move(index_map));
    }
    CaseTensors tensors{.id = source.id,
                        .num_points = spec->index_map->num_global,
                        .inputs = sharded_inputs(rows.told, spec),
                        .target = {},
                        .measures = {},
                        .channels = stored.channels};
    add_case_constants(tensors.inputs, data, source);
    tensors.target = from_local(rows.target.unsqueeze(0), spec);
    if (rows.measures.defined()) tensors.measures = from_local(rows.measures.unsqueeze(0), spec);
    return tensors;
}

}  // namespace meshard
