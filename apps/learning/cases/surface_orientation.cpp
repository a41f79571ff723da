// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/surface_orientation.h"

#include "io/shards/manifest.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace meshard {
namespace {

constexpr std::array kFacings{Facing::Unknown, Facing::Outward, Facing::Inward, Facing::Mixed};

Facing facing_of(const std::string& word)
{
    for (const auto facing : kFacings)
        if (word == to_string(facing)) return facing;
    return Facing::Unknown;
}

std::string fault_of(const FacingCounts& counts, const std::string& what)
{
    const auto inward = counts.count(Facing::Inward), mixed = counts.count(Facing::Mixed),
               outward = counts.count(Facing::Outward);
    const auto known = inward + mixed + outward;
    if (inward + mixed == 0) return {};
    auto text = fmt::format("of {} {}{} of training cases, ", known, what, known == 1 ? "" : "s");
    if (inward > 0) text += fmt::format("{} point{} inward", inward, inward == 1 ? "s" : "");
    if (mixed > 0)
        text += fmt::format("{}{} {} turned partly inward", inward > 0 ? ", " : "", mixed, mixed == 1 ? "is" : "are");
    if (outward > 0) text += fmt::format(" and {} point{} outward", outward, outward == 1 ? "s" : "");
    return text;
}

}  // namespace

Facing FacingCounts::usual() const
{
    Facing usual = Facing::Unknown;
    for (const auto facing : {Facing::Outward, Facing::Inward, Facing::Mixed}) {
        if (count(facing) == 0) continue;
        usual = usual == Facing::Unknown ? facing : Facing::Mixed;
    }
    return usual;
}

nlohmann::json FacingCounts::to_json() const
{
    auto json = nlohmann::json::object();
    for (const auto facing : kFacings)
        if (count(facing) > 0) json[to_string(facing)] = count(facing);
    return json;
}

FacingCounts FacingCounts::from_json(const nlohmann::json& json)
{
    FacingCounts counts;
    if (!json.is_object()) return counts;
    for (const auto facing : kFacings)
        counts.counts_[static_cast<std::size_t>(facing)] = json.value(to_string(facing), std::int64_t{0});
    return counts;
}

std::string facing_fault(const SurfaceFacing& found, const FacingCounts& trained, const std::string& advice)
{
    const auto facing = found.facing(), usual = trained.usual();
    if (facing == Facing::Unknown || (facing == usual && facing != Facing::Mixed)) return {};
    if (usual == Facing::Unknown || usual == Facing::Mixed)
        return facing == Facing::Outward ? "" : describe(found) + ". " + advice;
    const bool helps = usual == Facing::Outward;
    return fmt::format("{}, and those of the training cases point {}: the model sees it inside out. {}",
                       describe(found), helps ? "outwards" : "inwards",
                       helps ? advice : "Turn the surface, or train with data.orient=outward.");
}

TrainedFacing facing_in(std::span<const std::filesystem::path> shards)
{
    TrainedFacing trained;
    for (const auto& folder : shards)
        for (const auto& [name, text] : read_manifest(folder).info.options) {
            if (name == kSurfaceFacing) trained.surfaces.add(facing_of(text));
            if (name == kWallFacing) trained.walls.add(facing_of(text));
        }
    return trained;
}

std::string facing_fault(const TrainedFacing& trained)
{
    auto text = fault_of(trained.surfaces, "surface");
    const auto of_walls = fault_of(trained.walls, "wall");
    if (!text.empty() && !of_walls.empty()) text += "; ";
    text += of_walls;
    return text.empty() ? text
                        : text + ". Normals, signs of distances and forces follow the order of the polygons' points; "
                                 "data.orient=outward turns them.";
}

}  // namespace meshard
