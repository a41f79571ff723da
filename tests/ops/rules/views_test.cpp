// SPDX-License-Identifier: Apache-2.0
// Views along cut dimensions, and writes through them, against the plain operators.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

std::vector<std::int64_t> draw_shape(Draw& draw, int num_dims)
{
    std::vector<std::int64_t> shape;
    for (int k = 0; k < num_dims; ++k) shape.push_back(draw.integer(2, 8));
    return shape;
}

/// With n entries along `dim`: a slice, an entry, sizes of parts.
std::vector<NamedOperator> views(Draw& draw, std::int64_t dim, std::int64_t n)
{
    const auto start = draw.integer(-n, n - 1), end = draw.integer(-n, n + 1), step = draw.integer(1, 3),
               index = draw.integer(-n, n - 1);
    const auto length = draw.integer(1, n), first = draw.integer(0, n - 1), shift = draw.integer(-4, 4),
               times = draw.integer(1, 3);
    return {
        {"slice", [=](auto& x) { return Tensors{x[0].slice(dim, start, end, step) * 2}; }},
        {"two slices",
         [=](auto& x) {
             return Tensors{x[0].slice(dim, 0, length, step).sum() * x[0].slice(dim, first, n).exp(), x[0] * 3};
         }},
        {"narrow",
         [=](auto& x) { return Tensors{x[0].narrow(dim, 0, length).narrow(dim, 0, (length + 1) / 2).tanh()}; }},
        {"select", [=](auto& x) { return Tensors{x[0].select(dim, index) * 2, x[0] + 1}; }},
        {"split",
         [=](auto& x) {
             auto p = x[0].split(length, dim);
             return Tensors{p.front().sin(), p.back() * 2};
         }},
        {"chunk",
         [=](auto& x) {
             auto p = x[0].chunk(2, dim);
             return Tensors{p.front().sin(), p.back() * 2};
         }},
        {"split with sizes",
         [=](auto& x) {
             auto p = x[0].split_with_sizes({length, n - length}, dim);
             return Tensors{p[1] * 2, p[0].exp()};
         }},
        {"unbind",
         [=](auto& x) {
             auto p = x[0].unbind(dim);
             return Tensors{p[first] * p.back()};
         }},
        {"cat", [=](auto& x) { return Tensors{at::cat({x[0], x[1] * 2, x[0].narrow(dim, 0, length)}, dim)}; }},
        {"cat of slices",
         [=](auto& x) { return Tensors{at::cat({x[0].slice(dim, first), x[0].slice(dim, 0, first)}, dim).tanh()}; }},
        {"stack", [=](auto& x) { return Tensors{at::stack({x[0], x[1]}, dim)}; }},
        {"repeat",
         [=](auto& x) {
             auto r = std::vector<std::int64_t>(x[0].dim(), 1);
             r[dim] = times;
             return Tensors{x[0].repeat(r) * 2, x[0].repeat({2, 1, 1, 1})};
         }},
        {"repeat_interleave", [=](auto& x) { return Tensors{x[0].repeat_interleave(times, dim)}; }},
        {"slice_scatter",
         [=](auto& x) {
             return Tensors{at::slice_scatter(x[0], x[1].slice(dim, start, end, step) * 2, dim, start, end, step)};
         }},
        {"select_scatter",
         [=](auto& x) { return Tensors{at::select_scatter(x[0], x[1].select(dim, first), dim, index)}; }},
        {"diagonal", [=](auto& x) { return Tensors{x[0].diagonal(shift > 0 ? 1 : 0, dim, dim == 0 ? 1 : 0) * 2}; }},
        {"unfold", [=](auto& x) { return Tensors{x[0].unfold(dim, length, step) * 2}; }},
        {"expand",
         [=](auto& x) {
             auto s = x[0].sizes().vec();
             s[dim] = 4;
             return Tensors{x[0].narrow(dim, first, 1).expand(s).tanh()};
         }},
        {"squeeze",
         [=](auto& x) { return Tensors{x[0].narrow(dim, first, 1).squeeze(dim) * 2, x[0].unsqueeze(dim) * 2}; }},
        {"shifted window", [=](auto& x) { return Tensors{at::roll(x[0], shift, dim).narrow(dim, 0, length) * 2}; }},
        {"movedim",
         [=](auto& x) { return Tensors{x[0].movedim(dim, 0).contiguous() * 2, x[0].transpose(0, 2).flatten(1)}; }},
    };
}

TEST(Views, EqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto shape = draw_shape(draw, 3);
            const auto dim = draw.integer(0, 2);
            const auto all = views(draw, dim, shape[dim]);
            const auto& [name, function] = draw.pick(all);
            return RuleCase{name, {draw.values(shape), draw.values(shape)}, function, {}};
        },
        {.num_cases = 500,
         .gathers = {{"aten::unfold(_backward)?", "", "windows that reach over the cuts"},
                     {"aten::diagonal_backward", "", kNoRule},
                     {"aten::unbind.int", "", "one row a tensor: each is whole on every rank"},
                     {"aten::_unsafe_view|aten::diagonal", "second", kTwoAxes}}});
}

TEST(Views, SplitAndMergeRows)
{
    check_rule(
        [](Draw& draw) {
            const auto a = draw.integer(1, 3), b = draw.integer(1, 4), c = draw.integer(2, 3), d = draw.integer(1, 4);
            const std::vector<std::vector<std::int64_t>> shapes{{a, b * c, d},  {a, b, c, d},    {a * b * c, d},
                                                                {a, b * c * d}, {a * b * c * d}, {a * b, c * d},
                                                                {a, b, c * d},  {c, a * b * d}};
            const auto from = draw.pick(shapes), to = draw.pick(shapes), next = draw.pick(shapes);
            return RuleCase{"view",
                            {draw.values(from)},
                            [=](const Tensors& x) {
                                return Tensors{x[0].view(to).sin() * 2, (x[0] * 2).reshape(to).tanh().view(next),
                                               x[0].transpose(0, -1).reshape(next)};
                            },
                            {}};
        },
        {.num_cases = 300, .gathers = {{"aten::view|aten::_unsafe_view", "", "a shape that cannot keep the cut"}}});
}

/// Writes into parts of y = x; what the plain tensor sees the sharded one must see.
std::vector<NamedOperator> writes(Draw& draw, std::int64_t dim, std::int64_t n)
{
    const auto first = draw.integer(0, n - 1), length = draw.integer(1, n - first), index = draw.integer(-n, n - 1),
               step = draw.integer(1, 3);
    const auto other = (dim + 1) % 3;
    return {
        {"narrow then multiply",
         [=](auto& x) {
             auto y = x[0] * 1;
             y.narrow(dim, first, length).mul_(2);
             return Tensors{y * x[0]};
         }},
        {"slice then copy",
         [=](auto& x) {
             auto y = x[0] * 1;
             y.slice(dim, first, n, step).copy_(x[1].slice(dim, first, n, step));
             return Tensors{y * x[0]};
         }},
        {"transpose then add",
         [=](auto& x) {
             auto y = x[0] * 1;
             y.transpose(0, 2).add_(1);
             y.transpose(0, 2).add_(x[1].transpose(0, 2));
             return Tensors{y.sin()};
         }},
        {"view then relu",
         [=](auto& x) {
             auto y = x[0] * 1;
             y.view({-1}).relu_();
             return Tensors{y * 2};
         }},
        {"select then fill",
         [=](auto& x) {
             auto y = x[0] * 1;
             y.select(dim, index).fill_(3);
             return Tensors{y * x[0]};
         }},
        {"select then add",
         [=](auto& x) {
             auto y = x[0] * 1;
             y.select(dim, index).add_(x[1].select(dim, first));
             return Tensors{y * x[0]};
         }},
        {"select read after the base is written",
         [=](auto& x) {
             auto y = x[0] * 1;
             auto s = y.select(dim, index);
             y.mul_(3);
             return Tensors{s + 1, y};
         }},
        {"views of a selection",
         [=](auto& x) {
             auto y = x[0] * 1;
             auto s = y.select(dim, index).unsqueeze(0);
             y.add_(x[1]);
             s.mul_(2);
             return Tensors{s + 1, y * 2};
         }},
        {"two levels",
         [=](auto& x) {
             auto y = x[0] * 1;
             y.narrow(dim, first, length).select(other, 0).mul_(3);
             return Tensors{y * x[0]};
         }},
        {"whole written with parts",
         [=](auto& x) {
             auto y = at::zeros_like(x[0].sum(dim, true)).expand_as(x[0]).clone();
             y.narrow(dim, first, length).copy_(x[0].narrow(dim, first, length));
             return Tensors{y * x[1]};
         }},
        {"new tensor filled by parts",
         [=](auto& x) {
             auto y = x[0].new_zeros(x[0].sizes());
             y.narrow(dim, first, length).add_(x[1].narrow(dim, first, length));
             y.select(dim, index).add_(1);
             return Tensors{y * x[0]};
         }},
        {"pending sum written through",
         [=](auto& x) {
             auto y = x[0].sum(dim);
             y.narrow(1, 0, 1).mul_(2);
             y.select(0, 0).exp_();
             return Tensors{y * 2};
         }},
        {"expanded source",
         [=](auto& x) {
             auto y = x[0] * 1;
             y.narrow(dim, first, length).mul_(x[1].narrow(dim, first, 1));
             return Tensors{y * 2};
         }},
        {"index assignment",
         [=](auto& x) {
             auto y = x[0] * 1;
             y.index_put_({at::indexing::Slice(), 0}, 0);
             y.index_put_({at::indexing::Slice(first, first + length < x[0].size(0) ? first + length : x[0].size(0))},
                          1);
             return Tensors{y * x[0]};
         }},
    };
}

TEST(Views, AreWrittenThrough)
{
    check_rule(
        [](Draw& draw) {
            const auto shape = draw_shape(draw, 3);
            const auto dim = draw.integer(0, 2);
            const auto all = writes(draw, dim, shape[dim]);
            const auto& [name, function] = draw.pick(all);
            return RuleCase{name, {draw.values(shape), draw.values(shape)}, function, {}};
        },
        {.num_cases = 500, .gathers = {{"aten::view", "second", kTwoAxes}}});
}

/// One of the ways to look at a tensor; `numbers` choose which and where.
at::Tensor a_view(const at::Tensor& x, const std::vector<std::int64_t>& numbers)
{
    if (x.dim() == 0) return x.unsqueeze(0);
    const auto dim = numbers[1] % x.dim(), n = x.size(dim);
    const auto start = n > 1 ? numbers[2] % (n - 1) : 0;
    switch (numbers[0]) {
    case 0:
        return n > 0 ? x.select(dim, numbers[2] % n) : x;
    case 1:
        return x.slice(dim, start, n, 1 + numbers[3] % 3);
    case 2:
        return x.transpose(dim, x.dim() - 1);
    case 3:
        return x.is_contiguous() ? x.view({-1}) : x.unsqueeze(dim);
    case 4:
        return x.is_contiguous() && n % 2 == 0 && n > 0 ? x.unflatten(dim, {2, n / 2}) : x.slice(dim, start, n);
    default:
        return x.narrow(dim, n / 2, n - n / 2);
    }
}

TEST(Views, OfViewsAndTheirBaseSeeEachOthersWrites)
{
    check_rule(
        [](Draw& draw) {
            const auto shape = draw_shape(draw, 3);
            const auto start = draw.integer(0, 3), num_views = draw.integer(1, 4), num_writes = draw.integer(1, 3);
            std::vector<std::vector<std::int64_t>> steps, writes;
            for (std::int64_t i = 0; i < num_views; ++i)
                steps.push_back({draw.integer(0, 5), draw.integer(0, 2), draw.integer(0, 5), draw.integer(0, 5),
                                 draw.integer(0, i)});
            for (std::int64_t i = 0; i < num_writes; ++i)
                writes.push_back({draw.integer(0, num_views), draw.integer(0, 2), draw.integer(0, num_views)});
            std::string text = "base " + std::to_string(start);
            for (const auto& step : steps)
                text += ", view " + std::to_string(step[0]) + " of " + std::to_string(step[4]);
            for (const auto& write : writes) text += ", write to " + std::to_string(write[0]);
            return RuleCase{text,
                            {draw.values(shape)},
                            [=](const Tensors& x) {
                                // A new tensor, one whose rows are cut in blocks, one that may be pending, one of
                                // another shape.
                                const auto first = x[0].contiguous();
                                std::vector<at::Tensor> all{start == 0   ? first * 2
                                                            : start == 1 ? (first * 2).flatten(0, 1)
                                                            : start == 2 ? first.sum(0)
                                                                         : at::cat({first, first}, 1)};
                                for (const auto& step : steps) all.push_back(a_view(all[step[4]], step));
                                Tensors results;
                                for (const auto& write : writes) {
                                    if (write[1] == 0)
                                        all[write[0]].mul_(1.5);
                                    else if (write[1] == 1)
                                        all[write[0]].add_(1);
                                    else
                                        all[write[0]].copy_(all[write[0]].detach().square() + 0.5);
                                    results.push_back(all[write[2]] * 3);
                                }
                                for (const auto& one : all) results.push_back(one * 1);
                                // Of what lies otherwise in memory, a reshaped one is a copy.
                                const auto moved =
                                               all.back().dim() > 1 ? all.back().transpose(0, 1) * 2 : all.back() * 2,
                                           flat = moved.reshape({-1});
                                flat.add_(1);
                                results.insert(results.end(), {moved * 1, flat * 1, moved.detach().reshape({-1})});
                                return results;
                            },
                            {}};
        },
        {.num_cases = 800,
         .gathers = {{"aten::view|aten::_unsafe_view", "", "a shape that cannot keep the cut"},
                     {"aten::(slice.Tensor|select.int|slice_backward)", " x \\(|second",
                      "rows of a dimension that is cut in blocks"}}});
}

TEST(Views, AreWrittenThroughWithoutGradientsAndInInferenceMode)
{
    run_ranks(3, [](const auto& mesh) {
        set_gather_policy(GatherPolicy::Silent);
        for (const bool inference : {false, true}) {
            const c10::InferenceMode guard(inference);
            const at::NoGradGuard no_grad;
            const auto whole = at::arange(2 * 9 * 2, at::kDouble).view({2, 9, 2});
            const auto run = [](const at::Tensor& x) {
                const auto rows = x.flatten(0, 1), row = x.select(1, 4);
                rows.slice(0, 0, 18).slice(0, 1, 18, 3).zero_();
                row.add_(100);
                rows.mul_(2);
                return at::cat({rows, row, x.select(1, 4)});
            };
            const std::vector<AxisLayout> axes{{Shard(1), std::make_shared<Extents>(Extents{5, 1, 3}), 1}};
            const auto spec = make_spec(mesh, axes);
            const auto cut = from_local(own_part(whole, *spec).clone(), spec);
            EXPECT_TRUE(tensors_near(full_tensor(run(cut)), run(whole.clone()), 0)) << inference;
        }
        set_gather_policy(GatherPolicy::Warn);
    });
}

TEST(Views, OfCutDimensionsSendNothing)
{
    run_ranks(3, [](const auto& mesh) {
        set_gather_policy(GatherPolicy::Refuse);
        const auto x =
            from_local(at::ones({4 + mesh->coordinate(0), 6}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
        mesh->counter().reset();

        const auto y = x.slice(0, 2, 14, 3).sum() + x.narrow(0, 3, 8).split(3, 0)[1].sum() + x.repeat({2, 1}).sum();
        const auto z = x.narrow(0, 5, 1).narrow(1, 1, 2) * 2;

        EXPECT_EQ(mesh->counter().num_calls(), 0);
        y.backward();
        EXPECT_EQ(to_string(*spec_of(x.grad())), to_string(*spec_of(x)));
        set_gather_policy(GatherPolicy::Warn);
    });
}

// As a vision transformer: patches to tokens, tokens transposed back to images of any number of channels, one included.
// Where one rank holds all rows, any dimension could be the cut one; images must come out cut along a direction of
// space again.
TEST(Views, LeadFromImagesToTokensAndBackWhereOneRankHoldsAll)
{
    for (const int num_ranks : {1, 2, 3})
        run_ranks(num_ranks, [&](const auto& mesh) {
            const auto n = mesh->num_ranks();
            for (const std::int64_t in : {1, 2})
                for (const std::int64_t out : {1, 2, 16})
                    for (const std::int64_t dim : {2, 3})
                        for (std::int64_t holder = 0; holder <= n; ++holder) {  // the last one: even parts
                            auto extents = even_extents(16, n);
                            if (holder < n) {
                                extents.assign(n, 0);
                                extents[holder] = 16;
                            }
                            const auto spec = make_spec(mesh, {{Shard(dim), std::make_shared<Extents>(extents), 1}});
                            auto generator =
                                at::detail::createCPUGenerator(3);  // one for each rank: all draw the same numbers
                            const auto x = at::randn({1, in, 16, 16}, generator, at::kDouble),
                                       to_patches = at::randn({16, in, 4, 4}, generator, at::kDouble),
                                       to_pixels = at::randn({16, out, 4, 4}, generator, at::kDouble);
                            const auto apply = [&](const at::Tensor& image, const at::Tensor& pixels) {
                                const auto patches = at::conv2d(image, to_patches, {}, 4);
                                const auto tokens = patches.flatten(2).transpose(1, 2);
                                const auto mixed = tokens + tokens.sin();
                                return at::conv_transpose2d(
                                    mixed.transpose(1, 2).unflatten(-1, patches.sizes().slice(2)), pixels, {}, 4);
                            };
                            auto leaf = x.clone().requires_grad_(), weight = to_pixels.clone().requires_grad_();
                            const auto expected = apply(leaf, weight);
                            (expected.sin() * expected).sum().backward();
                            auto cut =
                                     redistribute(from_local(x, replicated_spec(mesh)), spec).detach().requires_grad_(),
                                 plain = to_pixels.clone().requires_grad_();

                            const auto found = apply(cut, plain);
                            (found.sin() * found).sum().backward();

                            SCOPED_TRACE(to_string(*spec) + ", " + std::to_string(in) + " to " + std::to_string(out));
                            if (holder < n) {  // even parts move to the borders of patches
                                EXPECT_EQ(to_string(*spec_of(found)), to_string(*spec));
                            }
                            EXPECT_TRUE(tensors_near(full_tensor(found.detach()), expected.detach(), 1e-10));
                            EXPECT_TRUE(tensors_near(full_tensor(cut.grad()), leaf.grad(), 1e-10));
                        }
        });
}

TEST(Views, OfOneRowSendThatRow)
{
    run_ranks(3, [](const auto& mesh) {
        set_gather_policy(GatherPolicy::Refuse);
        const auto x = from_local(at::ones({100, 6}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
        mesh->counter().reset();

        (x.select(0, 7) * 2).sum().backward();

        EXPECT_EQ(mesh->counter().total_bytes(), 6 * 8);
        EXPECT_EQ(local_of(x.grad()).size(0), 100);
        set_gather_policy(GatherPolicy::Warn);
    });
}

}  // namespace
}  // namespace meshard
