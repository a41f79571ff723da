// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/device_graph.h"

#include "partition/error.h"
#include "sharding/memory/cuda_graph.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <utility>

namespace meshard {
namespace {

thread_local bool records_here = false;

/// Sets `records_here` as long as it lives.
struct RecordingHere {
    RecordingHere() { records_here = true; }
    ~RecordingHere() { records_here = false; }
};

class Recorders {
public:
    static Recorders& all()
    {
        static Recorders recorders;
        return recorders;
    }

    void set(c10::DeviceType type, MakeGraphRecorder make)
    {
        const std::lock_guard lock(mutex_);
        by_type_[type] = std::move(make);
    }

    /// Returns an empty function if no recorder is registered for the device type.
    MakeGraphRecorder of(c10::DeviceType type) const
    {
        const std::lock_guard lock(mutex_);
        const auto found = by_type_.find(type);
        return found == by_type_.end() ? MakeGraphRecorder() : found->second;
    }

private:
    Recorders() { by_type_[c10::DeviceType::CUDA] = cuda_graph_recorder(); }

    mutable std::mutex mutex_;
    std::map<c10::DeviceType, MakeGraphRecorder> by_type_;
};

/// Work queued on `later` after this call runs after the work that is queued on `first` now.
void put_in_order(const c10::Stream& first, const c10::Stream& later)
{
    c10::Event reached(first.device_type());
    reached.record(first);
    reached.block(later);
}

}  // namespace

void register_graph_recorder(c10::DeviceType type, MakeGraphRecorder make)
{
    Recorders::all().set(type, std::move(make));
}

bool can_record(c10::DeviceType type)
{
    return static_cast<bool>(Recorders::all().of(type));
}

DeviceGraph::DeviceGraph(c10::DeviceType type)
{
    const auto make = Recorders::all().of(type);
    if (!make)
        throw Error("DeviceGraph: work of a device of type {} cannot be recorded.",
                    c10::DeviceTypeName(type, /*lower_case=*/true));
    recorder_ = make();
}

void DeviceGraph::record(const std::function<void()>& work)
{
    const RecordingHere here;
    recorder_->begin();
    try {
        work();
    } catch (...) {
        try {
            recorder_->end();
        } catch (const std::exception&) {  // the first error is already being thrown
        }
        throw;
    }
    recorder_->end();
}

bool is_recording()
{
    return records_here;
}

OwnStream::OwnStream(const c10::Device& device) : before_(c10::impl::VirtualGuardImpl(device.type()).getStream(device))
{
    const c10::impl::VirtualGuardImpl guard(device.type());
    const auto own = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
    put_in_order(before_, own);
    guard.exchangeStream(own);
}

OwnStream::~OwnStream()
{
    const c10::impl::VirtualGuardImpl guard(before_.device_type());
    try {
        put_in_order(guard.getStream(before_.device()), before_);
    } catch (const std::exception&) {  // the device has failed; the error that says so is on its way
    }
    guard.exchangeStream(before_);
}

}  // namespace meshard
