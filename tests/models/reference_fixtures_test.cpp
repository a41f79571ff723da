// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/safetensors.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/fixture_tensors.h"
#include "tests/support/run_fixture.h"
#include "tests/support/test_paths.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace meshard {
namespace {

using test::FixtureCase;

class ReferenceFixtures : public testing::TestWithParam<FixtureCase> {};

TEST_P(ReferenceFixtures, OutputsAndGradientsAgree)
{
    if (const auto reason = test::reason_to_skip(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
    const auto description = GetParam().description();
    const auto tensors = test::read_tensors(GetParam().arrays_path());

    const auto result = test::run_fixture(description, tensors, at::kFloat);

    test::expect_reference_values(result, description, tensors);
}

class DoublePrecisionFixtures : public testing::TestWithParam<FixtureCase> {};

/// Those with results in double precision.
std::vector<FixtureCase> double_precision_cases()
{
    auto cases = test::model_cases();
    std::erase_if(cases, [](const auto& fixture) {
        const auto content = read_safetensors(fixture.arrays_path());
        return std::none_of(content.arrays.begin(), content.arrays.end(),
                            [](const auto& array) { return array.name.starts_with("output64"); });
    });
    return cases;
}

TEST_P(DoublePrecisionFixtures, OutputsAndGradientsAgree)
{
    if (const auto reason = test::reason_to_skip(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
    const auto tensors = test::read_tensors(GetParam().arrays_path());

    const auto result = test::run_fixture(GetParam().description(), tensors, at::kDouble);

    test::expect_double_values(result, tensors);
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceFixtures, testing::ValuesIn(test::model_cases()), test::NameOfFixture());
INSTANTIATE_TEST_SUITE_P(All, DoublePrecisionFixtures, testing::ValuesIn(double_precision_cases()),
                         test::NameOfFixture());

// What is not in the repository is skipped by whoever has no more than that.
TEST(KeptFixtures, AreOfEveryKindThatIsTested)
{
    auto kinds = test::model_kinds();
    kinds.insert(test::other_kinds().begin(), test::other_kinds().end());
    const auto kept = source_path("tests/data/fixtures");
    for (const auto& fixture : test::fixture_cases()) {
        if (fixture.json_path.string().starts_with(kept)) kinds.erase(fixture.kind);
    }
    EXPECT_TRUE(kinds.empty()) << "nothing in " << kept << " of the kind " << testing::PrintToString(kinds);
}

}  // namespace
}  // namespace meshard
