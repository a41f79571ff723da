// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>
#include <vector>

namespace meshard {

/// The bytes that a rank sends in an exchange of rows: for each i, row index[i] of each tensor, one after the other.
/// The rows are gathered piece by piece while they are sent, so that no buffer holds all of them.
class RowStream {
public:
    RowStream() = default;

    /// @param tensors  (n, ...) each, on the CPU; must not change while rows are read
    /// @param index    (m), int64, each in [0, n)
    RowStream(std::vector<at::Tensor> tensors, at::Tensor index);

    std::int64_t num_rows() const { return index_.defined() ? index_.size(0) : 0; }
    std::int64_t row_bytes() const { return row_bytes_; }
    std::int64_t bytes() const { return num_rows() * row_bytes_; }

    /// Pointer to bytes begin, ..., begin + count - 1 if they are contiguous in a tensor; null if they must be
    /// gathered.
    const char* in_place(std::int64_t begin, std::int64_t count) const;

    /// Copies bytes begin, ..., begin + count - 1 to `to`.
    void read(std::int64_t begin, std::int64_t count, char* to) const;

    /// `read` with stores that bypass the caches, for streams larger than a cache: the target's cache lines are not
    /// read before they are written. All stores are complete when it returns.
    void write_through(std::int64_t begin, std::int64_t count, char* to) const;

    /// `read` or `write_through`, whichever is faster for a stream of this size.
    void write_to_peer(std::int64_t begin, std::int64_t count, char* to) const;

    at::Tensor whole() const;  ///< the whole stream, (bytes), uint8

private:
    template <class Copy>
    void read_by(const Copy& copy, std::int64_t begin, std::int64_t count, char* to) const;

    std::vector<at::Tensor> tensors_;
    std::vector<std::int64_t> widths_;  // bytes of a row of each tensor
    at::Tensor index_;
    std::int64_t row_bytes_ = 0;
};

/// Interface of a backend that gathers rows while it sends them, so that both overlap.
class RowExchange {
public:
    virtual ~RowExchange() = default;

    /// A receive buffer, in memory that other ranks can write to if the backend has any.
    virtual at::Tensor empty_received(at::IntArrayRef sizes, const at::TensorOptions& options);

    /// An all-to-all: the stream holds `send_bytes[r]` bytes for rank r, in rank order; `received` is a contiguous
    /// tensor of bytes.
    virtual c10::intrusive_ptr<c10d::Work> exchange_rows(RowStream sent, const std::vector<std::int64_t>& send_bytes,
                                                         const at::Tensor& received,
                                                         const std::vector<std::int64_t>& receive_bytes) = 0;
};

}  // namespace meshard
