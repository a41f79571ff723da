# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Callable, Iterable, Iterator, Optional, Sequence, Union

import torch

from . import _core
from ._core import FullyShardedModule, InvalidInput, Partial, Replicate
from ._device_mesh import AnyMesh, own_mesh
from ._state_dicts import part_of, remember_parts, whole_of


class _Replication:
    """Lives as long as one of the modules that have its parameters, whatever becomes of the container that was given to `replicate`."""

    def __init__(self, handle: _core.ReplicatedModule, module: torch.nn.Module) -> None:
        self.handle: Optional[_core.ReplicatedModule] = handle
        self.module = weakref.ref(module)


_replications: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # lists of _Replication by module


def replicate(module: torch.nn.Module, device_mesh: AnyMesh, *, verify_at_start: bool = False, bucket_cap_mb: float = 25) -> torch.nn.Module:
    """Keeps the parameters of `module` the same on all ranks, and returns the module, which is not wrapped. Collective.

    At the start parameters and buffers become those of rank 0 (`verify_at_start`: they are only compared). Each backward leaves the gradients of the whole
    loss in `.grad`, plain and complete: summed over all axes of the mesh but `data`, over which they are averaged. Messages of about `bucket_cap_mb` go out
    while backward runs, the last one at its end.

    Hooks on a parameter, and `torch.autograd.grad`, get the gradient of the whole as a sharded tensor; hooks of `register_post_accumulate_grad_hook` run at the end
    of backward, when `.grad` is complete. A second call for the same module begins anew.

    Raises InvalidInput (a ValueError) on every rank where the ranks' parameters differ in number, shape or type, and for a parameter of another module that
    was given to `replicate`."""
    _require_made("replicate", module)
    owners = [part for part in module.modules() if part is module or next(part.parameters(recurse=False), None) is not None]
    for owner in owners:
        for earlier in _replications.get(owner, ()):
            if earlier.module() is None or earlier.module() is module:
                earlier.handle = None
    made = _Replication(_core.replicate(list(module.named_parameters()), list(module.named_buffers()), own_mesh(device_mesh), verify_at_start,
                                        int(bucket_cap_mb * 2**20)), module)
    for owner in owners:
        _replications[owner] = [one for one in _replications.get(owner, ()) if one.handle is not None] + [made]
    return module


@contextlib.contextmanager
def no_sync(module: torch.nn.Module) -> Iterator[None]:
    """Inside, backward only adds up this rank's own shares of the gradients; the first backward outside reduces them all.

    Raises InvalidInput (a ValueError) for a module that was not given to `replicate`."""
    handle = next((one.handle for one in _replications.get(module, ()) if one.handle is not None and one.module() is module), None)
    if handle is None:
        raise InvalidInput("no_sync: this module was not given to replicate.")
    handle.set_sync(False)
    try:
        yield
    finally:
        handle.set_sync(True)


def _require_made(what: str, module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise InvalidInput(f"{what}: the parameter '{name}' has no values yet, and each rank would make its own. "
                               + ("Make it with to_empty() first." if parameter.is_meta else "Call the module once before."))


def _units_of(module: torch.nn.Module) -> list[str]:
    """The direct children; of a ModuleList or a Sequential among them, the children of that."""
    names = []
    for name, child in module.named_children():
        is_list = isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential))
        names += [f"{name}.{inner}" for inner, _ in child.named_children()] if is_list else [name]
    return names


def fully_shard(module: torch.nn.Module, device_mesh: AnyMesh, *, units: Optional[Sequence[str]] = None, over_all_axes: bool = False,
                overlaps: bool = True) -> FullyShardedModule:
    """Cuts the parameters of `module`, their gradients and the states of an optimiser among the ranks of the axis `data`, or, with `over_all_axes`, among all
    ranks. Collective.

    The module is called as before: an operator that meets a parameter gathers its unit, which is dropped when another one is met. Give the optimiser the
    `local_parameters()` of the result; the module's own parameters are written by `load_state_dict` alone. Backward sums and averages gradients as in `replicate`.
    Both state_dicts show whole parameters and states, of which each rank holds a part: for torch.distributed.checkpoint, and its get_ and set_state_dict.

    units: names of the submodules whose parameters are gathered together; by default the children of the module, and of a list among them its children
    overlaps: from the second step on the next unit travels while the present one computes, and gradients while backward goes on, which takes the memory of
        one unit more and of its gradients

    Raises InvalidInput (a ValueError) without an axis `data` unless `over_all_axes` is on, if a parameter is sharded already or no leaf, for a name that is no
    submodule, and on every rank if the ranks' modules differ."""
    chosen = list(units) if units is not None else _units_of(module)
    unknown = [name for name in chosen if name not in dict(module.named_modules())]
    if unknown:
        raise InvalidInput(f"fully_shard: the module has no submodules {unknown}; it has {[name for name, _ in module.named_modules() if name]}.")
    _require_made("fully_shard", module)
    handle = _core.fully_shard(list(module.named_parameters()), list(module.named_buffers()), own_mesh(device_mesh), set(chosen), over_all_axes, overlaps)
    remember_parts(module, handle)
    return handle


def with_norm_of_all_parts(plain: Callable) -> Callable:
    """`clip_grad_norm_` of parameters under fully_shard, or of their parts: by the gradients of all ranks. Collective."""
    @functools.wraps(plain)
    def clip(parameters: Union[torch.Tensor, Iterable[torch.Tensor]], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
             foreach: Optional[bool] = None) -> torch.Tensor:
        parts = [part_of(one) for one in ([parameters] if isinstance(parameters, torch.Tensor) else parameters)]
        wholes = [whole_of(part) for part in parts]
        if all(whole is None for whole in wholes):
            return plain(parts, max_norm, norm_type, error_if_nonfinite, foreach)
        if any(whole is None and part.requires_grad and not _core.is_stored(part) for part, whole in zip(parts, wholes)):
            raise InvalidInput("clip_grad_norm_: some of the parameters are under fully_shard, others are not. Clip them apart.")
        flat = _core.flat_values(next(whole for whole in wholes if whole is not None))
        is_largest = norm_type == float("inf")
        own = torch.nn.utils.get_total_norm([part.grad for part in parts if part.grad is not None and part.grad.numel() > 0], norm_type).double()
        pending = Partial("max") if is_largest else Partial()
        total = _core.full_tensor(_core.from_local(own if is_largest else own**norm_type, _core.device_mesh(flat),
                                                   [pending if placement.is_shard() else Replicate() for placement in _core.placements(flat)]))
        norm = total if is_largest else total ** (1 / norm_type)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm.item()}, and error_if_nonfinite is on.")
        torch.nn.utils.clip_grads_with_norm_(parts, max_norm, norm, foreach)
        return norm

    return clip


def with_zeroed_parts(plain: Callable) -> Callable:
    """`zero_grad` of a module under fully_shard, whose gradients are those of the parts."""
    @functools.wraps(plain)
    def zero_grad(self: torch.nn.Module, set_to_none: bool = True) -> None:
        parts = [part_of(parameter) for parameter in self.parameters()]
        if all(whole_of(part) is None for part in parts):
            return plain(self, set_to_none)
        for part in parts:
            if not _core.is_stored(part) and part.grad is not None:
                part.grad = None if set_to_none else torch.zeros_like(part.grad)

    return zero_grad
