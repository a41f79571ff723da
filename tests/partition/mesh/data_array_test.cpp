// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/mesh/data_array.h"
#include "tests/support/expect_error.h"

#include <cmath>
#include <limits>

namespace meshard {
namespace {

TEST(DataArray, StartsWithZeros)
{
    const DataArray array("a", ScalarType::Int16, 2, 3);

    EXPECT_EQ(array.num_values(), 6);
    EXPECT_EQ(array.bytes().size(), 12u);
    EXPECT_EQ(array.to_doubles(), std::vector<double>(6, 0.0));
}

TEST(DataArray, KnowsTheTypeOfItsValues)
{
    EXPECT_EQ(DataArray::from("a", std::vector<std::int8_t>{1}).type(), ScalarType::Int8);
    EXPECT_EQ(DataArray::from("a", std::vector<std::uint16_t>{1}).type(), ScalarType::UInt16);
    EXPECT_EQ(DataArray::from("a", std::vector<std::int64_t>{1}).type(), ScalarType::Int64);
    EXPECT_EQ(DataArray::from("a", std::vector<unsigned long long>{1}).type(), ScalarType::UInt64);
    EXPECT_EQ(DataArray::from("a", std::vector<float>{1}).type(), ScalarType::Float32);
    EXPECT_EQ(to_string(ScalarType::Float64), "Float64");
    EXPECT_EQ(to_string(ScalarType::String), "String");
    EXPECT_EQ(size_of(ScalarType::UInt32), 4u);
    EXPECT_EQ(size_of(ScalarType::String), 0u);
}

TEST(DataArray, ReadsEveryTypeAsDouble)
{
    for (int t = 0; t < 10; ++t) {
        DataArray array("a", static_cast<ScalarType>(t), 2);
        with_scalar_type(array.type(), [&]<class T>() { array.mutable_values<T>()[1] = static_cast<T>(42); });
        EXPECT_EQ(array.value(1), 42.0) << to_string(array.type());
        EXPECT_EQ(array.to_doubles(), (std::vector<double>{0, 42}));
    }
}

TEST(DataArray, CopiesWhenWrittenAndOnlyThen)
{
    const auto first = DataArray::from("a", std::vector<float>{1, 2});
    auto second = first;
    EXPECT_EQ(first.bytes().data(), second.bytes().data());

    second.mutable_values<float>()[0] = 5;

    EXPECT_EQ(first.value(0), 1);
    EXPECT_EQ(second.value(0), 5);
    const auto* place = second.bytes().data();
    second.mutable_values<float>()[1] = 6;
    EXPECT_EQ(second.bytes().data(), place);
    auto third = second;
    third.mutable_bytes()[0] = std::byte{1};
    EXPECT_EQ(second.value(0), 5);
}

TEST(DataArray, KeepsTheOwnerOfAView)
{
    auto memory = std::make_shared<std::vector<double>>(4, 2.5);
    std::weak_ptr<std::vector<double>> watch = memory;
    const auto* data = reinterpret_cast<const std::byte*>(memory->data());
    auto view = DataArray::view("v", ScalarType::Float64, 2, 2, data, std::move(memory));

    EXPECT_FALSE(watch.expired());
    EXPECT_EQ(view.value(1, 1), 2.5);
    view.mutable_values<double>()[0] = 1;
    EXPECT_TRUE(watch.expired());
    EXPECT_EQ(view.value(1, 1), 2.5);
}

TEST(DataArray, GathersRowsOfAnyWidth)
{
    for (const int components : {1, 2, 3, 6, 9}) {
        std::vector<float> values;
        for (int i = 0; i < 4 * components; ++i) values.push_back(static_cast<float>(i));
        auto array = DataArray::from("a", values, components);
        array.attribute = "Normals";
        array.component_names.assign(components, "c");

        const auto taken = array.gather(std::vector<std::int32_t>{3, 0, 3});

        ASSERT_EQ(taken.num_rows(), 3);
        EXPECT_EQ(taken.value(0, components - 1), 4 * components - 1);
        EXPECT_EQ(taken.value(1, 0), 0);
        EXPECT_EQ(taken.value(2, 0), 3 * components);
        EXPECT_EQ(taken.attribute, "Normals");
        EXPECT_EQ(taken.component_names.size(), static_cast<std::size_t>(components));
        EXPECT_EQ(taken.name(), "a");
    }
}

TEST(DataArray, GathersStrings)
{
    const auto names = DataArray::from_strings("n", {"a", "b", "c", "d"}, 2);

    const auto taken = names.gather(std::vector<std::int32_t>{1});

    EXPECT_EQ(taken.num_rows(), 1);
    EXPECT_EQ(taken.strings()[0], "c");
    EXPECT_EQ(taken.strings()[1], "d");
}

TEST(DataArray, ComparesBits)
{
    const auto nan = std::numeric_limits<float>::quiet_NaN();
    const auto a = DataArray::from("a", std::vector<float>{nan, 0.0f});

    EXPECT_TRUE(a.same_bits(DataArray::from("b", std::vector<float>{nan, 0.0f})));
    EXPECT_FALSE(a.same_bits(DataArray::from("a", std::vector<float>{nan, -0.0f})));
    EXPECT_FALSE(a.same_bits(DataArray::from("a", std::vector<float>{nan, 0.0f}, 2)));
    EXPECT_FALSE(a.same_bits(DataArray::from("a", std::vector<double>{nan, 0.0})));
    EXPECT_TRUE(DataArray::from_strings("a", {"x"}).same_bits(DataArray::from_strings("b", {"x"})));
    EXPECT_FALSE(DataArray::from_strings("a", {"x"}).same_bits(DataArray::from_strings("a", {"y"})));
    EXPECT_TRUE(DataArray("a", ScalarType::String, 0).same_bits(DataArray::from_strings("b", {})));
}

TEST(DataArray, RefusesAnotherType)
{
    const auto array = DataArray::from("p", std::vector<float>{1});

    EXPECT_TRUE(throws_with<InvalidInput>("'p' holds Float32, asked for as Float64", [&] { array.values<double>(); }));
    EXPECT_TRUE(throws_with<InvalidInput>("asked for as String", [&] { array.strings(); }));
    EXPECT_TRUE(throws_with<InvalidInput>("not numbers", [] { DataArray::from_strings("n", {"a"}).value(0); }));
    EXPECT_TRUE(throws_with<InvalidInput>("not numbers", [] { DataArray::from_strings("n", {"a"}).bytes(); }));
}

TEST(DataArray, RefusesImpossibleShapes)
{
    EXPECT_TRUE(throws_with<InvalidInput>("0 components", [] { DataArray("a", ScalarType::Int8, 1, 0); }));
    EXPECT_TRUE(throws_with<InvalidInput>("-1 rows", [] { DataArray("a", ScalarType::Int8, -1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("do not make rows of 2", [] { DataArray::from_strings("a", {"x"}, 2); }));
    alignas(8) const std::byte memory[16]{};
    EXPECT_TRUE(throws_with<InvalidInput>(
        "not aligned for Float64", [&] { DataArray::view("a", ScalarType::Float64, 1, 1, memory + 4, nullptr); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("-2 rows", [&] { DataArray::view("a", ScalarType::Int8, -2, 1, memory, nullptr); }));
    EXPECT_TRUE(throws_with<InvalidInput>("cannot be viewed",
                                          [&] { DataArray::view("a", ScalarType::String, 1, 1, memory, nullptr); }));
}

}  // namespace
}  // namespace meshard
