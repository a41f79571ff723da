// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/ghosts/ghost_layer.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/four_partitions.h"
#include "tests/support/sample_meshes.h"

#include <algorithm>
#include <map>
#include <set>

namespace meshard {
namespace {

template <class Check>
void for_each_cut(Check&& check)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        const auto graph = mesh_graph(mesh);
        for (const auto num_parts : {1, 2, 3, 4, 5, 7, 8, static_cast<int>(mesh.num_rows()) + 3})
            for (const auto& [kind, partition] : four_partitions(mesh, num_parts))
                for (const auto num_layers : {0, 1, 3}) {
                    SCOPED_TRACE(name + ", " + std::to_string(num_parts) + " parts, " + std::to_string(num_layers) +
                                 " layers, " + kind);
                    check(mesh, graph, partition, num_layers);
                }
    }
}

TEST(Subdomain, CutsAStripAsInTheExample)
{
    const auto mesh = strip(7);
    const Partition partition{3, {0, 0, 1, 1, 1, 0, 2}};

    const auto subdomain = extract_subdomain(mesh, cell_graph(mesh), partition, 1, 1);

    EXPECT_EQ(subdomain.cells, (IndexMap{7, 3, {2, 3, 4, 1, 5}, {0, 0}}));
    // Square i has the points 2 i ... 2 i + 3; part 0 owns 0 to 5 and, through square 5, 12 and 13.
    EXPECT_EQ(subdomain.points, (IndexMap{16, 6, {6, 7, 8, 9, 10, 11, 2, 3, 4, 5, 12, 13}, {0, 0, 0, 0, 0, 0}}));
    EXPECT_EQ(subdomain.ghost_levels, (std::vector<std::uint8_t>{0, 0, 0, 1, 1}));
    EXPECT_EQ(to_string(subdomain), "Subdomain 1 of 3: 3 owned + 2 ghost cells, 6 + 6 points");
    EXPECT_NO_THROW(subdomain.validate());
}

TEST(Subdomain, HoldsItsInvariantsOnEveryMesh)
{
    for_each_cut([](const Mesh& mesh, const Csr& graph, const Partition& partition, std::int32_t num_layers) {
        const auto subdomains = extract_subdomains(mesh, graph, partition, num_layers);
        ASSERT_EQ(subdomains.size(), static_cast<std::size_t>(partition.num_parts));
        for (const auto& subdomain : subdomains) ASSERT_NO_THROW(subdomain.validate());
    });
}

TEST(Subdomain, GivesEveryRowOneOwnerAndNumbersBackAndForth)
{
    for_each_cut([](const Mesh& mesh, const Csr& graph, const Partition& partition, std::int32_t num_layers) {
        const auto subdomains = extract_subdomains(mesh, graph, partition, num_layers);
        for (const auto map : {&Subdomain::cells, &Subdomain::points}) {
            std::vector<std::int32_t> owners((subdomains[0].*map).num_global, -1);
            for (const auto& subdomain : subdomains)
                for (const auto id : (subdomain.*map).owned()) {
                    ASSERT_EQ(owners[id], -1) << "row " << id << " is owned twice";
                    owners[id] = subdomain.part;
                }
            ASSERT_EQ(std::ranges::count(owners, -1), 0) << "rows that nobody owns";
            for (const auto& subdomain : subdomains) {
                const IndexMap& rows = subdomain.*map;
                for (std::int32_t local = 0; local < rows.num_local(); ++local) {
                    ASSERT_EQ(rows.local_row(rows.global_ids[local]), local);
                    const auto owner =
                        local < rows.num_owned ? subdomain.part : rows.ghost_owners[local - rows.num_owned];
                    ASSERT_EQ(owner, owners[rows.global_ids[local]]);
                }
                std::int64_t num_here = 0;
                for (std::int64_t id = 0; id < rows.num_global; ++id) num_here += rows.local_row(id) >= 0;
                ASSERT_EQ(num_here, rows.num_local());
            }
        }
    });
}

TEST(Subdomain, HoldsTheRowsThatTheRulesSay)
{
    for_each_cut([](const Mesh& mesh, const Csr& graph, const Partition& partition, std::int32_t num_layers) {
        const auto ghosts = ghost_layers(graph, partition, num_layers);
        std::vector<std::int32_t> owners(mesh.num_points(), mesh.is_point_cloud() ? -1 : 0);
        for (auto cell = mesh.num_cells() - 1; cell >= 0; --cell)
            for (const auto point : mesh.cells.row(cell)) owners[point] = partition.owners[cell];
        if (mesh.is_point_cloud()) owners = partition.owners;
        EXPECT_EQ(point_owners(mesh, partition), owners);
        for (const auto& subdomain : extract_subdomains(mesh, graph, partition, num_layers)) {
            const auto part = subdomain.part;
            std::vector<std::int64_t> owned;
            for (std::int64_t i = 0; i < mesh.num_rows(); ++i)
                if (partition.owners[i] == part) owned.push_back(i);
            std::map<std::pair<std::int32_t, std::int64_t>, std::uint8_t> level_of;  // by (owner, row)
            for (std::size_t i = 0; i < ghosts[part].rows.size(); ++i)
                level_of[{partition.owners[ghosts[part].rows[i]], ghosts[part].rows[i]}] = ghosts[part].levels[i];
            std::vector<std::uint8_t> levels(owned.size(), 0);
            auto rows = owned;
            for (const auto& [owner_and_row, level] : level_of) {
                rows.push_back(owner_and_row.second);
                levels.push_back(level);
            }
            ASSERT_EQ(subdomain.rows().global_ids, rows);
            ASSERT_EQ(subdomain.ghost_levels, levels);

            if (mesh.is_point_cloud()) continue;
            std::set<std::int32_t> points;
            for (const auto row : rows) points.insert(mesh.cells.row(row).begin(), mesh.cells.row(row).end());
            for (std::int32_t p = 0; p < mesh.num_points(); ++p)
                if (owners[p] == part) points.insert(p);
            ASSERT_EQ(std::set<std::int32_t>(subdomain.points.global_ids.begin(), subdomain.points.global_ids.end()),
                      points);
            ASSERT_EQ(subdomain.points.num_owned, std::ranges::count(owners, part));
        }
    });
}

TEST(Subdomain, ShowsTheSameGeometryAndValues)
{
    for_each_cut([](const Mesh& mesh, const Csr& graph, const Partition& partition, std::int32_t num_layers) {
        for (const auto& part : extract_subdomains(mesh, graph, partition, num_layers)) {
            std::vector<std::int32_t> points(part.points.global_ids.begin(), part.points.global_ids.end());
            std::vector<std::int32_t> cells(part.cells.global_ids.begin(), part.cells.global_ids.end());
            ASSERT_EQ(difference(part.mesh, extract_mesh(mesh, cells, points)), "");
        }
    });
}

TEST(Subdomain, IsTheSameCutAloneOrWithTheOthers)
{
    const auto mesh = mixed_cells();
    const auto graph = mesh_graph(mesh);
    const auto partition = four_partitions(mesh, 3)[2].second;  // random
    const auto all = extract_subdomains(mesh, graph, partition, 1);

    for (std::int32_t part = 0; part < 3; ++part) {
        const auto alone = extract_subdomain(mesh, graph, partition, part, 1);
        EXPECT_EQ(alone.cells, all[part].cells);
        EXPECT_EQ(alone.points, all[part].points);
        EXPECT_EQ(alone.ghost_levels, all[part].ghost_levels);
        EXPECT_EQ(difference(alone.mesh, all[part].mesh), "");
    }
}

TEST(MergeSubdomains, IsTheInverseOfExtraction)
{
    for_each_cut([](const Mesh& mesh, const Csr& graph, const Partition& partition, std::int32_t num_layers) {
        auto subdomains = extract_subdomains(mesh, graph, partition, num_layers);
        ASSERT_EQ(difference(merge_subdomains(subdomains), mesh), "");
        std::ranges::reverse(subdomains);
        ASSERT_EQ(difference(merge_subdomains(subdomains), mesh), "");
    });
}

TEST(MergeSubdomains, KeepsStringsOfRows)
{
    auto mesh = strip(4);
    mesh.cell_data.push_back(DataArray::from_strings("zone", {"a", "b", "c", "d", "e", "f", "g", "h"}, 2));
    const auto subdomains = extract_subdomains(mesh, cell_graph(mesh), {2, {1, 0, 1, 0}}, 1);

    EXPECT_EQ(difference(merge_subdomains(subdomains), mesh), "");
}

TEST(MergeSubdomains, TakesOwnedValuesOnly)
{
    const auto mesh = strip(4);
    auto subdomains = extract_subdomains(mesh, cell_graph(mesh), {2, {0, 0, 1, 1}}, 1);
    for (auto& subdomain : subdomains) {
        auto flags = subdomain.mesh.cell_data[1].mutable_values<std::uint8_t>();
        for (std::int32_t row = subdomain.cells.num_owned; row < subdomain.cells.num_local(); ++row) flags[row] = 99;
    }

    EXPECT_EQ(difference(merge_subdomains(subdomains), mesh), "");
}

TEST(MergeSubdomains, RefusesMissingDoubledAndUnequalParts)
{
    const auto mesh = strip(4);
    const auto parts = extract_subdomains(mesh, {}, {2, {0, 0, 1, 1}}, 0);
    const auto refuses = [&](auto change, const char* text) {
        auto changed = parts;
        change(changed);
        return throws_with<InvalidInput>(text, [&] { merge_subdomains(changed); });
    };
    using Parts = std::vector<Subdomain>;

    EXPECT_TRUE(refuses([](Parts& p) { p.clear(); }, "no subdomains"));
    EXPECT_TRUE(refuses([](Parts& p) { p.pop_back(); }, "cell 2 is owned by no part; are all parts given?"));
    EXPECT_TRUE(refuses([](Parts& p) { p[1] = p[0]; }, "cell 0 is owned by part 0 and by part 0"));
    EXPECT_TRUE(refuses([](Parts& p) { p[1].points.global_ids[0] = 0; }, "point 0 is owned by part 0 and by part 1"));
    EXPECT_TRUE(refuses([](Parts& p) { p[1].cells.num_global = 5; }, "part 1 counts 5 cells in the whole, part 0 4"));
    EXPECT_TRUE(refuses([](Parts& p) { p[1].cells.global_ids[1] = 4; }, "owns cell 4, but the whole has 4"));
    EXPECT_TRUE(refuses([](Parts& p) { p[1].mesh.cell_data.pop_back(); }, "part 1 has 2 arrays where part 0 has 3"));
    EXPECT_TRUE(refuses([](Parts& p) { p[1].mesh.cell_data[0].rename("x"); },
                        "array 'x' of part 1 has another name, type or shape"));
    EXPECT_TRUE(refuses([](Parts& p) { p[1].mesh.cell_data[0] = DataArray("patch", ScalarType::Int8, 2); },
                        "array 'patch' of part 1"));
    EXPECT_TRUE(refuses([](Parts& p) { p[1].mesh.cells.indices[0] = 60; }, "cell 2 uses local point 60"));
    EXPECT_TRUE(refuses([](Parts& p) { p[1].mesh.cell_types.pop_back(); },
                        "part 1 has 1 cell types and 2 cells, its numbering 2"));
}

TEST(Subdomain, RefusesSizesThatDisagree)
{
    const auto mesh = strip(4);
    const auto graph = cell_graph(mesh);
    EXPECT_TRUE(throws_with<InvalidInput>("the partition has 3 rows, the mesh 4 cells",
                                          [&] { extract_subdomains(mesh, graph, {2, {0, 0, 1}}, 0); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the partition has 3 rows, the mesh 4 points",
                                          [&] { point_owners(random_cloud(4, 1), {2, {0, 0, 1}}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the partition has 4 rows, the graph 0",
                                          [&] { extract_subdomains(mesh, {}, {2, {0, 0, 1, 1}}, 1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("part is 2, expected 0 to 1",
                                          [&] { extract_subdomain(mesh, graph, {2, {0, 0, 1, 1}}, 2, 1); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("num_layers is -1", [&] { extract_subdomains(mesh, graph, {2, {0, 0, 1, 1}}, -1); }));
}

TEST(Subdomain, NamesTheInvariantThatDoesNotHold)
{
    const auto mesh = strip(4);
    const auto whole = extract_subdomain(mesh, cell_graph(mesh), {2, {0, 0, 1, 1}}, 1, 1);
    const auto refuses = [&](auto change, const char* text) {
        auto changed = whole;
        change(changed);
        return throws_with<InvalidInput>(text, [&] { changed.validate(); });
    };

    EXPECT_TRUE(refuses([](Subdomain& s) { s.num_parts = 1; }, "the part is outside 0 to 0"));
    EXPECT_TRUE(refuses([](Subdomain& s) { s.num_ghost_layers = -1; }, "num_ghost_layers is -1"));
    EXPECT_TRUE(refuses([](Subdomain& s) { s.mesh.cell_types[0] = 5; }, "Subdomain 1 of 2: Mesh: cell 0 (triangle)"));
    EXPECT_TRUE(refuses([](Subdomain& s) { s.cells.global_ids[0] = 3; }, "IndexMap of part 1"));
    EXPECT_TRUE(refuses(
        [](Subdomain& s) {
            s.cells.global_ids.pop_back();
            s.cells.ghost_owners.pop_back();
        },
        "2 cells in the numbering, expected 3"));
    EXPECT_TRUE(refuses(
        [](Subdomain& s) {
            s.points.global_ids.pop_back();
            s.points.ghost_owners.pop_back();
        },
        "points in the numbering"));
    EXPECT_TRUE(refuses([](Subdomain& s) { s.ghost_levels.pop_back(); }, "2 ghost levels, expected 3"));
    EXPECT_TRUE(refuses([](Subdomain& s) { s.cells.ghost_owners[0] = 2; }, "a ghost has owner 2"));
    EXPECT_TRUE(refuses([](Subdomain& s) { s.ghost_levels[0] = 1; },
                        "local row 0 has ghost level 1, expected 0, for it is owned"));
    EXPECT_TRUE(refuses([](Subdomain& s) { s.ghost_levels[2] = 0; }, "local row 2 has ghost level 0, expected 1 to 1"));
    EXPECT_TRUE(refuses([](Subdomain& s) { s.ghost_levels[2] = 2; }, "local row 2 has ghost level 2"));
    EXPECT_TRUE(refuses(
        [](Subdomain& s) {
            for (auto& p : s.mesh.cells.indices) p = std::min(p, 6);
        },
        "belongs to no local cell"));
}

}  // namespace
}  // namespace meshard
