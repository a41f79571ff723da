// SPDX-License-Identifier: Apache-2.0
#include "models/registry/registry.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

namespace meshard {
namespace {

using Json = nlohmann::json;

ModelEntry scale_entry()
{
    return {.name = "scale",
            .class_name = "Scale",
            .defaults = {{"factor", 2.0},
                         {"steps", 1},
                         {"axis", "x"},
                         {"sizes", Json::array({1, 2})},
                         {"shape", nullptr},
                         {"secret", 0}},
            .extras = {"secret"},
            .options = {{"factor", "what all is multiplied by"}},
            .check =
                [](const Json& arguments) {
                    if (arguments.at("factor") == 0.0) throw InvalidInput("Scale: factor must not be 0.");
                },
            .kind = PointModel{
                .widths = [](const PointWidths&) { return Json::object(); },
                .make = [](const Json& arguments) -> MadeModel {
                    const auto factor = arguments.at("factor").get<double>();
                    return {std::make_shared<torch::nn::Module>(),
                            [factor](const PointInputs& inputs) { return inputs.embedding * factor; }};
                },
            }};
}

const ModelRegistration registration(scale_entry());

TEST(Registry, TakesFigConvUNetsGridsByTheirResolutions)
{
    const auto pairs_of = [](const Json& given) {
        auto arguments = given;
        arguments.update({{"in_channels", 3}, {"out_channels", 1}, {"hidden_channels", {3, 3, 3, 3}}});
        return complete_arguments(find_model("figconvunet"), arguments).at("resolution_memory_format_pairs");
    };
    EXPECT_EQ(
        pairs_of({{"grid_resolution", {250, 150, 100}}, {"plane_resolution", {5, 3, 2}}}),
        Json::parse(R"([["b_xc_y_z", [5, 150, 100]], ["b_yc_x_z", [250, 3, 100]], ["b_zc_x_y", [250, 150, 2]]])"));
    EXPECT_EQ(pairs_of({{"grid_resolution", {128, 128, 128}}}), pairs_of(Json::object()));
    EXPECT_TRUE(throws_with<InvalidInput>("grid_resolution is [8,8]; expected three whole numbers",
                                          [&] { pairs_of({{"grid_resolution", {8, 8}}}); }));
}

TEST(Registry, MakesModelsByEitherName)
{
    for (const char* name : {"scale", "Scale", "SCALE"}) {
        const auto model = make_model(name, {{"factor", 3}});
        EXPECT_EQ(model.class_name, "Scale");
        EXPECT_EQ(model.forward({.embedding = torch::ones({1, 1, 1}), .positions = {}, .constants = {}, .time = {}})
                      .item<double>(),
                  3);
    }
    EXPECT_TRUE(throws_with<InvalidInput>(
        "there is no model 'transolvr'. Did you mean 'transolver'? There are: transolver flare",
        [] { find_model("transolvr"); }));
}

TEST(Registry, CompletesAndChecksArguments)
{
    const auto& entry = find_model("scale");

    EXPECT_EQ(complete_arguments(entry, Json::object()),
              (Json{{"factor", 2.0}, {"steps", 1}, {"axis", "x"}, {"sizes", {1, 2}}, {"shape", nullptr}}));
    EXPECT_EQ(complete_arguments(entry, {{"sizes", 5}, {"shape", "wide"}, {"steps", nullptr}, {"secret", 4}}),
              (Json{{"factor", 2.0}, {"steps", 1}, {"axis", "x"}, {"sizes", {5}}, {"shape", "wide"}, {"secret", 4}}));
    EXPECT_TRUE(throws_with<InvalidInput>("Scale: there is no argument 'factr'. Did you mean 'factor'?",
                                          [&] { complete_arguments(entry, {{"factr", 1}}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("Scale: steps cannot be 1.5; expected a whole number",
                                          [&] { complete_arguments(entry, {{"steps", 1.5}}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("Scale: axis cannot be 3; expected a text",
                                          [&] { complete_arguments(entry, {{"axis", 3}}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("factor must not be 0", [&] { make_model("scale", {{"factor", 0}}); }));
}

/// Small arguments for data of 6 channels a point, 2 constants and 4 fields.
Json small_arguments(const ModelEntry& entry)
{
    auto arguments = entry.arguments_for({.embedding_dim = 6, .num_constants = 2, .out_dim = 4});
    const Json small{{"n_layers", 1},  {"n_hidden", 8},       {"n_head", 2},
                     {"slice_num", 3}, {"processor_size", 1}, {"hidden_dim_processor", 8}};
    for (const auto& [name, value] : small.items()) {
        if (entry.defaults.contains(name)) arguments[name] = value;
    }
    return arguments;
}

TEST(Registry, EveryModelPredictsFromTheSameInputs)
{
    const auto places = torch::rand({1, 20, 3});
    const PointInputs inputs{.embedding = torch::cat({places, torch::rand({1, 20, 3})}, -1),
                             .positions = places,
                             .constants = torch::tensor({{1.2F, 0.4F}}),
                             .time = {}};
    for (const auto& entry : registered_models()) {
        if (entry.name == "scale" || !entry.of_points()) continue;
        const auto model = make_model(entry.name, small_arguments(entry));
        EXPECT_EQ(model.forward(inputs).sizes(), at::IntArrayRef({1, 20, 4})) << entry.name;
        EXPECT_EQ(make_model(model.class_name, model.arguments).arguments, model.arguments) << entry.name;
        if (!entry.of_points()->widths_of) continue;
        const auto widths = entry.of_points()->widths_of(model.arguments, 2);
        EXPECT_EQ(std::make_tuple(widths.embedding_dim, widths.num_constants, widths.out_dim), std::make_tuple(6, 2, 4))
            << entry.name;
    }
}

TEST(Registry, ModelsOfGridsAreMadeFromTheirArgumentsAndRefusedAsModelsOfPoints)
{
    const Json arguments{{"in_channels", 2},
                         {"out_channels", 3},
                         {"model_depth", 2},
                         {"feature_map_channels", {2, 4}},
                         {"num_conv_blocks", 1}};
    const auto model = make_model("unet", arguments);
    EXPECT_EQ(model.class_name, "UNet");
    EXPECT_EQ(model.forward_grid(torch::rand({1, 2, 4, 2, 6})).sizes(), at::IntArrayRef({1, 3, 4, 2, 6}));
    EXPECT_FALSE(model.forward);
    EXPECT_EQ(make_model(model.class_name, model.arguments).arguments, model.arguments);
    EXPECT_EQ(model.arguments.at("normalization"), "groupnorm") << "the default";
    EXPECT_TRUE(
        throws_with<InvalidInput>("UNet is a model of grids; here a model of points is wanted: transolver flare",
                                  [] { find_point_model("unet"); }));
}

TEST(Registry, EveryModelOfGridsIsMadeFromWhatTheDataSay)
{
    const Json small{
        {"n_layers", 1},        {"n_hidden", 8},       {"n_head", 2},          {"num_channels", 4},
        {"num_groups", 2},      {"model_depth", 2},    {"num_conv_blocks", 1}, {"feature_map_channels", {2, 4}},
        {"latent_channels", 4}, {"num_fno_layers", 1}, {"num_fno_modes", 2},   {"hidden_size", 8},
        {"depth", 1},           {"num_heads", 2}};
    for (const auto& entry : registered_models()) {
        if (!entry.of_grids()) continue;
        for (const auto directions : entry.of_grids()->directions) {
            SCOPED_TRACE(entry.name + " of " + std::to_string(directions) + " directions");
            std::vector<std::int64_t> extents{16, 8, 8};
            extents.resize(directions);
            auto arguments = entry.of_grids()->widths({.in_channels = 3, .out_channels = 2, .extents = extents});
            for (const auto& [name, value] : small.items()) {
                if (entry.defaults.contains(name) && !arguments.contains(name)) arguments[name] = value;
            }
            const auto model = make_model(entry.name, arguments);
            auto shape = extents, expected = extents;
            shape.insert(shape.begin(), {1, 3});
            expected.insert(expected.begin(), {1, 2});
            EXPECT_EQ(model.forward_grid(torch::rand(shape)).sizes().vec(), expected);
            EXPECT_EQ(make_model(model.class_name, model.arguments).arguments, model.arguments);
            if (entry.of_grids()->rows_together) {
                EXPECT_EQ(extents[0] % entry.of_grids()->rows_together(model.arguments), 0);
            }
        }
    }
}

TEST(Registry, NullMayBeAValueOfItsOwn)
{
    Json arguments{{"in_channels", 2},     {"out_channels", 3},       {"model_depth", 1}, {"feature_map_channels", {2}},
                   {"num_conv_blocks", 1}, {"normalization", nullptr}};
    const auto model = make_model("unet", arguments);
    EXPECT_TRUE(model.arguments.at("normalization").is_null());
    EXPECT_FALSE(model.module->named_parameters().contains("encoder.layers.0.norm.weight"));
}

TEST(Registry, EveryOptionIsAnArgumentAndSaysWhatItMeans)
{
    for (const auto& entry : registered_models()) {
        for (const auto& option : entry.options) {
            EXPECT_TRUE(entry.defaults.contains(option.name) != entry.short_names.contains(option.name))
                << entry.name << ' ' << option.name;
            EXPECT_FALSE(option.meaning.empty()) << entry.name << ' ' << option.name;
        }
    }
}

TEST(MeshGraphNetOfLevels, TakesFeaturesAndPlacesThatAreCutDifferently)
{
    const Json arguments{{"input_dim_nodes", 3},
                         {"input_dim_edges", 4},
                         {"output_dim", 2},
                         {"processor_size", 1},
                         {"hidden_dim_processor", 8},
                         {"hidden_dim_node_encoder", 8},
                         {"hidden_dim_edge_encoder", 8},
                         {"hidden_dim_node_decoder", 8},
                         {"num_neighbors", 3},
                         {"levels", {10, 32}}};
    auto model = make_model("meshgraphnet", arguments);
    model.module->to(torch::kDouble);
    const auto features = torch::randn({1, 32, 3}, torch::kDouble), places = torch::rand({1, 32, 3}, torch::kDouble);
    const auto expected = model.forward({features, places, {}, {}}).detach();
    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> mesh) {
        const auto cut = [&](const at::Tensor& whole, const std::vector<std::int64_t>& extents) {
            return from_local(whole.split_with_sizes(extents, 1)[mesh->coordinate(0)].clone(), mesh, {Shard(1)});
        };
        auto own = make_model("meshgraphnet", arguments);  // it keeps the graphs of its last points
        own.module->to(torch::kDouble);
        {
            const torch::NoGradGuard no_grad;
            for (auto& item : own.module->named_parameters())
                item.value().copy_(model.module->named_parameters()[item.key()]);
        }
        const auto same = from_local(features, mesh, {Replicate()});
        for (const auto& of_points : {cut(features, {32, 0, 0}), features, same}) {
            for (const auto& at_places : {cut(places, {0, 16, 16}), places}) {
                const auto found = own.forward({of_points, at_places, {}, {}});
                test::expect_near("fields", full_tensor(found).detach(), expected, 1e-12);
            }
        }
    });
}

}  // namespace
}  // namespace meshard
