// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/ranks/device_mesh.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

TEST(DeviceMesh, NumbersTheLastAxisFastest)
{
    run_ranks({2, 3}, {"data", "domain"}, [](const auto& mesh) {
        const auto rank = mesh->all().rank();

        EXPECT_EQ(mesh->coordinate(mesh->axis("data")), rank / 3);
        EXPECT_EQ(mesh->coordinate(mesh->axis("domain")), rank % 3);
        EXPECT_EQ(mesh->sub_mesh("domain")->num_ranks(), 3);
        EXPECT_EQ(mesh->sub_mesh("domain"), mesh->sub_mesh("domain"));
    });
}

TEST(DeviceMesh, ReducesAlongOneAxisOnly)
{
    run_ranks({2, 3}, {"data", "domain"}, [](const auto& mesh) {
        auto x = at::full({1}, static_cast<double>(mesh->all().rank()), at::kDouble);

        mesh->group(mesh->axis("domain")).all_reduce(x);

        const double first = 3.0 * mesh->coordinate(0);  // ranks 0 1 2 or 3 4 5
        EXPECT_EQ(x.item<double>(), 3 * first + 3);
    });
}

TEST(DeviceMesh, SaysHowManyRanksItsShapeNeeds)
{
    run_ranks(3, [](const auto& mesh) {
        struct OneRank : GroupFactory {
            int rank() const override { return 0; }
            int size() const override { return 3; }
            RankGroup make_group(const std::vector<int>&, const std::string&, std::shared_ptr<CommCounter>) override
            {
                return {};
            }
        } factory;
        (void)mesh;
        try {
            DeviceMesh::create(factory, {2, 2}, {"data", "domain"});
            ADD_FAILURE() << "accepted 2 x 2 axes for 3 ranks";
        } catch (const InvalidInput& error) {
            EXPECT_NE(std::string(error.what()).find("2 x 2 makes 4 ranks, but there are 3"), std::string::npos)
                << error.what();
        }
    });
}

TEST(DeviceMesh, FoldsAnAxisWhoseRanksStayInARow)
{
    run_ranks_of_factory(12, [](GroupFactory& ranks) {
        const auto mesh = DeviceMesh::create(ranks, {2, 6}, {"data", "domain"}), domain = mesh->sub_mesh("domain");
        const auto blocks = mesh->folded(ranks, "domain", {3, 2});

        EXPECT_EQ(blocks->axis_names(), (std::vector<std::string>{"domain.0", "domain.1"}));
        EXPECT_EQ(blocks->num_ranks(), 6);
        EXPECT_EQ(blocks->in_a_row(), domain);
        EXPECT_EQ(domain->in_a_row(), domain);
        EXPECT_EQ(mesh->in_a_row()->num_ranks(), 12);
        EXPECT_EQ(2 * blocks->coordinate(0) + blocks->coordinate(1), domain->coordinate(0));
        auto x = at::full({1}, static_cast<double>(mesh->all().rank()), at::kDouble);
        blocks->group(0).all_reduce(x);  // ranks 0 2 4, 1 3 5, 6 8 10 or 7 9 11
        EXPECT_EQ(x.item<double>(), 3.0 * (6 * mesh->coordinate(0) + blocks->coordinate(1)) + 6);
        EXPECT_EQ(mesh->folded(ranks, "domain", {6}), domain);
        EXPECT_TRUE(throws_with<InvalidInput>("2 x 2 makes 4 ranks, but there are 6",
                                              [&] { mesh->folded(ranks, "domain", {2, 2}); }));
    });
}

TEST(DeviceMesh, FoldsAnAxisInSeveralWays)
{
    run_ranks_of_factory(4, [](GroupFactory& ranks) {
        const auto mesh = DeviceMesh::create(ranks, {4}, {"domain"});
        for (const auto& shape : std::vector<std::vector<std::int64_t>>{{1, 2, 2}, {2, 2, 1}, {4, 1}, {1, 2, 2}}) {
            const auto blocks = mesh->folded(ranks, "domain", shape);
            std::int64_t place = 0;
            for (std::int64_t axis = 0; axis < blocks->num_axes(); ++axis) {
                place = place * blocks->size(axis) + blocks->coordinate(axis);
                auto number = at::full({1}, blocks->coordinate(axis), at::kLong);
                blocks->group(axis).all_reduce(number);
                EXPECT_EQ(number.item<std::int64_t>(), blocks->size(axis) * (blocks->size(axis) - 1) / 2);
            }
            EXPECT_EQ(place, mesh->coordinate(0));
        }
    });
}

TEST(DeviceMesh, NamesTheAxesThereAre)
{
    const auto mesh = DeviceMesh::single();
    try {
        mesh->axis("data");
        ADD_FAILURE() << "found an axis that is not there";
    } catch (const InvalidInput& error) {
        EXPECT_NE(std::string(error.what()).find("The axes are 'domain'"), std::string::npos) << error.what();
    }
}

TEST(DeviceMesh, RefusesOtherAxesOnOtherRanks)
{
    run_ranks_of_factory(2, [](GroupFactory& factory) {
        const auto make = [&](std::vector<std::int64_t> shape, std::vector<std::string> names) {
            DeviceMesh::create(factory, std::move(shape), std::move(names));
        };
        const bool first = factory.rank() == 0;
        EXPECT_TRUE(throws_with<InvalidInput>("ask for other axes", [&] {
            make(first ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{2, 1}, {"data", "domain"});
        }));
        EXPECT_TRUE(throws_with<InvalidInput>("ask for other axes", [&] { make({2}, {first ? "data" : "domain"}); }));
        EXPECT_TRUE(throws_with<InvalidInput>("an axis of -2 ranks", [&] { make({-2, -1}, {"data", "domain"}); }));
        EXPECT_TRUE(throws_with<InvalidInput>("are named 'domain'", [&] { make({2, 1}, {"domain", "domain"}); }));
        EXPECT_TRUE(throws_with<InvalidInput>("has no name", [&] { make({2}, {""}); }));
        EXPECT_TRUE(throws_with<InvalidInput>("axis 1 is named 'all'", [&] { make({2, 1}, {"domain", "all"}); }));
    });
}

TEST(RankGroup, RefusesCountsAndRanksThatAreNot)
{
    run_ranks(2, [](const auto& mesh) {
        using Counts = std::vector<std::int64_t>;
        const auto& group = mesh->all();
        auto rows = at::ones({2, 3});
        for (const auto& counts : {Counts{2, 1}, Counts{1, 0}, Counts{2}, Counts{3, -1}})
            EXPECT_TRUE(
                throws_with<InvalidInput>("counts [", [&] { group.all_to_all_rows(rows, counts, Counts{1, 1}); }));
        EXPECT_TRUE(throws_with<InvalidInput>("counts [", [&] { group.all_gather_rows(rows, Counts{2}); }));
        EXPECT_TRUE(throws_with<InvalidInput>("rank 9 of 2", [&] { group.broadcast(rows, 9); }));
        EXPECT_TRUE(at::equal(group.all_to_all_rows(rows, Counts{1, 1}, Counts{1, 1}), rows));
    });
}

TEST(RankGroup, GathersUnevenAndEmptyRows)
{
    run_ranks(4, [](const auto& mesh) {
        const auto rank = mesh->all().rank();
        const std::vector<std::int64_t> rows{2, 0, 1, 3};
        const auto local = at::full({rows[rank], 2}, rank, at::kLong);

        const auto whole = mesh->all().all_gather_rows(local, rows);

        EXPECT_TRUE(at::equal(whole.select(1, 0), at::tensor({0, 0, 2, 3, 3, 3}, at::kLong)));
    });
}

TEST(RankGroup, CountsWhatItSends)
{
    run_ranks(2, [](const auto& mesh) {
        auto x = at::ones({5}, at::kFloat);
        mesh->counter().reset();

        mesh->group(0).all_reduce(x);
        mesh->group(0).barrier();

        ASSERT_EQ(mesh->counter().num_calls(), 2);
        EXPECT_EQ(mesh->counter().calls()[0].operation, "all_reduce");
        EXPECT_EQ(mesh->counter().calls()[0].axis, "domain");
        EXPECT_EQ(mesh->counter().total_bytes(), 20);
    });
}

TEST(RankGroup, TellsAllRanksWhatOneHasFoundWrong)
{
    run_ranks(3, [](const auto& mesh) {
        EXPECT_FALSE(mesh->all().all_agree(mesh->all().rank() != 1));
        EXPECT_TRUE(mesh->all().all_agree(true));
    });
}

TEST(RankGroup, OneRanksErrorStopsTheOthers)
{
    try {
        run_ranks(3, [](const auto& mesh) {
            if (mesh->all().rank() == 2) throw InvalidInput("rank 2 found a fault");
            mesh->all().barrier();
        });
        ADD_FAILURE() << "the error was lost";
    } catch (const InvalidInput& error) {
        EXPECT_STREQ(error.what(), "rank 2 found a fault");
    }
}

}  // namespace
}  // namespace meshard
