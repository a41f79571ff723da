// SPDX-License-Identifier: Apache-2.0
// Starts the kernels of tile_launch.h on a GPU; for NVIDIA's compiler only.
#pragma once

#include "ops/cuda/cuda_executor.h"
#include "ops/cuda/tile_launch.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace meshard::tiles {

constexpr int kSliceWarps = 4, kRowWarps = 8;
constexpr std::int64_t kMostParts = 512;
constexpr int kSharedWithoutAsking = 48 * 1024;

/// Number of blocks on a multiprocessor for which the compiler leaves registers: a third one only if that causes no
/// spills.
constexpr int resident_blocks(int wanted)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
    return wanted > 2 ? 2 : wanted;
#else
    return wanted;
#endif
}

template <class Tile, class Kernel, int MinBlocks, int Team>
__global__ void __launch_bounds__(kSliceWarps * 32, resident_blocks(MinBlocks))
    run_slices(const __grid_constant__ Kernel kernel, int parts, int chunks)
{
    extern __shared__ __align__(16) char shared[];
    Tile tile;
    tile.lane = threadIdx.x % 32;
    Block block;
    block.warp = threadIdx.x / 32;
    block.warps = blockDim.x / 32;
    block.lane = tile.lane;
    block.parts = parts;
    // Blocks of one part of the points run side by side, so that what they read is in the cache.
    block.chunk = blockIdx.x % chunks;
    block.team = Team;
    block.first_head = blockIdx.x / chunks % (kernel.points.heads / Team) * Team;
    block.part = blockIdx.x / chunks / (kernel.points.heads / Team);
    block.shared = shared;
    kernel(tile, block);
}

template <class Kernel>
__global__ void __launch_bounds__(kRowWarps * 32) run_rows(const __grid_constant__ Kernel kernel, int chunks)
{
    extern __shared__ __align__(16) char shared[];
    Block block;
    block.warp = threadIdx.x / 32;
    block.warps = kRowWarps;
    block.lane = threadIdx.x % 32;
    block.chunk = blockIdx.x % chunks;
    block.part = blockIdx.x / chunks;
    block.parts = gridDim.x / chunks;
    block.team = 1;
    block.first_head = 0;
    block.shared = shared;
    kernel(block);
}

struct DeviceLimits {
    int multiprocessors, shared;  // shared: bytes of shared memory available to a block
};

inline DeviceLimits device_limits()
{
    static std::mutex mutex;
    static std::map<int, DeviceLimits> known;
    int device = 0;
    check_cuda(cudaGetDevice(&device), "asking for the current device");
    const std::lock_guard lock(mutex);
    const auto at = known.find(device);
    if (at != known.end()) return at->second;
    DeviceLimits found{};
    check_cuda(cudaDeviceGetAttribute(&found.multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "asking for a device's size");
    check_cuda(cudaDeviceGetAttribute(&found.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "asking for a device's shared memory");
    return known[device] = found;
}

class CudaLauncher {
public:
    explicit CudaLauncher(const CudaExecutor& executor) : executor_(executor), limits_(device_limits()) {}

    int warps() const { return kRowWarps; }
    int threads() const { return kRowWarps * 32; }
    int shared() const { return limits_.shared; }
    std::int64_t parts(std::int64_t most, int blocks, int chunks) const
    {
        return std::max<std::int64_t>(
            1, std::min<std::int64_t>(most, static_cast<std::int64_t>(limits_.multiprocessors) * blocks / chunks));
    }

    template <class N>
    Buffer<N> numbers(std::int64_t count) const
    {
        return count > 0 ? executor_.allocate<N>(count) : Buffer<N>{};
    }

    template <class Kernel>
    void rows(const Kernel& kernel, std::int64_t most, int blocks, int chunks, int shared) const
    {
        const auto count = blocks > 0 ? parts(most, blocks, chunks) : most;
        // The most that a block may have, whatever this launch takes: another thread may be starting a larger one.
        if (shared > kSharedWithoutAsking)
            check_cuda(
                cudaFuncSetAttribute(run_rows<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, limits_.shared),
                "asking for shared memory");
        run_rows<<<static_cast<unsigned>(count * chunks), kRowWarps * 32, shared, executor_.stream>>>(kernel, chunks);
        check_cuda(cudaGetLastError(), "a kernel's start");
    }

    template <class Tile, int MinBlocks, class Kernel>
    void slices(Kernel kernel, int chunks) const
    {
        const auto fit = fitting<Tile, MinBlocks>(kernel, chunks);
        start<Tile, MinBlocks>(kernel, chunks, fit);
    }

    template <class Tile, int MinBlocks, class Kernel>
    void sums_in_slices(Kernel& kernel, float*& parts, int chunks, float* sums) const
    {
        const auto fit = fitting<Tile, MinBlocks>(kernel, chunks);
        const auto size =
            static_cast<std::int64_t>(kernel.points.heads) * kernel.points.num_slices * (kernel.points.head_dim + 1);
        const auto memory = numbers<float>(fit.parts * size);
        parts = memory.data();
        start<Tile, MinBlocks>(kernel, chunks, fit);
        unite_parts<Kernel>(*this, parts, sums, size, static_cast<int>(fit.parts), kernel.points.head_dim + 1);
    }

private:
    struct Fit {
        int warps = 0, team = 1, shared = 0;
        std::int64_t parts = 0;
    };

    /// Chooses the warps of a block, and the rows of the kernel's tables in shared memory: four warps if all slices, or
    /// at least 64, then fit.
    template <class Tile, int MinBlocks, class Kernel>
    Fit fitting(Kernel& kernel, int chunks) const
    {
        Fit fit;
        const int all = padded_slices(kernel.points.num_slices);
        const auto take = [&](int warps, int team, int least) {
            int rows = all;
            if (Kernel::kAnyRows)
                while (rows > least && Kernel::shared_bytes(warps, rows, team) > limits_.shared) rows -= 16;
            if (rows < least || Kernel::shared_bytes(warps, rows, team) > limits_.shared) return false;
            const int pieces = (all + rows - 1) / rows;
            kernel.points.table_rows = padded_slices((all + pieces - 1) / pieces);
            fit.warps = warps;
            fit.team = team;
            fit.shared = Kernel::shared_bytes(warps, kernel.points.table_rows, team);
            return true;
        };
        const int least = Kernel::kAnyRows ? std::min(all, 64) : 0;
        const bool found = (Kernel::kPairs && kernel.points.heads % 2 == 0 && take(4, 2, all)) || take(4, 1, least) ||
                           take(2, 1, least) || take(1, 1, least) || take(2, 1, 16) || take(1, 1, 16);
        if (!found)
            throw std::runtime_error("CUDA: this GPU has too little shared memory for slice attention with heads of " +
                                     std::to_string(kernel.points.head_dim) + " channels");
        const int per_multiprocessor = fit.team == 2 ? occupancy<Tile, MinBlocks, Kernel::kPairs ? 2 : 1, Kernel>(fit)
                                                     : occupancy<Tile, MinBlocks, 1, Kernel>(fit);
        const int points = 16 * fit.warps / fit.team;
        const auto most = (kernel.points.count + points - 1) / points;
        const auto wanted = static_cast<std::int64_t>(limits_.multiprocessors) * per_multiprocessor /
                            (kernel.points.heads / fit.team * chunks);
        fit.parts = std::max<std::int64_t>(1, std::min({wanted, most, kMostParts}));
        return fit;
    }

    /// Number of blocks that fit on a multiprocessor.
    template <class Tile, int MinBlocks, int Team, class Kernel>
    int occupancy(const Fit& fit) const
    {
        static std::mutex mutex;
        static std::map<std::pair<int, int>, int> known;  // by device, and by warps and shared memory
        int device = 0;
        check_cuda(cudaGetDevice(&device), "asking for the current device");
        const std::lock_guard lock(mutex);
        const auto key = std::make_pair(device, fit.shared * 8 + fit.warps);
        const auto at = known.find(key);
        if (at != known.end()) return at->second;
        const auto function = run_slices<Tile, Kernel, MinBlocks, Team>;
        check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, limits_.shared),
                   "asking for shared memory");
        int found = 0;
        check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, function, fit.warps * 32, fit.shared),
                   "asking for a kernel's occupancy");
        return known[key] = std::max(found, 1);
    }

    template <class Tile, int MinBlocks, class Kernel>
    void start(const Kernel& kernel, int chunks, const Fit& fit) const
    {
        const auto blocks = static_cast<unsigned>(fit.parts * (kernel.points.heads / fit.team) * chunks);
        if (fit.team == 2)
            run_slices<Tile, Kernel, MinBlocks, Kernel::kPairs ? 2 : 1>
                <<<blocks, fit.warps * 32, fit.shared, executor_.stream>>>(kernel, static_cast<int>(fit.parts), chunks);
        else
            run_slices<Tile, Kernel, MinBlocks, 1>
                <<<blocks, fit.warps * 32, fit.shared, executor_.stream>>>(kernel, static_cast<int>(fit.parts), chunks);
        check_cuda(cudaGetLastError(), "a kernel's start");
    }

    const CudaExecutor& executor_;
    DeviceLimits limits_;
};

}  // namespace meshard::tiles
