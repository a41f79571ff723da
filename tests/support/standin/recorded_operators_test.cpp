// SPDX-License-Identifier: Apache-2.0
// A recorded function and its gradients, run again with other numbers, have the bits of the function itself.
#include "ops/rows/row_moves.h"
#include "ops/rows/segment_reduce.h"
#include "sharding/memory/device_graph.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace meshard {
namespace {

const c10::Device kHere(c10::DeviceType::PrivateUse1, 0);

at::Tensor on_device(const std::vector<std::int64_t>& values)
{
    return index_tensor(values).to(kHere);
}

/// What the functions are of: numbers, rows of x, and offsets.
struct X {
    at::Tensor x, w;  // (6, 8), (8, 8)
    at::Tensor rows = on_device({3, 1, 5, 1, 0}), distinct = on_device({4, 0, 5}), six = on_device({5, 4, 3, 2, 1, 1});
    at::Tensor offsets = on_device({0, 2, 2, 5, 6}), offsets_of_rows = on_device({0, 4, 5});
};

struct Recorded {
    const char* name;
    std::function<at::Tensor(const X& a)> function;
};

std::ostream& operator<<(std::ostream& out, const Recorded& recorded)
{
    return out << recorded.name;
}

at::Tensor numbers(at::IntArrayRef sizes, double step)
{
    return at::arange(c10::multiply_integers(sizes), at::kFloat).mul(step).add(step).sin().view(sizes);
}

/// Result, loss and gradients of one step.
std::vector<at::Tensor> step(const Recorded& recorded, const X& a)
{
    a.x.mutable_grad() = at::Tensor();
    a.w.mutable_grad() = at::Tensor();
    const auto y = recorded.function(a), loss = (y * y.detach().cos()).sum();
    loss.backward();
    return {y.detach(), loss.detach(), a.x.grad(), a.w.grad()};
}

class RecordedOperator : public testing::TestWithParam<std::tuple<Recorded, bool>> {
protected:
    // With threads of the device backward runs in one of them.
    void SetUp() override { c10::AutogradState::get_tls_state().set_multithreading_enabled(std::get<1>(GetParam())); }
    void TearDown() override { c10::AutogradState::get_tls_state().set_multithreading_enabled(true); }
};

TEST_P(RecordedOperator, GivesTheBitsOfTheOperatorItself)
{
    const auto& recorded = std::get<0>(GetParam());
    const OwnStream stream(kHere);
    const auto leaf = [](at::IntArrayRef sizes, double step) {
        return numbers(sizes, step).to(kHere).requires_grad_();
    };
    const X a{leaf({6, 8}, 0.37), leaf({8, 8}, 0.11)};
    for (int i = 0; i < 2; ++i) step(recorded, a);  // what is made once is there

    DeviceGraph graph(kHere.type());
    std::vector<at::Tensor> found;
    graph.record([&] { found = step(recorded, a); });
    // Others take what memory there is.
    std::vector<at::Tensor> others;
    for (int i = 0; i < 200; ++i) others.push_back(at::full({1 + 600 * (i % 8)}, 7.0F, kHere));

    for (const double change : {0.23, 0.59}) {
        const X other{leaf({6, 8}, change), leaf({8, 8}, 3 * change)};
        const auto expected = step(recorded, other);
        {
            const at::NoGradGuard no_grad;
            a.x.copy_(other.x);
            a.w.copy_(other.w);
        }
        graph.run();
        for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_EQ(found[i].defined(), expected[i].defined()) << i;
            if (!expected[i].defined()) continue;
            EXPECT_TRUE(at::equal(found[i].cpu(), expected[i].cpu())) << "of result, loss and gradients number " << i;
        }
        for (const auto& tensor : others)
            ASSERT_TRUE(tensor.eq(7).all().item<bool>()) << "the graph writes to memory that is not its own";
    }
}

/// (1, 1, 6, 8, ...) of x, with further directions of length 3.
at::Tensor image(const at::Tensor& x, int directions)
{
    if (directions == 1) return x.view({1, 6, 8});
    const auto plane = x.view({1, 1, 6, 8});
    return directions == 2 ? plane : at::stack({plane, plane * 2, plane.cos()}, -1);
}

/// (out, in, 3, ...) of w.
at::Tensor kernel(const at::Tensor& w, std::int64_t out, std::int64_t in, int directions)
{
    std::vector<std::int64_t> shape{out, in}, repeats(static_cast<std::size_t>(directions) + 2, 3);
    shape.resize(repeats.size(), 1);
    repeats[0] = repeats[1] = 1;
    const auto ramp = at::arange(1, 4, w.options().requires_grad(false)).view({3});
    return w.narrow(0, 0, out).narrow(1, 0, in).reshape(shape).repeat(repeats) * ramp;
}

const std::vector<Recorded> kRecorded{
    {"Linear", [](const X& a) { return at::linear(a.x, a.w).relu() + 1; }},
    {"LayerNorm", [](const X& a) { return at::layer_norm(a.x, {8}, a.w[0], a.w[1]); }},
    {"Attention",
     [](const X& a) {
         const auto heads = [](const at::Tensor& t) { return t.reshape({1, 2, -1, 4}); };
         return at::scaled_dot_product_attention(heads(a.x), heads(a.w), heads(a.w * 2));
     }},
    {"IndexSelect", [](const X& a) { return at::cat({a.x, a.w}).index_select(0, a.rows); }},
    {"RowsByNumbers", [](const X& a) { return a.x.index_select(0, a.w.select(1, 0).narrow(0, 0, 6).argsort()); }},
    {"Index", [](const X& a) { return (a.x * a.w.narrow(0, 0, 6)).index({a.rows, a.rows}); }},
    {"IndexOfOneDirection", [](const X& a) { return (a.x * 2).index({std::optional<at::Tensor>(), a.rows}); }},
    {"IndexPut", [](const X& a) { return a.x.index_put({a.rows}, a.w.narrow(0, 0, 5), true); }},
    {"IndexPutInPlace", [](const X& a) { return (a.x * 3).index_put_({a.distinct}, a.w.narrow(0, 0, 3)); }},
    {"IndexAdd", [](const X& a) { return a.x.index_add(0, a.rows, a.w.narrow(0, 0, 5)); }},
    {"IndexCopy", [](const X& a) { return a.x.index_copy(0, a.distinct, a.w.narrow(0, 0, 3)); }},
    {"Gather", [](const X& a) { return a.w.gather(0, a.rows.view({5, 1}).expand({5, 8})); }},
    {"ScatterAdd",
     [](const X& a) { return a.x.scatter_add(0, a.rows.view({5, 1}).expand({5, 8}), a.w.narrow(0, 0, 5)); }},
    {"TakeRows", [](const X& a) { return take_rows(a.x, a.rows) * a.w.narrow(0, 0, 5); }},
    {"TakeTakenRows", [](const X& a) { return take_rows(take_rows(a.x, a.six), a.distinct) * a.w.narrow(0, 0, 3); }},
    {"ScatterDistinctRows",
     [](const X& a) { return scatter_distinct_rows(take_rows(a.w, a.distinct), a.distinct, 6) * a.x; }},
    {"ScatterRows", [](const X& a) { return scatter_rows(a.w.narrow(0, 0, 5), a.rows, 6) * a.x; }},
    {"SegmentSum",
     [](const X& a) { return segment_reduce(a.x, a.offsets, SegmentReduction::Sum).values * a.w.narrow(0, 0, 4); }},
    {"SegmentMean",
     [](const X& a) { return segment_reduce(a.x, a.offsets, SegmentReduction::Mean).values * a.w.narrow(0, 0, 4); }},
    {"SegmentMax",
     [](const X& a) { return segment_reduce(a.x, a.offsets, SegmentReduction::Max).values * a.w.narrow(0, 0, 4); }},
    {"SegmentSoftmax", [](const X& a) { return segment_softmax(a.x, a.offsets) * a.w.narrow(0, 0, 6); }},
    {"SegmentsOfRows",
     [](const X& a) {
         return segment_reduce(
                    take_rows(segment_reduce(a.x, a.offsets, SegmentReduction::Sum).values, a.rows.clamp_max(3)),
                    a.offsets_of_rows, SegmentReduction::Mean)
                    .values *
                a.w.narrow(0, 0, 2);
     }},
    {"Convolution1d",
     [](const X& a) { return at::conv1d(image(a.x, 1), kernel(a.w, 4, 6, 1), a.w[7].narrow(0, 0, 4), 1, 1); }},
    {"Convolution2d",
     [](const X& a) { return at::conv2d(image(a.x, 2), kernel(a.w, 5, 1, 2), a.w[7].narrow(0, 0, 5), 1, 1); }},
    {"Convolution3d",
     [](const X& a) { return at::conv3d(image(a.x, 3), kernel(a.w, 2, 1, 3), a.w[7].narrow(0, 0, 2), 1, 1); }},
    {"ConvolutionStrided", [](const X& a) { return at::conv2d(image(a.x, 2), kernel(a.w, 5, 1, 2), {}, 2, 1, 2); }},
    {"ConvolutionOfGroups",
     [](const X& a) { return at::conv1d(image(a.x, 1), kernel(a.w, 6, 2, 1), {}, 1, at::IntArrayRef{0}, 1, 3); }},
    {"ConvolutionTransposed",
     [](const X& a) {
         return at::conv_transpose2d(image(a.x, 2), kernel(a.w, 1, 5, 2), a.w[7].narrow(0, 0, 5), 2, 1, 1);
     }},
    {"ConvolutionsTwice",
     [](const X& a) {
         return at::conv2d(at::gelu(at::conv2d(image(a.x, 2), kernel(a.w, 5, 1, 2), {}, 1, 1)), kernel(a.w, 2, 5, 2),
                           a.w[3].narrow(0, 0, 2));
     }},
    {"ConvolutionsLeaveChannelsLast",
     [](const X& a) {
         return at::conv2d(image(a.x, 2).contiguous(at::MemoryFormat::ChannelsLast), kernel(a.w, 5, 1, 2), {}, 1, 1);
     }},
    {"GroupNorm",
     [](const X& a) { return at::group_norm(image(a.x, 1), 2, a.w[0].narrow(0, 0, 6), a.w[1].narrow(0, 0, 6)); }},
    {"BatchNorm", [](const X& a) { return at::batch_norm(a.x, a.w[0], a.w[1], {}, {}, true, 0.1, 1e-5, false); }},
    {"MaxPool", [](const X& a) { return at::max_pool2d(image(a.x * a.w.narrow(0, 0, 6), 2), 2); }},
    {"AvgPool", [](const X& a) { return at::avg_pool3d(image(a.x, 3), 2); }},
    {"AdaptivePool", [](const X& a) { return at::adaptive_avg_pool2d(image(a.x, 2), {4, 3}); }},
    {"Upsample",
     [](const X& a) {
         return at::upsample_nearest2d(image(a.x, 2), {9, 16}) + at::upsample_bilinear2d(image(a.x, 2), {9, 16}, true);
     }},
    {"GridSample", [](const X& a) { return at::grid_sampler(image(a.x, 2), a.w.view({1, 4, 8, 2}), 0, 0, true); }},
    {"Pad",
     [](const X& a) {
         return at::pad(image(a.x, 2), {1, 2, 0, 1}, "reflect") + at::constant_pad_nd(a.x, {1, 2, 0, 1}, 2);
     }},
    {"Unfold", [](const X& a) { return at::im2col(image(a.x, 2), {2, 3}, {1, 1}, {0, 1}, {1, 2}); }},
    {"Fourier",
     [](const X& a) {
         const auto modes = at::fft_rfft2(image(a.x, 2)).narrow(-1, 0, 2);
         const auto weights = at::view_as_complex(a.w.view({4, 8, 2})).narrow(0, 0, 1).narrow(1, 0, 6).unsqueeze(-1);
         return at::fft_irfft2(at::einsum("bchw,chw->bchw", {modes, weights.expand({1, 6, 2})}),
                               std::vector<std::int64_t>{6, 8});
     }},
    {"Parts",
     [](const X& a) {
         return at::cat({a.x.split(3)[1], at::stack(a.w.unbind(0), 1).narrow(0, 0, 2), a.x.chunk(2)[0].flip(0)});
     }},
    {"WritesToParts",
     [](const X& a) {
         auto whole = at::zeros({7, 8}, a.x.options().requires_grad(false));
         whole.narrow(0, 0, 6).copy_(a.x);
         whole.select(0, 6).add_(a.w[2]).mul_(2);
         whole.narrow(1, 2, 3).masked_fill_(whole.narrow(1, 2, 3) > 0.5, 0.25);
         return whole;
     }},
    {"SortsAndSums",
     [](const X& a) { return std::get<0>(a.x.sort(1)).cumsum(0) * std::get<0>(a.w.topk(8, 1)).narrow(0, 0, 6); }},
    {"Norms",
     [](const X& a) {
         return at::linalg_vector_norm(a.x, 2, at::IntArrayRef{1}, true) / a.w.std() * a.x.mean(0) /
                at::linalg_vector_norm(a.w);
     }},
    {"Where",
     [](const X& a) {
         return at::where(a.x > 0, a.x, at::scalar_tensor(2.0)) * at::maximum(a.x, a.w.narrow(0, 0, 6));
     }},
    {"Products",
     [](const X& a) {
         return at::einsum("ij,kj,kl->il", {a.x, a.w, a.w}) +
                at::baddbmm(a.x.view({2, 3, 8}), a.x.view({2, 3, 8}), a.w.expand({2, 8, 8})).view({6, 8});
     }},
    {"NarrowTypes",
     [](const X& a) {
         return at::linear(a.x.to(at::kBFloat16), a.w.to(at::kBFloat16)).to(at::kFloat) +
                take_rows(a.x.to(at::kBFloat16), a.six).to(at::kFloat);
     }},
    {"Resized",
     [](const X& a) {
         auto out = at::empty({0}, a.x.options().requires_grad(false));
         at::mm_out(out, a.x.detach(), a.w.detach());
         return out * a.x * a.w.narrow(0, 0, 6);
     }},
};

INSTANTIATE_TEST_SUITE_P(Standin, RecordedOperator, testing::Combine(testing::ValuesIn(kRecorded), testing::Bool()),
                         [](const auto& info) {
                             return std::string(std::get<0>(info.param).name) +
                                    (std::get<1>(info.param) ? "_threads" : "");
                         });

}  // namespace
}  // namespace meshard
