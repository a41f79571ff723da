// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

// MPI's C++ bindings, long withdrawn, would want a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "sharding/transport/peer_memory.h"
#include "sharding/transport/progress_thread.h"
#include "sharding/ranks/row_stream.h"

namespace meshard {

/// @throws std::runtime_error with MPI's own words unless the code is MPI_SUCCESS
void check_mpi(int code, const char* what);

/// Ranks of one machine, which can write to each other's memory.
struct Neighborhood {
    std::shared_ptr<PeerMemory> memory;                   ///< of this rank; may be null
    std::vector<std::shared_ptr<const PeerView>> views;   ///< by rank; null where this rank cannot write
    std::vector<bool> write_here;                         ///< by rank: whether it can write to `memory`

    /// Of all ranks. Collective.
    static Neighborhood find();
    Neighborhood of(const std::vector<int>& ranks) const;
};

/// A collective under way. The thread that waits for it, or the progress thread, calls `advance`.
class MpiWork : public c10d::Work {
public:
    MpiWork(std::chrono::milliseconds limit, MPI_Comm communicator) : communicator_(communicator), limit_(limit) {}

    bool isCompleted() override;
    bool wait(std::chrono::milliseconds timeout) override;

    /// For the progress thread: true if there is nothing left for it to do.
    bool can_be_left() noexcept;

protected:
    /// Does what can be done without waiting; true when all is done.
    virtual bool advance() = 0;

    MPI_Comm communicator_;

private:
    void go_on() noexcept;
    std::string who_has_left() const;

    std::chrono::milliseconds limit_;
    std::mutex mutex_;
    std::atomic<bool> is_waited_for_{false};
    bool is_done_ = false;
    std::string failure_;
};

/// Of an empty message from a rank that has left its group.
constexpr int kFarewellTag = 0;

/// Requests, with all that must outlive them.
class MpiRequests : public MpiWork {
public:
    using MpiWork::MpiWork;

    MPI_Request* add() { return &requests_.emplace_back().request; }

    /// For so many bytes, no fewer.
    void receive(void* to, int bytes, int rank, int tag);

    std::vector<at::Tensor> kept;

protected:
    bool advance() override;

private:
    struct Request {
        MPI_Request request = MPI_REQUEST_NULL;
        int bytes = -1;   // that are to be received
    };
    std::deque<Request> requests_;   // addresses given out stay valid
    std::size_t next_ = 0;
};

/// Rows to each rank. On this machine they are written where that rank wants them, which it says in a message of its own. Else they go in chunks that stay in
/// the cache: picked out, sent, and their memory used again; rows that lie in a row are sent from where they lie.
class MpiRows : public MpiRequests {
public:
    static constexpr std::int64_t kChunk = std::int64_t{1} << 19;

    /// @param tag   of its messages; that after it is of places
    MpiRows(std::chrono::milliseconds limit, MPI_Comm communicator, int tag, RowStream sent)
        : MpiRequests(limit, communicator), tag_(tag), sent_(std::move(sent))
    {
    }

    /// Bytes `begin` ... `end - 1` of the stream, in chunks.
    void send(int rank, std::int64_t begin, std::int64_t end);

    /// The same straight to its memory, once the rank has said where; in chunks if nowhere.
    void write(int rank, const PeerView& view, std::int64_t begin, std::int64_t end);

    /// Says to a rank where it is to write, and how many bytes are expected; -1 for nowhere.
    void tell_place(int rank, std::int64_t place, std::int64_t bytes);

protected:
    bool advance() override;

private:
    static constexpr std::int64_t kPiece = std::int64_t{4} << 20;   // and others get their turn

    struct Chunk {
        int rank;
        std::int64_t begin, count;
    };
    struct Slot {
        std::vector<char> bytes;
        MPI_Request request = MPI_REQUEST_NULL;
    };
    struct Place {
        std::int64_t place = 0, bytes = 0;
    };
    struct Written {
        int rank;
        const PeerView& view;
        std::int64_t begin, end;
        Place told = {};
        MPI_Request request = MPI_REQUEST_NULL;
    };

    bool advance(Written& written);
    bool advance(Slot& slot);

    int tag_;
    RowStream sent_;
    std::deque<Chunk> chunks_;
    std::array<Slot, 4> slots_;
    std::deque<Written> written_;   // addresses given out stay valid
    std::deque<Place> places_;
};

/// Works that go on while the program computes.
class MpiProgress {
public:
    void add(c10::intrusive_ptr<MpiWork> work);
    void stop() { thread_.stop(); }

private:
    bool step();

    std::mutex mutex_;
    std::deque<c10::intrusive_ptr<MpiWork>> works_;
    ProgressThread thread_{[this] { return step(); }};
};

}  // namespace meshard
