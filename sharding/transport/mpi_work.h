// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// MPI's C++ bindings, removed from the standard, would need a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "sharding/ranks/row_stream.h"
#include "sharding/transport/peer_memory.h"
#include "sharding/transport/progress_thread.h"

#include <mpi.h>

namespace meshard {

/// @throws std::runtime_error with MPI's own message unless the code is MPI_SUCCESS
void check_mpi(int code, const char* what);

/// Which ranks of this machine can write to each other's memory.
struct Neighborhood {
    std::shared_ptr<PeerMemory> memory;  ///< this rank's memory; may be null
    /// Indexed by rank; null if this rank cannot write to that rank's memory.
    std::vector<std::shared_ptr<const PeerView>> views;
    std::vector<bool> write_here;  ///< indexed by rank: whether that rank can write to `memory`

    /// Finds the neighbourhood of all ranks of the run. Collective over them.
    static Neighborhood find();
    Neighborhood of(const std::vector<int>& ranks) const;
};

/// A collective that has been started and not finished. The thread that waits for it, or the progress thread, calls
/// `advance`.
class MpiWork : public c10d::Work {
public:
    MpiWork(std::chrono::milliseconds limit, MPI_Comm communicator) : communicator_(communicator), limit_(limit) {}

    bool isCompleted() override;
    bool wait(std::chrono::milliseconds timeout) override;

    /// Called by the progress thread: does one step, and returns whether that thread has nothing left to do for this
    /// collective (it is done, has failed, or another thread waits for it).
    bool can_be_left() noexcept;

protected:
    /// Does what is possible without waiting; returns true when all is done.
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

/// Tag of the empty message that a rank sends when it leaves its group.
constexpr int kFarewellTag = 0;

/// MPI requests, and the tensors that must outlive them.
class MpiRequests : public MpiWork {
public:
    using MpiWork::MpiWork;

    MPI_Request* add() { return &requests_.emplace_back().request; }

    /// Receives exactly `bytes` bytes; a message of another size is an error.
    void receive(void* to, int bytes, int rank, int tag);

    std::vector<at::Tensor> kept;

protected:
    bool advance() override;

private:
    struct Request {
        MPI_Request request = MPI_REQUEST_NULL;
        int bytes = -1;  // expected number; negative: not checked
    };
    std::deque<Request> requests_;  // a deque: pointers to its elements stay valid
    std::size_t next_ = 0;
};

/// Sends rows to each rank. For a rank of this machine they are written directly into its receive buffer, after it has
/// sent the buffer's offset. For others they are sent in chunks that fit the cache: each is gathered into one of a few
/// buffers and sent; a chunk that is contiguous in memory is sent without a copy.
class MpiRows : public MpiRequests {
public:
    static constexpr std::int64_t kChunk = std::int64_t{1} << 19;

    /// @param tag   tag of the messages with rows; messages with target offsets have tag + 1
    MpiRows(std::chrono::milliseconds limit, MPI_Comm communicator, int tag, RowStream sent)
        : MpiRequests(limit, communicator), tag_(tag), sent_(std::move(sent))
    {
    }

    /// Sends bytes `begin` ... `end - 1` of the stream in chunks.
    void send(int rank, std::int64_t begin, std::int64_t end);

    /// Writes the bytes into the rank's memory once that rank has sent its offset; sends them in chunks if the offset
    /// is -1 (no such memory).
    void write(int rank, const PeerView& view, std::int64_t begin, std::int64_t end);

    /// Sends a rank the offset in this rank's PeerMemory to which it must write (-1: it must send instead), and the
    /// number of bytes expected.
    void send_target(int rank, std::int64_t offset, std::int64_t bytes);

protected:
    bool advance() override;

private:
    // A smaller message has a slot of its own, since nothing carries it on before its rank waits for it.
    static constexpr std::int64_t kOwnSlot = std::int64_t{64} << 10;
    // Bytes written in one call, so that other requests proceed in between.
    static constexpr std::int64_t kPiece = std::int64_t{4} << 20;

    struct Chunk {
        int rank;
        std::int64_t begin, count;
    };
    struct Slot {
        std::vector<char> bytes;
        MPI_Request request = MPI_REQUEST_NULL;
    };
    struct Target {
        std::int64_t offset = 0, bytes = 0;
    };
    struct Written {
        int rank;
        const PeerView& view;
        std::int64_t begin, end;
        Target target = {};
        MPI_Request request = MPI_REQUEST_NULL;
    };

    bool advance(Written& written);
    bool advance(Slot& slot);

    int tag_;
    RowStream sent_;
    std::deque<Chunk> chunks_;
    std::vector<Slot> slots_ = std::vector<Slot>(4);
    std::deque<Written> written_;  // a deque: pointers to its elements stay valid
    std::deque<Target> targets_;
};

/// Collectives that the progress thread advances while the program computes.
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
