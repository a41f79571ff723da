# SPDX-License-Identifier: Apache-2.0
"""Cases of exactness: functions of plain PyTorch, and how their operands are cut.

A result and every gradient of each must be those of one process. All numbers are in double precision. Many are uneven, and cut
along the dimension that the operator works on: that is what meshes need, and where libraries differ. A `report` is a public issue or pull request that a
case is about."""
import dataclasses
import tempfile
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Operand:
    shape: tuple
    values: Optional[Callable[[], torch.Tensor]] = None

    def whole(self, seed):
        if self.values is not None:
            return self.values()
        return torch.randn(self.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))


@dataclasses.dataclass
class Cut(Operand):
    dims: Any = (0,)
    extents: Any = None   # None: as torch.chunk


@dataclasses.dataclass
class Weight(Operand):
    """The same on all ranks, as a library wants parameters of models."""


@dataclasses.dataclass
class Replicated(Operand):
    """The same on all ranks, as a tensor of the library that says so."""


def cut(*shape, dim=0, own=None, values=None):
    return Cut(shape, values, dim if isinstance(dim, tuple) else (dim,), None if own is None else [own])


def weight(*shape, values=None):
    return Weight(shape, values)


def replicated(*shape, values=None):
    return Replicated(shape, values)


def numbers(*values):
    return lambda: torch.tensor(values)


def random_bits(*shape):
    return lambda: torch.rand(shape, generator=torch.Generator().manual_seed(5)) > .4


@dataclasses.dataclass
class Case:
    group: str
    name: str
    mesh: tuple
    operands: list
    function: Callable
    report: str = ""      # the public report that this case is about
    verbs: bool = False   # whether the function takes the library first

    def run(self, library, operands):
        return self.function(library, *operands) if self.verbs else self.function(*operands)


CASES = []
_group = ""


def group(name):
    global _group
    _group = name


def case(name, operands, function, ranks=2, report="", verbs=False):
    assert all(other.name != name for other in CASES), name
    CASES.append(Case(_group, name, ranks if isinstance(ranks, tuple) else (ranks,), operands, function, report, verbs))


def saved_and_read(x):
    """Through torch.distributed.checkpoint, which asks a tensor where its part lies in the whole."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    if not dist.is_initialized():
        return x.detach() * 1
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    checkpoint.save({"x": x.detach()}, checkpoint_id=folder[0])
    read = {"x": torch.zeros(x.shape, dtype=x.dtype)}
    checkpoint.load(read, checkpoint_id=folder[0])
    return read["x"]


def put(x, ids, values):
    return x.index_put((ids,), values)


def added(x, ids, values):
    return x.index_put((ids,), values, accumulate=True)


def overwritten(x):
    y = x * 1
    y[2:5] = 0
    return y


def curvature(x, w):
    y = torch.tanh(F.linear(x, w)).sum()
    return torch.autograd.grad(y, w, create_graph=True)[0]


def norm_of_batch(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


def penalty(x, w):
    return F.linear(x, w).pow(2).mean() + w.pow(2).sum()


def heads(*shape):
    return cut(2, 2, *shape, dim=2)


group("Cuts")
case("7 rows on 2 ranks", [cut(7, 3)], lambda x: (x.sin() * 2 + 1))
case("7 rows on 3 ranks", [cut(7, 3)], lambda x: (x.sin() * 2 + 1), ranks=3)
case("4 rows on 3 ranks, the last empty", [cut(4, 3)], lambda x: x.relu() + x, ranks=3)
case("own cut 2 : 5", [cut(7, 3, own=[2, 5])], lambda x: x.sin() * 2, report="pytorch 144109")
case("own cut 0 : 5", [cut(5, 3, own=[0, 5])], lambda x: x.sin() * 2)
case("own cut 2 : 5, mean of all", [cut(7, 3, own=[2, 5])], lambda x: (x * x).mean())
case("own cut 2 : 5, softmax along it", [cut(7, 3, own=[2, 5])], lambda x: x.softmax(0))
case("sum of operands cut 2 : 5 and 5 : 2", [cut(7, 3, own=[2, 5]), cut(7, 3, own=[5, 2])], lambda a, b: a + b, report="physicsnemo 1943")
case("product of operands cut 0 : 2 and 1 : 1", [cut(2, 3, own=[0, 2]), cut(2, 3)], lambda a, b: a * b, report="physicsnemo 1943")
case("operands cut along different dimensions", [cut(6, 5, dim=0), cut(6, 5, dim=1)], lambda a, b: a * b + b)
case("rows cut anew as columns", [cut(7, 5)], lambda library, x: library.redistribute(x, 1) * 2, verbs=True)
case("cut anew along 2 columns on 3 ranks", [cut(7, 2)], lambda library, x: library.redistribute(x, 1) * 2, ranks=3, verbs=True)
case("8 rows cut on both axes of 2 x 2 ranks, saved", [cut(8, 3, dim=(0, 0))], saved_and_read, ranks=(2, 2))
case("3 rows cut on both axes of 2 x 2 ranks, saved", [cut(3, 3, dim=(0, 0))], saved_and_read, ranks=(2, 2), report="pytorch 161368")
case("rows and columns cut on 2 x 2 ranks", [cut(5, 7, dim=(0, 1)), weight(4, 7)], F.linear, ranks=(2, 2))

group("Views")
case("view that splits across a cut of columns", [cut(12, 8, dim=1)], lambda x: x.view(-1, 6), ranks=4, report="pytorch 179502")
case("flatten of uneven rows", [cut(7, 4)], lambda x: x.reshape(-1) * 2)
case("flatten where the second dimension is cut", [cut(4, 6, 5, dim=1)], lambda x: x.flatten(0, 1))
case("unflatten of the cut dimension", [cut(12, 5)], lambda x: x.unflatten(0, (3, 4)))
case("transpose, then reshape", [cut(6, 4)], lambda x: x.t().reshape(8, 3))
case("slice across the cut", [cut(9, 3)], lambda x: x[2:8])
case("every third row", [cut(10, 3)], lambda x: x[1::3])
case("one row", [cut(7, 3)], lambda x: x[5])
case("flip of the cut dimension", [cut(7, 3)], lambda x: x.flip(0) * x, report="physicsnemo 1400")
case("roll of the cut dimension", [cut(7, 3)], lambda x: x.roll(2, 0))
case("chunks of the cut dimension", [cut(8, 3)], lambda x: torch.stack([a * (i + 1) for i, a in enumerate(x.chunk(4))]))
case("expand and sum", [cut(7, 1)], lambda x: x.expand(7, 4) * 2)
case("triangle of a matrix", [cut(6, 6)], lambda x: x.tril())
case("rows set to zero in place", [cut(7, 3)], overwritten, report="pytorch 139735")

group("Reductions")
case("mean of uneven rows", [cut(3, 4)], lambda x: x.mean(), report="pytorch 162692")
case("mean along the cut, one rank empty", [cut(4, 3)], lambda x: x.mean(0, keepdim=True) * 2, ranks=3)
case("sum, then a number added", [cut(10, 1)], lambda x: x.sum() + 10, report="pytorch 163193")
case("variance of uneven rows", [cut(7, 3)], lambda x: x.var(0))
case("norm of all", [cut(7, 3)], lambda x: torch.linalg.vector_norm(x) + 2, report="pytorch 145218")
case("largest and where, along the cut", [cut(7, 3)], lambda x: x.max(0))
case("argmin of all", [cut(7, 3)], lambda x: x.argmin())
case("softmax along the cut", [cut(7, 3)], lambda x: x.softmax(0))
case("logsumexp along the cut", [cut(7, 3)], lambda x: x.logsumexp(0))
case("cumulative sum along the cut", [cut(7, 3)], lambda x: x.cumsum(0))
case("sort along the cut", [cut(7, 3)], lambda x: x.sort(0))
case("three largest along the cut", [cut(7, 3)], lambda x: x.topk(3, 0))
case("median along the cut", [cut(7, 3)], lambda x: x.median(0).values)
case("mean squared error, targets cut otherwise", [cut(7, 3), cut(7, 3, dim=1)], lambda x, y: F.mse_loss(x, y))
case("cross entropy of uneven rows", [cut(7, 4), cut(7, values=numbers(0, 1, 2, 3, 1, 1, 0))], lambda x, y: F.cross_entropy(x, y))

group("Joining and indexing")
case("cat along the cut", [cut(7, 3), cut(5, 3)], lambda a, b: torch.cat([a, b], 0))
case("cat along the cut with a replicated one", [cut(7, 3), replicated(2, 3)], lambda a, b: torch.cat([a, b], 0))
case("stack", [cut(7, 3), cut(7, 3)], lambda a, b: torch.stack([a, b], 0))
case("rows by number", [cut(7, 3), weight(values=numbers(6, 0, 3, 3))], lambda x, ids: x[ids])
case("rows by numbers that are cut", [cut(7, 3), cut(5, values=numbers(6, 0, 3, 3, 1))], lambda x, ids: x.index_select(0, ids))
case("index_put along the cut", [cut(16), weight(values=numbers(1, 14, 6)), weight(3)], put, report="pytorch 170934")
case("index_put that adds, repeated numbers", [cut(7, 3), weight(values=numbers(6, 0, 3, 3)), weight(4, 3)], added)
case("index_put of values that are cut", [cut(8, 3), weight(values=numbers(7, 0, 3, 2)), cut(4, 3)], put, report="pytorch 172350")
case("scatter_add by numbers that are cut", [weight(4), cut(7, values=numbers(0, 1, 3, 3, 0, 2, 3)), cut(7)], lambda x, ids, y: x.scatter_add(0, ids, y))
case("embedding of numbers that are cut", [cut(7, values=numbers(0, 1, 3, 3, 0, 2, 3)), weight(4, 3)], lambda ids, table: F.embedding(ids, table))
case("rows that a mask selects", [cut(7, 3), cut(7, values=random_bits(7))], lambda x, mask: x[mask])
case("where, mask replicated", [cut(7, 3), replicated(values=random_bits(7, 3))], lambda x, mask: torch.where(mask, x, x * x))
case("pad on one side of the cut", [cut(1, 1, 7, 4, dim=2)], lambda x: F.pad(x, (0, 0, 2, 0), mode="replicate"), report="physicsnemo 1535")
case("pad with ones, own cut 2 : 5", [cut(1, 1, 7, 4, dim=2, own=[2, 5])], lambda x: F.pad(x, (0, 0, 0, 2), value=1.0), report="physicsnemo 1535")

group("Products")
case("linear, uneven rows", [cut(7, 3), weight(4, 3), weight(4)], F.linear)
case("linear, own cut 2 : 5", [cut(7, 3, own=[2, 5]), weight(4, 3), weight(4)], F.linear)
case("linear, cut features", [cut(7, 5, dim=1), weight(4, 5), weight(4)], F.linear)
case("matmul along the cut", [cut(5, 7, dim=1), cut(7, 3)], lambda a, b: a @ b)
case("rows times rows", [cut(7, 3), cut(5, 3)], lambda a, b: a @ b.t())
case("einsum with heads", [cut(2, 7, 3, 4, dim=1), weight(3, 4, 5)], lambda x, w: torch.einsum("bnhc,hcd->bnhd", x, w))
case("cross product with a replicated operand", [cut(7, 3), replicated(7, 3)], lambda a, b: torch.linalg.cross(a, b), report="physicsnemo 1944")
case("cross product with one replicated vector", [cut(7, 3), replicated(1, 3)], lambda a, b: torch.linalg.cross(a, b), report="physicsnemo 1944")
case("distances of rows to rows", [cut(7, 3), cut(5, 3)], lambda a, b: torch.cdist(a, b))
case("gradient of a gradient", [cut(7, 3), weight(4, 3)], curvature)

group("Layers")
case("layer norm of uneven rows", [cut(7, 6), weight(6), weight(6)], lambda x, w, b: F.layer_norm(x, (6,), w, b))
case("layer norm across the cut", [cut(5, 7, dim=1), weight(7), weight(7)], lambda x, w, b: F.layer_norm(x, (7,), w, b))
case("group norm, uneven grid", [cut(2, 4, 7, 3, dim=2), weight(4), weight(4)], lambda x, w, b: F.group_norm(x, 2, w, b), report="physicsnemo 1421")
case("batch norm, uneven batch", [cut(7, 4), weight(4), weight(4)], norm_of_batch)
case("conv1d with a halo", [cut(2, 3, 9, dim=2), weight(4, 3, 3), weight(4)], lambda x, w, b: F.conv1d(x, w, b, padding=1))
case("conv2d, own cut 3 : 6", [cut(1, 2, 9, 5, dim=2, own=[3, 6]), weight(3, 2, 3, 3)], lambda x, w: F.conv2d(x, w, padding=1))
case("conv2d with stride 2", [cut(1, 2, 9, 6, dim=2), weight(3, 2, 3, 3)], lambda x, w: F.conv2d(x, w, padding=1, stride=2))
case("conv2d, columns cut evenly", [cut(1, 2, 5, 8, dim=3), weight(3, 2, 3, 3)], lambda x, w: F.conv2d(x, w, padding=1))
case("conv2d of patches", [cut(1, 2, 8, 6, dim=2), weight(3, 2, 4, 3)], lambda x, w: F.conv2d(x, w, stride=(4, 3)), report="pytorch 191926")
case("conv1d wider than a part", [cut(1, 2, 6, dim=2), weight(2, 2, 7)], lambda x, w: F.conv1d(x, w, padding=3), ranks=3)
case("transposed conv2d", [cut(1, 2, 5, 4, dim=2), weight(2, 3, 4, 4)], lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1))
case("average pooling across the cut", [cut(1, 2, 10, 4, dim=2)], lambda x: F.avg_pool2d(x, 2))
case("bilinear upsampling", [cut(1, 2, 7, 4, dim=2)], lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
case("attention, uneven tokens", [heads(7, 4), heads(7, 4), heads(7, 4)], F.scaled_dot_product_attention)
case("attention, causal", [heads(8, 4), heads(8, 4), heads(8, 4)], lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
case("attention with a mask", [heads(7, 4), heads(7, 4), heads(7, 4), replicated(values=lambda: random_bits(7, 7)() | torch.eye(7, dtype=torch.bool))],
     lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask))
case("attention to replicated keys", [heads(7, 4), weight(2, 2, 5, 4), weight(2, 2, 5, 4)], F.scaled_dot_product_attention)
case("attention, written out", [heads(7, 4), heads(7, 4), heads(7, 4)], lambda q, k, v: (q @ k.transpose(-1, -2)).softmax(-1) @ v)
case("loss with a penalty on weights", [cut(7, 3), weight(4, 3)], penalty)
