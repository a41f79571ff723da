# SPDX-License-Identifier: Apache-2.0
"""A training step of PhysicsNeMo's own Transolver, sharded, against the ceiling: as many independent plain runs, each of its own rows.

    torchrun --nproc-per-node 2 transolver_benchmark.py [points a rank] [rounds] [perf_counter or process_time]

Plain and sharded steps (forward, backward, AdamW) take turns; printed are the medians of the slowest rank's seconds (of the processor with process_time), and the median of the ratios of neighbours."""
import statistics
import sys
import time

import meshard
import torch
import torch.distributed as dist
from physicsnemo.models.transolver import Transolver


def model_and_step(features, places, mesh=None):
    torch.manual_seed(1)
    model = Transolver(functional_dim=2, out_dim=3, embedding_dim=3, n_layers=4, n_hidden=64, n_head=4, slice_num=32, use_te=False)
    if mesh:
        meshard.replicate(model, mesh)
        features, places = (meshard.from_local(x, mesh, [meshard.Shard(1)]) for x in (features, places))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step():
        optimizer.zero_grad()
        model(features, places).square().mean().backward()
        optimizer.step()

    return step


def slowest_seconds(step, clock):
    dist.barrier()
    began = clock()
    step()
    seconds = torch.tensor(clock() - began)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    own, rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000, int(sys.argv[2]) if len(sys.argv) > 2 else 15
    clock = getattr(time, sys.argv[3] if len(sys.argv) > 3 else "perf_counter")
    features, places = torch.randn(1, own, 2), torch.randn(1, own, 3)
    plain, sharded = model_and_step(features, places), model_and_step(features, places, meshard.init_device_mesh())
    for step in (plain, sharded):
        step()
    pairs = [(slowest_seconds(plain, clock), slowest_seconds(sharded, clock)) for _ in range(rounds)]
    if dist.get_rank() == 0:
        print(f"{own} points on each of {dist.get_world_size()} ranks: plain {statistics.median(p for p, _ in pairs):.3f} s, sharded "
              f"{statistics.median(s for _, s in pairs):.3f} s, ratio {statistics.median(s / p for p, s in pairs):.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
