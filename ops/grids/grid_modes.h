// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

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
/// @param num_modes   m_1, ..., m_d
/// @throws InvalidInput for another number of dimensions than d + 2, m_a > n_a, m_d > n_d / 2 + 1, or less than 1
at::Tensor grid_modes(const at::Tensor& grid, at::IntArrayRef num_modes);

/// The real grid of which these are the modes, all others being zero; modes that are there twice are added: the inverse transform with the factor
/// 1 / (n_1 ... n_d), in which each mode along the last dimension stands for its conjugate, too.
///
/// @param modes   (B, C, 2 m_1, ..., m_d), as `grid_modes` gives them
/// @param like    (B, C', n_1, ..., n_d): the result has its extents, its cut and its type. Its values are not read.
/// Nothing is sent; backward sums the gradients of the modes over the ranks in one all-reduce for each axis that cuts the grid.
/// @throws InvalidInput as `grid_modes`, or if shapes disagree
at::Tensor grid_from_modes(const at::Tensor& modes, const at::Tensor& like, at::IntArrayRef num_modes);

}  // namespace meshard
