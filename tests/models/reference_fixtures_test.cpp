// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/fixture_cases.h"
#include "tests/support/run_fixture.h"

namespace meshard {
namespace {

using test::FixtureCase;

class ReferenceFixtures : public testing::TestWithParam<FixtureCase> {};

TEST_P(ReferenceFixtures, OutputsAndGradientsAgree)
{
    const auto description = GetParam().description();
    if (const auto reason = test::reason_to_skip(description); !reason.empty()) GTEST_SKIP() << reason;
    const auto tensors = GetParam().tensors();

    const auto result = test::run_fixture(description, tensors, at::kFloat);

    test::expect_reference_values(result, description, tensors);
}

TEST_P(ReferenceFixtures, AgreeInDoublePrecision)
{
    const auto description = GetParam().description();
    if (const auto reason = test::reason_to_skip(description); !reason.empty()) GTEST_SKIP() << reason;
    const auto tensors = GetParam().tensors();
    if (!tensors.count("output64") && !tensors.count("output64.0")) GTEST_SKIP() << "the case has no results in double precision";

    const auto result = test::run_fixture(description, tensors, at::kDouble);

    for (std::size_t i = 0; i < result.outputs.size(); ++i) {
        const auto name = test::output_name("output64", i, result.outputs.size());
        test::expect_near(name, result.outputs[i], tensors.at(name), 1e-11);
    }
    for (const auto& [name, expected] : tensors) {
        if (name.rfind("grad64.", 0) != 0 && name.rfind("grad_input64.", 0) != 0) continue;
        auto own_name = name;
        own_name.erase(own_name.find("64."), 2);
        ASSERT_TRUE(result.gradients.count(own_name)) << name;
        test::expect_near(name, result.gradients.at(own_name), expected, 1e-11 * std::max(1.0, test::largest(expected)));
    }
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceFixtures, testing::ValuesIn(test::fixture_cases()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReferenceFixtures);

}  // namespace
}  // namespace meshard
