// SPDX-License-Identifier: Apache-2.0
#include "apps/cut/whole_steps.h"

#include "apps/console/text_table.h"
#include "io/picture/render.h"
#include "io/shards/partition_dump.h"
#include "partition/cut/curve_order.h"
#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/partitioner.h"
#include "partition/cut/row_weights.h"
#include "partition/error.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/ghosts/subdomain.h"
#include "partition/lists.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/run_on_threads.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace meshard {

namespace {

void check_coordinates(const Mesh& mesh, const std::string& file)
{
    const std::int64_t bad = with_scalar_type(mesh.points.type(), [&]<class T>() -> std::int64_t {
        return std::ranges::count_if(mesh.points.values<T>(),
                                     [](T x) { return !std::isfinite(static_cast<double>(x)); });
    });
    if (bad > 0) {
        throw InvalidInput("{} has {} that {} NaN or infinite; every point needs a position. Repair the mesh.", file,
                           count_text(bad, "coordinate"), bad == 1 ? "is" : "are");
    }
}

// Frees a large mesh until `restore`, if it can be read again quickly: its cells take as much memory as its graph, and
// METIS needs several times that.
class FreedMesh {
public:
    FreedMesh(Mesh& mesh, const MeshSource& source) : mesh_(mesh), source_(source)
    {
        constexpr std::int64_t many = 4'000'000;
        is_freed_ = source.read_again && mesh.num_cells() >= many;
        if (is_freed_) mesh_ = Mesh{};
    }

    void restore()
    {
        if (is_freed_) mesh_ = source_.read_again();
        is_freed_ = false;
    }

private:
    Mesh& mesh_;
    const MeshSource& source_;
    bool is_freed_ = false;
};

}  // namespace

void WholeSteps::find_graph(CutJob& job)
{
    check_coordinates(mesh_, source_.name);
    graph_ = mesh_graph(mesh_, job.arguments.threads, &crowds_);
    if (!mesh_.is_point_cloud()) unjoined_ = find_unjoined_cells(mesh_, graph_);
}

void WholeSteps::cut(CutJob& job)
{
    const auto& arguments = job.arguments;
    std::vector<std::string> names = weight_names(arguments);
    std::vector<std::int32_t> weights;
    if (!source_.costs.empty()) {
        names = {"cost"};
        weights = weights_from_costs(source_.earlier_owners, source_.costs);
    } else if (!names.empty()) {
        weights = row_weights(mesh_, graph_, names);
    }
    const auto capacities = part_capacities(arguments);
    PartitionProblem problem{.graph = &graph_,
                             .num_parts = arguments.num_parts,
                             .balance = {.imbalance = arguments.imbalance,
                                         .num_weights = std::max(1, static_cast<std::int32_t>(names.size())),
                                         .row_weights = weights,
                                         .capacities = capacities},
                             .seed = static_cast<std::uint64_t>(arguments.seed)};
    CutOptions options{.method = arguments.method,
                       .levels =
                           arguments.levels.empty() ? std::vector<std::int32_t>{} : parse_levels(arguments.levels),
                       .effort = arguments.quality ? RefinementEffort::Thorough : RefinementEffort::Fast,
                       .ghost_share = ghost_share(arguments.objective),
                       .contiguous = arguments.contiguous};
    CutResult result;
    if (job.given) {
        result = {{arguments.num_parts, std::move(*job.given)}, arguments.method, {}};
        // A given partition is not changed unless an option asks for it.
        options.refine = arguments.refine || arguments.quality;
        if (options.refine || options.contiguous) result = improve_cut(std::move(result.partition), problem, options);
    } else {
        const PartitionMethod& method = partition_method(arguments.method);
        options.refine = !arguments.no_refine && (method.refine || arguments.refine || arguments.quality);
        std::vector<float> centroids;
        if (method.needs_centroids) centroids = row_centroids(mesh_, first_point(mesh_));
        problem.centroids = centroids;
        FreedMesh freed(mesh_, source_);
        result = cut_rows(problem, options);
        freed.restore();
        // With capacities or levels a part's number has a meaning and is kept.
        if (capacities.empty() && options.levels.empty()) {
            const auto before = result.partition;
            result.partition = number_parts_along_curve(mesh_, std::move(result.partition));
            std::set<std::int32_t> in_pieces;
            for (std::size_t i = 0; i < before.owners.size() && !result.in_pieces.empty(); ++i)
                if (contains(result.in_pieces, before.owners[i])) in_pieces.insert(result.partition.owners[i]);
            result.in_pieces.assign(in_pieces.begin(), in_pieces.end());
        }
    }
    const auto found = imbalances(result.partition, problem.balance);
    job.report.is_above_bound = !std::ranges::equal(
        part_weights(result.partition, problem.balance),
        largest_weights_allowed(graph_.num_rows(), arguments.num_parts, problem.balance), std::less_equal());
    if (names.empty()) names = {num_cells_ == 0 ? "points" : "cells"};
    for (std::size_t w = 0; w < found.size(); ++w) job.report.imbalances.emplace_back(names[w], found[w]);
    job.report.method = result.method;
    job.report.in_pieces = result.in_pieces;
    partition_ = std::move(result.partition);
}

void WholeSteps::find_ghosts(CutJob& job)
{
    const auto& arguments = job.arguments;
    job.timer.begin("quality");
    job.report.quality = measure_quality(partition_, graph_);

    job.timer.begin("ghosts");
    ghosts_.resize(partition_.num_parts);
    if (arguments.ghost_layers > 0) {
        const GhostRule rule = parse_ghost_rule(arguments.ghosts);
        ghosts_ = rule == GhostRule{} ? ghost_layers(graph_, partition_, arguments.ghost_layers, arguments.threads)
                                      : ghost_layers(ghost_relation(mesh_, rule, partition_, arguments.ghost_layers),
                                                     partition_, arguments.ghost_layers, arguments.threads);
    }
    if (!PartitionDump::needs_graph(dump_kinds(arguments))) graph_ = Csr{};  // frees memory for the parts
}

// Each thread holds one part at a time.
void WholeSteps::extract_parts(CutJob& job, ShardSink& sink)
{
    const SubdomainCutter cutter(mesh_, partition_, job.arguments.ghost_layers);
    run_on_threads(job.arguments.threads, [&](const std::function<std::int64_t()>& next) {
        std::vector<std::int32_t> local_rows;
        for (auto part = next(); part < partition_.num_parts; part = next())
            sink.take(cutter.cut(static_cast<std::int32_t>(part), ghosts_[part], local_rows));
    });
}

void WholeSteps::dump(CutJob& job, const std::filesystem::path& folder)
{
    dump_partition(folder, dump_kinds(job.arguments), graph_, partition_.owners, partition_.num_parts);
}

void WholeSteps::draw(CutJob&, const std::filesystem::path& png)
{
    Mesh painted = mesh_;
    auto& arrays = painted.is_point_cloud() ? painted.point_data : painted.cell_data;
    std::erase_if(arrays, [](const DataArray& array) { return array.name() == "PartitionId"; });
    arrays.push_back(DataArray::from("PartitionId", partition_.owners));
    RenderOptions options;
    options.color_by = "PartitionId";
    render_mesh(painted, png, options);
}

}  // namespace meshard
