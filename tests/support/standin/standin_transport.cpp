// SPDX-License-Identifier: Apache-2.0
// What a program of meshard is told when it is started with the stand-in accelerator: who carries its tensors, that the
// host runs kernels for it, and how its work is recorded.
#include "ops/rows/on_gpu.h"
#include "sharding/transport/device_transport.h"
#include "sharding/transport/shared_memory_backend.h"
#include "tests/support/checking_backend.h"
#include "tests/support/standin/device_graph.h"
#include "tests/support/standin/device_memory.h"
#include "tests/support/standin/device_runtime.h"

#include <unistd.h>

namespace meshard {

// The program's own; null in a program that is not meshard's, or has no LibTorch.
[[gnu::weak]] void register_device_transport(c10::DeviceType type, DeviceTransport transport);
[[gnu::weak]] void register_graph_recorder(c10::DeviceType type, MakeGraphRecorder make);
[[gnu::weak]] void run_kernels_on_host(c10::DeviceType type, HostAccess access);
[[gnu::weak]] c10::intrusive_ptr<c10d::Backend> connect_shared_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                                      int rank, int size,
                                                                      std::chrono::milliseconds time_limit,
                                                                      std::function<bool(int)> has_ended);

namespace standin {
namespace {

std::string identity(const at::Device& device)
{
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    return std::string(host) + " standin:" + std::to_string(device.has_index() ? device.index() : current_device());
}

c10::intrusive_ptr<c10d::Backend> connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                          std::chrono::milliseconds limit)
{
    auto carrier = connect_shared_memory(store, rank, size, limit, [](int) { return false; });
    TORCH_CHECK(carrier, "standin: the ranks share no memory; its devices are those of one host");
    const auto recorded = []() -> std::vector<std::function<void()>>* {
        auto* const record = record_here();
        return record ? &record->launches : nullptr;
    };
    return checked(std::move(carrier), [](const at::Tensor& tensor) { return as_host(tensor); }, recorded);
}

const bool is_offered = [] {
    if (register_device_transport && connect_shared_memory) {
        register_device_transport(
            kType,
            {.name = "checked", .why_not = [] { return std::string(); }, .identity = identity, .connect = connect});
    }
    if (run_kernels_on_host) {
        run_kernels_on_host(kType, [](const at::Device& device, const std::function<void(const HostExecutor&)>& work) {
            const OpenMemory open(device.index());
            std::int64_t num_launches = 0;
            work(HostExecutor{record_here(), &num_launches});
            for (std::int64_t i = 0; i < num_launches; ++i) count(device.index(), Count::Launch, "meshard::kernel");
        });
    }
    if (register_graph_recorder) register_graph_recorder(kType, make_graph_recorder);
    return true;
}();

}  // namespace
}  // namespace standin
}  // namespace meshard
