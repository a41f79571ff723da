# SPDX-License-Identifier: Apache-2.0
import os
from typing import Any, Mapping, Optional, Sequence, Union

from ._core import DeviceMesh
from ._meshes import Mesh

Path = Union[str, os.PathLike]

class Input:
    name: str
    required: bool
    for_forces: bool
    trained: Optional[tuple[float, float]]

class ShapeSensitivity:
    value: float
    gradient: Any
    normal: Any

class Prediction:
    mesh: Optional[Mesh]
    fields: dict[str, Any]
    spread: dict[str, Any]
    coefficients: dict[str, tuple[float, Optional[float]]]
    why: str
    intervals: dict[str, float]
    isolation: Optional[float]
    feature_isolation: Optional[float]
    is_far: bool
    sensitivities: list[ShapeSensitivity]
    warnings: list[str]

class Models:
    on_cells: bool
    needs_wall: bool
    warnings: list[str]
    targets: list[tuple[str, int]]
    inputs: list[Input]
    checkpoints: list[os.PathLike]
    device: str
    num_ranks: int
    def __init__(self, runs: Sequence[Path], volume: bool, orient: str, device: str, device_index: int,
                 ranks: Optional[DeviceMesh], /) -> None: ...
    def predict(self, mesh: Union[Mesh, Path], values: Mapping[str, float], wall: Path, other_part: Path, with_forces: bool,
                sensitivities: Sequence[str], in_double: bool, /) -> Prediction: ...
    def network(self) -> tuple[str, dict[str, Any]]: ...
    def network_inputs(self, mesh: Union[Mesh, Path], values: Mapping[str, float], wall: Path, /) -> tuple[dict[str, Any], list[str]]: ...
    def missing_for_forces(self, values: Mapping[str, float], /) -> list[str]: ...
