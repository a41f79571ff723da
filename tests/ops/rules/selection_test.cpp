// SPDX-License-Identifier: Apache-2.0
// Entries picked, written and sampled, distances and transforms, against the plain operators; and where no rank needs
// the whole.
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

at::Tensor draw_index(Draw& draw, c10::IntArrayRef shape, std::int64_t low, std::int64_t high)
{
    auto index = at::empty(shape, at::kLong);
    for (std::int64_t i = 0; i < index.numel(); ++i) index.data_ptr<std::int64_t>()[i] = draw.integer(low, high);
    return index;
}

/// `x[:, ..., index]` that picks from dimension `dim`.
c10::List<std::optional<at::Tensor>> index_of(std::int64_t dim, const at::Tensor& index)
{
    c10::List<std::optional<at::Tensor>> indices;
    for (std::int64_t d = 0; d < dim; ++d) indices.push_back(std::nullopt);
    indices.push_back(index);
    return indices;
}

TEST(Scatter, EqualsThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            std::vector<std::int64_t> shape, picks;
            const auto num_dims = draw.integer(1, 3), dim = draw.integer(0, num_dims - 1);
            for (std::int64_t d = 0; d < num_dims; ++d) {
                shape.push_back(draw.integer(1, 6));
                picks.push_back(d == dim           ? draw.integer(1, 8)
                                : draw.chance(0.8) ? shape[d]
                                                   : draw.integer(1, shape[d]));
            }
            const auto n = shape[dim];
            auto added = shape;  // of index_add: rows along `dim`
            added[dim] = draw.integer(1, 7);
            // Inputs: values, those to write, an index for each of these, rows to add, an index for each of them.
            const std::vector<NamedOperator> operators{
                {"gather", [=](auto& x) { return Tensors{at::gather(x[0], dim, x[2])}; }},
                {"scatter_add", [=](auto& x) { return Tensors{at::scatter_add(x[0], dim, x[2], x[1])}; }},
                {"scatter_add_", [=](auto& x) { return Tensors{(x[0] * 1).scatter_add_(dim, x[2], x[1])}; }},
                {"scatter with a value",
                 [=](auto& x) {
                     return Tensors{at::scatter(x[0], dim, x[2], 2.5), (x[0] * 2).scatter_(dim, x[2], 1.5)};
                 }},
                {"scatter_reduce",
                 [=](auto& x) {
                     return Tensors{at::scatter_reduce(x[0], dim, x[2], x[1], "amax"),
                                    at::scatter_reduce(x[0], dim, x[2], x[1], "mean")};
                 }},
                {"index_add", [=](auto& x) { return Tensors{at::index_add(x[0], dim, x[4], x[3], 2)}; }},
                {"index_add_", [=](auto& x) { return Tensors{(x[0] * 1).index_add_(dim, x[4], x[3])}; }},
                {"index",
                 [=](auto& x) {
                     return Tensors{at::index(
                         x[0], index_of(dim, x[2] - n * x[2].remainder(2)))};  // every other one counted from the end
                 }},
                {"index_put",
                 [=](auto& x) {
                     const auto indices = index_of(dim, x[4]);
                     return Tensors{at::index_put(x[0], indices, x[3].reshape({-1})[0], true),
                                    (x[0] * 1).index_put_(indices, x[3] * 2, true)};
                 }},
            };
            const auto& [name, function] = draw.pick(operators);
            return RuleCase{std::string(name) + " along " + std::to_string(dim),
                            {draw.values(shape), draw.values(picks), draw_index(draw, picks, 0, n - 1),
                             draw.values(added), draw_index(draw, {added[dim]}, 0, n - 1)},
                            function,
                            {}};
        },
        {.num_cases = 500,
         .gathers = {
             {"aten::gather|aten::scatter.value|aten::scatter_.value|aten::scatter_add_?|aten::scatter_reduce.two", "",
              "an index that is shorter than the tensor along a cut dimension lies otherwise"},
             {"aten::select.int", " x \\(", "an entry of a dimension that is cut in blocks"},
             {"aten::view", "second", kTwoAxes}}});
}

TEST(Selection, EqualsThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const std::vector<std::int64_t> shape{draw.integer(1, 3), draw.integer(1, 7), draw.integer(1, 6)};
            const auto k = draw.integer(-3, 3);
            const std::vector<NamedOperator> operators{
                {"masked_select", [=](auto& x) { return Tensors{at::masked_select(x[0], x[1] > 0)}; }},
                {"masked_scatter",
                 [=](auto& x) {
                     return Tensors{at::masked_scatter(x[0], x[1] > 0, x[1].reshape({-1})),
                                    (x[0] * 1).masked_scatter_(x[1] > 0, x[0].reshape({-1}))};
                 }},
                {"nonzero", [=](auto& x) { return Tensors{at::nonzero(x[1] > 0)}; }},
                {"triangles",
                 [=](auto& x) {
                     return Tensors{at::tril(x[0], k), at::triu(x[0], k), (x[0] * 1).triu_(k),
                                    x[0].transpose(0, 2).tril(k)};
                 }},
                {"bucketize",
                 [=](auto& x) {
                     return Tensors{at::bucketize(
                         x[0].detach(),
                         at::tensor({-1.0, 0.0, 0.5}, at::TensorOptions(at::kDouble).device(x[0].device())))};
                 }},
            };
            const auto& [name, function] = draw.pick(operators);
            return RuleCase{name, {draw.values(shape), draw.values(shape)}, function, {}};
        },
        {.num_cases = 300,
         .gathers = {{"aten::masked_scatter_?", "", "which value goes where depends on all entries before"},
                     {"aten::masked_scatter_backward", "", kNoRule},
                     {"aten::masked_select|aten::nonzero", "Shard\\([1-9]|second", kOrderOfTheWhole},
                     {"aten::view", "second", kTwoAxes}}});
}

TEST(Distances, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto batch = draw.integer(1, 3), p = draw.integer(1, 6), r = draw.integer(1, 6),
                       m = draw.integer(1, 4);
            const auto norm = draw.pick(std::vector<double>{0.5, 1, 2, 3, INFINITY});
            const auto mode = draw.integer(1, 2);  // norm 2 by products, or never
            return RuleCase{"cdist of norm " + std::to_string(norm) + " in mode " + std::to_string(mode),
                            {draw.values({batch, p, m}), draw.values({batch, r, m}) + 3},
                            [=](const Tensors& x) { return Tensors{at::cdist(x[0], x[1], norm, mode)}; },
                            {}};
        },
        {.num_cases = 300, .gathers = {{"aten::_cdist_forward|aten::_euclidean_dist|aten::view", "second", kTwoAxes}}});
}

TEST(Fourier, EqualsThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const std::vector<std::int64_t> shape{draw.integer(1, 3), draw.integer(2, 6), draw.integer(2, 7)};
            const std::vector<std::vector<std::int64_t>> choices{{0}, {1}, {2}, {1, 2}, {0, 2}, {0, 1, 2}};
            const auto dims = draw.pick(choices);
            const auto last = shape[dims.back()];
            return RuleCase{"transforms",
                            {draw.values(shape), draw.values(shape)},
                            [=](const Tensors& x) {
                                const auto half = at::fft_rfftn(x[0], c10::nullopt, dims);
                                std::vector<std::int64_t> sizes;
                                for (const auto dim : dims) sizes.push_back(x[0].size(dim));
                                sizes.back() = last;
                                const auto full = at::fft_fftn(at::complex(x[0], x[1]), c10::nullopt, dims);
                                return Tensors{at::view_as_real(half), at::fft_irfftn(half * half, sizes, dims),
                                               at::real(at::fft_ifftn(full * 2, c10::nullopt, dims)), at::abs(full)};
                            },
                            {}};
        },
        {.num_cases = 200, .tolerance = 1e-10});
}

TEST(GridSampler, EqualsThePlainOperator)
{
    check_rule(
        [](Draw& draw) {
            const auto n = draw.integer(1, 3), c = draw.integer(1, 3), mode = draw.integer(0, 1),
                       padding = draw.integer(0, 2);
            const bool corners = draw.chance(0.5), deep = draw.chance(0.4);
            std::vector<std::int64_t> image{n, c, draw.integer(1, 5), draw.integer(1, 5)},
                places{n, draw.integer(1, 5), draw.integer(1, 5), 2};
            if (deep) {
                image.push_back(draw.integer(1, 4));
                places = {n, draw.integer(1, 4), draw.integer(1, 4), draw.integer(1, 4), 3};
            }
            return RuleCase{
                deep ? "volume" : "image",
                {draw.values(image), draw.values(places) * 0.7},
                [=](const Tensors& x) { return Tensors{at::grid_sampler(x[0], x[1], mode, padding, corners)}; },
                {}};
        },
        {.num_cases = 200, .gathers = {{"aten::grid_sampler_2d(_backward)?", "second", kTwoAxes}}});
}

TEST(Selection, NeedsNoGather)
{
    run_ranks(3, [](const auto& mesh) {
        set_gather_policy(GatherPolicy::Refuse);
        const auto rank = mesh->coordinate(0);
        const auto x = from_local(at::randn({rank + 1, 5}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
        const auto rows = at::tensor({0, 5, 3, 3}, at::kLong), entries = rows.unsqueeze(1).expand({4, 5});
        auto total = at::gather(x, 0, entries).sum() + x.index({rows}).sum() + at::masked_select(x, x > 0).sum() +
                     at::tril(x).sum() + at::cdist(x, x.detach()).sum();
        total = total + at::abs(at::fft_rfft(x, c10::nullopt, 0)).sum() +
                at::index_add(x, 0, rows, at::ones({4, 5}, at::kDouble)).sum();
        total = total + at::scatter_add(x, 0, entries, at::ones({4, 5}, at::kDouble)).sum();
        total.backward();
        EXPECT_TRUE(spec_of(x.grad())->axes[0].is_shard());
        at::nonzero(x);
        set_gather_policy(GatherPolicy::Warn);
    });
}

TEST(Selection, RefusesIndicesOutsideOnEveryRank)
{
    run_ranks(3, [](const auto& mesh) {
        const auto x = from_local(at::ones({2, 4}), mesh, {Shard(0)});
        for (const std::int64_t wrong : {-7, 6}) {
            const auto rows = at::tensor({std::int64_t{0}, wrong});
            EXPECT_THROW(at::index_select(x, 0, rows), c10::Error) << wrong;
            EXPECT_THROW(at::gather(x, 0, rows.unsqueeze(1)), c10::Error) << wrong;
            EXPECT_THROW(x.index({rows}), c10::Error) << wrong;
            EXPECT_THROW(at::index_add(x, 0, rows, at::ones({2, 4})), c10::Error) << wrong;
        }
    });
}

}  // namespace
}  // namespace meshard
