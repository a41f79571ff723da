// SPDX-License-Identifier: Apache-2.0
#include "apps/console/console.h"
#include "apps/learning/settings/settings.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>

namespace meshard {
namespace {

const SettingRule kRules[] = {
    {.path = "name", .fallback = "run"},
    {.path = "root", .fallback = "???"},
    {.path = "train.steps", .type = SettingType::Integer, .fallback = "10", .bounds = {1, 100}},
    {.path = "train.rate", .type = SettingType::Number, .fallback = "1e-3", .bounds = {0}},
    {.path = "train.radius", .type = SettingType::Number, .bounds = {.least = 0, .above = true}},
    {.path = "train.loss", .fallback = "mse", .bounds = {.words = {"mse", "l1"}}, .not_yet = {"huber"}},
    {.path = "train.betas",
     .type = SettingType::NumberList,
     .fallback = "[0.9, 0.999]",
     .bounds = {.words = {"auto"}},
     .length = 2},
    {.path = "train.fast", .type = SettingType::Boolean, .fallback = "false"},
    {.path = "ranks", .type = SettingType::Integer, .fallback = "auto", .bounds = {.least = 1, .words = {"auto"}}},
    {.path = "fields.*"},
    {.path = "fields.*.from"},
    {.path = "fields.*.kind", .bounds = {.words = {"kinematic", "static"}}},
    {.path = "inputs", .type = SettingType::TextList, .bounds = {.words = {"points", "normals"}}},
    {.path = "share", .type = SettingType::NumberOrTextList, .bounds = {0, 1}},
};

class SettingsTest : public testing::Test {
protected:
    Settings read(const std::string& yaml, const std::vector<std::string>& overrides = {}) const
    {
        write_bytes(folder_ / "car.yaml", yaml);
        return Settings::read(folder_ / "car.yaml", overrides, kRules);
    }

    testing::AssertionResult refuses(const std::string& yaml, std::string_view text,
                                     const std::vector<std::string>& overrides = {}) const
    {
        return throws_with<UsageError>(text, [&] { read(yaml, overrides); });
    }

    TemporaryFolder folder_;
};

TEST_F(SettingsTest, TakeTheFileThenTheCommandLineThenDefaults)
{
    const auto settings = read("root: cases\ntrain: {steps: 20, rate: 2e-4}\n", {"train.steps=30", "train.fast=true"});

    EXPECT_EQ(settings.text("root"), "cases");
    EXPECT_EQ(settings.text("train.steps"), "30");
    EXPECT_EQ(settings.text("train.rate"), "2e-4");
    EXPECT_EQ(settings.text("train.fast"), "true");
    EXPECT_EQ(settings.text("name"), "run");
    EXPECT_EQ(settings.find("train.betas")->values, (std::vector<std::string>{"0.9", "0.999"}));
    EXPECT_EQ(settings.find("train.steps")->source, "command line");
    EXPECT_EQ(settings.find("train.rate")->source, "car.yaml:2:26");
    EXPECT_FALSE(settings.has("inputs"));
}

TEST_F(SettingsTest, NameTheNearestKeyAndThePlaceOfAnUnknownOne)
{
    EXPECT_TRUE(refuses("root: a\ntrain:\n  step: 3\n",
                        "car.yaml:3:3: there is no key 'train.step'. Did you mean 'train.steps'?"));
    EXPECT_TRUE(refuses("root: a\n", "command line: there is no key 'train.stepz'. Did you mean 'train.steps'?",
                        {"train.stepz=3"}));
    EXPECT_TRUE(refuses("root: a\nsteps: 3\n", "Did you mean 'train.steps'?"));
    EXPECT_TRUE(refuses("root: a\nfields: {p: {form: x}}\n", "Did you mean 'fields.p.from'?"));
    EXPECT_TRUE(refuses("root: a\nzzzzzz: 1\n", "Known: name, root, train"));
    EXPECT_TRUE(refuses("root: a\nfields: {p.mean: x}\n", "car.yaml:2:10: the name 'p.mean' has a point"));
}

TEST_F(SettingsTest, RefuseWhatIsNoValueOfTheKey)
{
    EXPECT_TRUE(refuses("root: a\ntrain: {steps: 0}\n", "train.steps is '0'; expected a whole number from 1 to 100"));
    EXPECT_TRUE(refuses("root: a\ntrain: {steps: 2.5}\n", "expected a whole number"));
    EXPECT_TRUE(refuses("root: a\ntrain: {rate: fast}\n", "train.rate is 'fast'; expected a number from 0"));
    EXPECT_TRUE(refuses("root: a\ntrain: {rate: [1, 2]}\n", "train.rate is a list; expected a number"));
    EXPECT_TRUE(refuses("root: a\ntrain: {loss: mze}\n", "did you mean 'mse'?"));
    EXPECT_TRUE(refuses("root: a\ntrain: {loss: huber}\n", "huber is not implemented. Available: mse, l1"));
    EXPECT_TRUE(refuses("root: a\ntrain: {fast: 1}\n", "expected true or false"));
    EXPECT_TRUE(refuses("root: a\ntrain: {fast: tru}\n", "did you mean 'true'?"));
    EXPECT_TRUE(refuses("root: a\ntrain: {radius: 0}\n", "train.radius is '0'; expected a number above 0"));
    EXPECT_TRUE(refuses("root: a\ntrain: {betas: [0.9]}\n", "train.betas is [0.9]; expected 2 numbers, or auto"));
    EXPECT_TRUE(refuses("root: a\ntrain: {betas: [auto, auto]}\n", "train.betas is [auto, auto]; expected 2 numbers"));
    EXPECT_EQ(read("root: a\ntrain: {betas: auto}\n").text("train.betas"), "auto");
    EXPECT_TRUE(refuses("root: a\nranks: many\n", "expected a whole number from 1, or auto"));
    EXPECT_TRUE(refuses("root: a\nshare: 1.5\n", "share is '1.5'"));
    EXPECT_TRUE(refuses("root: a\ninputs: [point]\n", "did you mean 'points'?"));
    EXPECT_TRUE(refuses("root: {x: 1}\n", "root has keys below it; expected a text"));
    EXPECT_TRUE(refuses("root: a\ntrain: 5\n", "train is no group of keys"));
}

TEST_F(SettingsTest, InsistOnWhatMustBeSet)
{
    EXPECT_TRUE(refuses("name: a\n", "root must be set, e.g. by adding root=... to the command line"));
    EXPECT_TRUE(refuses("root: ???\n", "car.yaml:1:7: root must be set"));
    EXPECT_EQ(read("root: ???\n", {"root=here"}).text("root"), "here");
}

TEST_F(SettingsTest, RefuseBrokenFilesAndWords)
{
    EXPECT_TRUE(refuses("root: [a\n", "this is no YAML"));
    EXPECT_TRUE(refuses("- a\n- b\n", "the file is no group of keys"));
    EXPECT_TRUE(refuses("---\nroot: a\n---\nname: b\n", "the file has 2 documents"));
    EXPECT_EQ(read("---\nroot: a\n---\n").text("root"), "a");
    for (const char* name : {"''", "~", "? {a: b}\n  "})
        EXPECT_TRUE(refuses(std::string("root: a\nfields:\n  ") + name + ": p\n", "a name below fields is no text"));
    EXPECT_TRUE(refuses("root: a\n", "'fast' is no setting; write key=value", {"fast"}));
    EXPECT_TRUE(throws_with<IoError>("absent.yaml cannot be read",
                                     [&] { Settings::read(folder_.path() / "absent.yaml", {}, kRules); }));
}

TEST_F(SettingsTest, FollowReferences)
{
    ::setenv("MESHARD_TEST_ROOT", "/cases", 1);
    const auto settings = read("name: car\nroot: ${env:MESHARD_TEST_ROOT}/${name}\n");

    EXPECT_EQ(settings.text("root"), "/cases/car");
    EXPECT_TRUE(refuses("root: ${env:MESHARD_TEST_ABSENT}\n", "environment variable MESHARD_TEST_ABSENT"));
    EXPECT_TRUE(refuses("root: ${nam}\n", "refers to 'nam'"));
    EXPECT_TRUE(refuses("root: a${root}\n", "without end"));
}

TEST_F(SettingsTest, LoseWhatTheCommandLineRemoves)
{
    const auto settings = read("root: a\nfields: {p: {from: x}, q: y}\nname: b\n", {"~fields", "fields.r=z", "~name"});

    EXPECT_EQ(settings.names_below("fields"), (std::vector<std::string>{"r"}));
    EXPECT_EQ(settings.text("name"), "run");
    EXPECT_TRUE(refuses("root: a\n", "'~field' removes nothing", {"~field"}));
    EXPECT_TRUE(refuses("root: a\nname: b\n", "'~name' stands after name=", {"name=c", "~name"}));
}

TEST_F(SettingsTest, OfAGroupGiveWayToAValueOfItsNameAndBack)
{
    const auto value = read("root: a\nfields: {p: {from: x}, q: y}\n", {"fields.p=z"});
    EXPECT_EQ(value.text("fields.p"), "z");
    EXPECT_FALSE(value.has("fields.p.from"));

    const auto group = read("root: a\nfields: {p: {from: x}, q: y}\n", {"fields.q.from=z"});
    EXPECT_EQ(group.text("fields.q.from"), "z");
    EXPECT_FALSE(group.has("fields.q"));
}

TEST_F(SettingsTest, TakeTextsOfTheCommandLineAsTheyStand)
{
    for (const std::string text : {"car #2", "a: b", "a, b", "- a", "@home", "50%", "*", "über & unter"}) {
        EXPECT_EQ(read("root: a\n", {"name=" + text}).text("name"), text);
    }
    EXPECT_EQ(read("root: a\n", {"name='car'"}).text("name"), "car");
    EXPECT_THROW(read("root: a\nname: b\n", {"name="}),
                 UsageError);  // what is meant is left open: an empty text, or none
}

TEST_F(SettingsTest, AreCheckedWithoutWhatTheCommandLineRemoves)
{
    const auto settings =
        read("root: a\nnobody: {knows: [these, {keys: 1}]}\nname: {is: no group}\n", {"~nobody", "~name", "name=b"});

    EXPECT_EQ(settings.text("name"), "b");
}

TEST_F(SettingsTest, KeepTheOrderOfFreeNames)
{
    const auto settings = read("root: a\nfields: {wss: {from: tau, kind: static}, pressure: p}\n");

    EXPECT_EQ(settings.names_below("fields"), (std::vector<std::string>{"wss", "pressure"}));
    EXPECT_EQ(settings.text("fields.wss.from"), "tau");
    EXPECT_EQ(settings.text("fields.pressure"), "p");
}

TEST_F(SettingsTest, ReadBackAnyText)
{
    for (const std::string text :
         {"Null", "NULL", "null", "~", "true", "1e-3", " a ", "tab\t", "two\nlines", "it's", "\"x\"", "a\\tb", "- b"}) {
        YAML::Emitter out;
        out << YAML::DoubleQuoted << text;
        const auto settings = read("root: " + std::string(out.c_str()) + "\nshare: [a, " + out.c_str() + "]\n");
        ASSERT_EQ(settings.text("root"), text);

        const auto copy = read(settings.to_yaml(true));

        EXPECT_EQ(copy.text("root"), text);
        EXPECT_EQ(copy.find("share")->values, (std::vector<std::string>{"a", text}));
    }
}

TEST_F(SettingsTest, ReadBackWhatTheyPrint)
{
    const auto settings = read("root: 'a: b # c'\ninputs: [points]\nfields: {p: {from: '001'}}\n", {"train.steps=7"});

    const auto copy = read(settings.to_yaml(true));

    EXPECT_EQ(copy.to_yaml(false), settings.to_yaml(false));
    EXPECT_EQ(copy.text("root"), "a: b # c");
    EXPECT_EQ(copy.text("fields.p.from"), "001");
    EXPECT_NE(settings.to_yaml(true).find("steps: 7   # command line"), std::string::npos);
}

}  // namespace
}  // namespace meshard
