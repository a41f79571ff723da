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

#include "sharding/direct_rows.h"
#include "sharding/message_rings.h"
#include "sharding/progress_thread.h"
#include "sharding/row_stream.h"

namespace meshard {
namespace {

using c10d::Work;
using Kind = MessageHeader::Kind;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kDirectBytes = std::int64_t{64} << 10;   // larger sums of more than two ranks are shared out

/// Tells the processor that this is a loop that waits.
void pause()
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
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
    std::atomic<int> num_waiting{0};   // threads that do what the progress thread would do
};

Registry& registry()
{
    static Registry all;
    return all;
}

ProgressThread& progress_thread();

/// While one waits, the progress thread leaves the core to others.
struct Waiting {
    Waiting() { ++registry().num_waiting; }
    ~Waiting() { --registry().num_waiting; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
};

class SharedMemoryBackend : public c10d::Backend, public RowExchange {
public:
    SharedMemoryBackend(void* memory, int rank, int size, PeerRanks peers, std::chrono::milliseconds limit, std::function<bool(int)> has_ended)
        : Backend(rank, size), rings_(memory, rank, size), peers_(std::move(peers)), limit_(limit), has_ended_(std::move(has_ended))
    {
        const std::lock_guard lock(registry().mutex);
        registry().backends.push_back(this);
    }

    ~SharedMemoryBackend() override
    {
        const std::lock_guard lock(registry().mutex);
        std::erase(registry().backends, this);
    }

    const std::string getBackendName() const override { return "shm"; }
    void abort() override { rings_.leave(); }

    c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
    c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows, std::vector<std::int64_t>& in_rows,
                                           const c10d::AllToAllOptions& options) override;
    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override;
    c10::intrusive_ptr<Work> exchange_rows(RowStream sent, const std::vector<std::int64_t>& send_bytes, const at::Tensor& received,
                                           const std::vector<std::int64_t>& receive_bytes) override;

    at::Tensor empty_received(at::IntArrayRef sizes, const at::TensorOptions& options) override
    {
        return peers_.can_write() ? empty_for_peers(peers_.memory, sizes, options) : at::empty(sizes, options);
    }

    bool is_idle() const { return queue_.empty(); }
    MessageRings& rings() { return rings_; }   ///< for works, under the registry's lock

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
        const Waiting waiting;
        const auto limit = timeout > std::chrono::milliseconds(0) ? timeout : limit_;
        std::optional<Clock::time_point> deadline, next_look;
        // Ranks that outnumber the cores must not keep those at work from theirs.
        static const std::int64_t spins = std::thread::hardware_concurrency() >= static_cast<unsigned>(getSize()) ? 4000 : 50;
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
                if (progresses_to(work)) return;   // it may have said all it had to before it went
                throw std::runtime_error(reason);
            }
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
    /// Every backend goes on as far as it can; true if `work` is done then.
    static bool progresses_to(const SharedMemoryWork& work)
    {
        const std::lock_guard lock(registry().mutex);
        for (auto* backend : registry().backends) backend->progress();
        return work.done;
    }

    std::string who_is_gone() const
    {
        for (int r = 0; r < getSize(); ++r) {
            if (r == getRank()) continue;
            if (rings_.has_left(r)) return "rank " + std::to_string(r) + " has left";
            if (has_ended_(r)) return "rank " + std::to_string(r) + " has ended";
        }
        return {};
    }

    MessageRings rings_;
    PeerRanks peers_;
    std::chrono::milliseconds limit_;
    std::function<bool(int)> has_ended_;
    std::deque<c10::intrusive_ptr<SharedMemoryWork>> queue_;
};

ProgressThread& progress_thread()
{
    static ProgressThread thread([] {
        auto& all = registry();
        if (all.num_waiting > 0) return true;
        const std::lock_guard lock(all.mutex);
        bool is_idle = true;
        try {
            for (auto* backend : all.backends) {
                backend->progress();
                is_idle &= backend->is_idle();
            }
        } catch (const std::exception&) {
            return false;   // whoever waits meets it again and says it
        }
        return !is_idle;
    });
    return thread;
}

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
        data_written_ = data_written_ || data_.put(backend_->rings());
        if (!data_written_) return;
        if (!shared_out_) {
            written_all = true;
        } else if (summed_) {
            if (!sum_ready_) sum_ = Outgoing({Kind::AllReduce, end_ - begin_}, {}, result_.data(), end_ - begin_);
            sum_ready_ = true;
            written_all = sum_.put(backend_->rings());
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
            all &= sums_[r].read_header(backend_->rings(), r, {Kind::AllReduce, n}, 0) && sums_[r].take(backend_->rings(), r, n, staged_.data() + starts_[r]);
        }
        read_all = all;
    }

    void finish() override
    {
        std::memcpy(staged_.data() + begin_, result_.data(), result_.size());
        staged_.back();
    }

private:
    bool sum_up()
    {
        auto& rings = backend_->rings();
        const auto size = rings.size(), me = rings.rank();
        const auto bytes = staged_.bytes();
        for (int r = 0; r < size; ++r) {
            if (r == me || incoming_[r].has_header()) continue;
            if (!incoming_[r].read_header(rings, r, {Kind::AllReduce, bytes}, 0)) return false;
            rings.advance(r, begin_);   // the bytes before this rank's share are for others
        }
        while (position_ < end_) {
            auto n = end_ - position_;
            for (int r = 0; r < size; ++r) {
                if (r != me) n = std::min(n, rings.available(r));
            }
            if (n < end_ - position_) n = n / MessageRings::kLine * MessageRings::kLine;
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
                    rings.look(r, n, add);
                    rings.advance(r, n);
                }
            }
            position_ += n;
        }
        for (int r = 0; r < size; ++r) {
            if (r != me) rings.advance(r, aligned(bytes) - end_);
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

    void write() override { written_all = message_.put(backend_->rings()); }

    void read() override
    {
        const auto n = staged_.bytes();
        read_all = incoming_.read_header(backend_->rings(), root_, {Kind::Broadcast, n}, 0) && incoming_.take(backend_->rings(), root_, n, staged_.data());
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
    /// `read` gives the bytes that are sent, for as long as this lives.
    AllToAllWork(SharedMemoryBackend* backend, const at::Tensor& out, std::vector<std::int64_t> receive_bytes, std::vector<std::int64_t> send_bytes, Outgoing::Source read)
        : SharedMemoryWork(backend), out_(out), receive_(std::move(receive_bytes)), incoming_(receive_.size()), taken_(receive_.size(), 0), finished_(receive_.size(), false)
    {
        const auto me = backend->getRank();
        const auto before = [me](const std::vector<std::int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.begin() + me, std::int64_t{0}); };
        if (send_bytes[me] != receive_[me]) throw std::runtime_error("all_to_all: a rank sends itself another number of rows than it receives");
        read(before(send_bytes), receive_[me], out_.data() + before(receive_));
        const auto all = std::accumulate(send_bytes.begin(), send_bytes.end(), std::int64_t{0});
        message_ = Outgoing({Kind::AllToAll, all}, send_bytes, std::move(read), all);
    }

    void write() override { written_all = message_.put(backend_->rings()); }

    void read() override
    {
        auto& rings = backend_->rings();
        const auto me = rings.rank(), size = rings.size();
        bool all = true;
        std::int64_t start = 0;
        for (int r = 0; r < size; start += receive_[r], ++r) {
            if (r == me || finished_[r]) continue;
            auto& incoming = incoming_[r];
            const bool is_new = !incoming.has_header();
            if (!incoming.read_header(rings, r, {Kind::AllToAll, -1}, size)) {
                all = false;
                continue;
            }
            const auto before = std::accumulate(incoming.sizes.begin(), incoming.sizes.begin() + me, std::int64_t{0});
            const auto total = std::accumulate(incoming.sizes.begin(), incoming.sizes.end(), std::int64_t{0});
            if (incoming.sizes[me] != receive_[r]) {
                throw std::runtime_error("all_to_all: rank " + std::to_string(r) + " sends " + std::to_string(incoming.sizes[me]) + " bytes, expected " +
                                         std::to_string(receive_[r]));
            }
            if (is_new) rings.advance(r, before);   // what it says to other ranks
            const auto n = std::min(rings.available(r), receive_[r] - taken_[r]);
            if (n > 0) {
                rings.look(r, n, [&](const char* place, std::int64_t at, std::int64_t k) {
                    std::memcpy(out_.data() + start + taken_[r] + at, place, static_cast<std::size_t>(k));
                });
                taken_[r] += n;
                rings.advance(r, n);
            }
            finished_[r] = taken_[r] == receive_[r];
            if (finished_[r]) rings.advance(r, aligned(total) - before - receive_[r]);
            else all = false;
        }
        read_all = all;
    }

    void finish() override { out_.back(); }

private:
    Staged out_;
    std::vector<std::int64_t> receive_;
    std::vector<Incoming> incoming_;
    std::vector<std::int64_t> taken_;   // bytes
    std::vector<bool> finished_;
    Outgoing message_;
};

class DirectRowsWork : public SharedMemoryWork {
public:
    DirectRowsWork(SharedMemoryBackend* backend, DirectRows rows) : SharedMemoryWork(backend), rows_(std::move(rows)) {}
    void write() override { written_all = rows_.write(backend_->rings()); }
    void read() override { read_all = rows_.read(backend_->rings()); }
    void finish() override { rows_.finish(); }

private:
    DirectRows rows_;
};

class BarrierWork : public SharedMemoryWork {
public:
    explicit BarrierWork(SharedMemoryBackend* backend) : SharedMemoryWork(backend), message_({Kind::Barrier, 0}, {}, nullptr, 0), incoming_(backend->getSize()) {}
    void write() override { written_all = message_.put(backend_->rings()); }
    void read() override
    {
        bool all = true;
        for (int r = 0; r < backend_->getSize(); ++r) {
            if (r != backend_->getRank()) all &= incoming_[r].read_header(backend_->rings(), r, {Kind::Barrier, 0}, 0);
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
    const auto read = [staged = Staged(in)](std::int64_t begin, std::int64_t count, char* to) { std::memcpy(to, staged.data() + begin, static_cast<std::size_t>(count)); };
    return submit(c10::make_intrusive<AllToAllWork>(this, out, in_bytes(out, out_rows), in_bytes(in, in_rows), read));
}

c10::intrusive_ptr<Work> SharedMemoryBackend::exchange_rows(RowStream sent, const std::vector<std::int64_t>& send_bytes, const at::Tensor& received,
                                                            const std::vector<std::int64_t>& receive_bytes)
{
    const auto work = peers_.can_write()
                          ? submit(c10::make_intrusive<DirectRowsWork>(this, DirectRows(rings_, peers_, std::move(sent), send_bytes, received, receive_bytes)))
                          : submit(c10::make_intrusive<AllToAllWork>(this, received, receive_bytes, send_bytes, [sent = std::move(sent)](std::int64_t begin, std::int64_t count, char* to) {
                                sent.read(begin, count, to);
                            }));
    if (!work->isCompleted()) progress_thread().wake();
    return work;
}

c10::intrusive_ptr<Work> SharedMemoryBackend::barrier(const c10d::BarrierOptions&) { return submit(c10::make_intrusive<BarrierWork>(this)); }

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

void* map(int file, int size)
{
    void* memory = mmap(nullptr, static_cast<std::size_t>(MessageRings::bytes(size)), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
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
        if (file >= 0 && ftruncate(file, MessageRings::bytes(size)) == 0) memory = map(file, size);
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
            if (file >= 0 && fstat(file, &status) == 0 && std::to_string(status.st_ino) == place.substr(space + 1) && status.st_size == MessageRings::bytes(size)) {
                memory = map(file, size);
            }
        }
    }
    store->set("sees." + std::to_string(rank), bytes_of(memory ? "yes" : "no"));
    bool all = true;
    for (int r = 0; r < size; ++r) all &= text_of(store->get("sees." + std::to_string(r))) == "yes";
    if (file >= 0) close(file);
    if (!all) {
        if (memory) munmap(memory, static_cast<std::size_t>(MessageRings::bytes(size)));
        return {};
    }
    auto peers = PeerRanks::find(rank, size, [&](const std::string& name, const std::string& text) { store->set(name + "." + std::to_string(rank), bytes_of(text)); },
                                 [&](const std::string& name, int r) { return text_of(store->get(name + "." + std::to_string(r))); });
    return c10::make_intrusive<SharedMemoryBackend>(memory, rank, size, std::move(peers), time_limit, std::move(has_ended));
}

}  // namespace meshard
