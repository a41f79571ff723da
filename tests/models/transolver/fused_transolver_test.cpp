// SPDX-License-Identifier: Apache-2.0
// The fused operators against the model's own modules called one after the other, in every memory mode.
#include "models/layers/activation.h"
#include "models/layers/metrics.h"
#include "models/layers/precision.h"
#include "models/transolver/physics_attention.h"
#include "models/transolver/transolver.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <array>
#include <numeric>
#include <string>

namespace meshard {
namespace {

constexpr std::int64_t kFusedPoints = 301;  // several tiles of no full size

/// What blocks may have instead of the usual.
struct Variant {
    const char* name;
    const char* act = "gelu";
    bool plus = false;
    NoiseWhen noise = NoiseWhen::Never;
};

const Variant kUsual{"Usual"}, kPlus{"Plus", "gelu", true}, kNoisyPlus{"NoisyPlus", "gelu", true, NoiseWhen::Always};

TransolverOptions small_options(bool time_input, std::int64_t n_layers = 3, const Variant& variant = kUsual)
{
    TransolverOptions options;
    options.act = variant.act;
    options.plus = variant.plus;
    options.functional_dim = 2;
    options.embedding_dim = 3;
    options.out_dim = 4;
    options.n_layers = n_layers;
    options.n_hidden = 24;
    options.n_head = 3;
    options.mlp_ratio = 2;
    options.slice_num = 7;
    options.time_input = time_input;
    return options;
}

Transolver rough_model(const TransolverOptions& options, at::ScalarType type, NoiseWhen noise = NoiseWhen::Never)
{
    torch::manual_seed(4);
    Transolver model(options);
    model->set_noise(noise);
    torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    model->to(type);
    return model;
}

struct Points {
    at::Tensor fx, embedding, time;
};

Points make_points(std::int64_t batch, bool with_time, at::ScalarType type)
{
    torch::manual_seed(8);
    return {torch::randn({batch, kFusedPoints, 2}).to(type).requires_grad_(),
            torch::randn({batch, kFusedPoints, 3}).to(type).requires_grad_(),
            with_time ? torch::rand({batch}).to(type) : at::Tensor()};
}

/// The model with ordinary operators.
at::Tensor by_modules(TransolverImpl& model, const Points& points)
{
    const auto children = model.named_children();
    auto x = children["preprocess"]->as<MlpImpl>()->forward(torch::cat({points.embedding, points.fx}, -1));
    if (points.time.defined()) {
        const auto offset = children["time_fc"]->as<torch::nn::Sequential>()->forward(
            children["time_embed"]->as<TimeEmbedding>()->forward(points.time));
        x = x + offset.unsqueeze(1);
    }
    for (const auto& block : *children["blocks"]->as<torch::nn::ModuleList>())
        x = block->as<TransolverBlock>()->forward(x);
    return x;
}

class MemoryModes : public testing::TestWithParam<std::tuple<MemoryMode, at::ScalarType, Variant>> {};

TEST_P(MemoryModes, EqualTheModulesWithGradients)
{
    const auto [mode, type, variant] = GetParam();
    const double tolerance = type == at::kDouble ? 1e-12 : 3e-6;
    for (const std::int64_t layers : {1, 3}) {
        for (const bool with_time : {false, true}) {
            const auto options = small_options(with_time, layers, variant);
            auto fused = rough_model(options, type, variant.noise), plain = rough_model(options, type, variant.noise);
            const auto a = make_points(2, with_time, type), b = make_points(2, with_time, type);
            const auto factors = torch::randn({2, kFusedPoints, 4}).to(type);
            fused->set_memory(mode);

            const auto found = fused->forward(a.fx, a.embedding, a.time), expected = by_modules(*plain, b);
            (found * factors).sum().backward();
            (expected * factors).sum().backward();

            EXPECT_TRUE(tensors_near(found, expected, tolerance));
            EXPECT_TRUE(tensors_near(a.fx.grad(), b.fx.grad(), tolerance));
            EXPECT_TRUE(tensors_near(a.embedding.grad(), b.embedding.grad(), tolerance));
            const auto gradients = fused->named_parameters();
            double largest = 0;
            for (const auto& item : plain->named_parameters())
                largest = std::max(largest, item.value().grad().abs().max().item<double>());
            for (const auto& item : plain->named_parameters()) {
                // Sums that cancel round as the largest do; of double precision's tolerance that is a hundredth.
                const auto to_largest = largest / item.value().grad().abs().max().item<double>();
                const auto scale = type == at::kDouble ? std::max(1.0, to_largest / 100) : to_largest;
                EXPECT_TRUE(tensors_near(gradients[item.key()].grad(), item.value().grad(), tolerance * scale))
                    << item.key();
            }
        }
    }
}

TEST_P(MemoryModes, InferTheSameWithoutGradients)
{
    const auto [mode, type, variant] = GetParam();
    const auto options = small_options(false, 3, variant);
    auto model = rough_model(options, type, variant.noise), plain = rough_model(options, type, variant.noise);
    const auto points = make_points(2, false, type);
    const auto expected = by_modules(*plain, points);
    model->set_memory(mode);

    torch::NoGradGuard no_grad;

    EXPECT_TRUE(
        tensors_near(model->forward(points.fx, points.embedding), expected, type == at::kDouble ? 1e-12 : 3e-6));
}

TEST_P(MemoryModes, EqualSerialOnUnevenRanks)
{
    const auto [mode, type, variant] = GetParam();
    const auto expected_points = make_points(2, true, type);
    auto serial = rough_model(small_options(true, 3, variant), type, variant.noise);
    const auto target = torch::randn({2, kFusedPoints, 4}).to(type);
    const auto expected = by_modules(*serial, expected_points);
    const auto expected_loss = mean_squared_error(expected, target);
    expected_loss.backward();
    const auto expected_next = by_modules(*serial, expected_points).detach();  // of other noise, if there is any
    const double tolerance = type == at::kDouble ? 1e-11 : 3e-6;
    double largest = 0;
    for (const auto& parameter : serial->parameters())
        largest = std::max(largest, parameter.grad().abs().max().item<double>());

    for (const int num_ranks : {1, 2, 3, 5}) {
        torch::manual_seed(4);  // the noise's
        run_ranks(num_ranks, [&, mode = mode, type = type, variant = variant](std::shared_ptr<const DeviceMesh> mesh) {
            Extents extents(num_ranks, kFusedPoints / (num_ranks + 1));  // the last takes the rest, the second nothing
            if (num_ranks > 1) extents[1] = 0;
            extents.back() += kFusedPoints - std::accumulate(extents.begin(), extents.end(), std::int64_t(0));
            const auto layout = AxisLayout{Shard(1), std::make_shared<Extents>(extents), 1};
            const auto own = extents[mesh->all().rank()], first = layout.offset(mesh->all().rank());
            const auto part = [&](const at::Tensor& whole) { return whole.detach().narrow(1, first, own).clone(); };
            const auto shard = [&](const at::Tensor& local) { return from_local(local, make_spec(mesh, {layout})); };
            Transolver model(small_options(true, 3, variant));
            model->set_noise(variant.noise);
            model->to(type);
            model->set_memory(mode);
            if (mesh->all().rank() == 0) {
                torch::NoGradGuard no_grad;
                auto to = model->parameters();
                const auto from = serial->parameters();
                for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
            }
            const auto replicated = replicate(*model, mesh);
            auto fx = part(expected_points.fx).requires_grad_(),
                 embedding = part(expected_points.embedding).requires_grad_();
            const auto sharded_target = shard(part(target));

            mesh->counter().reset();
            const auto output = model->forward(shard(fx), shard(embedding), expected_points.time);
            const auto loss = mean_squared_error(output, sharded_target);
            EXPECT_EQ(mesh->counter().num_calls(), num_ranks > 1 ? 3 : mesh->counter().num_calls());  // one a layer
            loss.backward();

            EXPECT_TRUE(tensors_near(to_local(output).detach(), part(expected), tolerance));
            {
                const torch::NoGradGuard no_grad;
                const auto before = mesh->counter().num_calls();
                EXPECT_TRUE(
                    tensors_near(to_local(model->forward(shard(part(expected_points.fx)),
                                                         shard(part(expected_points.embedding)), expected_points.time)),
                                 part(expected_next), tolerance));
                EXPECT_EQ(mesh->counter().num_calls() - before,
                          num_ranks > 1 ? 3 : mesh->counter().num_calls() - before);
            }
            EXPECT_TRUE(tensors_near(fx.grad(), part(expected_points.fx.grad()), tolerance * 10));
            EXPECT_TRUE(tensors_near(embedding.grad(), part(expected_points.embedding.grad()), tolerance * 10));
            const auto found = model->named_parameters();
            for (const auto& item : serial->named_parameters()) {
                const auto scale = type == at::kDouble ? 1.0 : largest / item.value().grad().abs().max().item<double>();
                EXPECT_TRUE(tensors_near(found[item.key()].grad(), item.value().grad(), tolerance * scale))
                    << item.key();
            }
        });
    }
}

std::string case_name(const testing::TestParamInfo<MemoryModes::ParamType>& test)
{
    const auto& [mode, type, variant] = test.param;
    constexpr std::array kModes{"Stored", "Recomputed", "Streamed"};
    return std::string(variant.name) + kModes.at(static_cast<std::size_t>(mode)) +
           (type == at::kDouble ? "Double" : "Float");
}

INSTANTIATE_TEST_SUITE_P(
    All, MemoryModes,
    testing::Combine(testing::Values(MemoryMode::Stored, MemoryMode::Recomputed, MemoryMode::Streamed),
                     testing::Values(at::kDouble, at::kFloat),
                     testing::Values(kUsual, Variant{"Silu", "silu"}, Variant{"Prelu", "prelu"}, kPlus, kNoisyPlus)),
    case_name);

TEST(FusedBlock, TakesEveryActivation)
{
    for (const auto& act : activation_names()) {
        const Variant variant{"", act.c_str()};
        for (const auto type : {at::kDouble, at::kFloat}) {
            auto fused = rough_model(small_options(false, 2, variant), type),
                 plain = rough_model(small_options(false, 2, variant), type);
            const auto a = make_points(1, false, type), b = make_points(1, false, type);
            const auto factors = torch::randn({1, kFusedPoints, 4}).to(type);
            ASSERT_TRUE(fused->can_stream()) << act;

            const auto found = fused->forward(a.fx, a.embedding), expected = by_modules(*plain, b);
            (found * factors).sum().backward();
            (expected * factors).sum().backward();

            const double tolerance = type == at::kDouble ? 1e-12 : 3e-6;
            EXPECT_TRUE(tensors_near(found, expected, tolerance)) << act;
            EXPECT_TRUE(tensors_near(a.fx.grad(), b.fx.grad(), tolerance)) << act;
            const auto gradients = fused->named_parameters();
            double largest = 0;
            for (const auto& item : plain->named_parameters())
                largest = std::max(largest, item.value().grad().abs().max().item<double>());
            for (const auto& item : plain->named_parameters()) {
                const auto difference = (gradients[item.key()].grad() - item.value().grad()).abs().max().item<double>();
                EXPECT_LE(difference, tolerance * largest) << act << " " << item.key();
            }
        }
    }
}

TEST(FusedBlock, TemperaturesOfPointsAreBoundedBelow)
{
    auto fused = rough_model(small_options(false, 3, kPlus), at::kDouble),
         plain = rough_model(small_options(false, 3, kPlus), at::kDouble);
    for (auto* model : {&fused, &plain}) {
        const torch::NoGradGuard no_grad;
        for (auto& item : (*model)->named_parameters()) {
            if (item.key().find("Attn.temperature") != std::string::npos)
                item.value().select(2, 1).fill_(-0.01);  // some points of this head are below, some above
        }
    }
    const auto a = make_points(1, false, at::kDouble), b = make_points(1, false, at::kDouble);

    const auto found = fused->forward(a.fx, a.embedding), expected = by_modules(*plain, b);
    found.sin().sum().backward();
    expected.sin().sum().backward();

    EXPECT_TRUE(tensors_near(found, expected, 1e-10));
    const auto gradients = fused->named_parameters();
    for (const auto& item : plain->named_parameters())
        EXPECT_TRUE(tensors_near(gradients[item.key()].grad(), item.value().grad(), 1e-9)) << item.key();
}

TEST(FusedBlock, TileSizeChangesNothingButRounding)
{
    auto model = rough_model(small_options(false), at::kDouble);
    const auto blocks = model->named_children()["blocks"]->as<torch::nn::ModuleList>();
    torch::manual_seed(1);
    const auto x = torch::randn({2, kFusedPoints, 24}, at::kDouble);
    for (const auto& module : *blocks) {
        at::Tensor expected, expected_gradient;
        for (const std::int64_t points : {1, 16, 100, 1000}) {
            for (const bool keep : {true, false}) {
                const auto fusion = module->as<TransolverBlock>()->fusion();
                ASSERT_EQ(fusion.obstacle, nullptr);
                const auto input = x.clone().requires_grad_();
                const auto y = fused_block(input, fusion.block, {.keep_activations = keep, .tile_points = points});
                y.sin().sum().backward();
                if (!expected.defined()) expected = y.detach(), expected_gradient = input.grad();
                EXPECT_TRUE(tensors_near(y, expected, 1e-13)) << points;
                EXPECT_TRUE(tensors_near(input.grad(), expected_gradient, 1e-12)) << points;
            }
        }
    }
}

TEST(StreamedBlocks, TileSizeChangesNothingButRounding)
{
    auto model = rough_model(small_options(false), at::kDouble);
    const auto points = make_points(2, false, at::kDouble);
    const auto expected = by_modules(*model, points);
    const auto children = model->named_children();
    const auto inputs = torch::cat({points.embedding, points.fx}, -1).detach();
    at::Tensor expected_gradient;
    for (const std::int64_t tile_points : {1, 16, 100, 1000}) {
        StreamedModel streamed;
        streamed.mlp = children["preprocess"]->as<MlpImpl>()->fused();
        for (const auto& module : *children["blocks"]->as<torch::nn::ModuleList>())
            streamed.blocks.push_back(module->as<TransolverBlock>()->fusion().block);
        streamed.tile_points = tile_points;
        const auto x = inputs.clone().requires_grad_();

        const auto y = streamed_blocks(x, streamed);
        y.sin().sum().backward();

        if (!expected_gradient.defined()) expected_gradient = x.grad();
        EXPECT_TRUE(tensors_near(y, expected, 1e-12)) << tile_points;
        EXPECT_TRUE(tensors_near(x.grad(), expected_gradient, 1e-12)) << tile_points;
        EXPECT_TRUE(tensors_near(inferred_blocks(inputs, streamed, true), expected, 1e-12)) << tile_points;
        EXPECT_TRUE(tensors_near(inferred_blocks(inputs, streamed, false), expected, 1e-12)) << tile_points;
    }
}

TEST(FusedBlock, BackwardTwiceOverARetainedGraph)
{
    auto model = rough_model(small_options(false), at::kDouble);
    for (const auto mode : {MemoryMode::Stored, MemoryMode::Recomputed, MemoryMode::Streamed}) {
        model->set_memory(mode);
        const auto points = make_points(1, false, at::kDouble);
        const auto loss = model->forward(points.fx, points.embedding).square().sum();
        const auto gradient = [&] { return torch::autograd::grad({loss}, {points.fx}, {}, /*retain_graph=*/true)[0]; };

        const auto first = gradient(), second = gradient();

        EXPECT_TRUE(torch::equal(first, second));
        EXPECT_TRUE(throws_with<InvalidInput>("no second derivative", [&] {
            torch::autograd::grad({loss}, {points.fx}, {}, true, /*create_graph=*/true);
        }));
    }
}

TEST(MemoryMode, ForInferenceFollowsTheMemory)
{
    const auto options = small_options(false);
    const Transolver model(options);
    const std::int64_t bytes = 1000 * options.n_hidden * 4;

    EXPECT_EQ(inference_memory(*model, 1000, 2 * bytes), MemoryMode::Stored);
    EXPECT_EQ(inference_memory(*model, 1000, 2 * bytes - 1), MemoryMode::Recomputed);
    EXPECT_EQ(inference_memory(*model, 1000, bytes - 1), MemoryMode::Streamed);
    auto grid = options;
    grid.structured_shape = {10, 100};
    EXPECT_EQ(inference_memory(*Transolver(grid), 1000, 0), MemoryMode::Stored);
}

TEST(MemoryMode, OfWhatIsNotFusedAreRefusedOrRecomputed)
{
    auto options = small_options(false);
    options.structured_shape = {7, 43};
    auto model = rough_model(options, at::kDouble);
    const auto points = make_points(1, false, at::kDouble), again = make_points(1, false, at::kDouble);
    const auto expected = model->forward(points.fx, points.embedding);
    expected.square().sum().backward();

    model->set_memory(MemoryMode::Recomputed);
    const auto found = model->forward(again.fx, again.embedding);
    found.square().sum().backward();

    EXPECT_TRUE(torch::equal(found, expected));
    EXPECT_TRUE(tensors_near(again.fx.grad(), points.fx.grad(), 1e-13));
    model->set_memory(MemoryMode::Streamed);
    EXPECT_TRUE(
        throws_with<InvalidInput>("its points are on a grid", [&] { model->forward(points.fx, points.embedding); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("'small' is not one of stored, recomputed, streamed", [] { memory_mode("small"); }));
}

TEST(BlockForms, AreWhatRunsAndWhyNothingFasterDoes)
{
    struct Case {
        MemoryMode memory;
        double dropout;
        std::vector<std::int64_t> grid;
        BlockForm form;
        const char *function,
            *why;  // at the end of a forward pass; null for LibTorch's own, and for nothing in the way
    };
    const auto points = make_points(1, false, at::kFloat);
    for (const auto& expected :
         {Case{MemoryMode::Stored, 0, {}, BlockForm::Fused, "BlockFunction", nullptr},
          Case{MemoryMode::Recomputed, 0, {}, BlockForm::Fused, "BlockFunction", nullptr},
          Case{MemoryMode::Streamed, 0, {}, BlockForm::Streamed, "StreamFunction", nullptr},
          Case{MemoryMode::Stored, 0.5, {}, BlockForm::Eager, nullptr, "it has dropout in training"},
          Case{MemoryMode::Recomputed, 0.5, {}, BlockForm::Recomputed, nullptr, "it has dropout in training"},
          Case{MemoryMode::Stored, 0, {7, 43}, BlockForm::Eager, nullptr, "its points are on a grid"}}) {
        auto options = small_options(false);
        options.dropout = expected.dropout;
        options.structured_shape = expected.grid;
        auto model = rough_model(options, at::kFloat);
        model->set_memory(expected.memory);

        const auto forms = model->block_forms(points.embedding);

        ASSERT_EQ(forms.size(), 3U);
        for (const auto& [form, why] : forms) {
            EXPECT_EQ(form, expected.form);
            ASSERT_EQ(why == nullptr, expected.why == nullptr);
            if (why) {
                EXPECT_TRUE(std::string(why).starts_with(expected.why)) << why;
            }
        }
        const auto function = model->forward(points.fx, points.embedding).grad_fn()->name();
        if (expected.function)
            EXPECT_TRUE(function.find(expected.function) != std::string::npos) << function;
        else
            EXPECT_EQ(function.find("Function"), std::string::npos) << function;

        const torch::NoGradGuard no_grad;
        model->eval();
        const auto without = expected.memory == MemoryMode::Streamed ? BlockForm::Streamed
                             : expected.grid.empty()                 ? BlockForm::Inferred
                                                                     : BlockForm::Eager;
        EXPECT_EQ(model->block_forms(points.embedding).front().form, without);
    }
}

TEST(BlockForms, DependOnThePoints)
{
    auto model = rough_model(small_options(false), at::kFloat);
    const auto why = [&](const at::Tensor& points) { return model->block_forms(points).front().why_not_fused; };
    const auto points = torch::zeros({1, 5, 3});
    EXPECT_EQ(why(points), nullptr);
    EXPECT_STREQ(why(points.to(at::kDouble)), "its weights have another type or device than its points");
    EXPECT_STREQ(why(points.to(at::kHalf)), "its points are neither float32 nor float64");
    EXPECT_STREQ(why(points[0]), "its points have no batch dimension");
    EXPECT_STREQ(why(points.to(at::kBFloat16)),
                 "it computes in half precision other than autocast's to bfloat16 on CPUs");
    {
        const PrecisionGuard guard(Precision::BFloat16);
        EXPECT_EQ(why(points.to(at::kBFloat16)), nullptr);
    }
    set_exact_mode(true);
    EXPECT_STREQ(why(points), "exact mode computes float32 operator by operator");
    set_exact_mode(false);
}

}  // namespace
}  // namespace meshard
