# SPDX-License-Identifier: Apache-2.0
"""Trained models in Python; what the program predicts is the oracle. Run on one rank."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import warnings

import meshard
import numpy as np
import torch

from ranks import refused

sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
PROGRAM = pathlib.Path(os.environ.get("MESHARD_TEST_BUILD", "")) / "bin/meshard"
TOLD = {"speed": 32, "U_inf": 30, "area": 0.5}


def run(folder, *words):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "PYTHONPATH")}
    return subprocess.run([str(PROGRAM), *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False)


@contextlib.contextmanager
def trained():
    """A folder with two runs that are told the speed, and a body of which neither learnt."""
    from samples import put_training
    with tempfile.TemporaryDirectory() as own:
        folder = pathlib.Path(own)
        put_training(folder)
        for seed in (1, 2):
            ended = run(folder, "train", "car.yaml", f"run_id=r{seed}", f"seed={seed}", "training.max_steps=2", "data.constants=[speed]", "--accept-data")
            assert ended.returncode == 0, ended
        yield folder, folder / "cases/run_4/boundary_4.vtp"


def write_stl(path, mesh):
    """Writes quadrilaterals as triangles without fields, and returns the path."""
    polygons = mesh.connectivity.reshape(-1, 4)
    triangles = np.concatenate([polygons[:, [0, 1, 2]], polygons[:, [0, 2, 3]]])
    path.write_text("solid body\n" + "".join(
        "facet normal 0 0 0\nouter loop\n" + "".join(f"vertex {x:.9g} {y:.9g} {z:.9g}\n" for x, y, z in mesh.points[row]) + "endloop\nendfacet\n"
        for row in triangles) + "endsolid body\n")
    return path


def check_sensitivities(folder, body, one, two):
    """Against the program on one rank and two, and differences of the coefficient in double precision."""
    mesh = meshard.read(body)
    found = one.sensitivity(body, "Cd", **TOLD)
    assert found.gradient.shape == mesh.points.shape and found.normal.shape == mesh.points.shape[:1]
    forces = one.forces(body, **TOLD)
    assert abs(found.value / forces["Cd"] - 1) < 1e-5 and dict(found.forces) == dict(forces)
    for words in (("partition", body, "-n", 3, "-o", "cut"), ("convert", "cut", "pieces.pvtp")):
        assert run(folder, *words).returncode == 0
    assert len(list(folder.glob("pieces_*.vtp"))) == 3
    for given, *words in ((body,), (body, "--nproc", 2), ("pieces.pvtp",)):
        ended = run(folder, "predict", "runs/r1", given, "-o", "out.vtp", "--sensitivity", "Cd", "--device", "cpu", *words, *said(TOLD))
        assert ended.returncode == 0 and "Cd" in ended.stdout, ended
        written = meshard.read(folder / "out.vtp").point_data
        for array, expected in (("dCd_dx", found.gradient), ("dCd_dn", found.normal)):
            assert np.abs(written[array] - expected).max() < 1e-4 * np.abs(expected).max(), (given, words, array)
            assert np.array_equal(found.mesh.point_data[array], expected)

    gradients = [surrogate.sensitivity(body, "Cs", double=True, **TOLD).gradient for surrogate in (one, meshard.load(folder / "runs/r2", device="cpu"), two)]
    assert np.allclose((gradients[0] + gradients[1]) / 2, gradients[2], rtol=1e-9, atol=1e-12)
    polygons, way = mesh.connectivity.reshape(-1, 4), np.random.default_rng(4).normal(size=mesh.points.shape)
    ahead, back = (two.sensitivity((mesh.points + step * way, polygons), "Cs", double=True, **TOLD).value for step in (1e-5, -1e-5))
    assert abs((gradients[2] * way).sum() / ((ahead - back) / 2e-5) - 1) < 1e-5
    with torch.inference_mode():
        inside = meshard.load(folder / "runs/r1", device="cpu").sensitivity(body, "Cs", double=True, **TOLD).gradient
        assert np.array_equal(inside, gradients[0]) and np.array_equal(one.sensitivity(body, "Cs", double=True, **TOLD).gradient, inside)
    # Polygons that share no points come apart where they are moved.
    assert not any("apart" in text for text in found.warnings), found.warnings
    soup = one.sensitivity((mesh.points[mesh.connectivity], np.arange(mesh.connectivity.size).reshape(-1, 4)), "Cd", **TOLD)
    assert any(re.search(r"286 of the 384 points of polygons lie where another one does.*--join-points 0", text) for text in soup.warnings), soup.warnings
    refused(lambda: one.sensitivity(body, "Cx", **TOLD), ValueError, "there are those of Cd, Cl, Cs")
    refused(lambda: one.sensitivity(body, "Cmy", **TOLD), ValueError, "no sensitivity of Cmy: case boundary_4.vtp has no number above 0 in the column 'moment_length'")
    refused(lambda: one.sensitivity(body, speed=32), ValueError, "no sensitivity of Cd: the speed of the free stream is not said")


def check_numbers_of_the_run(folder):
    """Told numbers take the place of the run's everywhere: of its quantities coefficients do not depend."""
    from samples import write_body
    write_body(folder / "open.vtp", is_open=True)
    ended = run(folder, "train", "car.yaml", "run_id=divided", "training.max_steps=2", "data.targets=nondimensional", "data.fields.pressure.kind=static",
                "data.reference={U_inf: [24, 0, 18], rho: 1.2, p_inf: 5}", "data.forces={area: 0.5, length: 1.7}", "--accept-data")
    assert ended.returncode == 0, ended
    surrogate, told = meshard.load(folder / "runs/divided", device="cpu"), {"U_inf": 60, "rho": 2.4, "p_inf": 1005}
    assert all(not (one := surrogate.inputs[name]).required and not one.for_forces for name in told)
    assert not any(surrogate.inputs[name].required for name in ("area", "moment_length", "moment_x"))
    own, other = (surrogate.forces(folder / "open.vtp", **values) for values in ({}, told))
    assert np.allclose(list(own.values()), list(other.values()), rtol=2e-5, atol=2e-5), (own, other)
    assert np.allclose(8 * (own.prediction["pressure"] - 5), other.prediction["pressure"] - 1005, rtol=2e-5, atol=2e-2)
    for coefficient in ("Cd", "Cmy"):
        one, again = (surrogate.sensitivity(folder / "open.vtp", coefficient, double=True, **values) for values in ({}, told))
        assert abs(one.value - own[coefficient]) < 1e-5 and abs(again.value - one.value) < 1e-9
        assert np.abs(again.gradient - one.gradient).max() < 1e-9 * np.abs(one.gradient).max()
    refused(lambda: surrogate.network_inputs(folder / "open.vtp", U_inf=60), ValueError, "an exported network is not told U_inf")


def said(values):
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def test_predictions_are_those_of_the_program():
    if not PROGRAM.exists():
        return "there is no build folder with the programs"
    with trained() as (folder, body), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = meshard.load(folder / "runs/r1", device="cpu"), meshard.load([folder / "runs/r1", folder / "runs/r2"], device="cpu")
        assert one.inputs["speed"].required and one.inputs["area"].for_forces and not one.inputs["area"].required
        assert one.inputs["speed"].trained == (31, 33) and one.inputs["area"].trained is None
        assert one.targets == {"pressure": 1, "wss": 3}

        # Of one run and of two, by a file, by arrays and by other libraries' meshes.
        for surrogate, runs in ((one, ["runs/r1"]), (two, ["runs/r1", "runs/r2"])):
            ended = run(folder, "predict", *runs, body, "-o", "out.vtp", "--forces", "--device", "cpu", *said(TOLD))
            assert ended.returncode == 0, ended
            written = meshard.read(folder / "out.vtp")
            found = surrogate.predict(body, speed=32)
            assert list(found) == ["pressure", "wss"] and found.on_cells
            mesh = meshard.read(body)
            ends, points = mesh.offsets[1:], mesh.connectivity
            polygons = points.reshape(-1, 4)
            given = [str(body), mesh, (mesh.points, polygons), (mesh.points, [list(row) for row in polygons]), (mesh.points, (np.r_[0, ends], points)),
                     types.SimpleNamespace(points=mesh.points, cells=[types.SimpleNamespace(type="quad", data=polygons)], point_data={}, cell_data={}, field_data={})]
            for other in given:
                again = surrogate.predict(other, speed=32)
                for name in found:
                    assert found[name].dtype == np.float32 and np.array_equal(found[name], written.cell_data[name]), name
                    assert np.array_equal(again[name], found[name]), (name, type(other))
            assert np.array_equal(found.mesh.cell_data["wss"], found["wss"])
            assert sorted(found.spread) == (["pressure", "wss"] if len(runs) == 2 else [])
            for name, deviation in found.spread.items():
                assert np.array_equal(deviation, written.cell_data[f"{name}_spread"]) and deviation.max() > 0
            forces = surrogate.forces(body, **TOLD)
            said_forces = re.search(r"Cd (-?[\d.]+)(?: ± \S+)?, Cl (-?[\d.]+)", ended.stdout)
            assert (f"{forces['Cd']:.5f}", f"{forces['Cl']:.5f}") == said_forces.groups(), (forces, ended.stdout)
            assert sorted(forces) == ["Cd", "Cl", "Cs"] and sorted(forces.spread) == (sorted(forces) if len(runs) == 2 else [])
            turned = surrogate.forces(body, moment_length=2, moment_z=0.25, **TOLD)
            about_origin = surrogate.forces(body, moment_length=2, **TOLD)
            assert {name: turned[name] for name in forces} == dict(forces) and about_origin["Cmz"] == turned["Cmz"]
            # The point moves along z: the moments change by the forces at that arm.
            assert abs(turned["Cmy"] - (about_origin["Cmy"] - 0.125 * forces["Cd"])) < 1e-12
            assert abs(turned["Cmx"] - (about_origin["Cmx"] + 0.125 * forces["Cs"])) < 1e-12
            assert np.array_equal(forces.prediction["pressure"], found["pressure"])

        # What was found stays as it is when the caller's arrays change, and each of the inputs may be told where no forces are asked for.
        places = np.array(mesh.points)
        found = [one.predict((places, polygons), **{**dict.fromkeys(one.inputs, 1), **TOLD}).mesh, one.sensitivity((places, polygons), "Cd", **TOLD).mesh]
        places *= 2
        assert all(np.array_equal(other.points, mesh.points) for other in found)

        # An STL, whose triangles have no fields.
        write_stl(folder / "body.stl", mesh)
        assert run(folder, "predict", "runs/r1", "body.stl", "-o", "stl.vtp", "--device", "cpu", "--set", "speed=32").returncode == 0
        assert np.array_equal(one.predict(folder / "body.stl", speed=32)["wss"], meshard.read(folder / "stl.vtp").cell_data["wss"])

        check_sensitivities(folder, body, one, two)
        check_numbers_of_the_run(folder)

        # What the caller has set for its own work changes nothing.
        expected, forces = one.predict(body, speed=32), one.forces(body, **TOLD)
        torch.set_default_dtype(torch.float64)
        try:
            in_double = meshard.load(folder / "runs/r1", device="cpu")
            with torch.autocast("cpu", dtype=torch.bfloat16):
                for surrogate in (one, in_double):
                    assert np.array_equal(surrogate.predict(body, speed=32)["wss"], expected["wss"]) and surrogate.forces(body, **TOLD) == forces
        finally:
            torch.set_default_dtype(torch.float32)

        # Copies of cells that another piece has do not count for forces, as for `meshard forces`.
        mesh.cell_data["vtkGhostType"] = (np.arange(mesh.n_cells) < 20).astype(np.uint8)
        meshard.write(folder / "ghosts.vtp", mesh)
        without = one.forces(folder / "ghosts.vtp", **TOLD)
        meshard.write(folder / "ghosts_with_fields.vtp", without.prediction.mesh)
        ended = run(folder, "forces", "ghosts_with_fields.vtp", "--pressure", "pressure", "--shear", "wss", "--u-inf", 30, "--area", 0.5, "--json")
        expected = json.loads(ended.stdout)
        assert expected["num_cells"] == mesh.n_cells - 20 and abs(without["Cd"] - forces["Cd"]) > 1e-3 * abs(forces["Cd"])
        assert all(abs(without[name] - expected[name]) < 1e-5 * max(abs(value) for value in forces.values()) for name in forces), (without, expected)

        # Errors and warnings have the program's texts.
        for values in ({}, {"speed": 32, "sped": 1}):
            ended = run(folder, "predict", "runs/r1", body, "-o", "wrong.vtp", "--device", "cpu", *said(values))
            assert ended.returncode == 2, ended
            refused(lambda: one.predict(body, values=values), ValueError, ended.stderr.removeprefix("meshard predict: ").strip())
        ended = run(folder, "predict", "runs/r1", "none.vtp", "-o", "wrong.vtp", "--set", "speed=32")
        refused(lambda: one.predict("none.vtp", speed=32), OSError, ended.stderr.removeprefix("meshard predict: ").strip())
        refused(lambda: one.forces(body, speed=32), ValueError, "Give area, U_inf")
        refused(lambda: one.predict(np.zeros((5, 3)), speed=32), ValueError, "no cells to predict on")
        refused(lambda: one.predict(body, speed="32"), ValueError, "speed is '32'; expected a number")
        refused(lambda: meshard.load(folder), OSError, "no checkpoints/best.safetensors")
        assert any("speed is 99; in training" in text for text in one.predict(body, speed=99).warnings)
