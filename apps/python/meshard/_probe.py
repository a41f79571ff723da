# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import dataclasses
from typing import Any, Optional, Sequence

import torch

from ._core import InvalidInput, MissingShardRule, Replicate, Shard, is_sharded
from ._device_mesh import AnyMesh, own_mesh
from ._parameters import replicate
from ._tensors import describe, distribute_tensor, full_tensor, record_rules, to_local


@dataclasses.dataclass
class ProbedOperator:
    """Calls of one operator in the same layouts, on this rank."""
    name: str
    family: str
    inputs: str
    outputs: str
    gathered: bool
    num_calls: int = 0
    num_messages: int = 0
    num_bytes: int = 0


@dataclasses.dataclass
class ProbedDifference:
    """How far a tensor of the sharded run is from the serial one."""
    name: str
    largest_difference: float
    scale: float   # largest value of the serial run's
    equal: bool
    rounding: float = 0.0   # by how much the serial run's changes where all it is computed from changes in the last bit; only where the difference is large


@dataclasses.dataclass
class ProbeReport:
    """What `probe` found; the same on every rank but for `operators`. `print` shows it as `meshard probe` does."""
    num_ranks: int
    input_layout: str
    operators: list[ProbedOperator]
    differences: list[ProbedDifference]
    refusal: str
    equal: bool

    def __str__(self) -> str:
        lines = [f"{self.num_ranks} ranks, first input {self.input_layout}"]
        lines += [f"{op.num_calls:5} x {op.name}: {op.inputs} -> {op.outputs}, {op.num_messages} messages, {op.num_bytes} bytes" +
                  (", gathered" if op.gathered else "") for op in self.operators]
        lines += [f"{found.name}: {'equal' if found.equal else 'DIFFERENT'}, largest difference {found.largest_difference:.1e} at a scale of {found.scale:.1e}" +
                  (f", {found.rounding:.1e} by rounding" if found.rounding else "")
                  for found in self.differences]
        if self.refusal:
            lines.append(f"refused: {self.refusal}")
        return "\n".join(lines + ["equal to one process" if self.equal else "NOT equal to one process"])


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, (list, tuple)) else []


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return full_tensor(tensor.detach()) if is_sharded(tensor) else tensor.detach()


def _operators(events: Sequence[Any]) -> list[ProbedOperator]:
    known: dict[tuple, ProbedOperator] = {}
    for event in events:
        key = (event.op, event.family, event.inputs, event.outputs, event.gathered)
        found = known.setdefault(key, ProbedOperator(*key))
        found.num_calls += 1
        found.num_messages += event.num_messages
        found.num_bytes += event.num_bytes
    return list(known.values())


def _run(module: torch.nn.Module, inputs: Sequence[torch.Tensor], backward: bool, seed: int) -> dict[str, torch.Tensor]:
    """Outputs, gradients and buffers by name. The loss is the sum of all outputs, weighted by fixed numbers."""
    torch.manual_seed(seed)
    outputs = _leaves(module(*inputs))
    names = ["output"] if len(outputs) == 1 else [f"output {i}" for i in range(len(outputs))]
    found = dict(zip(names, outputs))
    differentiable = [y for y in outputs if y.requires_grad]
    if backward and differentiable:
        total: Any = 0
        for y in differentiable:
            weights = torch.cos(torch.arange(y.numel(), dtype=torch.float64, device=y.device)).reshape(y.shape).to(y.dtype)
            total = total + (torch.real(y * weights) if y.is_complex() else y * weights).sum()
        total.backward()
        found.update({f"grad_input {i}": x.grad for i, x in enumerate(inputs) if x.grad is not None})
        found.update({f"grad.{name}": p.grad for name, p in module.named_parameters() if p.grad is not None})
    found.update({f"buffer.{name}": buffer for name, buffer in module.named_buffers()})
    return {name: _whole(tensor) for name, tensor in found.items()}


def _differences(ours: dict[str, torch.Tensor], serial: dict[str, torch.Tensor]) -> list[ProbedDifference]:
    def largest(tensor: torch.Tensor) -> float:
        return float(tensor.abs().max()) if tensor.numel() else 0.0

    found = []
    for name in {**serial, **ours}:
        a, b = ours.get(name), serial.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            found.append(ProbedDifference(name, float("inf"), 0.0, False))
            continue
        has_rounding = b.is_floating_point() or b.is_complex()
        precision = 1e-10 if b.dtype in (torch.float64, torch.complex128) else 1e-5 if b.dtype in (torch.float32, torch.complex64) else 2e-2 if has_rounding else 0.0
        differs = ~((a == b) | (a.isnan() & b.isnan()))   # equal infinities, and whole numbers beyond doubles, have no difference
        a, b = (a.to(torch.complex128), b.to(torch.complex128)) if b.is_complex() else (a.double(), b.double())
        scale, difference = largest(b[b.isfinite()]), largest((a[differs] - b[differs]).abs().nan_to_num(float("inf")))
        equal = not bool(differs.any()) if not has_rounding else difference <= precision * scale
        found.append(ProbedDifference(name, difference, scale, equal))
    return found


def _changed_in_last_bit(tensor: torch.Tensor) -> torch.Tensor:
    """Each number one step of its type up or down, at random; zero stays."""
    if tensor.is_complex():
        return torch.view_as_complex(_changed_in_last_bit(torch.view_as_real(tensor)))
    if not tensor.is_floating_point():
        return tensor
    sign = torch.where(torch.rand(tensor.shape) < 0.5, -1.0, 1.0).to(tensor)
    if tensor.dtype in (torch.float32, torch.float64):
        return torch.where(tensor == 0, tensor, torch.nextafter(tensor, sign * float("inf")))
    return tensor + tensor * sign * torch.finfo(tensor.dtype).eps


def _allow_rounding(differences: Sequence[ProbedDifference], serial: dict[str, torch.Tensor], trials: Sequence[dict[str, torch.Tensor]]) -> None:
    """Marks as equal what differs by no more than ten times what rounding does, which serial runs show."""
    for found in differences:
        found.rounding = max((other.largest_difference for trial in trials for other in _differences(trial, serial) if other.name == found.name), default=0.0)
        found.equal = found.equal or found.largest_difference <= 10 * found.rounding < float("inf")


def probe(module: torch.nn.Module, inputs: Sequence[torch.Tensor], device_mesh: AnyMesh, *, shard: int = 0, extents: Optional[Sequence[int]] = None,
          backward: bool = True, seed: int = 0) -> ProbeReport:
    """Does this module shard? Runs copies of it on whole inputs and on cut ones, and compares outputs, gradients of inputs and parameters, and buffers. Collective.

    inputs:  the arguments of the module, plain; those of rank 0 are taken, as are its parameters
    shard:   the dimension to cut, on the mesh's one axis; inputs that have the first one's size there are cut in the same way, others are whole
    extents: entries of each rank; by default in the proportion 7 to 3 between the first two ranks and the others
    backward: gradients too, in the module's present mode (train or eval)

    The module itself, its gradients and torch's generators are left as they are. Tensors count as equal within 1e-10 of the largest value in double precision, 1e-5 in
    single and 2e-2 in half, or within ten times what rounding alone does to it: a gradient that is zero but for rounding has no scale of its own. What rounding does is
    found by serial runs whose inputs and parameters are changed in their last bits, and by one in double precision. An operator that is refused ends the sharded run: `refusal` names it.

    Raises InvalidInput (a ValueError) for extents that do not add up, a dimension that does not exist, and a mesh of several axes; what the module raises on whole
    inputs, too."""
    mesh = own_mesh(device_mesh)
    if mesh.ndim != 1:
        raise InvalidInput(f"probe: expected a mesh of one axis, found {mesh.ndim}. Pass mesh['domain'].")
    if not inputs or not -inputs[0].dim() <= shard < inputs[0].dim():
        raise InvalidInput(f"probe: there is no dimension {shard} of a first input to cut.")
    inputs = [to_local(distribute_tensor(x.detach(), mesh, [Replicate()])) for x in inputs]
    dim = shard % inputs[0].dim()
    size, num_ranks = inputs[0].shape[dim], mesh.size()
    if extents is None:
        weights = [7] + [3] * (num_ranks - 1)
        extents = [size * weight // sum(weights) for weight in weights]
        extents[0] += size - sum(extents)

    def leaves(is_cut: bool, is_changed: bool = False) -> list[torch.Tensor]:
        made = []
        for x in inputs:
            x = _changed_in_last_bit(x) if is_changed else x
            fits = is_cut and x.dim() > dim and x.shape[dim] == size
            y = distribute_tensor(x, mesh, [Shard(dim)], extents=[extents]) if fits else x.clone()
            made.append(y.requires_grad_(backward and (x.is_floating_point() or x.is_complex())))
        return made

    with torch.random.fork_rng():
        sharded = replicate(copy.deepcopy(module), mesh)
        fresh = copy.deepcopy(sharded)
        serial = _run(copy.deepcopy(fresh), leaves(False), backward, seed)
        cut, refusal, ours = leaves(True), "", {}
        with record_rules() as rules:
            try:
                ours = _run(sharded, cut, backward, seed)
            except MissingShardRule as error:
                refusal = str(error).split("\n")[0]
        differences = _differences(ours, serial) if not refusal else []
        if not all(found.equal for found in differences):
            trials = []
            for trial in range(3):
                torch.manual_seed(seed + trial + 1)
                changed = copy.deepcopy(fresh)
                with torch.no_grad():
                    for parameter in changed.parameters():
                        parameter.copy_(_changed_in_last_bit(parameter))
                trials.append(_run(changed, leaves(False, True), backward, seed))
            try:
                wide = [(x.double() if x.is_floating_point() else x).detach().requires_grad_(x.requires_grad) for x in leaves(False)]
                trial = _run(copy.deepcopy(fresh).double(), wide, backward, seed)
                # Random draws may be others in double precision.
                if all(torch.allclose(trial[name].double(), tensor.double(), 1e-3, 1e-3) for name, tensor in serial.items() if name.startswith("output")):
                    trials.append({name: tensor.to(serial[name].dtype) for name, tensor in trial.items()})
            except Exception:
                pass   # a module that names a type does not run in another; the changed bits say what there is to say
            _allow_rounding(differences, serial, trials)
    return ProbeReport(num_ranks, describe(cut[0]), _operators(rules.events), differences, refusal, not refusal and all(found.equal for found in differences))
