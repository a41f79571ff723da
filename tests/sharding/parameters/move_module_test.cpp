// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/move_module.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

namespace meshard {
namespace {

TEST(MoveModule, ShowsTheDeviceToWhoeverHoldsAParameterOrBuffer)
{
    torch::nn::BatchNorm1d norm(3);
    const auto weight = norm->weight, mean = norm->running_mean;
    const at::Device meta(at::kMeta);

    move_module(*norm, meta);

    EXPECT_TRUE(weight.is_meta());
    EXPECT_TRUE(mean.is_meta());
    EXPECT_TRUE(norm->named_parameters()["weight"].is_same(weight));
    EXPECT_TRUE(weight.requires_grad());
    EXPECT_FALSE(mean.requires_grad());
    EXPECT_TRUE((norm->weight * at::empty({4, 3}, meta)).is_meta());
}

TEST(MoveModule, LeavesValuesWhereTheyAre)
{
    torch::nn::BatchNorm1d norm(3);
    const auto* data = norm->weight.const_data_ptr();

    move_module(*norm, at::kCPU);

    EXPECT_EQ(norm->weight.const_data_ptr(), data);
}

}  // namespace
}  // namespace meshard
