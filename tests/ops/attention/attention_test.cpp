// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/ring_attention.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/cut_rows.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <thread>

namespace meshard {
namespace {

struct AttentionSizes {
    std::int64_t batch = 1, heads = 1, key_heads = 1, rows = 1, keys = 1, width = 1, value_width = 1;
};

AttentionSizes draw_sizes(Draw& draw)
{
    AttentionSizes sizes;
    sizes.batch = draw.integer(1, 3);
    sizes.key_heads = draw.integer(1, 3);
    sizes.heads = sizes.key_heads;
    sizes.rows = draw.integer(1, 24);
    sizes.keys = draw.chance(0.6) ? sizes.rows : draw.integer(1, 24);
    sizes.width = draw.integer(1, 6);
    sizes.value_width = draw.chance(0.7) ? sizes.width : draw.integer(1, 6);
    return sizes;
}

std::vector<at::Tensor> draw_inputs(const AttentionSizes& s, Draw& draw)
{
    return {draw.values({s.batch, s.heads, s.rows, s.width}), draw.values({s.batch, s.key_heads, s.keys, s.width}),
            draw.values({s.batch, s.key_heads, s.keys, s.value_width})};
}

/// The output, and the inputs themselves: gradients that vanish but for rounding, as where a row sees a single key, are
/// then judged beside ones.
std::vector<at::Tensor> beside(const std::vector<at::Tensor>& inputs, const at::Tensor& output)
{
    std::vector<at::Tensor> outputs{output};
    for (const auto& input : inputs) {
        if (input.is_floating_point()) outputs.push_back(input * 1);
    }
    return outputs;
}

std::string text_of(const AttentionSizes& s)
{
    return "B=" + std::to_string(s.batch) + " H=" + std::to_string(s.heads) + " K=" + std::to_string(s.key_heads) +
           " L=" + std::to_string(s.rows) + " S=" + std::to_string(s.keys) + " D=" + std::to_string(s.width) +
           " E=" + std::to_string(s.value_width);
}

std::vector<std::int64_t> mask_shape(const AttentionSizes& s, Draw& draw)
{
    const std::vector<std::vector<std::int64_t>> shapes{{s.rows, s.keys},        {s.heads, s.rows, s.keys},
                                                        {s.batch, 1, 1, s.keys}, {s.batch, s.heads, s.rows, s.keys},
                                                        {1, s.heads, s.rows, 1}, {s.batch, 1, s.rows, s.keys}};
    return draw.pick(shapes);
}

TEST(Attention, EqualsThePlainOneForAnyCut)
{
    check_rule(
        [](Draw& draw) {
            auto sizes = draw_sizes(draw);
            const bool grouped = draw.chance(0.3), causal = draw.chance(0.4);
            if (grouped) sizes.heads = sizes.key_heads * draw.integer(2, 3);
            const auto scale = draw.chance(0.3) ? std::make_optional(draw.real(0.1, 1.5)) : std::nullopt;
            return RuleCase{"attention " + text_of(sizes) + (causal ? " causal" : ""),
                            draw_inputs(sizes, draw),
                            [=](const auto& x) {
                                return beside(x, at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, causal,
                                                                                  scale, grouped));
                            },
                            {}};
        },
        {.num_cases = 400});
}

TEST(Attention, TakesBooleanMasksThatMayHideEverything)
{
    check_rule(
        [](Draw& draw) {
            auto sizes = draw_sizes(draw);
            const bool grouped = draw.chance(0.3);
            if (grouped) sizes.heads = sizes.key_heads * 2;
            auto inputs = draw_inputs(sizes, draw);
            inputs.push_back(draw.values(mask_shape(sizes, draw)) > draw.real(-1.0, 1.5));
            return RuleCase{
                "boolean mask " + text_of(sizes),
                inputs,
                [=](const auto& x) {
                    return beside(x, at::scaled_dot_product_attention(x[0], x[1], x[2], x[3], 0.0, false, {}, grouped));
                },
                {}};
        },
        {.num_cases = 250});
}

TEST(Attention, TakesAddedMasksAndGivesThemTheirGradient)
{
    check_rule(
        [](Draw& draw) {
            auto sizes = draw_sizes(draw);
            const bool grouped = draw.chance(0.3), learned = draw.chance(0.6);
            if (grouped) sizes.heads = sizes.key_heads * 2;
            auto inputs = draw_inputs(sizes, draw);
            inputs.push_back(draw.values(mask_shape(sizes, draw)));
            return RuleCase{"added mask " + text_of(sizes),
                            inputs,
                            [=](const auto& x) {
                                return beside(x, at::scaled_dot_product_attention(x[0], x[1], x[2],
                                                                                  learned ? x[3] : x[3].detach(), 0.0,
                                                                                  false, {}, grouped));
                            },
                            {}};
        },
        {.num_cases = 250});
}

TEST(Attention, TakesAnyNumberOfDimensionsAndBroadcasts)
{
    check_rule([](Draw& draw) {
        const auto n = draw.integer(2, 9), s = draw.integer(2, 9), d = draw.integer(1, 4);
        const std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>> leads{
            {{}, {}}, {{3}, {3}}, {{2, 2, 3}, {2, 2, 3}}, {{2, 3}, {1, 3}}, {{2, 3}, {2, 1}}, {{1, 2}, {3, 2}}};
        auto [query, key] = draw.pick(leads);
        query.insert(query.end(), {n, d});
        key.insert(key.end(), {s, d});
        return RuleCase{
            "leading dimensions " + std::to_string(query.size()),
            {draw.values(query), draw.values(key), draw.values(key), draw.values({n, s})},
            [](const auto& x) { return beside(x, at::scaled_dot_product_attention(x[0], x[1], x[2], x[3])); },
            {}};
    });
}

TEST(Attention, PutsDimensionsThatOneLacksInFront)
{
    check_rule([](Draw& draw) {
        const auto n = draw.integer(2, 9), s = draw.integer(2, 9), d = draw.integer(1, 4);
        const std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>> leads{
            {{3}, {2, 3}}, {{2, 3}, {3}}, {{}, {2, 3}}, {{3}, {}}};
        auto [query, key] = draw.pick(leads);
        query.insert(query.end(), {n, d});
        key.insert(key.end(), {s, d});
        return RuleCase{"query of " + std::to_string(query.size()) + " dimensions, key of " +
                            std::to_string(key.size()),
                        {draw.values(query), draw.values(key), draw.values(key)},
                        [](const auto& x) { return beside(x, at::scaled_dot_product_attention(x[0], x[1], x[2])); },
                        {}};
    });
}

/// (1, H, N, D) cut along the rows.
TEST(RingAttention, PassesPiecesOfLongSequences)
{
    // More rows than a piece has, on either way.
    Draw draw(5);
    for (const bool causal : {false, true}) {
        std::vector<at::Tensor> whole;
        for (int i = 0; i < 3; ++i) whole.push_back(draw.values({1, 2, 5300, 4}).requires_grad_());
        const auto factor = draw.values({1, 2, 5300, 4});
        const auto expected = at::scaled_dot_product_attention(whole[0], whole[1], whole[2], {}, 0.0, causal);
        (expected * factor).sum().backward();

        run_ranks(3, [&](const auto& mesh) {
            std::vector<at::Tensor> parts;
            for (const auto& tensor : whole)
                parts.push_back(cut_rows(tensor.detach(), {2500, 200, 2600}, mesh).requires_grad_());
            const auto output = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, causal);
            (output * factor).sum().backward();

            EXPECT_TRUE(tensors_near(full_tensor(output), expected, 1e-11));
            for (int i = 0; i < 3; ++i)
                EXPECT_TRUE(tensors_near(full_tensor(parts[i].grad()), whole[i].grad(), 1e-11)) << i;
        });
    }
}

/// Bytes that rank `rank` receives in backward.
/// @param row_bytes, row_sum_bytes   bytes of a row of keys and values together, and in the type of sums
std::int64_t ring_backward_bytes(const std::vector<RowRange>& keys, int rank, std::int64_t row_bytes,
                                 std::int64_t row_sum_bytes)
{
    // The sums of a piece start at the rank after its owner. This rank receives the sums of all pieces except its own
    // and those of the previous rank, which start here; the sums of its own pieces arrive last.
    const auto size = static_cast<int>(keys.size());
    if (size == 1) return 0;
    std::int64_t rows = 0;
    for (int r = 0; r < size; ++r) {
        if (r != (rank + size - 1) % size) rows += keys[r].length;
    }
    return ring_bytes(keys, rank, row_bytes) + rows * row_sum_bytes;
}

TEST(RingAttention, SendsWhatThePlanSays)
{
    for (const Extents& extents : {Extents{700, 0, 1300, 40}, Extents{10, 20, 30, 40}, Extents{1, 0, 0, 0}}) {
        run_ranks(4, [&](const auto& mesh) {
            std::int64_t start = 0;
            std::vector<RowRange> ranges;
            for (const auto extent : extents) ranges.push_back({start, extent}), start += extent;
            const auto whole = at::ones({1, 2, start, 3}, at::kBFloat16);
            const auto x = cut_rows(whole, extents, mesh).requires_grad_();
            mesh->counter().reset();

            const auto output = at::scaled_dot_product_attention(x, x, x);
            EXPECT_EQ(mesh->counter().total_bytes(), ring_bytes(ranges, mesh->group(0).rank(), 2 * 2 * 3 * 2));
            mesh->counter().reset();
            output.backward(output.detach());
            EXPECT_EQ(mesh->counter().total_bytes(),
                      ring_backward_bytes(ranges, mesh->group(0).rank(), 2 * 2 * 3 * 2, 2 * 2 * 3 * 4));
        });
    }
}

/// Output and gradients of q, k and v, this rank's rows of (1, 2, 2000, 4).
std::vector<at::Tensor> ring_results(const std::vector<at::Tensor>& whole, const RankGroup& group, int delay_ms)
{
    const std::vector<RowRange> ranges{{0, 700}, {700, 0}, {700, 1300}};
    const auto mine = ranges[group.rank()];
    const auto part = [&](int i) { return whole[i].narrow(2, mine.start, mine.length); };
    const AttentionSettings settings{.scale = 0.5};
    const AttentionKeys keys{part(1), part(2), at::Tensor(), 0, ranges};
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    const auto forward = ring_attention(settings, part(0), mine, keys, group);
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    const auto gradients = ring_attention_backward(
        settings, {part(0), part(3), forward.output, forward.log_sum_exp, mine}, keys, group, {});
    return {forward.output, gradients.queries, gradients.keys, gradients.values};
}

TEST(RingAttention, IsTheSameOverlappedWithALateRankAsStepByStep)
{
    Draw draw(9);
    std::vector<at::Tensor> whole;
    for (int i = 0; i < 4; ++i) whole.push_back(draw.values({1, 2, 2000, 4}));
    std::vector<std::vector<at::Tensor>> blocking(3), overlapped(3);
    run_ranks(3, [&](const auto& mesh) { blocking[mesh->coordinate(0)] = ring_results(whole, mesh->group(0), 0); });

    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&, rank] {
            at::set_num_threads(1);
            const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
            options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
            const RankGroup group(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 3, options), "domain",
                                  std::make_shared<CommCounter>());
            overlapped[rank] = ring_results(whole, group, 40 * (2 - rank));
            group.barrier();
        });
    }
    for (auto& rank : ranks) rank.join();

    for (int rank = 0; rank < 3; ++rank) {
        for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(overlapped[rank][i], blocking[rank][i])) << rank << i;
    }
}

TEST(RingAttention, IsNotNeededWhereOneSideIsWhole)
{
    run_ranks(2, [](const auto& mesh) {
        const auto queries = cut_rows(at::ones({1, 2, 10, 3}), {7, 3}, mesh).requires_grad_();
        const auto keys = from_local(at::ones({1, 2, 5, 3}), mesh, {Replicate()});
        mesh->counter().reset();

        const auto output = at::scaled_dot_product_attention(queries, keys, keys);
        output.backward(output.detach());

        EXPECT_EQ(mesh->counter().num_calls(), 0);
        EXPECT_EQ(to_string(*spec_of(output)), "Shard(2) of 7+3 on domain");
    });
}

TEST(RingAttention, MergesPartialResultsInTwoMessages)
{
    run_ranks(3, [](const auto& mesh) {
        const auto queries = from_local(at::ones({1, 2, 5, 3}), mesh, {Replicate()});
        const auto keys = cut_rows(at::ones({1, 2, 10, 3}), {7, 0, 3}, mesh);
        mesh->counter().reset();

        const auto output = at::scaled_dot_product_attention(queries, keys, keys);

        EXPECT_EQ(mesh->counter().num_calls(), 2);
        EXPECT_TRUE(spec_of(output)->is_replicate());
    });
}

}  // namespace
}  // namespace meshard
