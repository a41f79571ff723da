# SPDX-License-Identifier: Apache-2.0
"""Kernels without boxes (sharding/tensor/direct_kernel.h) against the rules in whose place they stand: a call that is recorded goes to the rule."""
import meshard
import torch
import torch.nn.functional as F
from meshard import _core

import overhead_benchmark
from ranks import cuts, mesh, uneven

aten = torch.ops.aten
whole = (torch.arange(168).view(7, 4, 6) % 11).float() - 4
weight, line = torch.arange(18.).view(6, 3) / 10, torch.arange(6.) / 7


def parts_in_place(x):
    y = x.clone()
    y.narrow(2, 1, 2).add_(1)
    y.view(7, 24).mul_(3)
    return y


def layer_norm_backward(x):
    _, mean, inverse = aten.native_layer_norm(x, [6], line, line, 1e-5)
    return aten.native_layer_norm_backward(x, x, [6], mean, inverse, line, line, [True, True, True])


def rows(x):
    return x[:, 0].contiguous()


CALLS = {
    "pointwise": [lambda x: x + x, lambda x: x - x * 2, lambda x: x * x, lambda x: x / (x + 9), lambda x: x + 1., lambda x: x + torch.ones(4, 6), torch.neg, torch.exp,
                  lambda x: x.abs().sqrt(), torch.sin, lambda x: x.pow(2), torch.tanh, torch.sigmoid, torch.relu, F.silu, F.gelu, F.leaky_relu],
    "gradients": [lambda x: aten.gelu_backward(x, x), lambda x: aten.silu_backward(x, x), lambda x: aten.threshold_backward(x, x, 0), lambda x: aten.tanh_backward(x, x),
                  lambda x: aten.sigmoid_backward(x, x)],
    "not contiguous": [lambda x: x.transpose(0, 2) + 1, lambda x: x.permute(1, 0, 2).exp(), lambda x: x.transpose(1, 2) * x.transpose(1, 2)],
    "pending": [lambda x: x.sum(0) + x.sum(0), lambda x: x.sum(0).exp(), lambda x: x.sum(0) * 2, lambda x: x.sum((0, 1)).detach(), lambda x: x * x.sum()],
    "in place": [lambda x: x.clone().add_(x).mul_(2), parts_in_place, lambda x: x.clone().add_(line), lambda x: x.clone().transpose(0, 2).sub_(1).div_(2)],
    "plain rows": [lambda x: x + line, lambda x: line - x, lambda x: x * torch.ones(4, 1), lambda x: x * torch.ones(7, 1, 1), lambda x: x + torch.ones(7, 4, 6),
                   lambda x: x.transpose(1, 2) + torch.ones(4), lambda x: torch.ones(6, 4).t() + x, lambda x: x[..., :1] + line, lambda x: x + line.double(),
                   lambda x: torch.where(x > 0, x, line), lambda x: x.sum(0) + line, lambda x: x + torch.ones(1, 1, 1, 6)],
    "choices": [lambda x: torch.where(x > 0, x, x * 2), lambda x: torch.where(x.eq(x), x, 0.), lambda x: x.masked_fill(x.le(1), 3.), lambda x: x.clamp(-1, 2),
                lambda x: x.maximum(x * 2), lambda x: x.minimum(line), lambda x: 1 - x, lambda x: (x.abs() + 1).log(), lambda x: x >= x * 2, lambda x: x != 3,
                lambda x: torch.where(x.transpose(0, 1) > 0, x.transpose(0, 1), 0.)],
    "means": [lambda x, d=d, k=k: x.mean(d, keepdim=k) for d in (0, 1, -1, (0, 1), (1, 2), (0, 1, 2)) for k in (False, True)] + [lambda x: x.sum(0).mean(0)],
    "copies": [lambda x: x.clone(), lambda x: x.t().clone() if x.dim() == 2 else x.transpose(0, 2).clone(), lambda x: x.transpose(0, 1).contiguous(),
               lambda x: x[..., ::2].clone(), lambda x: x.sum(0).clone(), lambda x: x.unsqueeze(0).clone(memory_format=torch.channels_last)],
    "stacks": [lambda x, d=d: torch.stack([x, x * 2], d) for d in (0, 1, 2, 3, -1)] +
              [lambda x: torch.stack([x.sum(0), x.sum(0)], 1), lambda x: torch.stack([x, torch.ones(7, 4, 6)])],
    "sums": [lambda x, d=d, k=k: x.sum(d, keepdim=k) for d in (0, 1, 2, -1, (0, 1), (0, 2), (1, 2), (0, 1, 2)) for k in (False, True)],
    "views": [lambda x, s=s: x.view(s) for s in ((7, 24), (-1, 4, 2, 3), (28, 6), (7, 4, 6, 1), (1, 7, 4, 6), (7, 1, 24), (168,), (7, 4, 1, 6),
                                            (7, 4, 3, 2), (7, 2, 2, 6), (14, 2, 6), (7, 8, 3))],
    "views of views": [lambda x: x.transpose(1, 2).view(7, 6, 2, 2), lambda x: x.permute(2, 0, 1).view(6, 7, 2, 2), lambda x: x.permute(2, 0, 1).reshape(6, 28),
                       lambda x: x.transpose(0, 1).reshape(4, 42), lambda x: x[..., :3].reshape(7, 4, 1, 3), lambda x: x[..., :3].reshape(28, 3),
                       lambda x: x.view(28, 6).view(7, 4, 6), lambda x: x.view(28, 6).view(14, 2, 6), lambda x: x.view(168).view(7, 24)],
    "added and removed dimensions": [lambda x, d=d: x.unsqueeze(d) for d in (0, 1, 2, 3, -1, -2)] + [lambda x, d=d: x.unsqueeze(d).squeeze(d) for d in (0, 1, -1)] +
                                    [lambda x: x.squeeze(1), lambda x: x.sum(1, keepdim=True).squeeze(1)],
    "repeated": [lambda x: x.expand(3, -1, -1, -1), lambda x: x.expand(7, 4, 6), lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1), lambda x: x[:, :1].expand(-1, 4, 6),
                 lambda x: x[..., 2:3].expand(7, 4, 5), lambda x: x.sum(0).expand(3, 4, 6), lambda x: x.sum(0).expand(1, 4, 6)],
    "transposes": [lambda x: x.transpose(0, 1), lambda x: x.transpose(-1, 1), lambda x: rows(x).t(), lambda x: x.detach(), lambda x: x.permute(2, 0, 1),
                   lambda x: x.permute(-2, -1, 0), lambda x: x.sum(0).permute(1, 0)],
    "parts": [lambda x, p=p: x[p] for p in (slice(1, 4), (..., slice(None, 4)), (..., slice(1, None, 2)), (..., slice(-3, 99)), (..., slice(5, 2)), (slice(None), slice(1, 3)), 2,
                                            (slice(None), 1), (..., -2), (slice(None), slice(None, None, 3), 5))],
    "gradients of parts": [lambda x, d=d: aten.slice_backward(x, [n + 3 if i == d else n for i, n in enumerate(x.shape)], d, 2, x.shape[d] + 2, 1) for d in (0, 1, 2)] +
                          [lambda x: aten.slice_backward(x, [7, 8, 6], 1, 0, 8, 2), lambda x: aten.slice_backward(x.sum(0), [4, 9], -1, 1, 7, 1),
                           lambda x: aten.slice_backward(x.transpose(0, 2), [6, 4, 9], 2, 0, 7, 1)],
    "joins": [lambda x, d=d: torch.cat([x, x * 2, x], d) for d in (0, 1, 2, -1)] +
             [lambda x: torch.cat([x, x[..., :2]], -1), lambda x: torch.cat([x, torch.ones(7, 4, 2)], 2), lambda x: torch.cat([x.sum(0), x.sum(0) * 2], 1),
              lambda x: torch.cat([x.transpose(1, 2), x.transpose(1, 2).double()], 1), lambda x: torch.cat([x, torch.ones(0)], 2), lambda x: torch.cat([x[0, 0, 1:1], torch.ones(0)])],
    "softmax": [lambda x, d=d: x.softmax(d) for d in (0, 1, 2)] + [lambda x, d=d: x.log_softmax(d) for d in (0, 1, 2)] +
               [lambda x: aten._softmax_backward_data(x, x.softmax(2), 2, x.dtype)],
    "layer_norm": [lambda x: aten.native_layer_norm(x, [6], line, line, 1e-5), lambda x: aten.native_layer_norm(x, [4, 6], None, None, 1e-5), layer_norm_backward],
    "products": [lambda x: rows(x) @ weight, lambda x: torch.addmm(weight[0], rows(x), weight), lambda x: rows(x).t() @ rows(x), lambda x: rows(x) @ rows(x).t(),
                 lambda x: torch.bmm(x, x.transpose(1, 2)), lambda x: torch.bmm(x, weight.expand(7, 6, 3)), lambda x: rows(x).t() @ torch.ones(7, 2),
                 lambda x: weight.t() @ rows(x).t(), lambda x: torch.bmm(x.transpose(1, 2), x), lambda x: torch.bmm(weight.t().expand(7, 3, 6), x.transpose(1, 2)),
                 lambda x: torch.addmm(weight[0], rows(x).t(), torch.ones(7, 3)), lambda x: torch.addmm(torch.ones(7, 3), rows(x), weight)],
}

# On a tensor (1, 4, 6) whose only row one rank holds.
ONE_ROW_CALLS = [lambda x: x.view(4, 6), lambda x: x.view(1, 1, 24), lambda x: x.squeeze(0), lambda x: x.expand(5, 4, 6), lambda x: x + torch.ones(1, 4, 6),
                 lambda x: x + line, lambda x: x.transpose(0, 1) * torch.ones(1, 6), lambda x: x.permute(1, 0, 2).reshape(4, 6), lambda x: x.sum(0, keepdim=True) * line,
                 lambda x: x.mean(0), lambda x: torch.bmm(x, x.transpose(1, 2)), lambda x: x * 2, lambda x: x.transpose(0, 2).clone()]

CONTRACTIONS = ["nhd,nkd->nhk", "nhd,dk->nhk", "nhd,mkd->nhmk", "nhd,nhe->hde", "nhd,nhe->nde", "nhd,nhd->n", "nhd,nhd->", "nhd,hd->n", "nhd,d->hn", "nhd,nh->dn", "nhd,nd->hn",
                "nhd,nhe->edh", " nhd , nhe -> hde ", "nhd,nhd->nhd", "nhd,mh->ndm", "nhd,nhe", "nnd,dk->nk", "...d,dk->...k"]


def expect_same(ours, by_rule, where):
    for a, b in zip(*((result if isinstance(result, tuple) else (result,)) for result in (ours, by_rule))):
        assert meshard.describe(a) == meshard.describe(b), f"{where}: {meshard.describe(a)}, by the rule {meshard.describe(b)}"
        assert a.shape == b.shape and a.stride() == b.stride(), f"{where}: {tuple(a.shape)} {a.stride()}, by the rule {tuple(b.shape)} {b.stride()}"
        assert meshard.full_tensor(a).equal(meshard.full_tensor(b)), f"{where}: other bits than by the rule"


def test_direct_kernels_give_what_rules_give():
    for dim, size in enumerate(whole.shape):
        for extents in (uneven(size), uneven(size)[::-1]):
            x = meshard.distribute_tensor(whole, mesh(), [meshard.Shard(dim)], extents=[extents])
            for name, calls in CALLS.items():
                for i, call in enumerate(calls):
                    ours = call(x)
                    with meshard.record_rules() as rules:
                        by_rule = call(x)
                    assert rules.events
                    expect_same(ours, by_rule, f"{name} {i} of {meshard.describe(x)}")


def test_of_a_single_row():
    for extents in cuts(1):
        x = meshard.distribute_tensor(whole[:1], mesh(), [meshard.Shard(0)], extents=[extents])
        for i, call in enumerate(ONE_ROW_CALLS):
            ours = call(x)
            with meshard.record_rules():
                by_rule = call(x)
            expect_same(ours, by_rule, f"{i} of {meshard.describe(x)}")


def with_gradients(call, *tensors):
    """The result of a call, and the gradients of what is given; weights make a gradient's place matter."""
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    result = call(*tensors)
    numbers = (torch.arange(result.numel()) % 5 - 2.).view(result.shape)
    (meshard.full_tensor(result) * numbers).sum().backward()
    return [meshard.full_tensor(tensor.detach()) for tensor in (result, *(tensor.grad for tensor in tensors))]


def expect_plain(call, *operands):
    """The plain call's numbers, for cuts of the first operand along each dimension, and of those that share it along the same."""
    expected = with_gradients(call, *operands)
    for dim, size in enumerate(operands[0].shape):
        for extents in cuts(size):
            for both in (False, True):
                own = [meshard.distribute_tensor(operand, mesh(), [meshard.Shard(dim)], extents=[extents])
                       if i == 0 or (both and operand.dim() > dim and operand.shape[dim] == size) else operand for i, operand in enumerate(operands)]
                for a, b in zip(with_gradients(call, *own), expected):
                    assert a.shape == b.shape and a.equal(b), f"Shard({dim}) of {extents}"


def test_contractions_give_the_plain_numbers():
    sizes = {"n": 7, "h": 4, "d": 6, "m": 2, "k": 5, "e": 3}
    for equation in CONTRACTIONS:
        terms = equation.replace(" ", "").split("->")[0].replace("...", "nh").replace("nnd", "nhd").split(",")
        operands = [(torch.arange(torch.Size(sizes[label] for label in term).numel()) % 7 - 3.).view([sizes[label] for label in term]) for term in terms]
        if "nnd" in equation:
            operands[0] = operands[0][:, :1].expand(7, 7, 6).clone()
        expect_plain(lambda a, b: torch.einsum(equation, a, b), *operands)
    expect_plain(lambda a, b: torch.einsum("nhd,dk->nhk", a, b), whole, torch.arange(5.).view(1, 5))   # the one row is repeated


def test_matmul_gives_the_plain_numbers():
    for shapes in ([(7, 4, 6), (7, 6, 3)], [(7, 4, 6), (6, 3)], [(2, 7, 4, 6), (2, 7, 6, 3)], [(2, 7, 4, 6), (7, 6, 3)], [(7, 4, 6), (1, 6, 3)], [(7, 4, 6), (6,)]):
        expect_plain(torch.matmul, *((torch.arange(torch.Size(shape).numel()) % 7 - 3.).view(shape) for shape in shapes))


def test_einsum_refuses_as_the_plain_one():
    x = meshard.distribute_tensor(whole, mesh(), [meshard.Shard(0)])
    for equation, other in (("nhd,dk->nhk", torch.ones(5, 2)), ("nhd,dk->nhz", torch.ones(6, 2)), ("nh,hk->nk", torch.ones(4, 2)), ("nhd,dk->nhk", torch.ones(6, 2).double())):
        for tensor in (whole, x):
            try:
                torch.einsum(equation, tensor, other)
            except RuntimeError:
                continue
            raise AssertionError(f"{equation} of {tuple(tensor.shape)} and {tuple(other.shape)} is not refused")


def test_views_refuse_as_plain_ones():
    x = meshard.distribute_tensor(whole, mesh(), [meshard.Shard(0)])
    for i, call in enumerate([lambda x: x.expand(7, 5, 6), lambda x: x[:, :1].expand(7, -2, 6), lambda x: x.expand(-1, 7, 4, 6), lambda x: x.expand(4, 6), lambda x: x.permute(0, 1),
                              lambda x: x.permute(0, 1, 1), lambda x: x.view(7, 25), lambda x: x.transpose(0, 3), lambda x: x.unsqueeze(5), lambda x: x.squeeze(3)]):
        for tensor in (whole, x):
            try:
                call(tensor)
            except (RuntimeError, IndexError):
                continue
            raise AssertionError(f"{i} is not refused")


def test_views_written_in_place_have_gradients():
    def written(x):
        with torch.no_grad():
            x.view(7, 24).t()   # what is noted of this view serves no gradient
        y = x * 1
        y.view(7, 24).t()[3:5].mul_(2)
        y.permute(2, 0, 1)[1].mul_(3)
        y.unsqueeze(1)[:, 0, :, 4:].add_(x[..., :2])
        return y

    expect_plain(written, whole)


def test_frequent_operators_call_no_rules():
    x, weight, bias = overhead_benchmark.make("meshard", torch.randn(8, 16), torch.randn(16, 16), torch.randn(16))
    mask = x > 0
    for name, operator in overhead_benchmark.OPERATORS.items():
        for records in (False, True):
            y = x.detach().requires_grad_(records)
            before = _core.num_rule_calls()
            operator(y, weight, bias, mask)
            found = _core.num_rule_calls() - before
            assert found == (name == "attention, fused"), f"{name}: {found} calls of rules"


def test_linear_layers_of_batches_call_no_rules():
    layer = torch.nn.Linear(6, 3)
    for dim in (0, 1):
        x = meshard.distribute_tensor(whole, mesh(), [meshard.Shard(dim)]).requires_grad_()
        before = _core.num_rule_calls()
        layer(x)
        assert _core.num_rule_calls() == before, f"of {meshard.describe(x)}"
