// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/neighbourhood_attention.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>

namespace meshard {
namespace {

/// A number for both axes, or one for each.
std::array<std::int64_t, 2> pair_of(const nlohmann::json& value)
{
    if (value.is_number()) return {value.get<std::int64_t>(), value.get<std::int64_t>()};
    return value.get<std::array<std::int64_t, 2>>();
}

class NeighbourhoodFixtures : public testing::TestWithParam<test::FixtureCase> {};

TEST_P(NeighbourhoodFixtures, EqualReferenceNumbersOnAnyNumberOfRanks)
{
    const auto variants = GetParam().description().at("variants");
    const auto tensors = test::read_tensors(GetParam().arrays_path());
    for (const auto& [name, variant] : variants.items()) {
        const NeighbourhoodWindow window{pair_of(variant.at("kernel")), pair_of(variant.at("dilation"))};
        const auto num_rows = tensors.at(name + ".q").size(1);
        const std::vector<std::vector<std::int64_t>> cuts{
            {num_rows}, {1, num_rows - 1}, {2, 0, num_rows - 2}, {1, 1, 0, 1, num_rows - 3}};
        for (const auto& extents : cuts) {
            for (const auto type : {torch::kFloat, torch::kDouble}) {
                SCOPED_TRACE(name + " on " + std::to_string(extents.size()));
                run_ranks(static_cast<int>(extents.size()), [&](std::shared_ptr<const DeviceMesh> mesh) {
                    const auto own = [&](const at::Tensor& whole) {
                        return whole.split_with_sizes(extents, 1)[mesh->coordinate(0)];
                    };
                    const auto cut = [&](const char* what) {
                        return from_local(own(tensors.at(name + what)).to(type).clone(), mesh, {Shard(1)});
                    };
                    std::vector<at::Tensor> inputs{cut(".q").requires_grad_(), cut(".k").requires_grad_(),
                                                   cut(".v").requires_grad_()};

                    const auto output = neighbourhood_attention(inputs[0], inputs[1], inputs[2], window);
                    output.backward(cut(".grad_output"));

                    const std::string suffix = type == torch::kDouble ? "64" : "";
                    test::expect_near("output", full_tensor(output).detach(), tensors.at(name + ".output" + suffix),
                                      type == torch::kDouble ? 1e-14 : 2e-6);
                    const std::array<const char*, 3> names{".grad_q", ".grad_k", ".grad_v"};
                    for (int i = 0; i < 3; ++i) {
                        const auto& expected = tensors.at(name + names[i] + suffix);
                        test::expect_near(names[i], full_tensor(inputs[i].grad()), expected,
                                          (type == torch::kDouble ? 1e-13 : 5e-5) * test::largest(expected));
                    }
                });
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, NeighbourhoodFixtures,
                         testing::ValuesIn(test::fixture_cases({"neighbourhood attention"})), test::NameOfFixture());

}  // namespace
}  // namespace meshard
