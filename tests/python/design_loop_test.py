# SPDX-License-Identifier: Apache-2.0
"""The design loop of docs/examples on the repository's sample of Ahmed bodies. Run on one rank."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import meshard
import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("MESHARD_TEST_BUILD", "")) / "bin/meshard"
SAMPLE = SOURCE / "apps/sample"


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


def test_drag_falls_at_one_volume():
    if not PROGRAM.exists():
        return "there is no build folder with the programs"
    with tempfile.TemporaryDirectory() as own:
        folder, body = pathlib.Path(own), SAMPLE / "boundary_016.vtp"
        for seed in (1, 2):
            run(folder, PROGRAM, "train", SAMPLE / "ahmed.yaml", f"data.root={SAMPLE}", f"run_id=r{seed}", f"seed={seed}", "~data.split", "data.split.train=[003, 011, 030]",
                "training.num_epochs=10", "logging.report=false")
        told = ["--set", "Aref_half=0.05"]
        said = run(folder, sys.executable, SOURCE / "docs/examples/design_loop.py", body, "runs/r1", "runs/r2", "-o", "better.vtp", *told, "--steps", "1")
        predicted = run(folder, PROGRAM, "predict", "runs/r1", "runs/r2", body, "better.vtp", "-o", "out", "--forces", "--device", "cpu", *told)
        before, after = re.findall(r"Cd (-?[\d.]+) ± ([\d.]+), Cl", predicted)
        assert float(after[0]) < float(before[0]), (before, after, said)
        assert re.search(r"better.vtp: Cd (-?[\d.]+) ± ([\d.]+)", said).groups() == after, (after, said)
        assert abs(enclosed(folder / "better.vtp") / enclosed(body) - 1) < 1e-6
        moved = np.abs(meshard.read(folder / "better.vtp").points - meshard.read(body).points)
        assert moved[:, 2].max() > 1e-3 and moved[:, :2].max() < 1e-6, moved.max(0)
        return f"Cd {before[0]} to {after[0]}"
