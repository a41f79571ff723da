# SPDX-License-Identifier: Apache-2.0
"""Trains PhysicsNeMo's Transolver on volumes by the settings of its own recipe for volumes around cars. Not a test: figures for docs/accuracy.md.

    python tests/models/reference_volume_training.py /data/ahmed_mini --train 001 003 005 --judge 010 026 --epochs 300

The Python needs torch, vtk and nvidia-physicsnemo from PyPI. `conf/train_transolver_automotive_volume.yaml` of that recipe (unified_external_aero_recipe) says:
AdamW of rate 1e-3 and decay 1e-4, the rate halved after each fifth of the run (100 of 500 epochs), Huber loss, the sum over a vector's components, places about
their mean, distance and direction to the body, U_inf at each point, targets over U_inf and U_inf^2 / 2. Its model has 12 layers of 256 channels; the size, the
points of a step and the length are arguments here. Errors are relative L2 errors over all cells of a body, means over bodies. One thread; user seconds are printed.
"""
import argparse
import pathlib
import resource

import numpy
import torch
import vtk
from physicsnemo.models.transolver import Transolver
from vtk.util.numpy_support import vtk_to_numpy

SPEED = 40.0   # m/s


def read(reader, path):
    reader.SetFileName(str(path))
    reader.Update()
    return reader.GetOutput()


def case_of(root, number):
    """Embedding (N, 7) of place, distance and direction to the body, and targets (N, 4) of velocity and pressure, without units."""
    grid = read(vtk.vtkXMLUnstructuredGridReader(), root / f"volumes/volume_{number}.vtu")
    points = vtk_to_numpy(grid.GetPoints().GetData()).astype(float)
    body = vtk.vtkImplicitPolyDataDistance()
    body.SetInput(read(vtk.vtkSTLReader(), root / f"body_{number}.stl"))
    count, corners, nearest = grid.GetNumberOfCells(), vtk.vtkIdList(), numpy.zeros(3)
    places, distances, ways = numpy.zeros((count, 3)), numpy.zeros((count, 1)), numpy.zeros((count, 3))
    for cell in range(count):
        grid.GetCellPoints(cell, corners)
        places[cell] = points[[corners.GetId(i) for i in range(corners.GetNumberOfIds())]].mean(0)
        distances[cell] = body.EvaluateFunctionAndGetClosestPoint(places[cell], nearest)
        ways[cell] = nearest - places[cell]
    ways /= numpy.maximum(numpy.linalg.norm(ways, axis=1, keepdims=True), 1e-9)
    data = grid.GetCellData()
    velocity, pressure = (vtk_to_numpy(data.GetArray(name)).reshape(count, -1) for name in ("UMean", "pMean"))
    told = numpy.concatenate([places - places.mean(0), distances, ways], 1)
    return [torch.tensor(rows, dtype=torch.float32) for rows in (told, numpy.concatenate([velocity / SPEED, pressure / (SPEED ** 2 / 2)], 1))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--judge", nargs="+", required=True)
    for name, value in (("layers", 4), ("channels", 64), ("heads", 4), ("ratio", 2), ("slices", 32), ("points", 4096), ("epochs", 300), ("seed", 42)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    train, judge = ([case_of(arguments.root, number) for number in numbers] for numbers in (arguments.train, arguments.judge))
    model = Transolver(functional_dim=3, out_dim=4, embedding_dim=7, n_layers=arguments.layers, n_hidden=arguments.channels, n_head=arguments.heads,
                       mlp_ratio=arguments.ratio, slice_num=arguments.slices, use_te=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, max(1, arguments.epochs // 5), 0.5)

    def predict(told):
        return model(torch.tensor([1.0, 0, 0]).expand(1, len(told), 3), embedding=told[None])[0]

    begin = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for _ in range(arguments.epochs):
        for i in torch.randperm(len(train), generator=generator).tolist():
            told, fields = train[i]
            rows = torch.randperm(len(told), generator=generator)[:arguments.points]
            errors = torch.nn.functional.huber_loss(predict(told[rows]), fields[rows], reduction="none").mean(0)
            optimizer.zero_grad()
            errors.sum().backward()
            optimizer.step()
        schedule.step()
    seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - begin
    model.eval()
    with torch.no_grad():
        found = [(predict(told), fields) for told, fields in judge]
    for name, channels in (("velocity", slice(0, 3)), ("pressure", slice(3, 4))):
        errors = [float((y[:, channels] - t[:, channels]).norm() / t[:, channels].norm()) for y, t in found]
        print(f"{name}: {sum(errors) / len(errors):.4f}, of bodies {' '.join(f'{error:.4f}' for error in errors)}")
    print(f"{seconds:.0f} user seconds of training")


main()
