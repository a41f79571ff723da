// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/surface_facing.h"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace meshard {

/// How many of the surfaces that a model was trained on face which way.
class FacingCounts {
public:
    void add(Facing facing) { ++counts_[static_cast<std::size_t>(facing)]; }
    std::int64_t count(Facing facing) const { return counts_[static_cast<std::size_t>(facing)]; }

    /// That of all surfaces of which it is known; Mixed if they differ.
    Facing usual() const;

    nlohmann::json to_json() const;
    static FacingCounts from_json(const nlohmann::json& json);  ///< none of what earlier versions wrote, which do not say it

private:
    std::array<std::int64_t, 4> counts_{};
};

/// Of the surfaces and the walls of a model's training cases.
struct TrainedFacing {
    FacingCounts surfaces, walls;
};

/// A sentence if a surface does not face as those of the training cases, or, where that is not known, not outward; else empty. `advice` is what to do about
/// it where turning the surface outward helps.
std::string facing_fault(const SurfaceFacing& found, const FacingCounts& trained, const std::string& advice);

/// What the shards of a case say of its surface and its wall (`ShardsInfo::options`), for `facing_in`.
inline constexpr const char* kSurfaceFacing = "surface_facing";
inline constexpr const char* kWallFacing = "wall_facing";

/// Of the cases with these shards. Those that earlier versions made do not say it.
TrainedFacing facing_in(std::span<const std::filesystem::path> shards);

/// A sentence if surfaces or walls of the training cases are mixed or face inward, else empty.
std::string facing_fault(const TrainedFacing& trained);

}  // namespace meshard
