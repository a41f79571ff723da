// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"
#include "io/vtk/mapped_mesh.h"
#include "partition/cut/cut_measures.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/cut/refinement.h"
#include "partition/cut/row_weights.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/ghosts/ghost_layer.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/mesh_faults.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/mesh/stored_mesh.h"
#include "sharding/windows/window_cut.h"
#include "sharding/windows/window_weights.h"
#include "tests/support/expect_error.h"
#include "tests/support/hub_meshes.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <barrier>
#include <map>
#include <mutex>
#include <thread>

namespace meshard {
namespace {

// Ranks as threads.
struct Exchange {
    explicit Exchange(int size) : mail(size, std::vector<RankMessages::Bytes>(size)), barrier(size) {}

    std::vector<std::vector<RankMessages::Bytes>> mail;  // [to][from]
    std::barrier<> barrier;
};

class ThreadMessages : public RankMessages {
public:
    ThreadMessages(Exchange& exchange, int rank) : exchange_(exchange), rank_(rank) {}

    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(exchange_.mail.size()); }

    std::vector<Bytes> exchange(std::vector<Bytes> to) override
    {
        for (int r = 0; r < size(); ++r) exchange_.mail[r][rank_] = std::move(to[r]);
        exchange_.barrier.arrive_and_wait();
        auto received = std::move(exchange_.mail[rank_]);
        exchange_.mail[rank_].assign(size(), {});
        exchange_.barrier.arrive_and_wait();
        return received;
    }

private:
    Exchange& exchange_;
    int rank_;
};

template <class F>
void on_ranks(int num_ranks, F&& f)
{
    Exchange exchange(num_ranks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < num_ranks; ++rank)
        threads.emplace_back([&, rank] {
            ThreadMessages messages(exchange, rank);
            f(static_cast<RankMessages&>(messages));
        });
}

// Everything that a cut in windows finds, by numbers in the file.
struct Found {
    Csr graph;
    Partition partition;
    PartitionQuality quality;
    std::vector<RowsOfPart> parts;
    std::vector<std::int32_t> point_owners;
};

struct Case {
    int num_ranks;
    std::int64_t cells_a_window, cache_bytes;
    std::int32_t num_parts, num_layers;
    GhostRule rule = {};
};

Found cut(const std::filesystem::path& file, const Case& c, const WindowCutOptions& options)
{
    const MappedMesh whole(file);
    const auto num_rows = whole.num_cells() > 0 ? whole.num_cells() : whole.num_points();
    std::vector<std::vector<std::int32_t>> rows(num_rows);
    Found found;
    found.partition = {options.num_parts, std::vector<std::int32_t>(num_rows, -1)};
    found.parts.resize(options.num_parts);
    std::mutex mutex;
    on_ranks(c.num_ranks, [&](RankMessages& messages) {
        const MappedMesh mesh(file);
        const auto a_dozen = num_rows / 12;  // more windows find no more
        CurveWindows windows(mesh, messages, std::max(c.cells_a_window, a_dozen), c.cache_bytes);
        const auto all_ids =
            gather_everywhere(messages, std::vector<std::int32_t>(windows.ids().begin(), windows.ids().end()));
        for (auto w = windows.first_window(); w < windows.end_window(); ++w) {
            const auto graph = windows.graph(w);
            const std::lock_guard lock(mutex);
            for (std::int32_t cell = 0; cell < graph.num_cells; ++cell)
                for (const auto j : graph.graph.row(cell))
                    rows[windows.ids(w)[cell]].push_back(
                        j < graph.num_cells ? windows.ids(w)[j] : all_ids[graph.outside[j - graph.num_cells]]);
        }
        WindowCut cut(windows, messages, options);
        if (options.method != "hilbert" || options.contiguous) cut.refine();
        cut.number_along_curve();
        const auto quality = cut.find_ghosts(c.num_layers, c.rule);
        cut.settle_points(windows.take_first_cells());
        std::vector<std::int32_t> points(mesh.num_points());
        for (std::size_t i = 0; i < points.size(); ++i) points[i] = static_cast<std::int32_t>(i);
        const auto owners = cut.owners_of_points(points);
        for (std::int32_t first = 0; first < options.num_parts; first += messages.size()) {
            auto part = cut.rows_of_parts(first);
            const std::lock_guard lock(mutex);
            if (first + messages.rank() >= options.num_parts) continue;
            for (const auto id : part.owned) found.partition.owners[id] = first + messages.rank();
            found.parts[first + messages.rank()] = std::move(part);
        }
        if (messages.rank() == 0) {
            found.quality = quality;
            found.point_owners = owners;
        }
    });
    for (auto& row : rows) {
        std::ranges::sort(row);
        found.graph.push_row(row);
    }
    return found;
}

class WindowCutOfSamples : public testing::Test {
protected:
    void each_sample(const std::function<void(const std::string&, const Mesh&, const std::filesystem::path&)>& f)
    {
        for (const auto& [name, mesh] : sample_meshes()) {
            if (mesh.num_rows() == 0) continue;
            const auto file = folder_.path() / (name + extension_of(mesh.kind));
            write_mesh(file, mesh);
            SCOPED_TRACE(name);
            f(name, mesh, file);
        }
    }

    // Ghosts, owners of points and quality as of the whole mesh with the same owners.
    void expect_as_whole(const Mesh& mesh, const std::filesystem::path& file, const Case& c,
                         const WindowCutOptions& options)
    {
        const auto graph = mesh_graph(mesh);
        const auto found = cut(file, c, options);
        ASSERT_NO_THROW(found.partition.validate());
        const auto ghosts = ghost_layers(ghost_graph(mesh, c.rule), found.partition, c.num_layers);
        for (std::int32_t part = 0; part < c.num_parts; ++part) {
            std::map<std::int32_t, std::int32_t> expected, levels;
            for (std::size_t i = 0; i < ghosts[part].rows.size(); ++i)
                expected[ghosts[part].rows[i]] = ghosts[part].levels[i];
            for (const auto& ghost : found.parts[part].ghosts) {
                levels[ghost.id] = ghost.level;
                EXPECT_EQ(ghost.owner, found.partition.owners[ghost.id]);
            }
            EXPECT_EQ(levels.size(), found.parts[part].ghosts.size());
            EXPECT_EQ(levels, expected) << "part " << part;
        }
        EXPECT_EQ(found.point_owners, point_owners(mesh, found.partition));
        const auto quality = measure_quality(found.partition, graph);
        EXPECT_EQ(found.quality.edge_cut, quality.edge_cut);
        EXPECT_EQ(found.quality.communication_volume, quality.communication_volume);
        for (std::int32_t part = 0; part < c.num_parts; ++part) {
            EXPECT_EQ(found.quality.parts[part].num_ghosts, quality.parts[part].num_ghosts);
            EXPECT_EQ(found.quality.parts[part].neighbors, quality.parts[part].neighbors);
            EXPECT_EQ(found.quality.parts[part].neighbor_edges, quality.parts[part].neighbor_edges);
            EXPECT_EQ(found.quality.parts[part].num_components, quality.parts[part].num_components);
        }
    }

    TemporaryFolder folder_;
};

// Clouds in which much is equally far, lies at one place, or is denser here than there.
std::vector<NamedMesh> difficult_clouds()
{
    const auto cloud = [](std::vector<double> coordinates) {
        Mesh mesh;
        mesh.points = DataArray::from("Points", std::move(coordinates), 3);
        return mesh;
    };
    std::vector<double> lattice, one_place, graded;
    for (int i = 0; i < 343; ++i)
        for (const int x : {i % 7, i / 7 % 7, i / 49}) lattice.push_back(x + 0.1);
    for (int i = 0; i < 60; ++i) one_place.insert(one_place.end(), {i % 3 == 0 ? 1.0 : 0.5, 0.25, 2});
    const auto random = random_cloud(500, 7).points.to_doubles();
    for (std::size_t i = 0; i < random.size(); ++i)
        graded.push_back(random[i] * random[i] * random[i] * random[i] + 1e-9 * static_cast<double>(i % 5));
    return {{"lattice", cloud(lattice)},
            {"one_place", cloud(one_place)},
            {"graded", cloud(graded)},
            {"random", random_cloud(500, 2)},
            {"two", cloud({0, 0, 0, 1, 1, 1})}};
}

TEST_F(WindowCutOfSamples, FindsTheGraphOfTheWholeMesh)
{
    each_sample([&](const std::string&, const Mesh& mesh, const std::filesystem::path& file) {
        const auto expected = mesh_graph(mesh);
        for (const Case c : {Case{1, 1, 0, 2, 1}, Case{1, 3, 0, 2, 1}, Case{2, 4, 1 << 20, 3, 1}, Case{3, 5, 0, 3, 1},
                             Case{1, 1 << 20, 0, 2, 1}}) {
            const auto found = cut(file, c, {.num_parts = c.num_parts});
            EXPECT_EQ(found.graph, expected) << c.num_ranks << " ranks, windows of " << c.cells_a_window;
        }
    });
}

TEST_F(WindowCutOfSamples, FindsGhostsPointsAndQualityOfTheWholeMesh)
{
    const GhostRule vertex{.neighbors = GhostNeighbors::Vertex}, edge{.neighbors = GhostNeighbors::Edge};
    each_sample([&](const std::string&, const Mesh& mesh, const std::filesystem::path& file) {
        for (const Case c : {Case{1, 3, 0, 3, 1}, Case{2, 4, 0, 4, 2}, Case{3, 2, 1 << 20, 2, 3}, Case{2, 7, 0, 3, 0},
                             Case{1, 3, 0, 3, 2, vertex}, Case{3, 2, 0, 4, 1, vertex}, Case{1, 4, 0, 3, 3, edge},
                             Case{2, 3, 0, 4, 1, edge}})
            if (c.num_parts <= mesh.num_rows()) expect_as_whole(mesh, file, c, {.num_parts = c.num_parts});
    });
}

TEST_F(WindowCutOfSamples, FindsTheWholeMeshWhereManyCellsMeet)
{
    const GhostRule vertex{.neighbors = GhostNeighbors::Vertex};
    for (const auto& [name, make] : hub_meshes()) {
        SCOPED_TRACE(name);
        const Mesh mesh = make(300);
        const auto file = folder_.path() / (name + ".vtu");
        write_mesh(file, mesh);
        FacetCrowds crowds;
        const auto expected = mesh_graph(mesh, 1, &crowds);
        for (const Case c : {Case{1, 40, 0, 3, 1}, Case{3, 60, 1 << 20, 4, 2}, Case{2, 1 << 20, 0, 3, 1},
                             Case{2, 50, 0, 3, 1, vertex}}) {
            SCOPED_TRACE(std::to_string(c.num_ranks) + " ranks, windows of " + std::to_string(c.cells_a_window));
            EXPECT_EQ(cut(file, c, {.num_parts = c.num_parts}).graph, expected);
            expect_as_whole(mesh, file, c, {.num_parts = c.num_parts});
            on_ranks(c.num_ranks, [&](RankMessages& messages) {
                const MappedMesh mapped(file);
                const CurveWindows windows(mapped, messages, c.cells_a_window, 0);
                for (auto window = windows.first_window(); window < windows.end_window(); ++window)
                    windows.graph(window);
                EXPECT_EQ(windows.crowds(), crowds);
            });
        }
    }
}

TEST_F(WindowCutOfSamples, FindsGhostsByDistanceOfTheWholeMesh)
{
    const auto radius = [](double r) { return GhostRule{.neighbors = GhostNeighbors::Radius, .radius = r}; };
    const auto nearest = [](std::int32_t k) {
        return GhostRule{.neighbors = GhostNeighbors::Nearest, .num_nearest = k};
    };
    each_sample([&](const std::string&, const Mesh& mesh, const std::filesystem::path& file) {
        for (const Case c :
             {Case{1, 3, 0, 3, 1, radius(0.4)}, Case{2, 4, 0, 3, 2, radius(0.34)}, Case{3, 2, 0, 2, 1, radius(100)},
              Case{2, 4, 0, 3, 1, radius(1e-6)}, Case{3, 3, 0, 3, 0, radius(1)}, Case{1, 3, 0, 3, 1, nearest(1)},
              Case{2, 4, 0, 3, 2, nearest(4)}, Case{3, 2, 0, 3, 3, nearest(6)}, Case{2, 3, 0, 2, 1, nearest(100)}})
            if (c.num_parts <= mesh.num_rows()) expect_as_whole(mesh, file, c, {.num_parts = c.num_parts});
    });
}

TEST_F(WindowCutOfSamples, CutsDifficultCloudsAsAWhole)
{
    const GhostRule radius{.neighbors = GhostNeighbors::Radius, .radius = 0.5},
        nearest{.neighbors = GhostNeighbors::Nearest, .num_nearest = 5};
    for (const auto& [name, mesh] : difficult_clouds()) {
        SCOPED_TRACE(name);
        const auto file = folder_.path() / (name + ".vtu");
        write_mesh(file, mesh);
        const auto expected = mesh_graph(mesh);
        for (const Case c : {Case{1, 3, 0, 2, 1}, Case{2, 9, 0, 2, 2}, Case{3, 40, 1 << 20, 2, 1, radius},
                             Case{1, 40, 0, 2, 2, radius}, Case{2, 30, 0, 2, 2, nearest}}) {
            EXPECT_EQ(cut(file, c, {.num_parts = c.num_parts}).graph, expected)
                << c.num_ranks << " ranks, windows of " << c.cells_a_window;
            expect_as_whole(mesh, file, c, {.num_parts = c.num_parts});
        }
    }
}

TEST_F(WindowCutOfSamples, WeighsCellsAsInTheWholeMesh)
{
    const std::vector<std::string> names{"cells", "points", "faces", "array:label", "array:flag"};
    each_sample([&](const std::string&, const Mesh& whole, const std::filesystem::path&) {
        Mesh mesh = whole;
        // Weights are not negative.
        auto& arrays = mesh.is_point_cloud() ? mesh.point_data : mesh.cell_data;
        arrays.clear();
        std::vector<std::int64_t> labels(mesh.num_rows());
        std::vector<std::uint8_t> flags(mesh.num_rows());
        for (std::size_t i = 0; i < labels.size(); ++i)
            labels[i] = static_cast<std::int64_t>(7 * i % 5), flags[i] = i % 3 == 0;
        arrays.push_back(DataArray::from("label", labels));
        arrays.push_back(DataArray::from("flag", flags));
        const auto file = folder_.path() / ("weights" + std::string(extension_of(mesh.kind)));
        write_mesh(file, mesh);
        const auto expected = row_weights(mesh, mesh_graph(mesh), names);
        for (const int num_ranks : {1, 3}) {
            std::vector<std::int32_t> found(expected.size());
            on_ranks(num_ranks, [&](RankMessages& messages) {
                const MappedMesh mapped(file);
                const CurveWindows windows(mapped, messages, 3, 0);
                const auto weights = window_weights(windows, messages, names);
                for (std::size_t i = 0; i < windows.ids().size(); ++i)
                    std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(i * names.size()), names.size(),
                                found.begin() + windows.ids()[i] * std::ssize(names));
            });
            EXPECT_EQ(found, expected) << num_ranks;
        }
    });
}

TEST(WindowCut, BalancesSeveralWeightsOverUnequalParts)
{
    const TemporaryFolder folder;
    const auto file = folder.path() / "tets.vtu";
    auto mesh = tet_cube(12);
    std::vector<float> cost(mesh.num_cells());
    for (std::size_t i = 0; i < cost.size(); ++i) cost[i] = i < cost.size() / 3 ? 5.5f : 1.0f;
    mesh.cell_data.push_back(DataArray::from("cost", cost));
    write_mesh(file, mesh);

    for (const std::string method : {"metis", "recursive", "scotch", "rcb", "auto", "hilbert"})
        for (const auto& weights :
             {std::vector<std::string>{"array:cost"}, std::vector<std::string>{"cells", "array:cost"}}) {
            if ((method == "hilbert" || method == "scotch") && weights.size() > 1) continue;  // which balance but one
            const WindowCutOptions options{
                .num_parts = 4, .method = method, .thorough = true, .weights = weights, .capacities = {1, 1, 2, 1}};
            const auto found = cut(file, {2, 3000, 0, 4, 1}, options);
            const auto integers = row_weights(mesh, cell_graph(mesh), weights);
            const BalanceTarget target{.imbalance = 1.03,
                                       .num_weights = static_cast<std::int32_t>(weights.size()),
                                       .row_weights = integers,
                                       .capacities = options.capacities};
            for (const auto imbalance : imbalances(found.partition, target))
                EXPECT_LE(imbalance, 1.03) << method << ' ' << weights.size();
            EXPECT_EQ(cut(file, {1, 3000, 0, 4, 1}, options).partition, found.partition);
        }
}

TEST(WindowCut, IsTheSameOnAnyNumberOfRanks)
{
    const TemporaryFolder folder;
    const auto file = folder.path() / "tets.vtu";
    write_mesh(file, tet_cube(8));

    for (const std::string method : {"metis", "recursive", "scotch", "rcb", "auto", "hilbert"}) {
        const WindowCutOptions options{.num_parts = 7, .seed = 3, .method = method, .contiguous = method != "hilbert"};
        const auto alone = cut(file, {1, 300, 0, 7, 1}, options);
        for (const int num_ranks : {2, 5})
            EXPECT_EQ(cut(file, {num_ranks, 300, 1 << 20, 7, 1}, options).partition, alone.partition)
                << method << ' ' << num_ranks;
    }
}

TEST(WindowCut, KeepsTheBoundAndIsNearMetis)
{
    const TemporaryFolder folder;
    const auto file = folder.path() / "tets.vtu";
    const auto mesh = tet_cube(16);
    write_mesh(file, mesh);

    const auto found = cut(file, {1, 4000, 0, 8, 1}, {.num_parts = 8});

    EXPECT_LE(found.quality.imbalance, 1.03);
    const auto direct = partition_with_metis(cell_graph(mesh), {.num_parts = 8});
    EXPECT_LT(found.quality.edge_cut, 1.25 * static_cast<double>(edge_cut(direct, cell_graph(mesh))));
}

TEST(WindowCut, KeepsPartsInOnePieceIfAskedTo)
{
    const TemporaryFolder folder;
    const auto file = folder.path() / "tets.vtu";
    const auto mesh = tet_cube(14);
    write_mesh(file, mesh);
    const auto graph = cell_graph(mesh);
    const auto num_in_pieces = [&](const std::string& method, bool contiguous, std::int32_t num_parts) {
        const auto found = cut(file, {1, 3000, 1 << 24, num_parts, 1},
                               {.num_parts = num_parts, .method = method, .contiguous = contiguous});
        EXPECT_LE(found.quality.imbalance, 1.03) << method << ' ' << num_parts;
        return parts_in_pieces(found.partition, graph).size();
    };

    EXPECT_GT(num_in_pieces("hilbert", false, 40), 0);  // else this shows nothing
    for (const std::string method : {"metis", "recursive", "scotch", "rcb", "auto", "hilbert"})
        for (const std::int32_t num_parts : {3, 40})
            EXPECT_EQ(num_in_pieces(method, true, num_parts), 0) << method << ' ' << num_parts;
}

TEST(WindowCut, LeavesIslandsOfTheMeshWhereTheyAre)
{
    const TemporaryFolder folder;
    const auto file = folder.path() / "islands.vtu";
    const auto mesh = islands(3, 200);
    write_mesh(file, mesh);

    const auto found = cut(file, {2, 90, 0, 2, 1}, {.num_parts = 2, .contiguous = true});

    EXPECT_LE(found.quality.imbalance, 1.03);
    EXPECT_EQ(found.quality.parts[0].num_components + found.quality.parts[1].num_components,
              4);  // three islands, one of them cut
}

TEST(WindowCut, CutsInLevels)
{
    const TemporaryFolder folder;
    const auto file = folder.path() / "tets.vtu";
    const auto mesh = tet_cube(14);
    write_mesh(file, mesh);
    const auto graph = cell_graph(mesh);

    for (const std::string method : {"metis", "rcb", "hilbert"}) {
        const auto found = cut(file, {2, 3000, 0, 8, 1}, {.num_parts = 8, .method = method, .levels = {2, 4}});
        EXPECT_LE(found.quality.imbalance, 1.03) << method;
        auto nodes = found.partition;
        nodes.num_parts = 2;
        for (auto& owner : nodes.owners) owner /= 4;
        EXPECT_LE(imbalance(nodes), 1.03) << method;
        const auto direct = partition_with_metis(graph, {.num_parts = 2});
        EXPECT_LT(edge_cut(nodes, graph), 1.5 * static_cast<double>(edge_cut(direct, graph))) << method;
    }
}

// Owners of each row in the file, as ranks know them of their own rows.
std::vector<std::int32_t> share_of(const std::vector<std::int32_t>& owners, const RankMessages& messages)
{
    const auto ranges = RankRanges::even(std::ssize(owners), messages.size());
    return {owners.begin() + ranges.begin(messages.rank()), owners.begin() + ranges.begin(messages.rank() + 1)};
}

struct Improved {
    Partition partition;
    Csr graph;                         // in the file's order
    std::vector<std::int32_t> owners;  // the same as `partition`, piece by piece
};

Improved improve(const Mesh& mesh, int num_ranks, const std::vector<std::int32_t>& given, WindowCutOptions options)
{
    Improved result{{options.num_parts, std::vector<std::int32_t>(given.size())}, {}, {}};
    const auto num_rows = static_cast<std::int64_t>(given.size());
    std::mutex mutex;
    on_ranks(num_ranks, [&](RankMessages& messages) {
        const HeldMesh held(mesh);
        const CurveWindows windows(held, messages, 1000, 0);
        const auto mine = share_of(given, messages);
        auto how = options;
        how.given = &mine;
        WindowCut cut(windows, messages, how);
        if (options.repair_given) cut.refine();
        cut.number_along_curve();
        cut.find_ghosts(1);
        EXPECT_EQ(cut.num_graph_entries(), mesh_graph(mesh).num_entries());
        cut.settle_points(std::vector<std::int32_t>(windows.first_cells().begin(), windows.first_cells().end()));
        for (auto w = windows.first_window(); w < windows.end_window(); ++w) {
            const std::lock_guard lock(mutex);
            for (std::int64_t i = 0; i < windows.size(w); ++i)
                result.partition.owners[windows.ids(w)[i]] = cut.owners(w)[i];
        }
        for (std::int64_t begin = 0; begin < num_rows; begin += 700) {
            const auto end = std::min(begin + 700, num_rows);
            const auto rows = cut.neighbors_in_file(begin, end);
            const auto owners = cut.owners_in_file(begin, end);
            EXPECT_EQ(rows.num_rows(), messages.rank() == 0 ? end - begin : 0);
            const std::lock_guard lock(mutex);
            for (std::int64_t i = 0; i < rows.num_rows(); ++i) result.graph.push_row(rows.row(i));
            result.owners.insert(result.owners.end(), owners.begin(), owners.end());
        }
    });
    return result;
}

TEST(WindowCut, KeepsWhatIsGivenAndSaysItInTheOrderOfTheFile)
{
    const auto mesh = tet_cube(9);
    std::vector<std::int32_t> given(mesh.num_cells());
    for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<std::int32_t>(i * i % 5);

    for (const int num_ranks : {1, 2, 3}) {
        const auto found = improve(mesh, num_ranks, given, {.num_parts = 5});
        EXPECT_EQ(found.partition.owners, given) << num_ranks;
        EXPECT_EQ(found.owners, given) << num_ranks;
        EXPECT_EQ(found.graph, mesh_graph(mesh)) << num_ranks;
    }
}

TEST(WindowCut, ImprovesWhatIsGiven)
{
    const auto mesh = tet_cube(12);
    const auto graph = mesh_graph(mesh);
    std::vector<std::int32_t> given(
        mesh.num_cells());  // three slabs of unequal thickness with islands, which are all that the fourth part has
    for (std::size_t i = 0; i < given.size(); ++i)
        given[i] = i % 211 == 0               ? static_cast<std::int32_t>(i / 211 % 4)
                   : i < given.size() / 2     ? 0
                   : i < given.size() / 4 * 3 ? 1
                                              : 2;
    const Partition before{4, given};
    ASSERT_GT(imbalance(before), 1.9);

    for (const bool contiguous : {false, true}) {
        const WindowCutOptions options{.num_parts = 4, .repair_given = true, .contiguous = contiguous};
        const auto found = improve(mesh, 1, given, options);
        EXPECT_LE(imbalance(found.partition), 1.03) << contiguous;
        EXPECT_LT(edge_cut(found.partition, graph), 3 * edge_cut(before, graph)) << contiguous;
        EXPECT_EQ(found.owners, found.partition.owners);
        if (contiguous) {
            EXPECT_TRUE(parts_in_pieces(found.partition, graph).empty());
        }
        for (const int num_ranks : {2, 3})
            EXPECT_EQ(improve(mesh, num_ranks, given, options).partition, found.partition) << num_ranks;
    }
}

TEST(WindowCut, AlongTheCurveLeavesNoPartEmptyNorAboveItsBound)
{
    auto mesh = tet_cube(12);
    const auto num_cells = mesh.num_cells();
    std::vector<float> heavy(num_cells, 1), mixed(num_cells, 1);
    heavy[num_cells / 2] = 50'000;
    for (std::int64_t i = 0; i < num_cells; i += 501) mixed[i] = 1000;
    mesh.cell_data = {DataArray::from("heavy", heavy), DataArray::from("mixed", mixed)};
    for (const auto& [num_ranks, cells_a_window] : {std::pair{1, 1000}, {3, 1000}, {2, 100'000}}) {
        on_ranks(num_ranks, [&](RankMessages& messages) {
            const HeldMesh held(mesh);
            const CurveWindows windows(held, messages, cells_a_window, 0);
            for (const std::string name : {"heavy", "mixed"}) {
                const WindowCut cut(windows, messages,
                                    {.num_parts = 8, .method = "hilbert", .weights = {"array:" + name}});
                std::vector<std::int64_t> sizes(8);
                for (auto w = windows.first_window(); w < windows.end_window(); ++w)
                    for (const auto owner : cut.owners(w)) ++sizes[owner];
                sizes = sum_everywhere(messages, sizes);
                EXPECT_GT(std::ranges::min(sizes), 0) << name;
                if (name == "mixed") {
                    EXPECT_LE(cut.imbalances()[0], 1.03);
                }
            }
        });
    }
}

TEST(WindowCut, RefusesToImproveWhatIsTooScattered)
{
    const auto mesh = tet_cube(9);
    std::vector<std::int32_t> given(mesh.num_cells());
    for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<std::int32_t>(i % 5);

    EXPECT_TRUE(throws_with<InvalidInput>("too scattered", [&] {
        RankMessages alone;
        const HeldMesh held(mesh);
        const CurveWindows windows(held, alone, 1000, 0);
        WindowCut(windows, alone, {.num_parts = 5, .given = &given, .repair_given = true, .most_blocks = 100});
    }));
}

TEST(CurveWindows, FindsDuplicateCellsAcrossWindows)
{
    const TemporaryFolder folder;
    auto mesh = tet_cube(3);
    mesh.cell_data.clear();
    const auto num_cells = mesh.num_cells();
    for (const std::int32_t cell : {5, 17, 5, 160, 99}) {
        auto points = std::vector<std::int32_t>(mesh.cells.row(cell).begin(), mesh.cells.row(cell).end());
        std::swap(points[0], points[3]);
        mesh.cells.push_row(points);
        mesh.cell_types.push_back(mesh.cell_types[cell]);
    }
    write_mesh(folder.path() / "twice.vtu", mesh);
    const auto expected = find_faults(mesh);
    ASSERT_EQ(expected.duplicate_cells, 5);
    ASSERT_EQ(expected.first_duplicate, num_cells);

    for (const int num_ranks : {1, 2, 3})
        for (const std::int64_t cells_a_window : {1, 2, 7, 50, 1000})
            on_ranks(num_ranks, [&](RankMessages& messages) {
                const MappedMesh mapped(folder.path() / "twice.vtu");
                const auto faults = CurveWindows(mapped, messages, cells_a_window, 0).faults();
                EXPECT_EQ(faults.duplicate_cells, expected.duplicate_cells) << num_ranks << ' ' << cells_a_window;
                EXPECT_EQ(faults.first_duplicate, expected.first_duplicate) << num_ranks << ' ' << cells_a_window;
                EXPECT_EQ(faults.inverted_cells, expected.inverted_cells);
            });
}

TEST(CurveWindows, RefusesCoordinatesThatAreNoNumbers)
{
    const TemporaryFolder folder;
    auto mesh = cube(2);
    mesh.points.mutable_values<double>()[4] = std::numeric_limits<double>::quiet_NaN();
    write_mesh(folder.path() / "nan.vtu", mesh);
    const MappedMesh mapped(folder.path() / "nan.vtu");
    RankMessages alone;

    EXPECT_TRUE(throws_with<InvalidInput>("1 coordinate that is NaN", [&] { CurveWindows(mapped, alone, 4, 0); }));
}

}  // namespace
}  // namespace meshard
