// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>

namespace meshard {

/// Memory of this process into which other processes of the machine can write, so that what they send is copied once: a file in memory, as large as the
/// machine's memory, of which only what is used takes any. What is given back is kept for the next tensor. May be used by several threads.
class PeerMemory : public std::enable_shared_from_this<PeerMemory> {
public:
    /// Numbers by which others find it: process, open file, and a token that says that it is the right one.
    using Address = std::array<std::int64_t, 3>;

    /// Null where the system has no such memory, or limits files to less (ulimit -f).
    static std::shared_ptr<PeerMemory> create();

    /// One for the whole process; null as above.
    static std::shared_ptr<PeerMemory> of_process();

    static constexpr std::int64_t kWorthwhileBytes = std::int64_t{256} << 10;   ///< from one rank to another, for which it pays to ask where they are wanted

    ~PeerMemory();
    PeerMemory(const PeerMemory&) = delete;
    PeerMemory& operator=(const PeerMemory&) = delete;

    Address address() const;

    /// On the CPU, not initialised; undefined if there is no room.
    at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options);

    /// Of a tensor's first byte, from the beginning; -1 if it lies elsewhere.
    std::int64_t place_of(const at::Tensor& tensor) const;

private:
    PeerMemory(int file, char* begin, std::int64_t size);
    void give_back(std::int64_t place, std::int64_t bytes);

    int file_;
    char* begin_;
    std::int64_t size_;
    std::mutex mutex_;
    std::map<std::int64_t, std::int64_t> free_;   // bytes by place; neighbours are joined
};

/// What others are to write to: in `memory` (may be null) if it pays and there is room, else as at::empty.
at::Tensor empty_for_peers(const std::shared_ptr<PeerMemory>& memory, at::IntArrayRef sizes, const at::TensorOptions& options);

/// The memory of another process.
class PeerView {
public:
    /// Null if it cannot be opened: another machine, another user.
    static std::unique_ptr<PeerView> open(const PeerMemory::Address& address);
    ~PeerView();
    PeerView(const PeerView&) = delete;
    PeerView& operator=(const PeerView&) = delete;

    char* at(std::int64_t place) const { return begin_ + place; }

private:
    PeerView(char* begin, std::int64_t size) : begin_(begin), size_(size) {}

    char* begin_;
    std::int64_t size_;
};

}  // namespace meshard
