# SPDX-License-Identifier: Apache-2.0
"""Kernels without boxes (sharding/tensor/direct_kernel.h) against the rules in whose place they stand: a call that is recorded goes to the rule."""
import meshard
import torch
import torch.nn.functional as F

from ranks import mesh, uneven

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
    "in place": [lambda x: x.clone().add_(x).mul_(2), parts_in_place],
    "sums": [lambda x, d=d, k=k: x.sum(d, keepdim=k) for d in (0, 1, 2, -1, (0, 1), (0, 2), (1, 2), (0, 1, 2)) for k in (False, True)],
    "views": [lambda x, s=s: x.view(s) for s in ((7, 24), (-1, 4, 2, 3), (28, 6), (7, 4, 6, 1), (1, 7, 4, 6), (7, 1, 24), (168,), (7, 4, 1, 6))],
    "transposes": [lambda x: x.transpose(0, 1), lambda x: x.transpose(-1, 1), lambda x: rows(x).t(), lambda x: x.detach()],
    "parts": [lambda x, p=p: x[p] for p in (slice(1, 4), (..., slice(None, 4)), (..., slice(1, None, 2)), (..., slice(-3, 99)), (..., slice(5, 2)), (slice(None), slice(1, 3)), 2,
                                            (slice(None), 1), (..., -2), (slice(None), slice(None, None, 3), 5))],
    "gradients of parts": [lambda x, d=d: aten.slice_backward(x, [n + 3 if i == d else n for i, n in enumerate(x.shape)], d, 2, x.shape[d] + 2, 1) for d in (0, 1, 2)] +
                          [lambda x: aten.slice_backward(x, [7, 8, 6], 1, 0, 8, 2), lambda x: aten.slice_backward(x.sum(0), [4, 9], -1, 1, 7, 1),
                           lambda x: aten.slice_backward(x.transpose(0, 2), [6, 4, 9], 2, 0, 7, 1)],
    "joins": [lambda x, d=d: torch.cat([x, x * 2, x], d) for d in (0, 1, 2, -1)] +
             [lambda x: torch.cat([x, x[..., :2]], -1), lambda x: torch.cat([x, torch.ones(7, 4, 2)], 2), lambda x: torch.cat([x.sum(0), x.sum(0) * 2], 1),
              lambda x: torch.cat([x.transpose(1, 2), x.transpose(1, 2).double()], 1), lambda x: torch.cat([x, torch.ones(0)], 2)],
    "softmax": [lambda x, d=d: x.softmax(d) for d in (0, 1, 2)] + [lambda x, d=d: x.log_softmax(d) for d in (0, 1, 2)] +
               [lambda x: aten._softmax_backward_data(x, x.softmax(2), 2, x.dtype)],
    "layer_norm": [lambda x: aten.native_layer_norm(x, [6], line, line, 1e-5), lambda x: aten.native_layer_norm(x, [4, 6], None, None, 1e-5), layer_norm_backward],
    "products": [lambda x: rows(x) @ weight, lambda x: torch.addmm(weight[0], rows(x), weight), lambda x: rows(x).t() @ rows(x), lambda x: rows(x) @ rows(x).t(),
                 lambda x: torch.bmm(x, x.transpose(1, 2)), lambda x: torch.bmm(x, weight.expand(7, 6, 3)), lambda x: rows(x).t() @ torch.ones(7, 2)],
}


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
