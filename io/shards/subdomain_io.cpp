// SPDX-License-Identifier: Apache-2.0
#include "io/shards/subdomain_io.h"

#include "io/bytes/content_hash.h"
#include "io/shards/piece_io.h"
#include "io/shards/shards_writer.h"
#include "partition/error.h"
#include "partition/run_on_threads.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

namespace meshard {

namespace {

std::string array_texts(const Mesh& mesh)
{
    std::string text;
    for (const auto* arrays : {&mesh.point_data, &mesh.cell_data}) {
        text += arrays == &mesh.point_data ? "at points" : "; of cells";
        for (const DataArray& array : *arrays)
            text += fmt::format(" '{}' {} x {}", array.name(), to_string(array.type()), array.num_components());
    }
    return text;
}

void require_parts_of_one_mesh(std::span<const Subdomain> subdomains)
{
    if (subdomains.empty()) throw InvalidInput("save_subdomains: there are no subdomains.");
    const Subdomain& first = subdomains.front();
    std::int64_t num_cells = 0, num_points = 0;
    for (std::size_t i = 0; i < subdomains.size(); ++i) {
        const Subdomain& subdomain = subdomains[i];
        if (subdomain.part != static_cast<std::int32_t>(i) ||
            subdomain.num_parts != static_cast<std::int32_t>(subdomains.size()))
            throw InvalidInput("save_subdomains: subdomain {} of {} says it is part {} of {}. Pass all parts in order.",
                               i, subdomains.size(), subdomain.part, subdomain.num_parts);
        if (subdomain.cells.num_global != first.cells.num_global ||
            subdomain.points.num_global != first.points.num_global || subdomain.mesh.kind != first.mesh.kind ||
            subdomain.num_ghost_layers != first.num_ghost_layers)
            throw InvalidInput("save_subdomains: subdomain {} is of another mesh than subdomain 0.", i);
        num_cells += subdomain.cells.num_owned;
        num_points += subdomain.points.num_owned;
        if (const auto own = array_texts(subdomain.mesh), wanted = array_texts(first.mesh); own != wanted)
            throw InvalidInput("save_subdomains: subdomain {} has other arrays than subdomain 0: {} beside {}.", i, own,
                               wanted);
    }
    if (num_cells != first.cells.num_global || num_points != first.points.num_global)
        throw InvalidInput("save_subdomains: the subdomains own {} cells and {} points, and their mesh has {} "
                           "and {}. Pass each part once.",
                           num_cells, num_points, first.cells.num_global, first.points.num_global);
}

}  // namespace

void save_subdomains(const std::filesystem::path& dir, std::span<const Subdomain> subdomains, ShardsInfo info)
{
    require_parts_of_one_mesh(subdomains);
    PartialFolder folder(dir);
    std::vector<WrittenShard> shards;
    for (const Subdomain& subdomain : subdomains) shards.push_back(write_shard(folder.path(), subdomain));
    finish_shards(folder.path(), subdomains.front(), shards, std::move(info));
    folder.commit();
}

const char* index_name(MeshKind kind)
{
    return kind == MeshKind::Surface ? "mesh.pvtp" : "mesh.pvtu";
}

void require_written_piece(const std::filesystem::path& dir, const ManifestPart& part)
{
    const auto path = dir / part.file;
    std::error_code error;
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
    if (!error && size != part.num_bytes)
        throw IoError("load_subdomain: {} has {} bytes, the manifest says {}. Cut the source again.", path.string(),
                      size, part.num_bytes);
    if (const std::string hash = hash_file(path); hash != part.hash)
        throw IoError(
            "load_subdomain: {} has the hash {}, the manifest says {}: its content was changed. Cut the source again.",
            path.string(), hash, part.hash);
}

Subdomain load_subdomain(const std::filesystem::path& dir, std::int32_t part, PieceCheck check)
{
    return load_subdomain(dir, read_manifest(dir), part, check);
}

Subdomain load_subdomain(const std::filesystem::path& dir, const Manifest& manifest, std::int32_t part,
                         PieceCheck check)
{
    if (part < 0 || part >= manifest.num_parts())
        throw InvalidInput("load_subdomain: {} has the parts 0 to {}, not {}.", dir.string(), manifest.num_parts() - 1,
                           part);
    const ManifestPart& expected = manifest.parts[part];
    const auto path = dir / expected.file;
    // A second thread hashes the piece while this one reads it: both need the bytes in memory, and reading takes
    // longer.
    std::future<void> compared;
    if (check == PieceCheck::Compare) compared = std::async(require_written_piece, std::cref(dir), std::cref(expected));
    Subdomain subdomain;
    try {
        subdomain = read_piece(path, manifest, part);
    } catch (const Error&) {
        if (compared.valid()) compared.get();  // that the piece was changed says more than what cannot be read in it
        throw;
    }
    if (compared.valid()) compared.get();
    const auto require = [&](const char* what, std::int64_t found, std::int64_t count) {
        if (found != count)
            throw IoError("load_subdomain: {} has {} {}, the manifest says {}.", path.string(), found, what, count);
    };
    require("owned cells", subdomain.cells.num_owned, expected.num_owned_cells);
    require("ghost cells", subdomain.cells.num_ghosts(), expected.num_ghost_cells);
    require("owned points", subdomain.points.num_owned, expected.num_owned_points);
    require("ghost points", subdomain.points.num_ghosts(), expected.num_ghost_points);
    return subdomain;
}

std::vector<Subdomain> load_subdomains(const std::filesystem::path& dir, PieceCheck check)
{
    const Manifest manifest = read_manifest(dir);
    std::vector<Subdomain> subdomains(manifest.parts.size());
    const auto num_threads =
        std::min<std::size_t>(std::max(1U, std::thread::hardware_concurrency()), subdomains.size());
    run_on_threads(static_cast<std::int32_t>(num_threads), [&](const std::function<std::int64_t()>& next) {
        for (auto part = next(); part < manifest.num_parts(); part = next())
            subdomains[part] = load_subdomain(dir, manifest, static_cast<std::int32_t>(part), check);
    });
    return subdomains;
}

}  // namespace meshard
