# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Optional, Sequence

import torch

from . import _core
from ._core import Neighbors, SurfaceDistance


def knn(points: torch.Tensor, queries: torch.Tensor, k: int, *, exclude_self: bool = False, period: Sequence[float] = ()) -> Neighbors:
    """The k nearest points of each of this rank's queries among the points of all ranks, nearest first, ties by number. Collective if a tensor is cut.

    points:  (N, D) or (B, N, D), D from 1 to 3, of a floating type; plain, or cut along its rows
    queries: (M, D) or (B, M, D), of the same type; plain, or cut along its rows
    period:  lengths of a periodic box, 0 for an axis that is not periodic
    exclude_self: leaves out the point with the number of the query

    Raises InvalidInput (a ValueError) for wrong shapes, types, k or period, and arguments that differ between ranks."""
    return _core.knn(points, queries, k, exclude_self, list(period))


def radius_search(points: torch.Tensor, queries: torch.Tensor, radius: float, *, max_neighbors: Optional[int] = None, exclude_self: bool = False,
                  period: Sequence[float] = ()) -> Neighbors:
    """The points within a radius of each query, nearest first; at most `max_neighbors` of them. Arguments and errors as in `knn`. Collective if one is cut."""
    return _core.radius_search(points, queries, radius, max_neighbors, exclude_self, list(period))


def gather_neighbors(features: torch.Tensor, neighbors: Neighbors) -> torch.Tensor:
    """Rows of the neighbours, one for each entry: (N, ...) with the layout of the points to plain (entries, ...). Collective if the points are cut.
    Differentiable.

    Raises InvalidInput (a ValueError) where the features have other rows than the points had."""
    return _core.gather_neighbors(features, neighbors)


def gather_rows(tensor: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows ids[0], ids[1], ... of the whole. Collective if the tensor is cut. Differentiable.

    tensor: (N, ...), plain or cut along its rows
    ids:    (K), int64; plain, which may differ between ranks, or cut: the result (K, ...) lies as they do

    Raises InvalidInput (a ValueError) on every rank if an id is out of range."""
    return _core.gather_rows(tensor, ids)


def scatter_add(tensor: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The tensor with values[i] added to row ids[i]; arguments and errors as in `gather_rows`. Collective if the tensor is cut. Differentiable."""
    return _core.scatter_add(tensor, ids, values)


def segment_reduce(values: torch.Tensor, offsets: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
    """Combines the entries offsets[i] up to offsets[i + 1] of each row i: plain (entries, ...) to (rows, ...); 0 for rows without entries. No messages.
    Differentiable.

    reduction: 'sum', 'mean', 'max' or 'min'

    Raises InvalidInput (a ValueError) if the offsets do not start at 0, fall, or do not end at the number of entries."""
    return _core.segment_reduce(values, offsets, reduction)


def segment_softmax(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Softmax among the entries of each row; plain (entries, ...) to the same shape. Differentiable."""
    return _core.segment_softmax(values, offsets)


def signed_distance(vertices: torch.Tensor, faces: torch.Tensor, queries: torch.Tensor, *, sign: str = "pseudo_normal",
                    max_distance: float = math.inf) -> SurfaceDistance:
    """Distance of each query to a surface of triangles, negative inside; computed in double precision. Collective if a tensor is cut. Distances are
    differentiable in queries and vertices.

    vertices: (V, 3), of a floating type
    faces:    (F, 3), int64 or int32: rows of the vertices, right-handed seen from outside
    queries:  (M, 3), of a floating type; the results lie as they do
    sign:     'pseudo_normal', exact for closed surfaces, or 'winding_number', also for surfaces with holes
    max_distance: queries that are farther have no result (NaN, -1)

    Raises InvalidInput (a ValueError) for wrong shapes and types, a vertex that does not exist, coordinates that are not finite."""
    return _core.signed_distance(vertices, faces, queries, sign, max_distance)
