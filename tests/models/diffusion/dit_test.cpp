// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/safetensors.h"
#include "models/diffusion/dit.h"
#include "models/layers/option_table.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <fstream>
#include <numeric>

namespace meshard {
namespace {

using test::NamedTensors;

nlohmann::json small_dit()
{
    return {{"input_size", {20, 12}}, {"in_channels", 3}, {"patch_size", 2},   {"hidden_size", 16}, {"depth", 2},
            {"num_heads", 2},         {"mlp_ratio", 2.0}, {"condition_dim", 3}};
}

nlohmann::json small_dit(const nlohmann::json& changes)
{
    auto arguments = small_dit();
    arguments.update(changes);
    return arguments;
}

/// Weights that are not those of a new model, which returns zeros.
Dit rough_dit(const nlohmann::json& arguments)
{
    torch::manual_seed(2);
    Dit model(dit_options(arguments));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.add_(0.2 * torch::randn_like(parameter));
    model->to(torch::kDouble);
    return model;
}

/// A model with the values of another of the same arguments, for a rank.
Dit copy_of(const Dit& other, const nlohmann::json& arguments)
{
    Dit model(dit_options(arguments));
    model->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    const auto values = other->named_parameters();
    for (auto& item : model->named_parameters()) item.value().copy_(values[item.key()]);
    return model;
}

/// Extents of `length` pixels on the ranks, in patches of `patch`: uneven, with a single patch on one rank and none on
/// another where there are many.
std::vector<std::int64_t> uneven_extents(std::int64_t length, std::int64_t patch, int num_ranks)
{
    std::vector<std::int64_t> patches(num_ranks, 0);
    auto left = length / patch;
    for (int rank = 0; rank + 1 < num_ranks; ++rank) {
        patches[rank] = rank == 1 && num_ranks > 3 ? 0 : std::min<std::int64_t>(left, rank % 2 == 0 ? 1 : 2);
        left -= patches[rank];
    }
    patches.back() = left;
    for (auto& count : patches) count *= patch;
    return patches;
}

/// Dimension of an input's or output's rows; -1 for what all ranks have whole.
std::int64_t row_dim(const std::string& name)
{
    if (name == "x" || name == "condition.cond_concat" || name == "output") return 2;
    return name == "invalid_mask" ? 1 : -1;
}

std::vector<test::FixtureCase> cases_of_diffusion()
{
    return test::fixture_cases({"DiT", "EDMPreconditioner"});
}

class DitFixtures : public testing::TestWithParam<std::tuple<test::FixtureCase, int>> {};

TEST_P(DitFixtures, AgreeOnUnevenRanks)
{
    const auto& [fixture, num_ranks] = GetParam();
    const auto description = fixture.description();
    const auto tensors = test::read_tensors(fixture.arrays_path());
    const auto& constructor =
        description["constructor"].contains("dit") ? description["constructor"]["dit"] : description["constructor"];
    const auto extents = uneven_extents(tensors.at("input.x").size(2), dit_options(constructor).patch()[0], num_ranks);

    for (const auto type : {torch::kFloat, torch::kDouble}) {
        SCOPED_TRACE(type == torch::kFloat ? "single precision" : "double precision");
        run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
            const auto own = [&](const at::Tensor& whole, std::int64_t dim) {
                return whole.split_with_sizes(extents, dim)[device_mesh->all().rank()];
            };
            const auto model = test::load_fixture_model(description, tensors, type);
            const auto replicated = replicate(*model.module, device_mesh);
            NamedTensors locals, inputs;
            for (const auto& [name, tensor] : tensors) {
                if (!name.starts_with("input.")) continue;
                const auto argument = name.substr(6);
                const auto dim = row_dim(argument);
                if (dim < 0) {
                    inputs[argument] = tensor.to(type);
                    continue;
                }
                locals[argument] = own(tensor.to(type), dim).clone().requires_grad_();
                inputs[argument] = from_local(locals[argument], device_mesh, {Shard(dim)});
            }

            const auto output = model.forward(inputs).at(0);
            const auto gradient = own(tensors.at("grad_output").to(type), 2);
            (output * from_local(gradient, device_mesh, {Shard(2)})).sum().backward();

            test::FixtureResult result{{full_tensor(output).detach()}, {}, 0};
            for (const auto& item : model.module->named_parameters()) {
                ++result.num_parameters;
                if (item.value().grad().defined()) result.gradients["grad." + item.key()] = item.value().grad();
            }
            auto expected = tensors;
            for (const auto& [argument, tensor] : inputs) {
                for (const std::string prefix : {"grad_input.", "grad_input64."}) {
                    const auto found = tensors.find(prefix + argument);
                    if (found == tensors.end()) continue;
                    expected.erase(prefix + argument);
                    if (!locals.count(argument) || (prefix == "grad_input.") != (type == torch::kFloat)) continue;
                    const auto tolerance = type == torch::kFloat ? 5e-5 : 1e-11;
                    test::expect_near(prefix + argument, locals[argument].grad(), own(found->second, row_dim(argument)),
                                      tolerance *
                                          std::max(type == torch::kFloat ? 0.0 : 1.0, test::largest(found->second)));
                }
            }
            if (type == torch::kFloat)
                test::expect_reference_values(result, description, expected);
            else
                test::expect_double_values(result, expected);
        });
    }
}

INSTANTIATE_TEST_SUITE_P(All, DitFixtures,
                         testing::Combine(testing::ValuesIn(cases_of_diffusion()), testing::Values(2, 3, 5)),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_on_" + std::to_string(std::get<1>(info.param));
                         });

struct DitStep {
    at::Tensor output;
    NamedTensors gradients;
};

DitStep serial_step(Dit& model, const at::Tensor& image, const at::Tensor& time, const at::Tensor& condition,
                    const at::Tensor& factor)
{
    model->zero_grad();
    const auto output = model->forward(image, time, condition);
    (output * factor).sum().backward();
    DitStep step{output.detach(), {}};
    for (const auto& item : model->named_parameters()) step.gradients[item.key()] = item.value().grad().clone();
    return step;
}

class DitCuts : public testing::TestWithParam<std::string> {};

/// Cuts along rows and columns at once, and in the middle of patches.
TEST_P(DitCuts, AlongBothAxesAndThroughPatchesGiveTheSerialResult)
{
    nlohmann::json changes{{"attention_backend", GetParam()}};
    if (GetParam() != "timm") changes["attn_kwargs"] = {{"attn_kernel", 3}, {"na2d_kwargs", {{"dilation", {2, 1}}}}};
    if (GetParam() == "natten2d_rope") changes["detokenizer"] = "proj_reshape_2d_conv";
    auto serial = rough_dit(small_dit(changes));
    const auto image = torch::randn({2, 3, 20, 12}, torch::kDouble), time = torch::rand({2}, torch::kDouble),
               condition = torch::randn({2, 3}, torch::kDouble), factor = torch::randn({2, 3, 20, 12}, torch::kDouble);
    const auto expected = serial_step(serial, image, time, condition, factor);

    for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{2, 18}, {7, 13}}) {
        SCOPED_TRACE(rows[0]);
        run_ranks({2, 2}, {"rows", "columns"}, [&](std::shared_ptr<const DeviceMesh> mesh) {
            const auto cut = [&](const at::Tensor& whole) {
                const auto local = whole.split_with_sizes(rows, 2)[mesh->coordinate(0)].split_with_sizes(
                    {4, 8}, 3)[mesh->coordinate(1)];
                return from_local(local.clone(), mesh, {Shard(2), Shard(3)});
            };
            auto model = copy_of(serial, small_dit(changes));
            const auto replicated = replicate(*model, mesh);
            const auto output = model->forward(cut(image), time, condition);
            (output * cut(factor)).sum().backward();

            test::expect_near("output", full_tensor(output).detach(), expected.output,
                              1e-12 * test::largest(expected.output));
            for (const auto& item : model->named_parameters()) {
                const auto& gradient = expected.gradients.at(item.key());
                test::expect_near(item.key(), item.value().grad(), gradient,
                                  1e-11 * std::max(1.0, test::largest(gradient)));
            }
        });
    }
}

INSTANTIATE_TEST_SUITE_P(Attention, DitCuts, testing::Values("timm", "natten2d", "natten2d_rope"),
                         [](const auto& info) { return info.param; });

TEST(DitMessages, AreOneForEachBlockAndDirection)
{
    run_ranks(3, [](std::shared_ptr<const DeviceMesh> mesh) {
        auto model = rough_dit(small_dit({{"attention_backend", "natten2d"}, {"attn_kwargs", {{"attn_kernel", 5}}}}));
        const std::vector<std::int64_t> extents{2, 12, 6};
        const auto local =
            torch::randn({1, 3, 20, 12}, torch::kDouble).split_with_sizes(extents, 2)[mesh->coordinate(0)];
        const auto image = from_local(local.clone(), mesh, {Shard(2)});
        const auto time = torch::rand({1}, torch::kDouble);
        mesh->counter().reset();

        const auto output = model->forward(image, time);
        EXPECT_EQ(mesh->counter().num_calls(), 2);
        mesh->counter().reset();
        output.backward(output.detach());
        EXPECT_EQ(mesh->counter().num_calls(),
                  2 + 1);  // and one sum of the condition's gradient, of all blocks and the head
    });
}

TEST(DitMemory, RecomputedBlocksGiveTheSameGradients)
{
    auto stored = rough_dit(small_dit({{"attention_backend", "natten2d"}}));
    const auto image = torch::randn({2, 3, 20, 12}, torch::kDouble), time = torch::rand({2}, torch::kDouble),
               condition = torch::randn({2, 3}, torch::kDouble), factor = torch::randn({2, 3, 20, 12}, torch::kDouble);
    const auto expected = serial_step(stored, image, time, condition, factor);
    stored->set_memory(MemoryMode::Recomputed);

    const auto found = serial_step(stored, image, time, condition, factor);

    EXPECT_TRUE(torch::equal(found.output, expected.output));
    for (const auto& [name, gradient] : expected.gradients)
        EXPECT_TRUE(torch::equal(found.gradients.at(name), gradient)) << name;
    EXPECT_TRUE(throws_with<InvalidInput>("only Transolver has the memory mode `streamed`",
                                          [&] { stored->set_memory(MemoryMode::Streamed); }));
}

std::vector<std::string> initial_value_cases()
{
    std::ifstream file(source_path("tests/data/initial_values/diffusion.json"));
    const auto description = nlohmann::json::parse(file);
    std::vector<std::string> names;
    for (const auto& [name, unused] : description["cases"].items()) names.push_back(name);
    return names;
}

class DitInitialValues : public testing::TestWithParam<std::string> {};

TEST_P(DitInitialValues, AreDrawnInTheReferencesOrder)
{
    std::ifstream file(source_path("tests/data/initial_values/diffusion.json"));
    const auto description = nlohmann::json::parse(file);
    const auto arrays = read_safetensors(source_path("tests/data/initial_values/diffusion.safetensors")).arrays;

    torch::manual_seed(description["seed"].get<std::uint64_t>());
    Dit model(dit_options(description["cases"][GetParam()]));

    const auto values = model->named_parameters();
    std::size_t num_expected = 0;
    for (const auto& array : arrays) {
        if (!array.name.starts_with(GetParam() + "/")) continue;
        ++num_expected;
        const auto name = array.name.substr(GetParam().size() + 1);
        ASSERT_TRUE(values.contains(name)) << name;
        const auto expected = torch::from_blob(const_cast<std::byte*>(array.data), array.shape, torch::kFloat);
        EXPECT_TRUE(torch::equal(values[name].detach(), expected)) << name;
    }
    EXPECT_EQ(num_expected, values.size());
    const auto image =
        torch::randn({1, model->options().in_channels, model->options().image()[0], model->options().image()[1]});
    EXPECT_EQ(model->forward(image, torch::rand({1})).abs().max().item<float>(), 0.0F);
}

INSTANTIATE_TEST_SUITE_P(All, DitInitialValues, testing::ValuesIn(initial_value_cases()),
                         [](const auto& info) { return info.param; });

TEST(DitOptions, AreWrittenAsTheyAreRead)
{
    for (const auto& fixture : test::fixture_cases({"DiT"})) {
        const auto arguments = fixture.description()["constructor"];
        const auto written = to_json(dit_options(arguments));
        EXPECT_EQ(to_json(dit_options(written)), written) << fixture.name;
        EXPECT_EQ(dit_options(written).attention.attn_kernel, dit_options(arguments).attention.attn_kernel)
            << fixture.name;
        EXPECT_EQ(dit_options(written).attention.qk_norm, dit_options(arguments).attention.qk_norm) << fixture.name;
        EXPECT_EQ(dit_options(written).conv_layers, dit_options(arguments).conv_layers) << fixture.name;
        for (const auto& [name, value] : arguments.items()) {
            if (name.ends_with("_kwargs")) continue;  // written where they differ from the defaults
            EXPECT_EQ(written[name], value) << fixture.name << ": " << name;
        }
    }
}

TEST(DitOptions, OfOlderFilesAreTaken)
{
    const auto options = dit_options(small_dit(
        {{"timestep_embed_kwargs", {{"max_positions", 50}}}, {"tokenizer_kwargs", {{"pos_embed", nullptr}}}}));

    EXPECT_EQ(options.embedder.max_positions, 50);
    EXPECT_FALSE(options.learned_positions);
}

TEST(DitOptions, NameWhatIsImpossible)
{
    const auto refusal = [](const std::string& text, const nlohmann::json& changes) {
        EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { dit_options(small_dit(changes)).validate(); }));
    };
    refusal("there is no argument 'dept'. Did you mean 'depth'?", {{"dept", 3}});
    refusal("DiT: attn_kwargs: there is no argument 'attn_kernels'. Did you mean 'attn_kernel'?",
            {{"attn_kwargs", {{"attn_kernels", 3}}}});
    refusal("input_size must be a multiple of patch_size; 21 is not one of 2", {{"input_size", {21, 12}}});
    refusal("hidden_size must be a multiple of num_heads", {{"num_heads", 3}});
    refusal("attn_kernel of 7 with dilation 1 needs at least 7 columns of tokens; there are 6",
            {{"attention_backend", "natten2d"}, {"attn_kwargs", {{"attn_kernel", 7}}}});
    refusal("use_nan_mask_tokens needs an attention_backend", {{"use_nan_mask_tokens", true}});
    refusal("the embedder edm needs emb_channels equal to hidden_size, 16", {{"conditioning_embedder", "edm"}});
    refusal("drop_path_rates has 1 entries, and the model 2 blocks", {{"drop_path_rates", {0.1}}});
    refusal("attention_backend", {{"attention_backend", "transformer_engine"}});

    auto model = rough_dit(small_dit());
    const auto image = torch::zeros({1, 3, 20, 12}, torch::kDouble), time = torch::zeros({1}, torch::kDouble);
    EXPECT_TRUE(throws_with<InvalidInput>("the image must be (batch, 3, 20, 12), and has the shape [1, 3, 20, 10]",
                                          [&] { model->forward(torch::zeros({1, 3, 20, 10}, torch::kDouble), time); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the time must be (1), one number a sample",
                                          [&] { model->forward(image, torch::zeros({2})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the condition must be (1, 3)",
                                          [&] { model->forward(image, time, torch::zeros({1, 4})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the model has no use_nan_mask_tokens",
                                          [&] { model->forward(image, time, {}, torch::zeros({1, 20, 12})); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("no intermediate_dropout", [&] { model->forward(image, time, {}, {}, 0.1); }));
}

TEST(DitNames, MoveWithTheDropoutOfMlps)
{
    Dit model(dit_options(small_dit({{"block_kwargs", {{"mlp_drop_rate", 0.1}}}})));

    EXPECT_TRUE(model->named_parameters().contains("blocks.0.linear.layers.3.weight"));
    EXPECT_FALSE(model->named_parameters().contains("blocks.0.linear.layers.2.weight"));
}

}  // namespace
}  // namespace meshard
