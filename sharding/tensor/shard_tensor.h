// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace meshard {

/// A sharded tensor is an `at::Tensor` that reports the shape of the whole and its real device, and holds this rank's
/// part and a ShardSpec. It is implemented below autograd (dispatch key PrivateUse2): every aten operator on it calls
/// the rule table (rule_table.h). Plain tensors that are combined with sharded ones are taken as Replicate.

bool is_sharded(const at::Tensor& tensor);

/// Layout of a sharded tensor. @throws InvalidInput for a plain tensor.
const SpecPtr& spec_of(const at::Tensor& tensor);

/// Makes a sharded tensor of this rank's part. Differentiable.
///
/// In the first form ranks exchange their extents (collective); in the second `spec` has them, without communication.
/// @throws InvalidInput if ranks disagree in the dimensions that are not sharded.
at::Tensor from_local(const at::Tensor& local, const std::shared_ptr<const DeviceMesh>& device_mesh,
                      c10::ArrayRef<Placement> placements);
at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec);

/// This rank's part as a plain tensor; for a Partial, this rank's summand. Differentiable: its gradient is taken as
/// this rank's part with the same placements, for a Partial as Replicate. A plain parameter that is combined with the
/// result gets this rank's gradient only; in a module under `replicate` such results must return through `from_local`
/// (replicate.h).
at::Tensor to_local(const at::Tensor& tensor);

/// The whole as a plain tensor on every rank. Collective. Differentiable: its gradient is taken as Replicate, as if
/// each rank has computed the same loss from the whole.
at::Tensor full_tensor(const at::Tensor& tensor);

/// Converts a tensor to other placements. Collective; differentiable. For uneven targets pass a spec.
at::Tensor redistribute(const at::Tensor& tensor, c10::ArrayRef<Placement> placements);
at::Tensor redistribute(const at::Tensor& tensor, const SpecPtr& spec);

/// What happens when a plain tensor is combined with a sharded one. Set for each thread.
enum class PlainTensorPolicy : std::uint8_t { Silent, Warn, Refuse };
void set_plain_tensor_policy(PlainTensorPolicy policy);
PlainTensorPolicy plain_tensor_policy();

// --- for rules, below autograd ---------------------------------------------------------------------------------------

/// Makes a sharded tensor, without autograd and without communication. `strides` are those that the whole reports (it
/// has no storage; they give the order of its dimensions, and must be equal on every rank); contiguous if empty.
at::Tensor wrap(at::Tensor local, SpecPtr spec, c10::IntArrayRef strides = {});

/// This rank's part without autograd; a plain tensor is returned itself.
const at::Tensor& local_of(const at::Tensor& tensor);

/// Replaces value, shape and layout of `tensor` by those of `other`, for operators that reshape in place. Tensors that
/// shared its value keep the old one.
void become(const at::Tensor& tensor, const at::Tensor& other);

/// Replaces the local part of a sharded tensor (and of its detached and saved copies, which share its value) by the
/// same value in another layout. If other tensors share its memory (its views, or its base), the new value is a copy
/// that is kept up to date: a write to the copy, or to a view of it, is also written to them (`note_write`); after a
/// write to one of them the copy is updated when it is next used (`refresh_copy`).
void move_copy(const at::Tensor& tensor, at::Tensor local, SpecPtr spec);

/// Marks these views of `base` as views of a copy of it in another layout, which is kept up to date as in `move_copy`.
/// The base keeps its layout. `is_conjugate`: the copy holds the conjugates of the base's numbers.
void mark_moved_copy(c10::ArrayRef<c10::IValue> views, const at::Tensor& base, const at::Tensor& local,
                     const SpecPtr& spec, bool is_conjugate = false);

/// Marks a tensor whose local part shares memory with no other tensor, on any rank.
void mark_fresh(const at::Tensor& tensor);

/// Marks these views as sharing memory with `base`.
void share_memory(const at::Tensor& base, c10::ArrayRef<c10::IValue> views);

/// Returns whether other tensors share the tensor's memory or have done so: true also when they are gone, because ranks
/// may free them at different times. Equal on every rank, except for parts that `to_local` returned on some ranks only;
/// these cause no messages.
bool shares_memory(const at::Tensor& tensor);

/// Marks a tensor, Replicate on `axis`, as a view of rows of `base` that rank `owner` holds: on that rank its local
/// part shares their memory, on the others it is a copy. A write to the view is also written to the base; after a write
/// to the base the copies are updated when the view is next used.
void mark_row_copy(const at::Tensor& view, const at::Tensor& base, std::int64_t axis, int owner);

/// Returns whether a tensor was marked by `mark_row_copy` or `mark_moved_copy`, or is a copy made by `move_copy`.
bool is_copy(const at::Tensor& tensor);

/// Marks `views` of the copy `from` as views of a copy.
void inherit_copy(const at::Tensor& from, c10::ArrayRef<c10::IValue> views);

/// Updates a copy if its original has been written to. Collective if it has.
void refresh_copy(const at::Tensor& tensor);

/// Whether the original of a copy has been written to since the copy was last updated. Not collective.
bool is_stale(const at::Tensor& tensor);

/// To be called after a write to a tensor: if it is a copy, writes the new value to the original. Collective if it is.
void note_write(const at::Tensor& tensor);

/// Writes a complete value into a tensor that may be Partial: for a sum the first rank gets the value, the others zero.
void fill_pending(const at::Tensor& local, const ShardSpec& spec, const at::Tensor& value);

}  // namespace meshard
