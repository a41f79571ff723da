// SPDX-License-Identifier: Apache-2.0
// A 3x3 convolution of an image that two ranks share. Each rank alone gets the seam wrong, since the row behind it is
// the neighbour's; as a sharded tensor the image is convolved as one. The code that convolves does not know.
#include "sharding/tensor/shard_tensor.h"
#include "sharding/transport/launch.h"

#include <ATen/ATen.h>

#include <cstdio>

int main()
{
    using namespace meshard;
    const auto info = detect_launch();
    if (info.size == 1) return run_local_ranks(2, {});  // this program again, as rank 0 and rank 1
    const auto world = World::connect(info);
    const auto mesh = DeviceMesh::create(*world, {info.size}, {"domain"});

    at::manual_seed(1);  // the same image and weights on every rank; whole numbers, so that sums are exact in any order
    const auto image = at::randint(-8, 8, {1, 3, 64, 64}).to(at::kFloat);
    const auto weight = at::randint(-8, 8, {8, 3, 3, 3}).to(at::kFloat);
    const auto expected = at::conv2d(image, weight, {}, 1, 1);

    const auto rows = image.tensor_split(info.size, 2)[info.rank];  // what this rank has
    const auto alone = at::conv2d(rows, weight, {}, 1, 1);
    const auto together = at::conv2d(from_local(rows, mesh, {Shard(2)}), weight, {}, 1, 1);

    const auto error_alone = (full_tensor(from_local(alone, mesh, {Shard(2)})) - expected).abs();
    const auto error_together = (full_tensor(together) - expected).abs();
    if (info.rank == 0) {
        std::printf("rows that are wrong without communication:");
        const auto largest_of_rows = error_alone.amax({0, 1, 3});
        for (std::int64_t row = 0; row < 64; ++row) {
            if (largest_of_rows[row].item<float>() > 0) std::printf(" %ld", static_cast<long>(row));
        }
        std::printf("\nlargest error without communication: %g\n", error_alone.max().item<double>());
        std::printf("largest error with it: %g\n", error_together.max().item<double>());
    }
    world->finish();
    return error_together.max().item<double>() == 0 ? 0 : 1;
}
