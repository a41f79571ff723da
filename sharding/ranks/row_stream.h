// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace meshard {

/// Rows of one or several tensors side by side, picked by number: the bytes that a rank sends, which need never lie in memory as a whole.
class RowStream {
public:
    RowStream() = default;

    /// @param tensors  (n, ...) each, on the CPU; must not change while rows are read  @param index  (m), int64, each in [0, n)
    RowStream(std::vector<at::Tensor> tensors, at::Tensor index);

    std::int64_t num_rows() const { return index_.defined() ? index_.size(0) : 0; }
    std::int64_t row_bytes() const { return row_bytes_; }
    std::int64_t bytes() const { return num_rows() * row_bytes_; }

    /// Where bytes begin, ..., begin + count - 1 lie if they do so in a row already; null if they must be picked out.
    const char* in_place(std::int64_t begin, std::int64_t count) const;

    /// Bytes begin, ..., begin + count - 1 to `to`.
    void read(std::int64_t begin, std::int64_t count, char* to) const;

    /// The same past the caches, for more than they hold: what is written need not be read before. All is written when it returns.
    void write_through(std::int64_t begin, std::int64_t count, char* to) const;

    /// By whichever of the two is the better for a stream of this size.
    void write_to_peer(std::int64_t begin, std::int64_t count, char* to) const;

    at::Tensor whole() const;   ///< all of them, uint8

private:
    template <class Copy>
    void read_by(const Copy& copy, std::int64_t begin, std::int64_t count, char* to) const;

    std::vector<at::Tensor> tensors_;
    std::vector<std::int64_t> widths_;   // bytes of a row of each
    at::Tensor index_;
    std::int64_t row_bytes_ = 0;
};

/// What a backend can do that picks rows out while it sends, so that packing them is hidden with the rest.
class RowExchange {
public:
    virtual ~RowExchange() = default;

    /// Where rows are best received: memory that others can write to, if there is any.
    virtual at::Tensor empty_received(at::IntArrayRef sizes, const at::TensorOptions& options);

    /// As an all-to-all of bytes, `send_bytes[r]` of the stream for rank r, in rank order; `received` (bytes), contiguous.
    virtual c10::intrusive_ptr<c10d::Work> exchange_rows(RowStream sent, const std::vector<std::int64_t>& send_bytes, const at::Tensor& received,
                                                         const std::vector<std::int64_t>& receive_bytes) = 0;
};

}  // namespace meshard
