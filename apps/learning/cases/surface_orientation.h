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

/// Counts which way the surfaces face on which a model was trained.
class FacingCounts {
public:
    void add(Facing facing) { ++counts_[static_cast<std::size_t>(facing)]; }
    std::int64_t count(Facing facing) const { return counts_[static_cast<std::size_t>(facing)]; }

    /// Returns the way that all surfaces with a known facing face; Mixed if they differ.
    Facing usual() const;

    nlohmann::json to_json() const;
    static FacingCounts from_json(const nlohmann::json& json);  ///< empty for models of earlier versions

private:
    std::array<std::int64_t, 4> counts_{};
};

/// How the surfaces and the walls of a model's training cases face.
struct TrainedFacing {
    FacingCounts surfaces, walls;
};

/// Returns a sentence if a surface does not face as those of the training cases, or, if theirs is not known, not
/// outward; else an empty text. `advice` says what to do where turning the surface outward helps.
std::string facing_fault(const SurfaceFacing& found, const FacingCounts& trained, const std::string& advice);

/// Names of the options (`ShardsInfo::options`) with which a case's shards say how its surface and its wall face.
inline constexpr const char* kSurfaceFacing = "surface_facing";
inline constexpr const char* kWallFacing = "wall_facing";

/// Counts how the cases with these shards face. Shards of earlier versions do not say it and are not counted.
TrainedFacing facing_in(std::span<const std::filesystem::path> shards);

/// Returns a sentence if surfaces or walls of the training cases are mixed or face inward, else an empty text.
std::string facing_fault(const TrainedFacing& trained);

}  // namespace meshard
