// SPDX-License-Identifier: Apache-2.0
#include "partition/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace meshard {
namespace {

std::string nearest_field(std::string_view name)
{
    const std::vector<std::string> fields{"p", "U", "wallShearStress", "pressure", "epochs", "learning_rate"};
    return nearest_name(name, fields);
}

TEST(NearestName, ForgivesSlips)
{
    EXPECT_EQ(nearest_field("wallShearStres"), "wallShearStress");
    EXPECT_EQ(nearest_field("wallshearstress"), "wallShearStress");
    EXPECT_EQ(nearest_field("presure"), "pressure");
    EXPECT_EQ(nearest_field("perssure"), "pressure");
    EXPECT_EQ(nearest_field("epoch"), "epochs");
    EXPECT_EQ(nearest_field("leaning-rate"), "learning_rate");
    EXPECT_EQ(nearest_field("u"), "U");
}

TEST(NearestName, KnowsShortenedAndLengthenedNames)
{
    EXPECT_EQ(nearest_field("pMean"), "p");
    EXPECT_EQ(nearest_name("--num", std::vector<std::string>{"--dump", "--num-parts"}), "--num-parts");
    EXPECT_EQ(nearest_field("learning"), "learning_rate");
}

TEST(NearestName, StaysSilentOnOtherWords)
{
    EXPECT_EQ(nearest_field("temperature"), "");
    EXPECT_EQ(nearest_field("q"), "");
    EXPECT_EQ(nearest_field(""), "");
    EXPECT_EQ(nearest_name("p", {}), "");
}

}  // namespace
}  // namespace meshard
