// SPDX-License-Identifier: Apache-2.0
#include "io/subdomain_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "io/content_hash.h"
#include "io/interruption.h"
#include "io/mesh_io.h"
#include "io/piece_io.h"
#include "partition/error.h"

namespace meshard {

namespace {

/// A folder that appears complete or not at all: it grows under another name beside its place.
class PartialFolder {
public:
    explicit PartialFolder(const std::filesystem::path& dir) : final_(std::filesystem::absolute(dir).lexically_normal())
    {
        if (!final_.has_filename()) final_ = final_.parent_path();
        std::error_code error;
        if (std::filesystem::exists(std::filesystem::symlink_status(final_, error)))
            throw IoError("save_subdomains: " + dir.string() + " exists; choose another name or remove it first.");
        partial_ = final_;
        partial_ += ".partial-" + std::to_string(::getpid());
        first_made_ = partial_;
        // Folders above that are made here are removed again if all fails.
        for (auto above = final_.parent_path(); !above.empty() && !std::filesystem::exists(above, error); above = above.parent_path())
            first_made_ = above;
        std::filesystem::remove_all(partial_, error);
        std::filesystem::create_directories(partial_, error);
        if (error) {
            const std::string reason = error.message();
            std::filesystem::remove_all(first_made_, error);
            throw IoError("save_subdomains: cannot create the folder " + dir.string() + ": " + reason +
                          ". Choose a place that you may write to.");
        }
    }
    ~PartialFolder()
    {
        std::error_code ignored;
        if (!is_committed_) std::filesystem::remove_all(first_made_, ignored);
    }
    PartialFolder(const PartialFolder&) = delete;
    PartialFolder& operator=(const PartialFolder&) = delete;

    const std::filesystem::path& path() const { return partial_; }

    void commit()
    {
        throw_if_interrupted();
        std::error_code error;
        if (std::filesystem::exists(final_, error))
            throw IoError("save_subdomains: " + final_.string() + " has come to exist meanwhile; choose another name.");
        // One wait for all pieces instead of one each.
        const int descriptor = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        const bool is_on_disk = descriptor >= 0 && ::syncfs(descriptor) == 0;
        if (descriptor >= 0) ::close(descriptor);
        if (!is_on_disk) throw IoError("save_subdomains: cannot sync " + final_.string() + " to disk.");
        std::filesystem::rename(partial_, final_, error);
        if (error) throw IoError("save_subdomains: cannot create " + final_.string() + ": " + error.message() + ".");
        is_committed_ = true;
    }

private:
    UnfinishedOutput unfinished_;
    std::filesystem::path final_, partial_, first_made_;
    bool is_committed_ = false;
};

std::string piece_name(std::int32_t part, MeshKind kind)
{
    std::string digits = std::to_string(part);
    digits.insert(0, digits.size() < 4 ? 4 - digits.size() : 0, '0');
    return "pieces/mesh_" + digits + extension_of(kind);
}

std::array<double, 6> bounds_of(std::span<const Subdomain> subdomains)
{
    constexpr double infinity = std::numeric_limits<double>::infinity();
    std::array<double, 6> bounds{infinity, -infinity, infinity, -infinity, infinity, -infinity};
    for (const Subdomain& subdomain : subdomains)
        with_scalar_type(subdomain.mesh.points.type(), [&]<class T>() {
            const auto values = subdomain.mesh.points.values<T>();
            for (std::size_t i = 0; i < values.size(); ++i) {
                const auto value = static_cast<double>(values[i]);
                if (!std::isfinite(value)) continue;
                bounds[2 * (i % 3)] = std::min(bounds[2 * (i % 3)], value);
                bounds[2 * (i % 3) + 1] = std::max(bounds[2 * (i % 3) + 1], value);
            }
        });
    if (bounds[0] > bounds[1] || bounds[2] > bounds[3] || bounds[4] > bounds[5]) bounds.fill(0);
    return bounds;
}

void require_parts_of_one_mesh(std::span<const Subdomain> subdomains)
{
    if (subdomains.empty()) throw InvalidInput("save_subdomains: there are no subdomains.");
    const Subdomain& first = subdomains.front();
    for (std::size_t i = 0; i < subdomains.size(); ++i) {
        const Subdomain& subdomain = subdomains[i];
        if (subdomain.part != static_cast<std::int32_t>(i) || subdomain.num_parts != static_cast<std::int32_t>(subdomains.size()))
            throw InvalidInput("save_subdomains: subdomain " + std::to_string(i) + " of " + std::to_string(subdomains.size()) +
                               " says it is part " + std::to_string(subdomain.part) + " of " +
                               std::to_string(subdomain.num_parts) + ". Pass all parts in order.");
        if (subdomain.cells.num_global != first.cells.num_global || subdomain.points.num_global != first.points.num_global ||
            subdomain.mesh.kind != first.mesh.kind || subdomain.num_ghost_layers != first.num_ghost_layers)
            throw InvalidInput("save_subdomains: subdomain " + std::to_string(i) + " is of another mesh than subdomain 0.");
    }
}

}  // namespace

void save_subdomains(const std::filesystem::path& dir, std::span<const Subdomain> subdomains, ShardsInfo info)
{
    require_parts_of_one_mesh(subdomains);
    PartialFolder folder(dir);
    std::error_code error;
    std::filesystem::create_directory(folder.path() / "pieces", error);
    if (error) throw IoError("save_subdomains: cannot create the folder " + (dir / "pieces").string() + ": " + error.message() + ".");

    if (info.source_hash.empty() && std::filesystem::is_regular_file(info.source, error)) info.source_hash = hash_file(info.source);
    const Subdomain& first = subdomains.front();
    Manifest manifest;
    manifest.info = std::move(info);
    manifest.kind = first.mesh.kind;
    manifest.num_cells = first.cells.num_global;
    manifest.num_points = first.points.num_global;
    manifest.num_ghost_layers = first.num_ghost_layers;
    manifest.bounds = bounds_of(subdomains);
    manifest.arrays = piece_arrays(first.mesh);

    std::vector<std::string> sources;
    for (const Subdomain& subdomain : subdomains) {
        sources.push_back(piece_name(subdomain.part, subdomain.mesh.kind));
        const auto path = folder.path() / sources.back();
        write_piece(path, subdomain, {.sync = false});
        manifest.parts.push_back({.file = sources.back(),
                                  .num_owned_cells = subdomain.cells.num_owned,
                                  .num_ghost_cells = subdomain.cells.num_ghosts(),
                                  .num_owned_points = subdomain.points.num_owned,
                                  .num_ghost_points = subdomain.points.num_ghosts(),
                                  .num_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path)),
                                  .hash = hash_file(path)});
    }
    write_piece_index(folder.path() / index_name(manifest.kind), first, sources);
    write_manifest(folder.path(), manifest);
    folder.commit();
}

const char* index_name(MeshKind kind)
{
    return kind == MeshKind::Surface ? "mesh.pvtp" : "mesh.pvtu";
}

Subdomain load_subdomain(const std::filesystem::path& dir, std::int32_t part)
{
    return load_subdomain(dir, read_manifest(dir), part);
}

Subdomain load_subdomain(const std::filesystem::path& dir, const Manifest& manifest, std::int32_t part)
{
    if (part < 0 || part >= manifest.num_parts())
        throw InvalidInput("load_subdomain: " + dir.string() + " has the parts 0 to " + std::to_string(manifest.num_parts() - 1) +
                           ", not " + std::to_string(part) + ".");
    const ManifestPart& expected = manifest.parts[part];
    const auto path = dir / expected.file;
    Subdomain subdomain = read_piece(path, manifest, part);
    const auto require = [&](const char* what, std::int64_t found, std::int64_t count) {
        if (found != count)
            throw IoError("load_subdomain: " + path.string() + " has " + std::to_string(found) + " " + what +
                          ", the manifest says " + std::to_string(count) + ".");
    };
    require("owned cells", subdomain.cells.num_owned, expected.num_owned_cells);
    require("ghost cells", subdomain.cells.num_ghosts(), expected.num_ghost_cells);
    require("owned points", subdomain.points.num_owned, expected.num_owned_points);
    require("ghost points", subdomain.points.num_ghosts(), expected.num_ghost_points);
    return subdomain;
}

std::vector<Subdomain> load_subdomains(const std::filesystem::path& dir)
{
    const Manifest manifest = read_manifest(dir);
    std::vector<Subdomain> subdomains;
    for (std::int32_t part = 0; part < manifest.num_parts(); ++part) subdomains.push_back(load_subdomain(dir, manifest, part));
    return subdomains;
}

}  // namespace meshard
