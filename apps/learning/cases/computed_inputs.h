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

/// What models are told of points and no file says, as arrays of a mesh: made of the whole mesh, so that they do not depend on a cut, and kept with the
/// shards of a case. They are called as no array of a file is.
inline constexpr const char* kDistances = "meshard:sdf";
inline constexpr const char* kDirections = "meshard:wall_direction";
inline constexpr const char* kAreas = "meshard:areas";
inline constexpr const char* kPointNormals = "meshard:normals";

/// The surface whose distance `sdf` is: triangles that are right-handed seen from where distances are positive.
struct Wall {
    std::vector<double> vertices;         ///< (n, 3)
    std::vector<std::int64_t> triangles;  ///< (m, 3)
    SurfaceFacing facing = {};            ///< of the triangles
};

/// Of a file of its own, or, without one, of the volume's blocks `patches`, turned round, since patches look out of the volume.
/// @throws InvalidInput if there are no polygons, or neither file nor patches; as `read_blocks` and `turn_outward`.
Wall read_wall(const std::filesystem::path& file, const std::filesystem::path& volume, const std::vector<std::string>& patches, Orient orient = Orient::AsIs);

/// Adds the array `kDistances`: how far the place of each row (`row_places`) is from the wall, in the file's unit; negative inside, as the winding number
/// tells. On request also the array `kDirections`, of unit vectors from there to the nearest point of the wall; zero on the wall itself, to 1e-7 of the
/// wall's size. @throws InvalidInput, beginning with `where`, for coordinates that are not finite; in a build without Embree
void add_distances(Mesh& mesh, bool on_cells, const Wall& wall, const std::string& where, bool with_directions = false);

/// Adds the array `kAreas`: the area of each cell, or of each point its share of the cells around it, which hand equal parts to their points; divided by
/// the mean over all rows. @throws InvalidInput, beginning with `where`, if cells are no polygons or have no area at all.
void add_areas(Mesh& mesh, bool on_cells, const std::string& where);

/// Adds the array `kPointNormals` of points, unless the mesh has the point array `named`: unit vectors along the sum of the area vectors of the polygons
/// around each point (by the right-hand rule over their points), so that large polygons count more; zero where there are none or they cancel.
/// @throws InvalidInput, beginning with `where`, if cells are no polygons or there are none.
void add_point_normals(Mesh& mesh, const std::string& named, const std::string& where);

/// Which of them a case's mesh gets.
struct ComputedInputs {
    bool distances = false, areas = false;
    bool on_cells = true;
    std::vector<std::string> wall_patches = {};  ///< for `read_wall`
    bool directions = false;                     ///< to the wall
    std::string normals = {};                    ///< array of normals, which are turned with the polygons
    Orient orient = Orient::AsIs;                ///< of surfaces and walls
    std::string point_normals = {};              ///< the array that is read where a case has it, in place of computed ones; empty: no normals of points

    /// One line that says all of it; empty where nothing is computed.
    std::string description() const;
};

/// Name of the array of unit normals where a model is told normals of points; empty where it is not.
std::string point_normals_in_use(const DataConfig& data);

/// What the data say of polygons that point inward.
Orient orient_of(const DataConfig& data);

/// Those of the data's inputs that are made of the whole mesh, before it is cut.
ComputedInputs computed_inputs(const DataConfig& data);

/// How the surface of a case and its wall face, where it has them.
struct CaseFacing {
    SurfaceFacing surface, wall;
};

/// Turns the surface if asked, and adds those. @throws as the functions above
CaseFacing add_computed_inputs(Mesh& mesh, const ComputedInputs& inputs, const std::filesystem::path& wall, const std::filesystem::path& volume,
                               const std::string& where);

/// Takes them away again.
void remove_computed_inputs(Mesh& mesh);

/// (rows, 3): places of the first rows, in the file's frame; a cell's is the mean of its points. `rows` are their ids in the whole, for messages.
/// @throws InvalidInput, beginning with `where`, for a cell without points and coordinates that are not finite.
std::vector<double> row_places(const Mesh& mesh, std::span<const std::int64_t> rows, bool on_cells, const std::string& where);

}  // namespace meshard
