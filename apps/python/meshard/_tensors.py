# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional, Sequence

import torch

from . import _core
from ._core import DeviceMesh, InvalidInput, Partial, Placement, Replicate, Shard
from ._device_mesh import AnyMesh, own_mesh

Extents = Optional[Sequence[Optional[Sequence[int]]]]


def _own_placement(given: Any, num_dims: Optional[int]) -> Placement:
    """Placements of meshard, and those of torch.distributed.tensor; negative dimensions count from the end where their number is known."""
    if isinstance(given, Placement):
        own = given
    elif type(given).__name__ == "Shard" and hasattr(given, "dim"):
        own = Shard(given.dim)
    elif type(given).__name__ == "Replicate":
        own = Replicate()
    elif type(given).__name__ == "Partial" and hasattr(given, "reduce_op"):
        own = Partial(given.reduce_op)
    else:
        raise InvalidInput(f"placements: expected Shard(dim), Replicate() or Partial() of meshard or of torch.distributed.tensor, found {given!r}.")
    if own.is_shard() and own.dim < 0 and num_dims is not None:
        own = Shard(own.dim + num_dims)
    if own.is_shard() and (own.dim < 0 or (num_dims is not None and own.dim >= num_dims)):
        raise InvalidInput(f"placements: {given!r} of a tensor that has " + (f"{num_dims} dimensions." if num_dims is not None else "no such dimension."))
    return own


def _own_placements(given: Any, num_dims: Optional[int]) -> list[Placement]:
    if isinstance(given, Placement) or not hasattr(given, "__iter__"):
        raise InvalidInput(f"placements: expected a sequence with one placement for each axis of the mesh, found {given!r}. Write [{given!r}].")
    return [_own_placement(placement, num_dims) for placement in given]


def _require_tensor(given: Any, where: str) -> None:
    if not isinstance(given, torch.Tensor):
        raise InvalidInput(f"{where}: expected a torch.Tensor, found {type(given).__name__}.")


def _own_extents(given: Extents) -> list:
    return [] if given is None else [None if one is None else [int(n) for n in one] for one in given]


def from_local(local: torch.Tensor, device_mesh: AnyMesh, placements: Sequence[Placement]) -> torch.Tensor:
    """This rank's part, as a sharded tensor. Ranks tell each other how much they hold: extents may differ, and be zero. Collective. Differentiable.

    local:      a tensor; in the dimensions that are not cut of the same shape on all ranks
    placements: one for each axis of the mesh: Shard(dim), Replicate() or Partial(), of meshard or of torch.distributed.tensor

    Raises InvalidInput (a ValueError) where ranks disagree in dimensions that are not cut."""
    _require_tensor(local, "from_local")
    return _core.from_local(local, own_mesh(device_mesh), _own_placements(placements, local.dim()))


def distribute_tensor(tensor: Optional[torch.Tensor], device_mesh: AnyMesh, placements: Sequence[Placement], *, extents: Extents = None,
                      src_data_rank: int = 0) -> torch.Tensor:
    """A whole, cut: each rank gets its part from rank `src_data_rank` and nothing else. Collective. Differentiable.

    tensor:  the whole; ranks other than the source may pass None if they pass the extents
    extents: for each axis of the mesh the number of entries of each of its ranks, zero allowed, or None where the tensor is not cut or is cut evenly

    Raises InvalidInput (a ValueError) where extents do not add up to the whole, or the source has no tensor."""
    if tensor is not None:
        _require_tensor(tensor, "distribute_tensor")
    num_dims = None if tensor is None else tensor.dim()
    return _core.distribute_tensor(tensor, own_mesh(device_mesh), _own_placements(placements, num_dims), _own_extents(extents), src_data_rank)


def redistribute(tensor: torch.Tensor, placements: Sequence[Placement], *, extents: Extents = None) -> torch.Tensor:
    """The same values in other placements; `extents` as in `distribute_tensor`. Collective. Differentiable.

    Raises InvalidInput (a ValueError) for a plain tensor, and where a Partial is asked for that the tensor is not."""
    return _core.redistribute(tensor, _own_placements(placements, tensor.dim()), _own_extents(extents))


def to_local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part as a plain tensor; of a pending sum this rank's summand. Differentiable. Not collective, but for a view
    of cut rows (`x[3]`, `x.unbind(0)`) whose base was written to since it was last used: ranks then bring it up to date together.

    What is computed from it is plain: gradients of plain parameters that meet it are this rank's alone."""
    return _core.to_local(tensor)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole as a plain tensor, on every rank. Collective. Differentiable: each rank is taken to compute the same loss from it."""
    return tensor.clone() if _core.is_stored(tensor) else _core.full_tensor(tensor)


def placements(tensor: torch.Tensor) -> tuple[Placement, ...]:
    """One for each axis of the tensor's mesh. Not collective."""
    return tuple(_core.placements(tensor))


def extents(tensor: torch.Tensor) -> list[Optional[list[int]]]:
    """How many entries each rank holds, for each axis of the mesh; None where the tensor is not cut. Not collective."""
    return _core.extents(tensor)


def device_mesh(tensor: torch.Tensor) -> DeviceMesh:
    """The mesh of a sharded tensor. Not collective."""
    return _core.device_mesh(tensor)


def describe(tensor: torch.Tensor) -> str:
    """The layout in one line, as `Shard(0) of 7+3 on domain`. Not collective."""
    return _core.describe(tensor)


@contextlib.contextmanager
def record_rules() -> Iterator[_core.Recorder]:
    """What operators did while it was open, on this thread: `.events`, each with `op`, `family`, `inputs`, `outputs`, `num_messages`, `num_bytes` and
    `gathered`; `.refusals`, names of operators that were refused."""
    recorder = _core.Recorder()
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


def checkpoint(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """function(*inputs) without keeping what its backward needs: backward calls it again. For plain and sharded tensors; random draws are the same.

    The function takes tensors and returns a tensor, or a tuple or list of them (a tuple comes back). All ranks call their checkpoints in the same order.

    Raises InvalidInput in backward if the second call does not do the same as the first."""
    is_single = False

    def call(*arguments: torch.Tensor) -> list[torch.Tensor]:
        nonlocal is_single
        result = function(*arguments)
        is_single = isinstance(result, torch.Tensor)
        return [result] if is_single else list(result)

    results = _core.checkpoint(call, list(inputs))
    return results[0] if is_single else tuple(results)


def set_gather_policy(policy: str) -> None:
    """What happens when an operator without a rule makes each rank gather the whole: 'warn' (the default, once an operator), 'silent', or 'refuse', which
    raises. For this thread."""
    _core.set_gather_policy(policy)


def set_exact_mode(on: bool) -> None:
    """Whether sums and products give the same bits for any number of ranks and any cut. For the whole process; the same on all ranks."""
    _core.set_exact_mode(on)
