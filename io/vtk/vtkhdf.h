// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "io/bytes/mapped_file.h"
#include "io/vtk/grid_file.h"
#include "io/vtk/mesh_blocks.h"
#include "partition/mesh/mesh.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace meshard {

/// Reads a VTKHDF file (versions 1 and 2): an unstructured grid or polygonal data, whose partitions are merged as the
/// pieces of a .pvtu are; of a collection (`PartitionedDataSetCollection`, `MultiBlockDataSet`) each member is a block.
/// Of a series in time the latest step, or the one of `options.time`, which goes into the field array `TimeValue`.
/// @throws IoError if it is damaged, of another type, or this build has no HDF5.
std::vector<MeshBlock> read_vtkhdf(const std::filesystem::path& path, const ReadOptions& options);

/// The times of the steps of a series, in the file's order; of a file without steps the value of its field array
/// `TimeValue`, if it has one. @throws IoError as `read_vtkhdf`, and if the members of a collection have different
/// times.
std::vector<double> vtkhdf_times(const std::filesystem::path& path);

/// The arrays of a file with one partition, as views into the file.
struct VtkHdfArrays {
    struct Cells {
        int polydata_group = -1;          ///< rank as in `polydata_group`; -1 for an unstructured grid
        DataArray offsets, connectivity;  ///< one offset more than cells
    };
    MeshKind kind = MeshKind::Unstructured;
    DataArray points, types;
    std::vector<Cells> cells;
    std::vector<DataArray> point_data, cell_data, field_data;
};

/// Maps the arrays as views into `file`, the mapping of `path`.
/// @throws IoError, with a message that begins with `where`, if a data set cannot be mapped, or there are several
/// partitions, steps in time or polyhedra.
VtkHdfArrays map_vtkhdf(const std::filesystem::path& path, const std::shared_ptr<const MappedFile>& file,
                        const std::string& where);

/// Opens image data of which boxes are read (hyperslabs). Called by `GridFile::open`.
/// @throws IoError if it is missing, damaged or no image data, or this build has no HDF5
std::unique_ptr<GridFile> open_vtkhdf_grid(const std::filesystem::path& path);

/// Writes `pieces` (of one kind, with the same arrays; one at least) as the partitions of one VTKHDF file. The version
/// is the lowest that covers the content: 1.0 for unstructured grids, 2.0 for polygonal data, 2.5 with polyhedra. Roles
/// of arrays are attributes of their group; `Units` and `ComponentNames` attributes of the array, which other readers
/// ignore. Field data are those of the first piece. Atomic. Zlib compresses in chunks.
/// @throws InvalidInput for lz4, and for cells that polygonal data cannot hold
/// @throws IoError if it cannot be written, or this build has no HDF5.
void write_vtkhdf(const std::filesystem::path& path, std::span<const Mesh> pieces, const WriteOptions& options);

/// Writes states that have the same cells and arrays as one VTKHDF file with steps (version 2.0): cells once, points
/// and arrays once for as long as they stay the same. Field data are left out. Two states are in memory. Atomic.
/// @param times   one a state, ascending   @param state   returns a state; called once for each, in order
/// @throws InvalidInput if there is none, or states differ in cells, number of points or arrays
/// @throws IoError if it cannot be written, or this build has no HDF5.
void write_vtkhdf_series(const std::filesystem::path& path, std::span<const double> times,
                         const std::function<Mesh(std::size_t)>& state);

}  // namespace meshard
