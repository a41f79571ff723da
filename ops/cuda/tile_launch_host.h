// SPDX-License-Identifier: Apache-2.0
// Runs the kernels of tile_launch.h on the host, one block after the other.
#pragma once

#include "ops/cuda/tile_launch.h"

#include <algorithm>
#include <barrier>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

namespace meshard::tiles {

/// @param warps   warps of a block; more than one run as threads
inline void run_block(Block block, int warps, int shared_bytes, const std::function<void(const Block&)>& work)
{
    std::vector<float> shared(static_cast<std::size_t>(shared_bytes) / sizeof(float) + 4,
                              std::numeric_limits<float>::quiet_NaN());
    auto* memory = shared.data();
    while (reinterpret_cast<std::uintptr_t>(memory) % 16 != 0) ++memory;
    block.shared = reinterpret_cast<char*>(memory);
    block.warps = warps;
    if (warps == 1) return work(block);
    std::barrier<> all(warps);
    std::vector<std::unique_ptr<std::barrier<>>> of_teams;
    for (int t = 0; t < warps / block.team; ++t) of_teams.push_back(std::make_unique<std::barrier<>>(block.team));
    std::vector<std::thread> threads;
    for (int w = 0; w < warps; ++w) {
        auto own = block;
        own.warp = w;
        own.barrier = &all;
        own.team_barrier = of_teams[w / block.team].get();
        threads.emplace_back([own, &work] { work(own); });
    }
    for (auto& thread : threads) thread.join();
}

class HostLauncher {
public:
    explicit HostLauncher(const HostExecutor& executor) : executor_(executor), form_(executor.form) {}

    int warps() const { return form_.warps; }
    int threads() const { return form_.warps; }
    int shared() const { return std::numeric_limits<int>::max(); }
    std::int64_t parts(std::int64_t most, int, int) const
    {
        return std::max<std::int64_t>(1, std::min<std::int64_t>(most, form_.parts));
    }

    template <class N>
    Buffer<N> numbers(std::int64_t count) const
    {
        return executor_.allocate<N>(count);
    }

    template <class Kernel>
    void rows(const Kernel& kernel, std::int64_t most, int blocks, int chunks, int shared) const
    {
        run_blocks(blocks > 0 ? parts(most, blocks, chunks) : most, 1, chunks, 1, shared, kernel);
    }

    template <class Tile, int, class Kernel>
    void slices(Kernel kernel, int chunks) const
    {
        run<Tile>(kernel, chunks, count_of(kernel));
    }

    template <class Tile, int, class Kernel>
    void sums_in_slices(Kernel& kernel, float*& parts, int chunks, float* sums) const
    {
        const auto count = count_of(kernel);
        const auto size =
            static_cast<std::int64_t>(kernel.points.heads) * kernel.points.num_slices * (kernel.points.head_dim + 1);
        const auto memory = numbers<float>(count * size);
        parts = memory.data();
        run<Tile>(kernel, chunks, count);
        unite_parts<Kernel>(*this, parts, sums, size, static_cast<int>(count), kernel.points.head_dim + 1);
    }

private:
    template <class Kernel>
    std::int64_t count_of(const Kernel& kernel) const
    {
        return std::max<std::int64_t>(1, std::min<std::int64_t>(form_.parts, kernel.points.count / 16));
    }

    template <class Tile, class Kernel>
    void run(Kernel kernel, int chunks, std::int64_t parts) const
    {
        const int team = Kernel::kPairs && kernel.points.heads % 2 == 0 ? form_.team : 1;
        if (Kernel::kAnyRows && form_.table_rows > 0)
            kernel.points.table_rows = std::min(kernel.points.table_rows, form_.table_rows);
        const int shared = Kernel::shared_bytes(form_.warps, kernel.points.table_rows, team);
        run_blocks(parts, kernel.points.heads, chunks, team, shared,
                   [kernel](const Block& own) { kernel(Tile(), own); });
    }

    /// Runs `work` for all parts, teams of heads and chunks of slices. Not a template: kernels come in a hundred forms.
    void run_blocks(std::int64_t parts, int heads, int chunks, int team, int shared,
                    const std::function<void(const Block&)>& work) const
    {
        executor_.for_each(1, [=, warps = form_.warps](std::int64_t) {
            const auto groups = heads / team * chunks;
            for (std::int64_t i = 0; i < parts * groups; ++i) {
                Block block{};
                block.team = team;
                block.parts = static_cast<int>(parts);
                block.chunk = static_cast<int>(i % chunks);
                block.first_head = static_cast<int>(i / chunks % (heads / team)) * team;
                block.part = static_cast<int>(i / groups);
                run_block(block, warps, shared, work);
            }
        });
    }

    const HostExecutor& executor_;
    HostForm form_;
};

}  // namespace meshard::tiles
