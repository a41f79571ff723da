// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace meshard {

/// Memory of this process that other processes of the machine can write to, so that a message is copied once: an in-memory file (memfd) with the address range
/// of the machine's whole memory, of which only used pages take physical memory. Freed blocks are reused for later tensors. Thread-safe.
class PeerMemory : public std::enable_shared_from_this<PeerMemory> {
public:
    /// What another process needs to open it: process id, file descriptor, and a random token by which it checks that this is the right file.
    using Address = std::array<std::int64_t, 3>;

    /// Null if the system has no such memory, or limits files to a smaller size (ulimit -f).
    static std::shared_ptr<PeerMemory> create();

    /// The one instance of this process; null as above.
    static std::shared_ptr<PeerMemory> of_process();

    static constexpr std::int64_t kWorthwhileBytes = std::int64_t{256} << 10;  ///< from one rank to another: below, a direct write costs more than it saves

    ~PeerMemory();
    PeerMemory(const PeerMemory&) = delete;
    PeerMemory& operator=(const PeerMemory&) = delete;

    Address address() const;

    /// A tensor on the CPU, not initialised; undefined if there is no free block of that size.
    at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options);

    /// Offset in bytes of a tensor's first byte in this memory; -1 if the tensor lies in other memory.
    std::int64_t offset_of(const at::Tensor& tensor) const;

private:
    PeerMemory(int file, char* begin, std::int64_t size);
    void give_back(std::int64_t offset, std::int64_t bytes);

    int file_;
    char* begin_;
    std::int64_t size_;
    std::mutex mutex_;
    std::map<std::int64_t, std::int64_t> free_;  // free blocks: offset to bytes; adjacent blocks are joined
};

/// A receive buffer: in `memory` (may be null) if it is large enough for direct writes and there is room, else as at::empty.
at::Tensor empty_for_peers(const std::shared_ptr<PeerMemory>& memory, at::IntArrayRef sizes, const at::TensorOptions& options);

/// The PeerMemory of another process, mapped into this one.
class PeerView {
public:
    /// Null if it cannot be opened: another machine, another user.
    static std::unique_ptr<PeerView> open(const PeerMemory::Address& address);
    ~PeerView();
    PeerView(const PeerView&) = delete;
    PeerView& operator=(const PeerView&) = delete;

    char* at(std::int64_t offset) const { return begin_ + offset; }

private:
    PeerView(char* begin, std::int64_t size) : begin_(begin), size_(size) {}

    char* begin_;
    std::int64_t size_;
};

}  // namespace meshard
