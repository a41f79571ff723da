// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/row_stream.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace meshard {
namespace {

constexpr std::int64_t kAhead = 16;  // rows that are prefetched before they are copied
constexpr std::int64_t kLine = 64, kMostLines = 4;

void ask_for(const char* row, std::int64_t bytes)
{
    for (std::int64_t at = 0; at < std::min(bytes, kMostLines * kLine); at += kLine) __builtin_prefetch(row + at);
}

void copy_through(char* to, const char* from, std::size_t count)
{
#if defined(__SSE2__)
    if (reinterpret_cast<std::uintptr_t>(to) % sizeof(__m128i) == 0) {
        for (; count >= sizeof(__m128i); count -= sizeof(__m128i), to += sizeof(__m128i), from += sizeof(__m128i)) {
            _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        }
    }
#endif
    std::memcpy(to, from, count);
}

}  // namespace

RowStream::RowStream(std::vector<at::Tensor> tensors, at::Tensor index)
    : tensors_(std::move(tensors)), index_(index.contiguous())
{
    for (auto& tensor : tensors_) {
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous();
        widths_.push_back(c10::multiply_integers(tensor.sizes().slice(1)) *
                          static_cast<std::int64_t>(tensor.element_size()));
        row_bytes_ += widths_.back();
    }
}

const char* RowStream::in_place(std::int64_t begin, std::int64_t count) const
{
    if (count <= 0 || tensors_.size() != 1) return nullptr;
    const auto* rows = index_.const_data_ptr<std::int64_t>();
    const auto first = begin / row_bytes_, last = (begin + count - 1) / row_bytes_;
    for (auto i = first; i < last; ++i) {
        if (rows[i + 1] != rows[i] + 1) return nullptr;
    }
    return static_cast<const char*>(tensors_[0].const_data_ptr()) + rows[first] * row_bytes_ + begin % row_bytes_;
}

template <class Copy>
void RowStream::read_by(const Copy& copy, std::int64_t begin, std::int64_t count, char* to) const
{
    if (count <= 0) return;
    const auto* rows = index_.const_data_ptr<std::int64_t>();
    const auto num = num_rows();
    if (tensors_.size() == 1) {
        const auto* data = static_cast<const char*>(tensors_[0].const_data_ptr());
        auto row = begin / row_bytes_, skipped = begin % row_bytes_;
        for (auto left = count; left > 0; ++row) {
            if (row + kAhead < num) ask_for(data + rows[row + kAhead] * row_bytes_, row_bytes_);
            const auto n = std::min(left, row_bytes_ - skipped);
            copy(to, data + rows[row] * row_bytes_ + skipped, static_cast<std::size_t>(n));
            to += n;
            left -= n;
            skipped = 0;
        }
        return;
    }
    for (auto position = begin; position < begin + count;) {
        const auto row = position / row_bytes_;
        auto skipped = position % row_bytes_;
        std::size_t t = 0;
        while (skipped >= widths_[t]) skipped -= widths_[t++];
        const auto n = std::min(begin + count - position, widths_[t] - skipped);
        copy(to, static_cast<const char*>(tensors_[t].const_data_ptr()) + rows[row] * widths_[t] + skipped,
             static_cast<std::size_t>(n));
        to += n;
        position += n;
    }
}

void RowStream::read(std::int64_t begin, std::int64_t count, char* to) const
{
    read_by([](char* here, const char* from, std::size_t n) { std::memcpy(here, from, n); }, begin, count, to);
}

void RowStream::write_through(std::int64_t begin, std::int64_t count, char* to) const
{
    read_by(copy_through, begin, count, to);
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

void RowStream::write_to_peer(std::int64_t begin, std::int64_t count, char* to) const
{
    constexpr std::int64_t kCacheBytes = std::int64_t{8} << 20;
    if (bytes() > kCacheBytes)
        write_through(begin, count, to);
    else
        read(begin, count, to);
}

at::Tensor RowStream::whole() const
{
    auto packed = at::empty({bytes()}, at::kByte);
    read(0, bytes(), static_cast<char*>(packed.data_ptr()));
    return packed;
}

at::Tensor RowExchange::empty_received(at::IntArrayRef sizes, const at::TensorOptions& options)
{
    return at::empty(sizes, options);
}

}  // namespace meshard
