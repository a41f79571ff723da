// SPDX-License-Identifier: Apache-2.0
// Models of grids that are cut along several directions at once, in uneven blocks, against one rank: output, loss and
// the gradient of every parameter.
#include "models/layers/metrics.h"
#include "models/registry/registry.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/copy_parameters.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <atomic>

namespace meshard {
namespace {

struct BlockCase {
    std::string name, model;
    nlohmann::json arguments;
    std::vector<Extents> cuts;            ///< along the first directions, of the ranks of an axis each
    std::vector<std::int64_t> rest = {};  ///< extents of the directions that are not cut
};

void PrintTo(const BlockCase& value, std::ostream* out)
{
    *out << value.name;
}

std::vector<BlockCase> block_cases()
{
    const nlohmann::json unet2d{{"num_channels", 4}, {"depth", 2}, {"num_groups", 2}},
        unet{{"model_depth", 2}, {"num_conv_blocks", 1}, {"feature_map_channels", {4, 6}}},
        vit{{"patch_size", 4}, {"n_layers", 2}, {"n_hidden", 12}, {"n_head", 2}, {"mlp_ratio", 2}},
        dit{{"patch_size", {4, 2}}, {"depth", 2}, {"hidden_size", 12}, {"num_heads", 2}},
        fno{{"latent_channels", 4}, {"num_fno_layers", 2}, {"decoder_layer_size", 5}};
    auto gates = unet, neighbourhoods = dit, fno2d = fno, fno3d = fno;
    gates.update({{"use_attn_gate", true},
                  {"attn_decoder_feature_maps", {6}},
                  {"attn_feature_map_channels", {4}},
                  {"attn_intermediate_channels", 3},
                  {"normalization", "layernorm"},
                  {"padding_mode", "replicate"}});
    neighbourhoods.update(
        {{"attention_backend", "natten2d_rope"}, {"attn_kernel", 3}, {"num_heads", 1}, {"patch_size", {2, 2}}});
    fno2d.update({{"dimension", 2}, {"num_fno_modes", {4, 3}}, {"padding", {2, 3}}});
    fno3d.update({{"dimension", 3}, {"num_fno_modes", {3, 2, 2}}, {"padding", {1, 2, 3}}});
    return {{"UNet2d", "unet2d", unet2d, {{8, 12}, {4, 12}}},
            {"UNet2dThroughPools", "unet2d", unet2d, {{7, 13}, {15, 1}}},
            {"UNet2dWithARankWithoutRows", "unet2d", unet2d, {{9, 0, 11}, {5, 7}}},
            {"UNet", "unet", unet, {{2, 6}, {4, 2}, {6, 4}}},
            {"UNetThroughPools", "unet", unet, {{3, 5}, {5, 1}, {1, 9}}},
            {"UNetOnTwoDirections", "unet", unet, {{2, 4}, {5, 3}}, {6}},
            {"UNetWithGates", "unet", gates, {{3, 5}, {4, 2}, {6, 4}}},
            {"ViT", "vit", vit, {{8, 12}, {4, 8}}},
            {"ViTThroughPatches", "vit", vit, {{7, 13}, {5, 7}}},
            {"DiT", "dit", dit, {{8, 12}, {6, 8}}},
            {"DiTThroughPatches", "dit", dit, {{7, 13}, {5, 9}}},
            {"DiTOfNeighbourhoods", "dit", neighbourhoods, {{9, 11}, {8, 6}}},
            {"FnoOfImages", "fno", fno2d, {{7, 9}, {5, 11}}},
            {"FnoOfVolumes", "fno", fno3d, {{7, 9}, {5, 3}, {6, 5}}}};
}

class GridBlocks : public testing::TestWithParam<BlockCase> {};

TEST_P(GridBlocks, EqualSerial)
{
    const auto& one = GetParam();
    std::vector<std::int64_t> extents, mesh_shape;
    std::vector<std::string> axis_names;
    for (const auto& cut : one.cuts) {
        axis_names.push_back("direction" + std::to_string(mesh_shape.size()));
        mesh_shape.push_back(std::ssize(cut));
        extents.push_back(std::accumulate(cut.begin(), cut.end(), std::int64_t{0}));
    }
    extents.insert(extents.end(), one.rest.begin(), one.rest.end());
    const auto arguments = [&] {
        auto all = find_model(one.model).of_grids()->widths({2, 3, extents});
        all.update(one.arguments);
        return all;
    }();
    const auto made = [&] {
        auto model = make_model(one.model, arguments);
        model.module->to(torch::kDouble);
        return model;
    };
    torch::manual_seed(3);
    auto serial = made();
    {
        const torch::NoGradGuard no_grad;  // some begin with zeros
        for (auto& parameter : serial.module->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    }
    std::vector<std::int64_t> shape{2, 2};
    shape.insert(shape.end(), extents.begin(), extents.end());
    const auto grid = torch::randn(shape, torch::kDouble);
    shape[1] = 3;
    const auto target = torch::randn(shape, torch::kDouble);
    const auto whole = grid.clone().requires_grad_();
    const auto expected = serial.forward_grid(whole);
    const auto expected_loss = mean_squared_error(expected, target);
    expected_loss.backward();

    run_ranks(mesh_shape, axis_names, [&](std::shared_ptr<const DeviceMesh> mesh) {
        set_gather_policy(GatherPolicy::Refuse);
        AxisLayouts layouts;
        for (std::size_t i = 0; i < one.cuts.size(); ++i)
            layouts.push_back(
                {Shard(static_cast<std::int64_t>(i) + 2), std::make_shared<const Extents>(one.cuts[i]), 1});
        const auto spec = make_spec(mesh, layouts);
        auto model = made();
        if (mesh->all().rank() == 0) test::copy_parameters(*serial.module, *model.module);
        const auto replicated = replicate(*model.module, mesh);
        const auto local = own_part(grid, *spec).clone().requires_grad_();

        const auto output = model.forward_grid(from_local(local, spec));
        const auto loss = mean_squared_error(output, from_local(own_part(target, *spec), spec));
        loss.backward();

        test::expect_near("output", full_tensor(output).detach(), expected.detach(), 1e-12 * test::largest(expected));
        EXPECT_NEAR(loss.item<double>(), expected_loss.item<double>(), 1e-12);
        test::expect_near("input", local.grad(), own_part(whole.grad(), *spec), 1e-11 * test::largest(whole.grad()));
        const auto parameters = model.module->named_parameters();
        for (const auto& item : serial.module->named_parameters()) {
            const auto& gradient = item.value().grad();
            ASSERT_EQ(gradient.defined(), parameters[item.key()].grad().defined()) << item.key();
            if (gradient.defined())
                test::expect_near(item.key(), parameters[item.key()].grad(), gradient,
                                  1e-11 * std::max(1.0, test::largest(gradient)));
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Models, GridBlocks, testing::ValuesIn(block_cases()),
                         [](const auto& info) { return info.param.name; });

/// Bytes that the rank sends which sends most to ranks with other parts of a cube, in a step.
std::int64_t bytes_of_halos(std::int64_t extent, const std::vector<std::int64_t>& mesh_shape)
{
    std::atomic<std::int64_t> most = 0;
    const std::vector<std::string> names{"z", "y", "x"};
    run_ranks(mesh_shape, {names.begin(), names.begin() + std::ssize(mesh_shape)}, [&](const auto& mesh) {
        AxisLayouts layouts;
        for (const auto num_ranks : mesh_shape)
            layouts.push_back(
                {Shard(std::ssize(layouts) + 2), std::make_shared<const Extents>(even_extents(extent, num_ranks)), 1});
        const auto spec = make_spec(mesh, layouts);
        const auto model = make_model("unet", {{"in_channels", 1},
                                               {"out_channels", 1},
                                               {"model_depth", 2},
                                               {"num_conv_blocks", 1},
                                               {"feature_map_channels", {4, 8}}});
        const auto own = spec->local_shape({1, 1, extent, extent, extent});
        mesh->counter().reset();
        model.forward_grid(from_local(torch::rand(own), spec)).square().mean().backward();
        std::int64_t bytes = 0;
        for (const auto& call : mesh->counter().calls()) bytes += call.operation == "all_to_all" ? call.bytes : 0;
        for (auto before = most.load(); before < bytes && !most.compare_exchange_weak(before, bytes);) {
        }
    });
    return most;
}

TEST(BlocksOfACube, SendLessThanSlabs)
{
    const auto slabs = bytes_of_halos(32, {8}), blocks = bytes_of_halos(32, {2, 2, 2}),
               columns = bytes_of_halos(32, {4, 2});
    RecordProperty("slabs", std::to_string(slabs));
    RecordProperty("columns", std::to_string(columns));
    RecordProperty("blocks", std::to_string(blocks));
    EXPECT_LT(columns, 0.8 * static_cast<double>(slabs));
    EXPECT_LT(blocks, 0.5 * static_cast<double>(slabs));
}

}  // namespace
}  // namespace meshard
