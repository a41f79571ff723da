# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import os
import weakref
from typing import Optional, Sequence, Union

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh as TorchMesh

from ._build_info import CUDA
from ._core import DeviceMesh, InvalidInput, time_limit
from ._torch_version import FOR_CPUS

AnyMesh = Union[DeviceMesh, TorchMesh]
_made: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def init_device_mesh(device_type: Union[str, Sequence[int], None] = None, mesh_shape: Optional[Sequence[int]] = None, *,
                     mesh_dim_names: Optional[Sequence[str]] = None, shared_memory: bool = True) -> DeviceMesh:
    """A grid of all ranks of `torch.distributed`, which must be initialised. Collective.

    device_type:    "cuda" or "cpu", as torch's function of this name takes it; by default "cuda" where torch.distributed was initialised with NCCL. With
                    "cuda" each rank's current GPU is that of its number on its host, unless the program has chosen one. A mesh carries tensors of either
    mesh_shape:     ranks along each axis, whose product is the number of ranks; by default one axis of all ranks. It may come first, without a device_type
    mesh_dim_names: names of the axes: `domain` for the parts of one case (the default of one axis), `data` for different cases. Over `data` `replicate`
                    averages gradients, over other axes it sums them
    shared_memory:  ranks of one host talk through memory, and GPUs over NCCL by connections of meshard's own; else all goes through the groups of
                    torch.distributed. Where ranks share a GPU its tensors go by way of the host

    Raises InvalidInput (a ValueError) where the sizes do not multiply to the number of ranks, or there are no GPUs for "cuda"."""
    if not dist.is_initialized():
        raise InvalidInput('init_device_mesh: torch.distributed is not initialised. Call torch.distributed.init_process_group("gloo") first, '
                           "in a program that torchrun has started; for one rank there is DeviceMesh.single().")
    if device_type is not None and not isinstance(device_type, str):
        if mesh_shape is not None:
            raise InvalidInput(f"init_device_mesh: the device type is 'cuda' or 'cpu', found {device_type!r}.")
        device_type, mesh_shape = None, device_type
    if device_type is None:
        device_type = "cuda" if torch.cuda.is_available() and "nccl" in str(dist.get_backend_config()) else "cpu"
    _check(device_type)
    shape = tuple(mesh_shape) if mesh_shape is not None else (dist.get_world_size(),)
    names = tuple(mesh_dim_names) if mesh_dim_names is not None else ("domain",) if len(shape) == 1 else None
    if names is None or len(names) != len(shape):
        raise InvalidInput(f"init_device_mesh: expected a name for each of the {len(shape)} axes in mesh_dim_names, found {names}.")
    count = 1
    for size in shape:
        count *= size
    if count != dist.get_world_size():
        raise InvalidInput(f"init_device_mesh: {' x '.join(map(str, shape))} are {count} ranks, but {dist.get_world_size()} are running.")
    return from_torch_mesh(dist.device_mesh.init_device_mesh(device_type, shape, mesh_dim_names=names), shared_memory=shared_memory)


def _check(device_type: str) -> None:
    if device_type not in ("cuda", "cpu"):
        raise InvalidInput(f"init_device_mesh: the device type is 'cuda' or 'cpu', found '{device_type}'.")
    if device_type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("init_device_mesh: the device type is 'cuda', and torch sees no GPU. Say 'cpu', or see torch.cuda.is_available().")
    if device_type == "cuda" and not CUDA:
        raise InvalidInput("init_device_mesh: the device type is 'cuda'. " + FOR_CPUS)


def from_torch_mesh(mesh: TorchMesh, *, shared_memory: bool = True) -> DeviceMesh:
    """The ranks of a device mesh of torch.distributed that spans all ranks in their order. Collective.

    Functions that want a mesh take one of torch.distributed, too; it is converted at its first use.

    Raises InvalidInput (a ValueError) where the mesh has no names for several axes, or is only a part of the ranks."""
    names = list(mesh.mesh_dim_names or (["domain"] if mesh.ndim == 1 else []))
    if len(names) != mesh.ndim:
        raise InvalidInput("from_torch_mesh: the mesh's axes have no names. Pass mesh_dim_names to init_device_mesh.")
    if mesh.mesh.flatten().tolist() != list(range(dist.get_world_size())):
        raise InvalidInput(f"from_torch_mesh: the mesh must hold all {dist.get_world_size()} ranks in their order; found {mesh.mesh.tolist()}.")
    groups = {name: mesh.get_group(name) for name in names}
    groups["all"] = dist.group.WORLD
    device_groups = {name: group for name, group in groups.items() if _carries(group, "cuda", ("nccl", "meshard"))}
    store = dist.distributed_c10d._get_default_store() if shared_memory else None
    return DeviceMesh(list(mesh.mesh.shape), names, dist.get_rank(), dist.get_world_size(), _with_host(groups, mesh), device_groups, store, _time_limit())


def _time_limit() -> datetime.timedelta:
    """How long ranks wait for each other in shared memory: MESHARD_TIMEOUT_SECONDS, what init_process_group was told, or five minutes."""
    seconds = os.environ.get("MESHARD_TIMEOUT_SECONDS", "")
    if seconds:
        if not seconds.isdecimal() or int(seconds) == 0:
            raise InvalidInput(f"init_device_mesh: the environment variable MESHARD_TIMEOUT_SECONDS is '{seconds}', expected a whole number from 1.")
        return datetime.timedelta(seconds=int(seconds))
    default = datetime.timedelta(minutes=5)
    if not _carries(dist.group.WORLD, "cpu"):
        return default
    try:
        told = time_limit(dist.group.WORLD._get_backend(torch.device("cpu")))
    except RuntimeError:   # a backend of another kind
        return default
    return default if told == dist.distributed_c10d.default_pg_timeout else told


def _carries(group: dist.ProcessGroup, device_type: str, backends: Sequence[str] = ()) -> bool:
    """Whether a group has a backend for tensors of a type of device, on request one of these."""
    try:
        backend = group._get_backend(torch.device(device_type))
    except RuntimeError:
        return False
    return not backends or backend.name() in backends


def _with_host(groups: dict[str, dist.ProcessGroup], mesh: TorchMesh) -> dict[str, dist.ProcessGroup]:
    """The groups, for those that carry no tensors of the CPU ones of Gloo with the same ranks. Collective."""
    if all(_carries(group, "cpu") for group in groups.values()):
        return groups
    made = {"all": dist.new_group(backend="gloo")}
    for axis, name in enumerate(name for name in groups if name != "all"):
        if mesh.ndim == 1:
            made[name] = made["all"]
            continue
        for line in mesh.mesh.movedim(axis, -1).reshape(-1, mesh.mesh.size(axis)).tolist():
            group = dist.new_group(line, backend="gloo")
            if dist.get_rank() in line:
                made[name] = group
    return made


def own_mesh(mesh: AnyMesh) -> DeviceMesh:
    """A mesh of meshard as it is; of one of torch.distributed that of the same ranks, always the same."""
    if isinstance(mesh, DeviceMesh):
        return mesh
    if not isinstance(mesh, TorchMesh):
        raise InvalidInput(f"expected a DeviceMesh of meshard or of torch.distributed, found {type(mesh).__name__}.")
    if mesh not in _made:
        _made[mesh] = from_torch_mesh(mesh)
    return _made[mesh]
