// SPDX-License-Identifier: Apache-2.0
#include "apps/shard_cache.h"

#include "io/content_hash.h"
#include "io/mesh_io.h"
#include "io/subdomain_io.h"
#include "partition/error.h"
#include "partition/mesh_graph.h"
#include "partition/metis_partitioner.h"

namespace meshard {
namespace {

bool is_current(const std::filesystem::path& dir, const std::string& hash, std::int64_t num_parts, std::int64_t seed)
{
    if (!is_shards_folder(dir)) return false;
    try {
        const auto manifest = read_manifest(dir);
        return manifest.info.source_hash == hash && manifest.num_parts() == num_parts && manifest.info.seed == seed && manifest.info.method == "metis";
    } catch (const IoError&) {
        return false;   // damaged: made anew
    }
}

}  // namespace

std::filesystem::path prepare_shards(const CaseSource& source, const std::filesystem::path& cache, std::int64_t num_parts, std::int64_t seed)
{
    const auto dir = cache / (source.id + "_in_" + std::to_string(num_parts));
    const auto hash = hash_file(source.file);
    if (is_current(dir, hash, num_parts, seed)) return dir;

    const auto mesh = read_mesh(source.file);
    if (mesh.num_rows() == 0) throw InvalidInput("case " + source.id + ": " + source.file.string() + " is empty.");
    const auto graph = mesh_graph(mesh);
    const MetisOptions options{.num_parts = static_cast<std::int32_t>(num_parts), .seed = static_cast<std::int32_t>(seed)};
    const auto partition = partition_with_metis(graph, options);
    const auto subdomains = extract_subdomains(mesh, graph, partition, 0);

    ShardsInfo info;
    info.source = source.file.string();
    info.source_hash = hash;
    info.method = "metis";
    info.seed = seed;
    info.options = {{"imbalance", "1.03"}};
    info.quality = measure_quality(partition, graph);
    std::filesystem::create_directories(cache);
    std::filesystem::remove_all(dir);
    save_subdomains(dir, subdomains, std::move(info));
    return dir;
}

}  // namespace meshard
