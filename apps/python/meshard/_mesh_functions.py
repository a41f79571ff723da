# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from . import _meshes
from ._core import InvalidInput
from ._meshes import Mesh, Part, SurfaceForces

# VTK's numbers of the cell types of meshio that have the same order of points.
_MESHIO_TYPES = {"vertex": 1, "line": 3, "triangle": 5, "quad": 9, "tetra": 10, "hexahedron": 12, "wedge": 13, "pyramid": 14, "line3": 21, "triangle6": 22,
                 "quad8": 23, "tetra10": 24}


def mesh(points: Any, cells: Optional[tuple[Any, Any]] = None, cell_types: Any = None, *, point_data: Mapping[str, Any] = {}, cell_data: Mapping[str, Any] = {},
         surface: bool = False) -> Mesh:
    """A mesh of arrays of numpy; float arrays in C's order are shared, not copied, and must not change while the mesh lives.

    points:     (N, 3), float32 or float64
    cells:      (offsets, connectivity): cell i has the points connectivity[offsets[i]] up to connectivity[offsets[i + 1]], in VTK's order; (C + 1) and (E).
                None: a point cloud
    cell_types: (C), VTK's numbers, as 5 for triangles, 12 for hexahedra
    point_data, cell_data: arrays of N or C rows by name
    surface:    whether it is VTK's polygonal data (.vtp), not an unstructured grid (.vtu)

    Raises InvalidInput (a ValueError) where shapes or types do not fit, or a cell has a point that does not exist."""
    offsets, connectivity = cells if cells is not None else ([0], [])
    types = [] if cell_types is None else cell_types
    connectivity = np.asarray(connectivity)
    if connectivity.size and connectivity.max() > np.iinfo(np.int32).max:
        raise InvalidInput(f"mesh: point {connectivity.max()} is beyond 32 bits.")
    points = np.ascontiguousarray(points)
    if points.dtype not in (np.float32, np.float64):
        points = points.astype(np.float64)
    return _meshes.make_mesh(points, np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(connectivity, np.int32), np.ascontiguousarray(types, np.uint8),
                             {name: np.ascontiguousarray(array) for name, array in point_data.items()},
                             {name: np.ascontiguousarray(array) for name, array in cell_data.items()}, surface)


def _of_pyvista(given: Any) -> Mesh:
    data = dict(point_data=dict(given.point_data), cell_data=dict(given.cell_data))
    if hasattr(given, "celltypes"):
        return mesh(given.points, (given.offset, given.cell_connectivity), given.celltypes, **data)
    if given.n_lines or given.n_verts or given.n_strips:
        raise InvalidInput("mesh: polygonal data of pyvista with vertices, lines or strips; call cast_to_unstructured_grid() first.")
    stream, offsets, connectivity = np.asarray(given.faces), [0], []
    at = 0
    while at < len(stream):
        size = int(stream[at])
        connectivity.append(stream[at + 1:at + 1 + size])
        offsets.append(offsets[-1] + size)
        at += size + 1
    sizes = np.diff(offsets)
    types = np.where(sizes == 3, 5, np.where(sizes == 4, 9, 7))
    return mesh(given.points, (offsets, np.concatenate(connectivity) if connectivity else []), types, surface=True, **data)


def _of_meshio(given: Any) -> Mesh:
    unknown = {block.type for block in given.cells} - set(_MESHIO_TYPES)
    if unknown:
        raise InvalidInput(f"mesh: cells of meshio's types {sorted(unknown)} are not taken; known are {sorted(_MESHIO_TYPES)}.")
    sizes = np.concatenate([np.full(len(block.data), block.data.shape[1]) for block in given.cells]) if given.cells else np.empty(0, int)
    types = [np.full(len(block.data), _MESHIO_TYPES[block.type]) for block in given.cells]
    points = np.asarray(given.points)
    if points.shape[1] == 2:
        points = np.column_stack([points, np.zeros(len(points), points.dtype)])
    return mesh(points, (np.concatenate([[0], np.cumsum(sizes)]), np.concatenate([np.ravel(block.data) for block in given.cells] or [[]])),
                np.concatenate(types or [[]]), point_data=given.point_data, cell_data={name: np.concatenate(blocks) for name, blocks in given.cell_data.items()})


def as_mesh(given: Any) -> Mesh:
    """A mesh as it is, or one of a file, of pyvista, of meshio, or points (N, 3) of a cloud. Raises InvalidInput (a ValueError) for anything else."""
    if isinstance(given, Mesh):
        return given
    if isinstance(given, (str, os.PathLike)):
        return read(given)
    if hasattr(given, "point_data") and (hasattr(given, "celltypes") or hasattr(given, "n_strips")):
        return _of_pyvista(given)
    if hasattr(given, "point_data") and hasattr(given, "cells"):
        return _of_meshio(given)
    if isinstance(given, np.ndarray):
        return mesh(given)
    raise InvalidInput(f"expected a Mesh of meshard, pyvista or meshio, the path of a file, or an array (N, 3) of points; found {type(given).__name__}.")


def read(path: Union[str, os.PathLike]) -> Mesh:
    """Reads a mesh from a file of any format that `meshard info` knows. Arrays of an uncompressed file are views into the mapped file.

    What is read in another way than it is written, as names in an undeclared encoding, is a UserWarning. Raises IoError (an OSError) if the file is missing, damaged or of an unknown format."""
    return _meshes.read_mesh(path)


def write(path: Union[str, os.PathLike], mesh: Any) -> None:
    """Writes a mesh (or one of pyvista or meshio) as .vtu, .vtp, .pvtu, .pvtp or .vtkhdf, by the extension; on failure nothing is left.

    Raises IoError (an OSError) for an unknown extension or a file that cannot be written, InvalidInput if the format cannot hold the mesh."""
    _meshes.write_mesh(path, as_mesh(mesh))


def partition(mesh: Any, n: int, *, method: str = "metis", ghost_layers: int = 1, imbalance: float = 1.03, seed: int = 0, quality: bool = False,
              owners: Optional[Sequence[int]] = None) -> list[Part]:
    """Cuts a mesh (or one of a file, of pyvista or meshio, or points of a cloud) into n parts with ghosts. Same arguments, same parts.

    method:    'metis', 'recursive', 'scotch', 'rcb', 'hilbert' or 'auto', as of `meshard partition`
    quality:   searches longer for fewer cut faces
    owners:    the part of each cell (of a cloud: point), instead of a method

    Each part has `mesh`, with its own rows first and ghosts after, `num_owned`, `global_ids` of its rows, `ghost_owners`, `ghost_levels`.

    Raises InvalidInput (a ValueError) for an unknown method, n below 1, imbalance below 1, or owners that do not fit."""
    owners = None if owners is None else [int(owner) for owner in owners]
    return _meshes.partition(as_mesh(mesh), n, method, ghost_layers, imbalance, seed, quality, owners)


def merge(parts: Sequence[Part]) -> Mesh:
    """The owned rows of all parts in the order of their source: the inverse of `partition`.

    Raises InvalidInput (a ValueError) where a row is owned by no part or by two."""
    return _meshes.merge(list(parts))


def write_shards(folder: Union[str, os.PathLike], parts: Sequence[Part], *, source: str = "") -> None:
    """Writes the parts of one mesh as `meshard partition` does: a folder that appears complete or not at all.

    Raises IoError (an OSError) if the folder exists or cannot be written."""
    _meshes.write_shards(folder, list(parts), source)


def read_shards(folder: Union[str, os.PathLike], part: Optional[int] = None) -> Union[list[Part], Part]:
    """The parts of a folder that `write_shards` or `meshard partition` has written, or one of them.

    Raises IoError (an OSError) if it is no such folder or a file does not match it; InvalidInput if there is no such part."""
    return _meshes.read_shards(folder) if part is None else _meshes.read_part(folder, part)


def check(given: Any) -> list[str]:
    """What is wrong with a folder of shards, as `meshard check` says it, or suspicious in a mesh (one of a file, of pyvista or meshio), one sentence each; empty if
    nothing is. A folder's test needs memory for the whole mesh, twice.

    Folder: pieces are as the manifest says, every row is owned once, ghosts are their owners' rows bit for bit and those within reach.
    Mesh: points that no cell uses, duplicate, degenerate and inverted cells.

    Raises IoError (an OSError) if a folder is none of shards or a file cannot be read."""
    if isinstance(given, (str, os.PathLike)) and os.path.isdir(given):
        return _meshes.check_shards(given)
    return _meshes.check_mesh(as_mesh(given))


def forces(mesh: Any, pressure: Any, traction: Any = None, *, centre: Sequence[float] = (0, 0, 0)) -> SurfaceForces:
    """Force and moment of a fluid on a surface of polygons whose normals point out of the body.

    pressure: (C), of each cell, or the name of a cell array
    traction: (C, 3), the stress of the fluid on the body, or the name of a cell array; OpenFOAM's wallShearStress is minus that

    The result has `area`, `pressure_force`, `viscous_force`, `pressure_moment` and `viscous_moment` about `centre`.

    Raises InvalidInput (a ValueError) if the sizes disagree or there is no such array."""
    mesh = as_mesh(mesh)

    def values(given: Any) -> Any:
        if not isinstance(given, str):
            return np.asarray(given, np.float64)
        if given not in mesh.cell_data:
            raise InvalidInput(f"forces: the mesh has no cell array '{given}'; it has {sorted(mesh.cell_data)}.")
        return np.asarray(mesh.cell_data[given], np.float64)

    return _meshes.forces(mesh, values(pressure).tolist(), [] if traction is None else values(traction).tolist(), list(centre))
