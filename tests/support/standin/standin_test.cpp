// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/device_graph.h"
#include "tests/support/standin/standin.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace meshard {
namespace {

const c10::Device kDevice(c10::DeviceType::PrivateUse1, 0);

at::Tensor values(at::IntArrayRef sizes, double step = 0.37)
{
    return at::arange(c10::multiply_integers(sizes), at::kFloat).mul(step).sin().view(sizes);
}

/// The same function of tensors of the CPU and of the device.
template <class F>
void expect_same(const F& function)
{
    const auto run = [&](const c10::Device& device) {
        auto x = values({6, 8}).to(device).requires_grad_(), w = values({8, 8}, 0.11).to(device).requires_grad_();
        const at::Tensor y = function(x, w);
        (y * y).sum().backward();
        return std::vector<at::Tensor>{y.detach(), x.grad(), w.grad()};
    };
    const auto expected = run(at::kCPU), found = run(kDevice);
    for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(found[i].defined(), expected[i].defined());
        if (!expected[i].defined()) continue;
        EXPECT_EQ(found[i].device(), kDevice);
        EXPECT_EQ(found[i].strides(), expected[i].strides());
        EXPECT_TRUE(at::equal(found[i].cpu(), expected[i])) << i;
    }
}

TEST(Standin, ComputesWhatTheCpuDoes)
{
    expect_same([](const auto& x, const auto& w) { return at::linear(x, w).relu() + 1; });
    expect_same([](const auto& x, const auto& w) { return at::layer_norm(x, {8}, w[0], w[1]); });
    expect_same([](const auto& x, const auto& w) {
        return at::gelu(at::matmul(x.view({2, 3, 8}), w)).transpose(0, 1).softmax(-1);
    });
    expect_same([](const auto& x, const auto& w) {
        return at::cat({x, w}).index_select(0, at::tensor({3, 1, 7}, at::kLong).to(x.device()));
    });
    expect_same([](const auto& x, const auto& w) {
        const auto heads = [](const at::Tensor& t) { return t.reshape({1, 2, -1, 4}); };
        return at::scaled_dot_product_attention(heads(x), heads(w), heads(w * 2));
    });
    expect_same([](const auto& x, const auto& w) {
        return at::conv1d(x.view({1, 6, 8}), w.narrow(1, 0, 6).unsqueeze(-1).repeat({1, 1, 3}), {}, 1, 1);
    });
    expect_same([](const auto& x, const auto& w) {
        return at::where(x > 0, x, at::scalar_tensor(2.0)) / w.sum() * x.std(at::IntArrayRef{1}, true, true);
    });
    expect_same([](const auto& x, const auto& w) {
        return std::get<0>(at::native_group_norm(x.view({6, 8, 1}), w[0], w[1], 6, 8, 1, 2, 1e-5));
    });
}

TEST(Standin, ViewsAndWritesInPlaceShareMemory)
{
    auto whole = at::zeros({4, 5}, kDevice);
    const auto column = whole.select(1, 2), corner = whole.narrow(0, 2, 2).narrow(1, 3, 2), same = whole.view({20});

    column.fill_(3);
    corner.add_(1).mul_(5);
    same.index_put_({at::tensor({0, 1}, at::kLong).to(kDevice)}, at::ones({2}, kDevice));

    auto expected = at::zeros({4, 5});
    expected.select(1, 2).fill_(3);
    expected.narrow(0, 2, 2).narrow(1, 3, 2).fill_(5);
    expected.view({20}).narrow(0, 0, 2).fill_(1);
    EXPECT_TRUE(at::equal(whole.cpu(), expected));
    EXPECT_TRUE(column.storage().is_alias_of(whole.storage()));
}

TEST(Standin, ResultsGivenByTheCallerAreFilled)
{
    const auto a = values({3, 4}).to(kDevice), b = values({4, 5}).to(kDevice);
    auto out = at::empty({0}, kDevice);
    at::mm_out(out, a, b);
    EXPECT_TRUE(at::equal(out.cpu(), at::mm(a.cpu(), b.cpu())));
    auto sorted = at::empty({0}, kDevice), order = at::empty({0}, at::TensorOptions(kDevice).dtype(at::kLong));
    at::sort_out(sorted, order, a, 0, true);
    EXPECT_TRUE(at::equal(order.cpu(), std::get<1>(at::sort(a.cpu(), 0, true))));
    out.resize_({7, 7}).zero_();
    EXPECT_EQ(out.cpu().count_nonzero().item<std::int64_t>(), 0);
    std::vector<at::Tensor> parameters{a.clone(), b.clone()};
    at::_foreach_mul_(parameters, 2);
    EXPECT_TRUE(at::equal(parameters[1].cpu(), b.cpu() * 2));
}

TEST(Standin, DrawsTheNumbersOfTheCpu)
{
    at::manual_seed(7);
    const auto expected = at::randn({50}), order = at::randperm(20);
    at::manual_seed(7);
    EXPECT_TRUE(at::equal(at::randn({50}, kDevice).cpu(), expected));
    EXPECT_TRUE(at::equal(at::randperm(20, kDevice).cpu(), order));
}

TEST(Standin, RefusesTensorsOfSeveralDevices)
{
    const auto here = at::ones({3}), there = at::ones({3}, kDevice),
               other = at::ones({3}, c10::Device(kDevice.type(), 1));
    EXPECT_THROW(there + here, c10::Error);
    EXPECT_THROW(there + other, c10::Error);
    EXPECT_THROW(at::stack({there.sum(), here.sum()}), c10::Error);
    EXPECT_THROW(there.index_select(0, at::zeros({1}, at::kLong)), c10::Error);
    EXPECT_THROW(at::mm(there.view({1, 3}), here.view({3, 1})), c10::Error);
    EXPECT_TRUE(at::equal((there * here.sum()).cpu(), at::full({3}, 3.0)));  // a number
    EXPECT_TRUE(at::equal(there.index({at::zeros({2}, at::kLong)}).cpu(), at::ones({2})));
}

TEST(StandinDeathTest, EndsWhatReadsDeviceMemory)
{
    const auto there = at::ones({3}, kDevice);
    EXPECT_DEATH(std::printf("%f", static_cast<double>(*there.const_data_ptr<float>())),
                 "host code touched memory of the device standin:0");
}

TEST(Standin, CountsLaunchesCopiesAndSyncs)
{
    const auto* const device = loaded_standin();
    const auto a = values({3, 3}).to(kDevice);
    device->reset_counters(0);
    const auto b = (a + a).view({9});
    EXPECT_EQ(device->counters(0).launches, 1);
    EXPECT_EQ(device->counters(0).syncs, 0);
    b.sum().item<float>();
    EXPECT_EQ(device->counters(0).device_to_host, 1);
    EXPECT_EQ(device->counters(0).synced["aten::_local_scalar_dense"], 1);
    b.nonzero();
    EXPECT_EQ(device->counters(0).synced["aten::nonzero"], 1);
    b.cpu();
    EXPECT_EQ(device->counters(0).syncs, 3);
    a.index({a > 0});
    EXPECT_EQ(device->counters(0).syncs, 4);
}

TEST(Standin, PageLockedCopiesArriveWhenTheyAreWaitedFor)
{
    const auto a = at::full({4}, 2.0F, kDevice);
    auto host = at::zeros({4}, at::TensorOptions().pinned_memory(true));
    ASSERT_TRUE(host.is_pinned());
    c10::Event copied(kDevice.type());

    host.copy_(a, /*non_blocking=*/true);
    copied.record(c10::impl::VirtualGuardImpl(kDevice.type()).getStream(kDevice));
    a.fill_(5);

    EXPECT_FALSE(at::equal(host, at::full({4}, 2.0F)));  // late
    copied.synchronize();
    EXPECT_TRUE(at::equal(host, at::full({4}, 2.0F)));  // what was there when the copy was queued
}

TEST(Standin, PageLockedMemoryStaysAsItIsUntilItWasRead)
{
    const auto stream = c10::impl::VirtualGuardImpl(kDevice.type()).getStream(kDevice);
    auto host = at::ones({4}, at::TensorOptions().pinned_memory(true));
    const auto there = host.to(kDevice, /*non_blocking=*/true);
    host.fill_(2);
    EXPECT_THROW(stream.synchronize(), c10::Error);
    EXPECT_TRUE(at::equal(there.cpu(), at::ones({4})));
}

TEST(Standin, PageLockedMemoryIsReadAfterWhatTheStreamWroteThere)
{
    const auto stream = c10::impl::VirtualGuardImpl(kDevice.type()).getStream(kDevice);
    auto host = at::zeros({4}, at::TensorOptions().pinned_memory(true));
    host.copy_(at::full({4}, 2.0F, kDevice), /*non_blocking=*/true);
    const auto there = host.to(kDevice, /*non_blocking=*/true);
    host = at::Tensor();
    stream.synchronize();
    EXPECT_TRUE(at::equal(there.cpu(), at::full({4}, 2.0F)));
}

/// Work on two streams, with and without an event between them.
TEST(Standin, StreamsThatDoNotWaitForEachOtherAreFound)
{
    const c10::impl::VirtualGuardImpl guard(kDevice.type());
    const auto first = guard.getStream(kDevice), second = guard.getStreamFromGlobalPool(kDevice),
               third = guard.getStreamFromGlobalPool(kDevice);
    const auto on = [&](const c10::Stream& stream, const std::function<void()>& work) {
        const auto before = guard.exchangeStream(stream);
        try {
            work();
        } catch (...) {
            guard.exchangeStream(before);
            throw;
        }
        guard.exchangeStream(before);
    };
    auto a = at::ones({3}, kDevice);
    at::Tensor b;
    EXPECT_THROW(on(second, [&] { a.add(1); }), c10::Error);
    EXPECT_THROW(on(second, [&] { a.fill_(1); }), c10::Error);
    EXPECT_THROW(on(second, [&] { a.cpu(); }), c10::Error);

    c10::Event written(kDevice.type());
    written.record(first);
    written.block(second);
    on(second, [&] { b = a.add(1); });
    a.add_(1);  // later than the event
    EXPECT_THROW(on(second, [&] { a.add(1); }), c10::Error);
    EXPECT_THROW(b.add(1), c10::Error);

    c10::Event both(kDevice.type());  // what the second has waited for counts for who waits for the second
    both.record(second);
    both.block(third);
    on(third, [&] { b.add(at::ones({3}, kDevice)); });
    first.synchronize();
    on(second, [&] { a.add(1); });  // the host has waited, and queued this later
    {
        const OwnStream own(kDevice);
        auto c = a + 1;
        a = c;
    }
    EXPECT_TRUE(at::equal(a.cpu(), at::full({3}, 3.0)));
}

/// What a GPU cannot record, and what would be the same in each run although it should not be.
TEST(Standin, GraphsRefuseWhatTheHostMustDo)
{
    const OwnStream stream(kDevice);
    const auto there = at::ones({3}, kDevice);
    auto host = at::zeros({3}, at::TensorOptions().pinned_memory(true));
    const std::vector<std::function<void()>> faults{
        [&] { there.sum().item<float>(); },
        [&] { there.cpu(); },
        [&] { host.to(kDevice); },
        [&] { host.copy_(there, true); },
        [&] { there.nonzero(); },
        [&] { at::rand({3}, kDevice); },
        [&] { at::dropout(there, 0.5, true); },
        [&] { c10::impl::VirtualGuardImpl(kDevice.type()).synchronizeDevice(0); }};
    for (std::size_t i = 0; i < faults.size(); ++i) {
        DeviceGraph graph(kDevice.type());
        EXPECT_THROW(graph.record(faults[i]), c10::Error) << i;
        EXPECT_FALSE(is_recording());
        EXPECT_EQ((there + 1).sum().item<float>(), 6) << i;  // the stream is as before
    }
}

TEST(Standin, GraphsAreNotRecordedOnTheDefaultStream)
{
    DeviceGraph graph(kDevice.type());
    EXPECT_THROW(graph.record([] {}), c10::Error);
}

TEST(Standin, AutocastConvertsAsOnGpus)
{
    at::autocast::set_autocast_enabled(kDevice.type(), true);
    at::autocast::set_autocast_dtype(kDevice.type(), at::kBFloat16);
    const auto a = values({3, 3}).to(kDevice);
    const auto product = at::mm(a, a), norm = at::layer_norm(product, {3});
    at::autocast::set_autocast_enabled(kDevice.type(), false);
    at::autocast::clear_cache();
    EXPECT_EQ(product.scalar_type(), at::kBFloat16);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace meshard
