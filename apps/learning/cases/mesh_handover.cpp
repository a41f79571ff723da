// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/mesh_handover.h"

#include "apps/learning/cases/case_tensors.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/made_folders.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/mesh/mesh_graph.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace meshard {
namespace {

/// A folder of shards that is removed when this object ends, also by an error or an interruption. `path` is empty on
/// ranks that do not own it.
class TemporaryShards {
public:
    explicit TemporaryShards(std::filesystem::path path) : path_(std::move(path))
    {
        if (!path_.empty()) above_.emplace(path_);
    }
    ~TemporaryShards()
    {
        std::error_code ignored;
        if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
    }
    TemporaryShards(const TemporaryShards&) = delete;
    TemporaryShards& operator=(const TemporaryShards&) = delete;

private:
    UnfinishedOutput unfinished_;
    std::filesystem::path path_;
    std::optional<MadeFolders> above_;
};

std::vector<Subdomain> cut(const Mesh& whole, std::int32_t num_parts, std::int32_t num_ghost_layers)
{
    const auto graph = mesh_graph(whole);
    const auto partition = partition_with_metis(graph, {.num_parts = num_parts});
    if (num_ghost_layers == 0) return extract_subdomains(whole, graph, partition, 0);
    const auto neighbors = ghost_relation(whole, {.neighbors = GhostNeighbors::Vertex}, partition, num_ghost_layers);
    return extract_subdomains(whole, partition, ghost_layers(neighbors, partition, num_ghost_layers), num_ghost_layers);
}

}  // namespace

MeshPart hand_out_mesh(const Mesh& whole, std::int32_t num_ghost_layers, const std::filesystem::path& output,
                       const DeviceMesh& device_mesh)
{
    const auto& group = device_mesh.all();
    if (group.size() == 1) {
        Partition partition;
        partition.owners.assign(whole.num_rows(), 0);
        return {extract_subdomain(whole, Csr{}, partition, 0, 0), point_bounds(whole)};
    }
    // The name holds the first rank's process id, since two runs may write the same output.
    const auto process = group.all_gather_integers(getpid())[0];
    const auto folder =
        followed_links(output).parent_path() / fmt::format(".{}.parts-{}", output.filename().string(), process);
    const TemporaryShards temporary(group.rank() == 0 ? folder : std::filesystem::path());
    if (group.rank() == 0) save_subdomains(folder, cut(whole, group.size(), num_ghost_layers), {});
    group.barrier();
    const auto manifest = read_manifest(folder);
    MeshPart part{load_subdomain(folder, manifest, group.rank()), manifest.bounds};
    group.barrier();  // afterwards the files may be removed: mapped arrays outlive their names
    return part;
}

at::Tensor rows_on_first_rank(const at::Tensor& rows, std::span<const std::int64_t> ids, const RankGroup& group)
{
    std::vector<std::int64_t> sent(group.size(), 0), received;
    sent[0] = rows.size(0);
    for (const auto count : group.all_gather_integers(sent[0])) received.push_back(group.rank() == 0 ? count : 0);
    const auto own_ids = at::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()), at::kLong);
    const auto all_rows = group.all_to_all_rows(rows.contiguous(), sent, received);
    const auto all_ids = group.all_to_all_rows(own_ids, sent, received);
    return at::empty_like(all_rows).index_copy_(0, all_ids, all_rows);
}

}  // namespace meshard
