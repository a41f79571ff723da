// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// Rows by global id. A tensor is plain, Replicate, or cut along its first dimension; ids are those of its index map, or numbers of rows in the whole.
/// Of a cut tensor each row that a rank wants from another travels once, however often it is wanted. `ids` are plain and may differ from rank to
/// rank, or cut along their only dimension; the results lie as they do. All are collective where a tensor is cut.
///
/// A connectivity that is used again and again is better kept as RowRoutes (sharding/exchange/row_routes.h): finding the ways costs more than going them.
///
/// @throws InvalidInput on every rank, before rows travel, if an id is out of range, or if types or shapes do not fit

/// (ids, ...): rows ids[0], ids[1], ...; differentiable.
at::Tensor gather_rows(const at::Tensor& tensor, const at::Tensor& ids);

/// The tensor plus, in row ids[i], values[i]: what several ranks bring for a row adds up in an order that depends on ids and ranks only. Differentiable
/// in both. A plain tensor stays this rank's own.
at::Tensor scatter_add(const at::Tensor& tensor, const at::Tensor& ids, const at::Tensor& values);

/// The larger of the tensor and, in row ids[i], values[i]; the gradient is shared evenly among equal ones.
at::Tensor scatter_max(const at::Tensor& tensor, const at::Tensor& ids, const at::Tensor& values);

}  // namespace meshard
