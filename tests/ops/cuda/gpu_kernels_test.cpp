// SPDX-License-Identifier: Apache-2.0
// The kernels on a GPU against the same bodies run by the host.
#include "ops/cuda/kernels.h"
#include "tests/support/on_device.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace meshard {
namespace {

class GpuKernels : public OnGpu {};

std::vector<float> draw(std::mt19937_64& random, std::int64_t n)
{
    std::vector<float> values(n);
    for (auto& value : values) value = static_cast<float>(random() % 1000) / 1000;
    return values;
}

TEST_F(GpuKernels, PackUnpackAndAddRows)
{
    std::mt19937_64 random(1);
    for (const std::int64_t channels : {1, 3, 64}) {
        const std::int64_t num_rows = 5000, n = 3000;
        const auto rows = draw(random, num_rows * channels);
        std::vector<std::int64_t> index(n), offsets(num_rows + 1), places(n);
        for (std::int64_t i = 0; i < n; ++i) index[i] = (i * 7919) % num_rows;  // no row twice
        for (std::int64_t i = 0; i < n; ++i) places[i] = n - 1 - i;
        for (std::int64_t i = 0; i <= num_rows; ++i) offsets[i] = i * n / num_rows;
        std::vector<float> packed(n * channels), unpacked(rows.size()), sums = rows;
        pack_rows(HostExecutor{}, rows.data(), index.data(), n, channels, packed.data());
        unpack_rows(HostExecutor{}, packed.data(), index.data(), n, channels, unpacked.data());
        add_packed_rows(HostExecutor{}, packed.data(), offsets.data(), places.data(), num_rows, channels, sums.data());
        const OnDevice<float> device_rows(rows), device_packed(std::vector<float>(packed.size())),
            device_unpacked(std::vector<float>(rows.size()));
        const OnDevice<std::int64_t> device_index(index), device_offsets(offsets), device_places(places);

        using Word = std::uint32_t;
        pack_rows(kGpu, reinterpret_cast<const Word*>(device_rows.data()), device_index.data(), n, channels,
                  reinterpret_cast<Word*>(device_packed.data()));
        unpack_rows(kGpu, reinterpret_cast<const Word*>(device_packed.data()), device_index.data(), n, channels,
                    reinterpret_cast<Word*>(device_unpacked.data()));
        add_packed_rows(kGpu, static_cast<const float*>(device_packed.data()), device_offsets.data(),
                        device_places.data(), num_rows, channels, device_rows.data());

        EXPECT_EQ(device_packed.values(), packed);
        EXPECT_EQ(device_unpacked.values(), unpacked);
        EXPECT_EQ(device_rows.values(), sums);
    }
}

TEST_F(GpuKernels, SweepSegments)
{
    std::mt19937_64 random(2);
    std::vector<std::int64_t> offsets{0};
    for (int i = 0; i < 3000; ++i) offsets.push_back(offsets.back() + static_cast<std::int64_t>(random() % 20));
    const auto values = draw(random, offsets.back() * 5);
    const OnDevice<float> device_values(values);
    const OnDevice<std::int64_t> device_offsets(offsets);
    for (const auto kind : {SegmentSweep::Sum, SegmentSweep::Mean, SegmentSweep::Max, SegmentSweep::Min}) {
        std::vector<float> results(3000 * 5);
        std::vector<std::int64_t> arguments(results.size());
        sweep_segments(HostExecutor{}, values.data(), offsets.data(), 3000, 5, kind, results.data(), arguments.data());
        const OnDevice<float> device_results(std::vector<float>(results.size()));
        const OnDevice<std::int64_t> device_arguments(std::vector<std::int64_t>(results.size()));

        sweep_segments(kGpu, static_cast<const float*>(device_values.data()), device_offsets.data(), 3000, 5, kind,
                       device_results.data(), device_arguments.data());

        EXPECT_EQ(device_results.values(), results);
        EXPECT_EQ(device_arguments.values(), arguments);
    }
}

TEST_F(GpuKernels, SearchACellGrid)
{
    std::mt19937_64 random(3);
    constexpr std::int64_t n = 20000, m = 3000, k = 12;
    constexpr float radius = 0.06f;
    const auto points = draw(random, 3 * n), queries = draw(random, 3 * m);
    const double low[] = {0, 0, 0}, high[] = {1, 1, 1};
    const auto shape = grid_for_radius(low, high, radius, n);
    const OnDevice<float> device_points(points), device_queries(queries);
    const CellGrid<float, HostExecutor> grid({}, points.data(), n, shape);
    const CellGrid<float, CudaExecutor> device_grid(kGpu, device_points.data(), n, shape);
    const GridQueries<float> asked{queries.data(), m}, device_asked{device_queries.data(), m};
    for (const std::int64_t most : {std::int64_t{1} << 40, std::int64_t{8}}) {
        std::vector<std::int64_t> offsets(m + 1);
        grid.count(asked, radius, most, offsets.data());
        std::vector<std::int32_t> ids(offsets.back());
        std::vector<float> distances(offsets.back());
        grid.fill(asked, radius, offsets.data(), ids.data(), distances.data());
        const OnDevice<std::int64_t> device_offsets(std::vector<std::int64_t>(m + 1));
        const OnDevice<std::int32_t> device_ids(std::vector<std::int32_t>(ids.size()));
        const OnDevice<float> device_distances(std::vector<float>(ids.size()));

        device_grid.count(device_asked, radius, most, device_offsets.data());
        ASSERT_EQ(device_offsets.values(), offsets);
        device_grid.fill(device_asked, radius, device_offsets.data(), device_ids.data(), device_distances.data());

        EXPECT_EQ(device_ids.values(), ids);
        EXPECT_EQ(device_distances.values(), distances);
    }
    std::vector<std::int64_t> offsets(m + 1);
    for (std::int64_t i = 0; i <= m; ++i) offsets[i] = i * k;
    std::vector<std::int32_t> ids(m * k);
    std::vector<float> distances(m * k);
    grid.nearest(asked, offsets.data(), ids.data(), distances.data());
    const OnDevice<std::int64_t> device_offsets(offsets);
    const OnDevice<std::int32_t> device_ids(std::vector<std::int32_t>(ids.size()));
    const OnDevice<float> device_distances(std::vector<float>(ids.size()));

    device_grid.nearest(device_asked, device_offsets.data(), device_ids.data(), device_distances.data());

    EXPECT_EQ(device_ids.values(), ids);
    EXPECT_EQ(device_distances.values(), distances);
}

}  // namespace
}  // namespace meshard
