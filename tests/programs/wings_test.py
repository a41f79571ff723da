# SPDX-License-Identifier: Apache-2.0
"""Data of another shape than cars: whole wings with fields at their points, in Pa, polygons that look inwards, no normals, a free stream of each case's own, and
a table with names of its own."""
import json
import math

from runner import Case
from samples import data_array

CONFIGURATION = """run_id: wings
data:
  root: wings
  surface: wing_*.vtp
  cases: table.csv
  split: {train: 0.5, val: 0.25, test: 0.25}
  association: point
  fields:
    pressure: {from: p, kind: static}
    wss: {from: WallShear, kind: stress}
  inputs: [points, normals]
  constants: [Ux, Uz]
  reference: {U_inf: [Ux, 0, Uz], rho: density, p_inf: 0}
  forces: {area: S, cd: CD, cl: CL}
model: {name: transolver, n_layers: 1, n_hidden: 16, n_head: 2, mlp_ratio: 1, slice_num: 4}
training: {num_epochs: 2}
"""


def cross(a, b):
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def write_wing(path, thickness, span, angle, speed, density, ambient=0):
    """A closed wing of triangles turned inwards; returns its row of the table, with the coefficients of its fields."""
    around, along = 16, 6
    points = []
    for j in range(along):
        for i in range(around):
            turn = 2 * math.pi * i / around
            points.append([0.5 + 0.5 * math.cos(turn), span * (j / (along - 1) - 0.5), thickness * math.sin(turn) * (1 - 0.4 * math.cos(turn))])
    triangles = []
    for j in range(along - 1):
        for i in range(around):
            a, b = j * around + i, j * around + (i + 1) % around
            triangles += [[a, b + around, b], [a, a + around, b + around]]
    for first in (0, (along - 1) * around):
        for i in range(1, around - 1):
            corners = [first, first + i, first + i + 1]
            triangles.append(corners if first else corners[::-1])
    vectors = []
    for a, b, c in triangles:
        u, v = ([points[p][k] - points[a][k] for k in range(3)] for p in (b, c))
        vectors.append([x / 2 for x in cross(u, v)])
    outwards = sum(dot([sum(points[p][k] for p in corners) / 3 for k in range(3)], vector) for corners, vector in zip(triangles, vectors))
    if outwards > 0:
        triangles, vectors = [corners[::-1] for corners in triangles], [[-x for x in vector] for vector in vectors]
    drag = [math.cos(angle), 0, math.sin(angle)]
    lift = [-math.sin(angle), 0, math.cos(angle)]
    head = 0.5 * density * speed * speed
    pressure = [float(f"{head * (1 - 1.6 * x - 2 * z * (1 + 3 * angle)):.6g}") for x, y, z in points]
    shear = [float(f"{head * value:.6g}") for x, y, z in points for value in (0.004 + 0.002 * x, 0.0005 * y, 0.001 * z)]
    force = [0.0] * 3
    for corners, vector in zip(triangles, vectors):
        size = math.sqrt(dot(vector, vector)) / 3
        for p in corners:
            for k in range(3):
                force[k] += pressure[p] * vector[k] / 3 + shear[3 * p + k] * size
    path.write_text(
        f'<?xml version="1.0"?><VTKFile type="PolyData" version="0.1" byte_order="LittleEndian"><PolyData><Piece NumberOfPoints="{len(points)}" '
        f'NumberOfPolys="{len(triangles)}"><PointData>{data_array("p", "Float64", 1, [p + ambient for p in pressure])}{data_array("WallShear", "Float64", 3, shear)}</PointData>'
        f'<Points>{data_array("Points", "Float64", 3, [x for place in points for x in place])}</Points><Polys>'
        f'{data_array("connectivity", "Int64", 1, [p for corners in triangles for p in corners])}'
        f'{data_array("offsets", "Int64", 1, [3 * (i + 1) for i in range(len(triangles))])}</Polys></Piece></PolyData></VTKFile>')
    area = 0.9 * span
    return [speed * drag[0], speed * drag[2], density, area, dot(force, drag) / (head * area), dot(force, lift) / (head * area)]


class Wings(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "wings").mkdir()
        (self.folder / "wings.yaml").write_text(CONFIGURATION)
        rows = [write_wing(self.folder / f"wings/wing_{number}.vtp", 0.06 + 0.01 * number, 2 + 0.2 * number, 0.03 * number - 0.05, 40 + 5 * number, 1.1 + 0.02 * number)
                for number in range(8)]
        self.table = "id,Ux,Uz,density,S,CD,CL\n" + "".join(f"{number}," + ",".join(f"{x:.9g}" for x in row) + "\n" for number, row in enumerate(rows))
        (self.folder / "wings/table.csv").write_text(self.table)
        self.rows = rows

    def lines(self, run, phase):
        lines = [json.loads(line) for line in (self.folder / f"runs/{run}/metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["phase"] == phase]

    def test_are_trained_on_and_judged_by_their_own_free_stream(self):
        for ranks, targets in ((1, "physical"), (3, "physical"), (1, "nondimensional"), (2, "nondimensional")):
            result = self.meshard("train", "wings.yaml", f"run_id={targets}{ranks}", f"data.targets={targets}", "--nproc", ranks)
            self.assert_good(result)
            self.assertIn("data: normals point into the body\n", result.err)
            found = self.lines(f"{targets}{ranks}", "data")[0]
            self.assertEqual((found["normals"], found["shear"], found["contradictions"]), (-1, 1, []))
            for name in ("cd_closure", "cl_closure"):
                self.assertEqual(found[name]["n"], 8)
                self.assertLess(found[name]["max_abs"], 1e-5)
        for one, other in (("physical1", "physical3"), ("nondimensional1", "nondimensional2")):
            for a, b in zip(self.lines(one, "train_step"), self.lines(other, "train_step"), strict=True):
                self.assertAlmostEqual(a["loss"], b["loss"], delta=2e-5 * a["loss"])

        self.assert_good(self.meshard("report", "runs/physical1", "-o", "report", "--nproc", 2))   # of fields at points
        self.assertTrue(any(name.endswith("_pressure_error_dark.png") for name in self.names(self.folder / "report/pictures")))

        setting = [f"{name}={value:.9g}" for name, value in zip(("Ux", "Uz", "density", "S"), self.rows[3])]
        known = [word for value in setting for word in ("--set", value)]
        predict = ("predict", "runs/nondimensional1", "wings/wing_3.vtp", "-o", "out.vtp")
        self.assert_good(self.meshard(*predict, "--forces", *known))
        self.assert_fails(self.meshard(*predict, "--set", "U_x=3"), 2, "--set U_x", "it asks for", "Ux")
        self.assert_fails(self.meshard(*predict, "--set", "Uz=3"), 2, "'Ux'", "--set Ux=")

    def test_may_have_pressures_above_a_vacuum(self):
        self.assert_good(self.meshard("train", "wings.yaml", "run_id=relative", "training.max_steps=1"))
        rows = [write_wing(self.folder / f"wings/wing_{number}.vtp", 0.06 + 0.01 * number, 2 + 0.2 * number, 0.03 * number - 0.05, 40 + 5 * number,
                           1.1 + 0.02 * number, 101325) for number in range(8)]
        self.assertEqual(rows, self.rows)   # a constant pressure has no force on a closed body
        self.assert_good(self.meshard("train", "wings.yaml", "run_id=absolute", "training.max_steps=1", "data.reference.p_inf=101325"))
        relative, absolute = self.lines("relative", "data")[0], self.lines("absolute", "data")[0]
        for one, other in zip(relative["highest_pressure"], absolute["highest_pressure"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-3)   # pressures are written with seven digits
        self.assertEqual(relative["warnings"], absolute["warnings"])
        for name in ("cd_closure", "cl_closure"):
            self.assertLess(absolute[name]["max_abs"], 1e-3)

    def test_count_by_areas_that_no_model_is_told(self):
        words = ("training.point_weights=areas", "data.sampling_resolution=60", "training.accumulate=2")
        self.assert_good(self.meshard("train", "wings.yaml", "run_id=one", *words))
        for run, more in (("two", ("--nproc", 2)), ("groups", ("--nproc", 4, "parallel.data=2", "training.accumulate=1"))):
            self.assert_good(self.meshard("train", "wings.yaml", f"run_id={run}", *words, *more))
            for a, b in zip(self.lines("one", "train_step"), self.lines(run, "train_step"), strict=True):
                self.assertAlmostEqual(a["loss"], b["loss"], delta=2e-5 * a["loss"])
        self.assert_good(self.meshard("train", "wings.yaml", "run_id=plain", *words[1:]))
        self.assertNotAlmostEqual(self.lines("plain", "train_step")[0]["loss"], self.lines("one", "train_step")[0]["loss"], delta=1e-3)

    def test_are_tested_once_however_often_the_run_goes_on(self):
        self.assert_good(self.meshard("train", "wings.yaml"))
        expected = self.lines("wings", "test")
        self.assert_good(self.meshard("train", "--resume", "runs/wings"))
        self.assertEqual(self.lines("wings", "test"), expected)
        self.assertEqual(len(expected), 1)
        self.assertEqual(len(self.lines("wings", "memory")), 1)

    def test_say_which_rows_of_the_table_have_no_file(self):
        split = "data.split={column: part}"
        header, *rows = self.table.splitlines()
        (self.folder / "wings/table.csv").write_text("\n".join([header + ",part"] + [row + (",train" if i < 6 else ",test") for i, row in enumerate(rows)]) + "\n")
        (self.folder / "wings/wing_7.vtp").unlink()
        result = self.meshard("train", "wings.yaml", "~data.split", split, "training.max_steps=1")
        self.assert_good(result)
        self.assertIn("1 case(s) of the table have a split and no file, and are left out: 7\n", result.err)

    def test_say_which_column_is_missing(self):
        (self.folder / "wings/table.csv").write_text(self.table.replace("Uz", "Uy"))
        self.assert_fails(self.meshard("train", "wings.yaml", "~data.constants", "data.targets=nondimensional"), 3, "'Uz'")
        result = self.meshard("train", "wings.yaml", "~data.constants", "training.max_steps=1")
        self.assertIn("no number above 0 in the column 'Uz'", result.err)
        self.assert_fails(self.meshard("train", "wings.yaml", "data.reference.rho=[1, 2]"), 2, "data.reference.rho")
        self.assert_fails(self.meshard("train", "wings.yaml", "data.reference.U_inf=[1, 2]"), 2, "data.reference.U_inf")
