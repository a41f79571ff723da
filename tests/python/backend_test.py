# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's backend `meshard`: every collective against what it must give."""
import datetime
import os
import socket
import subprocess
import sys

import meshard
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from ranks import num_ranks, rank, refused
from sharded_check import near

_group = None


def group():
    global _group
    _group = _group or dist.new_group(backend="meshard")
    return _group


def values(r, dtype=torch.float32):
    return (torch.arange(1., 6) * (r + 1)).to(dtype)


def test_name():
    assert dist.get_backend(group()) == "meshard" and dist.get_rank(group()) == rank()


def test_all_reduce():
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bfloat16, torch.float16):
        for op, expected in ((dist.ReduceOp.SUM, sum(values(r, dtype) for r in range(num_ranks()))), (dist.ReduceOp.MAX, values(num_ranks() - 1, dtype)),
                             (dist.ReduceOp.MIN, values(0, dtype))):
            x = values(rank(), dtype)
            dist.all_reduce(x, op, group())
            assert torch.equal(x, expected), (dtype, op, x)
    product = torch.full((2,), 2.0 + rank(), dtype=torch.float64)   # which shared memory has not
    dist.all_reduce(product, dist.ReduceOp.PRODUCT, group())
    assert product.tolist() == [float(torch.tensor([2.0 + r for r in range(num_ranks())]).prod())] * 2
    column = torch.ones(4, 3)[:, 1]   # not contiguous
    dist.all_reduce(column, group=group())
    assert column.tolist() == [num_ranks()] * 4
    kernel = nn.Parameter(torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last))
    dist.all_reduce(kernel, group=group())
    assert (kernel == num_ranks()).all() and kernel.is_leaf
    handle = dist.all_reduce(x := values(rank()), group=group(), async_op=True)
    handle.wait()
    assert torch.equal(x, sum(values(r) for r in range(num_ranks())))


def test_time_limit_is_the_groups():
    limit = datetime.timedelta(seconds=77)
    for backend in ("meshard", "gloo"):
        own = dist.new_group(backend=backend, timeout=limit)
        assert meshard._core.time_limit(own._get_backend(torch.device("cpu"))) == limit


def test_broadcast_and_barrier():
    x = values(rank())
    dist.broadcast(x, num_ranks() - 1, group())
    assert torch.equal(x, values(num_ranks() - 1))
    dist.barrier(group())


def test_gathering_and_scattering():
    outputs = [torch.zeros(5) for _ in range(num_ranks())]
    dist.all_gather(outputs, values(rank()), group())
    assert all(torch.equal(output, values(r)) for r, output in enumerate(outputs))
    whole = torch.zeros(5 * num_ranks())
    dist.all_gather_into_tensor(whole, values(rank()), group())
    assert torch.equal(whole, torch.cat(outputs))
    outputs = [torch.zeros(5) for _ in range(num_ranks())] if rank() == 0 else None
    dist.gather(values(rank()), outputs, 0, group())
    assert rank() > 0 or all(torch.equal(output, values(r)) for r, output in enumerate(outputs))
    own = torch.zeros(5)
    dist.scatter(own, [values(r) for r in range(num_ranks())] if rank() == 0 else None, 0, group())
    assert torch.equal(own, values(rank()))
    objects = [None] * num_ranks()
    dist.all_gather_object(objects, {"rank": rank()}, group())
    assert objects == [{"rank": r} for r in range(num_ranks())]


def test_reductions_to_one_rank():
    x = values(rank())
    dist.reduce(x, 0, group=group())
    assert rank() > 0 or torch.equal(x, sum(values(r) for r in range(num_ranks())))


def test_all_to_all_of_lists():
    sent = [torch.full((rank() + 1, r + 1), float(10 * rank() + r)) for r in range(num_ranks())]   # another shape for each pair
    received = [torch.empty(r + 1, rank() + 1).t().contiguous().t() for r in range(num_ranks())]
    dist.all_to_all(received, sent, group())
    assert all(torch.equal(one, torch.full((r + 1, rank() + 1), float(10 * r + rank()))) for r, one in enumerate(received))
    x = values(rank()).requires_grad_()
    gathered = torch.distributed.nn.functional.all_gather(x, group())
    sum((r + 1) * part.sum() for r, part in enumerate(gathered)).backward()
    assert x.grad.tolist() == [num_ranks() * (rank() + 1)] * 5


def test_all_to_all():
    sent = torch.arange(float(num_ranks())) + 10 * rank()
    received = torch.zeros(num_ranks())
    dist.all_to_all_single(received, sent, group=group())
    assert received.tolist() == [rank() + 10.0 * r for r in range(num_ranks())]
    # r + 1 numbers to rank r
    sizes = [r + 1 for r in range(num_ranks())]
    received = torch.zeros((rank() + 1) * num_ranks())
    dist.all_to_all_single(received, torch.full((sum(sizes),), float(rank())), [rank() + 1] * num_ranks(), sizes, group())
    assert received.tolist() == [float(r) for r in range(num_ranks()) for _ in range(rank() + 1)]


def test_all_to_all_of_sizes_that_some_ranks_leave_out():
    n = num_ranks()
    sent, received = torch.arange(2. * n) + 100 * rank(), torch.empty(n, 4)[:, 1].repeat_interleave(2)
    said = [2] * n if rank() == 0 else None   # the others send and receive evenly without a word
    dist.all_to_all_single(received, sent, said, [2] * n, group=group())
    expected = [100. * r + 2 * rank() + i for r in range(n) for i in range(2)]
    assert received.tolist() == expected
    column = torch.zeros(2 * n, 3)[:, 1]   # not contiguous
    dist.all_to_all_single(column, sent, group=group())
    assert column.tolist() == expected


def test_all_to_all_of_sizes_that_do_not_fit():
    n = num_ranks()
    for out, given, out_sizes, sizes in ((torch.ones(2 * n), torch.ones(2 * n - 1), [2] * n, [2] * n), (torch.ones(2 * n - 1), torch.ones(2 * n), [2] * n, [2] * n),
                                         (torch.ones(2 * n), torch.ones(2 * n), [2] * n, [3] * n), (torch.ones(n + 1), torch.ones(n + 1), [1] * (n + 1), [1] * (n + 1)),
                                         (torch.ones(n), torch.ones(n), [n + 2, -2] + [0] * (n - 2), [n + 2, -2] + [0] * (n - 2))):
        if n > 1:
            refused(lambda: dist.all_to_all_single(out, given, out_sizes, sizes, group=group()), RuntimeError, "")


def test_sending():
    x = values(rank())
    if rank() == 0:
        dist.send(x, 1, group())
    elif rank() == 1:
        dist.recv(x, 0, group())
        assert torch.equal(x, values(0))


def test_data_parallel_training():
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    parallel = DistributedDataParallel(model, process_group=group())
    parallel(torch.full((3, 4), float(rank()))).sum().backward()
    near(model.weight.grad, torch.full((2, 4), 3 * (num_ranks() - 1) / 2), 1e-6)


def test_a_device_mesh_on_it():
    mesh = meshard.DeviceMesh([num_ranks()], ["domain"], rank(), num_ranks(), {"domain": group(), "all": group()})
    x = meshard.from_local(values(rank())[:, None], mesh, [meshard.Shard(0)])
    near(x.sum(0), sum(values(r) for r in range(num_ranks())).sum()[None], 1e-6)


def test_ranks_that_disagree_about_a_source_hear_of_it():
    """In the next collective at the latest: a source reads nothing."""
    own, x = dist.new_group(backend="meshard"), values(rank())
    dist.broadcast(x, rank(), own)
    if rank() == 0:
        dist.broadcast(x, 0, own)
    else:
        refused(lambda: dist.broadcast(x, 0, own), RuntimeError, "disagree about an earlier collective")
    dist.destroy_process_group(own)
    if num_ranks() > 1:
        own = dist.new_group(backend="meshard")
        refused(lambda: dist.all_reduce(x, dist.ReduceOp.MAX if rank() == 0 else dist.ReduceOp.SUM, own), RuntimeError, "reduce in different ways")
        dist.destroy_process_group(own)


ENDS_FIRST = """
import torch, torch.distributed as dist, meshard
torch.set_num_threads(1)
dist.init_process_group("meshard")
n = 20_000_000
sizes = {0: ([0, 0, 0], [0, 0, 0]), 1: ([0, 0, n], [0, 0, 0]), 2: ([0, 0, 0], [0, n, 0])}[dist.get_rank()]
received = torch.empty(sum(sizes[1]))
dist.all_to_all_single(received, torch.ones(sum(sizes[0])), sizes[1], sizes[0])
assert received.sum() == sum(sizes[1])
dist.destroy_process_group()
"""


def test_ranks_that_have_done_their_part_may_end():
    """Three processes, of which rank 0 neither sends nor receives, and ends before the others are done."""
    if rank() != 0:
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = [subprocess.Popen([sys.executable, "-c", ENDS_FIRST], stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
                 for r in range(3)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
