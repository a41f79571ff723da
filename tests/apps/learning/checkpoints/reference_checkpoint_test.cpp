// SPDX-License-Identifier: Apache-2.0
// Checkpoints that the reference wrote, as models of meshard: what they give, and how training goes on.
#include "apps/learning/checkpoints/run_checkpoint.h"
#include "apps/learning/checkpoints/tensor_file.h"
#include "io/checkpoints/model_checkpoint.h"
#include "models/diffusion/edm_preconditioner.h"
#include "models/domino/domino.h"
#include "models/geotransolver/geotransolver.h"
#include "models/grids/figconv_unet.h"
#include "models/grids/fno.h"
#include "models/grids/unet_3d.h"
#include "models/registry/registry.h"
#include "models/transolver/flare.h"
#include "models/transolver/transolver.h"
#include "sharding/parameters/fused_adamw.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/fixture_tensors.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <memory>

namespace meshard {
namespace {

namespace fs = std::filesystem;
using test::NamedTensors;

at::Tensor named(const NamedTensors& tensors, const std::string& name)
{
    const auto found = tensors.find(name);
    return found == tensors.end() ? at::Tensor() : found->second;
}

at::Tensor forward(torch::nn::Module& module, const NamedTensors& values)
{
    const auto input = [&](const std::string& name) { return named(values, "input." + name); };
    if (auto* model = dynamic_cast<TransolverImpl*>(&module))
        return model->forward(input("fx"), input("embedding"), input("time"));
    if (auto* model = dynamic_cast<FlareImpl*>(&module))
        return model->forward(input("fx"), input("embedding"), input("time"));
    if (auto* model = dynamic_cast<FigConvUNetImpl*>(&module))
        return model->forward(input("vertices"), input("features")).points;
    if (auto* model = dynamic_cast<FnoImpl*>(&module)) return model->forward(input("x"));
    if (auto* model = dynamic_cast<UNet3dImpl*>(&module)) return model->forward(input("x"));
    if (auto* model = dynamic_cast<DominoImpl*>(&module)) {
        model->set_stencil_draws([&] { return std::pair(named(values, "noise.0"), named(values, "noise.1")); });
        DominoInputs inputs{.geometry = input("geometry_coordinates"),
                            .volume_min_max = input("volume_min_max"),
                            .surface_min_max = input("surface_min_max"),
                            .grid = input("grid"),
                            .surf_grid = input("surf_grid"),
                            .sdf_grid = input("sdf_grid"),
                            .sdf_surf_grid = input("sdf_surf_grid"),
                            .global_values = input("global_params_values"),
                            .global_reference = input("global_params_reference"),
                            .volume = {},
                            .surface = {}};
        inputs.volume = {input("volume_mesh_centers"), input("sdf_nodes"), input("pos_volume_closest"),
                         input("pos_volume_center_of_mass")};
        return model->forward(inputs).volume;
    }
    if (auto* model = dynamic_cast<EdmPreconditionerImpl*>(&module))
        return model->forward(input("x"), input("t"), {input("condition.cond_concat"), input("condition.cond_vec")});
    if (auto* model = dynamic_cast<GeoTransolverImpl*>(&module)) {
        return model
            ->forward({.local_embedding = {input("local_embedding")},
                       .global_embedding = input("global_embedding"),
                       .geometry = input("geometry"),
                       .local_positions = {input("local_positions")}})
            .at(0);
    }
    throw std::logic_error("this test does not know the arguments of this model");
}

class ReferenceCheckpointModels : public testing::TestWithParam<test::CheckpointFixture> {
protected:
    void SetUp() override
    {
        const auto kind = test::kind_of(info_);
        const auto& models = registered_models();
        if (std::none_of(models.begin(), models.end(), [&](const auto& entry) { return entry.class_name == kind; }))
            GTEST_SKIP() << "meshard has no model " << kind;
    }

    /// As the file says its arguments, else as the fixture does; those that meshard does not know say how the reference
    /// computes, not what.
    Model make(const ModelCheckpoint& checkpoint) const
    {
        const auto& entry = find_model(test::kind_of(info_));
        auto arguments =
            checkpoint.arguments.empty() ? info_["constructor"] : nlohmann::json::parse(checkpoint.arguments);
        if (arguments.contains("dit")) {  // of a denoiser, whose files have the DiT below a wrapper
            arguments["model"] = {{"__name__", "ConcatConditionWrapper"},
                                  {"__args__", {{"model", {{"__name__", "DiT"}, {"__args__", arguments["dit"]}}}}}};
            arguments.erase("dit");
        }
        for (const char* unknown : {"use_te"}) {
            if (!entry.defaults.contains(unknown)) arguments.erase(unknown);
        }
        return make_model(entry.name, arguments);
    }

    const nlohmann::json info_ = GetParam().info();
    const NamedTensors values_ = test::read_tensors(GetParam().folder / "values.safetensors");
    const TemporaryFolder folder_;
};

TEST_P(ReferenceCheckpointModels, GiveTheReferencesOutputs)
{
    const auto& expected = values_.at(values_.contains("output") ? "output" : "output.0");  // of several the points'
    const double tolerance = 2e-6 * std::max(1.0, expected.abs().max().item<double>());
    const auto files = GetParam().model_files();
    ASSERT_FALSE(files.empty());
    for (const auto& file : files) {
        SCOPED_TRACE(file.string());
        const auto checkpoint = read_checkpoint(file);
        const auto model = make(checkpoint);
        write_checkpoint(folder_ / "weights.safetensors", checkpoint, CheckpointFormat::Safetensors);
        load_weights(folder_ / "weights.safetensors", *model.module, model.class_name);
        model.module->eval();

        const auto output = forward(*model.module, values_);

        ASSERT_EQ(output.sizes(), expected.sizes());
        EXPECT_LE((output - expected).abs().max().item<double>(), tolerance);
        if (const auto target = named(values_, "target"); target.defined()) {
            const auto loss = values_.at("loss").item<double>();
            EXPECT_NEAR(torch::mse_loss(output, target).item<double>(), loss, 1e-6 * loss);
        }
    }
}

/// What the reference's optimizer kept, as a checkpoint of meshard.
void write_own_checkpoint(const fs::path& path, const ModelCheckpoint& weights, const ModelCheckpoint& optimizer,
                          const nlohmann::json& parameter_order)
{
    NamedArrays content = weights.weights;
    std::int64_t step = 0;
    for (std::size_t i = 0; i < parameter_order.size(); ++i) {
        const auto state = "optimizer_state_dict.state." + std::to_string(i) + ".";
        if (!optimizer.weights.find(state + "step")) continue;
        step = static_cast<std::int64_t>(to_tensor(*optimizer.weights.find(state + "step")).item<double>());
        for (const std::string what : {"exp_avg", "exp_avg_sq"}) {
            auto array = *optimizer.weights.find(state + what);
            array.name = "optimizer." + what + "." + parameter_order[i].get<std::string>();
            content.arrays.push_back(array);
        }
    }
    RunDescription description;
    description.optimizer_step = step;
    content.metadata["meshard"] = to_json(description).dump();
    write_safetensors(path, content);
}

double largest_of(const NamedTensors& tensors, const std::string& prefix)
{
    double largest = 0;
    for (const auto& [name, tensor] : tensors) {
        if (name.starts_with(prefix)) largest = std::max(largest, tensor.abs().max().item<double>());
    }
    return largest;
}

/// |found - expected| within 1e-5 of the largest of the tensor, and 1e-6 of the largest of all: gradients that cancel
/// are rounding.
void expect_moments(const NamedTensors& found, const NamedTensors& expected, const std::string& prefix)
{
    const auto largest = largest_of(expected, prefix);
    EXPECT_GT(largest, 0);
    for (const auto& [name, tensor] : expected) {
        if (!name.starts_with(prefix)) continue;
        ASSERT_TRUE(found.contains(name)) << name;
        ASSERT_EQ(found.at(name).sizes(), tensor.sizes()) << name;
        EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(),
                  1e-5 * tensor.abs().max().item<double>() + 1e-6 * largest)
            << name;
    }
}

/// Second moments as what they are means of: with roots, a tolerance means the same for them as for gradients.
NamedTensors with_roots(NamedTensors tensors)
{
    for (auto& [name, tensor] : tensors) {
        if (name.starts_with("optimizer.exp_avg_sq.")) tensor = tensor.sqrt();
    }
    return tensors;
}

TEST_P(ReferenceCheckpointModels, TrainOnAsTheReferenceDid)
{
    const auto files = GetParam().optimizer_files();
    if (files.empty()) GTEST_SKIP() << "the fixture " << GetParam().name << " has no state of an optimizer";
    const auto& settings = info_["optimizer"];
    for (std::size_t i = 0; i < 2 * files.size(); ++i) {
        const auto& file = files[i / 2];
        const bool is_fused = i % 2 == 1;  // the optimiser of devices
        SCOPED_TRACE(file.string() + (is_fused ? ", fused" : ""));
        const auto weights = read_checkpoint(GetParam().folder / "model.mdlus");
        const auto model = make(weights);
        const auto path = folder_ / "last.safetensors";
        write_own_checkpoint(path, weights, read_checkpoint(file), info_["parameter_order"]);
        const auto options = torch::optim::AdamWOptions(settings["lr_of_next_step"].get<double>())
                                 .weight_decay(settings["weight_decay"].get<double>())
                                 .betas({settings["betas"][0].get<double>(), settings["betas"][1].get<double>()})
                                 .eps(settings["eps"].get<double>());
        std::unique_ptr<torch::optim::AdamW> made;
        if (is_fused)
            made = std::make_unique<FusedAdamW>(model.module->parameters(), options);
        else
            made = std::make_unique<torch::optim::AdamW>(model.module->parameters(), options);
        Optimizers optimizer(std::move(made));
        const Checkpoint checkpoint(path);
        checkpoint.load_weights(*model.module);
        checkpoint.load_optimizer(*model.module, optimizer);
        // What is saved again is what was read, value by value.
        save_checkpoint(folder_ / "again.safetensors", trained_values(*model.module, optimizer),
                        {torch::zeros({1}), torch::ones({1})}, {});
        const auto before = test::read_tensors(path), again = test::read_tensors(folder_ / "again.safetensors");
        for (const auto& [name, tensor] : before) {
            ASSERT_TRUE(again.contains(name)) << name;
            EXPECT_TRUE(at::equal(again.at(name), tensor)) << name;
        }

        torch::mse_loss(forward(*model.module, values_), values_.at("target")).backward();
        optimizer.step();

        save_checkpoint(folder_ / "next.safetensors", trained_values(*model.module, optimizer),
                        {torch::zeros({1}), torch::ones({1})}, {});
        EXPECT_EQ(Checkpoint(folder_ / "next.safetensors").description().optimizer_step,
                  settings["steps_taken"].get<std::int64_t>() + 1);
        const auto next = with_roots(test::read_tensors(folder_ / "next.safetensors")), expected = with_roots(values_);
        expect_moments(next, expected, "optimizer.exp_avg.");
        expect_moments(next, expected, "optimizer.exp_avg_sq.");
        const auto largest = largest_of(expected, "optimizer.exp_avg_sq.");
        std::size_t num_rounding = 0;
        for (const auto& item : info_["parameter_order"]) {
            const auto name = item.get<std::string>();
            // Of a parameter that nothing depends on (the keys' bias: softmax ignores it) the gradient is rounding, and
            // AdamW's step, which has no size of its own, is too: no longer than the learning rate.
            const bool is_rounding =
                expected.at("optimizer.exp_avg_sq." + name).abs().max().item<double>() < 1e-6 * largest;
            num_rounding += is_rounding;
            ASSERT_TRUE(next.contains(name)) << name;
            EXPECT_LE((next.at(name) - expected.at("after_next_step." + name)).abs().max().item<double>(),
                      is_rounding ? 1e-3 : 2e-6)
                << name;
        }
        EXPECT_LE(num_rounding, info_["parameter_order"].size() / 10);
    }
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceCheckpointModels, testing::ValuesIn(test::checkpoint_fixtures()),
                         test::NameOfFixture());

}  // namespace
}  // namespace meshard
