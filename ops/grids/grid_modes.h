// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// The first axis of ranks that cuts a direction of a grid (B, C, n_1, ..., n_d), or -1: of a plain tensor, and of one that is cut along samples or channels
/// only. Of a tensor of modes, which are cut along their last direction at most, the same.
std::int64_t axis_of_directions(const at::Tensor& grid);

/// The Fourier modes of a real grid (B, C, n_1, ..., n_d) that a truncated transform keeps: (B, C, 2 m_1, ..., 2 m_(d-1), m_d), complex.
///
/// Along every dimension a < d these are the modes 0 to m_a - 1, then n_a - m_a to n_a - 1; along the last one, of which half is redundant, 0 to m_d - 1. Where
/// 2 m_a > n_a the two ranges overlap, and modes that both have are there twice. Not normalised: mode k is the sum over r of x(r) exp(-2 pi i sum k_a r_a /
/// n_a).
///
/// Grids may be cut along any of their dimensions, in uneven parts: every rank transforms its own rows, along dimensions that are not cut by FFTs of which
/// the kept modes go on, along cut ones by its columns of the matrix of the transform; one all-reduce of the modes for each axis of ranks that cuts them. The
/// result is Replicate there. In exact mode the grid is gathered instead. Differentiable, once; backward (`grid_from_modes` without factors) sends nothing.
///
/// With `shares` the result is cut among the ranks of the grid's `axis_of_directions`, along the last direction: each rank gets the sums of its own modes only,
/// which travel once, and backward gathers their gradients.
///
/// @param num_modes   m_1, ..., m_d
/// @param shares      modes of the last direction for each rank of that axis, zero allowed, m_d in all; empty: all modes on every rank
/// @throws InvalidInput for another number of dimensions than d + 2, m_a > n_a, m_d > n_d / 2 + 1, or less than 1; with shares if no axis cuts the grid, or one
///         of another number of ranks
at::Tensor grid_modes(const at::Tensor& grid, at::IntArrayRef num_modes, at::IntArrayRef shares = {});

/// The real grid of which these are the modes, all others being zero; modes that are there twice are added: the inverse transform with the factor
/// 1 / (n_1 ... n_d), in which each mode along the last dimension stands for its conjugate, too.
///
/// @param modes   (B, C, 2 m_1, ..., m_d), as `grid_modes` gives them: on every rank, or cut along the last direction
/// @param like    (B, C', n_1, ..., n_d): the result has its extents, its cut and its type. Its values are not read.
/// Nothing is sent unless modes are cut, which are gathered; backward sums the gradients of the modes over the ranks in one all-reduce for each axis that cuts
/// the grid. Of modes that are cut each rank gets the sums of its own only, as in `grid_modes` with shares.
/// @throws InvalidInput as `grid_modes`, or if shapes disagree
at::Tensor grid_from_modes(const at::Tensor& modes, const at::Tensor& like, at::IntArrayRef num_modes);

}  // namespace meshard
