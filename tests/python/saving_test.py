# SPDX-License-Identifier: Apache-2.0
"""Sharded tensors go to files and come back: the same values, layout and gradients."""
import copy
import io
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
from multiprocessing.reduction import ForkingPickler

import meshard
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_optimizer_state_dict, set_state_dict

from ranks import mesh, num_ranks, rank, refused, seeded, uneven
from sharded_check import near

whole = torch.randn(10, 4, generator=seeded(0))
extent = uneven(10)


def cut(tensor=whole, dim=0, extents=None):
    return meshard.distribute_tensor(tensor, mesh(), [meshard.Shard(dim)], extents=[extents or uneven(tensor.shape[dim])])


def same(x, y):
    """Value, layout, strides, type and whether it takes gradients."""
    assert meshard.is_sharded(x) and type(x) is type(y) and meshard.describe(x) == meshard.describe(y) and x.stride() == y.stride()
    assert x.dtype == y.dtype and x.requires_grad == y.requires_grad and x.shape == y.shape
    assert torch.equal(meshard.full_tensor(x.detach()), meshard.full_tensor(y.detach()))


def saved(kept):
    file = io.BytesIO()
    torch.save(kept, file)
    return file.getvalue()


def loaded(kept, **options):
    file = saved(kept)
    assert num_ranks() == 1 or len(file) < 40_000, "more than this rank's part was written"
    return torch.load(io.BytesIO(file), **options)


def several():
    """Tensors in all kinds of layouts."""
    batched = cut(torch.randn(3, 10, 4), 1).reshape(30, 4)   # three blocks of rows
    return [cut(), cut().t(), cut(whole, 1), cut().to(torch.float64).requires_grad_(), cut(torch.arange(10)), batched, cut() @ torch.eye(4),
            cut().mean(0), meshard.redistribute(cut(), [meshard.Replicate()]), nn.Parameter(cut()), cut(whole[:0], 0, [0] * num_ranks())]


def test_pickle():
    for x in several():
        same(pickle.loads(pickle.dumps(x.detach() if not x.is_leaf else x)), x.detach() if not x.is_leaf else x)


def test_views_that_their_base_has_outrun_are_refused():
    x = cut(torch.arange(40.).view(10, 4))
    for view in (x.unbind(0)[8], x[3]):
        x.mul_(10)
        stale = meshard._core.is_stale(view)
        assert not stale or "before its base was written to" in repr(view), repr(view)
        assert stale == (num_ranks() > 1)
        if stale:
            refused(lambda: pickle.dumps(view), RuntimeError, "Save x.clone()")
        kept = view.clone()
        same(pickle.loads(pickle.dumps(kept)), kept)
        near(view, kept, 0)
        assert not meshard._core.is_stale(view)
        same(pickle.loads(pickle.dumps(view)), view)


def test_processes_of_this_one_hand_tensors_over_on_their_own_mesh():
    x, other = cut(), meshard.init_device_mesh((num_ranks(),))
    assert meshard.device_mesh(pickle.loads(ForkingPickler.dumps(x))) == mesh() != other
    assert meshard.device_mesh(pickle.loads(pickle.dumps(x))) == other   # the newest: files know no mesh
    assert meshard.device_mesh(copy.copy(x)) == mesh()
    two_axes = meshard.init_device_mesh((num_ranks(), 1), mesh_dim_names=("rows", "single"))
    y = meshard.distribute_tensor(whole, two_axes["rows"], [meshard.Shard(0)])
    kept = pickle.dumps(y)
    del y
    assert pickle.loads(kept).shape == whole.shape   # the sub-mesh lives with its mesh


def test_torch_save_writes_this_ranks_part_alone():
    big = cut(torch.zeros(100_000, 4), 0)
    file = io.BytesIO()
    torch.save(big, file)
    own = meshard.to_local(big).numel() * 4
    assert own <= len(file.getvalue()) < own + 10_000
    for x in several():
        x = x.detach().requires_grad_(x.requires_grad) if not x.is_leaf else x
        same(loaded(x), x)                          # weights_only, torch's default
        same(loaded({"x": [x]}, weights_only=False)["x"][0], x)


def test_copy_shares_values():
    x = cut()
    y = copy.copy(x)
    same(y, x)
    x.mul_(2)
    near(y, 2 * whole, 0)


def test_what_no_mesh_fits_is_refused():
    data = pickle.dumps(cut())
    script = f"import pickle, meshard\ntry:\n    pickle.loads({data!r})\nexcept ValueError as error:\n    print(error)\n"
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120).stdout
    if num_ranks() > 1:
        assert f"init_device_mesh(({num_ranks()},), mesh_dim_names=('domain',))" in said and "torch.distributed.checkpoint" in said, said
    part, names, shape, coordinate, axes, sizes, strides, gradient, _ = cut().__reduce_ex__(2)[1]
    from meshard._saving import rebuilt
    refused(lambda: rebuilt(part[:-1] if len(part) else part.new_zeros(1, 4), names, shape, coordinate, axes, sizes, strides, gradient), ValueError, "does not fit")
    refused(lambda: rebuilt(part, names, shape, coordinate, [(7, 0, 0, None, 1)], sizes, strides, gradient), ValueError, "damaged")


def test_state_of_a_module_with_sharded_parameters():
    module = nn.Module()
    module.field, module.scale = nn.Parameter(cut()), nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    (module.field * module.scale).square().sum().backward()
    module.scale.grad = meshard.full_tensor(module.scale.grad) if meshard.is_sharded(module.scale.grad) else module.scale.grad
    optimizer.step()
    state = loaded({"module": module.state_dict(), "optimizer": optimizer.state_dict()})
    fresh = nn.Module()
    fresh.field, fresh.scale = nn.Parameter(cut(torch.zeros(10, 4))), nn.Parameter(torch.zeros(4))
    fresh.load_state_dict(state["module"])
    same(fresh.field, module.field)
    again = torch.optim.AdamW(fresh.parameters(), 1e-2)
    again.load_state_dict(state["optimizer"])
    same(again.state[fresh.field]["exp_avg"], optimizer.state[module.field]["exp_avg"])


def _double(queue, back):
    back.put(meshard.to_local(queue.get() * 2).tolist())


def test_a_queue_of_processes():
    if rank() > 0:
        return
    context = torch.multiprocessing.get_context("fork")   # whose processes cannot use a GPU
    queue, back = context.Queue(), context.Queue()
    alone = meshard.distribute_tensor(whole.cpu(), meshard.DeviceMesh.single(), [meshard.Shard(0)])
    process = context.Process(target=_double, args=(queue, back))
    process.start()
    queue.put(alone)
    assert back.get(timeout=60) == (2 * whole).tolist()
    process.join(60)


def test_distributed_checkpoint():
    """The parts of all ranks make up one whole, which comes back in any layout."""
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        batched = cut(torch.arange(120.).view(3, 10, 4), 1).reshape(30, 4)
        state = {"rows": cut(), "columns": cut(whole, 1), "blocks": batched, "same": meshard.redistribute(cut(), [meshard.Replicate()]), "plain": whole[0],
                 "none": cut(whole[:0], 0, [0] * num_ranks()), "step": 3}
        dcp.save(state, checkpoint_id=folder[0])
        reverse = extent[::-1]
        target = {"rows": cut(torch.zeros(10, 4), 1), "columns": cut(torch.zeros(10, 4), 0, reverse), "blocks": cut(torch.zeros(30, 4)), "same": cut(torch.zeros(10, 4)),
                  "plain": torch.zeros(4), "none": cut(whole[:0], 0, [0] * num_ranks()), "step": 0}
        dcp.load(target, checkpoint_id=folder[0])
        for name in ("rows", "columns", "same"):
            assert torch.equal(meshard.full_tensor(target[name]), whole), name
        assert torch.equal(meshard.full_tensor(target["blocks"]).flatten(), torch.arange(120.)) and torch.equal(target["plain"], whole[0]) and target["step"] == 3
        assert meshard.extents(target["columns"]) == [reverse]
        plain = {"rows": torch.zeros(10, 4), "blocks": torch.zeros(30, 4)}   # as a program without meshard reads it
        dcp.load(plain, checkpoint_id=folder[0])
        assert torch.equal(plain["rows"], whole) and torch.equal(plain["blocks"].flatten(), torch.arange(120.))
        size = sum(path.stat().st_size for path in pathlib.Path(folder[0]).iterdir())
        assert size < 60_000, size
        pending = cut().mean(0)
        if meshard.placements(pending)[0].is_partial():
            refused(lambda: dcp.save({"x": pending}, checkpoint_id=folder[0] + "/pending"), BaseException, "pending sum")
        mesh().barrier()


def test_distributed_checkpoint_of_a_fully_sharded_module():
    """Parameters that lie in parts among the ranks are written once, and read by a module that is whole."""
    torch.manual_seed(1)
    sharded, serial = (nn.Sequential(nn.Linear(4, 7), nn.GELU(), nn.Linear(7, 2)) for _ in range(2))
    serial.load_state_dict(sharded.state_dict())
    handle = meshard.fully_shard(sharded, mesh(), over_all_axes=True)
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        dcp.save(dict(handle.named_shards()), checkpoint_id=folder[0])
        flat = {name: torch.zeros(parameter.numel()) for name, parameter in serial.named_parameters()}
        dcp.load(flat, checkpoint_id=folder[0])
        assert all(torch.equal(flat[name], parameter.flatten()) for name, parameter in serial.named_parameters())
        for parameter in handle.local_parameters():
            parameter.data.zero_()
        dcp.load(dict(handle.named_shards()), checkpoint_id=folder[0])
        assert all(torch.equal(value, expected) for (_, value), expected in zip(handle.full_parameters(), serial.parameters()))
        mesh().barrier()


class Several(nn.Module):
    """Parameters of all kinds: shared, frozen, of no dimension, without values, of another type."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(4, 7), nn.Linear(7, 4)
        self.third = nn.Linear(4, 7, bias=False)
        self.third.weight = self.first.weight
        self.scale, self.none = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(0, 3))
        self.frozen = nn.Parameter(torch.randn(3, 2, 5), requires_grad=False)
        self.cube = nn.Parameter(torch.randn(2, 3, 5, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x):
        h = self.third(self.second(torch.tanh(self.first(x))))
        return self.scale * h.square().mean() + self.frozen.sum() * h.mean() + self.cube.square().sum().to(h.dtype) + self.none.sum()


def two_groups(parameters):
    return [{"params": [value for name, value in parameters.items() if name.startswith("second") == is_second], "lr": rate}
            for is_second, rate in ((True, 1e-2), (False, 3e-2))]


def trained(module, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        module(cut() if num_ranks() > 1 else whole).backward()
        optimizer.step()


def sharded_several(steps=2, **options):
    module = Several()
    handle = meshard.fully_shard(module, mesh(), over_all_axes=True, **options)
    optimizer = torch.optim.AdamW(two_groups(dict(zip(handle.local_parameter_names(), handle.local_parameters()))), amsgrad=True)
    trained(module, optimizer, steps)
    return module, handle, optimizer


def weights(handle):
    return dict(handle.full_parameters())


def same_weights(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def shared_folder(own):
    folder = [own]
    dist.broadcast_object_list(folder)
    return folder[0]


def test_distributed_checkpoint_of_module_and_optimizer_under_fully_shard():
    """Weights and states of all ranks come back, in any cut; programs without meshard read them in their shapes."""
    module, handle, optimizer = sharded_several()
    with tempfile.TemporaryDirectory() as own:
        folder = shared_folder(own)
        messages = mesh().num_messages
        states = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
        assert mesh().num_messages == messages
        dcp.save(states, checkpoint_id=folder)
        before = weights(handle)
        staged = dcp.async_save({**states, "rows": cut()}, checkpoint_id=folder + "/staged")   # written while training goes on
        trained(module, optimizer, 2)
        staged.result()
        read = {"model": Several().state_dict(), "rows": torch.zeros(10, 4)}
        dcp.load(read, checkpoint_id=folder + "/staged")
        same_weights({name: read["model"][name] for name in before}, before)
        assert torch.equal(read["rows"], whole)
        after = weights(handle)
        for units in (None, [], ["first", "second"]):
            other, other_handle, again = sharded_several(1, units=units)
            model_state, optimizer_state = get_state_dict(other, again)
            read = {"model": model_state, "optimizer": again.state_dict()}
            if units is None:   # states by number need parameters in the same order
                dcp.load(read, checkpoint_id=folder)
                again.load_state_dict(read["optimizer"])
                other.load_state_dict(read["model"])
                same_weights(weights(other_handle), before)
                trained(other, again, 2)
                same_weights(weights(other_handle), after)
            else:
                dcp.load({"model": model_state}, checkpoint_id=folder)
                same_weights(weights(other_handle), before)
        plain = Several()
        read = {"model": plain.state_dict()}
        dcp.load(read, checkpoint_id=folder)
        same_weights(dict(plain.named_parameters()), before)
        mesh().barrier()


def test_states_by_name_under_fully_shard():
    """torch's get_ and set_state_dict of checkpoints, whole and in parts, between modules that are sharded, sharded otherwise, and whole."""
    module, handle, optimizer = sharded_several()
    serial = Several()
    alone = torch.optim.AdamW(two_groups({name: value for name, value in serial.named_parameters() if value.requires_grad}), amsgrad=True)
    full = StateDictOptions(full_state_dict=True)
    model_state, optimizer_state = copy.deepcopy(get_state_dict(module, optimizer, options=full))
    assert not any(meshard.is_sharded(x) or meshard._core.is_stored(x) for x in model_state.values())
    for name, value in weights(handle).items():
        assert torch.equal(model_state[name], value) and model_state[name].shape == serial.get_parameter(name).shape
        if name != "frozen":
            assert optimizer_state["state"][name]["exp_avg"].shape == value.shape, name
    offloaded = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert (rank() == 0) == bool(offloaded) and all(x.device.type == "cpu" for x in offloaded.values())
    serial.load_state_dict(model_state)
    set_optimizer_state_dict(serial, alone, copy.deepcopy(optimizer_state), options=full)
    trained(module, optimizer, 1)
    after = weights(handle)
    for options in (full, StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)):
        other, other_handle, again = sharded_several(0, units=["second"])
        is_source = rank() == 0 or not options.broadcast_from_rank0
        set_model_state_dict(other, dict(model_state) if is_source else {}, options=options)
        set_optimizer_state_dict(other, again, copy.deepcopy(optimizer_state) if is_source else {}, options=options)
        trained(other, again, 1)
        same_weights(weights(other_handle), after)
    alone.zero_grad()
    serial(whole).backward()
    alone.step()
    for name, value in after.items():
        near(serial.get_parameter(name), value, 1e-5)
    parts = get_state_dict(module, optimizer)
    backup = copy.deepcopy(parts)
    trained(module, optimizer, 1)
    set_state_dict(module, optimizer, model_state_dict=backup[0], optim_state_dict=backup[1])
    same_weights(weights(handle), after)
    back = torch.load(io.BytesIO(saved(parts)))   # this rank's part
    for place in (lambda both: both[0]["cube"], lambda both: both[1]["state"]["cube"]["exp_avg"]):
        assert torch.equal(meshard.full_tensor(place(back)), meshard.full_tensor(place(parts)))
    grid = meshard.init_device_mesh((1, num_ranks()), mesh_dim_names=("data", "domain"))
    row = nn.Linear(3, 5)
    meshard.fully_shard(row, grid, over_all_axes=True)
    for name, value in torch.load(io.BytesIO(saved(row.state_dict()))).items():
        assert torch.equal(meshard.full_tensor(value), meshard.full_tensor(row.state_dict()[name]))
