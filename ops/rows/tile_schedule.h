// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace meshard {

/// Consecutive points of one sample of a batch (B, N, ...).
struct Tile {
    std::int64_t sample = 0;
    std::int64_t first = 0;  ///< index of the first point, counted over the batch: sample * N + n
    std::int64_t count = 0;
};

/// Divides a batch into tiles of at most `max_points`, or smaller ones if otherwise some threads had no tile.
std::vector<Tile> cut_tiles(std::int64_t batch, std::int64_t num_points, std::int64_t max_points);

std::int64_t largest_count(const std::vector<Tile>& tiles);

/// The most threads that `run_on_torch_threads` uses: LibTorch's setting.
int max_threads();

/// Calls `work(begin, end, thread)` for ranges of 0 ... count - 1, one on each thread of LibTorch's pool; matrix
/// products inside run on one thread each. Rethrows the first exception.
void run_on_torch_threads(std::int64_t count,
                          const std::function<void(std::int64_t begin, std::int64_t end, int thread)>& work);

/// Processes tiles on several threads. Each thread has its own worker, which holds its memory and its sums, added at
/// the end. A thread gets consecutive tiles, so that sums are the same in every run with the same number of threads.
template <class Worker>
class TileThreads {
public:
    /// @param make   makes a worker; called once by each thread that gets a tile
    explicit TileThreads(std::function<std::unique_ptr<Worker>()> make)
        : make_(std::move(make)), workers_(max_threads())
    {
    }

    /// Calls `work(tile, worker)` for all tiles.
    template <class Work>
    void run(const std::vector<Tile>& tiles, const Work& work)
    {
        run_on_torch_threads(static_cast<std::int64_t>(tiles.size()),
                             [&](std::int64_t begin, std::int64_t end, int thread) {
                                 auto& worker = workers_[thread];
                                 if (!worker) worker = make_();
                                 for (auto i = begin; i < end; ++i) work(tiles[i], *worker);
                             });
    }

    /// Calls `visit` for the workers of threads that got a tile.
    template <class Visit>
    void for_each_worker(const Visit& visit)
    {
        for (auto& worker : workers_) {
            if (worker) visit(*worker);
        }
    }

private:
    std::function<std::unique_ptr<Worker>()> make_;
    std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace meshard
