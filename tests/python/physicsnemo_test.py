# SPDX-License-Identifier: Apache-2.0
"""PhysicsNeMo's Transolver trained as in its example of Darcy flow: its model, its captured step, its files of weights. Of the loop two things are said to be
sharded, what comes in and the weights. Skipped where PhysicsNeMo is not installed."""
import pathlib
import tempfile

import meshard
import torch
from physicsnemo.core import Module
from physicsnemo.models.transolver import Transolver
from physicsnemo.utils import StaticCaptureEvaluateNoGrad, StaticCaptureTraining

from ranks import cuts, mesh, num_ranks, rank, seeded
from sharded_check import near

HEIGHT, WIDTH, STEPS = 16, 6, 5


def fields(step, samples=2):
    """Permeability and pressure on a grid."""
    generator = seeded(step)
    permeability = torch.randn(samples, 1, HEIGHT, WIDTH, generator=generator)
    return permeability, permeability.cumsum(2).cumsum(3).sin()


def relative_l2(prediction, target):
    samples = len(target)
    error = torch.norm(prediction.reshape(samples, -1) - target.reshape(samples, -1), 2, 1)
    return torch.mean(error / torch.norm(target.reshape(samples, -1), 2, 1))


def trained(place=lambda step: fields(step), replicate=lambda model: model):
    """The model after some steps, its losses, and its prediction of the last case."""
    torch.manual_seed(1)
    model = Transolver(functional_dim=1, out_dim=1, embedding_dim=2, n_layers=2, n_hidden=16, n_head=4, slice_num=8, mlp_ratio=1, unified_pos=True, ref=4,
                       structured_shape=[HEIGHT, WIDTH], use_te=False)
    replicate(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: .85**step)

    def tokens(grid):
        return grid.flatten(2).transpose(1, 2)

    @StaticCaptureTraining(model=model, optim=optimizer, use_amp=False, use_graphs=False)
    def train(permeability, pressure):
        return relative_l2(model(tokens(permeability)), pressure)

    @StaticCaptureEvaluateNoGrad(model=model, use_amp=False, use_graphs=False)
    def predict(permeability):
        return model(tokens(permeability))

    losses = []
    for step in range(STEPS):
        losses.append(train(*place(step)).item())
        scheduler.step()
    return model, losses, predict(place(STEPS)[0])


def expect_same(sharded, serial):
    (model, losses, prediction), (_, expected, whole) = sharded, serial
    worst = max(abs(a - b) / b for a, b in zip(losses, expected))
    assert worst < 1e-5, (losses, expected)
    near(prediction, whole, 1e-5)
    with tempfile.TemporaryDirectory() as folder:
        if rank() == 0:
            file = str(pathlib.Path(folder) / "model.mdlus")
            model.save(file)
            near(Module.from_checkpoint(file)(fields(STEPS)[0].flatten(2).transpose(1, 2)), whole, 1e-5)
    return f"losses differ by {worst:.1e}"


def test_rows_of_the_grid():
    serial = trained()
    for extents in cuts(HEIGHT):
        def place(step):
            return [meshard.distribute_tensor(x, mesh(), [meshard.Shard(2)], extents=[extents]) for x in fields(step)]

        note = expect_same(trained(place, lambda model: meshard.replicate(model, mesh())), serial)
    return note


def test_samples_that_each_rank_has_read():
    """As data-parallel loops read: a rank gets other samples, of which it holds all rows. Led over to rows of all samples."""
    serial = trained(lambda step: fields(step, 2 * num_ranks()))
    for extents in cuts(HEIGHT):
        def place(step):
            own = (x[2 * rank():2 * rank() + 2] for x in fields(step, 2 * num_ranks()))
            return [meshard.redistribute(meshard.from_local(x, mesh(), [meshard.Shard(0)]), [meshard.Shard(2)], extents=[extents]) for x in own]

        sharded = trained(place, lambda model: meshard.replicate(model, mesh()))
    model, losses, prediction = sharded
    worst = max(abs(a - b) / b for a, b in zip(losses, serial[1]))
    assert worst < 1e-5, (losses, serial[1])
    near(prediction, serial[2], 1e-5)
    return f"losses differ by {worst:.1e}"
