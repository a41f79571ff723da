# SPDX-License-Identifier: Apache-2.0
"""Any PyTorch model on uneven shards: sharded tensors for PyTorch, exact, with their rules in C++ below autograd.

A sharded tensor is a `torch.Tensor` that shows the shape of the whole and holds this rank's part. Names are those of `torch.distributed.tensor`; what are
methods there are functions here, since nothing is added to `torch.Tensor`::

    torch.distributed.init_process_group("gloo")
    mesh = meshard.init_device_mesh()
    x = meshard.from_local(own_rows, mesh, [meshard.Shard(0)])      # 7 rows here, 3 there, none elsewhere
    model = meshard.replicate(model, mesh)                          # any torch.nn.Module; backward sums the gradients of its parameters
    loss = torch.nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()

"Collective" in a docstring: all ranks of the mesh call it, in the same order.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import _torch_version

_torch_version.check()
_torch_version.warn_of_gpus()

from . import _core, _torch_hooks  # noqa: E402
from ._core import (CommunicationError, DeviceMesh, Error, InvalidInput, IoError, MissingShardRule, Partial, Placement,  # noqa: E402
                    Replicate, Shard, is_sharded)
from ._device_mesh import from_torch_mesh, init_device_mesh  # noqa: E402
from ._backend import install as _install_backend  # noqa: E402
from ._build_info import VERSION as __version__  # noqa: E402
from ._parameters import FullyShardedModule, fully_shard, no_sync, replicate  # noqa: E402
from ._probe import ProbeReport, probe  # noqa: E402
from ._rows import (GhostPlan, Neighbors, SurfaceDistance, exchange_ghosts, gather_neighbors, gather_rows, knn, radius_search, scatter_add,  # noqa: E402
                    scatter_ghosts, segment_reduce, segment_softmax, signed_distance, with_ghosts)
from ._tensors import (checkpoint, describe, device_mesh, distribute_tensor, extents, from_local, full_tensor, placements, record_rules,  # noqa: E402
                       redistribute, set_exact_mode, set_gather_policy, to_local)

if TYPE_CHECKING:
    from . import datasets, models
    from ._mesh_functions import Mesh, Part, SurfaceForces, check, forces, merge, mesh, partition, read, read_shards, write, write_shards
    from ._surrogate import Forces, Prediction, Sensitivity, Surrogate, load

__all__ = [
    "CommunicationError", "DeviceMesh", "Error", "Forces", "FullyShardedModule", "GhostPlan", "InvalidInput", "IoError", "Mesh", "MissingShardRule", "Neighbors",
    "Part", "Partial", "Placement", "Prediction", "ProbeReport", "Replicate", "Sensitivity", "Shard", "SurfaceDistance", "SurfaceForces", "Surrogate", "check", "checkpoint", "datasets",
    "describe", "device_mesh", "distribute_tensor", "exchange_ghosts", "extents", "forces", "from_local", "from_torch_mesh", "full_tensor", "fully_shard",
    "gather_neighbors", "gather_rows", "init_device_mesh", "is_sharded", "knn", "load", "merge", "mesh", "models", "no_sync", "partition", "placements", "probe",
    "radius_search", "read", "read_shards", "record_rules", "redistribute", "replicate", "scatter_add", "scatter_ghosts", "segment_reduce",
    "segment_softmax", "set_exact_mode", "set_gather_policy", "signed_distance", "to_local", "with_ghosts", "write", "write_shards",
]

_torch_hooks.install()
_install_backend()

# Loaded at the first use: models, meshes and their files, which need VTK and other libraries, and trained models, which need still more.
_SUBMODULES = ("datasets", "models")
_MESH_FUNCTIONS = ("Mesh", "Part", "SurfaceForces", "check", "forces", "merge", "mesh", "partition", "read", "read_shards", "write", "write_shards")
_SURROGATE_FUNCTIONS = ("Forces", "Prediction", "Sensitivity", "Surrogate", "load")


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _SURROGATE_FUNCTIONS:
        from . import _surrogate
        return getattr(_surrogate, name)
    if name not in _MESH_FUNCTIONS:
        raise AttributeError(f"module 'meshard' has no attribute '{name}'")
    from . import _mesh_functions
    return getattr(_mesh_functions, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MESH_FUNCTIONS, *_SURROGATE_FUNCTIONS, *_SUBMODULES})
