# SPDX-License-Identifier: Apache-2.0
"""Microseconds of Python, autograd and dispatch that an operator takes on tensors too small to matter, by kind of tensor:

    torchrun --nproc-per-node 2 overhead_benchmark.py [plain meshard dtensor physicsnemo]

MESHARD_TEST_DEVICE=cuda measures on GPUs, where the host's time counts: it goes on while they compute.

Each figure is the best of some rounds, on rank 0 while the other does the same; kinds take turns. The operators send no messages.
What a kind does not have takes it forever (`inf`)."""
import os
import sys
import time

import meshard
import torch
import torch.distributed as dist
import torch.nn.functional as F

ROWS, CHANNELS = 8, 16
TURNS = 3
OPERATORS = {
    "x + x": lambda x, w, b, mask: x + x,
    "gelu": lambda x, w, b, mask: F.gelu(x),
    "linear": lambda x, w, b, mask: F.linear(x, w, b),
    "layer_norm": lambda x, w, b, mask: F.layer_norm(x, (CHANNELS,), b, b),
    "softmax": lambda x, w, b, mask: x.softmax(-1),
    "view": lambda x, w, b, mask: x.view(-1, 4, CHANNELS // 4),
    "x[..., :4]": lambda x, w, b, mask: x[..., :4],
    "x[:, 0]": lambda x, w, b, mask: x[:, 0],
    "cat": lambda x, w, b, mask: torch.cat([x, x], -1),
    "sum(-1)": lambda x, w, b, mask: x.sum(-1),
    "mean(-1)": lambda x, w, b, mask: x.mean(-1),
    "x + row": lambda x, w, b, mask: x + b,
    "x > 0": lambda x, w, b, mask: x > 0,
    "where": lambda x, w, b, mask: torch.where(mask, x, x),
    "stack": lambda x, w, b, mask: torch.stack([x, x], -1),
    "clone": lambda x, w, b, mask: x.clone(),
    "t": lambda x, w, b, mask: x.t(),
    "permute": lambda x, w, b, mask: x.permute(1, 0),
    "unsqueeze": lambda x, w, b, mask: x.unsqueeze(1),
    "expand": lambda x, w, b, mask: x.expand(3, -1, -1),
    "t().contiguous()": lambda x, w, b, mask: x.t().contiguous(),
    "einsum": lambda x, w, b, mask: torch.einsum("nc,dc->nd", x, w),
    "attention, written out": lambda x, w, b, mask: attention(x.view(-1, 4, CHANNELS // 4)),
    "attention, fused": lambda x, w, b, mask: fused_attention(x.view(-1, 1, 4, CHANNELS // 4)),
}


def attention(x):
    return (x @ x.transpose(-1, -2)).softmax(-1) @ x


def fused_attention(x):
    return F.scaled_dot_product_attention(x, x, x)


def make(kind, local, weight, bias):
    """This rank's rows as a tensor of that kind, and parameters as that kind wants them."""
    if kind == "plain":
        return local.clone(), weight, bias
    if kind == "meshard":
        return meshard.from_local(local.clone(), meshard.init_device_mesh(), [meshard.Shard(0)]), weight, bias
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    mesh = dist.device_mesh.init_device_mesh(os.environ.get("MESHARD_TEST_DEVICE", "cpu"), (dist.get_world_size(),), mesh_dim_names=("domain",))
    parameters = [distribute_tensor(p, mesh, [Replicate()]) for p in (weight, bias)]
    if kind == "dtensor":
        return DTensor.from_local(local.clone(), mesh, [Shard(0)]), *parameters
    from physicsnemo.domain_parallel import ShardTensor
    return ShardTensor.from_local(local.clone(), mesh, [Shard(0)], sharding_shapes={0: [tuple(local.shape)] * dist.get_world_size()}), *parameters


def microseconds(call, rounds=20, number=50):
    for _ in range(30):
        call()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(number):
            call()
        times.append((time.perf_counter() - began) / number * 1e6)
    return min(times)


def keep(table, what, found):
    table[what] = min(found, table.get(what, found))


def measure(kind, table):
    torch.manual_seed(0)
    x, weight, bias = make(kind, torch.randn(ROWS, CHANNELS), torch.randn(CHANNELS, CHANNELS), torch.randn(CHANNELS))
    mask = x > 0
    for name, operator in OPERATORS.items():
        for mode in ("no_grad", "grad"):
            y = x.detach().requires_grad_(mode == "grad")
            with torch.set_grad_enabled(mode == "grad"):
                try:
                    keep(table, (name, mode, kind), microseconds(lambda: operator(y, weight, bias, mask)))
                except NotImplementedError:
                    table[name, mode, kind] = float("inf")
            dist.barrier()
    with torch.no_grad():
        gradient = torch.ones_like(x)

    def step():
        y = x.detach().requires_grad_()
        z = F.gelu(F.linear(F.layer_norm(y, (CHANNELS,), bias, bias), weight, bias)) + y
        (z * z).backward(gradient)

    keep(table, ("forward and backward of six", "grad", kind), microseconds(step))
    dist.barrier()


def main():
    device = os.environ.get("MESHARD_TEST_DEVICE", "cpu")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    if device != "cpu":
        torch.set_default_device(device)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    kinds, table = sys.argv[1:] or ["plain", "meshard", "dtensor", "physicsnemo"], {}
    for kind in kinds * TURNS:
        measure(kind, table)
    if dist.get_rank() == 0:
        print(f"{'us an operator':30s}{'':10s}" + "".join(f"{kind:>14s}" for kind in kinds))
        for name, mode in dict.fromkeys((name, mode) for name, mode, _ in table):
            print(f"{name:30s}{mode:10s}" + "".join(f"{table[name, mode, kind]:14.1f}" for kind in kinds))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
