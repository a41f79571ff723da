# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import weakref
from typing import Iterator, Optional, Sequence

import torch

from . import _core
from ._core import FullyShardedModule, InvalidInput
from ._device_mesh import AnyMesh, own_mesh
from ._state_dicts import remember_parts


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
