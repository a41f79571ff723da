# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of cases.py with one library: `exactness.py LIBRARY [CASE...]` prints a line of JSON for each.

Verdicts: `exact` (the result and every gradient), `gathers` (exact, and an operand that is cut was put together whole on every rank), `wrong`, `refuses`,
`hangs`, `needs CUDA` (it cannot be told without a GPU)."""
import json
import math
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cases  # noqa: E402
import forked  # noqa: E402
import libraries  # noqa: E402

SECONDS = 20.0      # a case takes below one, on a busy machine a few
TOLERANCE = 1e-6    # of the largest value: computed in double precision, where a library does not go through single precision


def difference(ours, theirs):
    if tuple(ours.shape) != tuple(theirs.shape):
        return float("inf")
    if not theirs.numel():
        return 0.0
    ours, theirs = ours.detach().double(), theirs.detach().double()
    found = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()
    return found if found == found else float("inf")


def leaves_of(result):
    return [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def backward(outputs):
    """Backward of a sum of all outputs with fixed random weights."""
    torch.manual_seed(7)
    loss = sum((x * torch.randn(x.shape, dtype=x.dtype)).sum() for x in outputs if x.is_floating_point())
    if torch.is_tensor(loss) and loss.requires_grad:
        loss.backward()


def serial(case):
    wholes = [operand.whole(i) for i, operand in enumerate(case.operands)]
    for x in wholes:
        x.requires_grad_(x.is_floating_point())
    outputs = leaves_of(case.run(libraries.Serial(), wholes))
    backward(outputs)
    return wholes, outputs


def cut_operands(case, library):
    operands = [None] * len(case.operands)
    kept = [i for i, operand in enumerate(case.operands) if isinstance(operand, cases.Weight)]
    for i, weight in zip(kept, library.weights([case.operands[i].whole(i) for i in kept])):
        operands[i] = weight
    for i, operand in enumerate(case.operands):
        whole = operand.whole(i)
        if isinstance(operand, cases.Cut):
            operands[i] = library.cut(whole, operand.dims, libraries.Extents(case.mesh, operand.extents)).requires_grad_(whole.is_floating_point())
        elif isinstance(operand, cases.Replicated):
            operands[i] = library.replicated(whole).requires_grad_(whole.is_floating_point())
    return operands


def verdict_on(found):
    where = max(found, key=found.get)
    if found[where] <= TOLERANCE:
        return None
    return "wrong", f"{where} has another shape" if found[where] == float("inf") else f"{where} differs by {found[where]:.1g}"


def compare(case, library):
    """(verdict, what)"""
    wholes, expected = serial(case)
    operands = cut_operands(case, library)
    outputs, gathered_forward = library.gathers(lambda: leaves_of(case.run(library, operands)))
    full = [library.full(x) for x in outputs]
    if len(full) != len(expected):
        return "wrong", f"{len(full)} results instead of {len(expected)}"
    wrong = verdict_on({f"result {i + 1}" if len(full) > 1 else "the result": difference(a, b) for i, (a, b) in enumerate(zip(full, expected))})
    if wrong:
        return wrong
    try:
        _, gathered_backward = library.gathers(lambda: backward(full))
    except Exception as error:
        error.stage = "in backward, "
        raise
    found = {"": 0.0}
    for i, (ours, theirs) in enumerate(zip(operands, wholes)):
        if theirs.grad is not None:
            if ours.grad is None:
                return "wrong", f"operand {i + 1} has no gradient"
            found[f"the gradient of operand {i + 1}"] = difference(library.full(ours.grad), theirs.grad)
    wrong = verdict_on(found)
    if wrong:
        return wrong
    smallest = min((x.numel() for operand, x in zip(case.operands, wholes) if isinstance(operand, cases.Cut) and x.is_floating_point()), default=math.inf)
    return ("gathers" if max(gathered_forward, gathered_backward) >= smallest else "exact"), ""


def run(case, kind):
    """(verdict, what) over all ranks: the worst."""
    verdict, what = forked.run(lambda: compare(case, kind(case.mesh)), math.prod(case.mesh), SECONDS)
    if verdict != "answer":
        return verdict, what
    return tuple(min(what, key=lambda one: ["wrong", "gathers", "exact"].index(one[0])))


def main(name, names):
    kind = libraries.LIBRARIES[name]
    try:
        kind.load()
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    torch.set_num_threads(1)
    print(json.dumps({"version": kind.version()}), flush=True)
    for case in cases.CASES:
        if names and case.name not in names:
            continue
        verdict, what = run(case, kind)
        print(json.dumps({"case": case.name, "verdict": verdict, "what": what}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
