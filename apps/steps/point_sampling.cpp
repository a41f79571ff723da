// SPDX-License-Identifier: Apache-2.0
#include "apps/steps/point_sampling.h"

#include "io/bytes/content_hash.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

namespace meshard {
namespace {

/// Ids of the `count` points with the smallest -log(random) / area of all ranks, ascending.
std::vector<std::int64_t> drawn_by_area(const CaseTensors& example, std::int64_t count, std::int64_t area_channel, std::uint64_t key)
{
    const auto spec = spec_of(example.target);
    const auto& ids = spec->index_map->global_ids;
    const auto areas = to_local(example.inputs.embedding).select(-1, area_channel).reshape(-1).to(at::kCPU, at::kDouble).contiguous();
    const auto* area = areas.const_data_ptr<double>();
    std::vector<std::pair<std::int64_t, std::int64_t>> own;  // bits of the keys, which are positive and so have the keys' order, and ids
    std::int64_t negative = -1;                              // id of a point whose area is negative
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (area[i] < 0) negative = ids[i];
        if (!(area[i] > 0)) continue;
        const auto uniform = (static_cast<double>(mixed_numbers(key, ids[i]) >> 11) + 0.5) * 0x1p-53;
        own.emplace_back(std::bit_cast<std::int64_t>(-std::log(uniform) / area[i]), ids[i]);
    }
    const auto first = std::min<std::size_t>(count, own.size());
    std::nth_element(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(first), own.end());
    own.resize(first);
    // Every rank's best ones, filled up to one length; before them the point with a negative area, so that all ranks refuse.
    std::vector<std::int64_t> sent{negative};
    for (const auto& [bits, id] : own) sent.insert(sent.end(), {bits, id});
    sent.resize(1 + 2 * static_cast<std::size_t>(count), std::numeric_limits<std::int64_t>::max());
    const auto& mesh = *spec->device_mesh;
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    for (const auto& received : mesh.group(mesh.axis("domain")).all_gather_integers(sent)) {
        if (received[0] >= 0)
            throw InvalidInput("case " + example.id + ": the area of row " + std::to_string(received[0]) +
                               " is negative. Repair it, or set data.sampling=uniform.");
        for (std::size_t i = 1; i < received.size() && received[i] != std::numeric_limits<std::int64_t>::max(); i += 2)
            all.emplace_back(received[i], received[i + 1]);
    }
    if (static_cast<std::int64_t>(all.size()) < count) {
        throw InvalidInput("case " + example.id + ": " + std::to_string(all.size()) + " points have an area, and data.sampling_resolution is " +
                           std::to_string(count) + ". Lower it, or set data.sampling=uniform.");
    }
    std::nth_element(all.begin(), all.begin() + count, all.end());
    std::vector<std::int64_t> drawn;
    for (std::int64_t i = 0; i < count; ++i) drawn.push_back(all[i].second);
    std::sort(drawn.begin(), drawn.end());
    return drawn;
}

}  // namespace

bool draws_all(const PointSampling& sampling, std::int64_t num_points)
{
    return sampling.num_points == 0 || sampling.num_points >= num_points;
}

std::vector<std::int64_t> drawn_ids(const PointSampling& sampling, std::int64_t num_points, std::int64_t seed, const std::string& case_id, std::int64_t epoch)
{
    return sampling.kind == SamplingKind::Blocks ? StoredOrder(num_points, case_id).drawn_ids(sampling.num_points, seed, epoch)
                                                 : drawn_points(num_points, sampling.num_points, seed, case_id, epoch);
}

CaseTensors sampled_case(const CaseTensors& example, const PointSampling& sampling, std::int64_t area_channel, std::int64_t seed, std::int64_t epoch)
{
    const auto count = sampling.num_points;
    if (draws_all(sampling, example.num_points)) return example;
    const auto drawn = sampling.kind == SamplingKind::Areas ? drawn_by_area(example, count, area_channel, mixed_numbers(xxh64_of_text(example.id), seed, epoch))
                                                            : drawn_ids(sampling, example.num_points, seed, example.id, epoch);
    const auto spec = spec_of(example.target);
    const auto& ids = spec->index_map->global_ids;
    IndexMap map{.num_global = count, .num_owned = 0, .global_ids = {}, .ghost_owners = {}};
    std::vector<std::int64_t> rows, own_ids;
    auto next = drawn.begin();
    for (std::size_t row = 0; row < ids.size(); ++row) {
        next = std::lower_bound(next, drawn.end(), ids[row]);
        if (next == drawn.end()) break;
        if (*next != ids[row]) continue;
        rows.push_back(static_cast<std::int64_t>(row));
        own_ids.push_back(ids[row]);
        map.global_ids.push_back(next - drawn.begin());
    }
    map.num_owned = static_cast<std::int32_t>(rows.size());
    const auto sampled = shard_spec(std::make_shared<const IndexMap>(std::move(map)), spec->device_mesh, 1);
    auto index = at::tensor(rows, at::kLong);
    // From page-locked memory: the host would wait for all that the device has still to do.
    if (const auto device = to_local(example.target).device(); !device.is_cpu()) index = index.pin_memory().to(device, /*non_blocking=*/true);
    const auto taken = [&](const at::Tensor& whole) { return from_local(to_local(whole).index_select(1, index), sampled); };
    auto result = example;
    result.num_points = count;
    result.inputs.embedding = taken(example.inputs.embedding);
    result.inputs.positions = taken(example.inputs.positions);
    result.target = taken(example.target);
    if (sampling.knows_all)
        result.inputs.drawn_from =
            std::make_shared<const AllPoints>(AllPoints{example.inputs.embedding, example.inputs.positions, at::tensor(own_ids, at::kLong)});
    return result;
}

}  // namespace meshard
