// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// Gather and scatter of rows by global id. A tensor is plain, Replicate, or cut along its first dimension; ids are
/// those of its index map, or row numbers in the whole. For a cut tensor an owner sends each row once to each rank that
/// wants it, however often its id occurs. `ids` are plain and may differ from rank to rank, or cut along their only
/// dimension; the results have their layout. All are collective if a tensor is cut.
///
/// Store a connectivity that is used repeatedly as RowRoutes (sharding/exchange/row_routes.h): finding the routes costs
/// more than one exchange.
///
/// @throws InvalidInput on every rank, before rows are sent, if an id is out of range, or if types or shapes do not fit

/// (ids, ...): rows ids[0], ids[1], ...; differentiable.
at::Tensor gather_rows(const at::Tensor& tensor, const at::Tensor& ids);

/// The tensor with values[i] added to row ids[i]; values of several ranks for one row are added in an order that
/// depends on ids and ranks only. Differentiable in both. A plain tensor gets this rank's values only,
/// unless `ids` are cut.
at::Tensor scatter_add(const at::Tensor& tensor, const at::Tensor& ids, const at::Tensor& values);

}  // namespace meshard
