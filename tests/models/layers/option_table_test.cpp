// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver/geotransolver_options.h"
#include "models/layers/option_table.h"
#include "models/transolver/transolver_options.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

using Json = nlohmann::json;

struct BaseOptions {
    std::int64_t layers = 4;
};

struct TestOptions : BaseOptions {
    bool rough = false;
    std::int64_t seed = -1;
    double rate = 0.5;
    std::string kind = "fine";
    std::vector<std::int64_t> sizes;
    std::vector<double> radii{0.5, 1};
    std::vector<std::string> steps{"up"};
    bool ours = false;
    bool inner = false;
};

const OptionTable<TestOptions>& table()
{
    using O = TestOptions;
    static const OptionTable<O> table(
        "Test",
        inherited_options<O>(std::vector<Option<BaseOptions>>{{"layers", &BaseOptions::layers, "blocks", {.least = 1}}},
                             {
                                 {"rough", &O::rough, "whether it is rough"},
                                 {"seed", &O::seed, "seed; none: drawn", {.least = 0}, {.none = "-1"}},
                                 {"rate", &O::rate, "share", {.least = 0, .most = 1}},
                                 {"kind", &O::kind, "kind", {.words = {"fine", "coarse"}}},
                                 {"sizes", &O::sizes, "sizes", {.least = 1}, {.none = "[]", .one_or_more = true}},
                                 {"radii", &O::radii, "radii", {.least = 0, .above = true}, {.only_with = &O::rough}},
                                 {"steps", &O::steps, "steps", {.words = {"up", "down"}}},
                                 {"ours", &O::ours, "an extension", {}, {.is_extension = true}},
                                 {"inner", &O::inner, "for programs", {}, {.is_for_programs = true}},
                             }));
    return table;
}

Json written(const TestOptions& options)
{
    return table().write(options);
}

TEST(OptionTable, WritesEveryOptionWithNullsAndWithoutOtherProgramsStrangers)
{
    const Json defaults{{"layers", 4},      {"rough", false},      {"seed", nullptr}, {"rate", 0.5},   {"kind", "fine"},
                        {"sizes", nullptr}, {"radii", {0.5, 1.0}}, {"steps", {"up"}}, {"inner", false}};
    EXPECT_EQ(written({}), defaults);

    TestOptions options;
    options.sizes = {7};
    options.seed = 3;
    options.ours = true;
    EXPECT_EQ(written(options)["sizes"], 7);
    EXPECT_EQ(written(options)["seed"], 3);
    EXPECT_EQ(written(options)["ours"], true);
    options.sizes = {7, 8};
    EXPECT_EQ(written(options)["sizes"], (Json{7, 8}));
    EXPECT_EQ(table().defaults()["ours"], false);
    EXPECT_EQ(table().extensions(), std::vector<std::string>{"ours"});
}

TEST(OptionTable, ReadsWhatItWrites)
{
    const Json arguments{{"layers", 2},      {"rough", true},   {"seed", 5},       {"rate", 1},
                         {"kind", "coarse"}, {"sizes", {3, 4}}, {"radii", {0.25}}, {"steps", {"down", "up"}},
                         {"ours", true},     {"inner", true}};
    const auto options = table().read(arguments);
    EXPECT_EQ(options.layers, 2);
    EXPECT_TRUE(options.rough && options.ours && options.inner);
    EXPECT_EQ(options.rate, 1.0);
    EXPECT_EQ(options.kind, "coarse");
    EXPECT_EQ(options.sizes, (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(options.steps, (std::vector<std::string>{"down", "up"}));
    EXPECT_EQ(written(options), arguments);

    EXPECT_EQ(written(table().read({{"seed", nullptr}, {"sizes", nullptr}})), written({}));
    EXPECT_EQ(table().read({{"sizes", 6}}).sizes, std::vector<std::int64_t>{6});
    EXPECT_EQ(table().read({{"layers", 6.0}}).layers, 6);
}

TEST(OptionTable, RefusesUnknownNamesAndOtherTypes)
{
    const auto refuses = [](const Json& arguments, const char* text) {
        return throws_with<InvalidInput>(text, [&] { table().read(arguments); });
    };
    EXPECT_TRUE(refuses({{"layer", 1}}, "Test: there is no argument 'layer'. Did you mean 'layers'?"));
    EXPECT_TRUE(refuses({{"layers", 1.5}}, "Test: layers cannot be 1.5; expected a whole number."));
    EXPECT_TRUE(refuses({{"layers", true}}, "layers cannot be true"));
    EXPECT_TRUE(refuses({{"rough", 1}}, "rough cannot be 1; expected true or false"));
    EXPECT_TRUE(refuses({{"rate", "much"}}, "rate cannot be \"much\"; expected a number"));
    EXPECT_TRUE(refuses({{"kind", 2}}, "kind cannot be 2; expected a text"));
    EXPECT_TRUE(refuses({{"sizes", {1, 2.5}}}, "sizes cannot be [1,2.5]; expected whole numbers"));
    EXPECT_TRUE(refuses({{"radii", {"a"}}}, "expected numbers"));
    EXPECT_TRUE(refuses({{"steps", {1}}}, "expected texts"));
}

TEST(OptionTable, ChecksBounds)
{
    const auto refuses = [](auto change, const char* text) {
        TestOptions options;
        change(options);
        return throws_with<InvalidInput>(text, [&] { table().check(options); });
    };
    table().check({});  // a seed that is none is out of bounds, and good
    EXPECT_TRUE(refuses([](auto& o) { o.layers = 0; }, "Test: layers must be at least 1, and is 0."));
    EXPECT_TRUE(refuses([](auto& o) { o.seed = -2; }, "seed must be at least 0, and is -2."));
    EXPECT_TRUE(refuses([](auto& o) { o.rate = 1.5; }, "rate must lie in [0, 1], and is 1.5."));
    EXPECT_TRUE(refuses([](auto& o) { o.rate = std::nan(""); }, "rate must lie in [0, 1], and is nan."));
    EXPECT_TRUE(refuses([](auto& o) { o.kind = "course"; },
                        "kind must be fine or coarse, and is 'course'. Did you mean 'coarse'?"));
    EXPECT_TRUE(refuses([](auto& o) { o.sizes = {2, 0}; }, "an entry of sizes must be at least 1, and is 0."));
    EXPECT_TRUE(refuses([](auto& o) { o.rough = true, o.radii = {1, 0}; },
                        "an entry of radii must be above 0 and finite, and is 0."));
    EXPECT_TRUE(refuses([](auto& o) { o.rough = true, o.radii = {INFINITY}; }, "above 0 and finite, and is inf."));
    EXPECT_TRUE(
        refuses([](auto& o) { o.steps = {"up", "left"}; }, "an entry of steps must be up or down, and is 'left'."));

    TestOptions unused;
    unused.radii = {-1};
    table().check(unused);
}

TEST(OptionTable, TellsProgramsOfWhatMaySet)
{
    const auto infos = table().infos();
    std::vector<std::string> names;
    for (const auto& info : infos) names.push_back(info.name);
    EXPECT_EQ(names,
              (std::vector<std::string>{"layers", "rough", "seed", "rate", "kind", "sizes", "radii", "steps", "ours"}));
    EXPECT_EQ(infos[0].meaning, "blocks");
    EXPECT_EQ(infos[0].bounds.least, 1);
    EXPECT_EQ(infos[6].only_with, "rough");
    EXPECT_EQ(infos[5].only_with, "");
}

/// What files of earlier versions, and of PhysicsNeMo, hold.
TEST(OptionTable, KeepsTheNamesAndDefaultsOfCheckpoints)
{
    const Json transolver{{"functional_dim", nullptr},
                          {"out_dim", 0},
                          {"embedding_dim", nullptr},
                          {"n_layers", 4},
                          {"n_hidden", 256},
                          {"dropout", 0.0},
                          {"n_head", 8},
                          {"act", "gelu"},
                          {"mlp_ratio", 4},
                          {"slice_num", 32},
                          {"unified_pos", false},
                          {"ref", 8},
                          {"structured_shape", nullptr},
                          {"use_te", false},
                          {"time_input", false},
                          {"plus", false}};
    EXPECT_EQ(to_json(TransolverOptions()), transolver);

    GeoTransolverOptions options;
    options.functional_dim = options.out_dim = {4};
    const Json geotransolver{{"functional_dim", 4},
                             {"out_dim", 4},
                             {"geometry_dim", nullptr},
                             {"global_dim", nullptr},
                             {"n_layers", 4},
                             {"n_hidden", 256},
                             {"dropout", 0.0},
                             {"n_head", 8},
                             {"act", "gelu"},
                             {"mlp_ratio", 4},
                             {"slice_num", 32},
                             {"structured_shape", nullptr},
                             {"use_te", false},
                             {"time_input", false},
                             {"plus", false},
                             {"include_local_features", false},
                             {"radii", {0.05, 0.25}},
                             {"neighbors_in_radius", {8, 32}},
                             {"n_hidden_local", 32},
                             {"attention_type", "GALE"},
                             {"concrete_dropout", false},
                             {"state_mixing_mode", "weighted"}};
    EXPECT_EQ(to_json(options), geotransolver);
    options.out_dim = {1, 2};
    EXPECT_EQ(to_json(options)["out_dim"], (Json{1, 2}));
}

}  // namespace
}  // namespace meshard
