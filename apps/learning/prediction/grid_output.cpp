// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/grid_output.h"

#include "apps/learning/cases/mesh_handover.h"
#include "apps/learning/cases/usable_input.h"
#include "io/bytes/made_folders.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kRowsAtOnce = 1 << 20;  // about as many rows of an array are in memory while it is written

void for_each_slab(const GridBox& whole, const std::function<void(const GridBox&)>& f)
{
    const auto slowest = whole.count[2] > 1 ? 2 : 1;
    const auto thickness = std::max<std::int64_t>(1, kRowsAtOnce * whole.count[slowest] / whole.num_rows());
    for (auto slab = whole; slab.first[slowest] < whole.count[slowest]; slab.first[slowest] += thickness) {
        slab.count[slowest] = std::min(thickness, whole.count[slowest] - slab.first[slowest]);
        f(slab);
    }
}

/// Returns on the first rank the rows of a slab of an array of which each rank has those of its box.
at::Tensor rows_of_slab(const DataArray& array, const GridBox& own, const GridBox& slab, const RankGroup& ranks)
{
    std::vector<std::int64_t> rows, places;
    for_each_run(intersection(own, slab), own, slab, [&](std::int64_t row, std::int64_t place, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
            rows.push_back(row + i);
            places.push_back(place + i);
        }
    });
    const auto all = at::from_blob(const_cast<std::byte*>(array.bytes().data()),
                                   {array.num_rows(), array.num_components()}, at::kFloat);
    return rows_on_first_rank(all.index_select(0, at::tensor(rows, at::kLong)), places, ranks);
}

}  // namespace

void write_grid(const std::filesystem::path& output, const ImageGrid& grid, const GridFile& file, const OwnRows& own,
                const RankGroup& ranks)
{
    const bool is_first = ranks.rank() == 0;
    std::optional<MadeFolders> folders;
    std::optional<ImageWriter> writer;
    read_together(ranks, [&] {
        if (!is_first) return;
        folders.emplace(output);
        writer.emplace(output, grid);
        for (const auto& array : grid.field_data) writer->write(array.bytes());
    });
    for (const bool of_cells : {false, true}) {
        const auto whole = whole_box(grid, of_cells);
        auto num_read = std::ssize(arrays_at(grid, of_cells));
        if (of_cells == own.of_cells) num_read -= own.num_arrays;
        for (const auto& array : arrays_at(grid, of_cells)) {
            if (num_read-- > 0) {
                if (array.type() == ScalarType::String) continue;
                read_together(ranks, [&] {
                    if (!is_first) return;
                    for_each_slab(whole, [&](const GridBox& slab) {
                        writer->write(file.read(array.name(), of_cells, slab).bytes());
                    });
                });
                continue;
            }
            for_each_slab(whole, [&](const GridBox& slab) {
                const auto values = rows_of_slab(array, own.box, slab, ranks);
                read_together(ranks, [&] {
                    if (is_first)
                        writer->write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
                });
            });
        }
    }
    read_together(ranks, [&] {
        if (is_first) writer->commit();
    });
}

}  // namespace meshard
