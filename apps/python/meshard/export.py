# SPDX-License-Identifier: Apache-2.0
"""Takes the network of a trained run elsewhere: `meshard export RUN FILE`, `python -m meshard.export RUN FILE`, or `meshard.load(RUN).export(FILE)`. The file is
an ONNX model (.onnx) or a program of torch.export (.pt2); neither needs meshard."""
from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import math
import os
import pathlib
import signal
import sys
import tempfile
import warnings
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor, nn

from . import _networks, models
from ._core import Error, InvalidInput
from ._rows import knn

Description = Mapping[str, Any]   # network_description.h
Path = Union[str, os.PathLike]

ROUNDING = 1e-5   # what differences between a file and the library's model, over the largest value of the field, may come of rounding; larger ones are told
WRONG = 1e-3      # and these do not come of rounding
_POINTS_OF_EXAMPLES = (40, 57)   # of the case by which a network is traced, and of that with which the file is checked
_LARGEST_ONNX = 1_500_000_000   # bytes of weights in the file itself, which may have 2 GiB; those of larger networks are in a file beside it
_WIDTHS = {"points": 3, "normals": 3, "sdf": 1, "wall_direction": 3, "areas": 1}   # of inputs with a row a point; others follow from points and bounds
_MEANINGS = {
    "points": "places of the {rows}, in the unit of the training meshes; of a cell the mean of its points",
    "normals": "unit normals, outward",
    "sdf": "signed distances to the wall, in the unit of the points, positive outside",
    "wall_direction": "unit vectors to the nearest point of the wall",
    "areas": "areas of the {rows}; of a point its share of the cells around it",
    "bounds": "lowest and highest x, lowest and highest y, then z, of all points of the mesh",
    "constants": "numbers of the case: {constants}",
    "edges": "for each edge the number of its source, then of its target: to each point from its {num_neighbors} nearest",
}


def _numbers(text: str) -> list[float]:
    """Numbers separated by commas; none where the text is anything else."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        return []


class Network(nn.Module):
    """From what is measured on a mesh to fields, all in the units of the training data. `shapes` names its inputs; letters are N points and E edges.

    model:   takes embedding (N, C), constants (G), time (1) and edges (2, E), all but the first maybe None, to (N, channels)"""

    def __init__(self, description: Description, tensors: Mapping[str, Tensor], model: Callable[..., Tensor]) -> None:
        super().__init__()
        data = self.data = description["data"]
        self.fields, self.names, self.head = description["fields"], description["constants"], description["head"]
        self.told = data["inputs"].split(", ")
        self.model = model
        self.register_buffer("mean", tensors["norm.mean"])
        self.register_buffer("std", tensors["norm.std"])
        if data["encoding"] != "none":
            self.encoding = _loaded(_networks.CoordinateEncoding(data["encoding"], tensors), "encoding.", tensors)
        if self.head:
            self.coefficients = _loaded(_networks.CoefficientHead(tensors), "coefficients.", tensors)
        self.shapes: dict[str, tuple] = {name: ("N", 3) if width == 3 else ("N",) for name, width in _WIDTHS.items() if name in self.told}
        if "bounds" in (data["center"], data["length"]) or "box" in self.told or ("height" in self.told and data["ground"] == "bounds"):
            self.shapes["bounds"] = (6,)
        if self.names:
            self.shapes["constants"] = (len(self.names),)
        if description["model_class"] == "MeshGraphNet":
            self.shapes["edges"] = (2, "E")

    def _length(self, bounds: Optional[Tensor], constants: Optional[Tensor]) -> Tensor:
        """What points are divided by: (3)."""
        length, numbers = self.data["length"], _numbers(self.data["length"])
        if length == "bounds":
            return (bounds[1::2] - bounds[::2]).max().expand(3)
        if length == "none" or numbers:
            return torch.tensor(numbers or [1.0], dtype=torch.float64).expand(3)
        return constants[self.names.index(length)].expand(3)

    def embedding(self, points: Tensor, normals: Optional[Tensor] = None, sdf: Optional[Tensor] = None, wall_direction: Optional[Tensor] = None,
                  areas: Optional[Tensor] = None, bounds: Optional[Tensor] = None, constants: Optional[Tensor] = None) -> Tensor:
        """What the model is told of each point: (N, C), float32."""
        length, center, up = self._length(bounds, constants), self.data["center"], points.new_tensor(self.data["up"])
        columns = []
        for name in self.told:
            if name == "points":
                origin = 0.5 * (bounds[::2] + bounds[1::2]) if center == "bounds" else torch.tensor(_numbers(center) or [0.0], dtype=torch.float64)
                columns.append((points - origin) / length)
            elif name == "height":
                up = up / up.norm()
                ground = torch.minimum(up * bounds[::2], up * bounds[1::2]).sum() if self.data["ground"] == "bounds" else float(self.data["ground"])
                columns.append(((points * up).sum(1, keepdim=True) - ground) / length[0])
            elif name == "box":
                low, high = bounds[::2], bounds[1::2]
                width = torch.where(high > low, high - low, math.inf)
                columns.append((2 * points - low - high) / width)
            elif name == "sdf":
                columns.append(sdf.unsqueeze(1) / length[0])
            elif name == "areas":
                columns.append((areas / areas.mean()).unsqueeze(1))
            else:
                columns.append(normals if name == "normals" else wall_direction)
        told = torch.cat([column.float() for column in columns], 1)
        return torch.cat([told, self.encoding(told[:, :3])], 1) if hasattr(self, "encoding") else told

    def _quantity(self, name: str, constants: Optional[Tensor]) -> Tensor:
        """A quantity by which fields are measured, e.g. U_inf: ()."""
        entries = self.data["reference_columns"].get(name) or ([name] if name in self.names else [str(self.data["reference"][name])])
        values = [constants[self.names.index(entry)] if entry in self.names else torch.tensor(float(entry), dtype=torch.float64) for entry in entries]
        if len(values) == 3:
            return torch.stack(values).norm()
        return values[0].abs() if name == "U_inf" else values[0]

    def forward(self, points: Tensor, normals: Optional[Tensor] = None, sdf: Optional[Tensor] = None, wall_direction: Optional[Tensor] = None,
                areas: Optional[Tensor] = None, bounds: Optional[Tensor] = None, constants: Optional[Tensor] = None,
                edges: Optional[Tensor] = None) -> dict[str, Tensor]:
        embedding = self.embedding(points, normals, sdf, wall_direction, areas, bounds, constants)
        of_case = [constants[self.names.index(name)] for name in self.data["constants"]]
        time = constants[self.names.index(self.data["time"])].float().view(1) if self.data["time"] else None
        channels = self.model(embedding, torch.stack(of_case).float() if of_case else None, time, edges)
        results, first = {}, 0
        for field in self.fields:
            end = first + field["channels"]
            values = channels[:, first:end] * self.std[first:end] + self.mean[first:end]
            if field["powers"] or field["factor"] != 1:
                factors = [self._quantity(name, constants) ** power for name, power in field["powers"].items()]
                values = values * (field["factor"] * torch.stack(factors).prod()).float()
                if field["is_above_p_inf"]:
                    values = values + self._quantity("p_inf", constants).float()
            results[field["name"]] = values.squeeze(1) if field["channels"] == 1 else values
            first = end
        if self.head:
            found = self.coefficients(channels[:, first:])
            for number, name in enumerate(self.head["names"]):
                results[f"{name.capitalize()}_head"] = found[number] * self.head["deviations"][number] + self.head["means"][number]
        return results

    def example(self, num_points: int, num_neighbors: int, seed: int) -> dict[str, Tensor]:
        """Inputs of a made-up case."""
        draws = torch.Generator().manual_seed(seed)
        made: dict[str, Tensor] = {}
        for name, shape in self.shapes.items():
            if "E" not in shape:
                made[name] = torch.rand([num_points if size == "N" else size for size in shape], dtype=torch.float64, generator=draws) + 0.5
        if "bounds" in made:
            made["bounds"] = torch.tensor([0.5, 1.5] * 3, dtype=torch.float64)
        if "edges" in self.shapes:
            made["edges"] = self.edges(made, num_neighbors)
        return made

    def edges(self, inputs: Mapping[str, Tensor], num_neighbors: int) -> Tensor:
        """The graph of the nearest points: (2, E), int64."""
        places = self.embedding(**inputs)[:, :3].contiguous()
        near = knn(places, places, num_neighbors, exclude_self=True)
        targets = torch.repeat_interleave(torch.arange(len(places)), near.offsets.diff())
        return torch.stack([near.ids, targets])


def _loaded(module: nn.Module, prefix: str, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The module with the values of the names that begin with the prefix. What only training needs is passed over: rates of dropout, and what has no effect."""
    values = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    missing, _ = module.float().load_state_dict(values, strict=False)   # whatever the default type of new tensors
    if missing:
        raise Error(f"export: the checkpoint has no {', '.join(missing)}.")
    return module.eval().requires_grad_(False)


def _obstacle(description: Description) -> str:
    """Why a network cannot be exported; empty where it can."""
    kind, model = description["model_class"], description["model"]
    if kind not in _networks.ARCHITECTURES:
        return kind
    if description["data"].get("series", {}).get("is_on"):
        return f"{kind} of simulations in time"
    for name, what in (("include_local_features", "local features, which search neighbours"), ("levels", "graphs on several scales"),
                       ("structured_shape", "points on a grid"), ("unified_pos", "distances to a reference grid")):
        if model.get(name):
            return f"{kind} with {what} ({name})"
    if kind == "GeoTransolver" and (np.size(model["functional_dim"]) != 1 or not model["geometry_dim"]):
        return "GeoTransolver with several streams of points, or without geometry,"
    return ""


def network_of(learnt: Any) -> tuple[Network, Network, Description]:
    """The network of a trained run as a plain module of torch, the same with the library's model in it, and its description.

    Raises InvalidInput (a ValueError), naming it, for what cannot be exported, and for several runs."""
    if len(learnt.checkpoints) != 1:
        raise InvalidInput(f"export: expected one run, found {len(learnt.checkpoints)}. Export each, and average what they predict.")
    text, arrays = learnt.network()
    description, tensors = json.loads(text), {name: torch.from_numpy(array) for name, array in arrays.items()}
    if obstacle := _obstacle(description):
        raise InvalidInput(f"export: {description['file']}: {obstacle} cannot be exported. What can: Transolver, FLARE, GeoTransolver without local features, and "
                           "MeshGraphNet on one graph, which learnt surfaces or volumes.")
    kind, arguments = description["model_class"], description["model"]
    plain = _loaded(_networks.ARCHITECTURES[kind](arguments), "", tensors)
    with torch.random.fork_rng(devices=[]):
        library = getattr(models, kind)(**arguments).float()
    library.load_state_dict({name: tensors[name] for name in library.state_dict()})
    library.eval().requires_grad_(False)

    def of_library(embedding: Tensor, constants: Optional[Tensor], time: Optional[Tensor], edges: Optional[Tensor]) -> Tensor:
        told, places, of_case = embedding.unsqueeze(0), embedding[None, :, :3].contiguous(), None if constants is None else constants.unsqueeze(0)
        if kind == "GeoTransolver":
            return library(told, None, None if of_case is None else of_case.unsqueeze(1), places)[0]
        if kind == "MeshGraphNet":
            return library.of_points(told, places, of_case)[0]
        at_points = torch.ones(1, len(embedding), max(1, library.arguments["functional_dim"]))
        return library(at_points if of_case is None else at_points * of_case, told, time)[0]

    return Network(description, tensors, plain).eval(), Network(description, tensors, of_library), description


def _need(package: str, what: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise InvalidInput(f"export: {what} needs the package {package}, which this Python lacks. Install it: pip install onnx onnxscript onnxruntime.")


def _write_program(network: Network, example: Mapping[str, Tensor], dynamic: Mapping[str, Any], text: str, file: pathlib.Path) -> Callable:
    program = torch.export.export(network, (), dict(example), dynamic_shapes=dict(dynamic))
    torch.export.save(program, file, extra_files={"meshard.json": text})

    def run(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return torch.export.load(file).module()(**inputs)

    return run


def _write_onnx(network: Network, example: Mapping[str, Tensor], dynamic: Mapping[str, Any], text: str, file: pathlib.Path) -> Optional[Callable]:
    for package in ("onnx", "onnxscript"):
        _need(package, "a file .onnx")
    names = list(network(**example))
    program = torch.onnx.export(network, (), kwargs=dict(example), dynamic_shapes=dict(dynamic), input_names=list(example), output_names=names, dynamo=True,
                                verbose=False)
    program.model.metadata_props["meshard"] = text
    bytes_of_weights = sum(tensor.nbytes for tensor in [*network.parameters(), *network.buffers()])
    program.save(file, external_data=bytes_of_weights > _LARGEST_ONNX)
    if importlib.util.find_spec("onnxruntime") is None:
        return None

    def run(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        import onnxruntime
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        found = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        return {name: torch.from_numpy(array) for name, array in zip(names, found)}

    return run


def _described(network: Network, description: Description, fields: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a reader of the file must know, which it holds as `meshard`."""
    words = {"rows": f"{network.data['association']}s", "constants": ", ".join(network.names), "num_neighbors": description["model"].get("num_neighbors")}
    return {"model_class": description["model_class"], "run": description["file"], "association": network.data["association"],
            "inputs": {name: {"shape": list(shape), "type": "int64" if name == "edges" else "float64", "meaning": _MEANINGS[name].format(**words)}
                       for name, shape in network.shapes.items()},
            "constants": network.names,
            "outputs": {name: {"shape": ["N", *values.shape[1:]] if values.dim() else [], "type": "float32", "meaning": f"at the {words['rows']}" if values.dim() else
                               "of the whole case"} for name, values in fields.items()}}


def export(learnt: Any, path: Path) -> dict[str, Any]:
    """Writes the network of a trained run (`_learning.Models`), and compares what the file gives with the library's model. Returns what the file says of itself.

    Raises InvalidInput (a ValueError) for a path that ends otherwise than in .onnx or .pt2, a package that is missing, and as `network_of`; Error where the file
    gives other fields. Warns where it was not run, and of differences beyond rounding."""
    file = pathlib.Path(path)
    write = {".onnx": _write_onnx, ".pt2": _write_program}.get(file.suffix)
    if write is None:
        raise InvalidInput(f"export: the file is '{file}'; expected a name that ends in .onnx or .pt2.")
    network, of_library, description = network_of(learnt)
    num_neighbors = description["model"].get("num_neighbors", 0)
    first, second = (network.example(num_points + num_neighbors, num_neighbors, seed=num_points) for num_points in _POINTS_OF_EXAMPLES)
    said = _described(network, description, network(**first))
    varying = {"N": torch.export.Dim("N"), "E": torch.export.Dim("E")}
    dynamic = {name: {axis: varying[size] for axis, size in enumerate(shape) if size in varying} for name, shape in network.shapes.items()}
    target = pathlib.Path(os.path.realpath(file))   # of a link what it leads to
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")   # of torch, about itself
        run = write(network, first, dynamic, json.dumps(said), pathlib.Path(folder) / target.name)
        if run is not None:
            difference = _difference(run(second), of_library(**second), network)
            if not difference <= WRONG:
                raise Error(f"export: on a made-up case {file} gives fields that differ by {difference:.2g} of their largest values from the model's own. Nothing was "
                            "written.")
        for made in pathlib.Path(folder).iterdir():
            os.replace(made, target.parent / made.name)
    if run is None:
        warnings.warn(f"{file} was not run, since this Python lacks the package onnxruntime.", stacklevel=3)
    elif difference > ROUNDING:
        warnings.warn(f"on a made-up case {file} gives fields that differ by {difference:.2g} of their largest values from the model's own.", stacklevel=3)
    return said


def _difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], network: Network) -> float:
    """The largest difference of a field or coefficient, over its largest value; of a coefficient, which may happen to be near 0, at least over its deviation."""
    least = {f"{name.capitalize()}_head": deviation for name, deviation in zip(network.head["names"], network.head["deviations"])} if network.head else {}
    differences = [(found[name] - values).abs().max() / values.abs().max().clamp_min(least.get(name, 1e-30)) for name, values in expected.items()]
    return torch.stack(differences).max().item()   # NaN, if one is


def inputs_of(network: Network, description: Description, found: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, np.ndarray]:
    """The inputs of a file for a mesh of which `found` was measured."""
    made = {name: torch.from_numpy(found[name]).double() for name in network.shapes if name in found}
    if network.names:
        length = np.ptp(found["bounds"].reshape(3, 2), axis=1).max()   # where no length is said
        made["constants"] = torch.tensor([values.get(name, length) for name in network.names], dtype=torch.float64)
    if "edges" in network.shapes:
        made["edges"] = network.edges(made, description["model"]["num_neighbors"])
    return {name: tensor.numpy() for name, tensor in made.items()}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """`meshard export`: returns the exit code."""
    parser = argparse.ArgumentParser(prog="meshard export", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="folder of a run, or file of weights")
    parser.add_argument("file", metavar="FILE", help="model.onnx or model.pt2")
    options = parser.parse_args(arguments)
    from ._surrogate import load
    warnings.showwarning = lambda message, *_: print(f"meshard export: warning: {message}", file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)   # so that nothing half-written stays
    logging.getLogger("torch").setLevel(logging.ERROR)   # it tells of packages that are not needed
    try:
        said = load(options.run, device="cpu").export(options.file)
    except (ValueError, OSError, RuntimeError, Error) as error:
        print(f"meshard export: {str(error).removeprefix('export: ')}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 3 if isinstance(error, OSError) else 4
    for verb, tensors in (("takes", said["inputs"]), ("gives", said["outputs"])):
        for name, one in tensors.items():
            shape = f"({', '.join(map(str, one['shape']))})"
            print(f"{verb}  {name:15} {shape:8} {one['type']:8} {one['meaning']}")
    print(f"written to {options.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
