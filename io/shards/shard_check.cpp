// SPDX-License-Identifier: Apache-2.0
#include "io/shards/shard_check.h"

#include "io/shards/subdomain_io.h"
#include "io/vtk/vtk_xml_file.h"
#include "partition/error.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/ghosts/ghost_layer.h"
#include "partition/lists.h"
#include "partition/mesh/mesh_graph.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

namespace meshard {

namespace {

constexpr std::size_t max_faults = 100;

enum PromiseNumber : std::size_t {
    ManifestFile,
    Index,
    Pieces,
    Owners,
    GhostOwners,
    PointOwners,
    Quality,
    Ghosts,
    Values
};

// In the order of PromiseNumber.
const std::vector<ShardPromise> promises{
    {"the manifest can be read", false, {}},
    {"the index names every piece", false, {}},
    {"every piece has the size, hash, counts and arrays that the manifest says, and is valid", false, {}},
    {"every cell and every point of the source is owned by exactly one part", false, {}},
    {"every ghost names the part that owns it", false, {}},
    {"every point is owned by the part of the first cell that uses it", false, {}},
    {"edge cut, communication volume and figures of the parts are as the manifest states", false, {}},
    {"ghosts and their levels are those of a breadth-first search over the merged mesh", false, {}},
    {"every ghost equals its owner's row bit for bit", false, {}},
};

class ShardCheck {
public:
    explicit ShardCheck(std::filesystem::path dir) : dir_(std::move(dir)) {}

    std::vector<ShardPromise> run()
    {
        // Each test requires that those before it have passed.
        test(ManifestFile, [&] { manifest_ = read_manifest(dir_); });
        if (num_faults_ == 0) test(Index, [&] { check_index(); });
        for (std::int32_t part = 0; part < manifest_.num_parts(); ++part) test(Pieces, [&] { load(part); });
        if (subdomains_.size() == manifest_.parts.size() && !subdomains_.empty()) {
            owners_.num_parts = point_owners_.num_parts = manifest_.num_parts();
            const bool is_cloud = manifest_.num_cells == 0;
            if (!is_cloud) owners_.owners = check_owners(&Subdomain::cells, "cell");
            point_owners_.owners = check_owners(&Subdomain::points, "point");
            if (is_cloud) owners_ = point_owners_;
            if (num_faults_ == 0) check_against_merged();
        }
        return std::move(promises_);
    }

private:
    void add(PromiseNumber promise, const std::string& fault)
    {
        if (num_faults_++ < max_faults) promises_[promise].faults.push_back(fault);
    }

    void test(PromiseNumber promise, const std::function<void()>& step)
    {
        promises_[promise].was_tested = true;
        try {
            step();
        } catch (const Error& error) {
            add(promise, error.what());
        }
    }

    void check_index()
    {
        const auto path = dir_ / index_name(manifest_.kind);
        const VtkXmlFile file(path);
        std::vector<std::string> sources, expected;
        for (const XmlElement& element : file.require_child(file.root(), file.type()).children)
            if (const auto* source = element.attribute("Source")) sources.push_back(*source);
        for (const ManifestPart& part : manifest_.parts) expected.push_back(part.file);
        if (sources != expected)
            add(Index, path.string() + " does not name the pieces of the manifest in their order.");
    }

    void load(std::int32_t part)
    {
        test(Pieces, [&] { require_written_piece(dir_, manifest_.parts[part]); });
        // The hash is reported already; this finds other faults.
        Subdomain subdomain = load_subdomain(dir_, manifest_, part, PieceCheck::Trust);
        subdomain.validate();
        subdomains_.push_back(std::move(subdomain));
    }

    /// Returns the owner of each row of the source, and reports rows with no owner or with two.
    std::vector<std::int32_t> check_owners(IndexMap Subdomain::* rows, const std::string& noun)
    {
        const std::int64_t num_global = (subdomains_.front().*rows).num_global;
        std::vector<std::int32_t> owners(num_global, -1);
        test(Owners, [&] {
            for (const Subdomain& subdomain : subdomains_)
                for (const std::int64_t id : (subdomain.*rows).owned()) {
                    if (owners[id] >= 0)
                        add(Owners, fmt::format("{} {} is owned by part {} and by part {}.", noun, id, owners[id],
                                                subdomain.part));
                    owners[id] = subdomain.part;
                }
            for (std::int64_t id = 0; id < num_global; ++id)
                if (owners[id] < 0) add(Owners, fmt::format("{} {} is owned by no part.", noun, id));
        });
        test(GhostOwners, [&] {
            for (const Subdomain& subdomain : subdomains_) {
                const IndexMap& map = subdomain.*rows;
                for (std::int32_t i = 0; i < map.num_ghosts(); ++i)
                    if (owners[map.ghosts()[i]] != map.ghost_owners[i])
                        add(GhostOwners,
                            fmt::format("part {}: ghost {} {} names part {} as its owner, which is part {}.",
                                        subdomain.part, noun, map.ghosts()[i], map.ghost_owners[i],
                                        owners[map.ghosts()[i]]));
            }
        });
        return owners;
    }

    /// The rule in the manifest, by default neighbours by face.
    GhostRule stated_ghost_rule() const
    {
        for (const auto& [name, text] : manifest_.info.options)
            if (name == "ghost_neighbors") return parse_ghost_rule(text);
        return {};
    }

    void check_against_merged()
    {
        Mesh merged;
        test(Values, [&] {
            merged = merge_subdomains(subdomains_);
            merged.validate();
        });
        if (num_faults_ > 0) return;
        test(PointOwners, [&] { check_point_owners(merged); });
        const bool needs_graph = manifest_.num_ghost_layers > 0 || !manifest_.info.quality.parts.empty();
        const Csr graph = needs_graph ? mesh_graph(merged) : Csr{};
        test(Quality, [&] { check_quality(graph); });
        test(Ghosts, [&] {
            std::vector<GhostLayer> ghosts(subdomains_.size());
            if (manifest_.num_ghost_layers > 0) {
                const GhostRule rule = stated_ghost_rule();
                ghosts = rule == GhostRule{}
                             ? ghost_layers(graph, owners_, manifest_.num_ghost_layers)
                             : ghost_layers(ghost_relation(merged, rule), owners_, manifest_.num_ghost_layers);
            }
            for (const Subdomain& subdomain : subdomains_) {
                check_ghosts(subdomain, ghosts[subdomain.part]);
                check_ghost_points(subdomain, merged);
            }
        });
        test(Values, [&] {
            for (const Subdomain& subdomain : subdomains_) check_values(subdomain, merged);
        });
    }

    void check_point_owners(const Mesh& merged)
    {
        const auto expected = point_owners(merged, owners_);
        for (std::size_t i = 0; i < expected.size(); ++i)
            if (expected[i] != point_owners_.owners[i])
                add(PointOwners,
                    fmt::format("point {} is owned by part {}, but the first cell that uses it by part {}.", i,
                                point_owners_.owners[i], expected[i]));
    }

    void check_quality(const Csr& graph)
    {
        const PartitionQuality& stated = manifest_.info.quality;
        if (stated.parts.empty()) return;
        const PartitionQuality found = measure_quality(owners_, graph);
        if (stated.edge_cut != found.edge_cut)
            add(Quality,
                fmt::format("the manifest states an edge cut of {}, found {}.", stated.edge_cut, found.edge_cut));
        if (stated.communication_volume != found.communication_volume)
            add(Quality, fmt::format("the manifest states a communication volume of {}, found {}.",
                                     stated.communication_volume, found.communication_volume));
        if (stated.parts.size() != found.parts.size())
            add(Quality, fmt::format("the manifest states figures of {} parts, found {}.", stated.parts.size(),
                                     found.parts.size()));
        for (std::size_t part = 0; part < std::min(stated.parts.size(), found.parts.size()); ++part)
            check_figures(part, stated.parts[part], found.parts[part]);
    }

    void check_figures(std::size_t part, const PartQuality& stated, const PartQuality& found)
    {
        const auto compare = [&](const char* what, std::int64_t said, std::int64_t measured) {
            if (said != measured)
                add(Quality,
                    fmt::format("the manifest states {} {} of part {}, found {}.", said, what, part, measured));
        };
        compare("owned rows", stated.num_owned, found.num_owned);
        compare("ghosts", stated.num_ghosts, found.num_ghosts);
        compare("cut edges", stated.cut_edges, found.cut_edges);
        compare("connected pieces", stated.num_components, found.num_components);
        if (stated.neighbors != found.neighbors || stated.neighbor_edges != found.neighbor_edges)
            add(Quality,
                fmt::format(
                    "the manifest states other neighbours of part {} than it has, or other numbers of edges to them.",
                    part));
    }

    void check_ghosts(const Subdomain& subdomain, const GhostLayer& expected)
    {
        using Ghost = std::pair<std::int64_t, int>;  // row, level
        const IndexMap& map = subdomain.rows();
        std::vector<Ghost> wanted, found;
        for (std::size_t i = 0; i < expected.rows.size(); ++i)
            wanted.emplace_back(expected.rows[i], expected.levels[i]);
        for (std::int32_t i = map.num_owned; i < map.num_local(); ++i)
            found.emplace_back(map.global_ids[i], subdomain.ghost_levels[i]);
        std::ranges::sort(wanted);
        std::ranges::sort(found);
        const auto [in_wanted, in_found] = std::ranges::mismatch(wanted, found);
        const auto describe = [](const std::vector<Ghost>& ghosts, auto at) {
            return at == ghosts.end() ? std::string("no further one")
                                      : fmt::format("{} in layer {}", at->first, at->second);
        };
        if (in_wanted != wanted.end() || in_found != found.end())
            add(Ghosts,
                fmt::format(
                    "part {}: its ghosts are not the {} layers around it; the first difference: expected {}, found {}.",
                    subdomain.part, manifest_.num_ghost_layers, describe(wanted, in_wanted),
                    describe(found, in_found)));
    }

    void check_ghost_points(const Subdomain& subdomain, const Mesh& merged)
    {
        if (merged.is_point_cloud()) return;
        std::vector<std::int64_t> wanted, found(subdomain.points.ghosts().begin(), subdomain.points.ghosts().end());
        for (const std::int64_t cell : subdomain.cells.global_ids)
            for (const std::int32_t point : merged.cells.row(cell))
                if (point_owners_.owners[point] != subdomain.part) wanted.push_back(point);
        sort_unique(wanted);
        std::ranges::sort(found);
        if (wanted != found)
            add(Ghosts,
                fmt::format("part {} has {} ghost points, but its cells use {} that it does not own, or other ones.",
                            subdomain.part, found.size(), wanted.size()));
    }

    /// Compares the rows of a part with those of their owners, bit by bit.
    void check_values(const Subdomain& subdomain, const Mesh& merged)
    {
        const std::vector<std::int32_t> cells(subdomain.cells.global_ids.begin(), subdomain.cells.global_ids.end());
        const std::vector<std::int32_t> points(subdomain.points.global_ids.begin(), subdomain.points.global_ids.end());
        const std::string found = difference(extract_mesh(merged, cells, points), subdomain.mesh);
        if (!found.empty())
            add(Values, fmt::format("part {} differs from the owners of its rows: {}", subdomain.part, found));
    }

    std::filesystem::path dir_;
    Manifest manifest_;
    std::vector<Subdomain> subdomains_;
    Partition owners_, point_owners_;
    std::vector<ShardPromise> promises_ = promises;
    std::size_t num_faults_ = 0;
};

}  // namespace

std::vector<ShardPromise> test_shards(const std::filesystem::path& dir)
{
    if (!is_shards_folder(dir)) read_manifest(dir);  // throws with the reason
    return ShardCheck(dir).run();
}

std::vector<std::string> check_shards(const std::filesystem::path& dir)
{
    std::vector<std::string> faults;
    for (const ShardPromise& promise : test_shards(dir)) append(faults, promise.faults);
    return faults;
}

}  // namespace meshard
