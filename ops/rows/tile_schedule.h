// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace meshard {

/// A run of points of one sample of a batch (B, N, ...).
struct Tile {
    std::int64_t sample = 0;
    std::int64_t first = 0;  ///< of its points, counted over the batch: sample * N + n
    std::int64_t count = 0;
};

/// At most `max_points` each, fewer where threads would else go without.
std::vector<Tile> cut_tiles(std::int64_t batch, std::int64_t num_points, std::int64_t max_points);

std::int64_t largest_count(const std::vector<Tile>& tiles);

/// Threads that `run_on_torch_threads` uses at most: LibTorch's setting.
int max_threads();

/// Calls `work(begin, end, thread)` for parts of 0 ... count - 1, one a thread of LibTorch's pool; products of matrices inside run on one thread each. The
/// first exception is thrown again.
void run_on_torch_threads(std::int64_t count, const std::function<void(std::int64_t begin, std::int64_t end, int thread)>& work);

/// Threads at work on tiles, each with a worker of its own: memory, and sums that are added up in the end. A thread's tiles follow each other, so that
/// a number of threads always gives the same sums.
template <class Worker>
class TileThreads {
public:
    /// @param make   a new worker; called once by each thread that gets a tile
    explicit TileThreads(std::function<std::unique_ptr<Worker>()> make) : make_(std::move(make)), workers_(max_threads()) {}

    /// Calls `work(tile, worker)` for all tiles.
    template <class Work>
    void run(const std::vector<Tile>& tiles, const Work& work)
    {
        run_on_torch_threads(static_cast<std::int64_t>(tiles.size()), [&](std::int64_t begin, std::int64_t end, int thread) {
            auto& worker = workers_[thread];
            if (!worker) worker = make_();
            for (auto i = begin; i < end; ++i) work(tiles[i], *worker);
        });
    }

    /// Those that had something to do.
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
