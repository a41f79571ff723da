# SPDX-License-Identifier: Apache-2.0
"""What concerns the device on which tensors lie: meshes of a type of device, what carries messages, mixed precision, graphs."""
import os
import warnings
from unittest import mock

import meshard
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from meshard import _torch_version

from ranks import device, mesh, mesh_type, num_ranks, rank, refused, seeded, uneven
from sharded_check import near

extent = uneven(10)


def network():
    torch.manual_seed(3)
    with torch.device("cpu"):
        model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))
    return model.to(device())


def rows(step=0):
    return torch.randn(10, 4, generator=seeded(step))


def cut(x):
    return meshard.distribute_tensor(x, mesh(), [meshard.Shard(0)], extents=[extent])


def expected_carrier():
    if num_ranks() == 1 or device() == "cpu":
        return "none" if num_ranks() == 1 else "shm"
    if device() == "standin":
        return "shm, by way of the host" if os.environ.get("MESHARD_STANDIN_DEVICES") == "1" else "checked"
    shares = torch.cuda.device_count() < num_ranks() and os.environ.get("MESHARD_TEST_SHARED_GPU") != "nccl"
    return "shm, by way of the host" if shares else "nccl"


def test_meshes_take_a_type_of_device():
    for made in (meshard.init_device_mesh(mesh_type()), meshard.init_device_mesh(mesh_type(), (num_ranks(),)), meshard.init_device_mesh((num_ranks(),)),
                 meshard.init_device_mesh(mesh_type(), (num_ranks(), 1), mesh_dim_names=("data", "domain"))):
        assert made.size() == num_ranks()
    refused(lambda: meshard.init_device_mesh("gpu"), ValueError, "'cuda' or 'cpu', found 'gpu'")
    refused(lambda: meshard.init_device_mesh((num_ranks(),), (num_ranks(),)), ValueError, "'cuda' or 'cpu'")
    if not torch.cuda.is_available():
        refused(lambda: meshard.init_device_mesh("cuda"), ValueError, "torch sees no GPU")
    assert meshard.DeviceMesh.single().transport() == "none"


def test_messages_go_where_the_device_lets_them():
    assert mesh().transport(device()) == expected_carrier(), mesh().transport(device())
    for made in (mesh(), mesh()["domain"], meshard.device_mesh(cut(rows()))):
        assert made.transport("cpu") == ("shm" if num_ranks() > 1 else "none")
    assert mesh() == mesh() and mesh() != "domain" and mesh() is not None and mesh() not in ["domain", None]
    x = cut(rows())
    assert x.device.type == device() and meshard.to_local(x).device.type == device()
    near(x.sum(0), rows().sum(0), 1e-5)
    near(x, rows(), 0)
    near(meshard.redistribute(x, [meshard.Shard(1)]), rows(), 0)
    near(x.cpu().sum(0).to(device()), rows().sum(0), 1e-5)


def test_a_mesh_of_groups_that_carry_no_tensors_of_the_cpu():
    """As NCCL's alone: messages of the host want groups of their own."""
    def only_devices(group, device_type, backends=()):
        return False

    for shape, names in (((num_ranks(),), ("domain",)), ((1, num_ranks()), ("data", "domain")), ((num_ranks(), 1), ("data", "domain"))):
        with mock.patch("meshard._device_mesh._carries", only_devices):
            made = meshard.init_device_mesh(mesh_type(), shape, mesh_dim_names=names, shared_memory=False)
        x = meshard.from_local(rows(rank()), made, [meshard.Shard(0) if n == num_ranks() else meshard.Replicate() for n in shape])
        near(x.sum(0), sum(rows(r) for r in range(num_ranks())).sum(0), 1e-5)


def test_a_package_for_cpus_says_so_where_there_are_gpus():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _torch_version.warn_of_gpus(built_for_gpus=True, num_gpus=1)
        _torch_version.warn_of_gpus(built_for_gpus=False, num_gpus=0)
        assert not found
        _torch_version.warn_of_gpus(built_for_gpus=False, num_gpus=1)
    assert len(found) == 1 and "was built for CPUs" in str(found[0].message) and "pip install" in str(found[0].message)


def trained(model, optimizer, inputs, scaler, poisoned=None):
    """Losses of some steps, and scales after them."""
    history = []
    for step, x in enumerate(inputs):
        optimizer.zero_grad()
        with torch.autocast(device(), torch.bfloat16):
            y = model(x)
        loss = F.mse_loss(y.float(), x.square().sum(1, keepdim=True))
        scaler.scale(loss * float("inf") if step == poisoned else loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        history.append((loss.item(), scaler.get_scale()))
    return history


def check_scaling(wrap):
    serial, model = network(), wrap(network())
    found = []
    for one, lay_out in ((serial, lambda x: x), (model, cut)):
        scaler = torch.amp.GradScaler(device(), init_scale=1024.0, growth_interval=2)
        optimizer = torch.optim.AdamW(one.parameters(), 1e-2)
        found.append(trained(one, optimizer, [lay_out(rows(step)) for step in range(5)], scaler, poisoned=2))
    for (loss, scale), (other, other_scale) in zip(*found):
        assert scale == other_scale, found
        assert abs(loss - other) < 2e-2 * abs(loss), found
    assert [scale for _, scale in found[0]] == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0], found[0]   # a step that is not finite halves it, two good ones double it


def test_scaled_gradients_under_replicate():
    check_scaling(lambda model: meshard.replicate(model, mesh()))


def test_scaled_gradients_of_plain_parameters():
    """Whose gradients are sharded tensors."""
    check_scaling(lambda model: model)


def test_a_step_from_a_graph():
    """Forward, backward and messages of a step, recorded once."""
    if device() != "cuda":
        return "graphs are of GPUs"
    model, serial = meshard.replicate(network(), mesh()), network()
    local = meshard.to_local(cut(rows())).clone()
    x = meshard.from_local(local, mesh(), [meshard.Shard(0)])

    def step():
        loss = F.mse_loss(model(x), x.square().sum(1, keepdim=True))
        loss.backward()
        return meshard.full_tensor(loss.detach())

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    model.zero_grad(set_to_none=True)
    if "host" in mesh().transport("cuda"):
        def record():
            with torch.cuda.graph(graph):
                step()
        refused(record, (ValueError, RuntimeError), "by way of the host")
        return "refused: by way of the host"
    with torch.cuda.graph(graph):
        loss = step()
    for number in range(3):
        whole = rows(10 + number)
        local.copy_(meshard.to_local(cut(whole)))
        for parameter in model.parameters():
            parameter.grad.zero_()
        graph.replay()
        serial.zero_grad()
        expected = F.mse_loss(serial(whole), whole.square().sum(1, keepdim=True))
        expected.backward()
        near(loss, expected, 1e-5)
        for parameter, other in zip(model.parameters(), serial.parameters()):
            near(parameter.grad, other.grad, 1e-4)


def test_results_may_lie_in_what_is_sent_by_the_backend_of_torch():
    if device() == "standin":
        if mesh().transport(device()) == "checked":
            return "the stand-in's own transport has the collectives of operators only"
        dist.Backend.backend_capability["meshard"] = ["cpu", "standin"]
    group = dist.new_group(backend="meshard" if device() == "cpu" else f"cpu:meshard,{device()}:meshard")
    n, begin = num_ranks(), 4 * rank()
    whole = torch.arange(4. * n) + 10 * rank()
    dist.reduce_scatter_tensor(whole[begin:begin + 4], whole, group=group)
    near(whole[begin:begin + 4], (n * torch.arange(4. * n) + 10 * sum(range(n)))[begin:begin + 4], 0)
    x = torch.ones(4, requires_grad=True)
    y = x.exp()
    gathered = [torch.empty(4) for _ in range(n)]
    dist.all_gather(gathered, y.detach(), group=group)
    dist.all_gather(gathered, torch.ones(1).expand(4), group=group)
    y.sum().backward()   # y is still the result that autograd has kept
    near(x.grad, torch.ones(4).exp(), 1e-6)


def test_models_of_the_library_are_fused_on_the_device():
    """The same outputs and gradients cut and whole, in single precision and in autocast."""
    if device() == "standin":
        return "torch replaces parameters that go to such a device"
    arguments = dict(functional_dim=1, embedding_dim=3, out_dim=4, n_layers=2, n_hidden=32, n_head=4, slice_num=8)
    torch.manual_seed(5)
    model = meshard.models.Transolver(**arguments).to(device())
    fx, places = torch.ones(1, 40, 1), torch.rand(1, 40, 3, generator=seeded(4))
    extents = [uneven(40)]
    for kind in (None, torch.bfloat16):
        with torch.autocast(device(), kind or torch.bfloat16, enabled=kind is not None):
            expected = model(fx, places)
            ours = model(*(meshard.distribute_tensor(x, mesh(), [meshard.Shard(1)], extents=extents) for x in (fx, places)))
        near(ours.float(), expected.float(), 1e-5 if kind is None else 2e-2)
