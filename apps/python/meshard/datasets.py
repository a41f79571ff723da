# SPDX-License-Identifier: Apache-2.0
"""Cases on disk as a `torch.utils.data.Dataset` of sharded tensors."""
from __future__ import annotations

import os
import pathlib
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np
import torch

from . import _core, _mesh_functions, _meshes
from ._core import DeviceMesh, InvalidInput
from ._device_mesh import AnyMesh, own_mesh

__all__ = ["Shards"]

_OWN = ("points", "ids", "name", "part")   # what a case has beside its fields


class Shards(torch.utils.data.Dataset):
    """Meshes that `meshard partition` or `write_shards` has cut, as sharded tensors: each rank reads its own part alone. `len(cases)` and `cases[i]`::

        cases = meshard.datasets.Shards("shards", mesh, fields=["p", "U"])
        points, p, U = (cases[0][name] for name in ("points", "p", "U"))

    folder: one folder of shards, or a folder whose subfolders are those of one case each, in the order of their names
    device_mesh: the ranks; along `axis` as many as a case has parts. Ranks along other axes read the same
    fields: names of arrays of the rows (cells, of a cloud points); None: all that are numbers
    dtype:  of the floating arrays; None: as they are in the file
    transform: is given each case, and what it returns is the item. It may be called on any rank alone

    A case is a dict: `points`, the places of the rows (of cells their centroids) (N, 3), the fields (N) or (N, channels), `ids` (N), int64, the row's number in
    the source, `name`, the folder's, and `part`, this rank's `Part` with its mesh and ghosts. Tensors are cut along their rows, which are those of the parts one after
    the other. Reading a case is not collective: what all ranks hold is in the case's manifest. A DataLoader works with batch_size=None, with workers too.

    Raises InvalidInput (a ValueError) for a folder without shards, another number of parts than ranks along the axis, and an unknown field; IoError (an OSError) for
    damaged files."""

    def __init__(self, folder: Union[str, os.PathLike], device_mesh: AnyMesh, *, axis: str = "domain", fields: Optional[Sequence[str]] = None,
                 dtype: Optional[torch.dtype] = torch.float32, transform: Optional[Callable[[dict], Any]] = None) -> None:
        mesh = own_mesh(device_mesh)
        self._mesh: DeviceMesh = mesh if tuple(mesh.mesh_dim_names) == (axis,) else mesh[axis]
        self._fields = None if fields is None else list(fields)
        self._dtype, self._transform = dtype, transform
        root = pathlib.Path(folder)
        if not root.is_dir():
            raise InvalidInput(f"Shards: there is no folder {root}.")
        self.folders = [root] if _is_case(root) else sorted(path for path in root.iterdir() if path.is_dir() and _is_case(path))
        if not self.folders:
            raise InvalidInput(f"Shards: {root} is neither a folder of shards nor has subfolders that are. Write them with `meshard partition` or write_shards.")
        self._rows_of_parts = [_meshes.rows_of_parts(path) for path in self.folders]
        for path, (_, owned) in zip(self.folders, self._rows_of_parts):
            if len(owned) != self._mesh.size():
                raise InvalidInput(f"Shards: {path} has {len(owned)} parts, but the axis '{axis}' has {self._mesh.size()} ranks. Cut it again: "
                                   f"meshard repartition {path} -n {self._mesh.size()} -o OTHER.")

    def __len__(self) -> int:
        return len(self.folders)

    def __getitem__(self, index: int) -> Any:
        path, (is_cloud, owned) = self.folders[index], self._rows_of_parts[index]
        part = _mesh_functions.read_part(os.path.abspath(path), self._mesh.get_local_rank(), True)
        arrays = _mesh_functions.Fields(part.mesh, "point" if is_cloud else "cell")
        points = np.asarray(part.mesh.points)
        places = points if is_cloud else _meshes.centroids(part.mesh).astype(points.dtype)
        case: dict[str, Any] = {"points": self._rows(places[:part.num_owned].reshape(-1, 3), owned)}
        for name in _numeric(arrays) if self._fields is None else self._fields:
            if name in _OWN:
                raise InvalidInput(f"Shards: {path} has an array '{name}', which a case would hold beside its own {', '.join(_OWN)}. Rename it in the mesh, or "
                                   "say with fields=[...] which arrays are wanted.")
            if name not in arrays:
                raise InvalidInput(f"Shards: {path} has no array '{name}' of its rows; it has {sorted(arrays)}.")
            case[name] = self._rows(np.asarray(arrays[name])[:part.num_owned], owned)
        case["ids"] = self._rows(np.asarray(part.global_ids)[:part.num_owned].astype(np.int64), owned)
        case["name"], case["part"] = path.name, part
        return case if self._transform is None else self._transform(case)

    def _rows(self, own: np.ndarray, owned: Sequence[int]) -> torch.Tensor:
        rows = torch.from_numpy(np.array(own))   # a copy: the file's pages are mapped
        if rows.is_floating_point() and self._dtype is not None:
            rows = rows.to(self._dtype)
        sizes = [sum(owned), *rows.shape[1:]]
        return _core.with_portable_layout(rows, self._mesh, [(1, 0, 0, list(owned), 1)], sizes, list(torch.empty(sizes, device="meta").stride()))


def _is_case(path: pathlib.Path) -> bool:
    return (path / "manifest.json").is_file()


def _numeric(arrays: Any) -> list[str]:
    return [name for name in arrays if np.asarray(arrays[name]).dtype.kind in "fiu" and not name.startswith("vtkGhost")]
