# SPDX-License-Identifier: Apache-2.0
"""Training loops in Python: optimisers, clipping, accumulation, checkpoints; the same losses and weights as on one rank."""
import copy
import io

import meshard
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ranks import mesh, num_ranks, rank, refused, seeded, uneven
from sharded_check import difference, near

whole = torch.randn(10, 4, generator=seeded(0))
extent = uneven(10)


def cut():
    return meshard.distribute_tensor(whole, mesh(), [meshard.Shard(0)], extents=[extent])


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


def train(make_optimizer, replicated=True, steps=8):
    model, serial = network(), network()
    if replicated:
        meshard.replicate(model, mesh())
    runs = [(model, make_optimizer(model.parameters()), cut()), (serial, make_optimizer(serial.parameters()), whole)]
    for _ in range(steps):
        losses = []
        for module, optimizer, x in runs:
            loss = F.mse_loss(module(x), x[:, :2] ** 2)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 1e-5 * abs(losses[1]), losses
    for ours, theirs in zip(model.parameters(), serial.parameters()):
        near(ours, theirs, 1e-5)
    return f"last loss {losses[0]:.4f}"


def test_adamw():
    return train(lambda p: torch.optim.AdamW(p, 1e-2))


def test_adamw_foreach():
    return train(lambda p: torch.optim.AdamW(p, 1e-2, foreach=True))


def test_adamw_fused():
    return train(lambda p: torch.optim.AdamW(p, 1e-2, fused=True))


def test_sgd_without_replicate():
    return train(lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9), replicated=False)


def test_adamw_without_replicate():
    return train(lambda p: torch.optim.AdamW(p, 1e-2), replicated=False)


def test_lbfgs():
    model, serial = meshard.replicate(network(), mesh()), network()
    for module, x in ((model, cut()), (serial, whole)):
        optimizer = torch.optim.LBFGS(module.parameters(), max_iter=5)

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(module(x), x[:, :2] ** 2)
            loss.backward()
            return loss

        optimizer.step(closure)
    for ours, theirs in zip(model.parameters(), serial.parameters()):
        near(ours, theirs, 1e-3)


def test_replicate_starts_with_the_weights_of_rank_0():
    torch.manual_seed(rank())
    model = nn.Linear(4, 4)
    if num_ranks() > 1:
        refused(lambda: meshard.replicate(model, mesh(), verify_at_start=True), ValueError, "weight")
    meshard.replicate(model, mesh())
    torch.manual_seed(0)
    near(model.weight, nn.Linear(4, 4).weight, 0)
    refused(lambda: meshard.no_sync(nn.Linear(1, 1)).__enter__(), ValueError, "was not given to replicate")


def runs(prepare=lambda model: None, replicated_first=True):
    """The network on cut and on whole rows, each with what `prepare` does to it before or after `replicate`."""
    found = []
    for x in (cut(), whole):
        model = network()
        if not replicated_first:
            prepare(model)
        if x is not whole:
            meshard.replicate(model, mesh())
        if replicated_first:
            prepare(model)
        found.append((model, x))
    return found


def test_hooks_on_parameters_see_the_gradient_of_the_whole():
    for replicated_first in (True, False):
        (model, x), (serial, _) = runs(lambda model: [p.register_hook(lambda g: g.clamp(-0.1, 0.1)) for p in model.parameters()], replicated_first)
        model(x).square().sum().backward()
        serial(whole).square().sum().backward()
        for ours, theirs in zip(model.parameters(), serial.parameters()):
            near(ours.grad, theirs.grad, 1e-5)


def test_hooks_after_accumulation_see_the_gradient_of_the_whole():
    for replicated_first in (True, False):
        def with_steps(model):
            def step(parameter):
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(step)

        (model, x), (serial, _) = runs(with_steps, replicated_first)
        for _ in range(3):
            model(x).square().mean().backward()
            serial(whole).square().mean().backward()
        for ours, theirs in zip(model.parameters(), serial.parameters()):
            near(ours, theirs, 1e-5)


def test_gradients_that_are_asked_for_are_of_the_whole():
    (model, x), (serial, _) = runs()
    found = []
    for module, rows in ((model, x), (serial, whole)):
        gradients = torch.autograd.grad(module(rows).square().sum(), list(module.parameters()), create_graph=True)
        sum(g.square().sum() for g in gradients).backward()
        found.append([*gradients, *(p.grad for p in module.parameters())])
    for ours, theirs in zip(*found):
        near(ours, theirs, 1e-5)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ArithmeticError("on purpose")


def test_a_backward_after_one_that_failed():
    (model, x), (serial, _) = runs()
    refused(lambda: model[1:](Failing.apply(model[0](x))).sum().backward(), ArithmeticError, "on purpose")
    model.zero_grad()
    for module, rows in ((model, x), (serial, whole)):
        module(rows).square().sum().backward()
    for ours, theirs in zip(model.parameters(), serial.parameters()):
        near(ours.grad, theirs.grad, 1e-5)


def test_replicate_again():
    (model, x), (serial, _) = runs()
    meshard.replicate(model, mesh())
    for module, rows in ((model, x), (serial, whole)):
        module(rows).square().sum().backward()
    for ours, theirs in zip(model.parameters(), serial.parameters()):
        near(ours.grad, theirs.grad, 1e-5)
    refused(lambda: meshard.replicate(nn.Sequential(model[0]), mesh()), ValueError, "'0.weight' was given to replicate before")


def test_gradients_given_before_the_first_backward_count_once():
    (model, x), (serial, _) = runs()
    for module in (model, serial):
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, 3)
    for _ in range(2):   # the second time the gradients of the backward before are there
        for module, rows in ((model, x), (serial, whole)):
            module(rows).square().sum().backward()
        for ours, theirs in zip(model.parameters(), serial.parameters()):
            near(ours.grad, theirs.grad, 1e-5)
        meshard.replicate(model, mesh())


def test_a_container_that_nobody_keeps_lasts_as_long_as_its_parts():
    model, serial = network(), network()
    meshard.replicate(nn.ModuleList([model]), mesh())
    own = whole.split(extent)[rank()]
    meshard.from_local(model(own), mesh(), [meshard.Shard(0)]).square().sum().backward()
    serial(whole).square().sum().backward()
    for ours, theirs in zip(model.parameters(), serial.parameters()):
        near(ours.grad, theirs.grad, 1e-5)
    del model
    again = network()
    meshard.replicate(nn.ModuleList([again]), mesh())
    meshard.replicate(again, mesh())   # the container is gone


def test_parameters_that_were_frozen_at_first_are_named():
    model = network()
    model[0].requires_grad_(False)
    meshard.replicate(model, mesh())
    model(cut()).square().sum().backward()
    model[0].requires_grad_(True)
    if num_ranks() > 1:
        refused(lambda: model(cut()).square().sum().backward(), Exception, "'0.weight' took no gradients")
    meshard.replicate(model, mesh())
    model.zero_grad()
    model(cut()).square().sum().backward()
    serial = network()
    serial(whole).square().sum().backward()
    near(model[0].weight.grad, serial[0].weight.grad, 1e-5)


def test_from_local_may_be_what_backward_begins_with():
    serial = network()
    serial(whole).square().sum().backward()
    own = whole.split(extent)[rank()]
    for sums in (True, False):
        model = meshard.replicate(network(), mesh())
        if sums:
            meshard.from_local(model(own).square().sum(), mesh(), [meshard.Partial("sum")]).backward()
        else:
            y = meshard.from_local(model(own), mesh(), [meshard.Shard(0)])
            y.backward(2 * y.detach())
        for ours, theirs in zip(model.parameters(), serial.parameters()):
            near(ours.grad, theirs.grad, 1e-5)


def test_no_sync_accumulates():
    model, serial = meshard.replicate(network(), mesh()), network()
    before = mesh().num_messages
    with meshard.no_sync(model):
        model(cut()).square().sum(1).backward(torch.ones(10))
    inside = mesh().num_messages - before
    model(cut()).square().sum(1).backward(torch.ones(10))
    outside = mesh().num_messages - before - inside
    serial(whole).square().sum().mul(2).backward()
    near(model[0].weight.grad, serial[0].weight.grad)
    assert num_ranks() == 1 or inside < outside, (inside, outside)


def test_state_goes_to_a_file_and_back():
    model = meshard.replicate(network(), mesh())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model(cut()).square().mean().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file)
    fresh = network()
    fresh.load_state_dict(state["model"])
    torch.optim.AdamW(fresh.parameters(), 1e-2).load_state_dict(state["optimizer"])
    near(fresh(cut()), model(whole))
    near(copy.deepcopy(model)(cut()), model(whole))
    torch.optim.swa_utils.AveragedModel(model).update_parameters(model)


def test_a_sharded_parameter():
    module, serial = nn.Module(), nn.Parameter(whole.clone())
    module.field = nn.Parameter(cut())
    ours, theirs = torch.optim.AdamW(module.parameters(), 1e-2), torch.optim.AdamW([serial], 1e-2)
    for _ in range(3):
        module.field.cos().sum().backward()
        serial.cos().sum().backward()
        ours.step()
        theirs.step()
    near(module.field, serial)
    assert meshard.extents(ours.state[module.field]["exp_avg"]) == [extent]


def test_cases_over_data_and_parts_over_domain():
    """Each group of ranks along `data` has a case of its own; gradients are the mean over cases."""
    if num_ranks() != 4:
        return "needs 4 ranks"
    grid = meshard.init_device_mesh((2, 2), mesh_dim_names=("data", "domain"))
    assert grid.shape == (2, 2) and grid.size("data") == 2 and grid.get_coordinate() == [rank() // 2, rank() % 2]
    cases = [torch.randn(n, 4, generator=seeded(n)) for n in (10, 13)]
    model, serial = meshard.replicate(network(), grid), network()
    own, domain = cases[grid.get_local_rank("data")], grid["domain"]
    part = own[:7] if domain.get_local_rank() == 0 else own[7:]
    model(meshard.from_local(part, domain, [meshard.Shard(0)])).square().mean().backward()
    (sum(serial(case).square().mean() for case in cases) / 2).backward()
    worst = max(difference(ours.grad, theirs.grad, 1e-3) for ours, theirs in zip(model.parameters(), serial.parameters()))
    assert worst < 1e-5, worst


def test_fully_shard():
    sharded, serial = network(), network()
    handle = meshard.fully_shard(sharded, mesh(), over_all_axes=True)
    assert sum(p.numel() for p in handle.local_parameters()) < sum(p.numel() for p in serial.parameters()) or num_ranks() == 1
    ours, theirs = torch.optim.AdamW(handle.local_parameters(), 1e-2), torch.optim.AdamW(serial.parameters(), 1e-2)
    for _ in range(3):
        for module, optimizer, x in ((sharded, ours, cut()), (serial, theirs, whole)):
            module.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    for kind in (2.0, 1.0, float("inf")):
        near(torch.nn.utils.clip_grad_norm_(sharded.parameters(), 0.5, kind).float(), torch.nn.utils.clip_grad_norm_(serial.parameters(), 0.5, kind), 1e-5)
    norms = handle.clip_grad_norm_(1e-3), torch.nn.utils.clip_grad_norm_(serial.parameters(), 1e-3)
    near(norms[0].float(), norms[1], 1e-5)
    ours.step()
    theirs.step()
    for (name, value), (expected_name, expected) in zip(handle.full_parameters(), serial.named_parameters()):
        assert name == expected_name
        near(value, expected, 1e-5)
    refused(lambda: torch.autograd.grad(sharded(cut()).square().mean(), handle.local_parameters(), create_graph=True), Exception, "create_graph")
    refused(lambda: nn.init.zeros_(sharded[0].weight), RuntimeError, "or copy_ a whole value within no_grad")
    refused(lambda: meshard.fully_shard(network(), mesh()), ValueError, "data")
    refused(lambda: meshard.fully_shard(network(), mesh(), units=["7"]), ValueError, "['7']")


def test_a_fully_sharded_unit_inside_and_outside_of_a_reentrant_checkpoint():
    sharded, serial = network(), network()
    handle = meshard.fully_shard(sharded, mesh(), over_all_axes=True)
    for module, x in ((sharded, cut()), (serial, whole)):
        x = x.detach().requires_grad_()
        (checkpoint(module[0], x, use_reentrant=True).square().mean() + module[0](x).mean()).backward()
    norms = handle.clip_grad_norm_(1e9), torch.nn.utils.clip_grad_norm_(serial.parameters(), 1e9)
    near(norms[0].float(), norms[1], 1e-5)


def test_a_graph_of_gradients_is_of_autograd_grad_alone():
    module, serial = meshard.replicate(network(), mesh()), network()
    refused(lambda: module(cut()).square().mean().backward(create_graph=True), Exception, "torch.autograd.grad")
    for model, x in ((module, cut()), (serial, whole)):
        loss = model(x).square().mean()
        (loss + sum(g.square().sum() for g in torch.autograd.grad(loss, model.parameters(), create_graph=True))).backward()
    for ours, theirs in zip(module.parameters(), serial.parameters()):
        near(ours.grad, theirs.grad, 1e-5)


def test_a_rank_without_rows_may_leave_layers_out():
    module, serial = meshard.replicate(network(), mesh()), network()
    for _ in range(2):   # gradients of the first backward are there in the second
        x = meshard.distribute_tensor(whole, mesh(), [meshard.Shard(0)], extents=[[len(whole)] + [0] * (len(extent) - 1)])
        h = meshard.to_local(module[0](x))
        y = module[1:](h) if len(h) else h[:, :2]
        meshard.from_local(y, mesh(), [meshard.Shard(0)]).square().sum().backward()
        serial(whole).square().sum().backward()
        for ours, theirs in zip(module.parameters(), serial.parameters()):
            near(ours.grad, theirs.grad, 1e-5)


def test_parameters_that_several_reentrant_checkpoints_share():
    def step(model, x):
        for _ in range(3):
            x = checkpoint(model[0], x, use_reentrant=True)
        (model[2](x).square().mean() + model[0](x).mean()).backward()

    def models():
        torch.manual_seed(4)
        return torch.nn.Sequential(torch.nn.Linear(whole.shape[-1], whole.shape[-1]), torch.nn.Tanh(), torch.nn.Linear(whole.shape[-1], 1))

    serial = models()
    step(serial, whole.detach().requires_grad_())
    sharded = meshard.replicate(models(), mesh())
    step(sharded, cut().detach().requires_grad_())
    for ours, theirs in zip(sharded.parameters(), serial.parameters()):
        near(ours.grad, theirs.grad, 1e-5)

    sharded = meshard.replicate(models(), mesh(), bucket_cap_mb=1e-6)   # whose head is being summed when the checkpoint comes
    h = sharded[0](cut())
    refused((checkpoint(sharded[2], h, use_reentrant=True).mean() + sharded[2](h).mean()).backward, Exception, "use_reentrant=False")


def test_hooks_and_another_type():
    """PyTorch takes hooks of C++ away where it registers one of Python, and makes a parameter's node anew where its type changes."""
    def gradients(model, x):
        handle = model[0].weight.register_hook(lambda g: g * 2)
        model.double()
        model(x.double()).square().sum().backward()
        handle.remove()
        model.float()
        model.zero_grad()
        model[0].weight.register_hook(lambda g: g * 3)
        model(x).square().sum().backward()
        return [p.grad for p in model.parameters()]

    for ours, theirs in zip(gradients(meshard.replicate(network(), mesh()), cut()), gradients(network(), whole)):
        near(ours, theirs, 1e-5)


def test_fully_sharded_in_inference_mode():
    sharded, serial = network(), network()
    meshard.fully_shard(sharded, mesh(), over_all_axes=True)
    for _ in range(2):
        with torch.inference_mode():
            near(sharded(cut()), serial(whole))
        x, y = cut().requires_grad_(), whole.clone().requires_grad_()
        sharded(x).square().sum().backward()
        serial(y).square().sum().backward()
        near(x.grad, y.grad)


def test_values_assigned_to_local_parameters():
    sharded, serial = network(), network()
    handle = meshard.fully_shard(sharded, mesh(), over_all_axes=True)
    optimizer = torch.optim.SGD(handle.local_parameters(), lr=0.1)
    other = torch.optim.SGD(serial.parameters(), lr=0.1)
    for _ in range(2):
        for parameters in (handle.local_parameters(), list(serial.parameters())):
            torch.nn.utils.vector_to_parameters(0.5 * torch.nn.utils.parameters_to_vector(parameters), parameters)
        for module, x in ((sharded, cut()), (serial, whole)):
            module(x).square().sum().backward()
        for one in (optimizer, other):
            one.step()
            one.zero_grad()
        for name, value in handle.full_parameters():
            near(value, serial.get_parameter(name))
    # A backup that shares memory with what was assigned, as averages of weights are put in and taken out.
    ours, theirs = handle.local_parameters(), list(serial.parameters())
    backups = [[p.data for p in parameters] for parameters in (ours, theirs)]
    for parameters in (ours, theirs):
        for p in parameters:
            p.data = torch.zeros_like(p)
    near(sharded(cut()), serial(whole))
    for parameters, backup in zip((ours, theirs), backups):
        for p, before in zip(parameters, backup):
            p.data = before
    near(sharded(cut()), serial(whole))
    if num_ranks() == 1:   # two values that change places
        for parameters in (ours, theirs):
            first, last = parameters[2], parameters[3]   # of the normalisation, eight each
            first.data, last.data = last.data, first.data
        near(sharded(cut()), serial(whole))
    handle.local_parameters()[0].data = torch.zeros(7, 3)
    refused(lambda: sharded(cut()), RuntimeError, "was replaced by 21 values")


def test_values_assigned_between_forward_and_backward():
    """Backward is of the values that forward had, as of layers in torch that save a view of their weights."""
    torch.manual_seed(1)
    serial = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    sharded = copy.deepcopy(serial)
    handle = meshard.fully_shard(sharded, mesh(), over_all_axes=True)
    for module, parameters, x in ((sharded, handle.local_parameters(), cut()), (serial, list(serial.parameters()), whole)):
        loss = module(x).square().sum()
        for p in parameters:
            p.data = 0.5 * p.data
        loss.backward()
    near(handle.clip_grad_norm_(1e9).float(), torch.nn.utils.clip_grad_norm_(serial.parameters(), 1e9), 1e-5)


def test_norm_of_complex_gradients():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.weight, self.unused = nn.Parameter(torch.randn(4, 3, dtype=torch.cfloat)), nn.Parameter(torch.randn(3, dtype=torch.cfloat))

        def forward(self, x, uses=True):
            y = x.to(torch.cfloat) @ self.weight
            return torch.view_as_real(y * self.unused if uses else y)

    sharded, serial = Turned(), Turned()
    handle = meshard.fully_shard(sharded, mesh(), over_all_axes=True)
    sharded(cut()).square().sum().backward()
    serial(whole).square().sum().backward()
    near(handle.clip_grad_norm_(1.0), torch.nn.utils.clip_grad_norm_(serial.parameters(), 1.0))
    # A parameter that one data rank alone uses.
    data = meshard.init_device_mesh("cpu", (num_ranks(),), mesh_dim_names=("data",))
    averaged, serial = Turned(), Turned()
    meshard.replicate(averaged, data)
    averaged(whole, rank() == num_ranks() - 1).square().sum().backward()
    serial(whole).square().sum().backward()
    near(torch.view_as_real(averaged.unused.grad), torch.view_as_real(serial.unused.grad / num_ranks()))


def test_checkpoint_sees_writes_and_leaves_other_hooks():
    def doubled(x):
        y = x.exp()
        y.mul_(2)   # what the derivative of exp needs
        return y

    x = torch.ones(3, requires_grad=True)
    refused(lambda: meshard.checkpoint(doubled, x).sum().backward(), RuntimeError, "modified by an inplace operation")
    near(torch.autograd.grad(meshard.checkpoint(torch.exp, x).sum(), x)[0], x.detach().exp())
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: seen.append(tensor) or tensor, lambda tensor: tensor):
        x.exp().sum()
    assert len(seen) == 1, seen
