// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/row_stream.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>

namespace meshard {
namespace {

at::Tensor read_all(const RowStream& stream, std::int64_t begin, std::int64_t count)
{
    auto bytes = at::empty({count}, at::kByte);
    stream.read(begin, count, static_cast<char*>(bytes.data_ptr()));
    return bytes;
}

TEST(RowStream, ReadsWhatIndexingPicksOut)
{
    const auto a = at::randn({20, 3}), b = at::randint(0, 9, {20, 2}, at::kLong);
    const auto index = at::tensor({3, 4, 5, 5, 19, 0}, at::kLong);
    const RowStream stream({a, b}, index);
    const auto expected =
        at::cat({a.index_select(0, index).view(at::kByte), b.index_select(0, index).view(at::kByte)}, 1).view({-1});

    EXPECT_TRUE(at::equal(stream.whole(), expected));
    EXPECT_TRUE(at::equal(read_all(stream, 17, 60), expected.narrow(0, 17, 60)));
    EXPECT_EQ(stream.in_place(0, 4), nullptr) << "two tensors";
}

TEST(RowStream, WritesThroughTheSameWhereverItBegins)
{
    for (const std::int64_t width : {1, 3, 16, 64, 65}) {
        const auto table = at::randn({50, width});
        const RowStream one({table}, at::randint(0, 50, {40}, at::kLong)),
            two({table, table.to(at::kDouble)}, at::randint(0, 50, {40}, at::kLong));
        for (const auto* stream : {&one, &two}) {
            for (const std::int64_t shift : {0, 4, 16}) {
                for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{7}, stream->row_bytes() * 3 + 1}) {
                    const auto count = stream->bytes() - begin - 5;
                    auto found = at::full({shift + count + 64}, 171, at::kByte);
                    stream->write_through(begin, count, static_cast<char*>(found.data_ptr()) + shift);
                    EXPECT_TRUE(at::equal(found.narrow(0, shift, count), stream->whole().narrow(0, begin, count)));
                    EXPECT_TRUE(found.narrow(0, shift + count, 64).eq(171).all().item<bool>()) << "written beyond";
                }
            }
        }
    }
}

TEST(RowStream, GivesPlacesOfBytesThatLieInARow)
{
    const auto table = at::randn({20, 3});
    const RowStream stream({table}, at::tensor({3, 4, 5, 5, 19, 18}, at::kLong));  // rows of 12 bytes
    for (std::int64_t begin = 0; begin < stream.bytes(); ++begin) {
        for (std::int64_t count = 1; begin + count <= stream.bytes(); ++count) {
            const auto first = begin / 12, last = (begin + count - 1) / 12;
            const bool lies_in_a_row = first == last || last <= 2;  // of the index 3, 4, 5 only
            const auto* place = stream.in_place(begin, count);
            ASSERT_EQ(place != nullptr, lies_in_a_row) << begin << ' ' << count;
            if (place) {
                EXPECT_EQ(
                    std::memcmp(place, read_all(stream, begin, count).data_ptr(), static_cast<std::size_t>(count)), 0);
            }
        }
    }
    EXPECT_EQ(stream.in_place(0, 0), nullptr);
}

}  // namespace
}  // namespace meshard
