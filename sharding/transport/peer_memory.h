// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace meshard {

/// Memory of this process that other processes of the machine can write to, so that a message is copied only once: an
/// in-memory file (memfd) with an address range as large as the machine's memory, of which only used pages take
/// physical memory. Freed blocks are reused for later tensors. Thread-safe.
class PeerMemory : public std::enable_shared_from_this<PeerMemory> {
public:
    /// What another process needs to open the file: process id, file descriptor, and a random token to check that it is
    /// the right file.
    using Address = std::array<std::int64_t, 3>;

    /// Returns null if the system does not support such memory, or limits the size of files (ulimit -f).
    static std::shared_ptr<PeerMemory> create();

    /// The one instance of this process; null as for `create`.
    static std::shared_ptr<PeerMemory> of_process();

    /// Smaller messages to a rank are faster without a direct write.
    static constexpr std::int64_t kWorthwhileBytes = std::int64_t{256} << 10;

    ~PeerMemory();
    PeerMemory(const PeerMemory&) = delete;
    PeerMemory& operator=(const PeerMemory&) = delete;

    Address address() const;

    /// An uninitialised CPU tensor; undefined if there is no free block of that size.
    at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options);

    /// Offset in bytes of a tensor's first byte in this memory; -1 if the tensor is in other memory.
    std::int64_t offset_of(const at::Tensor& tensor) const;

private:
    PeerMemory(int file, char* begin, std::int64_t size);
    void give_back(std::int64_t offset, std::int64_t bytes);

    int file_;
    char* begin_;
    std::int64_t size_;
    std::mutex mutex_;
    std::map<std::int64_t, std::int64_t> free_;  // offset to bytes of each free block; adjacent blocks are merged
};

/// A receive buffer: in `memory` (may be null) if it is large enough for direct writes and there is room, otherwise
/// from at::empty.
at::Tensor empty_for_peers(const std::shared_ptr<PeerMemory>& memory, at::IntArrayRef sizes,
                           const at::TensorOptions& options);

/// The PeerMemory of another process, mapped into this one.
class PeerView {
public:
    /// Returns null if it cannot be opened: another machine, another user.
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
