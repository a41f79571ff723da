// SPDX-License-Identifier: Apache-2.0
// CPU seconds of build and all queries among themselves, one thread, beside nanoflann called directly on points in
// Hilbert order:
//     point_search_benchmark [points, default 1000000] [pairs, default 3]
#include "ops/search/point_search.h"
#include "partition/cut/curve_order.h"

#include <nanoflann.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>
#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kNeighbors = 16;

double cpu_seconds()
{
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_of(const std::function<void()>& work)
{
    const double start = cpu_seconds();
    work();
    return cpu_seconds() - start;
}

struct Cloud {
    const std::vector<float>& points;

    std::size_t kdtree_get_point_count() const { return points.size() / 3; }
    float kdtree_get_pt(std::size_t i, std::size_t axis) const { return points[3 * i + axis]; }
    template <class Box>
    bool kdtree_get_bbox(Box&) const
    {
        return false;
    }
};
using Tree = nanoflann::KDTreeSingleIndexAdaptor<nanoflann::L2_Simple_Adaptor<float, Cloud>, Cloud, 3, std::uint32_t>;

/// Points of the unit cube in the order in which a Hilbert curve meets them.
std::vector<float> along_curve(const std::vector<float>& points)
{
    std::vector<std::pair<std::uint64_t, std::size_t>> order(points.size() / 3);
    for (std::size_t i = 0; i < order.size(); ++i)
        order[i] = {hilbert_index({points[3 * i], points[3 * i + 1], points[3 * i + 2]}), i};
    std::sort(order.begin(), order.end());
    std::vector<float> sorted;
    for (const auto& [index, i] : order)
        sorted.insert(sorted.end(), points.begin() + 3 * i, points.begin() + 3 * i + 3);
    return sorted;
}

/// Median CPU seconds of pairs that are run one after the other, so that both meet the same machine.
void compare(const char* what, int num_pairs, const std::function<void()>& other, const std::function<void()>& own)
{
    std::vector<double> others, owns, ratios;
    for (int i = 0; i < num_pairs; ++i) {
        others.push_back(seconds_of(other));
        owns.push_back(seconds_of(own));
        ratios.push_back(others.back() / owns.back());
    }
    const auto median = [](std::vector<double> values) {
        std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
        return values[values.size() / 2];
    };
    std::printf("  %-28s %7.3f s   meshard %7.3f s   ratio %.2f\n", what, median(others), median(owns), median(ratios));
}

void run(const char* name, const std::vector<float>& points, double radius, int num_pairs)
{
    std::printf("%s, %zu points\n", name, points.size() / 3);
    const auto sorted = along_curve(points);
    const Cloud cloud{sorted};
    const auto n = points.size() / 3;
    compare(
        "nanoflann, k = 16", num_pairs,
        [&] {
            const Tree tree(3, cloud, nanoflann::KDTreeSingleIndexAdaptorParams(10));
            std::vector<std::uint32_t> ids(kNeighbors * n);
            std::vector<float> distances(kNeighbors * n);
            for (std::size_t i = 0; i < n; ++i)
                tree.knnSearch(&sorted[3 * i], kNeighbors, &ids[kNeighbors * i], &distances[kNeighbors * i]);
        },
        [&] { PointSearch<float>(points, 3).knn(points, kNeighbors); });
    compare(
        "nanoflann, radius", num_pairs,
        [&] {
            const Tree tree(3, cloud, nanoflann::KDTreeSingleIndexAdaptorParams(10));
            std::vector<std::pair<std::uint32_t, float>> found;
            for (std::size_t i = 0; i < n; ++i) {
                found.clear();
                tree.radiusSearch(&sorted[3 * i], static_cast<float>(radius * radius), found,
                                  nanoflann::SearchParams(32, 0, false));
            }
        },
        [&] { PointSearch<float>(points, 3).within(points, std::vector<RadiusLimit>{{radius}}); });
    compare(
        "largest of six radii alone", num_pairs,
        [&] { PointSearch<float>(points, 3).within(points, std::vector<RadiusLimit>{{radius}}); },
        [&] {
            std::vector<RadiusLimit> six;
            for (const double part : {0.2, 0.35, 0.5, 0.65, 0.8, 1.0}) six.push_back({part * radius});
            PointSearch<float>(points, 3).within(points, six);
        });
}

}  // namespace
}  // namespace meshard

int main(int argc, char** argv)
{
    const auto n = static_cast<std::size_t>(argc > 1 ? std::atoll(argv[1]) : 1'000'000);
    const int num_pairs = argc > 2 ? std::atoi(argv[2]) : 3;
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> unit(0, 1);
    std::normal_distribution<double> normal;
    std::vector<float> uniform(3 * n), graded(3 * n);
    for (auto& x : uniform) x = static_cast<float>(unit(random));
    for (std::size_t i = 0; i < n; ++i) {  // shells around a sphere, a thousand times denser at its surface
        const double direction[3] = {normal(random), normal(random), normal(random)};
        const double length = std::hypot(direction[0], direction[1], direction[2]);
        const double distance = 0.2 + 0.3e-3 * std::pow(1000.0, unit(random));
        for (int d = 0; d < 3; ++d) graded[3 * i + d] = static_cast<float>(0.5 + direction[d] / length * distance);
    }
    meshard::run("uniform, random order", uniform, std::cbrt(17 / (4.18879 * static_cast<double>(n))), num_pairs);
    meshard::run("graded, random order", graded, 0.36 / std::cbrt(static_cast<double>(n)), num_pairs);
}
