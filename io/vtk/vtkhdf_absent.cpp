// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/array_grid.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"

namespace meshard {

namespace {

[[noreturn]] void refuse(const std::filesystem::path& path)
{
    throw IoError(
        "read_mesh: {} needs HDF5, and this build has none. Install libhdf5-dev and build again, or use .vtu or .vtp.",
        path.string());
}

}  // namespace

std::vector<MeshBlock> read_vtkhdf(const std::filesystem::path& path, const ReadOptions&)
{
    refuse(path);
}

std::vector<double> vtkhdf_times(const std::filesystem::path& path)
{
    refuse(path);
}

VtkHdfArrays map_vtkhdf(const std::filesystem::path& path, const std::shared_ptr<const MappedFile>&, const std::string&)
{
    refuse(path);
}

std::unique_ptr<GridFile> open_hdf5_grid(const std::filesystem::path& path, std::optional<double>)
{
    refuse(path);
}

std::unique_ptr<GridFile> open_vtkhdf_grid(const std::filesystem::path& path)
{
    refuse(path);
}

void write_vtkhdf(const std::filesystem::path& path, std::span<const Mesh>, const WriteOptions&)
{
    refuse(path);
}

void write_vtkhdf_series(const std::filesystem::path& path, std::span<const double>,
                         const std::function<Mesh(std::size_t)>&)
{
    refuse(path);
}

}  // namespace meshard
