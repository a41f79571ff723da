// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/tile_schedule.h"

#include "sharding/ranks/parallel_for.h"

#include <algorithm>
#include <exception>
#include <mutex>

namespace meshard {

std::vector<Tile> cut_tiles(std::int64_t batch, std::int64_t num_points, std::int64_t max_points)
{
    constexpr std::int64_t kVector = 16;
    const auto share = (batch * num_points + max_threads() - 1) / max_threads();
    const auto size = std::max<std::int64_t>(1, std::min(max_points, (share + kVector - 1) / kVector * kVector));
    std::vector<Tile> tiles;
    for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t begin = 0; begin < num_points; begin += size) {
            tiles.push_back({b, b * num_points + begin, std::min(size, num_points - begin)});
        }
    }
    return tiles;
}

std::int64_t largest_count(const std::vector<Tile>& tiles)
{
    std::int64_t largest = 0;
    for (const auto& tile : tiles) largest = std::max(largest, tile.count);
    return largest;
}

int max_threads()
{
    return at::get_num_threads();
}

void run_on_torch_threads(std::int64_t count,
                          const std::function<void(std::int64_t begin, std::int64_t end, int thread)>& work)
{
    std::exception_ptr failure;
    std::mutex mutex;
    at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
        try {
            work(begin, end, at::get_thread_num());
        } catch (...) {
            const std::lock_guard lock(mutex);
            if (!failure) failure = std::current_exception();
        }
    });
    if (failure) std::rethrow_exception(failure);
}

}  // namespace meshard
