// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/mesh/surface_forces.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

TEST(SurfaceForces, PressAgainstTheNormalAndPullAlongTheTraction)
{
    const std::vector<Vector3> areas{{0, 0, 2}, {3, 0, 4}};
    const std::vector<Vector3> centroids{{1, 0, 0}, {0, 1, 0}};
    const std::vector<double> pressures{10, -1};
    const std::vector<Vector3> tractions{{1, 0, 0}, {0, 0, 2}};

    const SurfaceForces forces = integrate_forces(areas, centroids, pressures, tractions);

    EXPECT_EQ(forces.area, 7);
    EXPECT_EQ(forces.pressure_force, (Vector3{3, 0, -16}));
    EXPECT_EQ(forces.viscous_force, (Vector3{2, 0, 10}));
    // (1 0 0) x (0 0 -20) + (0 1 0) x (3 0 4), and (1 0 0) x (2 0 0) + (0 1 0) x (0 0 10)
    EXPECT_EQ(forces.pressure_moment, (Vector3{4, 20, -3}));
    EXPECT_EQ(forces.viscous_moment, (Vector3{10, 0, 0}));
}

TEST(SurfaceForces, TakeMomentsAboutTheCentre)
{
    const std::vector<Vector3> areas{{0, 0, 1}};
    const std::vector<Vector3> centroids{{5, 6, 7}};
    const std::vector<double> pressures{-1};

    const SurfaceForces forces = integrate_forces(areas, centroids, pressures, {}, {4, 6, 0});

    EXPECT_EQ(forces.pressure_moment, (Vector3{0, -1, 0}));
    EXPECT_EQ(forces.viscous_force, (Vector3{0, 0, 0}));
}

TEST(SurfaceForces, AreNothingWithoutCells)
{
    EXPECT_EQ(integrate_forces({}, {}, {}, {}).area, 0);
}

TEST(SurfaceForces, RefuseSizesThatDisagree)
{
    const std::vector<Vector3> one(1), two(2);
    const std::vector<double> number(1);

    EXPECT_TRUE(throws_with<InvalidInput>("2 centroids for 1 cells", [&] { integrate_forces(one, two, number, {}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("1 pressures for 2 cells", [&] { integrate_forces(two, two, number, {}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("2 tractions for 1 cells", [&] { integrate_forces(one, one, number, two); }));
}

}  // namespace
}  // namespace meshard
