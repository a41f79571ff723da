// SPDX-License-Identifier: Apache-2.0
// What ranks reduce and bring to each other, of any type, on any transport: the threads' of the tests, and, where the
// program is started as ranks that are processes, shared memory, Gloo or MPI.
#include "partition/error.h"
#include "sharding/ranks/rank_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace meshard {
namespace {

constexpr int kGroupRankCounts[] = {1, 2, 3, 4};

/// Whole numbers below `limit`, other ones on each rank.
at::Tensor limited_numbers(std::int64_t n, int rank, std::int64_t limit)
{
    return at::arange(n, at::kLong).mul(7 + 2 * rank).add(5 * rank + 1).remainder(limit);
}

/// (ranks, n)
at::Tensor of_all(int size, std::int64_t n, std::int64_t limit)
{
    std::vector<at::Tensor> all;
    for (int r = 0; r < size; ++r) all.push_back(limited_numbers(n, r, limit));
    return at::stack(all);
}

TEST(RankGroup, AddsAndComparesEveryTypeAlike)
{
    constexpr std::int64_t n = 5003;
    for (const int size : kGroupRankCounts) {
        run_ranks(size, [&](const auto& mesh) {
            const auto& group = mesh->group(0);
            for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                                    at::kChar, at::kByte, at::kBool, at::kUInt16, at::kUInt32}) {
                const std::int64_t limit =
                    type == at::kBool ? 2 : 125;  // that bfloat16 holds; sums of bytes wrap around
                const auto all = of_all(size, n, limit);
                for (const auto reduction : {Reduction::Sum, Reduction::Max, Reduction::Min}) {
                    const auto whole = reduction == Reduction::Sum   ? all.sum(0)
                                       : reduction == Reduction::Max ? all.amax(0)
                                                                     : all.amin(0);
                    auto tensor = limited_numbers(n, group.rank(), limit).to(type);
                    auto apart = at::zeros({n, 2}, at::kLong).to(type);  // one column of it, not contiguous
                    auto column = apart.select(1, 1);
                    column.copy_(tensor);

                    group.all_reduce(tensor, reduction);
                    group.all_reduce(column, reduction);

                    EXPECT_TRUE(at::equal(tensor.to(at::kLong), whole.to(type).to(at::kLong)))
                        << at::toString(type) << " on " << size << " ranks";
                    EXPECT_TRUE(at::equal(column.to(at::kLong), tensor.to(at::kLong))) << at::toString(type);
                    EXPECT_FALSE(apart.select(1, 0).to(at::kLong).any().template item<bool>())
                        << "wrote beside the column";
                }
            }
        });
    }
}

TEST(RankGroup, AddsComplexNumbers)
{
    for (const int size : kGroupRankCounts) {
        run_ranks(size, [&](const auto& mesh) {
            const auto value = [](int rank) {
                return at::complex(limited_numbers(100, rank, 50).to(at::kDouble),
                                   limited_numbers(100, rank + 1, 50).to(at::kDouble));
            };
            auto expected = value(0);
            for (int r = 1; r < size; ++r) expected = expected + value(r);
            auto tensor = value(mesh->all().rank()), conjugate = tensor.clone().conj();

            mesh->all().all_reduce(tensor);
            mesh->all().all_reduce(conjugate);

            EXPECT_TRUE(at::equal(tensor, expected));
            EXPECT_TRUE(at::equal(conjugate.resolve_conj(), expected.conj().resolve_conj()));
            if (size == 1) return;
            EXPECT_TRUE(throws_with<InvalidInput>("have no maximum over ranks",
                                                  [&] { mesh->all().all_reduce(tensor, Reduction::Max); }));
        });
    }
}

TEST(RankGroup, RoundsNarrowSumsOnce)
{
    for (const int size : {3, 4}) {
        run_ranks(size, [&](const auto& mesh) {
            for (const auto type : {at::kBFloat16, at::kHalf}) {
                const double large =
                    type == at::kHalf ? 2048 : 256;  // to which one is not added: the next number is two away
                auto sum = at::full({17}, mesh->all().rank() == 0 ? large : 1.0, type);
                mesh->all().all_reduce(sum);
                EXPECT_TRUE(at::equal(sum, at::full({17}, large + size - 1, type)))
                    << at::toString(type) << ": " << sum[0].template item<double>();
            }
        });
    }
}

TEST(RankGroup, ExtremesKeepNaNAndInfinity)
{
    constexpr auto kInfinity = std::numeric_limits<double>::infinity();
    for (const int size : {2, 3}) {
        run_ranks(size, [&](const auto& mesh) {
            for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
                for (int place = 0; place < size; ++place) {  // the rank with what is special
                    const bool here = mesh->all().rank() == place;
                    for (const double sign : {1.0, -1.0}) {
                        const auto special =
                            at::tensor({sign * std::nan(""), kInfinity, -kInfinity, 3.0, -3.0}, at::kDouble);
                        auto largest =
                                 (here ? special : at::tensor({-7.0, -1.0, -1.0, -2.0, -2.0}, at::kDouble)).to(type),
                             smallest = largest.clone();
                        mesh->all().all_reduce(largest, Reduction::Max);
                        mesh->all().all_reduce(smallest, Reduction::Min);
                        EXPECT_TRUE(largest[0].isnan().template item<bool>())
                            << at::toString(type) << ", NaN on rank " << place;
                        EXPECT_TRUE(smallest[0].isnan().template item<bool>())
                            << at::toString(type) << ", NaN on rank " << place;
                        EXPECT_TRUE(at::equal(largest.slice(0, 1),
                                              at::tensor({kInfinity, -1.0, 3.0, -2.0}, at::kDouble).to(type)))
                            << largest;
                        EXPECT_TRUE(at::equal(smallest.slice(0, 1),
                                              at::tensor({-1.0, -kInfinity, -2.0, -3.0}, at::kDouble).to(type)))
                            << smallest;
                    }
                }
            }
        });
    }
}

TEST(RankGroup, BringsRowsOfEveryType)
{
    for (const int size : {2, 3}) {
        run_ranks(size, [&](const auto& mesh) {
            const auto& group = mesh->group(0);
            const auto rank = group.rank();
            for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                                    at::kChar, at::kByte, at::kBool, at::kUInt16, at::kComplexFloat}) {
                const auto rows = [&](int from, std::int64_t n) {
                    return limited_numbers(n * 3, from, 120).to(type).view({n, 3});
                };
                std::vector<std::int64_t> counts, sent(size, 2), received(size, 2);
                std::vector<at::Tensor> expected, expected_second, passed;
                for (int r = 0; r < size; ++r) {
                    counts.push_back(r + 1);
                    expected.push_back(rows(r, r + 1));
                    expected_second.push_back(rows(r + 1, r + 1));
                    passed.push_back(rows(r, 2 * size).narrow(0, 2 * rank, 2));
                }
                auto whole = rows(rank, 4);
                auto passing = rows(rank, 2 * size);
                if (at::isFloatingType(type) || at::isComplexType(type)) passing = at::_neg_view(passing.neg());

                at::Tensor first, second;
                auto first_pending = group.start_all_gather_rows(rows(rank, rank + 1), counts, first);
                auto second_pending = group.start_all_gather_rows(rows(rank + 1, rank + 1), counts, second);
                const auto gathered = group.all_gather_rows(rows(rank, rank + 1), counts),
                           exchanged = group.all_to_all_rows(passing, sent, received);
                group.broadcast(whole, size - 1);

                second_pending.wait();
                first_pending.wait();

                EXPECT_TRUE(at::equal(gathered, at::cat(expected))) << at::toString(type);
                EXPECT_TRUE(at::equal(first, at::cat(expected))) << at::toString(type);
                EXPECT_TRUE(at::equal(second, at::cat(expected_second))) << at::toString(type);
                EXPECT_TRUE(at::equal(exchanged, at::cat(passed))) << at::toString(type);
                EXPECT_TRUE(at::equal(whole, rows(size - 1, 4))) << at::toString(type);
            }
        });
    }
}

}  // namespace
}  // namespace meshard
