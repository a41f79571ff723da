// SPDX-License-Identifier: Apache-2.0
#include "ops/surface/surface_search.h"

#include "partition/error.h"
#include "partition/mesh/vector_algebra.h"

#include <algorithm>
#include <cmath>
#include <embree3/rtcore.h>
#include <limits>

namespace meshard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rounds to the nearest float that is not above, or not below, the number.
float rounded_down(double x)
{
    return std::nextafterf(static_cast<float>(x), -kInfinity);
}
float rounded_up(double x)
{
    return std::nextafterf(static_cast<float>(x), kInfinity);
}

struct Query {
    const TriangleSurface* surface;
    Vector3 point;
    double bound_squared;  // farther triangles are no results
    double shift;          // distance between the point and its rounding to single precision, which Embree uses
    SurfaceSearch::Hit hit;
};

/// A search radius for Embree that includes the box of every triangle within `distance` of the query, considering all
/// rounding errors.
float radius_of(double distance, double shift)
{
    return rounded_up((distance + shift) * (1 + 1e-6));
}

bool look_at_triangle(RTCPointQueryFunctionArguments* arguments)
{
    auto& query = *static_cast<Query*>(arguments->userPtr);
    const auto face = static_cast<std::int64_t>(arguments->primID);
    const auto nearest = query.surface->nearest(face, query.point);
    const auto& best = query.hit;
    if (nearest.distance_squared > query.bound_squared) return false;
    if (nearest.distance_squared == query.bound_squared && best.face >= 0 && face > best.face) return false;
    query.bound_squared = nearest.distance_squared;
    query.hit = {face, nearest};
    const float radius = radius_of(std::sqrt(nearest.distance_squared), query.shift);
    if (!(radius < arguments->query->radius)) return false;
    arguments->query->radius = radius;
    return true;
}

}  // namespace

bool has_surface_search()
{
    return true;
}

struct SurfaceSearch::Impl {
    const TriangleSurface& surface;
    Vector3 centre{};  // origin of the coordinates given to Embree, which reduces rounding in single precision
    RTCDevice device = nullptr;
    RTCScene scene = nullptr;

    explicit Impl(const TriangleSurface& surface_) : surface(surface_) {}
    ~Impl()
    {
        if (scene) rtcReleaseScene(scene);
        if (device) rtcReleaseDevice(device);
    }
};

SurfaceSearch::SurfaceSearch(const TriangleSurface& surface)
{
    auto impl = std::make_unique<Impl>(surface);
    Vector3 low = surface.corner(0, 0), high = low;
    for (std::int64_t f = 0; f < surface.num_faces(); ++f) {
        for (int k = 0; k < 3; ++k) {
            const Vector3 x = surface.corner(f, k);
            for (int d = 0; d < 3; ++d) {
                low[d] = std::min(low[d], x[d]);
                high[d] = std::max(high[d], x[d]);
            }
        }
    }
    impl->centre = 0.5 * (low + high);
    impl->device = rtcNewDevice(nullptr);
    if (!impl->device)
        throw InvalidInput("signed_distance: Embree does not start on this machine (error {}).",
                           static_cast<int>(rtcGetDeviceError(nullptr)));
    impl->scene = rtcNewScene(impl->device);
    rtcSetSceneFlags(impl->scene, RTC_SCENE_FLAG_ROBUST);
    const auto geometry = rtcNewGeometry(impl->device, RTC_GEOMETRY_TYPE_USER);
    rtcSetGeometryUserPrimitiveCount(geometry, static_cast<unsigned>(surface.num_faces()));
    rtcSetGeometryUserData(geometry, impl.get());
    rtcSetGeometryBoundsFunction(
        geometry,
        [](const RTCBoundsFunctionArguments* arguments) {
            const auto& self = *static_cast<const Impl*>(arguments->geometryUserPtr);
            const Vector3 a = self.surface.corner(arguments->primID, 0) - self.centre,
                          b = self.surface.corner(arguments->primID, 1) - self.centre,
                          c = self.surface.corner(arguments->primID, 2) - self.centre;
            auto& bounds = *arguments->bounds_o;
            bounds.lower_x = rounded_down(std::min({a[0], b[0], c[0]}));
            bounds.lower_y = rounded_down(std::min({a[1], b[1], c[1]}));
            bounds.lower_z = rounded_down(std::min({a[2], b[2], c[2]}));
            bounds.upper_x = rounded_up(std::max({a[0], b[0], c[0]}));
            bounds.upper_y = rounded_up(std::max({a[1], b[1], c[1]}));
            bounds.upper_z = rounded_up(std::max({a[2], b[2], c[2]}));
        },
        nullptr);
    rtcCommitGeometry(geometry);
    rtcAttachGeometry(impl->scene, geometry);
    rtcReleaseGeometry(geometry);
    rtcCommitScene(impl->scene);
    if (const auto error = rtcGetDeviceError(impl->device); error != RTC_ERROR_NONE) {
        throw InvalidInput("signed_distance: Embree could not sort {} triangles (error {}). Is there enough memory?",
                           surface.num_faces(), static_cast<int>(error));
    }
    impl_ = std::move(impl);
}

SurfaceSearch::~SurfaceSearch() = default;

SurfaceSearch::Hit SurfaceSearch::nearest(const Vector3& query, double max_distance) const
{
    const Vector3 position = query - impl_->centre;
    RTCPointQuery domain{};
    domain.x = static_cast<float>(position[0]);
    domain.y = static_cast<float>(position[1]);
    domain.z = static_cast<float>(position[2]);
    const Vector3 taken{domain.x, domain.y, domain.z};
    Query state{&impl_->surface, query, max_distance * max_distance, norm(position - taken), {}};
    domain.radius = radius_of(max_distance, state.shift);
    RTCPointQueryContext context;
    rtcInitPointQueryContext(&context);
    rtcPointQuery(impl_->scene, &domain, &context, look_at_triangle, &state);
    return state.hit;
}

}  // namespace meshard
