// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "io/foam/foam_file.h"
#include "io/foam/patch_geometry.h"
#include "io/vtk/mesh_blocks.h"
#include "partition/csr.h"
#include "partition/mesh/data_array.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// A folder of fields, e.g. `0.5`.
struct FoamTime {
    double value = 0;
    std::filesystem::path path;
};

struct FoamPatch {
    std::string name, type;
    std::int64_t start = 0, num_faces = 0;
    std::vector<std::string> groups;
    std::int32_t neighbor = -1;  ///< for a patch between processors: the other processor
};

/// Numbers of a processor's points, faces and cells in the whole mesh; faces from 0.
struct FoamAddressing {
    std::vector<std::int64_t> points, faces, cells;
};

/// Reads one region of an OpenFOAM case, or of one processor of a decomposed case.
class FoamRegion {
public:
    /// @param times   those up to the chosen one, which is the last
    FoamRegion(std::filesystem::path folder, std::string region, std::vector<FoamTime> times,
               const ReadOptions& options);

    /// The wanted blocks among `internalMesh` and `boundary/<patch>`, with their fields; without patches between
    /// processors.
    /// @throws IoError if a file is missing or damaged.
    std::vector<MeshBlock> read();

    /// Adds the array `GlobalPointIds` to the blocks from `read`: `ids` of the region's points, by which blocks share
    /// points.
    void name_points(std::vector<MeshBlock>& blocks, std::span<const std::int64_t> ids) const;

    /// Adds the array `GlobalCellIds`: ids of cells for the inner mesh, of faces for patches.
    void name_cells(std::vector<MeshBlock>& blocks, const FoamAddressing& addressing) const;

    // Valid after `read`:
    std::int64_t num_points() const { return points_.num_rows(); }
    std::int64_t num_cells() const { return num_cells_; }
    std::int64_t num_faces() const { return faces_.num_rows(); }
    std::vector<std::string> block_names() const;
    std::span<const FoamPatch> processor_patches() const { return processor_patches_; }
    std::span<const std::int32_t> face(std::int64_t number) const { return faces_.row(number); }
    const std::string& inner_name() const { return inner_name_; }  ///< name of the block of cells

    /// The ids that decomposePar stored (`pointProcAddressing`, ...); empty lists if there are none. @throws IoError if
    /// they do not fit the mesh.
    FoamAddressing addressing() const;

private:
    bool is_wanted_or_default(const std::string& name, bool by_default) const;
    void warn(const std::string& text) const;
    std::filesystem::path mesh_file(const std::string& name) const;
    /// The newest file that is not older than the faces: one that is, is of another mesh.
    std::filesystem::path file_of_faces(const std::string& name) const;
    std::string name_of(const std::string& patch) const;

    void read_poly_mesh();
    void check_cells(const FoamFile& owner_file, const FoamFile& neighbour_file);
    void read_patches();
    std::vector<std::int64_t> read_addressing(const std::string& name, std::int64_t num_rows) const;
    void add_case_data(Mesh& mesh) const;
    Mesh make_cells();
    void add_zones(Mesh& mesh) const;
    Mesh make_patch(std::size_t index);
    void read_fields(Mesh& cells, bool wants_cells);
    void read_field(FoamFile& file, const std::string& name, Mesh& cells, bool wants_cells);
    DataArray values_on(const FoamPatch& patch, const FoamFile& file, const std::string& name, const FoamEntry& field,
                        const DataArray& inside);
    std::optional<DataArray> flux_through(const FoamPatch& patch, const std::string& name);

    std::filesystem::path folder_;
    std::string region_, inner_name_;
    std::vector<FoamTime> times_;
    const ReadOptions& options_;
    DataArray points_;
    Csr faces_;
    std::vector<std::int32_t> owner_, neighbour_;
    std::int64_t num_cells_ = 0;
    std::vector<FoamPatch> patches_, processor_patches_;
    std::vector<Mesh> patch_meshes_;
    std::vector<std::vector<std::int32_t>> patch_points_;  // points of each patch of the whole region
    std::vector<std::int32_t> local_points_;
    std::map<std::string, PatchGeometry> geometries_;         // keyed by patch
    std::map<std::string, std::optional<FoamEntry>> fluxes_;  // keyed by name, read when a condition needs them
};

}  // namespace meshard
