// SPDX-License-Identifier: Apache-2.0
#include "tests/support/standin/device_graph.h"

#include "tests/support/standin/device_memory.h"
#include "tests/support/standin/device_runtime.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

namespace meshard::standin {
namespace {

thread_local HostRecord* recorded_here = nullptr;

class StandinGraph : public GraphRecorder {
public:
    void begin() override
    {
        TORCH_CHECK(!recorded_here, "standin: work is recorded already");
        device_ = current_device();
        TORCH_CHECK(current_stream(device_).id() != 0, "standin: graphs are not recorded on the default stream");
        before_ = copy_of_memory(device_);
        recorded_here = &record_;
    }

    void end() override
    {
        recorded_here = nullptr;
        put_back_memory(device_, before_);
        before_ = {};
    }

    void run() override
    {
        count(device_, Count::Launch, "graph");
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
        const OpenMemory open(device_);
        for (const auto& launch : record_.launches) launch();
    }

private:
    int device_ = 0;
    HostRecord record_;
    std::vector<char> before_;
};

}  // namespace

HostRecord* record_here()
{
    return recorded_here;
}

std::unique_ptr<GraphRecorder> make_graph_recorder()
{
    return std::make_unique<StandinGraph>();
}

}  // namespace meshard::standin
