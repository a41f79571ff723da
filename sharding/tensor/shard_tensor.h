// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/tensor/shard_spec.h"

namespace meshard {

/// A sharded tensor is an `at::Tensor` that shows the shape of the whole and its real device, and holds this rank's part and a
/// ShardSpec. It lives below autograd (dispatch key PrivateUse2): every aten operator on it ends in the rule table (rule_table.h).
/// Plain tensors that meet sharded ones count as Replicate.

bool is_sharded(const at::Tensor& tensor);

/// How a sharded tensor lies. @throws InvalidInput for a plain tensor.
const SpecPtr& spec_of(const at::Tensor& tensor);

/// This rank's part of the whole, as a sharded tensor. Differentiable.
///
/// The first form asks the other ranks how much they hold (collective); the second is told (`spec`), without communication.
/// @throws InvalidInput if ranks disagree in the dimensions that are not cut.
at::Tensor from_local(const at::Tensor& local, const std::shared_ptr<const DeviceMesh>& device_mesh,
                      c10::ArrayRef<Placement> placements);
at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec);

/// This rank's part, as a plain tensor. Of a Partial: the part that is not reduced yet. Differentiable: the gradient that comes
/// back counts as this rank's part with the same placements, a Partial's as Replicate. Plain parameters that meet it get this rank's gradient: those
/// of a module under `replicate` must go on through `from_local` (replicate.h).
at::Tensor to_local(const at::Tensor& tensor);

/// The whole, as a plain tensor on every rank. Collective. Differentiable: the gradient that comes back counts as Replicate, that is,
/// each rank has computed the same loss from the whole.
at::Tensor full_tensor(const at::Tensor& tensor);

/// The same value with other placements; collective. Differentiable. Uneven targets: give the whole layout.
at::Tensor redistribute(const at::Tensor& tensor, c10::ArrayRef<Placement> placements);
at::Tensor redistribute(const at::Tensor& tensor, const SpecPtr& spec);

/// What happens when a plain tensor meets a sharded one. For this thread.
enum class PlainTensorPolicy : std::uint8_t { Silent, Warn, Refuse };
void set_plain_tensor_policy(PlainTensorPolicy policy);
PlainTensorPolicy plain_tensor_policy();

// --- for rules, below autograd ---------------------------------------------------------------------------------------

/// Wraps without autograd and without looking at other ranks. `strides` are those that the whole shows (it has no storage; they say in which
/// order its dimensions lie, and must be the same on every rank); contiguous if empty.
at::Tensor wrap(at::Tensor local, SpecPtr spec, c10::IntArrayRef strides = {});

/// This rank's part without autograd; a plain tensor itself.
const at::Tensor& local_of(const at::Tensor& tensor);

/// Makes a sharded tensor another one, shape included: what operators that reshape in place do. Copies that shared its value keep theirs.
void become(const at::Tensor& tensor, const at::Tensor& other);

/// Replaces what a sharded tensor (and everything that shares its value: detached copies, saved copies) holds by the same value in another
/// layout. Where others look at the tensor's memory, views of it or what it is a view of, the new value is a copy that keeps up with them: what is
/// written to it, or to a view of it, is brought back to them (`note_write`); after a write to one of them it is fetched again when it is next used
/// (`refresh_copy`).
void move_copy(const at::Tensor& tensor, at::Tensor local, SpecPtr spec);

/// Says that these views of `base` look at a copy of it in another layout, which keeps up with it in the same way. The base stays as it is.
void mark_moved_copy(c10::ArrayRef<c10::IValue> views, const at::Tensor& base, const at::Tensor& local, const SpecPtr& spec);

/// Says that no other tensor holds the memory of this one's part, on any rank.
void mark_fresh(const at::Tensor& tensor);

/// Says that these look at the base's memory.
void share_memory(const at::Tensor& base, c10::ArrayRef<c10::IValue> views);

/// Others look at the tensor's memory, or have done so: until when they do is no other rank's business. The same on every rank, but for parts
/// that `to_local` has given to some ranks only; what follows from those sends no message.
bool shares_memory(const at::Tensor& tensor);

/// Says that a tensor, Replicate on `axis`, is a view of rows that rank `owner` holds in `base`: there its local part shares their memory, elsewhere
/// it is a copy. Writing to the view writes to the base; after a write to the base the copies are fetched again when the view is next used.
void mark_row_copy(const at::Tensor& view, const at::Tensor& base, std::int64_t axis, int owner);

/// Of rows, or of what was moved.
bool is_copy(const at::Tensor& tensor);

/// Views of such a tensor are the same kind.
void inherit_copy(const at::Tensor& from, c10::ArrayRef<c10::IValue> views);

/// Fetches a copy again if what it is a copy of has been written to. Collective, then.
void refresh_copy(const at::Tensor& tensor);

/// After a write to a tensor: brings it to what the tensor is a copy of. Collective, where it is one.
void note_write(const at::Tensor& tensor);

/// Writes a complete value into parts that may be pending: of a sum the first rank takes it all.
void fill_pending(const at::Tensor& local, const ShardSpec& spec, const at::Tensor& value);

}  // namespace meshard
