// SPDX-License-Identifier: Apache-2.0
#include "ops/surface/surface_search.h"
#include "partition/error.h"

namespace meshard {

struct SurfaceSearch::Impl {};

bool has_surface_search()
{
    return false;
}

SurfaceSearch::SurfaceSearch(const TriangleSurface&)
{
    throw InvalidInput("signed_distance: this program was built without Embree. Install libembree-dev, and configure "
                       "and build again.");
}

SurfaceSearch::~SurfaceSearch() = default;

SurfaceSearch::Hit SurfaceSearch::nearest(const Vector3&, double) const
{
    return {};
}

}  // namespace meshard
