# SPDX-License-Identifier: Apache-2.0
"""Times of the libraries of sharded tensors on two ranks: `steps.py operators|transformer|transolver` prints a line of JSON for each library.

Libraries take turns, and each turn has ranks of its own; a figure is the median over the turns of the slowest rank's."""
import json
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]
import forked  # noqa: E402
import libraries  # noqa: E402
import overhead_benchmark  # noqa: E402

RANKS, TURNS, SECONDS = 2, 3, 40.0
OPERATORS = ["x + x", "gelu", "linear", "layer_norm", "softmax", "view", "cat", "attention, written out"]
KINDS = {"plain": "plain", "meshard": "meshard", "DTensor": "dtensor", "ShardTensor": "physicsnemo"}
TOKENS, CHANNELS, HEADS = 1024, 64, 4
POINTS = 10_000


def slowest(seconds):
    longest = torch.tensor(seconds)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.item()


def operators(kind):
    """Microseconds of each operator on tensors too small to matter, gradients recorded."""
    torch.manual_seed(0)
    x, w, b = overhead_benchmark.make(KINDS[kind], torch.randn(8, 16), torch.randn(16, 16), torch.randn(16))
    mask, found = x > 0, {}
    for name in OPERATORS:
        y = x.detach().requires_grad_()
        found[name] = slowest(overhead_benchmark.microseconds(lambda: overhead_benchmark.OPERATORS[name](y, w, b, mask), rounds=10, number=20))
    return found


def transformer_weights():
    torch.manual_seed(1)
    shapes = [(CHANNELS,), (CHANNELS,), (3 * CHANNELS, CHANNELS), (CHANNELS, CHANNELS), (CHANNELS,), (CHANNELS,), (4 * CHANNELS, CHANNELS), (CHANNELS, 4 * CHANNELS)]
    return [torch.randn(shape) * .1 for _ in range(2) for shape in shapes]


def transformer(x, weights):
    """Two layers of attention and MLP on (tokens, channels); attention is written out, since DTensor has none for CPUs."""
    for i in range(0, len(weights), 8):
        norm_w, norm_b, qkv, out, norm2_w, norm2_b, up, down = weights[i:i + 8]
        q, k, v = (F.linear(F.layer_norm(x, (CHANNELS,), norm_w, norm_b), part) for part in qkv.chunk(3))
        q, k, v = (y.view(-1, HEADS, CHANNELS // HEADS).transpose(0, 1) for y in (q, k, v))
        attention = (q @ k.transpose(-1, -2) * (CHANNELS // HEADS)**-.5).softmax(-1) @ v
        x = x + F.linear(attention.transpose(0, 1).reshape(-1, CHANNELS), out)
        x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (CHANNELS,), norm2_w, norm2_b), up)), down)
    return x.square().mean()


def library_of(kind):
    return libraries.LIBRARIES[kind]((RANKS,)) if kind != "plain" else None


def timed(step, loss_of, expected, rounds):
    """Median seconds of a step, whose loss must be the one of one process."""
    found = loss_of(step())
    assert abs(found - expected) <= 1e-4 * abs(expected), f"the loss is {found:.6g} instead of {expected:.6g}"
    times = []
    for _ in range(rounds):
        dist.barrier()
        began = time.perf_counter()
        step()
        times.append(slowest(time.perf_counter() - began))
    return statistics.median(times)


def stepper(leaves, forward):
    def step():
        for leaf in leaves:
            leaf.grad = None
        loss = forward()
        loss.backward()
        return loss
    return step


def transformer_step(kind):
    torch.manual_seed(0)
    whole, wholes = torch.randn(TOKENS, CHANNELS), transformer_weights()
    expected = transformer(whole, wholes).item()
    library = library_of(kind)
    if library is None:   # what one rank takes for the whole; the other one does the same
        x, weights, loss_of = whole, [w.requires_grad_() for w in wholes], torch.Tensor.item
    else:
        x, weights = library.cut(whole, (0,), libraries.Extents((RANKS,), None)), library.weights(wholes)
        loss_of = lambda loss: library.full(loss.detach()).item()   # noqa: E731
    return timed(stepper(weights, lambda: transformer(x, weights)), loss_of, expected, 5)


def transolver_step(kind):
    """PhysicsNeMo's own Transolver, with the weights as each library wants them."""
    from physicsnemo.models.transolver import Transolver

    def model():
        torch.manual_seed(1)
        return Transolver(functional_dim=2, out_dim=3, embedding_dim=3, n_layers=2, n_hidden=64, n_head=4, slice_num=32, use_te=False)

    torch.manual_seed(0)
    features, places = torch.randn(1, POINTS, 2), torch.randn(1, POINTS, 3)
    own = model()
    with torch.no_grad():
        expected = own(features, places).square().mean().item()
    library, loss_of = library_of(kind), torch.Tensor.item
    if library is not None:
        features, places = (library.cut(x, (1,), libraries.Extents((RANKS,), None)) for x in (features, places))
        loss_of = lambda loss: library.full(loss.detach()).item()   # noqa: E731
        if kind == "meshard":
            import meshard
            meshard.replicate(own, library.mesh)
        elif kind == "DTensor":
            from torch.distributed.tensor import distribute_module
            distribute_module(own, library.mesh)
    return timed(stepper(list(own.parameters()), lambda: own(features, places).square().mean()), loss_of, expected, 5)


def main(what):
    measure = {"operators": operators, "transformer": transformer_step, "transolver": transolver_step}[what]
    kinds, missing = list(KINDS), {}
    for name in libraries.NAMES:
        try:
            libraries.LIBRARIES[name].load()
        except ImportError as error:
            missing[name] = error
            kinds.remove(name)
    if what == "transolver":
        import physicsnemo.models.transolver   # noqa: F401
    torch.set_num_threads(1)
    found = {kind: [] for kind in kinds}
    for _ in range(TURNS):
        for kind in list(kinds):
            verdict, answer = forked.run(lambda: measure(kind), RANKS, SECONDS)
            if verdict == "answer":
                found[kind].append(answer[0])
            else:
                print(json.dumps({"kind": kind, "verdict": verdict, "what": answer}), flush=True)
                kinds.remove(kind)
    for kind in kinds:
        turns = found[kind]
        figure = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]} if isinstance(turns[0], dict) else statistics.median(turns)
        print(json.dumps({"kind": kind, "figure": figure}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
