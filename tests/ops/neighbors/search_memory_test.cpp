// SPDX-License-Identifier: Apache-2.0
// Acceptance A27 for searches, in a program of its own that counts every byte a thread asks for, of tensors or not: a
// rank's memory follows its own points and ghosts, and never the whole.
#include "ops/neighbors/neighbors.h"
#include "tests/support/point_partitions.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <malloc.h>
#include <new>

namespace {

thread_local std::int64_t live_bytes = 0, peak_bytes = 0;

void count(std::int64_t bytes)
{
    live_bytes += bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
}

}  // namespace

void* operator new(std::size_t size)
{
    void* memory = std::malloc(size);
    if (!memory) throw std::bad_alloc();
    count(static_cast<std::int64_t>(malloc_usable_size(memory)));
    return memory;
}

void operator delete(void* memory) noexcept
{
    count(-static_cast<std::int64_t>(malloc_usable_size(memory)));
    std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept
{
    operator delete(memory);
}

namespace meshard {
namespace {

struct TensorBytes : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override { count(bytes); }
    bool memoryProfilingEnabled() const override { return true; }
};

/// The most that lived at once in this thread while `body` ran, beyond what lived before.
template <class Body>
double peak_of(const Body& body)
{
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<TensorBytes>());
    const auto before = live_bytes;
    peak_bytes = live_bytes;
    body();
    return static_cast<double>(peak_bytes - before);
}

at::Tensor scattered(std::int64_t n)
{
    return at::arange(n * 3, at::kDouble).mul(12.9898).sin().mul(43758.5453).frac().abs().view({n, 3});
}

TEST(AcceptanceA27, CountsWhatIsNoTensorToo)
{
    EXPECT_GE(peak_of([] { std::vector<char> some(1 << 20); }), 1 << 20);
    EXPECT_GE(peak_of([] { at::empty({1 << 20}, at::kByte); }), 1 << 20);
    EXPECT_LT(peak_of([] {
                  std::vector<char>(1 << 20);
                  std::vector<char>(1 << 20);
              }),
              3 << 19);
}

TEST(AcceptanceA27, SearchesCostWhatOwnPointsAndGhostsCost)
{
    constexpr std::int64_t own = 4000;
    constexpr double kKept =
        3 * 8 + 8 +
        8;  // bytes of place, id and row of each point and ghost, of which one rank's search needs no copies
    const auto search = [](bool is_knn, const at::Tensor& points, double radius) {
        return is_knn ? knn(points, points, 16) : radius_search(points, points, radius);
    };
    for (const bool is_knn : {true, false}) {
        for (const int ranks : {2, 8}) {
            const auto points = scattered(own * ranks);
            const double radius = std::cbrt(17 / (4.18879 * static_cast<double>(own * ranks)));
            const auto of_whole =
                peak_of([&] { search(is_knn, points, radius); }) / static_cast<double>(own * ranks);  // a row
            for (const auto& [name, owners] : point_partitions(points, ranks)) {
                if (name != "metis" && name != "curve") continue;
                run_ranks(ranks, [&, &owners = owners, &name = name](const auto& mesh) {
                    const CutPoints rows(owners, mesh);
                    const auto cut = rows.cut(points);
                    std::int64_t num_local = 0;

                    const auto peak = peak_of([&] { num_local = search(is_knn, cut, radius).plan->num_local(); });

                    EXPECT_LE(peak, 1.05 * (of_whole + kKept) * static_cast<double>(num_local) + (64 << 10))
                        << (is_knn ? "knn" : "radius") << ", " << name << ", " << ranks << " ranks, " << num_local
                        << " rows: " << peak / static_cast<double>(num_local) << " bytes a row, of the whole "
                        << of_whole;
                });
            }
        }
    }
}

}  // namespace
}  // namespace meshard
