// SPDX-License-Identifier: Apache-2.0
// Random fields are those of the plain operator with the same seed, for any partition.
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

void seed(std::uint64_t number)
{
    auto generator = rank_generator();
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(number);
}

TEST(RandomFields, AreThoseOfThePlainOperator)
{
    check_rule(
        [](Draw& draw) {
            const std::vector<std::pair<const char*, std::function<Tensors(const Tensors&)>>> operators{
                {"dropout",
                 [](auto& x) { return Tensors{at::dropout(x[0], 0.3, true), at::dropout(x[0] * 2, 0.5, true)}; }},
                {"native dropout",
                 [](auto& x) {
                     auto [y, mask] = at::native_dropout(x[0], 0.4, true);
                     return Tensors{y, mask};
                 }},
                {"feature dropout",
                 [](auto& x) {
                     return Tensors{at::feature_dropout(x[0], 0.5, true), at::alpha_dropout(x[0], 0.2, true)};
                 }},
                {"rand_like",
                 [](auto& x) {
                     const auto m = x[0].detach();
                     return Tensors{at::rand_like(m) * x[0], at::randn_like(m), at::randint_like(m, 7),
                                    at::randint_like(m, 2, 9)};
                 }},
                {"in place",
                 [](auto& x) {
                     auto y = at::empty_like(x[0].detach());
                     Tensors all{y.normal_(1, 2).clone(), y.uniform_(-1, 1).clone(), y.exponential_(2).clone(),
                                 y.bernoulli_(0.3).clone(), y.random_(5).clone()};
                     all.push_back(y.narrow(1, 0, 1).normal_() * 1);
                     all.push_back(y * x[0]);
                     return all;
                 }},
                {"bernoulli",
                 [](auto& x) {
                     return Tensors{at::bernoulli(at::sigmoid(x[0].detach())), at::poisson(x[0].detach().exp())};
                 }},
                {"multinomial", [](auto& x) { return Tensors{at::multinomial(at::softmax(x[0].detach(), 1), 2)}; }},
                {"rrelu", [](auto& x) { return Tensors{at::rrelu(x[0], 0.1, 0.4, true)}; }},
            };
            const auto& [name, function] = draw.pick(operators);
            const auto number = static_cast<std::uint64_t>(draw.integer(0, 1000000));
            return RuleCase{name,
                            {draw.values({draw.integer(2, 9), draw.integer(2, 6)})},
                            [number, f = function](const Tensors& x) {
                                seed(number);
                                return f(x);
                            },
                            {}};
        },
        {.num_cases = 300,
         .gathers = {{"aten::rrelu_with_noise(_backward)?|aten::multinomial|aten::bernoulli|aten::poisson", "",
                      "numbers are drawn in the order of the whole"}}});
}

TEST(RandomFields, NeedGeneratorsInTheSameState)
{
    run_ranks(2, [](const auto& mesh) {
        seed(static_cast<std::uint64_t>(mesh->coordinate(0)));
        const auto x = from_local(at::ones({3, 2}), mesh, {Shard(0)});

        try {
            at::dropout(x, 0.5, true);
            ADD_FAILURE() << "drew from different generators";
        } catch (const InvalidInput& error) {
            EXPECT_NE(std::string(error.what()).find("torch::manual_seed"), std::string::npos) << error.what();
        }
    });
}

}  // namespace
}  // namespace meshard
