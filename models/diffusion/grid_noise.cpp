// SPDX-License-Identifier: Apache-2.0
#include "models/diffusion/grid_noise.h"

#include "partition/random_numbers.h"
#include "sharding/ranks/parallel_for.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <numbers>
#include <vector>

namespace meshard {
namespace {

/// A uniform number in (0, 1].
double above_zero(std::uint64_t bits)
{
    return (static_cast<double>(bits >> 11) + 1) * 0x1p-53;
}

std::uint64_t mixed(std::uint64_t key, std::uint64_t number)
{
    return RandomNumbers(key ^ (number + 1) * 0x9e3779b97f4a7c15u).next();
}

}  // namespace

double normal_number(std::uint64_t seed)
{
    RandomNumbers random(seed);
    const auto radius = std::sqrt(-2 * std::log(above_zero(random.next())));
    return radius * std::cos(2 * std::numbers::pi * above_zero(random.next()));
}

at::Tensor grid_noise(const at::Tensor& like, std::uint64_t seed, std::uint64_t draw)
{
    const auto& local = local_of(like);
    // For each dimension the indices in the whole of this rank's entries.
    std::array<std::vector<std::int64_t>, 4> entries;
    for (int dim = 0; dim < 4; ++dim) {
        std::int64_t first = 0;
        if (is_sharded(like)) {
            const auto& spec = *spec_of(like);
            if (const auto axis = spec.axis_of_dim(dim); axis >= 0)
                first = spec.axes[axis].offset(spec.device_mesh->coordinate(axis));
        }
        for (std::int64_t i = 0; i < local.size(dim); ++i) entries[dim].push_back(first + i);
    }
    auto noise = at::empty(local.sizes(), at::kDouble);
    auto* numbers = noise.data_ptr<double>();
    const auto width = local.size(3);
    const auto key = mixed(mixed(seed, 0), draw);
    at::parallel_for(0, width > 0 ? noise.numel() / width : 0, 16, [&](std::int64_t begin, std::int64_t end) {
        for (auto line = begin; line < end; ++line) {
            const auto row = line % local.size(2), channel = line / local.size(2) % local.size(1),
                       sample = line / local.size(2) / local.size(1);
            const auto of_line = mixed(mixed(mixed(key, static_cast<std::uint64_t>(entries[0][sample])),
                                             static_cast<std::uint64_t>(entries[1][channel])),
                                       static_cast<std::uint64_t>(entries[2][row]));
            for (std::int64_t column = 0; column < width; ++column)
                numbers[line * width + column] =
                    normal_number(mixed(of_line, static_cast<std::uint64_t>(entries[3][column])));
        }
    });
    const auto there = noise.to(local.device());
    return is_sharded(like) ? wrap(there, spec_of(like)) : there;
}

}  // namespace meshard
