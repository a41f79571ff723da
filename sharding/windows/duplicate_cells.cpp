// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/duplicate_cells.h"

#include <algorithm>

namespace meshard {

void DuplicateCells::add_window(std::int32_t window, const Mesh& cells, std::span<const std::int32_t> ids,
                                const std::vector<bool>& is_shared)
{
    const auto hashes = cell_hashes(cells);
    std::vector<Hashed> here;
    here.reserve(hashes.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        if (hashes[i] == 0) continue;
        here.push_back({hashes[i], ids[i], window});
        if (std::ranges::all_of(cells.cells.row(static_cast<std::int64_t>(i)),
                                [&](std::int32_t point) { return is_shared[point]; }))
            waiting_.push_back(here.back());
    }
    std::ranges::sort(here);
    for (std::size_t i = 1; i < here.size(); ++i)
        if (here[i].hash == here[i - 1].hash) note(1, here[i].id);
}

void DuplicateCells::send()
{
    std::vector<std::vector<Hashed>> to(messages_.size());
    for (const auto& cell : waiting_)
        to[(cell.hash >> 33) % static_cast<std::uint64_t>(messages_.size())].push_back(cell);
    waiting_.clear();
    for (const auto& part : exchange(messages_, std::move(to))) shared_.insert(shared_.end(), part.begin(), part.end());
}

void DuplicateCells::count(MeshFaults& faults)
{
    std::ranges::sort(shared_);
    for (std::size_t begin = 0, end = 0; begin < shared_.size(); begin = end) {
        std::vector<std::int32_t> windows;
        for (; end < shared_.size() && shared_[end].hash == shared_[begin].hash; ++end)
            windows.push_back(shared_[end].window);
        std::ranges::sort(windows);
        // Duplicates within one window have been counted there.
        const auto num_windows = std::ranges::unique(windows).begin() - windows.begin();
        if (num_windows > 1) note(num_windows - 1, shared_[begin + 1].id);
    }
    std::vector<Hashed>().swap(shared_);
    faults.duplicate_cells = number_;
    faults.first_duplicate = first_;
}

void DuplicateCells::note(std::int64_t number, std::int32_t first)
{
    number_ += number;
    if (first_ < 0 || first < first_) first_ = first;
}

}  // namespace meshard
