// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/content_hash.h"

#include <gtest/gtest.h>

#include <string_view>

namespace meshard {
namespace {

std::uint64_t hash_of(std::string_view text)
{
    return xxh64(std::as_bytes(std::span(text.data(), text.size())));
}

// Values that the xxHash project publishes for its command line program.
TEST(ContentHash, GivesThePublishedValues)
{
    EXPECT_EQ(hash_of(""), 0xEF46DB3751D8E999U);
    EXPECT_EQ(hash_of("a"), 0xD24EC4F1A98C6E5BU);
    EXPECT_EQ(hash_of("abc"), 0x44BC2CF5AD770999U);
    EXPECT_EQ(hash_of("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1U);
}

TEST(ContentHash, ChangesWithEveryBit)
{
    std::string text(77, 'x');
    const std::uint64_t before = hash_of(text);

    for (std::size_t i = 0; i < text.size(); ++i) {
        text[i] ^= 4;
        EXPECT_NE(hash_of(text), before) << i;
        text[i] ^= 4;
    }
}

}  // namespace
}  // namespace meshard
