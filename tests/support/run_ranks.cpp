// SPDX-License-Identifier: Apache-2.0
#include "tests/support/run_ranks.h"

#include "partition/error.h"
#include "sharding/transport/launch.h"
#include "tests/support/checking_backend.h"
#include "tests/support/standin/standin.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

namespace meshard {
namespace {

using c10d::Work;

struct Done : Work {
    bool isCompleted() override { return true; }
    bool wait(std::chrono::milliseconds) override { return true; }
};

/// MKL chooses kernels for vectors of exponentials and sines in a process' first calls; ranks that made them at one
/// time would differ in the last bit.
void choose_vector_kernels()
{
    static const bool done = [] {
        const auto numbers = at::linspace(0, 1, 1024, at::kFloat);
        for (const auto& values : {numbers, numbers.to(at::kDouble)}) values.exp().sin().cos().log().tanh().erf();
        return true;
    }();
    static_cast<void>(done);
}

/// Where the ranks of one group meet.
class Hub {
public:
    explicit Hub(int size) : tensors_(size), splits_(size) {}

    using Splits = std::vector<std::vector<std::int64_t>>;

    /// Shows every rank's tensor to `read`, on every rank, between two meetings of all.
    void meet(int rank, const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
              const std::function<void(const std::vector<at::Tensor>&, const Splits&)>& read)
    {
        {
            const std::lock_guard lock(mutex_);
            tensors_[rank] = tensor;
            splits_[rank] = splits;
        }
        arrive();
        read(tensors_, splits_);
        arrive();
    }

    void abort()
    {
        const std::lock_guard lock(mutex_);
        aborted_ = true;
        changed_.notify_all();
    }

private:
    void arrive()
    {
        std::unique_lock lock(mutex_);
        const auto round = round_;
        if (++arrived_ == tensors_.size()) {
            arrived_ = 0;
            ++round_;
            changed_.notify_all();
            return;
        }
        const bool in_time =
            changed_.wait_for(lock, std::chrono::seconds(60), [&] { return aborted_ || round != round_; });
        if (aborted_ && round == round_) throw std::runtime_error("another rank has failed");
        if (!in_time) throw std::runtime_error("timed out: the ranks do not call the same collectives");
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<at::Tensor> tensors_;
    std::vector<std::vector<std::int64_t>> splits_;
    std::size_t arrived_ = 0;
    std::uint64_t round_ = 0;
    bool aborted_ = false;
};

/// Of the types that shared memory, MPI and Gloo all carry those that all of them add, alike.
bool is_added_by_all(at::ScalarType type)
{
    const auto all = {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kChar, at::kByte};
    return std::find(all.begin(), all.end(), type) != all.end();
}

/// What one of the real transports would not take, none may be given.
void require(bool holds, const std::string& what)
{
    if (!holds) throw std::runtime_error("threads: " + what);
}

void require_carried(const at::Tensor& tensor)
{
    require(tensor.is_contiguous(), "the tensor is not contiguous");
    require(is_added_by_all(tensor.scalar_type()) || tensor.scalar_type() == at::kHalf,
            std::string("values of type ") + at::toString(tensor.scalar_type()) + " are not carried");
}

class ThreadBackend : public c10d::Backend {
public:
    ThreadBackend(std::shared_ptr<Hub> hub, int rank, int size) : Backend(rank, size), hub_(std::move(hub)) {}
    const std::string getBackendName() const override { return "threads"; }
    void abort() override { hub_->abort(); }

    c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override
    {
        require_carried(tensors[0]);
        require(is_added_by_all(tensors[0].scalar_type()),
                std::string("values of type ") + at::toString(tensors[0].scalar_type()) + " are not reduced");
        at::Tensor result;
        hub_->meet(getRank(), tensors[0], {}, [&](const auto& all, const auto&) {
            for (const auto& other : all)
                require(other.numel() == all[0].numel() && other.dtype() == all[0].dtype(),
                        "the ranks reduce tensors of several sizes or types");
            result = all[0].clone();
            for (int r = 1; r < getSize(); ++r) {
                if (options.reduceOp == c10d::ReduceOp::SUM)
                    result.add_(all[r]);
                else if (options.reduceOp == c10d::ReduceOp::MAX)
                    result = at::maximum(result, all[r]);
                else if (options.reduceOp == c10d::ReduceOp::MIN)
                    result = at::minimum(result, all[r]);
                else
                    throw std::runtime_error("threads: unknown reduction");
            }
        });
        tensors[0].copy_(result.view(tensors[0].sizes()));
        return c10::make_intrusive<Done>();
    }

    c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override
    {
        require_carried(tensors[0]);
        hub_->meet(getRank(), tensors[0], {}, [&](const auto& all, const auto&) {
            const auto& sent = all[options.rootRank];
            require(sent.nbytes() == tensors[0].nbytes(), "a tensor of another size is broadcast");
            if (getRank() != options.rootRank) tensors[0].view({-1}).copy_(sent.view({-1}));
        });
        return c10::make_intrusive<Done>();
    }

    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_splits,
                                           std::vector<std::int64_t>& in_splits, const c10d::AllToAllOptions&) override
    {
        require_carried(in);
        require_carried(out);
        const auto fits = [this](const at::Tensor& rows, const std::vector<std::int64_t>& splits) {
            return static_cast<int>(splits.size()) == getSize() &&
                   std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) == rows.size(0);
        };
        require(fits(in, in_splits) && fits(out, out_splits) && in.dtype() == out.dtype(),
                "rows for all-to-all that do not fit their counts, or of two types");
        hub_->meet(getRank(), in, in_splits, [&](const auto& all, const auto& splits) {
            std::int64_t offset = 0;
            const auto row_bytes = [](const at::Tensor& rows) {
                return c10::multiply_integers(rows.sizes().slice(1)) * static_cast<std::int64_t>(rows.element_size());
            };
            for (int r = 0; r < getSize(); ++r) {
                const auto start = std::accumulate(splits[r].begin(), splits[r].begin() + getRank(), std::int64_t{0});
                require(splits[r][getRank()] * row_bytes(all[r]) == out_splits[r] * row_bytes(out),
                        "all-to-all sizes disagree");
                out.narrow(0, offset, out_splits[r]).copy_(all[r].narrow(0, start, out_splits[r]));
                offset += out_splits[r];
            }
        });
        return c10::make_intrusive<Done>();
    }

    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions&) override
    {
        hub_->meet(getRank(), at::Tensor(), {}, [](const auto&, const auto&) {});
        return c10::make_intrusive<Done>();
    }

private:
    std::shared_ptr<Hub> hub_;
};

/// All hubs of a run, by group name.
class Hubs {
public:
    std::shared_ptr<Hub> get(const std::string& name, int size)
    {
        const std::lock_guard lock(mutex_);
        auto& hub = hubs_[name];
        if (!hub) hub = std::make_shared<Hub>(size);
        return hub;
    }
    void abort()
    {
        const std::lock_guard lock(mutex_);
        for (auto& [name, hub] : hubs_) hub->abort();
    }

private:
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<Hub>> hubs_;
};

thread_local std::optional<at::Generator> generator_here;

class ThreadRank : public GroupFactory {
public:
    ThreadRank(Hubs& hubs, int rank, int size) : hubs_(hubs), rank_(rank), size_(size) {}
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    RankGroup make_group(const std::vector<int>& ranks, const std::string& axis,
                         std::shared_ptr<CommCounter> counter) override
    {
        const auto size = static_cast<int>(ranks.size());
        if (size == 1) return RankGroup(nullptr, axis, std::move(counter));
        const auto index = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
        const auto key = fmt::format("{}#{}", fmt::join(ranks, ","), num_made_[ranks]++);
        const auto* const device = loaded_standin();
        auto backend = checked(c10::make_intrusive<ThreadBackend>(hubs_.get(key, size), index, size),
                               device ? device->as_host : nullptr);
        return RankGroup(std::move(backend), axis, std::move(counter));
    }

    std::optional<at::Generator> generator() const override { return generator_here; }

private:
    Hubs& hubs_;
    int rank_;
    int size_;
    std::map<std::vector<int>, int> num_made_;
};

/// Ranks take the devices in turn: each has its own where there are enough.
void take_device(int rank)
{
    const auto type = at::getAccelerator();
    if (type && at::accelerator::deviceCount() > 0)
        at::accelerator::setDeviceIndex(static_cast<c10::DeviceIndex>(rank % at::accelerator::deviceCount()));
}

/// Null unless this process is one of several ranks.
World* processes()
{
    static const auto world = [] {
        const auto info = detect_launch();
        take_device(info.local_rank);
        return info.size > 1 ? World::connect(info, 60) : nullptr;
    }();
    return world.get();
}

int num_runs = 0;

/// Makes the calling thread a rank, with a device of its own where there are several. Backward, too, runs in this
/// thread: LibTorch has otherwise one thread for each device, and where ranks share that, a collective of one rank
/// would wait there for those of the others, which come after it.
void be_rank(int rank)
{
    at::set_num_threads(1);
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    take_device(rank);
}

}  // namespace

int num_runs_of_processes()
{
    return num_runs;
}

void finish_processes()
{
    if (auto* world = processes()) world->finish();
}

void run_ranks_of_factory(int n, const std::function<void(GroupFactory&)>& body)
{
    if (auto* world = processes(); world && n > 1) {
        if (n != world->size()) return;
        ++num_runs;
        return body(*world);
    }
    choose_vector_kernels();
    Hubs hubs;
    std::mutex mutex;
    std::exception_ptr first;
    bool first_is_consequence = false;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < n; ++rank) {
        threads.emplace_back([&, rank, generator = at::globalContext().defaultGenerator(at::kCPU).clone()] {
            be_rank(rank);
            generator_here = generator;
            try {
                ThreadRank factory(hubs, rank, n);
                body(factory);
            } catch (...) {
                const std::lock_guard lock(mutex);
                bool consequence = false;
                try {
                    throw;
                } catch (const CommunicationError&) {
                    consequence = true;
                } catch (...) {
                }
                if (!first || (first_is_consequence && !consequence)) {
                    first = std::current_exception();
                    first_is_consequence = consequence;
                }
                hubs.abort();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
}

void run_ranks(std::vector<std::int64_t> shape, std::vector<std::string> axis_names,
               const std::function<void(std::shared_ptr<const DeviceMesh>)>& body)
{
    const auto n = static_cast<int>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
    run_ranks_of_factory(n, [&](GroupFactory& factory) { body(DeviceMesh::create(factory, shape, axis_names)); });
}

at::Generator rank_generator()
{
    return generator_here ? *generator_here : at::globalContext().defaultGenerator(at::kCPU);
}

void run_ranks(int n, const std::function<void(std::shared_ptr<const DeviceMesh>)>& body)
{
    run_ranks({n}, {"domain"}, body);
}

}  // namespace meshard
