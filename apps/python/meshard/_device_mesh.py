# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import weakref
from typing import Optional, Sequence, Union

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh as TorchMesh

from ._core import DeviceMesh, InvalidInput

AnyMesh = Union[DeviceMesh, TorchMesh]
_made: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def init_device_mesh(mesh_shape: Optional[Sequence[int]] = None, *, mesh_dim_names: Optional[Sequence[str]] = None, shared_memory: bool = True) -> DeviceMesh:
    """A grid of all ranks of `torch.distributed`, which must be initialised. Collective.

    mesh_shape:     ranks along each axis, whose product is the number of ranks; by default one axis of all ranks
    mesh_dim_names: names of the axes: `domain` for the parts of one case (the default of one axis), `data` for different cases. Over `data` `replicate`
                    averages gradients, over other axes it sums them
    shared_memory:  ranks of one host talk through memory; else all goes through the groups of torch.distributed

    Raises InvalidInput (a ValueError) where the sizes do not multiply to the number of ranks."""
    if not dist.is_initialized():
        raise InvalidInput('init_device_mesh: torch.distributed is not initialised. Call torch.distributed.init_process_group("gloo") first, '
                           "in a program that torchrun has started; for one rank there is DeviceMesh.single().")
    shape = tuple(mesh_shape) if mesh_shape is not None else (dist.get_world_size(),)
    names = tuple(mesh_dim_names) if mesh_dim_names is not None else ("domain",) if len(shape) == 1 else None
    if names is None or len(names) != len(shape):
        raise InvalidInput(f"init_device_mesh: expected a name for each of the {len(shape)} axes in mesh_dim_names, found {names}.")
    count = 1
    for size in shape:
        count *= size
    if count != dist.get_world_size():
        raise InvalidInput(f"init_device_mesh: {' x '.join(map(str, shape))} are {count} ranks, but {dist.get_world_size()} are running.")
    return from_torch_mesh(dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names), shared_memory=shared_memory)


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
    store = dist.distributed_c10d._get_default_store() if shared_memory else None
    return DeviceMesh(list(mesh.mesh.shape), names, dist.get_rank(), dist.get_world_size(), groups, store)


def own_mesh(mesh: AnyMesh) -> DeviceMesh:
    """A mesh of meshard as it is; of one of torch.distributed that of the same ranks, always the same."""
    if isinstance(mesh, DeviceMesh):
        return mesh
    if not isinstance(mesh, TorchMesh):
        raise InvalidInput(f"expected a DeviceMesh of meshard or of torch.distributed, found {type(mesh).__name__}.")
    if mesh not in _made:
        _made[mesh] = from_torch_mesh(mesh)
    return _made[mesh]
