// SPDX-License-Identifier: Apache-2.0
// Models under autocast to bfloat16 against themselves in single precision, serial and on ranks.
#include "models/layers/memory_mode.h"
#include "models/layers/metrics.h"
#include "models/layers/precision.h"
#include "models/layers/random_draws.h"
#include "models/registry/registry.h"
#include "models/transolver/transolver.h"
#include "partition/error.h"
#include "sharding/memory/saved_tensors.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/optim/adamw.h>

#include <numeric>

namespace meshard {
namespace {

constexpr std::int64_t kNumPoints = 301;
constexpr double kTolerance = 0.03;  // of the norm; bfloat16 rounds by up to 1 / 256

Model small_model(const std::string& name)
{
    torch::manual_seed(3);
    nlohmann::json arguments{{"n_layers", 2}, {"n_hidden", 24}, {"n_head", 3}, {"mlp_ratio", 2}};
    if (name == "geotransolver")
        arguments.update({{"functional_dim", 6}, {"out_dim", 4}, {"geometry_dim", 3}, {"slice_num", 7}});
    else
        arguments.update({{"functional_dim", 2}, {"embedding_dim", 6}, {"out_dim", 4}, {"slice_num", 7}});
    auto model = make_model(name, arguments);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model.module->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    return model;
}

PointInputs whole_inputs(const std::string& name)
{
    torch::manual_seed(5);
    PointInputs inputs;
    inputs.embedding = torch::rand({1, kNumPoints, 6});
    inputs.positions = inputs.embedding.narrow(2, 0, 3);
    if (name != "geotransolver") inputs.constants = torch::tensor({{0.3F, 0.8F}});
    return inputs;
}

torch::Tensor targets()
{
    torch::manual_seed(6);
    return torch::randn({1, kNumPoints, 4});
}

double distance(const torch::Tensor& found, const torch::Tensor& expected)
{
    const torch::NoGradGuard no_grad;
    return ((found - expected).norm() / expected.norm()).item<double>();
}

torch::Tensor all_gradients(torch::nn::Module& module)
{
    std::vector<torch::Tensor> flat;
    for (const auto& parameter : module.parameters()) {
        EXPECT_TRUE(!parameter.grad().defined() || parameter.grad().scalar_type() == torch::kFloat);
        if (parameter.grad().defined()) flat.push_back(parameter.grad().flatten());
    }
    return torch::cat(flat);
}

struct Step {
    torch::Tensor output, gradients;
};

Step step(const Model& model, const PointInputs& inputs, Precision precision)
{
    torch::Tensor output;
    {
        const PrecisionGuard guard(precision);
        output = model.forward(inputs).to(torch::kFloat);
    }
    model.module->zero_grad();
    mean_squared_error(output, targets()).backward();
    return {output.detach(), all_gradients(*model.module)};
}

/// In products by cuBLAS and in convolutions by cuDNN.
TEST(SinglePrecision, IsRoundedWhereItIsAskedForAlone)
{
    const auto& context = at::globalContext();
    EXPECT_FALSE(context.allowTF32CuDNN());  // which LibTorch would have allowed
    EXPECT_FALSE(context.allowTF32CuBLAS());

    allow_tf32(true);
    EXPECT_TRUE(context.allowTF32CuDNN());
    EXPECT_TRUE(context.allowTF32CuBLAS());

    allow_tf32(false);
    EXPECT_FALSE(context.allowTF32CuDNN());
    EXPECT_FALSE(context.allowTF32CuBLAS());
}

class Precisions : public testing::TestWithParam<std::string> {};

TEST_P(Precisions, StayNearSinglePrecision)
{
    const auto model = small_model(GetParam());
    const auto inputs = whole_inputs(GetParam());
    const auto expected = step(model, inputs, Precision::Float32);

    const auto found = step(model, inputs, Precision::BFloat16);

    EXPECT_LT(distance(found.output, expected.output), kTolerance);
    EXPECT_LT(distance(found.gradients, expected.gradients), kTolerance);
    EXPECT_GT(distance(found.output, expected.output), 1e-5);  // it is another precision
    EXPECT_TRUE(
        torch::equal(step(model, inputs, Precision::Float32).output, expected.output));  // and ends with the guard
}

TEST_P(Precisions, InFloat16StayNearSinglePrecisionWithAScaledLoss)
{
    const auto model = small_model(GetParam());
    const auto inputs = whole_inputs(GetParam());
    const auto expected = step(model, inputs, Precision::Float32);
    constexpr double kScale = 1024;

    torch::Tensor output;
    {
        const PrecisionGuard guard(Precision::Float16);
        output = model.forward(inputs).to(torch::kFloat);
    }
    model.module->zero_grad();
    (mean_squared_error(output, targets()) * kScale).backward();

    EXPECT_LT(distance(output, expected.output), kTolerance);
    EXPECT_LT(distance(all_gradients(*model.module) / kScale, expected.gradients), kTolerance);
    EXPECT_GT(distance(output, expected.output), 1e-6);
    EXPECT_EQ(step(model, inputs, Precision::TF32).output.equal(expected.output), true);  // on CPUs
}

TEST_P(Precisions, AreThoseOfOneRankOnSeveral)
{
    const auto serial = small_model(GetParam());
    const auto inputs = whole_inputs(GetParam());
    const auto expected = step(serial, inputs, Precision::BFloat16);
    const auto wanted = targets();  // drawn before there are several threads

    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> mesh) {
        const Extents extents{kNumPoints - 40, 0, 40};
        const auto layout = AxisLayout{Shard(1), std::make_shared<Extents>(extents), 1};
        const auto own = extents[mesh->all().rank()], first = layout.offset(mesh->all().rank());
        const auto part = [&](const at::Tensor& whole) { return whole.narrow(1, first, own).clone(); };
        const auto shard = [&](const at::Tensor& whole) { return from_local(part(whole), make_spec(mesh, {layout})); };
        auto model = small_model(
            GetParam());  // ranks are threads that draw from one generator: the values are the serial model's
        {
            const torch::NoGradGuard no_grad;
            const auto source = serial.module->parameters();
            auto target = model.module->parameters();
            for (std::size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
        }
        const auto replicated = replicate(*model.module, mesh);
        PointInputs parts = inputs;
        parts.embedding = shard(inputs.embedding);
        parts.positions = shard(inputs.positions);

        torch::Tensor output;
        {
            const PrecisionGuard guard(Precision::BFloat16);
            output = model.forward(parts).to(torch::kFloat);
        }
        mean_squared_error(output, shard(wanted)).backward();

        EXPECT_LT(own == 0 ? 0.0 : distance(to_local(output), part(expected.output)), kTolerance);
        EXPECT_LT(distance(all_gradients(*model.module), expected.gradients), kTolerance);
    });
}

INSTANTIATE_TEST_SUITE_P(Models, Precisions, testing::Values("transolver", "geotransolver", "flare"));

TEST(Precision, OfNoiseOnSlicesIsSingleInFloat16)
{
    torch::manual_seed(3);
    const auto model = make_model("transolver", {{"n_layers", 2},
                                                 {"n_hidden", 24},
                                                 {"n_head", 3},
                                                 {"functional_dim", 2},
                                                 {"embedding_dim", 6},
                                                 {"out_dim", 4},
                                                 {"slice_num", 7},
                                                 {"plus", true}});
    model.module->train();
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        const PrecisionGuard guard(Precision::Float16);
        seed_draws(*model.module, seed);
        EXPECT_TRUE(model.forward(whole_inputs("transolver")).isfinite().all().item<bool>()) << seed;
    }
}

TEST(Precision, FusedBlocksKeepHalfAndAreNotLessExactThanAutocast)
{
    for (const auto mode : {MemoryMode::Stored, MemoryMode::Recomputed, MemoryMode::Streamed}) {
        const auto model = small_model("transolver");
        const auto inputs = whole_inputs("transolver");
        const auto expected = step(model, inputs, Precision::Float32);
        const auto bytes_of_step = [&](Precision precision) {
            std::int64_t bytes = 0;
            const SavedTensorHooks hooks([&](const at::Tensor& tensor) -> UnpackSaved {
                if (tensor.numel() >= kNumPoints * 24)
                    bytes += static_cast<std::int64_t>(tensor.numel() * tensor.element_size());
                return {};
            });
            step(model, inputs, precision);
            return bytes;
        };
        set_memory(*model.module, mode);

        const auto found = step(model, inputs, Precision::BFloat16);

        auto& transolver = dynamic_cast<TransolverImpl&>(*model.module);
        torch::Tensor plain;
        {
            const PrecisionGuard guard(Precision::BFloat16);
            const auto children = transolver.named_children();
            plain = children["preprocess"]->as<MlpImpl>()->forward(
                torch::cat({inputs.embedding, inputs.constants.unsqueeze(1).expand({1, kNumPoints, 2})}, -1));
            for (const auto& block : *children["blocks"]->as<torch::nn::ModuleList>())
                plain = block->as<TransolverBlock>()->forward(plain);
        }
        EXPECT_LE(distance(found.output, expected.output), distance(plain, expected.output));
        if (mode != MemoryMode::Streamed)
            EXPECT_EQ(2 * bytes_of_step(Precision::BFloat16), bytes_of_step(Precision::Float32));
        else
            EXPECT_LT(distance(found.output, expected.output), 1e-6);  // keeps nothing that could be rounded
        torch::NoGradGuard no_grad;
        const PrecisionGuard guard(Precision::BFloat16);
        EXPECT_LT(distance(model.forward(inputs).to(torch::kFloat), expected.output), kTolerance);
    }
}

/// All weights after three steps of AdamW, each on the weights that the step before left.
torch::Tensor trained(const std::string& name, const nlohmann::json& options, MemoryMode memory)
{
    torch::manual_seed(4);
    nlohmann::json arguments{{"n_layers", 2},  {"n_hidden", 24}, {"n_head", 3},
                             {"mlp_ratio", 2}, {"out_dim", 4},   {"slice_num", 7}};
    if (name == "geotransolver")
        arguments.update({{"functional_dim", 6}, {"geometry_dim", 3}});
    else
        arguments.update({{"functional_dim", 2}, {"embedding_dim", 6}});
    arguments.update(options);
    const auto model = make_model(name, arguments);
    set_memory(*model.module, memory);
    const auto inputs = whole_inputs(name);
    const auto wanted = targets();
    torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(0.02));
    torch::manual_seed(7);
    for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        torch::Tensor output;
        {
            const PrecisionGuard guard(Precision::BFloat16);
            output = model.forward(inputs).to(torch::kFloat);
        }
        mean_squared_error(output, wanted).backward();
        optimizer.step();
    }
    std::vector<torch::Tensor> flat;
    for (const auto& parameter : model.module->parameters()) flat.push_back(parameter.detach().flatten());
    return torch::cat(flat);
}

TEST(Precision, RecomputedStepsAreStoredOnes)
{
    const std::vector<std::pair<std::string, nlohmann::json>> unfused{
        {"geotransolver", {{"attention_type", "GALE_FA"}}},
        {"geotransolver", {{"dropout", 0.2}}},
        {"geotransolver", {{"dropout", 0.2}, {"concrete_dropout", true}}},
        {"transolver", {{"dropout", 0.2}}},
        {"transolver", {{"dropout", 0.2}, {"plus", true}}},
        {"flare", {{"dropout", 0.2}}},
        {"flare", nlohmann::json::object()}};
    for (const auto& [name, options] : unfused) {
        const auto stored = trained(name, options, MemoryMode::Stored),
                   recomputed = trained(name, options, MemoryMode::Recomputed);

        EXPECT_TRUE(torch::equal(recomputed, stored)) << name << ' ' << options << ": " << distance(recomputed, stored);
    }
}

TEST(Precision, HasNames)
{
    EXPECT_EQ(precision_named("float32"), Precision::Float32);
    EXPECT_EQ(precision_named("bf16"), Precision::BFloat16);
    EXPECT_EQ(precision_named("bfloat16"), Precision::BFloat16);
    EXPECT_TRUE(throws_with<InvalidInput>("'half' is not one of float32, tf32, bfloat16, float16",
                                          [] { precision_named("half"); }));
}

}  // namespace
}  // namespace meshard
