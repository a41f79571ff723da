# SPDX-License-Identifier: Apache-2.0
"""The oracle: the same module on whole tensors, on one rank."""
import copy

import meshard
import torch

from ranks import cuts, mesh, seeded


def difference(ours, theirs, floor=1e-30):
    """The largest difference over the largest value, which counts as `floor` at least."""
    if ours.shape != theirs.shape:
        return float("inf")
    return ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp_min(floor)).item() if theirs.numel() else 0.0


def near(ours, theirs, tolerance=2e-6):
    found = difference(meshard.full_tensor(ours.detach()) if meshard.is_sharded(ours) else ours.detach(), theirs.detach())
    assert found <= tolerance, f"differs by {found:.1e}"


def _inputs(whole, dims, extent):
    """Leaves: cut along `dims`, or plain where that is None."""
    parts = []
    for x, dim in zip(whole, dims):
        part = x.detach().clone()
        if dim is not None:
            part = meshard.distribute_tensor(part, mesh(), [meshard.Shard(dim)], extents=[extent])
        parts.append(part.requires_grad_(x.is_floating_point()))
    return parts


def compare(module, inputs, dims, *, call=None, tolerance=1e-9, extents=None):
    """Output, gradients of inputs and parameters, and buffers: `module` on inputs cut along `dims` (None: plain) against the same module on the wholes."""
    call = call or (lambda model, *arguments: model(*arguments))
    serial = copy.deepcopy(module)
    torch.manual_seed(17)
    whole = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    expected = call(serial, *whole)
    weights = torch.randn(expected.shape, dtype=expected.dtype, generator=seeded(3))
    (expected * weights).sum().backward()
    worst = 0.0
    for extent in extents or cuts(next(x.shape[d] for x, d in zip(inputs, dims) if d is not None)):
        model = meshard.replicate(copy.deepcopy(module), mesh())
        torch.manual_seed(17)
        parts = _inputs(inputs, dims, extent)
        ours = call(model, *parts)
        (ours * weights).sum().backward()
        assert meshard.is_sharded(ours) and ours.shape == expected.shape, f"{meshard.is_sharded(ours)}, {tuple(ours.shape)}, expected {tuple(expected.shape)}"
        found = {"output": difference(meshard.full_tensor(ours.detach()), expected.detach())}
        for i, (part, x, dim) in enumerate(zip(parts, whole, dims)):
            assert (part.grad is None) == (x.grad is None), f"input {i}: only one has a gradient"
            if x.grad is not None and dim is not None:
                found[f"gradient of input {i}"] = difference(meshard.full_tensor(part.grad), x.grad)
        # Some gradients are zero but for rounding (a bias before a normalisation).
        floor = 1e-3 * max((p.grad.abs().max().item() for p in serial.parameters() if p.grad is not None), default=0.0)
        for (name, parameter), other in zip(model.named_parameters(), serial.parameters()):
            assert (parameter.grad is None) == (other.grad is None), f"{name}: only one has a gradient"
            if other.grad is not None:
                assert not meshard.is_sharded(parameter.grad), f"the gradient of {name} is not plain"
                found[f"gradient of {name}"] = difference(parameter.grad, other.grad, floor)
        for (name, buffer), other in zip(model.named_buffers(), serial.buffers()):
            found[f"buffer {name}"] = difference(meshard.full_tensor(buffer) if meshard.is_sharded(buffer) else buffer, other)
        where = max(found, key=found.get)
        assert found[where] <= tolerance, f"{where} differs by {found[where]:.1e} where extents are {extent}"
        worst = max(worst, found[where])
    return f"largest difference {worst:.1e}"
