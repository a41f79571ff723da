// SPDX-License-Identifier: Apache-2.0
#include "io/shards/shards_writer.h"

#include "io/bytes/content_hash.h"
#include "io/shards/piece_io.h"
#include "io/shards/subdomain_io.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fcntl.h>
#include <limits>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace meshard {

namespace {

std::string piece_name(std::int32_t part, MeshKind kind)
{
    return fmt::format("pieces/mesh_{:04}{}", part, extension_of(kind));
}

constexpr double infinity = std::numeric_limits<double>::infinity();

std::array<double, 6> bounds_of(const DataArray& points)
{
    std::array<double, 6> bounds{infinity, -infinity, infinity, -infinity, infinity, -infinity};
    with_scalar_type(points.type(), [&]<class T>() {
        const auto values = points.values<T>();
        for (std::size_t i = 0; i < values.size(); ++i) {
            const auto value = static_cast<double>(values[i]);
            if (!std::isfinite(value)) continue;
            bounds[2 * (i % 3)] = std::min(bounds[2 * (i % 3)], value);
            bounds[2 * (i % 3) + 1] = std::max(bounds[2 * (i % 3) + 1], value);
        }
    });
    return bounds;
}

std::array<double, 6> bounds_of(const std::vector<WrittenShard>& shards)
{
    std::array<double, 6> bounds{infinity, -infinity, infinity, -infinity, infinity, -infinity};
    for (const WrittenShard& shard : shards)
        for (std::size_t i = 0; i < 6; ++i)
            bounds[i] = i % 2 == 0 ? std::min(bounds[i], shard.bounds[i]) : std::max(bounds[i], shard.bounds[i]);
    if (bounds[0] > bounds[1] || bounds[2] > bounds[3] || bounds[4] > bounds[5]) bounds.fill(0);
    return bounds;
}

}  // namespace

PartialFolder::PartialFolder(const std::filesystem::path& dir) : final_(std::filesystem::absolute(dir))
{
    if (!final_.has_filename()) final_ = final_.parent_path();
    std::error_code error;
    // Links are followed before `..`, as the system does, but for the folder's own name.
    final_ = std::filesystem::weakly_canonical(final_.parent_path()) / final_.filename();
    if (final_.filename() == ".." || final_.filename() == ".") final_ = std::filesystem::weakly_canonical(final_);
    if (std::filesystem::exists(std::filesystem::symlink_status(final_, error)))
        throw IoError("save_subdomains: {} exists; choose another name or remove it first.", dir.string());
    partial_ = final_;
    partial_ += fmt::format(".partial-{}", ::getpid());
    above_.emplace(final_);
    std::filesystem::remove_all(partial_, error);
    std::filesystem::create_directory(partial_, error);
    if (error)
        throw IoError("save_subdomains: cannot create the folder {}: {}. Choose a place that you may write to.",
                      dir.string(), error.message());
}

PartialFolder::~PartialFolder()
{
    std::error_code ignored;
    if (!is_committed_) std::filesystem::remove_all(partial_, ignored);
}

void PartialFolder::commit()
{
    throw_if_interrupted();
    std::error_code error;
    // One sync for all pieces instead of one for each piece.
    const int descriptor = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool is_on_disk = descriptor >= 0 && ::syncfs(descriptor) == 0;
    if (descriptor >= 0) ::close(descriptor);
    if (!is_on_disk) throw IoError("save_subdomains: cannot sync {} to disk.", final_.string());
    const bool was_free = !std::filesystem::exists(final_, error);
    if (was_free) std::filesystem::rename(partial_, final_, error);
    if (!was_free || error == std::errc::directory_not_empty || error == std::errc::file_exists)
        throw IoError("save_subdomains: {} has come to exist meanwhile, made by another program; choose another name.",
                      final_.string());
    if (error) throw IoError("save_subdomains: cannot create {}: {}.", final_.string(), error.message());
    is_committed_ = true;
}

WrittenShard write_shard(const std::filesystem::path& folder, const Subdomain& subdomain, Compression compression)
{
    const std::string name = piece_name(subdomain.part, subdomain.mesh.kind);
    const auto path = folder / name;
    std::error_code error;
    std::filesystem::create_directory(path.parent_path(), error);
    if (error)
        throw IoError("save_subdomains: cannot create the folder {}: {}.", path.parent_path().string(),
                      error.message());
    write_piece(path, subdomain, {.compression = compression, .sync = false});
    return {{.file = name,
             .num_owned_cells = subdomain.cells.num_owned,
             .num_ghost_cells = subdomain.cells.num_ghosts(),
             .num_owned_points = subdomain.points.num_owned,
             .num_ghost_points = subdomain.points.num_ghosts(),
             .num_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path)),
             .hash = hash_file(path)},
            bounds_of(subdomain.mesh.points)};
}

Subdomain without_rows(const Mesh& mesh, std::int32_t num_parts, std::int32_t num_ghost_layers)
{
    Subdomain like;
    like.num_parts = num_parts;
    like.num_ghost_layers = num_ghost_layers;
    like.mesh.kind = mesh.kind;
    like.mesh.points = mesh.points.gather({});
    for (const auto& array : mesh.point_data) like.mesh.point_data.push_back(array.gather({}));
    for (const auto& array : mesh.cell_data) like.mesh.cell_data.push_back(array.gather({}));
    like.mesh.field_data = mesh.field_data;
    like.cells.num_global = mesh.num_cells();
    like.points.num_global = mesh.num_points();
    return like;
}

void finish_shards(const std::filesystem::path& folder, const Subdomain& like, const std::vector<WrittenShard>& shards,
                   ShardsInfo info)
{
    std::error_code error;
    if (info.source_hash.empty() && std::filesystem::is_regular_file(info.source, error))
        info.source_hash = hash_file(info.source);
    Manifest manifest;
    manifest.info = std::move(info);
    manifest.kind = like.mesh.kind;
    manifest.num_cells = like.cells.num_global;
    manifest.num_points = like.points.num_global;
    manifest.num_ghost_layers = like.num_ghost_layers;
    manifest.bounds = bounds_of(shards);
    manifest.arrays = piece_arrays(like.mesh);
    std::vector<std::string> sources, hashes;
    for (const WrittenShard& shard : shards) {
        sources.push_back(shard.part.file);
        hashes.push_back(shard.part.hash);
        manifest.parts.push_back(shard.part);
    }
    write_piece_index(folder / index_name(manifest.kind), like, sources, hashes);
    write_manifest(folder, manifest);
}

}  // namespace meshard
