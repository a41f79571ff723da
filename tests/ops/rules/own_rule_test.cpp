// SPDX-License-Identifier: Apache-2.0
// Rules for operators of other namespaces, registered before and after the table was put to use.
#include "sharding/tensor/rule_table.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

namespace meshard {
namespace {

TORCH_LIBRARY(meshard_test, library)
{
    library.def("early(Tensor x) -> Tensor");
    library.def("late(Tensor x) -> Tensor");
    library.def("without(Tensor x) -> Tensor");
    library.def("composed(Tensor x) -> Tensor", [](const at::Tensor& x) { return x * 3; });
}
TORCH_LIBRARY_IMPL(meshard_test, CPU, library)
{
    library.impl("early", [](const at::Tensor& x) { return x + 1; });
    library.impl("late", [](const at::Tensor& x) { return x + 2; });
    library.impl("without", [](const at::Tensor& x) { return x.flip({0}); });
}

at::Tensor call_operator(const char* name, const at::Tensor& x)
{
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<at::Tensor(const at::Tensor&)>().call(x);
}

int num_calls = 0;

void row_by_row(RuleCall& call)
{
    if (call.coordinate(0) == 0) ++num_calls;
    const auto spec = spec_of(call.tensor(0));
    call.make_local();
    call.run({spec});
}

const RuleRegistration early("test", {"meshard_test::early"}, row_by_row);
const RuleRegistration composed("test", {"meshard_test::composed"}, row_by_row);

at::Tensor result_on_two_ranks(const char* name)
{
    at::Tensor result;
    run_ranks(2, [&](const auto& mesh) {
        const auto x =
            from_local(at::full({1 + mesh->coordinate(0), 2}, mesh->coordinate(0), at::kDouble), mesh, {Shard(0)});
        const auto y = call_operator(name, x);
        const auto whole = full_tensor(y);
        if (mesh->coordinate(0) == 0) result = whole;
    });
    return result;
}

const auto whole_input = at::tensor({0, 0, 1, 1, 1, 1}, at::kDouble).view({3, 2});

TEST(OwnRule, ServesAnOperatorOfAnotherNamespace)
{
    num_calls = 0;
    EXPECT_TRUE(at::equal(result_on_two_ranks("meshard_test::early"), whole_input + 1));
    EXPECT_EQ(num_calls, 1);
}

TEST(OwnRule, MayComeAfterTheTableIsInUse)
{
    result_on_two_ranks("meshard_test::early");
    const RuleRegistration late("test", {"meshard_test::late"}, row_by_row);
    num_calls = 0;
    EXPECT_TRUE(at::equal(result_on_two_ranks("meshard_test::late"), whole_input + 2));
    EXPECT_EQ(num_calls, 1);
}

TEST(OwnRule, MayComeBeforeItsOperator)
{
    result_on_two_ranks("meshard_test::early");
    const RuleRegistration ahead("test", {"meshard_test_later::operator"}, row_by_row);
    static torch::Library library(torch::Library::DEF, "meshard_test_later", std::nullopt, __FILE__, __LINE__);
    library.def("operator(Tensor x) -> Tensor");
    library.impl("operator", torch::dispatch(c10::DispatchKey::CPU, [](const at::Tensor& x) { return x + 4; }));
    num_calls = 0;
    EXPECT_TRUE(at::equal(result_on_two_ranks("meshard_test_later::operator"), whole_input + 4));
    EXPECT_EQ(num_calls, 1);
}

TEST(OwnRule, ReplacesAnEarlierOne)
{
    const RuleRegistration other("test", {"meshard_test::early"}, [](RuleCall& call) { gathered_rule(call); });
    set_gather_policy(GatherPolicy::Silent);
    num_calls = 0;
    EXPECT_TRUE(at::equal(result_on_two_ranks("meshard_test::early"), whole_input + 1));
    EXPECT_EQ(num_calls, 0);
    const RuleRegistration again("test", {"meshard_test::early"}, row_by_row);
    EXPECT_TRUE(at::equal(result_on_two_ranks("meshard_test::early"), whole_input + 1));
    EXPECT_EQ(num_calls, 1);
}

TEST(OwnRule, IsNotNeededByAnOperatorThatMayBeGathered)
{
    EXPECT_TRUE(at::equal(result_on_two_ranks("meshard_test::without"), whole_input.flip({0})));
}

TEST(OwnRule, OfAnOperatorWithoutABackwardSaysSo)
{
    run_ranks(2, [&](const auto& mesh) {
        const auto x = from_local(at::ones({2, 2}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
        const auto y = call_operator("meshard_test::early", x).sum();
        EXPECT_THROW(y.backward(), c10::Error);
    });
}

TEST(OwnRule, LeavesGradientsOfACompositionToItsParts)
{
    num_calls = 0;
    EXPECT_TRUE(at::equal(result_on_two_ranks("meshard_test::composed"), whole_input * 3));
    EXPECT_EQ(num_calls, 1);
    run_ranks(2, [&](const auto& mesh) {
        const auto x = from_local(at::ones({2, 2}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
        call_operator("meshard_test::composed", x).sum().backward();
        EXPECT_TRUE(at::equal(full_tensor(x.grad()), at::full({4, 2}, 3.0, at::kDouble)));
    });
    EXPECT_EQ(num_calls, 1);
}

}  // namespace
}  // namespace meshard
