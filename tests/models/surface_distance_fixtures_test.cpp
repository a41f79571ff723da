// SPDX-License-Identifier: Apache-2.0
#include "ops/surface/surface_distance.h"
#include "ops/surface/surface_search.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/fixture_tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace meshard {
namespace {

class SurfaceDistanceFixtures : public testing::TestWithParam<test::FixtureCase> {};

TEST_P(SurfaceDistanceFixtures, EqualReferenceNumbers)
{
    if (!has_surface_search()) GTEST_SKIP() << "built without Embree";
    const auto description = GetParam().description();
    const auto tensors = test::read_tensors(GetParam().arrays_path());
    for (const auto& [sign, name] :
         {std::pair(SurfaceSign::PseudoNormal, "normal."), std::pair(SurfaceSign::WindingNumber, "winding.")}) {
        const auto found =
            signed_distance(tensors.at("input.vertices"), tensors.at("input.faces"), tensors.at("input.queries"),
                            {.sign = sign, .max_distance = description.at("max_dist").get<double>()});

        const auto expected = tensors.at(std::string(name) + "sdf"),
                   points = tensors.at(std::string(name) + "hit_points");
        const auto is_hit = expected.isnan().logical_not();
        EXPECT_TRUE(at::equal(found.distances.isnan().logical_not(), is_hit));
        EXPECT_TRUE(at::equal(found.faces.ge(0), is_hit));
        const auto error = (found.distances - expected).abs().masked_select(is_hit);
        EXPECT_TRUE((error <= 1e-6 + 2e-7 * expected.masked_select(is_hit).abs()).all().item<bool>()) << error.max();
        EXPECT_TRUE(at::equal(found.distances.sign().masked_select(is_hit), expected.sign().masked_select(is_hit)));
        const auto hits = is_hit.unsqueeze(1).expand_as(points);
        EXPECT_LE((found.points - points).abs().masked_select(hits).max().item<double>(), 1e-5);
    }
}

INSTANTIATE_TEST_SUITE_P(All, SurfaceDistanceFixtures,
                         testing::ValuesIn(test::fixture_cases({"signed_distance_field"})), test::NameOfFixture());

}  // namespace
}  // namespace meshard
