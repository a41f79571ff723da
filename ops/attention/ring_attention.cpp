// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/ring_attention.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshard {
namespace {

// Rows of a piece on CPUs: smaller pieces need less memory, larger ones are faster.
constexpr std::int64_t kForwardRows = 2048, kBackwardRows = 512;

/// Number of pieces, equal for all ranks, into which each rank's rows are divided.
std::int64_t num_pieces(const std::vector<RowRange>& keys, std::int64_t length)
{
    std::int64_t longest = 0;
    for (const auto& range : keys) longest = std::max(longest, range.length);
    return (longest + length - 1) / length;
}

RowRange piece_of(const RowRange& rows, std::int64_t piece, std::int64_t pieces)
{
    const auto begin = rows.length * piece / pieces, end = rows.length * (piece + 1) / pieces;
    return {rows.start + begin, end - begin};
}

/// Keys and values of one piece; to be sent they are concatenated in one buffer.
struct Piece {
    at::Tensor buffer, keys, values;
};

/// An uninitialised piece of `length` rows shaped like those of k and v.
Piece make_piece(const at::Tensor& k, const at::Tensor& v, std::int64_t length, at::ScalarType type)
{
    auto key_shape = k.sizes().vec(), value_shape = v.sizes().vec();
    key_shape[2] = value_shape[2] = length;
    const auto num_keys = c10::multiply_integers(key_shape), num_values = c10::multiply_integers(value_shape);
    auto buffer = at::empty({num_keys + num_values}, k.options().dtype(type));
    return {buffer, buffer.narrow(0, 0, num_keys).view(key_shape),
            buffer.narrow(0, num_keys, num_values).view(value_shape)};
}

/// This rank's own piece, copied to a send buffer: it is part of the caller's tensors.
Piece packed(const at::Tensor& k, const at::Tensor& v)
{
    auto piece = make_piece(k, v, k.size(2), k.scalar_type());
    piece.keys.copy_(k);
    piece.values.copy_(v);
    return piece;
}

/// Calls `work(keys and values, step round the ring, index, rows)` for all pieces of all ranks, the own ones (step 0)
/// first. The next piece is received meanwhile.
template <class F>
void for_each_piece(const AttentionKeys& all, std::int64_t pieces, const RankGroup& group, F&& work)
{
    const auto &k = all.keys, &v = all.values;
    const auto& keys = all.ranges;
    const auto size = group.size(), me = group.rank();
    const auto owner_at = [&](int step) { return (me - step + size) % size; };
    for (std::int64_t p = 0; p < pieces; ++p) {
        const auto own = piece_of(keys[me], p, pieces);
        const auto first = own.start - keys[me].start;
        Piece current{{}, k.narrow(2, first, own.length), v.narrow(2, first, own.length)};
        for (int step = 0; step < size; ++step) {
            Piece next, sent;
            PendingCollective pending;
            if (step + 1 < size) {
                sent = step == 0 ? packed(current.keys, current.values) : current;
                next = make_piece(k, v, piece_of(keys[owner_at(step + 1)], p, pieces).length, k.scalar_type());
                pending = group.start_ring_shift(sent.buffer, next.buffer);
            }
            work(current, step, p, piece_of(keys[owner_at(step)], p, pieces));
            pending.wait();
            current = next;
        }
    }
}

}  // namespace

AttentionOutput ring_attention(const AttentionSettings& settings, const at::Tensor& queries, RowRange rows,
                               const AttentionKeys& keys, const RankGroup& group)
{
    AttentionSum sum(settings, queries, rows);
    // With one rank nothing is sent, and the kernels need no pieces.
    const auto pieces = group.size() == 1 ? 1 : num_pieces(keys.ranges, piece_rows(keys.keys, kForwardRows));
    for_each_piece(keys, pieces, group, [&](const Piece& piece, int, std::int64_t, RowRange columns) {
        sum.add(piece.keys, piece.values, columns, keys.mask, keys.first_masked);
    });
    return sum.finish(keys.values.size(3));
}

AttentionGradients ring_attention_backward(const AttentionSettings& settings, const AttentionQueries& queries,
                                           const AttentionKeys& keys, const RankGroup& group, WantedGradients wanted)
{
    const auto &k = keys.keys, &v = keys.values;
    const auto& ranges = keys.ranges;
    const auto type = attention_sum_type(k.scalar_type());
    const auto size = group.size(), me = group.rank();
    const auto pieces = group.size() == 1 ? 1 : num_pieces(ranges, piece_rows(k, kBackwardRows));
    AttentionGradients total;
    if (wanted.queries) total.queries = at::zeros(queries.queries.sizes(), k.options().dtype(type));
    if (wanted.mask) total.mask = at::zeros(keys.mask.sizes(), k.options().dtype(type));
    const bool travels = wanted.keys || wanted.values;
    if (travels) {
        total.keys = at::zeros(k.sizes(), k.options().dtype(type));
        total.values = at::zeros(v.sizes(), k.options().dtype(type));
    }

    const auto own_part = [&](const at::Tensor& whole, RowRange part) {
        return whole.narrow(2, part.start - ranges[me].start, part.length);
    };
    Piece sent;      // sums that are being sent to the next rank
    Piece arriving;  // sums that are being received from the previous rank, for the next piece
    PendingCollective pending;
    for_each_piece(keys, pieces, group, [&](const Piece& piece, int step, std::int64_t p, RowRange columns) {
        auto part = total;
        Piece sums;
        if (travels && step == 0) {
            part.keys = own_part(total.keys, columns);
            part.values = own_part(total.values, columns);
        } else if (travels) {
            sums = make_piece(k, v, columns.length, type);
            sums.buffer.zero_();
            part.keys = sums.keys;
            part.values = sums.values;
        }
        add_attention_gradients(settings, queries, piece.keys, piece.values, columns, keys.mask, keys.first_masked,
                                part);
        if (!travels || step == 0) return;

        if (step > 1) {
            pending.wait();
            sums.buffer.add_(arriving.buffer);
        }
        const auto coming = piece_of(ranges[(me - step - 1 + 2 * size) % size], p, pieces);
        arriving = make_piece(k, v, coming.length, type);
        sent = sums;
        pending = group.start_ring_shift(sent.buffer, arriving.buffer);
        if (step + 1 < size) return;
        pending.wait();  // the sums of this rank's own piece have returned
        own_part(total.keys, coming).add_(arriving.keys);
        own_part(total.values, coming).add_(arriving.values);
        sent = arriving = {};
    });
    return total;
}

std::int64_t ring_bytes(const std::vector<RowRange>& keys, int rank, std::int64_t row_bytes)
{
    std::int64_t rows = 0;
    for (std::size_t r = 0; r < keys.size(); ++r) {
        if (static_cast<int>(r) != rank) rows += keys[r].length;
    }
    return rows * row_bytes;
}

}  // namespace meshard
