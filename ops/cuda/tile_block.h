// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TILE_FN __device__ __forceinline__
#define TILE_BOTH __host__ __device__
#define TILE_UNROLL _Pragma("unroll")
#else
#include <barrier>
#define TILE_FN inline
#define TILE_BOTH
#define TILE_UNROLL
#endif

namespace meshard::tiles {

/// The coordinates of a warp. On a host a warp is one call: of the only warp in a block or, in tests, of threads that
/// meet at barriers, so that a thread sanitizer detects missing barriers.
struct Block {
    int warp, warps, lane;
    int part, parts;        ///< part of the points
    int first_head, chunk;  ///< chunk: of the slices
    /// 1, or 2 warps: neighbouring heads of the same points, which copy rows together, 128 bytes at a time instead of
    /// 64.
    int team;
    char* shared;
#ifdef __CUDACC__
    static constexpr int kLanes = 32;
    TILE_FN void sync() const { __syncthreads(); }
    TILE_FN void team_sync() const
    {
        if (team == 1)
            __syncwarp();
        else
            asm volatile("bar.sync %0, 64;" ::"r"(1 + warp / 2) : "memory");
    }
    /// The sum over the lanes of a warp, returned in each lane.
    TILE_FN float sum(float x) const
    {
        TILE_UNROLL
        for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
        return x;
    }
    TILE_FN double sum(double x) const
    {
        TILE_UNROLL
        for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
        return x;
    }
    TILE_FN float max(float x) const
    {
        TILE_UNROLL
        for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
        return x;
    }
#else
    static constexpr int kLanes = 1;
    std::barrier<>*barrier = nullptr, *team_barrier = nullptr;  ///< null: the block has one warp
    void sync() const
    {
        if (barrier) barrier->arrive_and_wait();
    }
    void team_sync() const
    {
        if (team_barrier) team_barrier->arrive_and_wait();
    }
    template <class Number>
    Number sum(Number x) const
    {
        return x;
    }
    float max(float x) const { return x; }
#endif
    TILE_FN int member() const { return team == 1 ? 0 : warp % 2; }
    TILE_FN int team_number() const { return team == 1 ? warp : warp / 2; }
    TILE_FN int teams() const { return team == 1 ? warps : warps / 2; }
    TILE_FN int head() const { return first_head + member(); }

    /// Calls f(0) to f(count - 1), distributed over the threads of the block.
    template <class F>
    TILE_FN void each(int count, const F& f) const
    {
        for (int i = warp * kLanes + lane; i < count; i += warps * kLanes) f(i);
    }
};

}  // namespace meshard::tiles
