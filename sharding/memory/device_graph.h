// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>

namespace meshard {

/// Interface that records the work of a device for later replays, such as CUDA graphs on GPUs. Used for one recording.
class GraphRecorder {
public:
    virtual ~GraphRecorder() = default;

    /// From here on, work that this thread queues on the current stream is recorded instead of run. Memory allocated
    /// meanwhile belongs to the recorder.
    virtual void begin() = 0;
    /// @throws the device's error if some work could not be recorded
    virtual void end() = 0;
    /// Queues all recorded work on the current stream.
    virtual void run() = 0;
};

using MakeGraphRecorder = std::function<std::unique_ptr<GraphRecorder>()>;

/// A later registration for the same type replaces an earlier one. In a build for GPUs CUDA is registered from the
/// start.
void register_graph_recorder(c10::DeviceType type, MakeGraphRecorder make);

/// Returns whether work of such a device can be recorded in this process.
bool can_record(c10::DeviceType type);

/// Device work that is recorded once and replayed with one launch, without the host's overhead for each kernel. Every
/// replay reads and writes the same memory.
class DeviceGraph {
public:
    /// @throws Error if work of such a device cannot be recorded
    explicit DeviceGraph(c10::DeviceType type);

    /// Records the device work that `work` queues; nothing is computed yet. `work` may neither read the device's memory
    /// on the host, nor wait for the device, nor draw random numbers whose seed changes, and all memory that it reads
    /// must exist as long as this graph. The current stream must be an `OwnStream`.
    /// @throws what `work` throws, or the device's error if something could not be recorded; then the graph is
    /// unusable, and the stream is as before
    void record(const std::function<void()>& work);

    /// Replays the recorded work on the current stream.
    void run() { recorder_->run(); }

private:
    std::unique_ptr<GraphRecorder> recorder_;
};

/// Returns whether `DeviceGraph::record` runs in this thread. Code whose effect differs from step to step must not run
/// then.
bool is_recording();

/// A guard: makes a new stream the current one of this thread, since the default stream cannot be recorded. Work that
/// was queued on the previous stream runs first; at the end the previous stream waits for this one.
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
