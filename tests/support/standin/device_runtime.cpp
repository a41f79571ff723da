// SPDX-License-Identifier: Apache-2.0
// Streams, events, generators and allocators of the stand-in accelerator, and how LibTorch finds them.
#include "tests/support/standin/device_runtime.h"

#include "tests/support/standin/any_order.h"
#include "tests/support/standin/device_graph.h"
#include "tests/support/standin/device_memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Backtrace.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace meshard::standin {
namespace {

thread_local int device_here = 0;
thread_local std::array<c10::StreamId, kMaxDevices> streams_here{};

/// Work that a real device would have done by now even if nobody waited.
constexpr std::size_t kMostLate = 256;

/// What one stream has not done yet, in order.
struct Queue {
    struct Item {
        std::uint64_t ticket;
        std::function<void()> finish;
        const void* written;  // page-locked memory that it writes to, or null
    };
    std::deque<Item> items;
};

/// Up to which ticket of each stream something has waited.
using WaitedFor = std::map<c10::StreamId, std::uint64_t>;

void wait_for(WaitedFor& waited, c10::StreamId stream, std::uint64_t ticket)
{
    auto& until = waited[stream];
    until = std::max(until, ticket);
}

/// By which stream memory was written last, and its ticket.
struct Write {
    c10::StreamId stream;
    std::uint64_t ticket;
};

struct DeviceState {
    std::recursive_mutex mutex;
    std::map<c10::StreamId, Queue> queues;
    std::uint64_t last_ticket = 0;
    std::unordered_map<const void*, Write> writes;
    std::map<c10::StreamId, WaitedFor> waited;  // of each stream
    WaitedFor host_waited;                      // what the host queues from then on is later, on any stream
    std::map<c10::StreamId, double>
        busy_until;  // seconds of the host's clock, as if each launch took so long as `seconds_a_launch` says
    std::atomic<c10::StreamId> last_stream{0};
    StandinCounters counters;
};

DeviceState& state(int device)
{
    static auto* const states =
        new std::array<DeviceState, kMaxDevices>;  // never freed: late work may outlive static objects
    return states->at(static_cast<std::size_t>(device));
}

void host_waits_for(int device, c10::StreamId stream, std::uint64_t ticket)
{
    const std::lock_guard lock(state(device).mutex);
    wait_for(state(device).host_waited, stream, std::min(ticket, state(device).last_ticket));
}

void forget_writes(int device, const void* memory)
{
    const std::lock_guard lock(state(device).mutex);
    state(device).writes.erase(memory);
}

void finish_until(int device, c10::StreamId stream, std::uint64_t ticket)
{
    auto& here = state(device);
    while (true) {
        std::function<void()> finish;
        {
            const std::lock_guard lock(here.mutex);
            auto& items = here.queues[stream].items;
            if (items.empty() || items.front().ticket > ticket) return;
            finish = std::move(items.front().finish);
            items.pop_front();
        }
        finish();
    }
}

double host_time()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// MESHARD_STANDIN_LAUNCH_SECONDS: how long the device's clock says that each launch takes; 0 if unset. Nothing waits
/// for it.
double seconds_a_launch()
{
    static const double seconds = [] {
        const char* text = std::getenv("MESHARD_STANDIN_LAUNCH_SECONDS");
        return text ? std::atof(text) : 0.0;
    }();
    return seconds;
}

/// The point of a stream at which an event was recorded.
struct Event {
    c10::DeviceIndex device = 0;
    c10::StreamId stream = 0;
    std::uint64_t ticket = 0;
    double time = 0;   // seconds of the device's clock
    WaitedFor waited;  // by the stream until then
    mutable std::atomic<int> num_queries{0};
};

/// Whether the host has waited for the event, or for work after it.
bool has_waited_for(const Event& event)
{
    auto& here = state(event.device);
    const std::lock_guard lock(here.mutex);
    const auto found = here.host_waited.find(event.stream);
    return found != here.host_waited.end() && found->second >= event.ticket;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return kType; }
    c10::Device exchangeDevice(c10::Device device) const override
    {
        const c10::Device old(kType, static_cast<c10::DeviceIndex>(device_here));
        setDevice(device);
        return old;
    }
    c10::Device getDevice() const override { return c10::Device(kType, static_cast<c10::DeviceIndex>(device_here)); }
    void setDevice(c10::Device device) const override { set_current_device(device.index()); }
    void uncheckedSetDevice(c10::Device device) const noexcept override
    {
        if (device.index() >= 0) device_here = device.index();
    }
    c10::Stream getStream(c10::Device device) const override
    {
        return current_stream(device.index() < 0 ? device_here : device.index());
    }
    c10::Stream getDefaultStream(c10::Device device) const override
    {
        return c10::Stream(
            c10::Stream::UNSAFE,
            c10::Device(kType, device.index() < 0 ? static_cast<c10::DeviceIndex>(device_here) : device.index()), 0);
    }
    c10::Stream getNewStream(c10::Device device, int = 0) const override
    {
        const auto index = device.index() < 0 ? static_cast<c10::DeviceIndex>(device_here) : device.index();
        return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), ++state(index).last_stream);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool = false) const override
    {
        return getNewStream(device);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        auto& here = streams_here.at(static_cast<std::size_t>(stream.device_index()));
        return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(here, stream.id()));
    }
    c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(num_devices()); }

    void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override
    {
        delete static_cast<Event*>(event);
    }
    void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override
    {
        if (!*event) *event = new Event;
        auto& point = *static_cast<Event*>(*event);
        const std::lock_guard lock(state(stream.device_index()).mutex);
        point.device = stream.device_index();
        point.stream = stream.id();
        point.ticket = state(stream.device_index()).last_ticket;
        point.waited = state(stream.device_index()).waited[stream.id()];
        point.time = std::max(host_time(), state(stream.device_index()).busy_until[stream.id()]);
        point.num_queries = 0;
    }
    void block(void* event, const c10::Stream& stream) const override
    {
        if (!event) return;
        const auto& point = *static_cast<Event*>(event);
        if (point.device == stream.device_index() && point.stream == stream.id()) return;
        if (point.device == stream.device_index()) {
            const std::lock_guard lock(state(point.device).mutex);
            auto& waited = state(point.device).waited[stream.id()];
            wait_for(waited, point.stream, point.ticket);
            for (const auto& [other, ticket] : point.waited) wait_for(waited, other, ticket);
        }
        do_late(stream, [device = point.device, other = point.stream, ticket = point.ticket] {
            finish_until(device, other, ticket);
        });
    }
    /// Work takes a while: what asks again and again is told that it is done in the end.
    bool queryEvent(void* event) const override
    {
        if (!event) return true;
        const auto& point = *static_cast<Event*>(event);
        if (has_waited_for(point)) return true;
        if (++point.num_queries < 3) return false;
        host_waits_for(point.device, point.stream, point.ticket);
        finish_until(point.device, point.stream, point.ticket);
        return true;
    }
    double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override
    {
        return 1e3 * (static_cast<Event*>(second)->time - static_cast<Event*>(first)->time);
    }
    void synchronizeEvent(void* event) const override
    {
        if (!event) return;
        const auto& point = *static_cast<Event*>(event);
        count(point.device, Count::Sync, "synchronize_event");
        host_waits_for(point.device, point.stream, point.ticket);
        finish_until(point.device, point.stream, point.ticket);
    }
    bool queryStream(const c10::Stream& stream) const override
    {
        const std::lock_guard lock(state(stream.device_index()).mutex);
        return state(stream.device_index()).queues[stream.id()].items.empty();
    }
    void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream, "synchronize_stream"); }
    void synchronizeDevice(const c10::DeviceIndex index) const override
    {
        count(index, Count::Sync, "synchronize_device");
        std::vector<c10::StreamId> streams;
        {
            const std::lock_guard lock(state(index).mutex);
            for (const auto& [id, queue] : state(index).queues) streams.push_back(id);
            for (const auto& [memory, write] : state(index).writes)
                wait_for(state(index).host_waited, write.stream, write.ticket);
        }
        for (const auto id : streams) finish_until(index, id, UINT64_MAX);
    }
};

struct DeviceAllocator final : c10::DeviceAllocator {
    bool initialized() override { return true; }
    void emptyCache(c10::MempoolId_t) override {}
    void recordStream(const c10::DataPtr&, c10::Stream) override {}
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override
    {
        const auto use = memory_use(device);
        c10::CachingDeviceAllocator::DeviceStats stats;
        auto& allocated = stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
        allocated.current = static_cast<std::int64_t>(use.now);
        allocated.peak = static_cast<std::int64_t>(use.peak);
        return stats;
    }
    std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override
    {
        const auto use = memory_use(device);
        return {use.total - use.now, use.total};
    }

    c10::DataPtr allocate(std::size_t bytes) override
    {
        auto* const memory = [&] {
            try {
                return take_memory(device_here, bytes);
            } catch (const std::bad_alloc&) {
                const auto use = memory_use(device_here);
                TORCH_CHECK_WITH(OutOfMemoryError, false, "standin out of memory. Tried to allocate ", bytes,
                                 " bytes. The device standin:", device_here, " has ", use.total, ", of which ",
                                 use.total - use.now, " are free.");
            }
        }();
        forget_writes(device_here, memory);
        const c10::Device device(kType, static_cast<c10::DeviceIndex>(device_here));
        auto* const record = record_here();
        if (!record) return {memory, memory, &give_memory, device};
        // The record's as well as the tensor's: each run writes there again, also where kernels know it by its address
        // alone.
        record->memory.emplace_back(memory, &give_memory);
        using Shared = std::shared_ptr<void>;
        return {memory, new Shared(record->memory.back()), [](void* shared) { delete static_cast<Shared*>(shared); },
                device};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give_memory; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override
    {
        std::memcpy(host_view(to), host_view(from), bytes);
    }
};

/// Pages of the host that the device may copy from and to while the host goes on.
class PageLocked final : public c10::Allocator {
public:
    c10::DataPtr allocate(std::size_t bytes) override
    {
        if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
        void* memory = nullptr;
        if (posix_memalign(&memory, 4096, bytes) != 0) throw std::bad_alloc();
        const std::lock_guard lock(mutex_);
        sizes_[static_cast<char*>(memory)] = bytes;
        return {memory, memory, &give, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

    bool holds(const void* address)
    {
        const std::lock_guard lock(mutex_);
        auto after = sizes_.upper_bound(static_cast<char*>(const_cast<void*>(address)));
        if (after == sizes_.begin()) return false;
        --after;
        return address < after->first + after->second;
    }

    static PageLocked& instance()
    {
        static auto* const allocator = new PageLocked;
        return *allocator;
    }

private:
    static void give(void* memory)
    {
        {
            const std::lock_guard lock(instance().mutex_);
            instance().sizes_.erase(static_cast<char*>(memory));
        }
        std::free(memory);
    }

    std::mutex mutex_;
    std::map<char*, std::size_t> sizes_;
};

/// Draws with a generator of the CPU, so that a device draws what the CPU does.
class DeviceGenerator final : public c10::GeneratorImpl {
public:
    DeviceGenerator(int device, at::Generator host)
        : GeneratorImpl(c10::Device(kType, static_cast<c10::DeviceIndex>(device)),
                        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
          host_(std::move(host))
    {
    }
    void set_current_seed(std::uint64_t seed) override { host_.set_current_seed(seed); }
    void set_offset(std::uint64_t) override { TORCH_CHECK(false, "standin: generators have no offset"); }
    std::uint64_t get_offset() const override { TORCH_CHECK(false, "standin: generators have no offset"); }
    std::uint64_t current_seed() const override { return host_.current_seed(); }
    std::uint64_t seed() override { return host_.seed(); }
    void set_state(const c10::TensorImpl& state) override { host_.unsafeGetGeneratorImpl()->set_state(state); }
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override
    {
        return host_.unsafeGetGeneratorImpl()->get_state();
    }
    const at::Generator& host() const { return host_; }

private:
    DeviceGenerator* clone_impl() const override { return new DeviceGenerator(device().index(), host_.clone()); }

    at::Generator host_;
};

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(num_devices()); }
    void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
    c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(device_here); }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override
    {
        const auto old = getCurrentDevice();
        set_current_device(device);
        return old;
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override
    {
        return device < 0 ? getCurrentDevice() : exchangeDevice(device);
    }
    at::Device getDeviceFromPtr(void* data) const override
    {
        const int device = device_of(data);
        TORCH_CHECK(device >= 0, "standin: ", data, " is no address of a device");
        return at::Device(kType, static_cast<c10::DeviceIndex>(device));
    }
    bool isPinnedPtr(const void* data) const override { return PageLocked::instance().holds(data); }
    c10::Allocator* getPinnedMemoryAllocator() const override { return &PageLocked::instance(); }
    const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override
    {
        static auto* const generators = [] {
            auto* all = new std::vector<at::Generator>;
            for (int i = 0; i < num_devices(); ++i)
                all->push_back(at::make_generator<DeviceGenerator>(i, at::detail::createCPUGenerator()));
            return all;
        }();
        return generators->at(static_cast<std::size_t>(index < 0 ? device_here : index));
    }
    at::Generator getNewGenerator(c10::DeviceIndex index) const override
    {
        return at::make_generator<DeviceGenerator>(index < 0 ? device_here : index, at::detail::createCPUGenerator());
    }
    void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override
    {
        auto memory = [&] {
            const int before = std::exchange(device_here, static_cast<int>(storage.device().index()));
            auto taken = device_allocator().allocate(bytes);
            device_here = before;
            return taken;
        }();
        const auto kept = std::min(bytes, storage.nbytes());
        if (kept > 0) std::memcpy(host_view(memory.get()), host_view(storage.data()), kept);
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
        storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    }
};

StandinCounters counters_of(int device)
{
    const std::lock_guard lock(state(device).mutex);
    return state(device).counters;
}

void reset_counters_of(int device)
{
    const std::lock_guard lock(state(device).mutex);
    state(device).counters = {};
}

/// MESHARD_STANDIN_REPORT: a file, to which each process adds lines `device what operator number` when it ends.
void report()
{
    const char* path = std::getenv("MESHARD_STANDIN_REPORT");
    auto* const file = path ? std::fopen(path, "a") : nullptr;
    if (!file) return;
    for (int device = 0; device < num_devices(); ++device) {
        const auto all = counters_of(device);
        const auto write = [&](const char* what, const std::map<std::string, std::int64_t>& counts) {
            for (const auto& [operation, number] : counts)
                std::fprintf(file, "%d %s %s %lld\n", device, what, operation.c_str(), static_cast<long long>(number));
        };
        write("launch", all.launched);
        write("copy", all.copied);
        write("sync", all.synced);
    }
    std::fclose(file);
}

/// When the library is loaded.
const bool is_registered = [] {
    watch_memory();
    c10::register_privateuse1_backend("standin");
    static auto* const guard = new Guard;
    static const c10::impl::DeviceGuardImplRegistrar registrar(kType, guard);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::SetAllocator(kType, &device_allocator());
    std::atexit(report);
    std::at_quick_exit(report);
    return true;
}();

}  // namespace

int num_devices()
{
    static const int number = [] {
        const char* text = std::getenv("MESHARD_STANDIN_DEVICES");
        const int wanted = text ? std::atoi(text) : 8;
        return std::min(std::max(wanted, 1), kMaxDevices);
    }();
    return number;
}

int current_device()
{
    return device_here;
}

void set_current_device(int device)
{
    TORCH_CHECK(device >= 0 && device < num_devices(), "standin: there is no device standin:", device,
                "; expected 0 to ", num_devices() - 1);
    device_here = device;
}

c10::Stream current_stream(int device)
{
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, static_cast<c10::DeviceIndex>(device)),
                       streams_here.at(static_cast<std::size_t>(device)));
}

void count(int device, Count what, const std::string& operation, std::int64_t bytes)
{
    TORCH_CHECK(!record_here() || what == Count::Launch, "standin: ", operation,
                " while work is recorded: a graph neither copies to or from the host nor waits");
    {
        const std::lock_guard lock(state(device).mutex);
        auto& counters = state(device).counters;
        switch (what) {
        case Count::Launch:
            ++counters.launches;
            ++counters.launched[operation];
            if (seconds_a_launch() > 0) {
                auto& until = state(device).busy_until[current_stream(device).id()];
                until = std::max(until, host_time()) + seconds_a_launch();
            }
            break;
        case Count::DeviceToHost:
            ++counters.device_to_host;
            counters.device_to_host_bytes += bytes;
            ++counters.copied[operation];
            break;
        case Count::HostToDevice:
            ++counters.host_to_device;
            counters.host_to_device_bytes += bytes;
            ++counters.copied[operation];
            break;
        case Count::Sync:
            ++counters.syncs;
            ++counters.synced[operation];
            break;
        }
    }
    static const bool traces = std::getenv("MESHARD_STANDIN_TRACE") != nullptr;  // where from
    if (traces && what != Count::Launch) {
        std::fprintf(stderr, "standin:%d %s %s\n%s\n", device, what == Count::Sync ? "sync" : "copy", operation.c_str(),
                     c10::get_backtrace(2, 30).c_str());
    }
}

void do_late(const c10::Stream& stream, std::function<void()> finish, const void* written)
{
    auto& here = state(stream.device_index());
    std::uint64_t too_old = 0;
    {
        const std::lock_guard lock(here.mutex);
        auto& items = here.queues[stream.id()].items;
        items.push_back({++here.last_ticket, std::move(finish), written});
        if (items.size() > kMostLate) too_old = items.front().ticket;
    }
    if (too_old > 0) finish_until(stream.device_index(), stream.id(), too_old);
}

void finish_writes_to(const void* memory, const c10::Stream& stream)
{
    auto& here = state(stream.device_index());
    std::uint64_t last = 0;
    {
        const std::lock_guard lock(here.mutex);
        for (const auto& item : here.queues[stream.id()].items) {
            if (item.written == memory) last = item.ticket;
        }
    }
    if (last > 0) finish_until(stream.device_index(), stream.id(), last);
}

void synchronize(const c10::Stream& stream, const std::string& operation)
{
    count(stream.device_index(), Count::Sync, operation);
    host_waits_for(stream.device_index(), stream.id(), UINT64_MAX);
    finish_until(stream.device_index(), stream.id(), UINT64_MAX);
}

void reads_memory(int device, const void* memory)
{
    const auto stream = current_stream(device).id();
    auto& here = state(device);
    const std::lock_guard lock(here.mutex);
    const auto found = here.writes.find(memory);
    if (found == here.writes.end() || found->second.stream == stream) return;
    const auto [writer, ticket] = found->second;
    TORCH_CHECK(here.waited[stream][writer] >= ticket || here.host_waited[writer] >= ticket, "standin: stream ", stream,
                " of the device standin:", device, " uses memory that stream ", writer,
                " writes, and has not waited for it: record an event there and block this stream on it");
}

void writes_memory(int device, const void* memory)
{
    reads_memory(device, memory);
    const std::lock_guard lock(state(device).mutex);
    state(device).writes[memory] = {current_stream(device).id(), ++state(device).last_ticket};
}

c10::Allocator& device_allocator()
{
    static auto* const allocator = new DeviceAllocator;
    return *allocator;
}

at::Generator host_generator(const at::Generator& generator)
{
    if (generator.device().type() != kType) return generator;
    return static_cast<const DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host();
}

at::Generator host_generator(int device)
{
    return host_generator(
        at::globalContext().defaultGenerator(c10::Device(kType, static_cast<c10::DeviceIndex>(device))));
}

bool is_page_locked(const void* address)
{
    return PageLocked::instance().holds(address);
}

}  // namespace meshard::standin

extern "C" __attribute__((visibility("default"))) const meshard::Standin* meshard_standin()
{
    using namespace meshard::standin;
    static const meshard::Standin offered{counters_of, reset_counters_of, as_host, add_in_any_order};
    return &offered;
}
