# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any, Optional, Sequence

import torch

from . import _core
from ._core import InvalidInput, Neighbors, SurfaceDistance
from ._device_mesh import AnyMesh, own_mesh


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


class GhostPlan:
    """Who sends which rows to whom so that every rank's ghosts get the values of their owners: made once, used often. Collective over the axis `domain`.

    part: a `Part` of meshard.partition or read_shards whose number is this rank's
    device_mesh: as many ranks along `domain` as there are parts
    global_ids, num_owned, ghost_owners: instead of a part: the numbers of its rows in the whole, own rows first and ascending, then ghosts by owner; the rank that owns
    each ghost

    Raises InvalidInput (a ValueError) on every rank if a rank's numbers do not fit, or it wants a row of a rank that does not own it."""

    def __init__(self, part: Any, device_mesh: AnyMesh, *, global_ids: Optional[Sequence[int]] = None, num_owned: int = 0,
                 ghost_owners: Sequence[int] = ()) -> None:
        if part is not None:
            global_ids, num_owned, ghost_owners = part.global_ids, part.num_owned, part.ghost_owners
        if global_ids is None:
            raise InvalidInput("GhostPlan: expected a part, or global_ids with num_owned and ghost_owners.")
        self._plan = _core.GhostPlan([int(i) for i in global_ids], int(num_owned), [int(i) for i in ghost_owners], own_mesh(device_mesh))

    @property
    def num_owned(self) -> int:
        """This rank's own rows."""
        return self._plan.num_owned

    @property
    def num_ghosts(self) -> int:
        """Rows of other ranks that this rank sees."""
        return self._plan.num_ghosts

    @property
    def num_sent(self) -> int:
        """Rows that this rank sends in an exchange."""
        return self._plan.num_sent

    def __repr__(self) -> str:
        return repr(self._plan)


def _own_rows(tensor: torch.Tensor) -> torch.Tensor:
    return _core.to_local(tensor) if _core.is_sharded(tensor) else tensor


def exchange_ghosts(owned: torch.Tensor, plan: GhostPlan) -> torch.Tensor:
    """The ghosts' rows, from their owners: (num_owned, ...), plain or cut along its rows, to plain (num_ghosts, ...). Collective. Differentiable: backward adds each
    ghost's gradient to its owner's row.

    Raises InvalidInput (a ValueError) where the tensor has another number of rows than the plan; of a plain tensor only on that rank."""
    return _core.exchange_ghosts(_own_rows(owned), plan._plan)


def with_ghosts(owned: torch.Tensor, plan: GhostPlan) -> torch.Tensor:
    """Own rows and their ghosts, (num_owned, ...) to plain (num_owned + num_ghosts, ...); else as `exchange_ghosts`."""
    return _core.with_ghosts(_own_rows(owned), plan._plan)


def scatter_ghosts(local: torch.Tensor, plan: GhostPlan, reduction: str = "sum") -> torch.Tensor:
    """Combines every own row with its ghosts on other ranks: plain (num_owned + num_ghosts, ...) to plain (num_owned, ...). Collective. Differentiable.

    reduction: 'sum', the adjoint of `with_ghosts`, 'mean', 'max' or 'min'

    Raises InvalidInput (a ValueError) for another number of rows or reduction."""
    return _core.scatter_ghosts(local, plan._plan, reduction)
