# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own database of operators (OpInfo), with dimensions cut unevenly: results and gradients are those of the plain operator. Started by operators.py, which
says which operators; each run is a line of JSON in a file of its own for each rank, so that what was running is known after a crash."""
import faulthandler
import json
import os
import random
import sys
import warnings

import meshard
import torch
import torch.distributed as dist
from torch.testing._internal.common_methods_invocations import op_db

from ranks import device, mesh, num_ranks, rank

warnings.filterwarnings("ignore")   # what operators are deprecated is not of interest here

SECONDS = 30   # for one run; more is a hang, and ends the rank with the calls that led there

# What they draw is compared in shape and type alone.
RANDOM = {"bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential", "geometric", "log_normal", "multinomial",
          "new_empty", "new_empty_strided", "normal", "pca_lowrank", "rand_like", "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "uniform",
          "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
          "nn.functional.feature_alpha_dropout", "nn.functional.rrelu", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
          "nn.functional.gumbel_softmax", "normal.number_mean", "normal.in_place", "torch.ops.aten._safe_softmax.default_random"}

# With lengths that do not fit these read or write beyond their tensors on plain ones, without an error.
UNCHECKED = {"_batch_norm_with_update", "_native_batch_norm_legit", "native_batch_norm", "_segment_reduce", "lu_unpack", "nn.functional.ctc_loss"}


def full_name(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def parts(n, mode):
    """Extents of n entries: 7 to 3, or all on one rank."""
    rest = [0] * (num_ranks() - 2)
    if mode == "empty":
        return [0, n, *rest] if n % 2 else [n, 0, *rest]
    first = max(1, round(0.7 * n)) if n > 1 else n
    return [first, n - first, *rest]


def cut(x, dim, mode):
    return meshard.distribute_tensor(x.detach(), mesh(), [meshard.Shard(dim)], extents=[parts(x.shape[dim], mode)])


def leaves(x):
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, (list, tuple)):
        return [leaf for item in x for leaf in leaves(item)]
    if isinstance(x, dict):
        return [leaf for item in x.values() for leaf in leaves(item)]
    return []


def replaced(x, function):
    if isinstance(x, torch.Tensor):
        return function(x)
    if isinstance(x, (list, tuple)) and not hasattr(x, "_fields") and not isinstance(x, torch.Size):
        return type(x)(replaced(item, function) for item in x)
    if isinstance(x, dict):
        return {key: replaced(item, function) for key, item in x.items()}
    return x


def plain(x):
    return None if x is None else meshard.full_tensor(x.detach()) if meshard.is_sharded(x) else x.detach()


def difference(ours, theirs):
    """In words; empty where they agree: floating numbers within 1e-9 of their size (single precision 1e-4, half 5e-2), others exactly."""
    if ours.shape != theirs.shape:
        return f"shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}"
    if ours.dtype != theirs.dtype:
        return f"type {ours.dtype}, expected {theirs.dtype}"
    if theirs.layout != torch.strided:
        ours, theirs = ours.to_dense(), theirs.to_dense()
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return "" if torch.equal(ours, theirs) else "other values"
    tolerance = 1e-9 if theirs.dtype in (torch.float64, torch.complex128) else 1e-4 if theirs.dtype in (torch.float32, torch.complex64) else 5e-2
    if torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True):
        return ""
    return f"differs by {(ours - theirs).abs().max().item():.1e}"


def misfit(sample, draw):
    """The sample with one of its tensors an entry longer or shorter in one dimension, and whether arguments are cut, too."""
    tensors = [x for x in leaves([sample.input, sample.args, sample.kwargs]) if x.layout == torch.strided and x.dim() > 0 and x.numel() > 0]
    chosen = draw.choice(tensors)
    dim = draw.randrange(chosen.dim())
    longer = torch.cat([chosen, chosen.narrow(dim, 0, 1)], dim)
    other = longer if chosen.shape[dim] == 1 or draw.random() < 0.5 else chosen.narrow(dim, 0, chosen.shape[dim] - 1).clone()

    def changed(x):
        return replaced(x, lambda tensor: other if tensor is chosen else tensor)
    return type(sample)(changed(sample.input), args=changed(sample.args), kwargs=changed(sample.kwargs)), draw.random() < 0.5


class Run:
    """One sample of an operator, with one dimension cut.

    mode: what is cut, and how: `input`; `arguments` too, where their extent is the same; `empty`: ranks that hold nothing; `inplace` and `out`: the operator's
    other forms; `misfit`: a tensor is longer or shorter than the sample's, so that what the plain operator refuses must be refused on every rank."""

    def __init__(self, op, sample, dim, mode):
        self.op, self.sample, self.dim, self.mode = op, sample, dim, mode
        self.cuts_arguments = mode == "arguments"
        if mode == "misfit":
            self.sample, self.cuts_arguments = misfit(sample, random.Random(f"{full_name(op)} {dim} {leaves(sample.input)[0].shape}"))
        first = leaves(self.sample.input)[0]
        self.size, self.num_dims = first.shape[dim], first.dim()
        self.takes_gradient = mode != "out" and op.supports_autograd and (mode != "inplace" or op.supports_inplace_autograd)

    def is_there(self):
        x = self.sample.input
        return (self.mode != "inplace" or (self.op.inplace_variant is not None and isinstance(x, torch.Tensor))) and (self.mode != "out" or self.op.supports_out)

    def leaf(self, x, is_cut):
        y = cut(x, self.dim, self.mode) if is_cut else x.detach().clone()
        return y.requires_grad_(self.takes_gradient and (x.is_floating_point() or x.is_complex()))

    def fits(self, x):
        return x.layout == torch.strided and x.dim() > self.dim and x.shape[self.dim] > 0

    def operands(self, are_cut):
        def of_input(x):
            return self.leaf(x, are_cut and self.fits(x))

        def of_argument(x):
            return self.leaf(x, are_cut and self.cuts_arguments and self.fits(x) and x.dim() == self.num_dims and (x.shape[self.dim] == self.size or self.mode == "misfit"))

        return replaced(self.sample.input, of_input), replaced(self.sample.args, of_argument), replaced(self.sample.kwargs, of_argument)

    def call(self, operands, outs):
        x, args, kwargs = operands
        if self.mode == "inplace":
            return self.op.inplace_variant(x.clone(), *args, **kwargs)
        if self.mode == "out":
            return self.op.op(x, *args, **kwargs, out=outs[0] if len(outs) == 1 else tuple(outs))
        return self.op.op(x, *args, **kwargs)

    def results(self, are_cut, outs=()):
        """Outputs and gradients."""
        torch.manual_seed(3)
        random.seed(3)
        operands = self.operands(are_cut)
        outputs = leaves(self.call(operands, outs))
        if self.mode == "out":   # some return nothing
            outputs = list(outs)
        sources = [x for x in leaves(operands) if x.requires_grad]
        targets = [y for y in outputs if y.requires_grad]
        gradients = [None] * len(sources)
        if sources and targets:
            total = 0
            for y in targets:
                weights = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape).to(y.dtype)
                total = total + (torch.real(y * weights) if y.is_complex() else y * weights).sum()
            gradients = torch.autograd.grad(total, sources, allow_unused=True)
        return [plain(y) for y in outputs], [plain(g) for g in gradients]

    def verdict(self, is_random):
        """(`equal`, ``), or what else happened and its words."""
        try:
            outputs, gradients = self.plain_results()
        except Exception as error:
            return self.verdict_where_plain_fails(str(error))
        try:
            ours, our_gradients = self.results(True, [torch.ones_like(y) for y in outputs] if self.mode == "out" else ())
        except meshard.MissingShardRule as error:
            return "refused", str(error).split("\n")[0]
        except Exception as error:
            return "error", f"{type(error).__name__}: {error}".split("\n")[0][:300]
        if len(ours) != len(outputs):
            return "wrong", f"{len(ours)} results, expected {len(outputs)}"
        for what, found, expected in (("output", ours, outputs), ("gradient", our_gradients, gradients)):
            for i, (a, b) in enumerate(zip(found, expected)):
                if a is None or b is None:
                    if (a is None) != (b is None) and (b if a is None else a).any():
                        return "wrong", f"{what} {i}: only one is there"
                elif is_random:
                    if what == "output" and (a.shape != b.shape or a.dtype != b.dtype):
                        return "wrong", f"{what} {i}: {difference(a, b)}"
                elif difference(a, b):
                    return "wrong", f"{what} {i}: {difference(a, b)}"
        return "equal", ""

    def verdict_where_plain_fails(self, words):
        if self.mode == "misfit":
            try:
                self.results(True)
                return "accepted", f"plain: {words}".split("\n")[0][:200]
            except Exception:
                return "equal", ""
        return "plain fails", words[:80]

    def plain_results(self):
        if self.mode == "out":   # results of the form without `out`: LibTorch's own fft.ihfftn leaves some `out` as it was
            torch.manual_seed(3)
            x, args, kwargs = self.operands(False)
            outputs = [y.detach() for y in leaves(self.op.op(x, *args, **kwargs))]
            self.results(False, [torch.ones_like(y) for y in outputs])   # or the plain form is refused
            return outputs, []
        try:
            return self.results(False)
        except Exception:
            if not self.takes_gradient:
                raise
            self.takes_gradient = False   # not every sample has a gradient: the results are compared even so
            return self.results(False)


def samples_of(op, types):
    """In the first type of these that it takes. None of those that want a library which is not here."""
    known = op.supported_dtypes(device())
    dtype = next((getattr(torch, name) for name in types if getattr(torch, name) in known), None)
    torch.manual_seed(7)
    try:
        return list(op.sample_inputs(device(), dtype, requires_grad=False)) if dtype is not None else []
    except Exception:
        return []


def runs_of(op, samples, mode, generator, draws):
    """All samples in all dimensions of their first tensor, or `draws` of them."""
    pairs = []
    for i, sample in enumerate(samples):
        first = (leaves(sample.input) or [None])[0]
        if first is not None and first.dim() > 0 and first.numel() > 0 and first.layout == torch.strided:
            pairs += [(i, dim) for dim in range(first.dim()) if Run(op, sample, dim, mode).is_there()]
    if draws and len(pairs) > draws:
        pairs = sorted(generator.sample(pairs, draws))
    return [(i, Run(op, samples[i], dim, mode)) for i, dim in pairs]


def agreed(kind):
    """Whether all ranks came to the same end."""
    number = torch.tensor([sum(map(ord, kind))])
    total = number.clone()
    dist.all_reduce(total)
    return total.item() == number.item() * num_ranks()


def test_operators():
    order = json.loads(os.environ["MESHARD_TEST_OPERATORS"])
    with open(f"{order['log']}.{rank()}", "a") as log:
        def note(**words):
            print(json.dumps(words), file=log, flush=True)

        for number in range(order["first"], len(op_db)):
            op = op_db[number]
            name = full_name(op)
            if order["only"] and name not in order["only"] and op.name not in order["only"]:
                continue
            samples = samples_of(op, order["types"])
            for mode in order["modes"]:
                if mode == "misfit" and (op.name in UNCHECKED or device() == "cuda"):   # an index beyond a tensor there ends the use of the GPU
                    continue
                for i, run in runs_of(op, samples, mode, random.Random(f"{order['seed']} {name} {mode}"), order["draws"]):
                    note(number=number, op=name, mode=mode, sample=i, dim=run.dim, verdict="began")
                    faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.stderr)
                    kind, words = run.verdict(op.name in RANDOM)
                    if not agreed(kind):
                        kind, words = "wrong", f"ranks end differently; this one: {kind} {words}"
                    faulthandler.cancel_dump_traceback_later()
                    note(number=number, op=name, mode=mode, sample=i, dim=run.dim, verdict=kind, words=words)
