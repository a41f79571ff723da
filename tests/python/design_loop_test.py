# SPDX-License-Identifier: Apache-2.0
"""The design loop of docs/examples on the repository's sample of Ahmed bodies. Run on one rank."""
import contextlib
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import warnings
from unittest import mock

import meshard
import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("MESHARD_TEST_BUILD", "")) / "bin/meshard"
SAMPLE = SOURCE / "apps/sample"
TRAINED = ["003", "005", "011", "012", "013", "015", "022", "024", "026", "030"]   # as many as it takes to know what lies far


def run(folder, *words):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    ended = subprocess.run([str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended
    return ended.stdout


def enclosed(path):
    """The volume of the file's surface, which is open in y = 0 only."""
    mesh = meshard.read(path)
    rows = [mesh.connectivity[first:last] for first, last in zip(mesh.offsets[:-1], mesh.offsets[1:])]
    triangles = np.array([(row[0], a, b) for row in rows for a, b in zip(row[1:], row[2:])])
    return np.linalg.det(mesh.points.astype(np.float64)[triangles]).sum() / 6


class Forces(dict):
    def __init__(self, points, drag, is_far):
        super().__init__(Cd=drag)
        self.is_far, self.spread, self.prediction = is_far, {}, types.SimpleNamespace(mesh=points)


class Surrogate:
    """Stands for a trained run: the drag is a weighted mean of heights. Keeps the points of all shapes of which it is asked."""

    def __init__(self, slope, is_far=lambda number: False):
        self.slope, self.is_far, self.shapes = slope, is_far, []

    def forces(self, surface, values):
        points, _ = surface
        return Forces(points, 0.3 + (self.weights(points) * points[:, 2]).sum(), self.is_far(len(self.shapes)))

    def weights(self, points):
        along = (points[:, 0] - points[:, 0].min()) / np.ptp(points[:, 0])
        return self.slope * along**2 / len(points)

    def sensitivity(self, surface, name, values):
        points, _ = surface
        forces = self.forces(surface, values)
        self.shapes.append(points)
        gradient = np.zeros_like(points)
        gradient[:, 2] = self.weights(points)
        return types.SimpleNamespace(gradient=gradient, forces=forces)


def looped(*surrogates):
    """What the loop says of four steps with these runs, and the points that it writes."""
    spec = importlib.util.spec_from_file_location("design_loop", SOURCE / "docs/examples/design_loop.py")
    loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    names, written, said = [f"run{i}" for i in range(len(surrogates))], [], io.StringIO()
    loop.meshard = types.SimpleNamespace(read=meshard.read, load=lambda run: surrogates[0 if isinstance(run, list) else names.index(run)],
                                         write=lambda path, points: written.append(points))
    with mock.patch.object(sys, "argv", ["design_loop.py", str(SAMPLE / "boundary_016.vtp"), *names, "-o", "better.vtp", "--steps", "4"]), contextlib.redirect_stdout(said):
        loop.main()
    points, = written
    return said.getvalue(), points


def test_loop_stops_where_its_models_guess():
    surrogate = Surrogate(1)   # of the slope along a length, the drag falls evenly
    said, points = looped(surrogate, Surrogate(0.9))
    assert said.count("fallen by") == 4 and "far from" not in said and "disagree" not in said and np.array_equal(points, surrogate.shapes[4]), said
    assert surrogate.forces((points, None), {})["Cd"] < surrogate.forces((surrogate.shapes[0], None), {})["Cd"] - 1e-4, said

    surrogate = Surrogate(1, lambda number: number == 3)   # the shape of the third step, for one of two models
    said, points = looped(surrogate, Surrogate(0.9))
    assert said.count("fallen by") == 3 and "This shape lies far from those of training" in said and np.array_equal(points, surrogate.shapes[2]), said

    surrogate = Surrogate(1, lambda number: True)   # the body that is given, too: it goes on
    said, points = looped(surrogate)
    assert said.count("fallen by") == 4 and "far from" not in said and np.array_equal(points, surrogate.shapes[4]), said

    surrogate = Surrogate(1)   # the mean falls, and one of two rises
    said, points = looped(surrogate, Surrogate(-0.5))
    assert said.count("fallen by") == 1 and "The models disagree" in said and np.array_equal(points, surrogate.shapes[0]), said


def test_drag_falls_at_one_volume():
    if not PROGRAM.exists():
        return "there is no build folder with the programs"
    with tempfile.TemporaryDirectory() as own:
        folder, body = pathlib.Path(own), SAMPLE / "boundary_016.vtp"
        for seed in (1, 2):
            run(folder, PROGRAM, "train", SAMPLE / "ahmed.yaml", f"data.root={SAMPLE}", f"run_id=r{seed}", f"seed={seed}", "~data.split", f"data.split.train=[{', '.join(TRAINED)}]",
                "training.num_epochs=3", "logging.report=false")
        told = ["--set", "Aref_half=0.05"]
        said = run(folder, sys.executable, SOURCE / "docs/examples/design_loop.py", body, "runs/r1", "runs/r2", "-o", "better.vtp", *told, "--steps", "1")
        predicted = run(folder, PROGRAM, "predict", "runs/r1", "runs/r2", body, "better.vtp", "-o", "out", "--forces", "--device", "cpu", *told)
        before, after = re.findall(r"Cd (-?[\d.]+) ± ([\d.]+), Cl", predicted)
        assert float(after[0]) < float(before[0]), (before, after, said)
        assert re.search(r"better.vtp: Cd (-?[\d.]+) ± ([\d.]+)", said).groups() == after, (after, said)
        assert abs(enclosed(folder / "better.vtp") / enclosed(body) - 1) < 1e-6
        moved = np.abs(meshard.read(folder / "better.vtp").points - meshard.read(body).points)
        assert moved[:, 2].max() > 1e-3 and moved[:, :2].max() < 1e-6, moved.max(0)

        surrogate, learnt = meshard.load(folder / "runs/r1", device="cpu"), meshard.read(SAMPLE / "boundary_003.vtp")
        for stretch, is_far in ((1, False), (3, True)):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                forces = surrogate.forces((learnt.points * [1, stretch, 1], (learnt.offsets, learnt.connectivity)), Aref_half=0.04230891)
            told_so = any("do not rely on this prediction" in str(one.message) for one in said)
            assert (forces.is_far, forces.isolation > 1, told_so) == (is_far, is_far, is_far), (stretch, forces.isolation)
        return f"Cd {before[0]} to {after[0]}"
