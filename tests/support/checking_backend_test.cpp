// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/rank_group.h"
#include "sharding/transport/shared_memory_backend.h"
#include "tests/support/checking_backend.h"
#include "tests/support/standin/standin.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace meshard {
namespace {

using Body = std::function<void(const c10::intrusive_ptr<c10d::Backend>& group, const c10::Device& device)>;

/// Calls `body` as two ranks, each with a device of the stand-in or with the CPU. @return what each rank threw, empty
/// if nothing
std::vector<std::string> run_two(const Body& body, bool on_device)
{
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
            auto group =
                checked(connect_shared_memory(store, rank, 2, std::chrono::seconds(5), [](int) { return false; }),
                        loaded_standin()->as_host);
            const auto device = on_device
                                    ? c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(rank))
                                    : c10::Device(at::kCPU);
            const c10::OptionalDeviceGuard here(device);
            try {
                body(group, device);
            } catch (const std::exception& error) {
                errors[rank] = error.what();
                group->abort();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    return errors;
}

/// With tensors of the CPU and with those of the stand-in, at least one rank throws an error that has this text.
void expect_refused(const std::string& text, const Body& body)
{
    for (const bool on_device : {false, true}) {
        const auto errors = run_two(body, on_device);
        EXPECT_NE((errors[0] + errors[1]).find(text), std::string::npos)
            << "found: " << errors[0] << " and " << errors[1];
    }
}

void reduce(c10d::Backend& group, at::Tensor tensor, c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM)
{
    std::vector<at::Tensor> tensors{std::move(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    group.allreduce(tensors, options)->wait();
}

TEST(CheckedTransport, GivesTheResults)
{
    for (const bool on_device : {false, true}) {
        const auto errors = run_two(
            [](const auto& backend, const auto& device) {
                const RankGroup group(backend, "all", std::make_shared<CommCounter>());
                const auto rank = static_cast<double>(group.rank());
                auto sum = at::full({3}, rank + 1, device);
                group.all_reduce(sum);
                EXPECT_TRUE(at::equal(sum.cpu(), at::full({3}, 3.0F)));
                const std::vector<std::int64_t> rows{2, 1};
                const auto all = group.all_gather_rows(at::full({rows[group.rank()], 2}, rank, device), rows);
                EXPECT_TRUE(at::equal(all.select(1, 0).cpu(), at::tensor({0.0F, 0.0F, 1.0F})));
                const std::vector<std::int64_t> send{1, 2}, receive(2, group.rank() + 1);
                const auto got = group.all_to_all_rows(at::full({3, 2}, rank, device), send, receive);
                EXPECT_EQ(got.sum().template item<double>(), 2.0 * (group.rank() + 1));
                // What RankGroup must convert for NCCL: booleans, and a maximum of NaN; and a narrow type.
                auto largest = at::full({2}, group.rank() == 0 ? std::nan("") : 1.0, device);
                group.all_reduce(largest, Reduction::Max);
                EXPECT_TRUE(largest.isnan().all().template item<bool>());
                auto truth = at::ones({2}, at::TensorOptions(device).dtype(at::kBool));
                group.broadcast(truth, 0);
                group.all_reduce(truth, Reduction::Min);
                EXPECT_TRUE(truth.all().template item<bool>());
                auto narrow = at::ones({5}, at::TensorOptions(device).dtype(at::kBFloat16));
                group.broadcast(narrow, 1);
                group.all_reduce(narrow);
                EXPECT_EQ(narrow.sum().template item<double>(), 10.0);
            },
            on_device);
        EXPECT_EQ(errors[0], "");
        EXPECT_EQ(errors[1], "");
    }
}

TEST(CheckedTransport, RefusesOtherCollectivesOnAnotherRank)
{
    expect_refused("calls collective 1, all-reduce", [](const auto& group, const auto& device) {
        std::vector<at::Tensor> tensors{at::ones({4}, device)};
        if (group->getRank() == 0)
            reduce(*group, tensors[0]);
        else
            group->broadcast(tensors, {})->wait();
    });
    expect_refused("of 16 bytes", [](const auto& group, const auto& device) {
        reduce(*group, at::ones({4 + group->getRank()}, device));
    });
    expect_refused("of type Double", [](const auto& group, const auto& device) {
        reduce(*group, at::ones({4}, at::TensorOptions(device).dtype(group->getRank() == 0 ? at::kDouble : at::kLong)));
    });
    expect_refused("has room for", [](const auto& group, const auto& device) {
        auto in = at::ones({4}, device), out = at::ones({group->getRank() == 0 ? 4 : 5}, device);
        std::vector<std::int64_t> in_rows{2, 2}, out_rows{2, out.size(0) - 2};
        group->alltoall_base(out, in, out_rows, in_rows, {})->wait();
    });
}

TEST(CheckedTransport, RefusesWhatNcclDoesNotTake)
{
    expect_refused("not contiguous", [](const auto& group, const auto& device) {
        reduce(*group, at::ones({4, 4}, device).t().narrow(0, 0, 2));
    });
    expect_refused("no type Short", [](const auto& group, const auto& device) {
        reduce(*group, at::ones({4}, at::TensorOptions(device).dtype(at::kShort)));
    });
    expect_refused("no booleans", [](const auto& group, const auto& device) {
        reduce(*group, at::ones({4}, at::TensorOptions(device).dtype(at::kBool)));
    });
    expect_refused("maximum or minimum of NaN", [](const auto& group, const auto& device) {
        reduce(*group, at::full({4}, std::nan(""), device), c10d::ReduceOp::MAX);
    });
    const auto errors = run_two(
        [](const auto& group, const auto& device) {
            reduce(*group, at::ones({1}, device));
            reduce(*group,
                   at::ones({1}, c10::Device(device.type(), static_cast<c10::DeviceIndex>(device.index() + 1))));
        },
        true);
    EXPECT_NE(errors[0].find("in a group of standin:0"), std::string::npos) << errors[0];
}

TEST(CheckedTransport, AMissingWaitFindsNoNumbers)
{
    for (const bool on_device : {false, true}) {
        const auto errors = run_two(
            [](const auto& backend, const auto& device) {
                const RankGroup group(backend, "all", std::make_shared<CommCounter>());
                const auto sent = at::ones({2}, device);
                auto received = at::zeros({2}, device);
                auto pending = group.start_exchange(sent, std::vector<std::int64_t>{1, 1}, received,
                                                    std::vector<std::int64_t>{1, 1});
                EXPECT_TRUE(received.isnan().all().template item<bool>());
                pending.wait();
                EXPECT_TRUE(at::equal(received.cpu(), at::ones({2})));
            },
            on_device);
        EXPECT_EQ(errors[0] + errors[1], "");
    }
}

TEST(CheckedTransport, RefusesWritesBeforeTheWait)
{
    const auto exchange = [](bool write_sent) {
        return [write_sent](const auto& group, const auto& device) {
            auto in = at::ones({2}, device), out = at::zeros({2}, device);
            std::vector<std::int64_t> in_rows{1, 1}, out_rows{1, 1};
            const auto work = group->alltoall_base(out, in, out_rows, in_rows, {});
            (write_sent ? in : out).fill_(7);
            work->wait();
        };
    };
    expect_refused("sent memory was written to", exchange(true));
    expect_refused("received memory was written to", exchange(false));
}

}  // namespace
}  // namespace meshard
