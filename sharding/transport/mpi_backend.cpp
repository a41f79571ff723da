// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/mpi_backend.h"

#include "sharding/transport/device_transport.h"
#include "sharding/transport/mpi_work.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string_view>
#include <unistd.h>

namespace meshard {
namespace {

using c10d::Work;

constexpr int kNumTags = 16000;  // each exchange uses two; MPI guarantees 32767

MPI_Datatype mpi_type(at::ScalarType type)
{
    switch (type) {
    case at::kFloat:
        return MPI_FLOAT;
    case at::kDouble:
        return MPI_DOUBLE;
    case at::kInt:
        return MPI_INT32_T;
    case at::kLong:
        return MPI_INT64_T;
    case at::kShort:
        return MPI_INT16_T;
    case at::kChar:
        return MPI_INT8_T;
    case at::kByte:
    case at::kBool:
        return MPI_UINT8_T;
    default:
        throw std::runtime_error(std::string("MPI cannot reduce values of type ") + at::toString(type) +
                                 "; convert to float");
    }
}

MPI_Op mpi_op(const c10d::ReduceOp& op)
{
    if (op == c10d::ReduceOp::SUM) return MPI_SUM;
    if (op == c10d::ReduceOp::MAX) return MPI_MAX;
    if (op == c10d::ReduceOp::MIN) return MPI_MIN;
    throw std::runtime_error("MPI: unknown reduction");
}

class MpiBackend : public c10d::Backend, public RowExchange {
public:
    /// @param neighbors   the ranks of this group that can write to each other's memory
    /// @param progress    null if MPI allows one thread only
    MpiBackend(MPI_Comm communicator, int rank, int size, std::chrono::milliseconds limit, Neighborhood neighbors,
               std::shared_ptr<MpiProgress> progress)
        : Backend(rank, size), communicator_(communicator), limit_(limit), neighbors_(std::move(neighbors)),
          progress_(std::move(progress))
    {
    }

    const std::string getBackendName() const override { return "mpi"; }

    /// Sends a farewell message to the other ranks, whose waits then fail.
    void abort() override
    {
        for_each_other([&](int r) {
            MPI_Request request = MPI_REQUEST_NULL;
            MPI_Isend(nullptr, 0, MPI_BYTE, r, kFarewellTag, communicator_, &request);
            if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
        });
    }

    c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override
    {
        auto& tensor = tensors[0];
        auto work = make_work(tensor);
        for_each_chunk(tensor.numel(), kLargest, [&](std::int64_t offset, int count) {
            auto* data =
                static_cast<char*>(tensor.data_ptr()) + offset * static_cast<std::int64_t>(tensor.element_size());
            check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data, count, mpi_type(tensor.scalar_type()),
                                     mpi_op(options.reduceOp), communicator_, work->add()),
                      "all-reduce");
        });
        return work;
    }

    c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override
    {
        auto& tensor = tensors[0];
        const auto bytes = tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
        auto work = make_work(tensor);
        for_each_chunk(bytes, kLargest, [&](std::int64_t offset, int count) {
            check_mpi(MPI_Ibcast(static_cast<char*>(tensor.data_ptr()) + offset, count, MPI_BYTE,
                                 static_cast<int>(options.rootRank), communicator_, work->add()),
                      "broadcast");
        });
        return work;
    }

    /// Sends messages only between ranks that have data for each other.
    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows,
                                           std::vector<std::int64_t>& in_rows, const c10d::AllToAllOptions&) override
    {
        auto work = make_work(out);
        work->kept.push_back(in);
        const auto row_bytes = [](const at::Tensor& tensor) {
            return c10::multiply_integers(tensor.sizes().slice(1)) * static_cast<std::int64_t>(tensor.element_size());
        };
        const auto send = offsets_of(in_rows, row_bytes(in)), receive = offsets_of(out_rows, row_bytes(out));
        const auto tag = next_tag();
        for_each_other([&](int r) { post_receive(*work, out, receive[r], receive[r + 1], r, kLargest, tag); });
        for_each_other([&](int r) {
            for_each_chunk(send[r + 1] - send[r], kLargest, [&](std::int64_t offset, int count) {
                check_mpi(
                    MPI_Isend(bytes_of(in) + send[r] + offset, count, MPI_BYTE, r, tag, communicator_, work->add()),
                    "send");
            });
        });
        const auto me = getRank();
        std::memcpy(bytes_of(out) + receive[me], bytes_of(in) + send[me],
                    static_cast<std::size_t>(send[me + 1] - send[me]));
        return carried_on(std::move(work), send.back() + receive.back());
    }

    c10::intrusive_ptr<Work> exchange_rows(RowStream sent, const std::vector<std::int64_t>& send_bytes,
                                           const at::Tensor& received,
                                           const std::vector<std::int64_t>& receive_bytes) override
    {
        const auto send = offsets_of(send_bytes, 1), receive = offsets_of(receive_bytes, 1);
        const auto me = getRank();
        sent.read(send[me], send[me + 1] - send[me], bytes_of(received) + receive[me]);
        const auto tag = next_tag();
        const auto offset = neighbors_.memory ? neighbors_.memory->offset_of(received) : -1;
        auto work = c10::make_intrusive<MpiRows>(limit_, communicator_, tag, std::move(sent));
        work->kept.push_back(received);
        for_each_other([&](int r) {
            const bool is_direct = neighbors_.write_here[r] && receive_bytes[r] >= PeerMemory::kWorthwhileBytes;
            if (is_direct) work->send_target(r, offset < 0 ? -1 : offset + receive[r], receive_bytes[r]);
            if (!is_direct || offset < 0)
                post_receive(*work, received, receive[r], receive[r + 1], r, MpiRows::kChunk, tag);
        });
        for_each_other([&](int r) {
            if (neighbors_.views[r] && send_bytes[r] >= PeerMemory::kWorthwhileBytes)
                work->write(r, *neighbors_.views[r], send[r], send[r + 1]);
            else
                work->send(r, send[r], send[r + 1]);
        });
        work->isCompleted();  // starts to send the first chunks
        return carried_on(std::move(work), send.back() + receive.back());
    }

    at::Tensor empty_received(at::IntArrayRef sizes, const at::TensorOptions& options) override
    {
        return empty_for_peers(neighbors_.memory, sizes, options);
    }

    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions&) override
    {
        auto work = c10::make_intrusive<MpiRequests>(limit_, communicator_);
        check_mpi(MPI_Ibarrier(communicator_, work->add()), "barrier");
        return work;
    }

private:
    static constexpr std::int64_t kLargest = std::int64_t{1} << 30;  // MPI's counts have 32 bits
    // Messages of at least this size wake the progress thread.
    static constexpr std::int64_t kCarriedOn = std::int64_t{256} << 10;

    template <class F>
    static void for_each_chunk(std::int64_t n, std::int64_t largest, F&& f)
    {
        for (std::int64_t offset = 0; offset < n; offset += largest)
            f(offset, static_cast<int>(std::min(n - offset, largest)));
    }

    template <class F>
    void for_each_other(F&& f) const
    {
        for (int step = 1; step < getSize(); ++step) f((getRank() + step) % getSize());
    }

    static char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

    static std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& rows, std::int64_t row_bytes)
    {
        std::vector<std::int64_t> offsets{0};
        for (const auto count : rows) offsets.push_back(offsets.back() + count * row_bytes);
        return offsets;
    }

    /// Tag of an exchange's messages. Several exchanges may be in progress at once, and only messages with the same tag
    /// are guaranteed to keep their order. All ranks start exchanges in the same order.
    int next_tag() { return 1 + 2 * static_cast<int>(num_exchanges_++ % kNumTags); }

    static void post_receive(MpiRequests& work, const at::Tensor& out, std::int64_t begin, std::int64_t end, int rank,
                             std::int64_t largest, int tag)
    {
        for_each_chunk(end - begin, largest, [&](std::int64_t offset, int count) {
            work.receive(bytes_of(out) + begin + offset, count, rank, tag);
        });
    }

    c10::intrusive_ptr<MpiRequests> make_work(const at::Tensor& tensor) const
    {
        if (!tensor.is_contiguous()) throw std::runtime_error("MPI: the tensor is not contiguous");
        if (!tensor.device().is_cpu()) throw std::runtime_error("MPI: the tensor is not on the CPU");
        auto work = c10::make_intrusive<MpiRequests>(limit_, communicator_);
        work->kept.push_back(tensor);
        return work;
    }

    c10::intrusive_ptr<Work> carried_on(c10::intrusive_ptr<MpiRequests> work, std::int64_t bytes) const
    {
        if (progress_ && bytes >= kCarriedOn) progress_->add(work);
        return work;
    }

    MPI_Comm communicator_;
    std::int64_t num_exchanges_ = 0;
    std::chrono::milliseconds limit_;
    Neighborhood neighbors_;
    std::shared_ptr<MpiProgress> progress_;
};

class MpiWorld : public World {
public:
    MpiWorld(double timeout_seconds, c10::DeviceType device)
        : device_(device), limit_(static_cast<std::int64_t>(timeout_seconds * 1000))
    {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &size_);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        int level = MPI_THREAD_SINGLE;
        MPI_Query_thread(&level);
        if (level == MPI_THREAD_MULTIPLE) progress_ = std::make_shared<MpiProgress>();
        neighbors_ = Neighborhood::find();
    }

    // Without `finish`, MPI is not finalised: mpirun then detects an abnormal end and stops the other ranks.
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    std::string backend_name() const override { return "mpi"; }

    RankGroup make_group(const std::vector<int>& ranks, const std::string& axis,
                         std::shared_ptr<CommCounter> counter) override
    {
        if (ranks.size() == 1) return RankGroup(nullptr, axis, std::move(counter));
        const auto index = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
        MPI_Group everyone, members;
        MPI_Comm communicator;
        MPI_Comm_group(MPI_COMM_WORLD, &everyone);
        check_mpi(MPI_Group_incl(everyone, static_cast<int>(ranks.size()), ranks.data(), &members), "group");
        // Collective over its members only.
        check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, members, num_groups_++, &communicator), "group");
        MPI_Group_free(&members);
        MPI_Group_free(&everyone);
        MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
        c10::intrusive_ptr<c10d::Backend> backend = c10::make_intrusive<MpiBackend>(
            communicator, index, static_cast<int>(ranks.size()), limit_, neighbors_.of(ranks), progress_);
        if (device_ != c10::DeviceType::CPU) backend = by_way_of_host(std::move(backend));
        return RankGroup(std::move(backend), axis, std::move(counter));
    }

    void finish() override
    {
        MPI_Barrier(MPI_COMM_WORLD);
        if (progress_) progress_->stop();
        MPI_Finalize();  // also frees the remaining communicators
    }

private:
    int rank_ = 0;
    int size_ = 1;
    int num_groups_ = 0;
    c10::DeviceType device_;
    std::chrono::milliseconds limit_;
    Neighborhood neighbors_;
    std::shared_ptr<MpiProgress> progress_;
};

/// A guard that ends this process with a message after some seconds: MPI_Init waits without a limit for ranks that
/// never call it.
class TimeLimit {
public:
    explicit TimeLimit(double seconds) : before_(std::signal(SIGALRM, end))
    {
        alarm(static_cast<unsigned>(std::clamp(seconds, 1.0, 1e9)));
    }
    ~TimeLimit()
    {
        alarm(0);
        std::signal(SIGALRM, before_);
    }
    TimeLimit(const TimeLimit&) = delete;
    TimeLimit& operator=(const TimeLimit&) = delete;

private:
    static void end(int)
    {
        constexpr std::string_view kText =
            "meshard: other ranks of this run did not come to MPI within MESHARD_TIMEOUT_SECONDS (300 unless set). See "
            "their own "
            "messages. Were they started with a verb that runs on one rank, or with MESHARD_LAUNCH=single?\n";
        [[maybe_unused]] const auto written = write(STDERR_FILENO, kText.data(), kText.size());
        _exit(kExitOfMissingRank);
    }

    static constexpr int kExitOfMissingRank = 5;
    void (*before_)(int);
};

}  // namespace

std::unique_ptr<World> connect_mpi(const LaunchInfo& info, double timeout_seconds, c10::DeviceType device,
                                   const Facts& facts)
{
    const TimeLimit limit(timeout_seconds);
    int initialized = 0, level = 0, size = 0;
    MPI_Initialized(&initialized);
    if (!initialized) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != info.size) {
        MPI_Finalize();  // MPI does not know the launcher: every rank would be alone
        return nullptr;
    }
    try {
        check_agreement(*ranks_of_this_run(), facts);
    } catch (const RanksDisagree&) {
        MPI_Finalize();  // an orderly end, so that mpirun passes on the message of the rank that reports the error
        if (info.rank > 0) throw FailedElsewhere();
        throw;
    }
    return std::make_unique<MpiWorld>(timeout_seconds, device);
}

}  // namespace meshard
