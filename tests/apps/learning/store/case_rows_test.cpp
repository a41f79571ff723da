// SPDX-License-Identifier: Apache-2.0
// Stored cases: the rows of the whole mesh on any number of ranks, whole or chosen; damaged files are named, and made
// anew.
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/cases/shard_cache.h"
#include "apps/learning/store/case_rows.h"
#include "apps/learning/store/row_file.h"
#include "io/mesh_io.h"
#include "partition/error.h"
#include "sharding/exchange/row_routes.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/stored_case.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <fstream>
#include <numeric>

namespace meshard {
namespace {

namespace fs = std::filesystem;

/// A sphere with two fields, cut into four parts.
class StoredCases : public testing::Test {
protected:
    StoredCases()
    {
        mesh_.point_data.clear();
        std::vector<float> pressure, shear;
        for (std::int64_t i = 0; i < mesh_.num_cells(); ++i) {
            pressure.push_back(1000 + std::sin(0.1F * static_cast<float>(i)));
            for (int c = 0; c < 3; ++c) shear.push_back(static_cast<float>(i % (c + 5)));
        }
        mesh_.cell_data = {DataArray::from("p", pressure), DataArray::from("tau", shear, 3)};
        write_mesh(source_.file, mesh_);
        data_.fields = {{"pressure", "p", "static"}, {"wss", "tau", "stress"}};
        data_.normals = "Normals";
        data_.frame = {"bounds", "bounds"};
        shards_ = prepare_shards(source_, {.folder = folder_ / "shards", .num_parts = 4});
        std::vector<std::int64_t> all(mesh_.num_cells());
        std::iota(all.begin(), all.end(), 0);
        told_ = point_inputs(mesh_, all, data_, case_frame(data_.frame, point_bounds(mesh_), source_), "whole");
        target_ = field_values(mesh_, all, data_, "whole");
    }

    StoredCase store() const { return store_case({folder_ / "store", {}, data_}, source_, shards_); }

    /// The files of the stored case that begin so.
    std::vector<fs::path> files(const std::string& begin) const
    {
        std::vector<fs::path> found;
        for (const auto& entry : fs::recursive_directory_iterator(folder_ / "store")) {
            if (entry.path().filename().string().starts_with(begin)) found.push_back(entry.path());
        }
        std::ranges::sort(found);
        return found;
    }

    const TemporaryFolder folder_;
    Mesh mesh_ = sphere(12);
    CaseSource source_{"7", folder_ / "body_7.vtp", {{"speed", "3"}}};
    DataConfig data_;
    fs::path shards_;
    at::Tensor told_, target_;
};

TEST_F(StoredCases, HaveTheRowsOfTheWholeOnAnyNumberOfRanks)
{
    const auto stored = store();
    EXPECT_EQ(stored.num_rows, mesh_.num_cells());
    EXPECT_EQ(stored.channels, (std::vector<std::int64_t>{1, 3}));
    for (const int num_ranks : {1, 2, 3, 6}) {  // of six ranks some have no part
        run_ranks(num_ranks, [&](const std::shared_ptr<const DeviceMesh>& domain) {
            const at::NoGradGuard no_grad;
            const Shares equal(num_ranks, 1);
            Shares growing(num_ranks);
            std::iota(growing.begin(), growing.end(), 1);
            for (const auto& [shares, order] : {std::pair(equal, RowOrder::Parts), std::pair(growing, RowOrder::Parts),
                                                std::pair(equal, RowOrder::Ids)}) {
                const RankOfCase rank{domain->coordinate(0), shares, order};
                auto rows = read_rows(stored, rank);
                EXPECT_EQ(rows.num_rows(), rows_of_ranks(stored, shares, order)[rank.rank]);
                EXPECT_TRUE(std::ranges::is_sorted(rows.ids));
                const auto tensors = case_tensors(std::move(rows), stored, source_, data_, shares, order, domain);
                EXPECT_EQ(tensors.num_points, mesh_.num_cells());
                EXPECT_TRUE(torch::equal(full_tensor_in_global_order(tensors.inputs.embedding).squeeze(0), told_));
                EXPECT_TRUE(torch::equal(full_tensor_in_global_order(tensors.inputs.positions).squeeze(0),
                                         told_.narrow(1, 0, 3)));
                EXPECT_TRUE(torch::equal(full_tensor_in_global_order(tensors.target).squeeze(0), target_));
            }
        });
    }
}

TEST_F(StoredCases, GiveChosenRowsOnAnyNumberOfRanks)
{
    const auto stored = store();
    const StoredOrder stored_order(stored.num_rows, "7");
    const RowChoice scattered{drawn_points(stored.num_rows, 37, 5, "7", 2), {}};
    const RowChoice together{stored_order.drawn_ids(37, 5, 2), stored_order.drawn_ranges(37, 5, 2)};
    for (const auto* choice : {&scattered, &together}) {
        const auto index = torch::tensor(choice->ids, torch::kLong);
        for (const int num_ranks : {1, 2, 3, 6}) {
            run_ranks(num_ranks, [&](const std::shared_ptr<const DeviceMesh>& domain) {
                const at::NoGradGuard no_grad;
                for (const auto order : {RowOrder::Parts, RowOrder::Ids}) {
                    auto rows =
                        read_rows(stored, {domain->coordinate(0), Shares(num_ranks, 1), order}, {.choice = choice});
                    const auto tensors =
                        case_tensors(std::move(rows), stored, source_, data_, Shares(num_ranks, 1), order, domain, 37);
                    EXPECT_EQ(tensors.num_points, 37);
                    EXPECT_TRUE(torch::equal(full_tensor_in_global_order(tensors.inputs.embedding).squeeze(0),
                                             told_.index_select(0, index)));
                    EXPECT_TRUE(torch::equal(full_tensor_in_global_order(tensors.target).squeeze(0),
                                             target_.index_select(0, index)));
                }
            });
        }
    }
}

TEST_F(StoredCases, GiveChosenRowsOfSeveralBlocks)
{
    mesh_ = sphere(270);
    mesh_.point_data.clear();
    std::vector<float> ids(mesh_.num_cells());
    std::iota(ids.begin(), ids.end(), 0.0F);
    mesh_.cell_data = {DataArray::from("p", ids)};
    write_mesh(source_.file, mesh_);
    data_.fields = {{"pressure", "p", ""}};
    data_.inputs = {"points"};
    shards_ = prepare_shards(source_, {.folder = folder_ / "shards", .num_parts = 3});
    const auto stored = store();
    const StoredOrder order(stored.num_rows, "7");
    ASSERT_GE(order.num_blocks(), 2);
    for (const std::int64_t count : {std::int64_t{17}, std::int64_t{5000}, stored.num_rows / 2}) {
        for (const std::int64_t epoch : {1, 2, 7}) {
            const RowChoice choice{order.drawn_ids(count, 5, epoch), order.drawn_ranges(count, 5, epoch)};
            std::vector<std::int64_t> found;
            for (std::int64_t rank = 0; rank < 2; ++rank) {
                const auto rows = read_rows(stored, {rank, {1, 1}, RowOrder::Parts}, {.choice = &choice});
                for (std::int64_t i = 0; i < rows.num_rows(); ++i) {
                    EXPECT_EQ(static_cast<float>(choice.ids[rows.ids[i]]), rows.target.const_data_ptr<float>()[i]);
                    found.push_back(rows.ids[i]);
                }
            }
            std::ranges::sort(found);
            std::vector<std::int64_t> all(count);
            std::iota(all.begin(), all.end(), 0);
            EXPECT_EQ(found, all) << count << " points in epoch " << epoch;
        }
    }
}

TEST_F(StoredCases, LieInTheOrderInWhichBlocksAreDrawn)
{
    const auto stored = store();
    const StoredOrder order(stored.num_rows, "7");
    for (const auto& part : stored.parts) {
        const RowFile file(stored.folder / part.file, stored.key);
        const auto& rows = file.rows();
        for (std::int64_t i = 0; i + 1 < rows.num_rows(); ++i)
            EXPECT_LT(order.place_of(rows.ids[i]), order.place_of(rows.ids[i + 1]));
        for (std::int64_t i = 0; i + 1 < rows.num_rows(); ++i)
            EXPECT_LT(rows.ids[rows.order[i]], rows.ids[rows.order[i + 1]]);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows.values.data()) % 4096, 0U);
    }
}

TEST_F(StoredCases, HaveTheAreasOfTheWholeHoweverTheyAreCut)
{
    for (const bool on_cells : {true, false}) {
        data_.on_cells = on_cells;
        if (!on_cells) mesh_.point_data = {DataArray::from("p", std::vector<float>(mesh_.num_points(), 1.0F))};
        data_.fields = {{"pressure", "p", "static"}};
        data_.inputs = {"points"};
        write_mesh(source_.file, mesh_);
        auto whole = mesh_;
        add_areas(whole, on_cells, "whole");
        const auto& expected = require_array(on_cells ? whole.cell_data : whole.point_data, kAreas, "whole", "area");
        for (const int num_parts : {1, 2, 5}) {
            shards_ = prepare_shards(source_, {.folder = folder_ / "shards", .num_parts = num_parts});
            const auto stored = store();
            EXPECT_EQ(stored.measures.kind, MeasureKind::Areas);
            EXPECT_NEAR(stored.measures.mean * static_cast<double>(stored.num_rows), 4 * 3.14159265, 0.5)
                << "area of a sphere of triangles";
            for (const int num_ranks : {1, 2, 3, 6}) {
                run_ranks(num_ranks, [&](const std::shared_ptr<const DeviceMesh>& domain) {
                    const at::NoGradGuard no_grad;
                    for (const auto order : {RowOrder::Parts, RowOrder::Ids}) {
                        const RankOfCase rank{domain->coordinate(0), Shares(num_ranks, 1), order};
                        const auto tensors = case_tensors(read_rows(stored, rank, {.with_measures = true}), stored,
                                                          source_, data_, rank.shares, order, domain);
                        const auto found = full_tensor_in_global_order(tensors.measures).reshape({-1}).contiguous();
                        ASSERT_EQ(found.size(0), stored.num_rows);
                        for (std::int64_t i = 0; i < found.size(0); ++i)
                            ASSERT_EQ(found.const_data_ptr<float>()[i], static_cast<float>(expected.value(i))) << i;
                        const RowChoice choice{{1, 5, 6, 20}, {}};
                        const auto some = read_rows(stored, rank, {.choice = &choice, .with_measures = true});
                        for (std::int64_t i = 0; i < some.num_rows(); ++i)
                            EXPECT_EQ(some.measures.const_data_ptr<float>()[i],
                                      static_cast<float>(expected.value(choice.ids[some.ids[i]])));
                    }
                });
            }
        }
    }
}

TEST_F(StoredCases, HaveTheVolumesOfSolidsAndNothingOfClouds)
{
    mesh_ = cube(3);
    mesh_.cell_data = {DataArray::from("p", std::vector<float>(mesh_.num_cells(), 1.0F))};
    mesh_.point_data = {DataArray::from("p", std::vector<float>(mesh_.num_points(), 1.0F))};
    source_.file = folder_ / "body_7.vtu";
    write_mesh(source_.file, mesh_);
    data_.fields = {{"pressure", "p", "static"}};
    data_.inputs = {"points"};
    shards_ = prepare_shards(source_, {.folder = folder_ / "shards", .num_parts = 3});
    const auto of_cells = store();
    EXPECT_EQ(of_cells.measures.kind, MeasureKind::Volumes);
    const MeasureFile volumes(of_cells);
    for (const auto value : volumes.values()) EXPECT_NEAR(value, 1, 1e-6) << "cubes of one size";
    data_.on_cells = false;
    const auto of_points = store();
    double sum = 0;
    const MeasureFile shares(of_points);
    for (const auto value : shares.values()) sum += of_points.measures.mean * value;
    EXPECT_NEAR(sum, of_cells.measures.mean * static_cast<double>(of_cells.num_rows), 1e-6 * sum)
        << "points share out all volume";

    mesh_ = random_cloud(40, 1);
    mesh_.point_data = {DataArray::from("p", std::vector<float>(40, 1.0F))};
    source_.file = folder_ / "body_7.vtp";
    write_mesh(source_.file, mesh_);
    shards_ = prepare_shards(source_, {.folder = folder_ / "shards", .num_parts = 2});
    const auto of_cloud = store();
    EXPECT_EQ(of_cloud.measures.kind, MeasureKind::None);
    EXPECT_TRUE(throws_with<InvalidInput>("case 7: its rows have neither areas nor volumes",
                                          [&] { read_rows(of_cloud, {}, {.with_measures = true}); }));
}

TEST_F(StoredCases, AreNamedWhenTheirAreasAreDamaged)
{
    const auto stored = store();
    const auto file = MeasureFile::path_of(stored);
    EXPECT_EQ(fs::file_size(file), 4U * static_cast<std::uintmax_t>(stored.num_rows));
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.put('x');
    stream.close();
    EXPECT_TRUE(throws_with<IoError>(file.string() + " is damaged: what it has from byte 0 on",
                                     [&] { read_rows(stored, {}, {.with_measures = true}); }));
    EXPECT_EQ(read_rows(stored, {}).num_rows(), stored.num_rows) << "not looked at where they are not asked for";
    fs::resize_file(file, 8);
    EXPECT_TRUE(
        throws_with<IoError>(file.string() + " is damaged: it has 8 bytes", [&] { check_files(stored, {}, true); }));
    check_files(stored, {}, false);
    EXPECT_EQ(fs::file_size(MeasureFile::path_of(store())), 4U * static_cast<std::uintmax_t>(stored.num_rows))
        << "made anew";
}

TEST_F(StoredCases, HaveTheStatisticsOfAllRows)
{
    ChannelStatistics merged;
    for (const auto& of_part : store().statistics) merged.merge(of_part);
    const auto values = target_.to(torch::kDouble);
    const auto mean = values.mean(0), differences = (values - mean).square().sum(0);
    ASSERT_EQ(merged.num_rows(), mesh_.num_cells());
    for (std::int64_t c = 0; c < 4; ++c) {
        EXPECT_NEAR(merged.mean()[c], mean[c].item<double>(), 1e-12 * std::abs(mean[c].item<double>()) + 1e-15);
        EXPECT_NEAR(merged.squared_differences()[c], differences[c].item<double>(),
                    1e-9 * differences[c].item<double>());
    }
}

TEST_F(StoredCases, AreKeptAndSharedByWhatTheyDependOn)
{
    const auto folder = store().folder;
    const auto time = fs::last_write_time(folder / "case.json");
    EXPECT_EQ(store().folder, folder);
    EXPECT_EQ(fs::last_write_time(folder / "case.json"), time) << "stored again";
    data_.num_sampled = 10;
    data_.sampling = SamplingKind::Blocks;
    EXPECT_EQ(store().folder, folder) << "points of a step are no matter of the store";
    data_.inputs = {"points"};
    EXPECT_NE(store().folder, folder);
    EXPECT_EQ(store().num_inputs, 3);
    data_.inputs = {"points", "normals"};
    data_.frame.length = "2";
    EXPECT_NE(store().folder, folder);
    data_.frame.length = "speed";
    const auto of_speed = store().folder;
    source_.columns["speed"] = "4";
    EXPECT_NE(store().folder, of_speed) << "points are divided by another length";
}

TEST_F(StoredCases, AreNamedWhenAFileIsCutShort)
{
    const auto stored = store();
    const auto file = files("part_0002").front();
    fs::resize_file(file, fs::file_size(file) - 1);

    EXPECT_TRUE(throws_with<IoError>(file.string() + " is damaged: it has", [&] { check_files(stored, {}, false); }));
    EXPECT_TRUE(throws_with<IoError>(file.string() + " is damaged: it has", [&] { read_rows(stored, {}); }));
    fs::resize_file(file, 100);
    EXPECT_TRUE(throws_with<IoError>(file.string() + " is damaged: it does not begin",
                                     [&] { check_files(stored, {}, false); }));
    fs::remove(file);
    EXPECT_TRUE(throws_with<IoError>(file.string() + " does not exist", [&] { check_files(stored, {}, false); }));
}

TEST_F(StoredCases, AreNamedWhenBytesHaveChanged)
{
    const auto stored = store();
    const auto file = files("part_0001").front();
    for (const std::streamoff position : {std::streamoff{4096}, static_cast<std::streamoff>(fs::file_size(file)) - 1}) {
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekg(position);
        const auto byte = static_cast<char>(stream.get() ^ 1);
        stream.seekp(position);
        stream.put(byte);
        stream.close();
        EXPECT_TRUE(throws_with<IoError>(file.string() + " is damaged: what it has from byte", [&] {
            read_rows(stored, {});
        })) << position;
        std::fstream again(file, std::ios::in | std::ios::out | std::ios::binary);
        again.seekp(position);
        again.put(static_cast<char>(byte ^ 1));
    }
    EXPECT_EQ(read_rows(stored, {}).num_rows(), mesh_.num_cells());
}

TEST_F(StoredCases, AreMadeAnewWhenTheyAreDamaged)
{
    const auto before = read_rows(store(), {});
    const std::vector<std::function<void()>> damages{
        [&] { fs::resize_file(files("part_0003").front(), 5000); }, [&] { fs::remove(files("part_0000").front()); },
        [&] { std::ofstream(files("case.json").front()) << "{"; }, [&] { fs::remove(files("case.json").front()); }};
    for (const auto& damage : damages) {
        damage();
        const auto again = read_rows(store(), {});
        EXPECT_TRUE(torch::equal(again.target, before.target));
    }
}

TEST_F(StoredCases, AreRefusedByName)
{
    data_.fields.push_back({"heat", "tua", "scalar"});
    EXPECT_TRUE(throws_with<InvalidInput>("case 7 has no cell field 'tua'", [&] { store(); }));
    EXPECT_TRUE(throws_with<InvalidInput>("tau", [&] { store(); }));
    EXPECT_TRUE(files("part").empty());
    data_.fields.pop_back();
    data_.on_cells = false;
    EXPECT_TRUE(throws_with<InvalidInput>("case 7 has no point field 'p'", [&] { store(); }));
}

}  // namespace
}  // namespace meshard
