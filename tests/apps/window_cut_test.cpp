// SPDX-License-Identifier: Apache-2.0
#include "apps/window_cut.h"

#include "apps/window_weights.h"
#include "io/mesh_io.h"
#include "partition/ghost_graph.h"
#include "partition/ghost_layer.h"
#include "partition/mesh_graph.h"
#include "partition/metis_partitioner.h"
#include "partition/refinement.h"
#include "partition/row_weights.h"
#include "partition/subdomain.h"
#include "tests/support/expect_error.h"
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

    std::vector<std::vector<RankMessages::Bytes>> mail; // [to][from]
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
    GhostNeighbors neighbors = GhostNeighbors::Face;
};

Found cut(const std::filesystem::path& file, const Case& c, const WindowCutOptions& options)
{
    const auto num_cells = MappedMesh(file).num_cells();
    std::vector<std::vector<std::int32_t>> rows(num_cells);
    Found found;
    found.partition = {options.num_parts, std::vector<std::int32_t>(num_cells, -1)};
    found.parts.resize(options.num_parts);
    std::mutex mutex;
    on_ranks(c.num_ranks, [&](RankMessages& messages) {
        const MappedMesh mesh(file);
        const auto a_dozen = mesh.num_cells() / 12; // more windows find no more
        CurveWindows windows(mesh, messages, std::max(c.cells_a_window, a_dozen), c.cache_bytes);
        const auto all_ids = gather_everywhere(messages, std::vector<std::int32_t>(windows.ids().begin(), windows.ids().end()));
        for (auto w = windows.first_window(); w < windows.end_window(); ++w) {
            const auto graph = windows.graph(w);
            const std::lock_guard lock(mutex);
            for (std::int32_t cell = 0; cell < graph.num_cells; ++cell)
                for (const auto j : graph.graph.row(cell))
                    rows[windows.ids(w)[cell]].push_back(j < graph.num_cells ? windows.ids(w)[j] : all_ids[graph.outside[j - graph.num_cells]]);
        }
        WindowCut cut(windows, messages, options);
        cut.refine();
        cut.number_along_curve();
        const auto quality = cut.find_ghosts(c.num_layers, c.neighbors);
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
            if (mesh.is_point_cloud() || std::ranges::all_of(mesh.cell_types, [](auto type) { return type == 1; })) continue;
            const auto file = folder_.path() / (name + extension_of(mesh.kind));
            write_mesh(file, mesh);
            SCOPED_TRACE(name);
            f(name, mesh, file);
        }
    }

    TemporaryFolder folder_;
};

TEST_F(WindowCutOfSamples, FindsTheGraphOfTheWholeMesh)
{
    each_sample([&](const std::string&, const Mesh& mesh, const std::filesystem::path& file) {
        const auto expected = cell_graph(mesh);
        for (const Case c : {Case{1, 1, 0, 2, 1}, Case{1, 3, 0, 2, 1}, Case{2, 4, 1 << 20, 3, 1}, Case{3, 5, 0, 3, 1}, Case{1, 1 << 20, 0, 2, 1}}) {
            const auto found = cut(file, c, {.num_parts = c.num_parts});
            EXPECT_EQ(found.graph, expected) << c.num_ranks << " ranks, windows of " << c.cells_a_window;
        }
    });
}

TEST_F(WindowCutOfSamples, FindsGhostsPointsAndQualityOfTheWholeMesh)
{
    each_sample([&](const std::string&, const Mesh& mesh, const std::filesystem::path& file) {
        const auto graph = cell_graph(mesh);
        for (const Case c : {Case{1, 3, 0, 3, 1}, Case{2, 4, 0, 4, 2}, Case{3, 2, 1 << 20, 2, 3}, Case{2, 7, 0, 3, 0}, Case{1, 3, 0, 3, 2, GhostNeighbors::Vertex},
                             Case{3, 2, 0, 4, 1, GhostNeighbors::Vertex}, Case{1, 4, 0, 3, 3, GhostNeighbors::Edge}, Case{2, 3, 0, 4, 1, GhostNeighbors::Edge}}) {
            if (c.num_parts > mesh.num_cells()) continue;
            const auto found = cut(file, c, {.num_parts = c.num_parts});
            ASSERT_NO_THROW(found.partition.validate());
            const auto ghosts = ghost_layers(ghost_graph(mesh, {.neighbors = c.neighbors}), found.partition, c.num_layers);
            for (std::int32_t part = 0; part < c.num_parts; ++part) {
                std::map<std::int32_t, std::int32_t> expected, levels;
                for (std::size_t i = 0; i < ghosts[part].rows.size(); ++i) expected[ghosts[part].rows[i]] = ghosts[part].levels[i];
                for (const auto& ghost : found.parts[part].ghosts) {
                    levels[ghost.id] = ghost.level;
                    EXPECT_EQ(ghost.owner, found.partition.owners[ghost.id]);
                }
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
    });
}

TEST_F(WindowCutOfSamples, WeighsCellsAsInTheWholeMesh)
{
    const std::vector<std::string> names{"cells", "points", "faces", "array:label", "array:flag"};
    each_sample([&](const std::string&, const Mesh& whole, const std::filesystem::path&) {
        Mesh mesh = whole;
        // Weights are not negative.
        mesh.cell_data.clear();
        std::vector<std::int64_t> labels(mesh.num_cells());
        std::vector<std::uint8_t> flags(mesh.num_cells());
        for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(7 * i % 5), flags[i] = i % 3 == 0;
        mesh.cell_data.push_back(DataArray::from("label", labels));
        mesh.cell_data.push_back(DataArray::from("flag", flags));
        const auto file = folder_.path() / ("weights" + std::string(extension_of(mesh.kind)));
        write_mesh(file, mesh);
        const auto expected = row_weights(mesh, cell_graph(mesh), names);
        for (const int num_ranks : {1, 3}) {
            std::vector<std::int32_t> found(expected.size());
            on_ranks(num_ranks, [&](RankMessages& messages) {
                const MappedMesh mapped(file);
                const CurveWindows windows(mapped, messages, 3, 0);
                const auto weights = window_weights(windows, messages, names);
                for (std::size_t i = 0; i < windows.ids().size(); ++i)
                    std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(i * names.size()), names.size(), found.begin() + windows.ids()[i] * std::ssize(names));
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

    for (const bool by_curve : {false, true})
        for (const auto& weights : {std::vector<std::string>{"array:cost"}, std::vector<std::string>{"cells", "array:cost"}}) {
            if (by_curve && weights.size() > 1) continue; // a run along the curve has but one length
            const WindowCutOptions options{.num_parts = 4, .by_curve = by_curve, .thorough = true, .weights = weights, .capacities = {1, 1, 2, 1}};
            const auto found = cut(file, {2, 3000, 0, 4, 1}, options);
            const auto integers = row_weights(mesh, cell_graph(mesh), weights);
            const BalanceTarget target{.imbalance = 1.03, .num_weights = static_cast<std::int32_t>(weights.size()), .row_weights = integers, .capacities = options.capacities};
            for (const auto imbalance : imbalances(found.partition, target)) EXPECT_LE(imbalance, 1.03) << by_curve << ' ' << weights.size();
            EXPECT_EQ(cut(file, {1, 3000, 0, 4, 1}, options).partition, found.partition);
        }
}

TEST(WindowCut, IsTheSameOnAnyNumberOfRanks)
{
    const TemporaryFolder folder;
    const auto file = folder.path() / "tets.vtu";
    write_mesh(file, tet_cube(8));

    for (const bool by_curve : {false, true}) {
        const WindowCutOptions options{.num_parts = 7, .seed = 3, .by_curve = by_curve};
        const auto alone = cut(file, {1, 300, 0, 7, 1}, options);
        for (const int num_ranks : {2, 5}) EXPECT_EQ(cut(file, {num_ranks, 300, 1 << 20, 7, 1}, options).partition, alone.partition) << num_ranks;
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

} // namespace
} // namespace meshard
