// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/shared_memory_backend.h"

#include "sharding/ranks/row_stream.h"
#include "sharding/transport/direct_rows.h"
#include "sharding/transport/message_rings.h"
#include "sharding/transport/progress_thread.h"
#include "sharding/transport/ring_collectives.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <optional>
#include <sched.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace meshard {
namespace {

using c10d::Work;
using Clock = std::chrono::steady_clock;

/// Hints to the processor that this is a spin loop.
void pause()
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class SharedMemoryBackend;

/// A collective that has been started. Each call of `progress` does what is possible without waiting.
class SharedMemoryWork : public Work {
public:
    /// @param number   of the collectives that the backend has started
    SharedMemoryWork(SharedMemoryBackend* backend, std::unique_ptr<RingCollective> collective, std::int64_t number)
        : backend_(backend), collective_(std::move(collective)), number_(number)
    {
    }

    bool isCompleted() override;
    bool wait(std::chrono::milliseconds timeout) override;

    /// These functions need the registry's lock.
    bool write(MessageRings& rings)
    {
        rings.set_collective(number_);
        return written_ = written_ || collective_->write(rings);
    }
    bool read(MessageRings& rings)
    {
        rings.set_collective(number_);
        return read_ = read_ || collective_->read(rings);
    }

    bool awaits(int rank) const { return collective_->awaits(rank); }

    void finish()
    {
        collective_->finish();
        done_ = true;
    }

    /// Called when the backend ends.
    void abandon() { backend_ = nullptr; }

    bool is_written() const { return written_; }
    bool is_done() const { return done_; }

private:
    SharedMemoryBackend* backend_;
    std::unique_ptr<RingCollective> collective_;
    std::int64_t number_;
    bool written_ = false, read_ = false, done_ = false;
};

/// All backends of this process: a thread that waits for one backend advances the messages of the others too.
struct Registry {
    std::mutex mutex;
    std::vector<SharedMemoryBackend*> backends;
    std::atomic<int> num_waiting{0};  // while a thread waits, the progress thread need not run
};

Registry& registry()
{
    static Registry all;
    return all;
}

ProgressThread& progress_thread();

/// A guard that counts a waiting thread; the progress thread sleeps meanwhile.
struct Waiting {
    Waiting() { ++registry().num_waiting; }
    ~Waiting() { --registry().num_waiting; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
};

class SharedMemoryBackend : public c10d::Backend, public RowExchange {
public:
    SharedMemoryBackend(void* memory, int rank, int size, PeerRanks peers, std::chrono::milliseconds limit,
                        std::function<bool(int)> has_ended)
        : Backend(rank, size), rings_(memory, rank, size), peers_(std::move(peers)), limit_(limit),
          has_ended_(std::move(has_ended))
    {
        const std::lock_guard lock(registry().mutex);
        registry().backends.push_back(this);
    }

    ~SharedMemoryBackend() override
    {
        const std::lock_guard lock(registry().mutex);
        std::erase(registry().backends, this);
        for (const auto& work : queue_) work->abandon();
    }

    const std::string getBackendName() const override { return "shm"; }
    void abort() override { rings_.leave(); }

    c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors,
                                       const c10d::AllreduceOptions& options) override;
    c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors,
                                       const c10d::BroadcastOptions& options) override;
    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows,
                                           std::vector<std::int64_t>& in_rows,
                                           const c10d::AllToAllOptions& options) override;
    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override;
    c10::intrusive_ptr<Work> exchange_rows(RowStream sent, const std::vector<std::int64_t>& send_bytes,
                                           const at::Tensor& received,
                                           const std::vector<std::int64_t>& receive_bytes) override;

    at::Tensor empty_received(at::IntArrayRef sizes, const at::TensorOptions& options) override
    {
        return empty_for_peers(peers_.memory, sizes, options);
    }

    bool is_idle() const { return queue_.empty(); }

    /// Collectives are written in the order of their start, and read in that order.
    void progress()
    {
        for (auto& work : queue_) {
            if (!work->write(rings_)) break;
        }
        while (!queue_.empty()) {
            const auto work = queue_.front();
            if (!work->read(rings_) || !work->is_written()) break;
            queue_.pop_front();
            work->finish();
        }
    }

    void wait_for(const SharedMemoryWork& work, std::chrono::milliseconds timeout)
    {
        const Waiting waiting;
        const auto limit = timeout > std::chrono::milliseconds(0) ? timeout : limit_;
        std::optional<Clock::time_point> deadline, next_look;
        // With more ranks than cores, waiting ranks must yield to those that compute.
        static const std::int64_t spins =
            std::thread::hardware_concurrency() >= static_cast<unsigned>(getSize()) ? 4000 : 50;
        for (std::int64_t spin = 0;; ++spin) {
            if (progresses_to(work)) return;
            if (spin < spins) {
                pause();
                continue;
            }
            sched_yield();
            if (spin % 64 != 0) continue;
            const auto now = Clock::now();
            if (!deadline) {
                deadline = now + limit;
                next_look = now + std::chrono::milliseconds(20);
            }
            if (now < *next_look) continue;
            next_look = now + std::chrono::milliseconds(20);
            if (const auto reason = who_is_gone(); !reason.empty()) {
                if (progresses_to(work)) return;  // the rank may have sent everything before it left
                throw std::runtime_error(reason);
            }
            if (now > *deadline) throw std::runtime_error(fmt::format("no answer within {} s", limit.count() / 1000));
        }
    }

    /// Starts a collective in which no rank sends more than `bytes` bytes. The progress thread continues it while the
    /// program computes, or waits for something else, unless this rank has written its part and all that is in the
    /// queue fits into the rings: no rank then waits for this one's next call.
    c10::intrusive_ptr<Work> submit(std::unique_ptr<RingCollective> collective, std::size_t bytes);

private:
    static constexpr std::size_t kFits = std::size_t{256} << 10;  // not worth waking the progress thread
    static constexpr std::size_t kHead = std::size_t{1} << 10;    // more than a header has
    static constexpr std::size_t kAny = kFits;  // for messages that others send through this rank, too

    bool progresses_to(const SharedMemoryWork& work);

    /// A rank that has gone and on which the oldest collective still waits; others may end once they have done their
    /// part.
    std::string who_is_gone() const
    {
        for (int r = 0; r < getSize(); ++r) {
            if (r == getRank()) continue;
            if (!queue_.empty() && !queue_.front()->awaits(r) && !rings_.is_full_for(r)) continue;
            if (rings_.has_left(r)) return fmt::format("rank {} has left", r);
            if (has_ended_(r)) return fmt::format("rank {} has ended", r);
        }
        return {};
    }

    MessageRings rings_;
    PeerRanks peers_;
    std::chrono::milliseconds limit_;
    std::function<bool(int)> has_ended_;
    std::int64_t num_started_ = 0;
    std::size_t queued_bytes_ = 0;  // of the collectives that were started since the queue was empty
    std::deque<c10::intrusive_ptr<SharedMemoryWork>> queue_;
};

/// Advances every backend as far as possible; returns whether some can go on later. Needs the registry's lock. Errors
/// are thrown for the backend `own` alone: the thread that waits for another one gets that one's again.
bool advance_all(const SharedMemoryBackend* own)
{
    bool is_more = false;
    for (auto* backend : registry().backends) {
        try {
            backend->progress();
            is_more |= !backend->is_idle();
        } catch (const std::exception&) {
            if (backend == own) throw;
        }
    }
    return is_more;
}

bool SharedMemoryBackend::progresses_to(const SharedMemoryWork& work)
{
    const std::lock_guard lock(registry().mutex);
    if (!work.is_done()) advance_all(this);
    return work.is_done();
}

ProgressThread& progress_thread()
{
    static ProgressThread thread([] {
        if (registry().num_waiting > 0) return true;
        const std::lock_guard lock(registry().mutex);
        return advance_all(nullptr);
    });
    return thread;
}

bool SharedMemoryWork::isCompleted()
{
    const std::lock_guard lock(registry().mutex);
    if (!done_) advance_all(backend_);
    return done_;
}

bool SharedMemoryWork::wait(std::chrono::milliseconds timeout)
{
    if (isCompleted()) return true;
    if (!backend_) throw std::runtime_error("the group was destroyed before all ranks had done their part");
    backend_->wait_for(*this, timeout);
    return true;
}

c10::intrusive_ptr<Work> SharedMemoryBackend::submit(std::unique_ptr<RingCollective> collective, std::size_t bytes)
{
    const std::lock_guard lock(registry().mutex);
    auto work = c10::make_intrusive<SharedMemoryWork>(this, std::move(collective), ++num_started_);
    if (queue_.empty()) queued_bytes_ = 0;
    queued_bytes_ += kHead + bytes;
    queue_.push_back(work);
    progress();
    if (!work->is_done() && (!work->is_written() || queued_bytes_ > kFits)) progress_thread().wake();
    return work;
}

c10::intrusive_ptr<Work> SharedMemoryBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                        const c10d::AllreduceOptions& options)
{
    return submit(ring_all_reduce(rings_, tensors[0], options.reduceOp.op_), tensors[0].nbytes());
}

c10::intrusive_ptr<Work> SharedMemoryBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                        const c10d::BroadcastOptions& options)
{
    return submit(ring_broadcast(rings_, tensors[0], static_cast<int>(options.rootRank)), tensors[0].nbytes());
}

c10::intrusive_ptr<Work> SharedMemoryBackend::alltoall_base(at::Tensor& out, at::Tensor& in,
                                                            std::vector<std::int64_t>& out_rows,
                                                            std::vector<std::int64_t>& in_rows,
                                                            const c10d::AllToAllOptions&)
{
    const auto in_bytes = [](const at::Tensor& tensor, const std::vector<std::int64_t>& rows) {
        const auto row_bytes =
            c10::multiply_integers(tensor.sizes().slice(1)) * static_cast<std::int64_t>(tensor.element_size());
        auto bytes = rows;
        for (auto& n : bytes) n *= row_bytes;
        return bytes;
    };
    const auto read = [sent = in.contiguous().cpu()](std::int64_t begin, std::int64_t count, char* to) {
        std::memcpy(to, static_cast<const char*>(sent.const_data_ptr()) + begin, static_cast<std::size_t>(count));
    };
    return submit(ring_all_to_all(rings_, out, in_bytes(out, out_rows), in_bytes(in, in_rows), read), kAny);
}

c10::intrusive_ptr<Work> SharedMemoryBackend::exchange_rows(RowStream sent, const std::vector<std::int64_t>& send_bytes,
                                                            const at::Tensor& received,
                                                            const std::vector<std::int64_t>& receive_bytes)
{
    std::unique_ptr<RingCollective> exchange;
    if (peers_.can_write()) {
        exchange = std::make_unique<DirectRows>(rings_, peers_, std::move(sent), send_bytes, received, receive_bytes);
    } else {
        auto read = [sent = std::move(sent)](std::int64_t begin, std::int64_t count, char* to) {
            sent.read(begin, count, to);
        };
        exchange = ring_all_to_all(rings_, received, receive_bytes, send_bytes, std::move(read));
    }
    return submit(std::move(exchange), kAny);
}

c10::intrusive_ptr<Work> SharedMemoryBackend::barrier(const c10d::BarrierOptions&)
{
    return submit(ring_barrier(rings_), 0);
}

std::vector<std::uint8_t> bytes_of(const std::string& text)
{
    return {text.begin(), text.end()};
}

std::string text_of(const std::vector<std::uint8_t>& bytes)
{
    return {bytes.begin(), bytes.end()};
}

/// The mapping of another process's memory, shared by all groups.
std::shared_ptr<const PeerView> view_of(const PeerMemory::Address& address)
{
    static std::mutex mutex;
    static std::map<PeerMemory::Address, std::weak_ptr<const PeerView>> views;
    const std::lock_guard lock(mutex);
    auto& known = views[address];
    auto view = known.lock();
    if (!view) known = view = PeerView::open(address);
    return view;
}

/// The ranks of the group, if each can write to all others' memory. Collective.
PeerRanks find_peers(c10d::Store& store, int rank, int size)
{
    PeerRanks found{PeerMemory::of_process(), {}};
    std::string card;
    if (found.memory) {
        for (const auto number : found.memory->address()) card += fmt::format("{} ", number);
    }
    store.set(fmt::format("peer.{}", rank), bytes_of(card));
    bool can_write = found.memory != nullptr;
    for (int r = 0; r < size && can_write; ++r) {
        std::istringstream text(text_of(store.get(fmt::format("peer.{}", r))));
        PeerMemory::Address address{};
        if (text >> address[0] >> address[1] >> address[2]) found.views.push_back(view_of(address));
        can_write = static_cast<bool>(text) && found.views.back();
    }
    store.set(fmt::format("writes.{}", rank), bytes_of(can_write ? "yes" : "no"));
    bool all = true;
    for (int r = 0; r < size; ++r) all &= text_of(store.get(fmt::format("writes.{}", r))) == "yes";
    return all ? found : PeerRanks();
}

void* map(int file, int size)
{
    void* memory =
        mmap(nullptr, static_cast<std::size_t>(MessageRings::bytes(size)), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> connect_shared_memory(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                        int size, std::chrono::milliseconds time_limit,
                                                        std::function<bool(int)> has_ended)
{
    // The first rank's memory file has no name: the others open it through /proc, and it is freed when the last of them
    // closes it.
    void* memory = nullptr;
    int file = -1;
    if (rank == 0) {
        file = memfd_create("meshard", MFD_CLOEXEC);
        if (file >= 0 && ftruncate(file, MessageRings::bytes(size)) == 0) memory = map(file, size);
        struct stat status{};
        std::string place = "none";
        if (memory && fstat(file, &status) == 0) {
            place = fmt::format("/proc/{}/fd/{} {}", getpid(), file, status.st_ino);
        }
        store->set("memory", bytes_of(place));
    } else {
        const auto place = text_of(store->get("memory"));
        const auto space = place.find(' ');
        if (space != std::string::npos) {
            file = open(place.substr(0, space).c_str(), O_RDWR | O_CLOEXEC);
            struct stat status{};
            // The same path may be another file in another container.
            if (file >= 0 && fstat(file, &status) == 0 && std::to_string(status.st_ino) == place.substr(space + 1) &&
                status.st_size == MessageRings::bytes(size)) {
                memory = map(file, size);
            }
        }
    }
    store->set(fmt::format("sees.{}", rank), bytes_of(memory ? "yes" : "no"));
    bool all = true;
    for (int r = 0; r < size; ++r) all &= text_of(store->get(fmt::format("sees.{}", r))) == "yes";
    if (file >= 0) close(file);
    if (!all) {
        if (memory) munmap(memory, static_cast<std::size_t>(MessageRings::bytes(size)));
        return {};
    }
    return c10::make_intrusive<SharedMemoryBackend>(memory, rank, size, find_peers(*store, rank, size), time_limit,
                                                    std::move(has_ended));
}

}  // namespace meshard
