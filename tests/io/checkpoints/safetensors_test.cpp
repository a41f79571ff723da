// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/safetensors.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace meshard {
namespace {

constexpr ArrayType all_types[] = {ArrayType::U8,   ArrayType::F64, ArrayType::F16, ArrayType::BOOL, ArrayType::I64,
                                   ArrayType::BF16, ArrayType::F32, ArrayType::I8,  ArrayType::I32,  ArrayType::I16,
                                   ArrayType::U64,  ArrayType::U16, ArrayType::U32};

NamedArray make(std::string name, ArrayType type, std::vector<std::int64_t> shape)
{
    NamedArray array{std::move(name), type, std::move(shape), nullptr, nullptr};
    auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(array.num_values()) * size_of(type));
    for (std::size_t i = 0; i < bytes->size(); ++i) (*bytes)[i] = static_cast<std::byte>(7 * i + array.name.size());
    array.data = bytes->data();
    array.owner = bytes;
    return array;
}

std::string file_of(const std::string& header, std::size_t data_size)
{
    std::string bytes(8, '\0');
    const std::uint64_t size = header.size();
    std::memcpy(bytes.data(), &size, 8);
    return bytes + header + std::string(data_size, 'x');
}

TEST(Safetensors, GivesBackWhatWasWritten)
{
    const TemporaryFolder folder;
    NamedArrays content;
    content.metadata = {{"format", "pt"}, {"quote \"", "ä\n"}};
    for (const ArrayType type : all_types)
        for (const auto& shape : {std::vector<std::int64_t>{}, {3}, {2, 5}, {0, 4}, {1, 1, 3}})
            content.arrays.push_back(
                make("z." + std::string(to_string(type)) + "." + std::to_string(content.arrays.size()), type, shape));

    write_safetensors(folder / "a.safetensors", content);
    const NamedArrays read = read_safetensors(folder / "a.safetensors");

    EXPECT_EQ(read.metadata, content.metadata);
    ASSERT_EQ(read.arrays.size(), content.arrays.size());
    for (std::size_t i = 0; i < read.arrays.size(); ++i) {
        EXPECT_EQ(read.arrays[i].name, content.arrays[i].name);
        EXPECT_EQ(read.arrays[i].type, content.arrays[i].type);
        EXPECT_EQ(read.arrays[i].shape, content.arrays[i].shape);
        EXPECT_TRUE(std::ranges::equal(read.arrays[i].bytes(), content.arrays[i].bytes())) << read.arrays[i].name;
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read.arrays[i].data) % size_of(read.arrays[i].type), 0U);
    }
    EXPECT_EQ(read.find("z.F64.5")->type, ArrayType::F64);
    EXPECT_EQ(read.find("absent"), nullptr);
}

TEST(Safetensors, ReadsAFileLaidOutByOthers)
{
    const TemporaryFolder folder;
    // Unaligned: the header has 62 bytes, a byte array lies before the floats.
    std::string bytes = file_of(
        R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
        0);
    const float values[] = {1.5F, -2.F};
    bytes += 'A';
    bytes.append(reinterpret_cast<const char*>(values), 8);
    write_bytes(folder / "a.safetensors", bytes);

    const NamedArrays read = read_safetensors(folder / "a.safetensors");

    EXPECT_EQ(read.arrays.at(0).name, "b");
    EXPECT_EQ(reinterpret_cast<const float*>(read.arrays[0].data)[1], -2.F);
    EXPECT_EQ(read.arrays.at(1).bytes()[0], std::byte{'A'});
}

TEST(Safetensors, ReadsEmptyFiles)
{
    const TemporaryFolder folder;
    write_safetensors(folder / "a.safetensors", {});
    EXPECT_TRUE(read_safetensors(folder / "a.safetensors").arrays.empty());
}

TEST(Safetensors, RefusesWhatBreaksTheFormat)
{
    const TemporaryFolder folder;
    const auto path = folder / "a.safetensors";
    const auto expect_message = [&](const std::string& bytes, const char* message) {
        write_bytes(path, bytes);
        EXPECT_TRUE(throws_with<IoError>(message, [&] { read_safetensors(path); })) << bytes.substr(8);
    };
    const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
        return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
    };

    EXPECT_TRUE(throws_with<IoError>("does not exist", [&] { read_safetensors(path); }));
    expect_message("", "at least 8");
    expect_message(std::string(8, '\xff'), "announces a header of");
    expect_message(file_of("{}", 0).substr(0, 9), "announces a header of 2 bytes, but has 1");
    expect_message(file_of("[]", 0), "does not begin with '{'");
    expect_message(file_of("{\"a\":", 0), "not valid JSON");
    expect_message(file_of("{\"a\":3}", 0), "does not consist of dtype, shape and data_offsets");
    expect_message(file_of(one("F33", "[1]", "[0,4]"), 4), "of unknown type 'F33'");
    expect_message(file_of(one("F32", "[-1]", "[0,4]"), 4), "no list of counts");
    expect_message(file_of(one("F32", "[1.5]", "[0,4]"), 4), "no list of counts");
    expect_message(file_of(one("F32", "[1]", "[0]"), 4), "no pair of counts");
    expect_message(file_of(one("F32", "[1]", "[0,5]"), 4), "at bytes 0 to 5 of 4. It is truncated");
    expect_message(file_of(one("F32", "[1]", "[4,0]"), 4), "at bytes 4 to 0");
    expect_message(file_of(one("F32", "[2]", "[0,4]"), 4), "do not match its 4 bytes");
    expect_message(file_of(one("F32", "[4294967296,4294967296,4]", "[0,4]"), 4), "do not match its 4 bytes");
    expect_message(file_of(one("F32", "[1]", "[4,8]"), 8), "leave a gap");
    expect_message(file_of(one("F32", "[1]", "[0,4]"), 8), "4 bytes after its last array");
    expect_message(
        file_of(
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            3),
        "overlap");
    expect_message(
        file_of(
            R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
            0),
        "two arrays named 'a'");
    expect_message(file_of(R"({"__metadata__":[]})", 0), "metadata that are no JSON object");
    expect_message(file_of(R"({"__metadata__":{"a":1}})", 0), "metadata 'a' that are no text");
}

TEST(Safetensors, FindsEveryTruncation)
{
    const TemporaryFolder folder;
    NamedArrays content;
    content.arrays = {make("a", ArrayType::F32, {3}), make("b", ArrayType::U8, {5})};
    write_safetensors(folder / "a.safetensors", content);
    const std::string bytes = read_bytes(folder / "a.safetensors");

    for (std::size_t size = 0; size < bytes.size(); ++size) {
        write_bytes(folder / "a.safetensors", bytes.substr(0, size));
        EXPECT_THROW(read_safetensors(folder / "a.safetensors"), IoError) << size;
    }
}

TEST(Safetensors, RefusesToWriteNonsense)
{
    const TemporaryFolder folder;
    const auto write = [&](std::vector<NamedArray> arrays) {
        return [&folder, arrays] { write_safetensors(folder / "a.safetensors", {arrays, {}}); };
    };
    NamedArray negative = make("n", ArrayType::U8, {1});
    negative.shape = {-1};

    EXPECT_TRUE(throws_with<InvalidInput>("occurs twice",
                                          write({make("a", ArrayType::U8, {1}), make("a", ArrayType::F32, {1})})));
    EXPECT_TRUE(throws_with<InvalidInput>("keeps for metadata", write({make("__metadata__", ArrayType::U8, {1})})));
    EXPECT_TRUE(throws_with<InvalidInput>("negative extent", write({negative})));
    EXPECT_TRUE(throws_with<InvalidInput>("has no data", write({{"a", ArrayType::F32, {2}, nullptr, nullptr}})));
    EXPECT_TRUE(throws_with<InvalidInput>("not valid UTF-8", write({make("\xff\xfe", ArrayType::U8, {1})})));
    EXPECT_EQ(folder.size(), 0);
}

}  // namespace
}  // namespace meshard
