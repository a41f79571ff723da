// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "ops/surface_distance.h"
#include "ops/surface_search.h"
#include "tests/support/fixture_cases.h"

namespace meshard {
namespace {

TEST(SurfaceDistanceFixtures, EqualReferenceNumbers)
{
    if (!has_surface_search()) GTEST_SKIP() << "built without Embree";
    int num_cases = 0;
    for (const auto& fixture : test::fixture_cases()) {
        const auto description = fixture.description();
        if (description.value("operation", "") != "signed_distance_field") continue;
        ++num_cases;
        SCOPED_TRACE(fixture.name);
        const auto tensors = fixture.tensors();
        for (const auto& [sign, name] : {std::pair(SurfaceSign::PseudoNormal, "normal."), std::pair(SurfaceSign::WindingNumber, "winding.")}) {
            const auto found = signed_distance(tensors.at("input.vertices"), tensors.at("input.faces"), tensors.at("input.queries"),
                                               {.sign = sign, .max_distance = description.at("max_dist").get<double>()});

            const auto expected = tensors.at(std::string(name) + "sdf"), points = tensors.at(std::string(name) + "hit_points");
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
    if (num_cases == 0) GTEST_SKIP() << "no reference numbers of signed distances";
}

}  // namespace
}  // namespace meshard
