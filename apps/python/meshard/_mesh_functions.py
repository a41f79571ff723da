# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copyreg
import functools
import os
import warnings
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from . import _meshes
from ._core import InvalidInput
from ._meshes import Mesh, Part, SurfaceForces

# VTK's numbers of the cell types of meshio. The order of points is VTK's, but for wedges.
_MESHIO_TYPES = {"vertex": 1, "line": 3, "triangle": 5, "polygon": 7, "pixel": 8, "quad": 9, "tetra": 10, "hexahedron": 12, "wedge": 13, "pyramid": 14,
                 "penta_prism": 15, "hexa_prism": 16, "line3": 21, "triangle6": 22, "quad8": 23, "tetra10": 24, "hexahedron20": 25, "wedge15": 26,
                 "pyramid13": 27, "quad9": 28, "hexahedron27": 29, "quad6": 30, "wedge12": 31, "wedge18": 32, "hexahedron24": 33, "triangle7": 34, "line4": 35}
_POLYHEDRON = 42


def _values(name: str, given: Any) -> Any:
    """An array as meshard holds it: of a type of the machine's own order, in C's order, of one or two dimensions; or a list of texts."""
    where = f"Mesh: the array '{name}'"
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise InvalidInput(f"{where} has masked values, which meshard cannot keep. Fill them, as with .filled(np.nan).")
    array = np.asarray(given)
    if array.ndim == 0 or 0 in array.shape[1:]:
        raise InvalidInput(f"{where} has the shape {array.shape}, expected a row for each point or cell.")
    if array.dtype.kind in "US" or (array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat)):
        if array.ndim > 1:
            raise InvalidInput(f"{where} holds texts and has the shape {array.shape}, expected one dimension.")
        return [value.decode() if isinstance(value, bytes) else str(value) for value in array.tolist()]
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    elif array.dtype == np.float16:
        array = array.astype(np.float32)
    elif array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise InvalidInput(f"{where} is of type {array.dtype}; expected integers of 8 to 64 bits, float32, float64, bool or texts. Convert it.")
    return np.require(array.reshape(len(array), -1) if array.ndim > 2 else array, array.dtype.newbyteorder("="), "CA")


def _integers(what: str, given: Any, kind: Any) -> np.ndarray:
    """Whole numbers as an array of that type. Raises InvalidInput for others, and for those beyond the type."""
    array = np.asarray(given)
    if array.size and array.dtype.kind not in "iub":
        raise InvalidInput(f"{what} are of type {array.dtype}; expected integers.")
    bounds = np.iinfo(kind)
    if array.size and (array.min() < bounds.min or array.max() > bounds.max):
        raise InvalidInput(f"{what} lie in {array.min()} to {array.max()}; expected {bounds.min} to {bounds.max} ({bounds.bits} bits).")
    return np.ascontiguousarray(array, kind)


def _all_values(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): _values(str(name), array) for name, array in arrays.items()}


class Fields(MutableMapping):
    """The arrays of a mesh at its points or cells, or of the whole, by name. What is assigned is of the mesh from then on, arrays in C's order shared;
    the arrays themselves are read-only.

    Assigning raises InvalidInput (a ValueError) for another number of rows, and for types that a mesh cannot hold."""

    def __init__(self, mesh: Mesh, place: str) -> None:
        self._mesh, self._place = mesh, place

    def __getitem__(self, name: str) -> Any:
        return self._mesh._arrays(self._place)[name]

    def __setitem__(self, name: str, values: Any) -> None:
        self._mesh._put_array(self._place, name, _values(name, values))

    def __delitem__(self, name: str) -> None:
        self[name]
        self._mesh._drop_array(self._place, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._mesh._arrays(self._place))

    def __len__(self) -> int:
        return len(self._mesh._arrays(self._place))

    def __repr__(self) -> str:
        return repr(self._mesh._arrays(self._place))


for _place in ("point", "cell", "field"):
    setattr(Mesh, f"{_place}_data", property(functools.partial(lambda place, mesh: Fields(mesh, place), _place)))


def mesh(points: Any, cells: Optional[tuple[Any, Any]] = None, cell_types: Any = None, *, point_data: Mapping[str, Any] = {}, cell_data: Mapping[str, Any] = {},
         face_streams: Optional[tuple[Any, Any]] = None, surface: bool = False) -> Mesh:
    """A mesh of arrays of numpy; arrays in C's order and the machine's byte order are shared, not copied, and must not change while the mesh lives.

    points:     (N, 3), float32 or float64
    cells:      (offsets, connectivity): cell i has the points connectivity[offsets[i]] up to connectivity[offsets[i + 1]], in VTK's order; (C + 1) and (E).
                None: a point cloud
    cell_types: (C), VTK's numbers, as 5 for triangles, 12 for hexahedra
    point_data, cell_data: arrays of N or C rows by name: integers, floats, bool (kept as 0 and 1 in 8 bits), or texts
    face_streams: (offsets, streams) where there are polyhedra (type 42): of each the number of faces, then for each face its number of points and the points;
                other cells have an empty row
    surface:    whether it is VTK's polygonal data (.vtp), not an unstructured grid (.vtu)

    Raises InvalidInput (a ValueError) where shapes or types do not fit, or a cell has a point that does not exist."""
    offsets, connectivity = cells if cells is not None else ([0], [])
    stream_offsets, streams = face_streams if face_streams is not None else ([0], [])
    types = [] if cell_types is None else cell_types
    points = _values("Points", points)
    if isinstance(points, list) or points.dtype not in (np.float32, np.float64):
        points = np.asarray(points, np.float64)
    return _meshes.make_mesh(points, _integers("mesh: offsets of cells", offsets, np.int64), _integers("mesh: points of cells", connectivity, np.int32),
                             _integers("mesh: types of cells", types, np.uint8), _integers("mesh: offsets of face_streams", stream_offsets, np.int64),
                             _integers("mesh: face_streams", streams, np.int32), _all_values(point_data), _all_values(cell_data), surface)


def _with_fields(mesh: Mesh, arrays: Mapping[str, Any]) -> Mesh:
    """The mesh with the arrays of the whole that pyvista and meshio call field data: texts, single values and rows."""
    for name, values in arrays.items():
        mesh.field_data[str(name)] = np.atleast_1d(values)
    return mesh


def _face_streams_of_pyvista(given: Any, types: Any) -> tuple[Any, Any]:
    """By VTK's own access to single cells, which is the same in all its versions."""
    from vtkmodules.vtkCommonCore import vtkIdList
    ids, rows = vtkIdList(), []
    for cell, cell_type in enumerate(types):
        row = []
        if cell_type == _POLYHEDRON:
            given.GetFaceStream(cell, ids)
            row = [ids.GetId(i) for i in range(ids.GetNumberOfIds())]
        rows.append(row)
    return np.cumsum([0] + [len(row) for row in rows]), [value for row in rows for value in row]


def _polygon_types(offsets: Any) -> Any:
    sizes = np.diff(offsets)
    return np.where(sizes == 3, 5, np.where(sizes == 4, 9, 7))


def _of_pyvista(given: Any) -> Mesh:
    data = dict(point_data=dict(given.point_data), cell_data=dict(given.cell_data))
    if hasattr(given, "celltypes"):
        types = np.asarray(given.celltypes)
        streams = _face_streams_of_pyvista(given, types) if (types == _POLYHEDRON).any() else None
        offsets = given.cell_offsets if hasattr(given, "cell_offsets") else given.offset   # the name until pyvista 0.48
        return _with_fields(mesh(given.points, (offsets, given.cell_connectivity), types, face_streams=streams, **data), given.field_data)
    if given.n_lines or given.n_verts or given.n_strips:
        raise InvalidInput("mesh: polygonal data of pyvista with vertices, lines or strips; call cast_to_unstructured_grid() first.")
    stream, offsets, connectivity = np.asarray(given.faces), [0], []
    at = 0
    while at < len(stream):
        size = int(stream[at])
        connectivity.append(stream[at + 1:at + 1 + size])
        offsets.append(offsets[-1] + size)
        at += size + 1
    return _with_fields(mesh(given.points, (offsets, np.concatenate(connectivity) if connectivity else []), _polygon_types(offsets), surface=True, **data),
                        given.field_data)


def _wedges_in_order(points: Any, wedges: Any) -> Any:
    """Wedges of meshio in VTK's order of positive volume. meshio means gmsh's order, in which the first triangle looks inward, but turns those of VTK's files, of
    which both kinds exist: the volume tells."""
    corners = points[wedges]
    heights = corners[:, 3:].mean(1) - corners[:, :3].mean(1)
    volumes = np.einsum("ij,ij->i", np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), heights)
    return wedges[:, [0, 2, 1, 3, 5, 4]] if volumes.sum() < 0 else wedges


def _of_meshio(given: Any) -> Mesh:
    points = np.asarray(given.points)
    if points.shape[1] == 2:
        points = np.column_stack([points, np.zeros(len(points), points.dtype)])
    cells, types, streams = [], [], []
    for block in given.cells:
        if block.type.startswith("polyhedron"):
            for faces in block.data:
                if len(faces) == 0:
                    raise InvalidInput(f"mesh: cell {len(cells)}, a polyhedron, has no faces; expected four or more.")
                cells.append(np.unique(np.concatenate([np.ravel(face) for face in faces])))
                streams.append([len(faces)] + [int(value) for face in faces for value in (len(face), *face)])
            types += [_POLYHEDRON] * len(block.data)
            continue
        if block.type not in _MESHIO_TYPES:
            raise InvalidInput(f"mesh: cells of meshio's type '{block.type}' are not taken; known are {sorted(_MESHIO_TYPES)} and polyhedra.")
        cells += list(_wedges_in_order(points, np.asarray(block.data)) if block.type == "wedge" else block.data)
        types += [_MESHIO_TYPES[block.type]] * len(block.data)
        streams += [[]] * len(block.data)
    ends = np.cumsum([0] + [len(cell) for cell in cells])
    faces = (np.cumsum([0] + [len(row) for row in streams]), [value for row in streams for value in row]) if any(streams) else None
    if getattr(given, "point_sets", None) or getattr(given, "cell_sets", None):
        warnings.warn("the point_sets and cell_sets of meshio's mesh are left out; its point_sets_to_data() and cell_sets_to_data() make arrays of them, which are kept.",
                      stacklevel=3)
    taken = mesh(points, (ends, np.concatenate(cells) if cells else []), types, face_streams=faces, point_data=given.point_data,
                 cell_data={name: np.concatenate(blocks) for name, blocks in given.cell_data.items()})
    return _with_fields(taken, given.field_data)


def _of_vtk(given: Any) -> Mesh:
    """Of VTK's own polygonal data, whose cells are polygons, or unstructured grid."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    def is_taken(array: Any) -> bool:
        texts = array.IsA("vtkStringArray") and array.GetNumberOfComponents() == 1 and array.GetNumberOfValues() > 0
        return bool(array.GetName()) and (texts or array.IsA("vtkDataArray"))

    def values(array: Any) -> Any:
        if array.IsA("vtkBitArray"):
            return np.array([array.GetValue(i) for i in range(array.GetNumberOfValues())], bool).reshape(-1, array.GetNumberOfComponents())
        return [array.GetValue(i) for i in range(array.GetNumberOfValues())] if array.IsA("vtkStringArray") else vtk_to_numpy(array)

    def named(attributes: Any) -> dict[str, Any]:
        arrays = [attributes.GetAbstractArray(i) for i in range(attributes.GetNumberOfArrays())]
        taken = {array.GetName(): values(array) for array in arrays if is_taken(array)}
        if len(taken) < len(arrays):
            warnings.warn(f"{len(arrays) - len(taken)} arrays of VTK without a name, or of neither numbers nor single texts, are left out.", stacklevel=4)
        return taken

    is_surface = hasattr(given, "GetPolys")
    if is_surface and given.GetPolys().GetNumberOfCells() != given.GetNumberOfCells():
        raise InvalidInput("mesh: polygonal data of VTK with vertices, lines or strips; vtkTriangleFilter leaves polygons alone.")
    cells = given.GetPolys() if is_surface else given.GetCells()
    offsets, connectivity = vtk_to_numpy(cells.GetOffsetsArray()), vtk_to_numpy(cells.GetConnectivityArray())
    types = _polygon_types(offsets) if is_surface else np.array([given.GetCellType(i) for i in range(given.GetNumberOfCells())])
    streams = _face_streams_of_pyvista(given, types) if (types == _POLYHEDRON).any() else None
    taken = mesh(vtk_to_numpy(given.GetPoints().GetData()), (offsets, connectivity), types, face_streams=streams, surface=is_surface,
                 point_data=named(given.GetPointData()), cell_data=named(given.GetCellData()))
    return _with_fields(taken, named(given.GetFieldData()))


def _of_polygons(points: Any, polygons: Any) -> Mesh:
    """Of points (N, 3) and polygons: an array (M, k) or a list of point numbers for each, or (offsets, connectivity)."""
    if isinstance(polygons, tuple):
        offsets, connectivity = (np.asarray(part) for part in polygons)
    else:
        rows = [np.asarray(polygon) for polygon in polygons]
        offsets, connectivity = np.cumsum([0] + [len(row) for row in rows]), np.concatenate(rows) if rows else np.zeros(0, int)
    if connectivity.dtype.kind not in "iu":
        raise InvalidInput(f"mesh: polygons are numbers of points, integers; found {connectivity.dtype}.")
    return mesh(points, (offsets, connectivity), _polygon_types(offsets), surface=True)


def as_mesh(given: Any) -> Mesh:
    """A mesh as it is, or one of a file, of pyvista, of VTK, of meshio, points (N, 3) of a cloud, or (points, polygons) of a surface. Raises InvalidInput (a
    ValueError) for anything else."""
    if isinstance(given, Mesh):
        return given
    if isinstance(given, (str, os.PathLike)):
        return read(given)
    if hasattr(given, "point_data") and (hasattr(given, "celltypes") or hasattr(given, "n_strips")):
        return _of_pyvista(given)
    if hasattr(given, "point_data") and hasattr(given, "cast_to_unstructured_grid"):
        return _of_pyvista(given.cast_to_unstructured_grid())  # grids of pyvista
    if hasattr(given, "GetPolys") or hasattr(given, "GetCells"):
        return _of_vtk(given)
    if hasattr(given, "point_data") and hasattr(given, "cells"):
        return _of_meshio(given)
    if isinstance(given, np.ndarray):
        return mesh(given)
    if isinstance(given, tuple) and len(given) == 2:
        return _of_polygons(*given)
    raise InvalidInput("expected a Mesh of meshard, pyvista, VTK or meshio, the path of a file, an array (N, 3) of points, or (points, polygons); "
                       f"found {type(given).__name__}.")


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
    """Cuts a mesh (or one of a file, of pyvista, VTK or meshio, points of a cloud, or (points, polygons)) into n parts with ghosts. Same arguments, same parts.

    method:    'metis', 'recursive', 'scotch', 'rcb', 'hilbert' or 'auto', as of `meshard partition`
    quality:   searches longer for fewer cut faces
    owners:    the part of each cell (of a cloud: point), instead of a method

    Each part has `mesh`, with its own rows first and ghosts after, `num_owned`, `global_ids` of its rows, `ghost_owners`, `ghost_levels`.

    Raises InvalidInput (a ValueError) for an unknown method, n below 1, imbalance below 1, or owners that do not fit."""
    owners = None if owners is None else _integers("partition: owners", owners, np.int32).tolist()
    return _meshes.partition(as_mesh(mesh), n, method, ghost_layers, imbalance, seed, quality, owners)


def merge(parts: Sequence[Part]) -> Mesh:
    """The owned rows of all parts in the order of their source: the inverse of `partition`.

    Raises InvalidInput (a ValueError) where a row is owned by no part or by two."""
    return _meshes.merge(list(parts))


def write_shards(folder: Union[str, os.PathLike], parts: Sequence[Part], *, source: str = "") -> None:
    """Writes the parts of one mesh as `meshard partition` does: a folder that appears complete or not at all.

    Raises IoError (an OSError) if the folder exists or cannot be written."""
    _meshes.write_shards(folder, list(parts), source)


def read_shards(folder: Union[str, os.PathLike], part: Optional[int] = None, *, verify: bool = True) -> Union[list[Part], Part]:
    """The parts of a folder that `write_shards` or `meshard partition` has written, or one of them.

    verify:    compare the bytes of each piece with the manifest's hash

    Raises IoError (an OSError) if it is no such folder, a file does not match it or was damaged; InvalidInput if there is no such part."""
    if part is not None:
        return read_part(os.path.abspath(folder), part, verify)
    parts = _meshes.read_shards(folder, verify)
    for one in parts:
        _folders[one] = os.path.abspath(folder), _arrays_of(one)
    return parts


_folders: weakref.WeakKeyDictionary[Part, tuple[str, list]] = weakref.WeakKeyDictionary()   # where parts were read, and what they had then


def _arrays_of(part: Part) -> list:
    """Names of the arrays and where their values lie, which assigning changes: arrays are read-only."""
    of_mesh = [(place, name, part.mesh._arrays(place)[name]) for place in ("point", "cell", "field") for name in part.mesh._arrays(place)]
    return [(place, name, (values.shape, values.ctypes.data if values.size else 0) if isinstance(values, np.ndarray) else list(values))
            for place, name, values in of_mesh]


def read_part(folder: str, number: int, verify: bool) -> Part:
    """One part of a folder of shards. It can be pickled: another process reads it from there."""
    part = _meshes.read_part(folder, number, verify)
    _folders[part] = folder, _arrays_of(part)
    return part


def _reduced(part: Part) -> tuple:
    if part not in _folders:
        raise TypeError("a Part can be pickled only if it was read from a folder of shards. Write it with meshard.write_shards.")
    folder, arrays = _folders[part]
    if _arrays_of(part) != arrays:
        raise TypeError("a Part whose arrays were changed since it was read cannot be pickled: another process reads it from its folder. Write it with "
                        "meshard.write_shards, or change it there.")
    return read_part, (folder, part.part, False)


copyreg.pickle(Part, _reduced)


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

    Raises InvalidInput (a ValueError) if the sizes disagree or there is no such array. Warns of cells none of which is a polygon: nothing acts on them."""
    mesh = as_mesh(mesh)

    def values(given: Any) -> Any:
        if not isinstance(given, str):
            return np.asarray(given, np.float64)
        if given not in mesh.cell_data:
            raise InvalidInput(f"forces: the mesh has no cell array '{given}'; it has {sorted(mesh.cell_data)}.")
        return np.asarray(mesh.cell_data[given], np.float64)

    found = _meshes.forces(mesh, values(pressure).tolist(), [] if traction is None else values(traction).tolist(), list(centre))
    if mesh.n_cells > 0 and found.area == 0:
        warnings.warn("forces: the mesh has no polygons with an area, on which forces act: they are 0.", stacklevel=2)
    return found
