// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/surface_orientation.h"
#include "apps/learning/settings/training_config.h"
#include "partition/mesh/mesh.h"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Names of the mesh arrays that hold computed inputs. They are computed from the whole mesh, so that they do not
/// depend on the cut, and kept with the case's shards. No array of a file has such a name.
inline constexpr const char* kDistances = "meshard:sdf";
inline constexpr const char* kDirections = "meshard:wall_direction";
inline constexpr const char* kAreas = "meshard:areas";
inline constexpr const char* kPointNormals = "meshard:normals";

/// Places nearer to a wall than this share of its size count as on it, since rounding would decide their direction.
inline constexpr double kOnTheWall = 1e-7;

/// The surface from which `sdf` is measured. Its triangles are right-handed seen from where distances are positive.
struct Wall {
    std::vector<double> vertices;         ///< (n, 3)
    std::vector<std::int64_t> triangles;  ///< (m, 3)
    SurfaceFacing facing = {};            ///< how the triangles face
};

/// Reads the wall from its file, or else from the blocks `patches` of the volume's file. Patches look out of the
/// volume, so they are turned round.
/// @throws InvalidInput if there are no polygons, or neither file nor patches; as `read_blocks` and `turn_outward`.
Wall read_wall(const std::filesystem::path& file, const std::filesystem::path& volume,
               const std::vector<std::string>& patches, Orient orient = Orient::AsIs);

/// Adds the array `kDistances`: the distance of each row's place (`row_places`) from the wall, in the file's unit,
/// negative inside by the winding number. On request also adds the array `kDirections`: unit vectors from the place to
/// the nearest point of the wall, zero on the wall itself (`kOnTheWall`).
/// @throws InvalidInput, beginning with `where`, for coordinates that are not finite; in a build without Embree
void add_distances(Mesh& mesh, bool on_cells, const Wall& wall, const std::string& where, bool with_directions = false);

/// Adds the array `kAreas`, divided by its mean over all rows: the area of each cell, or for points the sum of the
/// equal shares that cells hand to their points.
/// @throws InvalidInput, beginning with `where`, if cells are no polygons or have no area at all.
void add_areas(Mesh& mesh, bool on_cells, const std::string& where);

/// Adds the array `kPointNormals`, unless the mesh has the point array `named`: unit vectors along the sum of the area
/// vectors of the polygons around each point (by the right-hand rule over their points), so that large polygons count
/// more; zero if there are none or they cancel.
/// @throws InvalidInput, beginning with `where`, if cells are no polygons or there are none.
void add_point_normals(Mesh& mesh, const std::string& named, const std::string& where);

/// Says which inputs are computed for a case's mesh, and how.
struct ComputedInputs {
    bool distances = false, areas = false;
    bool on_cells = true;
    std::vector<std::string> wall_patches = {};  ///< for `read_wall`
    bool directions = false;                     ///< adds directions to the wall
    std::string normals = {};                    ///< the array of normals that are turned together with the polygons
    Orient orient = Orient::AsIs;                ///< whether surfaces and walls are turned
    std::string point_normals = {};              ///< array of a case to use in place of computed normals; empty: none

    /// Returns one line that names all settings; empty if nothing is computed.
    std::string description() const;
};

/// Returns the name of the array of point normals if they are an input, else an empty text.
std::string point_normals_in_use(const DataConfig& data);

/// Returns what the configuration wants done with polygons that point inward.
Orient orient_of(const DataConfig& data);

/// Returns which inputs are computed from the whole mesh before it is cut.
ComputedInputs computed_inputs(const DataConfig& data);

/// How a case's surface and wall face, if it has them.
struct CaseFacing {
    SurfaceFacing surface, wall;
};

/// Turns the surface if wanted, and adds the computed arrays. @throws as the functions above
CaseFacing add_computed_inputs(Mesh& mesh, const ComputedInputs& inputs, const std::filesystem::path& wall,
                               const std::filesystem::path& volume, const std::string& where);

/// Removes the computed arrays.
void remove_computed_inputs(Mesh& mesh);

/// Returns the places of the first rows in the file's frame: (rows, 3). A cell's place is the mean of its points.
/// @param rows   the rows' ids in the whole, for messages
/// @throws InvalidInput, beginning with `where`, for a cell without points and coordinates that are not finite.
std::vector<double> row_places(const Mesh& mesh, std::span<const std::int64_t> rows, bool on_cells,
                               const std::string& where);

}  // namespace meshard
