# SPDX-License-Identifier: Apache-2.0
import os
from typing import Any, Mapping, MutableMapping, Optional, Sequence, Union

import numpy as np

Path = Union[str, os.PathLike]

class Mesh:
    points: np.ndarray
    offsets: np.ndarray
    connectivity: np.ndarray
    cell_types: np.ndarray
    point_data: MutableMapping[str, Any]
    cell_data: MutableMapping[str, Any]
    field_data: MutableMapping[str, Any]
    n_points: int
    n_cells: int
    is_surface: bool
    def _arrays(self, place: str, /) -> dict[str, Any]: ...
    def _put_array(self, place: str, name: str, values: Union[np.ndarray, list[str]], /) -> None: ...
    def _drop_array(self, place: str, name: str, /) -> None: ...
    def difference(self, other: Mesh, /) -> str: ...

class Part:
    part: int
    num_parts: int
    num_ghost_layers: int
    mesh: Mesh
    num_owned: int
    num_owned_points: int
    global_ids: np.ndarray
    global_point_ids: np.ndarray
    ghost_owners: np.ndarray
    ghost_levels: np.ndarray

class SurfaceForces:
    area: float
    pressure_force: list[float]
    viscous_force: list[float]
    pressure_moment: list[float]
    viscous_moment: list[float]

def make_mesh(points: np.ndarray, offsets: np.ndarray, connectivity: np.ndarray, types: np.ndarray, stream_offsets: np.ndarray, streams: np.ndarray,
              point_data: Mapping[str, Union[np.ndarray, list[str]]], cell_data: Mapping[str, Union[np.ndarray, list[str]]], is_surface: bool, /) -> Mesh: ...
def read_mesh(path: Path, /) -> Mesh: ...
def write_mesh(path: Path, mesh: Mesh, /) -> None: ...
def partition(mesh: Mesh, num_parts: int, method: str, ghost_layers: int, imbalance: float, seed: int, thorough: bool, owners: Optional[Sequence[int]],
              /) -> list[Part]: ...
def merge(parts: Sequence[Part], /) -> Mesh: ...
def rows_of_parts(folder: Path, /) -> tuple[bool, list[int]]: ...
def centroids(mesh: Mesh, /) -> np.ndarray: ...
def check_shards(folder: Path, /) -> list[str]: ...
def check_mesh(mesh: Mesh, /) -> list[str]: ...
def write_shards(folder: Path, parts: Sequence[Part], source: str, /) -> None: ...
def read_shards(folder: Path, verify: bool, /) -> list[Part]: ...
def read_part(folder: Path, part: int, verify: bool, /) -> Part: ...
def forces(mesh: Mesh, pressures: Sequence[float], tractions: Sequence[Sequence[float]], centre: Sequence[float], /) -> SurfaceForces: ...
