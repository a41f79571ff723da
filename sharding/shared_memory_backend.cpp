// SPDX-License-Identifier: Apache-2.0
#include "sharding/shared_memory_backend.h"

#include <ATen/ATen.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

namespace meshard {
namespace {

using c10d::Work;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kRingBytes = std::int64_t{2} << 20;   // small enough to stay in the cache, large enough for a layer's message
constexpr std::int64_t kAlign = 64;
constexpr std::int64_t kDirectBytes = std::int64_t{64} << 10;   // larger sums of more than two ranks are shared out

/// Tells the processor that this is a loop that waits.
void pause()
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// A number that one rank writes and others read, on a cache line of its own.
struct alignas(kAlign) Counter {
    std::atomic<std::int64_t> value{0};
};

/// What all ranks share: Counters written[size], left[size], consumed[writer][reader], then the rings.
class Segment {
public:
    Segment(void* memory, int size) : counters_(static_cast<Counter*>(memory)), size_(size) {}

    static std::int64_t bytes(int size) { return aligned(num_counters(size) * static_cast<std::int64_t>(sizeof(Counter))) + size * kRingBytes; }

    std::atomic<std::int64_t>& written(int rank) { return counters_[rank].value; }
    std::atomic<std::int64_t>& left(int rank) { return counters_[size_ + rank].value; }
    std::atomic<std::int64_t>& consumed(int writer, int reader) { return counters_[2 * size_ + writer * size_ + reader].value; }
    char* ring(int rank)
    {
        return reinterpret_cast<char*>(counters_) + aligned(num_counters(size_) * static_cast<std::int64_t>(sizeof(Counter))) + rank * kRingBytes;
    }

private:
    static std::int64_t num_counters(std::int64_t size) { return 2 * size + size * size; }

    Counter* counters_;
    int size_;
};

enum class Kind : std::int64_t { AllReduce = 1, Broadcast, AllToAll, Barrier };

const char* name_of(Kind kind)
{
    switch (kind) {
    case Kind::AllReduce: return "all_reduce";
    case Kind::Broadcast: return "broadcast";
    case Kind::AllToAll: return "all_to_all";
    case Kind::Barrier: return "barrier";
    }
    return "?";
}

template <class T>
void combine(char* into, const char* from, std::int64_t bytes, c10d::ReduceOp::RedOpType op)
{
    auto* a = reinterpret_cast<T*>(into);
    const auto* b = reinterpret_cast<const T*>(from);
    const auto n = bytes / static_cast<std::int64_t>(sizeof(T));
    // A NaN wins over every number, as in at::maximum.
    const auto is_nan = [](T x) { return x != x; };
    switch (op) {
    case c10d::ReduceOp::SUM:
        for (std::int64_t i = 0; i < n; ++i) a[i] = static_cast<T>(a[i] + b[i]);
        return;
    case c10d::ReduceOp::MAX:
        for (std::int64_t i = 0; i < n; ++i) a[i] = (b[i] > a[i] || is_nan(b[i])) ? b[i] : a[i];
        return;
    case c10d::ReduceOp::MIN:
        for (std::int64_t i = 0; i < n; ++i) a[i] = (b[i] < a[i] || is_nan(b[i])) ? b[i] : a[i];
        return;
    default: throw std::runtime_error("shared memory: unknown reduction");
    }
}

using Combine = void (*)(char*, const char*, std::int64_t, c10d::ReduceOp::RedOpType);

Combine combine_of(at::ScalarType type)
{
    switch (type) {
    case at::kFloat: return combine<float>;
    case at::kDouble: return combine<double>;
    case at::kLong: return combine<std::int64_t>;
    case at::kInt: return combine<std::int32_t>;
    case at::kShort: return combine<std::int16_t>;
    case at::kChar: return combine<std::int8_t>;
    case at::kByte:
    case at::kBool: return combine<std::uint8_t>;
    default: throw std::runtime_error(std::string("shared memory: cannot reduce values of type ") + at::toString(type) + "; convert to float");
    }
}

class SharedMemoryBackend;

/// One collective under way. Each call of `progress` does what can be done without waiting.
class SharedMemoryWork : public Work {
public:
    explicit SharedMemoryWork(SharedMemoryBackend* backend) : backend_(backend) {}

    virtual void write() = 0;               ///< writes what there is room for; sets written_all when done
    virtual void read() = 0;                ///< reads what has come; sets read_all when done
    virtual void finish() {}                ///< once, at the end

    bool isCompleted() override;
    bool wait(std::chrono::milliseconds timeout) override;

    bool written_all = false, read_all = false, done = false;   ///< under the registry's lock

protected:
    SharedMemoryBackend* backend_;
};

/// All backends of this process: while one waits, the others' messages go on too.
struct Registry {
    std::mutex mutex;
    std::vector<SharedMemoryBackend*> backends;
};

Registry& registry()
{
    static Registry all;
    return all;
}

class SharedMemoryBackend : public c10d::Backend {
public:
    SharedMemoryBackend(void* memory, int rank, int size, std::chrono::milliseconds limit, std::function<bool(int)> has_ended)
        : Backend(rank, size), memory_(memory), segment_(memory, size), limit_(limit), has_ended_(std::move(has_ended)), read_position_(size, 0)
    {
        const std::lock_guard lock(registry().mutex);
        registry().backends.push_back(this);
    }

    ~SharedMemoryBackend() override
    {
        {
            const std::lock_guard lock(registry().mutex);
            std::erase(registry().backends, this);
        }
        segment_.left(getRank()).store(1, std::memory_order_release);
        munmap(memory_, static_cast<std::size_t>(Segment::bytes(getSize())));
    }

    const std::string getBackendName() const override { return "shm"; }
    void abort() override { segment_.left(getRank()).store(1, std::memory_order_release); }

    c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
    c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows, std::vector<std::int64_t>& in_rows,
                                           const c10d::AllToAllOptions& options) override;
    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override;

    // --- for works ---

    /// Copies up to `bytes` into the own ring; returns how many had room.
    std::int64_t put(const char* data, std::int64_t bytes)
    {
        const auto me = getRank();
        const auto written = segment_.written(me).load(std::memory_order_relaxed);
        auto slowest = written;
        for (int r = 0; r < getSize(); ++r) {
            if (r != me) slowest = std::min(slowest, segment_.consumed(me, r).load(std::memory_order_acquire));
        }
        const auto n = std::min(bytes, kRingBytes - (written - slowest));
        copy_ring(segment_.ring(me), written, n, [&](char* place, std::int64_t at, std::int64_t count) {
            std::memcpy(place, data + at, static_cast<std::size_t>(count));
        });
        segment_.written(me).store(written + n, std::memory_order_release);
        return n;
    }

    /// Bytes of `peer` that are there and not taken yet.
    std::int64_t available(int peer)
    {
        return std::max<std::int64_t>(0, segment_.written(peer).load(std::memory_order_acquire) - read_position_[peer]);
    }

    /// Calls f(place, at, count) on up to two pieces of the next n bytes of `peer`, which must be there.
    template <class F>
    void look(int peer, std::int64_t n, F&& f)
    {
        copy_ring(segment_.ring(peer), read_position_[peer], n, f);
    }

    /// Passes over n bytes of `peer`, there or still to come.
    void advance(int peer, std::int64_t n)
    {
        read_position_[peer] += n;
        segment_.consumed(peer, getRank()).store(read_position_[peer], std::memory_order_release);
    }

    /// Works are written in their order and read in their order.
    void progress()
    {
        for (auto& work : queue_) {
            if (!work->written_all) work->write();
            if (!work->written_all) break;
        }
        while (!queue_.empty()) {
            const auto work = queue_.front();
            if (!work->read_all) work->read();
            if (!work->read_all || !work->written_all) break;
            queue_.pop_front();
            work->finish();
            work->done = true;
        }
    }

    void wait_for(const SharedMemoryWork& work, std::chrono::milliseconds timeout)
    {
        const auto limit = timeout > std::chrono::milliseconds(0) ? timeout : limit_;
        std::optional<Clock::time_point> deadline, next_look;
        // Ranks that outnumber the cores must not keep those at work from theirs.
        static const std::int64_t spins = std::thread::hardware_concurrency() >= static_cast<unsigned>(getSize()) ? 4000 : 50;
        for (std::int64_t spin = 0;; ++spin) {
            {
                const std::lock_guard lock(registry().mutex);
                for (auto* backend : registry().backends) backend->progress();
                if (work.done) return;
            }
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
            check_others();
            if (now > *deadline) throw std::runtime_error("no answer within " + std::to_string(limit.count() / 1000) + " s");
        }
    }

    template <class W>
    c10::intrusive_ptr<Work> submit(c10::intrusive_ptr<W> work)
    {
        const std::lock_guard lock(registry().mutex);
        queue_.push_back(work);
        progress();
        return work;
    }

private:
    template <class F>
    static void copy_ring(char* ring, std::int64_t position, std::int64_t n, F&& f)
    {
        const auto start = position % kRingBytes;
        const auto first = std::min(n, kRingBytes - start);
        if (first > 0) f(ring + start, std::int64_t{0}, first);
        if (n > first) f(ring, first, n - first);
    }

    void check_others()
    {
        for (int r = 0; r < getSize(); ++r) {
            if (r == getRank()) continue;
            if (segment_.left(r).load(std::memory_order_acquire)) throw std::runtime_error("rank " + std::to_string(r) + " has left");
            if (has_ended_(r)) throw std::runtime_error("rank " + std::to_string(r) + " has ended");
        }
    }

    void* memory_;
    Segment segment_;
    std::chrono::milliseconds limit_;
    std::function<bool(int)> has_ended_;
    std::vector<std::int64_t> read_position_;   // in each peer's stream
    std::deque<c10::intrusive_ptr<SharedMemoryWork>> queue_;
};

bool SharedMemoryWork::isCompleted()
{
    const std::lock_guard lock(registry().mutex);
    for (auto* backend : registry().backends) backend->progress();
    return done;
}

bool SharedMemoryWork::wait(std::chrono::milliseconds timeout)
{
    backend_->wait_for(*this, timeout);
    return true;
}

/// What stands before each message: what it is, so that ranks that call different collectives learn it.
struct Header {
    Kind kind;
    std::int64_t bytes;
};

/// One message of this rank to all others, header first, both padded to whole lines so that no number lies across the ring's end.
class Outgoing {
public:
    Outgoing() = default;
    Outgoing(Header header, std::vector<std::int64_t> sizes, const char* data, std::int64_t bytes) : data_(data), bytes_(bytes)
    {
        head_.resize(static_cast<std::size_t>(aligned(static_cast<std::int64_t>(sizeof header + sizes.size() * sizeof(std::int64_t)))));
        std::memcpy(head_.data(), &header, sizeof header);
        if (!sizes.empty()) std::memcpy(head_.data() + sizeof header, sizes.data(), sizes.size() * sizeof(std::int64_t));
    }

    bool put(SharedMemoryBackend& backend)
    {
        static const char kPadding[kAlign] = {};
        const auto head = static_cast<std::int64_t>(head_.size()), end = head + aligned(bytes_);
        while (position_ < end) {
            const char* from = position_ < head ? head_.data() + position_ : position_ < head + bytes_ ? data_ + (position_ - head) : kPadding;
            const auto n = (position_ < head ? head : position_ < head + bytes_ ? head + bytes_ : end) - position_;
            const auto put = backend.put(from, n);
            if (put == 0) return false;
            position_ += put;
        }
        return true;
    }

private:
    std::vector<char> head_;
    const char* data_ = nullptr;
    std::int64_t bytes_ = 0;
    std::int64_t position_ = 0;
};

/// Reads the header of a peer's next message, once it is there.
class Incoming {
public:
    bool header(SharedMemoryBackend& backend, int peer, Header expected, std::int64_t num_sizes)
    {
        if (known_) return true;
        const auto n = aligned(static_cast<std::int64_t>(sizeof(Header)) + num_sizes * static_cast<std::int64_t>(sizeof(std::int64_t)));
        if (backend.available(peer) < kAlign) return false;
        std::vector<char> bytes(static_cast<std::size_t>(n));
        Header header{};
        backend.look(peer, kAlign, [&](const char* place, std::int64_t at, std::int64_t count) {
            std::memcpy(bytes.data() + at, place, static_cast<std::size_t>(count));
        });
        std::memcpy(&header, bytes.data(), sizeof header);
        if (header.kind != expected.kind || (expected.bytes >= 0 && header.bytes != expected.bytes)) {
            throw std::runtime_error(std::string("the ranks call different collectives: here ") + name_of(expected.kind) + " of " +
                                     std::to_string(expected.bytes) + " bytes, on rank " + std::to_string(peer) + " " + name_of(header.kind) + " of " +
                                     std::to_string(header.bytes));
        }
        if (backend.available(peer) < n) return false;
        backend.look(peer, n, [&](const char* place, std::int64_t at, std::int64_t count) {
            std::memcpy(bytes.data() + at, place, static_cast<std::size_t>(count));
        });
        sizes.resize(static_cast<std::size_t>(num_sizes));
        if (num_sizes) std::memcpy(sizes.data(), bytes.data() + sizeof header, sizes.size() * sizeof(std::int64_t));
        backend.advance(peer, n);
        known_ = true;
        return true;
    }

    std::vector<std::int64_t> sizes;
    std::int64_t position = 0;   ///< bytes of the message taken

private:
    bool known_ = false;
};

/// A tensor's memory for the time of a collective: itself, or a copy on the CPU.
struct Staged {
    explicit Staged(const at::Tensor& tensor) : tensor(tensor), host(tensor.device().is_cpu() ? tensor : tensor.cpu())
    {
        if (!tensor.is_contiguous()) throw std::runtime_error("shared memory: the tensor is not contiguous");
    }
    char* data() const { return static_cast<char*>(host.data_ptr()); }
    std::int64_t bytes() const { return host.numel() * static_cast<std::int64_t>(host.element_size()); }
    void back()
    {
        if (!host.is_same(tensor)) tensor.copy_(host);
    }

    at::Tensor tensor, host;
};

/// Every rank says all it has; every rank reads the part that it is to sum (all of it, or one share), in the order of the ranks. Where the work
/// is shared out, each then says its share of the sum.
class AllReduceWork : public SharedMemoryWork {
public:
    AllReduceWork(SharedMemoryBackend* backend, const at::Tensor& tensor, c10d::ReduceOp::RedOpType op)
        : SharedMemoryWork(backend), staged_(tensor), op_(op), combine_(combine_of(tensor.scalar_type())), incoming_(backend->getSize()),
          sums_(backend->getSize())
    {
        const auto size = backend->getSize();
        const auto bytes = staged_.bytes();
        shared_out_ = size > 2 && bytes > kDirectBytes;
        const auto share = shared_out_ ? aligned((bytes + size - 1) / size) : bytes;
        for (int r = 0; r <= size; ++r) starts_.push_back(std::min(bytes, r * share));
        begin_ = shared_out_ ? starts_[backend->getRank()] : 0;
        end_ = shared_out_ ? starts_[backend->getRank() + 1] : bytes;
        position_ = begin_;
        data_ = Outgoing({Kind::AllReduce, bytes}, {}, staged_.data(), bytes);
        // The sum must not replace what is still to be written.
        result_.resize(static_cast<std::size_t>(end_ - begin_));
    }

    void write() override
    {
        data_written_ = data_written_ || data_.put(*backend_);
        if (!data_written_) return;
        if (!shared_out_) {
            written_all = true;
        } else if (summed_) {
            if (!sum_ready_) sum_ = Outgoing({Kind::AllReduce, end_ - begin_}, {}, result_.data(), end_ - begin_);
            sum_ready_ = true;
            written_all = sum_.put(*backend_);
        }
    }

    void read() override
    {
        if (!summed_ && !sum_up()) return;
        if (!shared_out_) {
            read_all = true;
            return;
        }
        if (!data_written_) return;   // what is overwritten must have been said
        bool all = true;
        for (int r = 0; r < backend_->getSize(); ++r) {
            if (r == backend_->getRank()) continue;
            const auto n = starts_[r + 1] - starts_[r];
            if (!sums_[r].header(*backend_, r, {Kind::AllReduce, n}, 0)) {
                all = false;
                continue;
            }
            take(r, sums_[r], n, staged_.data() + starts_[r]);
            all &= sums_[r].position >= aligned(n);
        }
        read_all = all;
    }

    void finish() override
    {
        std::memcpy(staged_.data() + begin_, result_.data(), result_.size());
        staged_.back();
    }

private:
    /// Copies what is there of a message of n bytes (padded) to `into`.
    void take(int peer, Incoming& incoming, std::int64_t n, char* into)
    {
        const auto count = std::min(backend_->available(peer), aligned(n) - incoming.position);
        const auto useful = std::min(count, n - incoming.position);
        if (useful > 0) {
            backend_->look(peer, useful, [&](const char* place, std::int64_t at, std::int64_t k) {
                std::memcpy(into + incoming.position + at, place, static_cast<std::size_t>(k));
            });
        }
        incoming.position += count;
        backend_->advance(peer, count);
    }

    bool sum_up()
    {
        const auto size = backend_->getSize(), me = backend_->getRank();
        const auto bytes = staged_.bytes();
        for (int r = 0; r < size; ++r) {
            if (r == me || incoming_[r].position > 0) continue;
            if (!incoming_[r].header(*backend_, r, {Kind::AllReduce, bytes}, 0)) return false;
            // The bytes before this rank's share are for others.
            if (begin_ > 0 && incoming_[r].position == 0) backend_->advance(r, begin_);
            incoming_[r].position = 1;   // past the header
        }
        while (position_ < end_) {
            auto n = end_ - position_;
            for (int r = 0; r < size; ++r) {
                if (r != me) n = std::min(n, backend_->available(r));
            }
            if (n < end_ - position_) n = n / kAlign * kAlign;
            if (n == 0) return false;
            n = std::min<std::int64_t>(n, 64 << 10);   // a block that stays in the cache through all ranks
            char* sum = result_.data() + (position_ - begin_);
            for (int r = 0; r < size; ++r) {
                const auto add = [&](const char* place, std::int64_t at, std::int64_t k) {
                    if (r == 0) std::memcpy(sum + at, place, static_cast<std::size_t>(k));
                    else combine_(sum + at, place, k, op_);
                };
                if (r == me) {
                    add(staged_.data() + position_, 0, n);
                } else {
                    backend_->look(r, n, add);
                    backend_->advance(r, n);
                }
            }
            position_ += n;
        }
        for (int r = 0; r < size; ++r) {
            if (r != me) backend_->advance(r, aligned(bytes) - end_);
        }
        summed_ = true;
        return true;
    }

    Staged staged_;
    c10d::ReduceOp::RedOpType op_;
    Combine combine_;
    std::vector<Incoming> incoming_, sums_;
    std::vector<std::int64_t> starts_;
    std::vector<char> result_;
    Outgoing data_, sum_;
    std::int64_t begin_ = 0, end_ = 0, position_ = 0;
    bool shared_out_ = false, data_written_ = false, summed_ = false, sum_ready_ = false;
};

class BroadcastWork : public SharedMemoryWork {
public:
    BroadcastWork(SharedMemoryBackend* backend, const at::Tensor& tensor, int root) : SharedMemoryWork(backend), staged_(tensor), root_(root)
    {
        if (root == backend->getRank()) {
            message_ = Outgoing({Kind::Broadcast, staged_.bytes()}, {}, staged_.data(), staged_.bytes());
            read_all = true;
        } else {
            written_all = true;
        }
    }

    void write() override { written_all = message_.put(*backend_); }

    void read() override
    {
        const auto n = staged_.bytes();
        if (!incoming_.header(*backend_, root_, {Kind::Broadcast, n}, 0)) return;
        const auto count = std::min(backend_->available(root_), aligned(n) - incoming_.position);
        const auto useful = std::min(count, n - incoming_.position);
        if (useful > 0) {
            backend_->look(root_, useful, [&](const char* place, std::int64_t at, std::int64_t k) {
                std::memcpy(staged_.data() + incoming_.position + at, place, static_cast<std::size_t>(k));
            });
        }
        incoming_.position += count;
        backend_->advance(root_, count);
        read_all = incoming_.position >= aligned(n);
    }

    void finish() override
    {
        if (root_ != backend_->getRank()) staged_.back();
    }

private:
    Staged staged_;
    int root_;
    Outgoing message_;
    Incoming incoming_;
};

class AllToAllWork : public SharedMemoryWork {
public:
    AllToAllWork(SharedMemoryBackend* backend, const at::Tensor& out, const at::Tensor& in, std::vector<std::int64_t> receive_bytes,
                 std::vector<std::int64_t> send_bytes)
        : SharedMemoryWork(backend), out_(out), in_(in), receive_(std::move(receive_bytes)), incoming_(receive_.size()), finished_(receive_.size())
    {
        const auto me = static_cast<std::size_t>(backend->getRank());
        message_ = Outgoing({Kind::AllToAll, in_.bytes()}, send_bytes, in_.data(), in_.bytes());
        if (send_bytes[me] != receive_[me]) throw std::runtime_error("all_to_all: a rank sends itself another number of rows than it receives");
        std::memcpy(out_.data() + std::accumulate(receive_.begin(), receive_.begin() + static_cast<std::ptrdiff_t>(me), std::int64_t{0}),
                    in_.data() + std::accumulate(send_bytes.begin(), send_bytes.begin() + static_cast<std::ptrdiff_t>(me), std::int64_t{0}),
                    static_cast<std::size_t>(receive_[me]));
    }

    void write() override { written_all = message_.put(*backend_); }

    void read() override
    {
        const auto me = backend_->getRank(), size = backend_->getSize();
        bool all = true;
        std::int64_t start = 0;
        for (int r = 0; r < size; start += receive_[r], ++r) {
            if (r == me || finished_[r]) continue;
            auto& incoming = incoming_[r];
            if (!incoming.header(*backend_, r, {Kind::AllToAll, -1}, size)) {
                all = false;
                continue;
            }
            const auto before = std::accumulate(incoming.sizes.begin(), incoming.sizes.begin() + me, std::int64_t{0});
            const auto total = std::accumulate(incoming.sizes.begin(), incoming.sizes.end(), std::int64_t{0});
            if (incoming.sizes[me] != receive_[r]) {
                throw std::runtime_error("all_to_all: rank " + std::to_string(r) + " sends " + std::to_string(incoming.sizes[me]) + " bytes, expected " +
                                         std::to_string(receive_[r]));
            }
            if (!skipped_.empty() && !skipped_[r]) {
                backend_->advance(r, before);
                skipped_[r] = true;
            }
            const auto n = std::min(backend_->available(r), receive_[r] - incoming.position);
            if (n > 0) {
                backend_->look(r, n, [&](const char* place, std::int64_t at, std::int64_t k) {
                    std::memcpy(out_.data() + start + incoming.position + at, place, static_cast<std::size_t>(k));
                });
                incoming.position += n;
                backend_->advance(r, n);
            }
            if (incoming.position == receive_[r]) {
                backend_->advance(r, aligned(total) - before - receive_[r]);
                finished_[r] = true;
            } else {
                all = false;
            }
        }
        read_all = all;
    }

    void finish() override { out_.back(); }

private:
    Staged out_, in_;
    std::vector<std::int64_t> receive_;
    std::vector<Incoming> incoming_;
    std::vector<char> finished_;
    std::vector<char> skipped_ = std::vector<char>(receive_.size(), false);
    Outgoing message_;
};

class BarrierWork : public SharedMemoryWork {
public:
    explicit BarrierWork(SharedMemoryBackend* backend) : SharedMemoryWork(backend), message_({Kind::Barrier, 0}, {}, nullptr, 0), incoming_(backend->getSize()) {}
    void write() override { written_all = message_.put(*backend_); }
    void read() override
    {
        bool all = true;
        for (int r = 0; r < backend_->getSize(); ++r) {
            if (r != backend_->getRank()) all &= incoming_[r].header(*backend_, r, {Kind::Barrier, 0}, 0);
        }
        read_all = all;
    }

private:
    Outgoing message_;
    std::vector<Incoming> incoming_;
};

c10::intrusive_ptr<Work> SharedMemoryBackend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options)
{
    return submit(c10::make_intrusive<AllReduceWork>(this, tensors[0], options.reduceOp.op_));
}

c10::intrusive_ptr<Work> SharedMemoryBackend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options)
{
    return submit(c10::make_intrusive<BroadcastWork>(this, tensors[0], static_cast<int>(options.rootRank)));
}

c10::intrusive_ptr<Work> SharedMemoryBackend::alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows,
                                                            std::vector<std::int64_t>& in_rows, const c10d::AllToAllOptions&)
{
    const auto in_bytes = [](const at::Tensor& tensor, const std::vector<std::int64_t>& rows) {
        const auto row_bytes = c10::multiply_integers(tensor.sizes().slice(1)) * static_cast<std::int64_t>(tensor.element_size());
        auto bytes = rows;
        for (auto& n : bytes) n *= row_bytes;
        return bytes;
    };
    return submit(c10::make_intrusive<AllToAllWork>(this, out, in, in_bytes(out, out_rows), in_bytes(in, in_rows)));
}

c10::intrusive_ptr<Work> SharedMemoryBackend::barrier(const c10d::BarrierOptions&) { return submit(c10::make_intrusive<BarrierWork>(this)); }

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

void* map(int file, int size)
{
    void* memory = mmap(nullptr, static_cast<std::size_t>(Segment::bytes(size)), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> connect_shared_memory(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                        std::chrono::milliseconds time_limit, std::function<bool(int)> has_ended)
{
    // The first rank's memory has no name of its own: the others find it through /proc, and it is gone with the last of them.
    void* memory = nullptr;
    int file = -1;
    if (rank == 0) {
        file = memfd_create("meshard", MFD_CLOEXEC);
        if (file >= 0 && ftruncate(file, Segment::bytes(size)) == 0) memory = map(file, size);
        struct stat status{};
        std::string place = "none";
        if (memory && fstat(file, &status) == 0) {
            place = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file) + " " + std::to_string(status.st_ino);
        }
        store->set("memory", bytes_of(place));
    } else {
        const auto place = text_of(store->get("memory"));
        const auto space = place.find(' ');
        if (space != std::string::npos) {
            file = open(place.substr(0, space).c_str(), O_RDWR | O_CLOEXEC);
            struct stat status{};
            // The same path may mean another file in another container.
            if (file >= 0 && fstat(file, &status) == 0 && std::to_string(status.st_ino) == place.substr(space + 1) && status.st_size == Segment::bytes(size)) {
                memory = map(file, size);
            }
        }
    }
    store->set("sees." + std::to_string(rank), bytes_of(memory ? "yes" : "no"));
    bool all = true;
    for (int r = 0; r < size; ++r) all &= text_of(store->get("sees." + std::to_string(r))) == "yes";
    if (file >= 0) close(file);
    if (!all) {
        if (memory) munmap(memory, static_cast<std::size_t>(Segment::bytes(size)));
        return {};
    }
    return c10::make_intrusive<SharedMemoryBackend>(memory, rank, size, time_limit, std::move(has_ended));
}

}  // namespace meshard
