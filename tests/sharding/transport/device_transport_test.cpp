// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/ranks/row_stream.h"
#include "sharding/transport/device_transport.h"
#include "sharding/transport/shared_memory_backend.h"
#include "tests/support/expect_error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace meshard {
namespace {

using namespace std::chrono_literals;

thread_local c10d::ErrorType error_here = c10d::ErrorType::SUCCESS;

/// Carries tensors of the meta device, which stand for those of an accelerator: they have no values, so it only counts
/// them.
class CountingBackend : public c10d::Backend {
public:
    CountingBackend(int rank, int size, std::atomic<int>& count) : Backend(rank, size), count_(count) {}

    c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions&) override
    {
        EXPECT_TRUE(tensors[0].is_meta());
        ++count_;
        return {};
    }

    c10d::ErrorType getError() override { return error_here; }

private:
    std::atomic<int>& count_;
};

std::atomic<int> num_carried = 0;
thread_local std::string identity_here, reason_here;

void register_counting_transport()
{
    register_device_transport(
        c10::DeviceType::Meta,
        {"counting", [] { return reason_here; }, [](const at::Device&) { return identity_here; },
         [](const c10::intrusive_ptr<c10d::Store>&, int rank, int size, std::chrono::milliseconds) {
             return c10::make_intrusive<CountingBackend>(rank, size, num_carried);
         }});
}

/// Two ranks as threads, whose devices have these identities.
void run_two(const std::array<std::string, 2>& identities, const std::string& required,
             const std::function<void(c10d::Backend& group)>& body)
{
    register_counting_transport();
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
        ranks.emplace_back([&, rank] {
            identity_here = identities[rank];
            const auto host = connect_shared_memory(store, rank, 2, 20s, [](int) { return false; });
            ASSERT_TRUE(host);
            const auto group = with_device_transports(host, store, 20s, required);
            body(*group);
            group->barrier({})->wait();
        });
    }
    for (auto& rank : ranks) rank.join();
}

const at::Device kAccelerator(c10::DeviceType::Meta, 0);

TEST(DeviceTransport, CarriesTensorsOfItsDeviceAndTheHostTheOthers)
{
    num_carried = 0;
    run_two({"first", "second"}, "", [](c10d::Backend& group) {
        std::vector<at::Tensor> there{at::empty({3}, kAccelerator)}, here{at::full({3}, group.getRank() + 1.0)};
        c10d::BroadcastOptions options;

        group.broadcast(there, options);
        group.broadcast(here, options)->wait();

        EXPECT_EQ(here[0][2].item<float>(), 1);
        EXPECT_EQ(carrier_of(group, kAccelerator).text(), "counting");
        EXPECT_EQ(carrier_of(group, at::kCPU).text(), "shm");
    });
    EXPECT_EQ(num_carried, 2);
}

TEST(DeviceTransport, SaysAtABarrierThatAMessageOfDevicesHasFailed)
{
    run_two({"first", "second"}, "", [](c10d::Backend& group) {
        EXPECT_EQ(carrier_of(group, kAccelerator).text(), "counting");
        group.barrier({})->wait();
        error_here = c10d::ErrorType::TIMEOUT;
        EXPECT_TRUE(throws_with<Error>("a message over counting has failed", [&] { group.barrier({}); }));
        error_here = c10d::ErrorType::SUCCESS;
    });
}

TEST(DeviceTransport, LeavesSharedDevicesToTheHost)
{
    run_two({"same", "same"}, "", [](c10d::Backend& group) {
        EXPECT_TRUE(carrier_of(group, kAccelerator).is_by_way_of_host);
        EXPECT_EQ(carrier_of(group, kAccelerator).text(), "shm, by way of the host");
        EXPECT_FALSE(carrier_of(group, at::kCPU).is_by_way_of_host);
    });
}

TEST(DeviceTransport, IsRefusedOnSharedDevicesWhereItIsRequired)
{
    run_two({"same", "same"}, "counting", [](c10d::Backend& group) {
        EXPECT_TRUE(throws_with<CommunicationError>("counting needs a device for each rank, but 2 ranks have 1",
                                                    [&] { carrier_of(group, kAccelerator); }));
    });
}

TEST(DeviceTransport, IsRefusedWhereItIsRequiredAndCannotBe)
{
    register_counting_transport();
    reason_here = "it has none";
    EXPECT_TRUE(throws_with<CommunicationError>("counting was asked for, but it has none", [] {
        with_device_transports(c10::make_intrusive<CountingBackend>(0, 1, num_carried),
                               c10::make_intrusive<c10d::HashStore>(), 1s, "counting");
    }));
}

TEST(DeviceTransport, KeepsTheExchangeOfRowsOfTheHost)
{
    run_two({"first", "second"}, "", [](c10d::Backend& group) {
        auto* const rows = dynamic_cast<RowExchange*>(&group);
        ASSERT_TRUE(rows);
        const int other = 1 - group.getRank();
        auto received = rows->empty_received({8}, at::TensorOptions(at::kByte));
        const RowStream sent({at::full({4}, group.getRank(), at::kLong)}, at::tensor({2}, at::kLong));
        std::vector<std::int64_t> counts(2);
        counts[other] = 8;

        rows->exchange_rows(sent, counts, received, counts)->wait();

        EXPECT_EQ(received.view(at::kLong)[0].item<std::int64_t>(), other);
        EXPECT_TRUE(rows->empty_received({8}, at::TensorOptions(kAccelerator)).is_meta());
    });
    EXPECT_FALSE(
        dynamic_cast<RowExchange*>(by_way_of_host(c10::make_intrusive<CountingBackend>(0, 1, num_carried)).get()));
}

}  // namespace
}  // namespace meshard
