// SPDX-License-Identifier: Apache-2.0
#include "sharding/messages/rank_messages.h"

#include <cstdlib>

#ifdef MESHARD_WITH_MPI
// MPI's C++ bindings, removed from the standard, would need a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

namespace meshard {

namespace {

bool is_started_with_others()
{
#ifdef MESHARD_WITH_MPI
    int is_initialized = 0;
    MPI_Initialized(&is_initialized);
    if (is_initialized != 0) return true;
#endif
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE"})
        if (const char* size = std::getenv(name); size != nullptr && std::atoi(size) > 1) return true;
    return false;
}

#ifdef MESHARD_WITH_MPI

class MpiMessages : public RankMessages {
public:
    MpiMessages()
    {
        int is_initialized = 0;
        MPI_Initialized(&is_initialized);
        begins_ = is_initialized == 0;
        if (begins_ && MPI_Init(nullptr, nullptr) != MPI_SUCCESS)
            throw CommunicationError("MPI cannot be started. Was the program started by mpirun?");
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &size_);
    }
    ~MpiMessages() override
    {
        if (begins_) MPI_Finalize();
    }
    MpiMessages(const MpiMessages&) = delete;
    MpiMessages& operator=(const MpiMessages&) = delete;

    int rank() const override { return rank_; }
    int size() const override { return size_; }

    std::vector<Bytes> exchange(std::vector<Bytes> to) override
    {
        std::vector<std::int64_t> sizes(size_);
        for (int r = 0; r < size_; ++r) sizes[r] = std::ssize(to[r]);
        const auto found = exchange_sizes(sizes);
        for (const auto size : found)
            if (size < 0) throw FailedElsewhere();

        // MPI's counts have 32 bits, so that long messages are sent in runs.
        constexpr std::int64_t run = std::int64_t{1} << 30;
        std::vector<Bytes> received(size_);
        std::vector<MPI_Request> requests;
        for (int r = 0; r < size_; ++r) {
            received[r].resize(found[r]);
            if (r == rank_) continue;
            for (std::int64_t at = 0; at < found[r]; at += run)
                MPI_Irecv(received[r].data() + at, static_cast<int>(std::min(run, found[r] - at)), MPI_BYTE, r, 0,
                          MPI_COMM_WORLD, &requests.emplace_back());
        }
        for (int r = 0; r < size_; ++r)
            for (std::int64_t at = 0; r != rank_ && at < sizes[r]; at += run)
                MPI_Isend(to[r].data() + at, static_cast<int>(std::min(run, sizes[r] - at)), MPI_BYTE, r, 0,
                          MPI_COMM_WORLD, &requests.emplace_back());
        received[rank_] = std::move(to[rank_]);
        if (MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            throw CommunicationError("a message between ranks did not arrive; is a rank dead?");
        return received;
    }

    bool fail() noexcept override
    {
        try {
            const auto found = exchange_sizes(std::vector<std::int64_t>(size_, -1));
            for (int r = 0; r < rank_; ++r)
                if (found[r] < 0) return false;
        } catch (...) {
            // The other ranks cannot be reached: the caller reports the first error.
        }
        return true;
    }

private:
    std::vector<std::int64_t> exchange_sizes(const std::vector<std::int64_t>& sizes) const
    {
        std::vector<std::int64_t> found(size_);
        if (MPI_Alltoall(sizes.data(), 1, MPI_INT64_T, found.data(), 1, MPI_INT64_T, MPI_COMM_WORLD) != MPI_SUCCESS)
            throw CommunicationError("ranks cannot reach each other; is one dead?");
        return found;
    }

    bool begins_ = false;  // whether this object has initialised MPI, and must finalise it
    int rank_ = 0, size_ = 1;
};

#endif

}  // namespace

std::unique_ptr<RankMessages> ranks_of_this_run()
{
    if (!is_started_with_others()) return std::make_unique<RankMessages>();
#ifdef MESHARD_WITH_MPI
    return std::make_unique<MpiMessages>();
#else
    throw CommunicationError("started with several ranks, but this build has no MPI, as no wheel has. Start one "
                             "process, or build meshard from source with libopenmpi-dev.");
#endif
}

}  // namespace meshard
