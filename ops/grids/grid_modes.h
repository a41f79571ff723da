// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// The first axis of ranks that cuts a direction of a grid (B, C, n_1, ..., n_d); -1 for a plain tensor, and for one
/// that is cut along samples or channels only. Also for a tensor of modes, which can be cut along their last direction
/// only.
std::int64_t axis_of_directions(const at::Tensor& grid);

/// The Fourier modes of a real grid (B, C, n_1, ..., n_d) that a truncated transform keeps: (B, C, 2 m_1, ..., 2
/// m_(d-1), m_d), complex.
///
/// Along every dimension a < d these are the modes 0 to m_a - 1, then n_a - m_a to n_a - 1; along the last one, of
/// which half is redundant, 0 to m_d - 1. If 2 m_a > n_a, the two ranges overlap, and modes in both appear twice. Not
/// normalised: mode k is the sum over r of x(r) exp(-2 pi i sum k_a r_a / n_a).
///
/// Grids may be cut along any of their dimensions, in uneven parts: every rank transforms its own entries, by FFTs
/// along dimensions that are not cut, along cut ones by its columns of the transform's matrix; then one all-reduce of
/// the kept modes follows for each axis of ranks that cuts the grid, or one over all ranks if every axis does. The
/// result is Replicate on these axes. In exact mode the grid is gathered instead. Differentiable once; backward
/// (`grid_from_modes` without factors) sends nothing.
///
/// With `shares` the result is cut among the ranks of the grid's `axis_of_directions`, along the last direction: each
/// rank receives only the sums of its own modes, which are sent once, and backward gathers their gradients.
///
/// @param num_modes   m_1, ..., m_d
/// @param shares      modes of the last direction for each rank of that axis, zero allowed, m_d in all; empty: all
/// modes on every rank
/// @throws InvalidInput for another number of dimensions than d + 2, m_a > n_a, m_d > n_d / 2 + 1, or less than 1; with
///         shares if no axis cuts the grid, or one with another number of ranks
at::Tensor grid_modes(const at::Tensor& grid, at::IntArrayRef num_modes, at::IntArrayRef shares = {});

/// The real grid with these modes, all others being zero; modes that appear twice are added. It is the inverse
/// transform with the factor 1 / (n_1 ... n_d), in which each mode along the last dimension also represents its
/// conjugate.
///
/// Nothing is sent unless modes are cut, which are gathered; backward sums the gradients of the modes over the ranks in
/// one all-reduce for each axis that cuts the grid. If modes are cut, each rank receives the sums of its own only, as
/// in `grid_modes` with shares.
///
/// @param modes   (B, C, 2 m_1, ..., m_d), as `grid_modes` returns them: on every rank, or cut along the last direction
/// @param like    (B, C', n_1, ..., n_d): the result has its extents, layout and type. Its values are not read.
/// @throws InvalidInput as `grid_modes`, or if shapes disagree
at::Tensor grid_from_modes(const at::Tensor& modes, const at::Tensor& like, at::IntArrayRef num_modes);

}  // namespace meshard
