// SPDX-License-Identifier: Apache-2.0
#include "sharding/mpi_backend.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

// MPI's C++ bindings, long withdrawn, would want a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "partition/error.h"

namespace meshard {
namespace {

using c10d::Work;

void check(int code, const char* what)
{
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw std::runtime_error(std::string(what) + ": " + std::string(text, length));
}

MPI_Datatype mpi_type(at::ScalarType type)
{
    switch (type) {
    case at::kFloat: return MPI_FLOAT;
    case at::kDouble: return MPI_DOUBLE;
    case at::kInt: return MPI_INT32_T;
    case at::kLong: return MPI_INT64_T;
    case at::kShort: return MPI_INT16_T;
    case at::kChar: return MPI_INT8_T;
    case at::kByte:
    case at::kBool: return MPI_UINT8_T;
    default: throw std::runtime_error(std::string("MPI cannot reduce values of type ") + at::toString(type) + "; convert to float");
    }
}

MPI_Op mpi_op(const c10d::ReduceOp& op)
{
    if (op == c10d::ReduceOp::SUM) return MPI_SUM;
    if (op == c10d::ReduceOp::MAX) return MPI_MAX;
    if (op == c10d::ReduceOp::MIN) return MPI_MIN;
    throw std::runtime_error("MPI: unknown reduction");
}

/// Requests under way, with all that must outlive them.
class MpiWork : public Work {
public:
    explicit MpiWork(std::chrono::milliseconds limit) : limit_(limit) {}

    MPI_Request* add()
    {
        requests_.push_back(MPI_REQUEST_NULL);
        return &requests_.back();
    }

    void reserve(std::size_t n) { requests_.reserve(n); }   // so that addresses given out stay valid

    bool isCompleted() override
    {
        int done = 0;
        check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE), "test");
        return done != 0;
    }

    bool wait(std::chrono::milliseconds timeout) override
    {
        const auto limit = timeout > std::chrono::milliseconds(0) ? timeout : limit_;
        const auto deadline = std::chrono::steady_clock::now() + limit;
        for (std::int64_t spin = 0; !isCompleted(); ++spin) {
            if (spin % 64 == 63) sched_yield();   // ranks may be more than cores
            if (spin % 4096 == 4095 && std::chrono::steady_clock::now() > deadline) {
                throw std::runtime_error("no answer within " + std::to_string(limit.count() / 1000) + " s");
            }
        }
        return true;
    }

    std::vector<at::Tensor> kept;
    std::vector<int> counts;   // all-to-all: send counts, send offsets, receive counts, receive offsets

private:
    std::chrono::milliseconds limit_;
    std::vector<MPI_Request> requests_;
};

class MpiBackend : public c10d::Backend {
public:
    MpiBackend(MPI_Comm communicator, int rank, int size, std::chrono::milliseconds limit)
        : Backend(rank, size), communicator_(communicator), limit_(limit)
    {
    }

    const std::string getBackendName() const override { return "mpi"; }

    c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override
    {
        auto& tensor = tensors[0];
        auto work = make_work(tensor, chunks(tensor.numel()));
        for_each_chunk(tensor.numel(), [&](std::int64_t offset, int count) {
            auto* data = static_cast<char*>(tensor.data_ptr()) + offset * static_cast<std::int64_t>(tensor.element_size());
            check(MPI_Iallreduce(MPI_IN_PLACE, data, count, mpi_type(tensor.scalar_type()), mpi_op(options.reduceOp), communicator_, work->add()),
                  "all-reduce");
        });
        return work;
    }

    c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override
    {
        auto& tensor = tensors[0];
        const auto bytes = tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
        auto work = make_work(tensor, chunks(bytes));
        for_each_chunk(bytes, [&](std::int64_t offset, int count) {
            check(MPI_Ibcast(static_cast<char*>(tensor.data_ptr()) + offset, count, MPI_BYTE, static_cast<int>(options.rootRank), communicator_,
                             work->add()),
                  "broadcast");
        });
        return work;
    }

    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows, std::vector<std::int64_t>& in_rows,
                                           const c10d::AllToAllOptions&) override
    {
        const auto n = static_cast<std::size_t>(getSize());
        auto work = make_work(out, 1);
        work->kept.push_back(in);
        work->counts.resize(4 * n);
        const auto row_bytes = [](const at::Tensor& tensor) {
            return c10::multiply_integers(tensor.sizes().slice(1)) * static_cast<std::int64_t>(tensor.element_size());
        };
        fill_counts(in_rows, row_bytes(in), work->counts.data());
        fill_counts(out_rows, row_bytes(out), work->counts.data() + 2 * n);
        const int* counts = work->counts.data();
        check(MPI_Ialltoallv(in.data_ptr(), counts, counts + n, MPI_BYTE, out.data_ptr(), counts + 2 * n, counts + 3 * n, MPI_BYTE, communicator_,
                             work->add()),
              "all-to-all");
        return work;
    }

    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions&) override
    {
        auto work = c10::make_intrusive<MpiWork>(limit_);
        work->reserve(1);
        check(MPI_Ibarrier(communicator_, work->add()), "barrier");
        return work;
    }

private:
    static constexpr std::int64_t kLargest = std::numeric_limits<int>::max();   // MPI counts in 32 bits

    static std::size_t chunks(std::int64_t n) { return static_cast<std::size_t>((n + kLargest - 1) / kLargest); }

    template <class F>
    static void for_each_chunk(std::int64_t n, F&& f)
    {
        for (std::int64_t offset = 0; offset < n; offset += kLargest) f(offset, static_cast<int>(std::min(n - offset, kLargest)));
    }

    c10::intrusive_ptr<MpiWork> make_work(const at::Tensor& tensor, std::size_t num_requests) const
    {
        if (!tensor.is_contiguous()) throw std::runtime_error("MPI: the tensor is not contiguous");
        if (!tensor.device().is_cpu()) throw std::runtime_error("MPI: the tensor is not on the CPU");
        auto work = c10::make_intrusive<MpiWork>(limit_);
        work->reserve(num_requests);
        work->kept.push_back(tensor);
        return work;
    }

    void fill_counts(const std::vector<std::int64_t>& rows, std::int64_t row_bytes, int* counts) const
    {
        const auto n = static_cast<std::size_t>(getSize());
        std::int64_t offset = 0;
        for (std::size_t r = 0; r < n; ++r) {
            if (offset + rows[r] * row_bytes > kLargest) {
                throw std::runtime_error("an all-to-all of more than 2 GiB a rank; use Gloo (MESHARD_BACKEND=gloo)");
            }
            counts[r] = static_cast<int>(rows[r] * row_bytes);
            counts[n + r] = static_cast<int>(offset);
            offset += rows[r] * row_bytes;
        }
    }

    MPI_Comm communicator_;
    std::chrono::milliseconds limit_;
};

class MpiWorld : public World {
public:
    explicit MpiWorld(double timeout_seconds) : limit_(static_cast<std::int64_t>(timeout_seconds * 1000))
    {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &size_);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }

    // Without `finish` MPI is left as it is: mpirun then sees an abnormal end and stops the other ranks.
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    std::string backend_name() const override { return "mpi"; }

    RankGroup make_group(const std::vector<int>& ranks, const std::string& name, const std::string& axis,
                         std::shared_ptr<CommCounter> counter) override
    {
        (void)name;
        if (ranks.size() == 1) return RankGroup(nullptr, axis, std::move(counter));
        const auto index = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
        MPI_Group everyone, members;
        MPI_Comm communicator;
        MPI_Comm_group(MPI_COMM_WORLD, &everyone);
        check(MPI_Group_incl(everyone, static_cast<int>(ranks.size()), ranks.data(), &members), "group");
        check(MPI_Comm_create_group(MPI_COMM_WORLD, members, num_groups_++, &communicator), "group");   // by its members only
        MPI_Group_free(&members);
        MPI_Group_free(&everyone);
        MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
        return RankGroup(c10::make_intrusive<MpiBackend>(communicator, index, static_cast<int>(ranks.size()), limit_), axis, std::move(counter));
    }

    void finish() override
    {
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Finalize();   // frees the communicators that are left
    }

private:
    int rank_ = 0;
    int size_ = 1;
    int num_groups_ = 0;
    std::chrono::milliseconds limit_;
};

}  // namespace

std::unique_ptr<World> connect_mpi(const LaunchInfo& info, double timeout_seconds)
{
    int initialized = 0, level = 0, size = 0;
    MPI_Initialized(&initialized);
    if (!initialized) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != info.size) {
        MPI_Finalize();   // a launcher that MPI does not know: every rank would be alone
        return nullptr;
    }
    return std::make_unique<MpiWorld>(timeout_seconds);
}

}  // namespace meshard
