// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/mpi_work.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <sched.h>
#include <stdexcept>

namespace meshard {
namespace {

/// Returns whether the request is complete. @param bytes   number of bytes that it must have received; negative: not
/// checked
bool is_done(MPI_Request& request, int bytes = -1)
{
    if (request == MPI_REQUEST_NULL) return true;
    int done = 0, count = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&request, &done, &status), "test");
    if (done == 0 || bytes < 0) return done != 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (count != bytes) {
        throw std::runtime_error(fmt::format("rank {} sends {} bytes, expected {}", status.MPI_SOURCE, count, bytes));
    }
    return true;
}

}  // namespace

void check_mpi(int code, const char* what)
{
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw std::runtime_error(std::string(what) + ": " + std::string(text, length));
}

Neighborhood Neighborhood::find()
{
    int rank = 0, size = 0, num_here = 0;
    MPI_Comm here;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &here), "group");
    MPI_Comm_size(here, &num_here);
    Neighborhood found;
    found.memory = PeerMemory::create();
    found.views.resize(size);
    found.write_here.resize(size);
    struct Card {
        std::int64_t rank, has_memory;
        PeerMemory::Address address;
    };
    const Card own{rank, found.memory != nullptr, found.memory ? found.memory->address() : PeerMemory::Address{}};
    std::vector<Card> cards(num_here);
    check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, cards.data(), sizeof own, MPI_BYTE, here), "gather");
    std::vector<char> can_write(num_here), can_write_here(num_here);
    for (int i = 0; i < num_here; ++i) {
        auto& view = found.views[cards[i].rank];
        if (cards[i].rank != rank && cards[i].has_memory != 0) view = PeerView::open(cards[i].address);
        can_write[i] = view != nullptr;
    }
    check_mpi(MPI_Alltoall(can_write.data(), 1, MPI_CHAR, can_write_here.data(), 1, MPI_CHAR, here), "exchange");
    for (int i = 0; i < num_here; ++i) found.write_here[cards[i].rank] = can_write_here[i] != 0;
    MPI_Comm_free(&here);
    return found;
}

Neighborhood Neighborhood::of(const std::vector<int>& ranks) const
{
    Neighborhood found{memory, {}, {}};
    for (const int r : ranks) {
        found.views.push_back(views[r]);
        found.write_here.push_back(write_here[r]);
    }
    return found;
}

bool MpiWork::isCompleted()
{
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) go_on();
    if (!failure_.empty()) throw std::runtime_error(failure_);
    return is_done_;
}

void MpiWork::go_on() noexcept
{
    try {
        if (!is_done_) is_done_ = advance();
    } catch (const std::exception& error) {
        failure_ = error.what();  // stored, since a failed collective must not be advanced again
    }
}

bool MpiWork::wait(std::chrono::milliseconds timeout)
{
    is_waited_for_ = true;
    const auto limit = timeout > std::chrono::milliseconds(0) ? timeout : limit_;
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (std::int64_t spin = 0; !isCompleted(); ++spin) {
        if (spin % 64 == 63) sched_yield();  // there may be more ranks than cores
        if (spin % 4096 != 4095) continue;
        if (const auto who = who_has_left(); !who.empty()) {
            if (isCompleted()) return true;  // the rank may have sent everything before it left
            throw std::runtime_error(who);
        }
        if (std::chrono::steady_clock::now() > deadline)
            throw std::runtime_error(fmt::format("no answer within {} s", limit.count() / 1000));
    }
    return true;
}

std::string MpiWork::who_has_left() const
{
    int has_left = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, kFarewellTag, communicator_, &has_left, &status), "probe");
    return has_left ? fmt::format("rank {} has left", status.MPI_SOURCE) : "";
}

bool MpiWork::can_be_left() noexcept
{
    if (is_waited_for_) return true;
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) go_on();
    return is_done_ || !failure_.empty();
}

void MpiRequests::receive(void* to, int bytes, int rank, int tag)
{
    auto& added = requests_.emplace_back();
    added.bytes = bytes;
    check_mpi(MPI_Irecv(to, bytes, MPI_BYTE, rank, tag, communicator_, &added.request), "receive");
}

bool MpiRequests::advance()
{
    // In the order of their creation, so that each is tested only until it is done.
    for (; next_ < requests_.size(); ++next_) {
        if (!is_done(requests_[next_].request, requests_[next_].bytes)) return false;
    }
    return true;
}

void MpiRows::send(int rank, std::int64_t begin, std::int64_t end)
{
    if (begin < end && end - begin < kOwnSlot) {
        slots_.emplace_back();
        chunks_.push_front({rank, begin, end - begin});
        return;
    }
    for (; begin < end; begin += kChunk) chunks_.push_back({rank, begin, std::min(kChunk, end - begin)});
}

void MpiRows::write(int rank, const PeerView& view, std::int64_t begin, std::int64_t end)
{
    auto& written = written_.emplace_back(Written{rank, view, begin, end});
    check_mpi(
        MPI_Irecv(&written.target, sizeof written.target, MPI_BYTE, rank, tag_ + 1, communicator_, &written.request),
        "receive");
}

void MpiRows::send_target(int rank, std::int64_t offset, std::int64_t bytes)
{
    targets_.push_back({offset, bytes});
    check_mpi(MPI_Isend(&targets_.back(), sizeof(Target), MPI_BYTE, rank, tag_ + 1, communicator_, add()), "send");
    if (offset >= 0) receive(nullptr, 0, rank, tag_);  // the empty message that is sent when all is written
}

bool MpiRows::advance()
{
    bool all_sent = true;
    for (auto& written : written_) all_sent &= advance(written);
    for (auto& slot : slots_) all_sent &= advance(slot);
    return MpiRequests::advance() && all_sent;
}

/// Returns true when this rank has nothing left to write.
bool MpiRows::advance(Written& written)
{
    const bool had_target = written.request == MPI_REQUEST_NULL;
    if (!is_done(written.request)) return false;
    auto& offset = written.target.offset;
    // Writing more would overwrite what follows the target.
    if (!had_target && written.target.bytes != written.end - written.begin) {
        throw std::runtime_error(fmt::format("all_to_all: {} bytes are sent to rank {}, which expects {}",
                                             written.end - written.begin, written.rank, written.target.bytes));
    }
    if (!had_target && offset < 0) {
        send(written.rank, written.begin, written.end);
        written.begin = written.end;
    }
    if (written.begin == written.end) return true;
    const auto count = std::min(kPiece, written.end - written.begin);
    sent_.write_to_peer(written.begin, count, written.view.at(offset));
    written.begin += count;
    offset += count;
    if (written.begin < written.end) return false;
    // Signals that all is written.
    check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, written.rank, tag_, communicator_, add()), "send");
    return true;
}

/// Returns true when the buffer is free and no chunk is left.
bool MpiRows::advance(Slot& slot)
{
    if (is_done(slot.request) && !chunks_.empty()) {
        const auto [rank, begin, count] = chunks_.front();
        chunks_.pop_front();
        const auto* bytes = sent_.in_place(begin, count);
        if (!bytes) {
            slot.bytes.resize(count);
            sent_.read(begin, count, slot.bytes.data());
            bytes = slot.bytes.data();
        }
        check_mpi(MPI_Isend(bytes, static_cast<int>(count), MPI_BYTE, rank, tag_, communicator_, &slot.request),
                  "send");
    }
    return slot.request == MPI_REQUEST_NULL && chunks_.empty();
}

void MpiProgress::add(c10::intrusive_ptr<MpiWork> work)
{
    {
        const std::lock_guard lock(mutex_);
        works_.push_back(std::move(work));
    }
    thread_.wake();
}

bool MpiProgress::step()
{
    std::deque<c10::intrusive_ptr<MpiWork>> works;
    {
        const std::lock_guard lock(mutex_);
        works = works_;
    }
    for (const auto& work : works) {
        if (!work->can_be_left()) continue;
        const std::lock_guard lock(mutex_);
        std::erase(works_, work);
    }
    const std::lock_guard lock(mutex_);
    return !works_.empty();
}

}  // namespace meshard
