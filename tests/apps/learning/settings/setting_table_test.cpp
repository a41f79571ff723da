// SPDX-License-Identifier: Apache-2.0
#include "apps/console/console.h"
#include "apps/learning/settings/setting_table.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

enum class Shape : std::uint8_t { Round, Flat };

struct Part {
    std::string name;
    std::vector<std::string> match;
    std::optional<double> rate;

    void add_keys(SettingTable& keys, const std::string& base)
    {
        keys.add(base, match, {}, "its points");
        keys.add(base + ".rate", rate, {0, 1}, "its rate");
    }
};

struct Config {
    std::string label;
    std::filesystem::path folder = "runs";
    std::int64_t steps = 10, ranks = 0;
    double rate = 1e-4, share = 0.25;
    bool fast = true;
    std::vector<std::string> losses{"mse"};
    std::vector<double> scales{0.25, 1};
    std::array<double, 3> up{0, 0, 1};
    std::optional<std::array<double, 2>> betas;
    std::map<std::string, std::vector<double>> weights;
    Shape shape = Shape::Flat;
    std::vector<Part> parts;

    SettingTable keys()
    {
        SettingTable keys;
        keys.add("label", label, {}, "label");
        keys.add("folder", folder, {}, "folder");
        keys.add("steps", steps, {1}, "steps");
        keys.add("ranks", ranks, {.least = 1, .words = {"auto"}}, "ranks");
        keys.add("rate", rate, {0, 1}, "rate");
        keys.add("share", share, {0, 1}, "share");
        keys.add("fast", fast, {}, "fast");
        keys.add("losses", losses, {}, "losses");
        keys.add("scales", scales, {}, "scales");
        keys.add("up", up, {}, "up");
        keys.add("betas", betas, {.words = {"auto"}}, "betas");
        keys.add("weights.*", weights, {}, "weights");
        keys.add_choice("shape", shape, {{"round", Shape::Round}, {"flat", Shape::Flat}, {"plane", Shape::Flat}},
                        "shape");
        keys.add_each("parts", parts);
        return keys;
    }
};

const SettingRule& rule(const SettingTable& table, const std::string& path)
{
    return *std::ranges::find(table.rules(), path, &SettingRule::path);
}

class SettingTableTest : public testing::Test {
protected:
    Config read(const std::string& yaml) const
    {
        Config config;
        const auto keys = config.keys();
        write_bytes(folder_ / "a.yaml", yaml);
        keys.store(Settings::read(folder_ / "a.yaml", {}, keys.rules()));
        return config;
    }

    TemporaryFolder folder_;
};

TEST_F(SettingTableTest, TakesTypesAndDefaultsFromVariables)
{
    Config config;
    const auto keys = config.keys();
    const std::map<std::string, std::string> defaults{
        {"label", ""},     {"folder", "runs"}, {"steps", "10"},   {"ranks", "auto"},       {"rate", "1e-4"},
        {"share", "0.25"}, {"fast", "true"},   {"losses", "mse"}, {"scales", "[0.25, 1]"}, {"up", "[0, 0, 1]"},
        {"betas", "auto"}, {"weights.*", ""},  {"shape", "flat"}, {"parts.*", ""},         {"parts.*.rate", ""}};
    EXPECT_EQ(keys.rules().size(), defaults.size());
    for (const auto& [path, fallback] : defaults) EXPECT_EQ(rule(keys, path).fallback, fallback) << path;
    EXPECT_EQ(value_text(rule(keys, "steps")), "a whole number from 1");
    EXPECT_EQ(value_text(rule(keys, "ranks")), "a whole number from 1, or auto");
    EXPECT_EQ(value_text(rule(keys, "up")), "3 numbers");
    EXPECT_EQ(value_text(rule(keys, "betas")), "2 numbers, or auto");
    EXPECT_EQ(value_text(rule(keys, "shape")), "round, flat, plane");
    EXPECT_EQ(value_text(rule(keys, "parts.*.rate")), "a number from 0 to 1");
}

TEST_F(SettingTableTest, SetsVariables)
{
    const auto config = read("{label: 'a b', folder: x/y, steps: 3, ranks: 2, rate: 0.5, fast: false, losses: [a, b], "
                             "scales: 2, up: [1, 2, 3], betas: [0.5, 0.75], "
                             "weights: {p: 1, q: [2, 3]}, shape: round, parts: {z: [m, n], a: {rate: 0.5}}}");
    EXPECT_EQ(config.label, "a b");
    EXPECT_EQ(config.folder, "x/y");
    EXPECT_EQ(config.steps, 3);
    EXPECT_EQ(config.ranks, 2);
    EXPECT_EQ(config.rate, 0.5);
    EXPECT_EQ(config.share, 0.25);
    EXPECT_FALSE(config.fast);
    EXPECT_EQ(config.losses, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(config.scales, std::vector<double>{2});
    EXPECT_EQ(config.up, (std::array<double, 3>{1, 2, 3}));
    EXPECT_EQ(config.betas, (std::array{0.5, 0.75}));
    EXPECT_EQ(config.weights, (std::map<std::string, std::vector<double>>{{"p", {1}}, {"q", {2, 3}}}));
    EXPECT_TRUE(config.shape == Shape::Round);
    ASSERT_EQ(config.parts.size(), 2U);
    EXPECT_EQ(config.parts[0].name, "z");
    EXPECT_EQ(config.parts[0].match, (std::vector<std::string>{"m", "n"}));
    EXPECT_FALSE(config.parts[0].rate.has_value());
    EXPECT_EQ(config.parts[1].rate, 0.5);
}

TEST_F(SettingTableTest, LeavesTheRestAsItIs)
{
    const auto config = read("{ranks: auto, betas: auto}"), other = read("{}");
    for (const auto* read : {&config, &other}) {
        EXPECT_EQ(read->steps, 10);
        EXPECT_EQ(read->ranks, 0);
        EXPECT_EQ(read->rate, 1e-4);
        EXPECT_TRUE(read->fast);
        EXPECT_FALSE(read->betas.has_value());
        EXPECT_TRUE(read->shape == Shape::Flat);
        EXPECT_TRUE(read->parts.empty());
        EXPECT_EQ(read->up, (std::array<double, 3>{0, 0, 1}));
    }
    EXPECT_TRUE(throws_with<UsageError>("steps is '-1'; expected a whole number from 1", [&] { read("{steps: -1}"); }));
    EXPECT_TRUE(throws_with<UsageError>("up is [1, 2]; expected 3 numbers", [&] { read("{up: [1, 2]}"); }));
    EXPECT_TRUE(throws_with<UsageError>("Did you mean 'parts.a.rate'?", [&] { read("{parts: {a: {rat: 1}}}"); }));
}

}  // namespace
}  // namespace meshard
