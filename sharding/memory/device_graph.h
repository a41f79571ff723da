// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>

namespace meshard {

/// What records the work of a type of device, to run it again: CUDA's graphs for GPUs. Made for one recording.
class GraphRecorder {
public:
    virtual ~GraphRecorder() = default;

    /// From now on what this thread gives the current stream is recorded instead of run. Memory that is taken meanwhile stays the recorder's.
    virtual void begin() = 0;
    /// @throws what the device says if something could not be recorded
    virtual void end() = 0;
    /// Gives the current stream all that was recorded.
    virtual void run() = 0;
};

using MakeGraphRecorder = std::function<std::unique_ptr<GraphRecorder>()>;

/// A later registration for the same type replaces the earlier. That for CUDA is there from the beginning, in a build for GPUs.
void register_graph_recorder(c10::DeviceType type, MakeGraphRecorder make);

/// Whether work of such a device can be recorded in this process.
bool can_record(c10::DeviceType type);

/// Work of a device that was recorded once and runs again without the host: one launch instead of thousands. It reads and writes the same memory each time.
class DeviceGraph {
public:
    /// @throws Error if work of such a device cannot be recorded
    explicit DeviceGraph(c10::DeviceType type);

    /// Records what `work` gives the device; nothing of it is computed yet. `work` may neither read the device's memory on the host, nor wait for the device,
    /// nor draw random numbers whose seed changes, and all memory that it reads must exist as long as this graph. The current stream must be an `OwnStream`.
    /// @throws what `work` throws, or the device if something could not be recorded; the graph is then of no use, and the stream as before
    void record(const std::function<void()>& work);

    /// Computes all that was recorded, in the order of the current stream.
    void run() { recorder_->run(); }

private:
    std::unique_ptr<GraphRecorder> recorder_;
};

/// Whether `DeviceGraph::record` runs in this thread: what is different in each step must not be done then.
bool is_recording();

/// A stream other than the default one, on which nothing can be recorded, is the current one of this thread as long as this lives. What was queued before comes
/// first, in both directions.
class OwnStream {
public:
    explicit OwnStream(const c10::Device& device);
    ~OwnStream();
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;

private:
    c10::Stream before_;
};

}  // namespace meshard
