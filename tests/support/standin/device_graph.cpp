// SPDX-License-Identifier: Apache-2.0
#include "tests/support/standin/device_graph.h"

#include "tests/support/standin/device_memory.h"
#include "tests/support/standin/device_runtime.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace meshard::standin {
namespace {

thread_local HostRecord* recorded_here = nullptr;

/// Streams whose work is recorded. As on GPUs, what any thread gives them is: LibTorch may have a thread of its own for
/// backward.
class RecordedStreams {
public:
    static RecordedStreams& all()
    {
        static auto* const streams = new RecordedStreams;
        return *streams;
    }

    void add(const c10::Stream& stream, HostRecord* record)
    {
        const std::lock_guard lock(mutex_);
        records_[key_of(stream)] = record;
        ++number_;
    }

    void remove(const c10::Stream& stream)
    {
        const std::lock_guard lock(mutex_);
        records_.erase(key_of(stream));
        --number_;
    }

    HostRecord* of(const c10::Stream& stream) const
    {
        if (number_ == 0) return nullptr;
        const std::lock_guard lock(mutex_);
        const auto found = records_.find(key_of(stream));
        return found == records_.end() ? nullptr : found->second;
    }

private:
    using Key = std::pair<c10::DeviceIndex, c10::StreamId>;
    static Key key_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

    mutable std::mutex mutex_;
    std::map<Key, HostRecord*> records_;
    std::atomic<int> number_ = 0;
};

class StandinGraph : public GraphRecorder {
public:
    void begin() override
    {
        TORCH_CHECK(!recorded_here, "standin: work is recorded already");
        device_ = current_device();
        stream_ = current_stream(device_);
        TORCH_CHECK(stream_->id() != 0, "standin: graphs are not recorded on the default stream");
        before_ = copy_of_memory(device_);
        recorded_here = &record_;
        RecordedStreams::all().add(*stream_, &record_);
    }

    void end() override
    {
        recorded_here = nullptr;
        RecordedStreams::all().remove(*stream_);
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
    std::optional<c10::Stream> stream_;
    HostRecord record_;
    std::vector<char> before_;
};

}  // namespace

HostRecord* record_here()
{
    return recorded_here ? recorded_here : RecordedStreams::all().of(current_stream(current_device()));
}

std::unique_ptr<GraphRecorder> make_graph_recorder()
{
    return std::make_unique<StandinGraph>();
}

}  // namespace meshard::standin
