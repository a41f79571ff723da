# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Sequence, Union

import torch

from . import _learning
from ._core import InvalidInput
from ._device_mesh import AnyMesh, own_mesh
from ._learning import Input
from ._mesh_functions import Mesh, as_mesh

Path = Union[str, os.PathLike]


class _Named(Mapping):
    """Values by name, which are not to be changed."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Prediction(_Named):
    """Fields by name, as arrays of numpy: (N) or (N, components), float32, with a row a cell or point of the mesh, in the units of the training data.

    spread:    of several runs the standard deviations (of n - 1), by name; else empty
    on_cells:  whether rows are cells, not points
    mesh:      the Mesh with the fields, as `meshard predict` writes it; of several ranks on the first, else None
    warnings:  what is doubtful, a sentence each, of several ranks on the first; these are UserWarnings, too"""

    def __init__(self, found: _learning.Prediction, on_cells: bool) -> None:
        super().__init__(found.fields)
        self.spread: dict[str, Any] = found.spread
        self.on_cells, self.mesh, self.warnings = on_cells, found.mesh, list(found.warnings)

    def __repr__(self) -> str:
        fields = ", ".join(f"'{name}': {array.shape}" for name, array in self.items())
        return f"<Prediction on {'cells' if self.on_cells else 'points'}: {fields}>"


class Forces(_Named):
    """Coefficients by name: Cd, Cl and Cs by the fields, and Cmx, Cmy, Cmz where `moment_length` is told or the run says a length; Cd_head and Cl_head by a head of
    the model, Cd_shape and Cl_shape by the shape alone, where there are such.

    spread:      of several runs the standard deviations (of n - 1), by name; else empty
    intervals:   of Cd and Cl half the widths that hold the truth of 90 % of such cases, by the runs' validation cases; empty where these are fewer than 9
    isolation:   distance of the shape and its constants from the nearest training case, over the median of that distance among the training cases; None for runs
                 of fewer than 10
    feature_isolation: the same of what the model's last layer is given, from the mean of the training cases; None where the run's folder has no features.json
    is_far:      whether one of both is more than of any training case, so that the coefficients are not to be relied on
    prediction:  the fields that they are of"""

    def __init__(self, found: _learning.Prediction, on_cells: bool) -> None:
        super().__init__({name: mean for name, (mean, _) in found.coefficients.items()})
        self.spread: dict[str, float] = {name: deviation for name, (_, deviation) in found.coefficients.items() if deviation is not None}
        self.intervals, self.is_far = dict(found.intervals), found.is_far
        self.isolation, self.feature_isolation = found.isolation, found.feature_isolation
        self.prediction = Prediction(found, on_cells)

    def __repr__(self) -> str:
        return f"<Forces: {', '.join(f'{name} {value:.5g}' for name, value in self.items())}>"


def _as_given(mesh: Any) -> Union[Mesh, str]:
    return os.fspath(mesh) if isinstance(mesh, (str, os.PathLike)) else as_mesh(mesh)


def _of_first_rank(mesh: Any, models: _learning.Models) -> Union[Mesh, str]:
    """The mesh of the first rank; the others may have none."""
    return "" if mesh is None and models.num_ranks > 1 else _as_given(mesh)


class Sensitivity:
    """How a coefficient changes with the points of a surface.

    value:     the coefficient
    gradient:  (N, 3), float64: its derivatives by the coordinates of each point
    normal:    (N), float64: by moving a unit of area outward by a unit of length, smoothed; see docs/python.md
    mesh:      the Mesh with the point arrays dCd_dx and dCd_dn, and the predicted fields; of several ranks on the first, else None
    forces:    the Forces, as of `Surrogate.forces`
    warnings:  as of a Prediction"""

    def __init__(self, name: str, found: _learning.Prediction, on_cells: bool) -> None:
        one, = found.sensitivities
        self.name, self.value, self.gradient, self.normal = name, one.value, one.gradient, one.normal
        self.mesh, self.warnings = found.mesh, list(found.warnings)
        self.forces = Forces(found, on_cells)

    def __repr__(self) -> str:
        return f"<Sensitivity of {self.name} {self.value:.5g} to {len(self.normal)} points>"


def _numbers(values: Mapping[str, float], constants: Mapping[str, float]) -> dict[str, float]:
    """What is told of a case, by name."""
    said = {**values, **constants}
    for name, value in said.items():
        if isinstance(value, str) or not hasattr(value, "__float__"):
            raise InvalidInput(f"{name} is {value!r}; expected a number.")
    return {name: float(value) for name, value in said.items()}


class Surrogate:
    """Trained models, loaded once. Made by `meshard.load`. On several ranks `predict`, `forces` and `sensitivity` are collective: all call them with the same
    arguments, the first reads the mesh, each computes on its own part, and all get the whole result."""

    def __init__(self, models: _learning.Models) -> None:
        self._models = models

    @property
    def inputs(self) -> dict[str, Input]:
        """What is told of a case by arguments, by name: whether it is `required`, or needed `for_forces` only, and of what a model is told the lowest and highest
        value that the training cases of all runs have, `trained`; None where there is none."""
        return {one.name: one for one in self._models.inputs}

    @property
    def targets(self) -> dict[str, int]:
        """The predicted fields and their numbers of components."""
        return dict(self._models.targets)

    def _predict(self, mesh: Any, with_forces: bool, values: Mapping[str, float], wall: Path, other_part: Path, sensitivities: Sequence[str] = (),
                 in_double: bool = False) -> _learning.Prediction:
        found = self._models.predict(_of_first_rank(mesh, self._models), dict(values), wall, other_part, with_forces, list(sensitivities), in_double)
        for text in found.warnings:
            warnings.warn(text, stacklevel=3)
        return found

    def predict(self, mesh: Any, *, wall: Path = "", other_part: Path = "", values: Mapping[str, float] = {},
                **constants: float) -> Prediction:
        """The fields on a mesh, the same as of `meshard predict`.

        mesh:       the path of a file, a Mesh, one of pyvista, VTK or meshio, or (points, polygons) as arrays: (N, 3), and (M, 3) or a list of polygons; of several
                    ranks the first one's counts, and the others may give None
        constants:  `inputs`, by name; those whose names are no names of Python in `values`
        wall, other_part: files, as --wall, --other-part of `meshard predict`

        Raises InvalidInput (a ValueError) for a value that is missing or not asked for, and a mesh that lacks what the model is told; IoError (an OSError) for a
        file that cannot be read."""
        return Prediction(self._predict(mesh, False, _numbers(values, constants), wall, other_part), self._models.on_cells)

    def forces(self, mesh: Any, *, wall: Path = "", other_part: Path = "", values: Mapping[str, float] = {},
               **constants: float) -> Forces:
        """Coefficients of forces and moments, as of `meshard predict --forces`; arguments as of `predict`.

        Raises InvalidInput (a ValueError), too, where area, speed or density are not known, or no field is a pressure."""
        said = _numbers(values, constants)
        found = self._predict(mesh, True, said, wall, other_part)
        if "Cd" not in found.coefficients:
            missing = self._models.missing_for_forces(said)
            raise InvalidInput(f"no drag and lift: {found.why}." + (f" Give {', '.join(missing)}." if missing else ""))
        return Forces(found, self._models.on_cells)

    def export(self, path: Path) -> dict[str, Any]:
        """Writes the network as an ONNX model (path.onnx) or a program of torch.export (path.pt2), which takes what `network_inputs` returns and gives the fields
        by name, for any number of points; docs/python.md describes both. Returns what the file says of its inputs and outputs.

        Raises InvalidInput (a ValueError) for what cannot be exported, several runs, other names of files, and where packages for .onnx are missing; Error where
        the file gives other fields than the model."""
        from . import export
        return export.export(self._models, path)

    def network_inputs(self, mesh: Any, *, wall: Path = "", values: Mapping[str, float] = {}, **constants: float) -> dict[str, Any]:
        """What a file of `export` takes of a mesh: arrays by name. Arguments and errors as of `predict` and `export`."""
        from . import export
        network, _, description = export.network_of(self._models)
        said = _numbers(values, constants)
        found, doubts = self._models.network_inputs(_as_given(mesh), said, wall)
        for text in doubts:
            warnings.warn(text, stacklevel=2)
        return export.inputs_of(network, description, found, said)

    def sensitivity(self, mesh: Any, coefficient: str = "Cd", *, double: bool = False, wall: Path = "", other_part: Path = "",
                    values: Mapping[str, float] = {}, **constants: float) -> Sensitivity:
        """How Cd, Cl, Cs or, told `moment_length`, Cmx, Cmy or Cmz changes with each point of the surface, as of `meshard predict --sensitivity`: through what
        the model is told of the surface, the model, and the forces on the moved surface. Of several runs the mean. Other arguments are those of `forces`.

        double:   in double precision, the model too, so that differences of `value` between two surfaces can be compared with `gradient`

        Raises InvalidInput (a ValueError) as `forces`, for another coefficient, and naming an input or a part of the model that has no derivatives."""
        said = _numbers(values, constants)
        return Sensitivity(coefficient, self._predict(mesh, True, said, wall, other_part, [coefficient], double), self._models.on_cells)

    def __repr__(self) -> str:
        ranks = f", {self._models.num_ranks} ranks" if self._models.num_ranks > 1 else ""
        return f"<Surrogate of {', '.join(map(str, self._models.checkpoints))} on {self._models.device}{ranks}>"


def load(runs: Union[Path, Sequence[Path]], *, volume: bool = False, orient: str = "", device: str = "auto",
         mesh: Optional[AnyMesh] = None) -> Surrogate:
    """Loads what `meshard train` has learnt: a run's folder, a file of weights, or several of them, whose predictions are averaged.

    volume:    of runs with surface and volume, predict on the volume
    orient:    'outward' or 'as-is', in place of what the run did
    device:    'auto' (a GPU if there is one), 'cpu', 'cuda' or 'cuda:1'; of several ranks by default each rank's current GPU
    mesh:      a DeviceMesh (`init_device_mesh`) whose ranks share each mesh that is predicted on; of one with several axes `mesh["domain"]`. Parts are handed over
               by files in the folder for temporary ones, which ranks on several hosts must share (TMPDIR)

    Raises IoError (an OSError) if there is no finished run, InvalidInput (a ValueError) where several have different fields, and for models of grids and of
    simulations in time."""
    paths = [runs] if isinstance(runs, (str, os.PathLike)) else list(runs)
    if not paths:
        raise InvalidInput("load: expected a run or several, found none.")
    kind, _, index = str(device).partition(":")
    if mesh is not None and not index and torch.cuda.is_available():
        index = str(torch.cuda.current_device())
    models = _learning.Models(paths, volume, orient, kind, int(index or 0), None if mesh is None else own_mesh(mesh))
    for text in models.warnings:
        warnings.warn(text, stacklevel=2)
    return Surrogate(models)
