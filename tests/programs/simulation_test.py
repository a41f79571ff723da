# SPDX-License-Identifier: Apache-2.0
"""Simulations in time: learnt on ranks as alone, better than persistence, written as series that go on after a kill; and what is wrong with series is said."""
import csv
import json
import math
import pathlib
import re
import signal
import struct
import subprocess
import sys

from evaluation_test import arrays_of
from runner import SOURCE, Case
from samples import VORTEX, copy_sample, put_fronts, put_vortices, write_simulations, write_zarr
from training_modes_test import arrays_of as tensors_of
from training_modes_test import assert_same_gradients, first_gradients

BURGERS = """\
run_id: burgers
data:
  root: burgers
  series: run_*.pvd
  association: point
  fields: {u: u}
  arrays: [viscosity]
  split: {train: 0.5, val: 0.5}
model: {name: unet2d, num_channels: 8, depth: 2, num_groups: 2}
training: {num_epochs: 1, unroll: 3, noise: 0.02}
"""

ROTOR = """\
run_id: rotor
data:
  root: rotor
  series: run_*.pvd
  association: point
  inputs: [points]
  fields: {temperature: temperature, velocity: velocity, place: points}
  arrays: [speed, warming]
  split: {train: 0.75, val: 0.25}
model: {name: transolver, n_hidden: 48, n_layers: 2, n_head: 4, slice_num: 8}
training: {num_epochs: 12, optimizer: {lr: 2.0e-3}}
"""

FIELDS = {"vorticity": "vorticity", "place": "Points"}   # of the vortex, to their arrays
BY_RUN = ("data.split={train: ['000', '001'], val: ['002', '003'], test: ['004']}",)

READ_BY_VTK = """\
import json, sys
from vtkmodules.vtkIOXML import vtkXMLPolyDataReader
reader = vtkXMLPolyDataReader()
reader.SetFileName(sys.argv[1])
reader.Update()
mesh = reader.GetOutput()
found = {"Points": [x for i in range(mesh.GetNumberOfPoints()) for x in mesh.GetPoint(i)], "TimeValue": [mesh.GetFieldData().GetArray("TimeValue").GetValue(0)]}
for k in range(mesh.GetPointData().GetNumberOfArrays()):
    array = mesh.GetPointData().GetArray(k)
    found[array.GetName()] = [array.GetComponent(i, c) for i in range(array.GetNumberOfTuples()) for c in range(array.GetNumberOfComponents())]
json.dump(found, sys.stdout)
"""


def frames_of_gif(path):
    """Width, height, and for each frame what a viewer shows: an index into the palette a pixel."""
    data = path.read_bytes()
    assert data[:6] == b"GIF89a", data[:6]
    width, height, flags = struct.unpack("<HHB", data[6:11])
    at, frames, hidden = 13 + 3 * 2 ** ((flags & 7) + 1), [], None

    def blocks(at):
        joined = b""
        while data[at]:
            joined += data[at + 1:at + 1 + data[at]]
            at += 1 + data[at]
        return joined, at + 1

    while data[at] != 0x3b:
        if data[at] == 0x21:
            block, end = blocks(at + 2)
            if data[at + 1] == 0xf9:
                hidden = block[3] if block[0] & 1 else None
            at = end
            continue
        assert data[at] == 0x2c and struct.unpack("<HHHH", data[at + 1:at + 9]) == (0, 0, width, height)
        least = data[at + 10]
        coded, at = blocks(at + 11)
        bits, clear, place, pixels = int.from_bytes(coded, "little"), 1 << least, 0, bytearray()
        table, size, last = None, least + 1, None
        while True:
            code = bits >> place & (1 << size) - 1
            place += size
            if code == clear:
                table, size, last = [bytes([i]) for i in range(clear)] + [b"", b""], least + 1, None
                continue
            if code == clear + 1:
                break
            entry = table[code] if code < len(table) else last + last[:1]
            pixels += entry
            if last is not None and len(table) < 4096:
                table.append(last + entry[:1])
            size = max(size, min(12, len(table).bit_length()))
            last = entry
        assert len(pixels) == width * height, len(pixels)
        frames.append(bytes(old if new == hidden else new for new, old in zip(pixels, frames[-1] if frames else pixels)))
    return width, height, frames


def python_with_vtk():
    """An interpreter that has VTK, or None."""
    for program in (sys.executable, "/usr/bin/python3"):
        try:
            if subprocess.run([program, "-c", "import vtkmodules.vtkIOXML"], capture_output=True).returncode == 0:
                return program
        except OSError:
            pass
    return None


def relative_l2(values, truth):
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(values, truth, strict=True)) / math.fsum(b * b for b in truth))


def replace(path, *pairs):
    text = path.read_text()
    for old, new in pairs:
        assert old in text, f"{path} has no {old!r}"
        text = text.replace(old, new, 1)
    path.write_text(text)


class Simulations(Case):
    timeout = 300

    def train(self, file, *words):
        result = self.meshard("train", file, *words, limit=250)
        self.assert_good(result)
        return result

    def rolled_out(self, run, split="val"):
        with open(self.folder / "runs" / run / f"{split}_rollout.csv") as stream:
            return list(csv.DictReader(stream))

    def times(self, name):
        return [float(time) for time in re.findall(r'timestep="([^"]*)"', (self.folder / name).read_text())]

    def lines(self, run, phase):
        lines = map(json.loads, (self.folder / "runs" / run / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if line["phase"] == phase]

    def losses(self, run):
        return [line["loss"] for line in self.lines(run, "train_step")]

    def run_states(self, run, folder="vortices"):
        """Arrays of each state of a run, by time."""
        index = self.folder / folder / f"run_{run}.pvd"
        return [arrays_of(index.parent / file) for file in re.findall(r'file="([^"]*)"', index.read_text())]

    def assert_close(self, found, expected, relative, message=None):
        self.assertEqual(len(found), len(expected), message)
        for one, other in zip(found, expected):
            self.assertAlmostEqual(one, other, delta=relative * abs(other), msg=message)

    def mean(self, rows, column, field=None):
        values = [float(row[column]) for row in rows if field in (None, row["field"])]
        return sum(values) / len(values)


class SimulationTraining(Simulations):
    def test_on_a_cloud_that_moves_is_far_better_than_persistence(self):
        write_simulations(self.folder / "vortex", "vortex", "--states", 21, "--points", 150)
        (self.folder / "vortex.yaml").write_text(VORTEX.replace("root: vortices", "root: vortex").replace("n_hidden: 16, n_layers: 1", "n_hidden: 48, n_layers: 2").replace(
            "num_epochs: 1", "num_epochs: 12, optimizer: {lr: 2.0e-3}"))
        self.train("vortex.yaml")
        rows = self.rolled_out("vortex") + self.rolled_out("vortex", "test")
        self.assertEqual(max(int(row["step"]) for row in rows), 20)
        last = [row for row in rows if row["step"] == "20"]
        for field in ("place", "vorticity"):
            self.assertLess(self.mean(last, "rel_l2", field), 0.5 * self.mean(last, "persistence", field))

    def test_on_a_rotor_that_turns_is_far_better_than_persistence(self):
        write_simulations(self.folder / "rotor", "rotor", "--runs", 8, "--states", 21, "--points", 120)
        (self.folder / "rotor.yaml").write_text(ROTOR)
        self.train("rotor.yaml")
        last = [row for row in self.rolled_out("rotor") if row["step"] == "20"]
        self.assertEqual(len(last), 2 * 3)
        for field in ("temperature", "velocity", "place"):
            self.assertLess(self.mean(last, "rel_l2", field), 0.5 * self.mean(last, "persistence", field))

    def test_of_grids_is_the_same_on_ranks_and_after_a_stop(self):
        write_simulations(self.folder / "burgers", "burgers", "--runs", 4, "--states", 6, "--points", 256)
        (self.folder / "burgers.yaml").write_text(BURGERS)
        self.train("burgers.yaml", "logging.report=true")
        self.train("burgers.yaml", "run_id=ranks", "parallel.domain=[2, 2]", "--nproc", 4)
        page = json.loads((self.folder / "runs/burgers/report/report.json").read_text())
        self.assertTrue(any("animation.gif" in name for name in self.names(self.folder / "runs/burgers/report/pictures")))
        self.assert_good(self.meshard("evaluate", "runs/burgers", "--nproc", 3))
        found = json.loads((self.folder / "runs/burgers/evaluation/evaluation.json").read_text())["cases"]
        for one, other in zip(page["runs"][0]["evaluation"]["cases"], found, strict=True):
            self.assertEqual(one["id"], other["id"])
            self.assertAlmostEqual(one["fields"]["u"]["rel_l2"], other["fields"]["u"]["rel_l2"], delta=1e-4 * one["fields"]["u"]["rel_l2"])
        for one, other in zip(self.rolled_out("burgers"), self.rolled_out("ranks"), strict=True):
            self.assertAlmostEqual(float(one["rel_l2"]), float(other["rel_l2"]), delta=1e-4 * float(one["rel_l2"]))
        self.train("burgers.yaml", "run_id=stopped", "training.max_steps=4")
        self.assert_good(self.meshard("train", "--resume", "runs/stopped", "training.max_steps=0"))
        self.assertEqual(self.rolled_out("stopped"), self.rolled_out("burgers"))
        self.assert_good(self.meshard("predict", "runs/burgers", "burgers/run_001.pvd", "--steps", 7, "-o", "out.pvd", "--nproc", 2))
        self.assertEqual(len(self.names(self.folder / "out")), 8)
        self.check_predicted_grids()
        self.check_arrays_in_time()

    def check_arrays_in_time(self):
        """Groups of Zarr with the same numbers, at cells."""
        for run in ("000", "001", "002", "003"):
            states, times = self.run_states(run, "burgers"), self.times(f"burgers/run_{run}.pvd")
            plane = {"y": 16, "x": 16}
            write_zarr(self.folder / f"burgers/run_{run}.zarr", {
                "u": (sum((state["u"] for state in states), []), {"time": len(times), **plane}, [1, 16, 5]),
                "viscosity": (states[0]["viscosity"], plane, [16, 16]), "time": (times, {"time": len(times)}, [1])})
        words = ("data.series=run_*.zarr", "data.association=cell")
        self.train("burgers.yaml", "run_id=zarr", *words)
        self.train("burgers.yaml", "run_id=blocks", *words, "parallel.domain=[3, 1]", "--nproc", 3, "data.memory=0")
        self.assert_close(self.losses("zarr"), self.losses("burgers"), 1e-5)
        self.assert_close(self.losses("blocks"), self.losses("burgers"), 1e-4)
        shown = str(self.meshard("info", "burgers/run_001.zarr"))
        self.assertRegex(shown, r"states +6, times 0 to ")
        self.assert_good(self.meshard("predict", "runs/zarr", "burgers/run_001.zarr", "--steps", 7, "-o", "arrays.pvd"))
        found, expected = ([arrays_of(file) for file in sorted((self.folder / name).glob("*.vti"))] for name in ("arrays", "out"))
        for one, other in zip(found, expected, strict=True):
            self.assertLess(relative_l2(one["u"], other["u"]), 1e-4)

    def check_predicted_grids(self):
        """On blocks as alone, beyond the end of the series, and in parts; all that is no field is the start's."""
        words = ("predict", "runs/ranks", "burgers/run_001.pvd", "-o")
        for name, *more in (("one.pvd", "--steps", 7), ("four.pvd", "--steps", 7, "--nproc", 4), ("part.pvd", "--steps", 3), ("part.pvd", "--steps", 7, "--resume"), ("all.vtkhdf", "--steps", 7)):
            self.assert_good(self.meshard(*words, name, *more))
        one, four, part = ([file.read_bytes() for file in sorted((self.folder / name).glob("*.vti"))] for name in ("one", "four", "part"))
        self.assertEqual(part, one)
        one, four = ([arrays_of(file) for file in sorted((self.folder / name).glob("*.vti"))] for name in ("one", "four"))
        truth = self.run_states("001", "burgers")
        self.assertEqual((len(one), len(truth)), (8, 6))
        self.assert_close(one[0]["u"], truth[0]["u"], 1e-6)
        for i, (state, other) in enumerate(zip(one, four, strict=True)):
            self.assertEqual(sorted(state), sorted(other))
            self.assertLess(relative_l2(other["u"], state["u"]), 1e-5, f"state {i}")
            self.assertEqual(state["viscosity"], other["viscosity"])
            self.assert_close(state["viscosity"], truth[0]["viscosity"], 1e-6)
        times = self.times("one.pvd")
        self.assertEqual(times[:6], self.times("burgers/run_001.pvd"))
        self.assertEqual(json.loads(self.meshard("info", "all.vtkhdf", "--json").out)["series"]["times"], times)
        self.assert_good(self.meshard("convert", "all.vtkhdf", "--time", repr(times[7]), "-o", "last.vtu"))
        self.assertEqual(arrays_of(self.folder / "last.vtu")["u"], one[7]["u"])

    def test_of_a_surface_that_moves_gives_its_forces(self):
        """The integrals of the pressure over the triangles where the points are: of predicted states, and of true ones whatever is learnt of them."""
        def coefficients(state):   # Cd, Cs, Cl
            points = [state["Points"][i:i + 3] for i in range(0, len(state["Points"]), 3)]
            force = [0.0] * 3
            for a, b, c in corners:
                u, v = ([y - x for x, y in zip(points[a], points[other])] for other in (b, c))
                normal = (u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0])
                mean = sum(state["temperature"][i] for i in (a, b, c)) / 3
                force = [total - mean * part / 2 for total, part in zip(force, normal)]
            return [part / (0.5 * 4 * 0.5) for part in force]

        write_simulations(self.folder / "rotor", "rotor", "--runs", 2, "--states", 5, "--points", 40)
        (self.folder / "rotor.yaml").write_text(ROTOR.replace("temperature: temperature,", "temperature: {from: temperature, kind: kinematic},"))
        corners = self.run_states("001", "rotor")[0]["connectivity"]
        corners = [corners[i:i + 3] for i in range(0, len(corners), 3)]
        words = ("training.num_epochs=1", "data.split={train: ['000'], val: ['001']}", "data.reference.U_inf=[2, 0, 0]", "data.forces.area=0.5", "--accept-data")
        self.train("rotor.yaml", *words)
        tables = []
        for num_ranks in (1, 3):
            self.assert_good(self.meshard("predict", "runs/rotor", "rotor/run_001.pvd", "--steps", 4, "-o", "out.pvd", "--forces", "--csv", "forces.csv", "--nproc", num_ranks))
            with open(self.folder / "forces.csv") as stream:
                tables.append([[float(row[name]) for name in ("Cd", "Cs", "Cl")] for row in csv.DictReader(stream)])
        self.assertEqual(len(tables[0]), 4)
        for number, (found, on_ranks) in enumerate(zip(*tables, strict=True), 1):
            expected = coefficients(arrays_of(self.folder / f"out/out_{number:04}.vtp"))
            largest = max(map(abs, expected))
            for one, other, part in zip(found, on_ranks, expected, strict=True):
                self.assertAlmostEqual(one, part, delta=1e-4 * largest)
                self.assertAlmostEqual(one, other, delta=1e-4 * largest)

        lifts = [coefficients(state)[2] for state in self.run_states("000", "rotor")[1:]]
        for learnt in ("state", "difference", "rate"):
            self.train("rotor.yaml", *words, f"data.next={learnt}", f"run_id={learnt}", "training.coefficient_weights=[1, 1]")
            means = json.loads((self.folder / f"runs/{learnt}/checkpoints/last.json").read_text())["coefficients"]["means"]
            self.assertAlmostEqual(means[1], sum(lifts) / len(lifts), delta=1e-4 * max(map(abs, lifts)), msg=learnt)

    def test_sees_forcing_that_is_known_beforehand(self):
        """The field is the integral of a random forcing: without it nothing can be learnt of the next state."""
        put_vortices(self.folder, num_runs=4, num_states=12)
        for index in sorted((self.folder / "vortices").glob("run_*.pvd")):
            values = [0.0] * 20
            for state in sorted(index.with_suffix("").glob("*.vtp")):
                number = int(state.stem[-4:]) + 100 * int(index.stem[-3:])
                forcing = [((number * 7919 + i * 104729) % 1000) / 500 - 1 for i in range(20)]
                values = [value + push for value, push in zip(values, forcing)]
                arrays = "".join(f'<DataArray type="Float32" Name="{name}" format="ascii">{" ".join(map(str, numbers))}</DataArray>\n'
                                 for name, numbers in (("forcing", forcing), ("integral", values)))
                replace(state, ("<PointData>\n", "<PointData>\n" + arrays))
        replace(self.folder / "vortex.yaml", ("{vorticity: vorticity, place: points}", "{integral: integral}"), ("arrays: [circulation, viscosity]", "given: [points, forcing]"),
                ("num_epochs: 1", "num_epochs: 30, val_interval: 30, optimizer: {lr: 5.0e-3}"), ("split: {train: 0.7, val: 0.2, test: 0.1}", "split: {train: 0.75, val: 0.25}"))
        self.train("vortex.yaml")
        rows = self.rolled_out("vortex")
        self.assertLess(self.mean(rows, "rel_l2"), 0.2 * self.mean(rows, "persistence"))
        run = rows[0]["run"]
        self.assert_good(self.meshard("predict", "runs/vortex", f"vortices/run_{run}.pvd", "--steps", 11, "-o", "out.pvd"))
        found, truths = [arrays_of(self.folder / f"out/out_{number:04}.vtp") for number in range(12)], self.run_states(run)
        for state, truth in zip(found, truths, strict=True):
            self.assert_close(state["Points"], truth["Points"], 1e-6, "moved as given")
        errors = [relative_l2(state["integral"], truth["integral"]) for state, truth in zip(found[1:], truths[1:], strict=True)]
        self.assert_close(errors, [float(row["rel_l2"]) for row in rows], 1e-4, "by predict and in training")
        short = self.meshard("predict", "runs/vortex", "vortices/run_003.pvd", "--steps", 12, "-o", "longer.pvd")
        self.assert_fails(short, 3, "forcing", "it has 12 states")


class SimulationRollOuts(Simulations):
    """Tables of roll-outs, recomputed here from the files of the states."""

    def setUp(self):
        super().setUp()
        put_vortices(self.folder, num_runs=5, num_states=7)
        index = self.folder / "vortices/run_003.pvd"   # a run that is shorter than the others
        index.write_text("".join(line for line in index.read_text().splitlines(True) if "state_0005" not in line and "state_0006" not in line))

    def test_list_each_state_of_each_run_with_its_time(self):
        self.train("vortex.yaml", *BY_RUN)
        for split, runs in (("val", ("002", "003")), ("test", ("004",))):
            found = [(row["run"], int(row["step"]), float(row["time"]), row["field"]) for row in self.rolled_out("vortex", split)]
            self.assertEqual(found, [(run, step, time, field) for run in runs for step, time in enumerate(self.times(f"vortices/run_{run}.pvd")[1:], 1) for field in FIELDS])

    def test_compare_with_the_first_state_and_the_mean_of_the_training_cases(self):
        self.train("vortex.yaml", *BY_RUN)
        told = [state for run in ("000", "001") for state in self.run_states(run)[:-1]]
        num_values = len(told) * 20
        mean = {"vorticity": [math.fsum(x for state in told for x in state["vorticity"]) / num_values],
                "Points": [math.fsum(x for state in told for x in state["Points"][k::3]) / num_values for k in range(3)]}
        for split in ("val", "test"):
            for row in self.rolled_out("vortex", split):
                states, array = self.run_states(row["run"]), FIELDS[row["field"]]
                truth = states[int(row["step"])][array]
                expected = [relative_l2(states[0][array], truth), relative_l2(20 * mean[array], truth)]
                self.assert_close([float(row["persistence"]), float(row["mean"])], expected, 1e-4, str(row))

    def test_are_what_predict_writes_from_the_first_state_on(self):
        self.train("vortex.yaml", *BY_RUN)
        for run, num_steps in (("002", 6), ("003", 4)):
            self.assert_good(self.meshard("predict", "runs/vortex", f"vortices/run_{run}.pvd", "--steps", num_steps, "-o", f"out_{run}.pvd"))
            truth = self.run_states(run)
            rows = [row for row in self.rolled_out("vortex") if row["run"] == run]
            self.assertEqual(len(rows), 2 * num_steps)
            for row in rows:
                predicted = arrays_of(self.folder / f"out_{run}/out_{run}_{int(row['step']):04}.vtp")
                array = FIELDS[row["field"]]
                self.assert_close([float(row["rel_l2"])], [relative_l2(predicted[array], truth[int(row["step"])][array])], 1e-4, str(row))
        self.check_evaluation()
        self.check_report()

    def check_evaluation(self):
        """What `evaluate` says of the same roll-outs, by the table of training and by the states that `predict` wrote."""
        result = self.meshard("evaluate", "runs/vortex", "val", "-o", "judged", "--json", "--nproc", 2)
        self.assert_good(result)
        with open(self.folder / "judged/rollout.csv") as stream:
            found = list(csv.DictReader(stream))
        trained = self.rolled_out("vortex")
        self.assertEqual(len(found), len(trained))
        for row, other in zip(found, trained, strict=True):
            for column in ("run", "step", "time", "field"):
                self.assertEqual(row[column], other[column])
            self.assert_close([float(row[column]) for column in ("rel_l2", "persistence", "mean")], [float(other[column]) for column in ("rel_l2", "persistence", "mean")], 1e-4, str(row))
            name = f"out_{row['run']}"
            predicted, truth = (state[FIELDS[row["field"]]] for state in (arrays_of(self.folder / f"{name}/{name}_{int(row['step']):04}.vtp"), self.run_states(row["run"])[int(row["step"])]))
            width = 3 if row["field"] == "place" else 1
            means = [[math.fsum(values[k::width]) / 20 for k in range(width)] for values in (predicted, truth)]
            energies = [math.fsum(value * value for value in values) / 20 for values in (predicted, truth)]
            drift = math.dist(*means) / math.hypot(*means[1])
            self.assertAlmostEqual(float(row["integral"]), drift, delta=1e-4 * drift + 1e-6, msg=str(row))
            self.assertAlmostEqual(float(row["energy"]), energies[0] / energies[1] - 1, delta=1e-5, msg=str(row))
        numbers = json.loads(result.out)
        self.assertEqual([(case["id"], len(case["rollout"]["times"])) for case in numbers["cases"]], [("002", 6), ("003", 4)])
        split = numbers["splits"]["val"]
        for field in FIELDS:
            of_runs = [[row for row in found if (row["run"], row["field"]) == (run, field)] for run in ("002", "003")]
            for name, column in (("rel_l2", "rel_l2"), ("rel_l2_one_step", "one_step"), ("persistence_rel_l2", "persistence"), ("guess_rel_l2", "mean")):
                self.assert_close([split["fields"][field][name]["mean"]], [sum(self.mean(rows, column) for rows in of_runs) / 2], 1e-5, name)
            self.assert_close([split["fields"][field]["rel_l2_end"]["mean"]], [sum(float(rows[-1]["rel_l2"]) for rows in of_runs) / 2], 1e-5)
            self.assert_close([split["rollout"]["rel_l2"][field]], [self.mean(found, "rel_l2", field)], 1e-5)
        self.assertEqual(split["fields"]["vorticity"]["rel_l2"]["worst"], max(("002", "003"), key=lambda run: self.mean([row for row in found if row["run"] == run], "rel_l2", "vorticity")))
        given = self.meshard("evaluate", "runs/vortex", "vortices/run_003.pvd", "-o", "given", "--fail-if", "val.vorticity.rel_l2<10")
        self.assertEqual(given.code, 1, given.err)
        self.assertIn("val: 1 run", given.out)
        self.assert_fails(self.meshard("evaluate", "runs/vortex", "0o2", "-o", "given"), 2, "0o2", "002")
        self.assert_fails(self.meshard("evaluate", "runs/vortex", "vortices/run_003/state_0000.vtp", "-o", "given"), 3, "state_0000.vtp", "1 state")

    def check_report(self):
        self.assert_good(self.meshard("report", "runs/vortex", "-o", "page"))
        page, numbers = (self.folder / "page/report.html").read_text(), json.loads((self.folder / "page/report.json").read_text())
        with open(self.folder / "judged/rollout.csv") as stream:
            judged = list(csv.DictReader(stream))
        cases = {case["id"]: case for case in numbers["runs"][0]["evaluation"]["cases"]}
        self.assertEqual(list(cases), ["002", "003", "004"])
        for field in FIELDS:
            found = [value for run in ("002", "003") for value in cases[run]["rollout"]["rel_l2"][field]]
            self.assert_close(found, [float(row["rel_l2"]) for row in judged if row["field"] == field], 1e-4, field)
            self.assertIn(f"val: relative L2 error of {field}, rolled out", page)
            self.assertIn(f"val {field} rolled out", page)
        pictures = {file.name for file in (self.folder / "page/pictures").glob("*.png")}
        drawn = {run for run in cases if f"vortex_{run}_0_vorticity_true.png" in pictures}
        self.assertEqual(len(drawn), 2)
        self.assertEqual(len(pictures), 2 * 3 * 2 * 3 * 2)   # runs, times, fields; true, predicted and error; light and dark
        last = self.times(f"vortices/run_{min(drawn)}.pvd")[-1]
        self.assertIn(f"vorticity, t = {last:.4g}", page)
        animations = list((self.folder / "page/pictures").glob("*.gif"))
        if not animations:
            self.assertIn("There is no animation: this build of meshard has no giflib", page)
            return
        run = max(("002", "003", "004"), key=lambda run: sum(cases[run]["fields"][field]["rel_l2"] for field in FIELDS))
        self.assertEqual([file.name for file in animations], [f"vortex_{run}_animation.gif"])
        self.assertLess(animations[0].stat().st_size, 1_000_000)
        width, height, frames = frames_of_gif(animations[0])
        self.assertEqual((width, height, len(frames)), (720, 240, len(cases[run]["rollout"]["times"])))
        for half in range(2):   # the truth, and the prediction
            seen = {tuple(frame[row * width + half * 360:row * width + half * 360 + 360] for row in range(80, height)) for frame in frames}   # below the title, which has the time
            self.assertEqual(len(seen), len(frames))

    def test_are_averaged_over_runs_and_states_in_metrics(self):
        self.train("vortex.yaml", *BY_RUN)
        for split, num_steps in (("val", 6), ("test", 6)):
            rows = self.rolled_out("vortex", split)
            found = self.lines("vortex", split)[-1]["rollout"]
            self.assertEqual(found["steps"], num_steps)
            for column in ("rel_l2", "persistence", "mean"):
                self.assertEqual(list(found[column]), list(FIELDS))
                for field in FIELDS:
                    self.assert_close([found[column][field]], [self.mean(rows, column, field)], 1e-5)

    def test_begin_anew_at_each_state_for_the_errors_of_single_steps(self):
        """Places are not told relative to the box of the run's first state, which a start in the middle of a run does not know."""
        self.train("vortex.yaml", *BY_RUN, "data.center=none", "data.length=none")
        errors = {field: [] for field in FIELDS}
        for run in ("002", "003"):
            times, truth = self.times(f"vortices/run_{run}.pvd"), self.run_states(run)
            for i in range(len(truth) - 1):
                out = f"from_{run}_{i}"
                self.assert_good(self.meshard("predict", "runs/vortex", f"vortices/run_{run}/state_{i:04}.vtp", "--steps", 1, "--step", times[i + 1] - times[i], "-o", f"{out}.pvd"))
                predicted = arrays_of(self.folder / out / f"{out}_0001.vtp")
                for field, array in FIELDS.items():
                    errors[field].append(relative_l2(predicted[array], truth[i + 1][array]))
        found = self.lines("vortex", "val")[-1]["metrics"]
        self.assert_good(self.meshard("evaluate", "runs/vortex", "val", "-o", "judged"))
        with open(self.folder / "judged/rollout.csv") as stream:
            judged = list(csv.DictReader(stream))
        for field in FIELDS:
            self.assert_close([found[field]["rel_l2"]], [math.fsum(errors[field]) / len(errors[field])], 1e-4, field)
            self.assert_close([float(row["one_step"]) for row in judged if row["field"] == field], errors[field], 1e-4, field)

    def test_are_the_same_of_numbered_files(self):
        self.train("vortex.yaml", *BY_RUN)
        write_simulations(self.folder / "vortex", "vortex", "--runs", 5, "--states", 7, "--points", 20, "--layout", "numbered")
        for file in ("state_0005.vtp", "state_0006.vtp"):
            (self.folder / "vortex/run_003" / file).unlink()
        self.train("vortex.yaml", *BY_RUN, "run_id=numbered", "data.root=vortex", "data.series=run_*/state_*.vtp")
        self.assertEqual(self.losses("numbered"), self.losses("vortex"))
        for split in ("val", "test"):
            self.assertEqual(self.rolled_out("numbered", split), self.rolled_out("vortex", split))


class SimulationOnRanks(Simulations):
    """A cloud that moves at uneven steps, each state cut among ranks."""

    def assert_same_on_ranks(self, *words):
        put_vortices(self.folder, num_runs=5, num_states=7, num_points=60)
        for num_ranks in (1, 2, 3):
            self.train("vortex.yaml", *BY_RUN, "training.num_epochs=2", f"run_id=on{num_ranks}", "--nproc", num_ranks, *words)
        expected, rows = self.losses("on1"), self.rolled_out("on1")
        self.assertGreater(len(expected), 10)
        for num_ranks in (2, 3):
            self.assert_close(self.losses(f"on{num_ranks}"), expected, 1e-4, f"{num_ranks} ranks")
            found = self.rolled_out(f"on{num_ranks}")
            for column in ("rel_l2", "persistence", "mean"):
                self.assert_close([float(row[column]) for row in found], [float(row[column]) for row in rows], 1e-4, f"{column} on {num_ranks} ranks")

    def test_learns_single_steps_as_alone(self):
        self.assert_same_on_ranks()

    def test_learns_unrolled_steps_as_alone(self):
        self.assert_same_on_ranks("training.unroll=3")

    def test_finds_the_same_neighbours_of_points_that_move(self):
        self.assert_same_on_ranks("training.unroll=2", "model={name: geotransolver, n_layers: 1, n_head: 2, n_hidden: 16, mlp_ratio: 1, slice_num: 7, "
                                  "include_local_features: true, radii: [1.0, 2.0], neighbors_in_radius: [1, 2], n_hidden_local: 4}")

    def test_learns_from_the_same_noise_as_alone(self):
        self.assert_same_on_ranks("training.unroll=2", "model.dropout=0.1", "training.unroll_gradient=step", "training.noise=0.05", "data.history=2", "data.next=rate")


class SimulationKills(Simulations):
    """An epoch of unrolled steps that is interrupted goes on where it was, with the same draws of noise."""
    settings = (*BY_RUN, "training.unroll=3", "training.unroll_interval=2", "training.noise=0.05", "training.num_epochs=40")

    def results(self, run):
        folder = self.folder / "runs" / run
        checkpoints = [tensors_of(folder / "checkpoints" / f"{name}.safetensors") for name in ("last", "best")]
        return self.losses(run), checkpoints, self.rolled_out(run), self.rolled_out(run, "test")

    def stop(self, process, number, num_steps):
        """Once so many more steps are done. Returns the step that training goes on from."""
        metrics = self.folder / "runs/killed/metrics.jsonl"

        def done():
            return metrics.read_text().count('"train_step"') if metrics.exists() else 0

        before = done()
        process.wait_for(lambda: done() >= before + num_steps, f"{num_steps} steps")
        process.send_to_group(number)
        process.result()
        return json.loads((self.folder / "runs/killed/checkpoints/last.json").read_text())["step"]

    def end_in_the_same_bits(self, num_ranks):
        put_vortices(self.folder, num_runs=5, num_states=7)
        self.train("vortex.yaml", *self.settings, "run_id=whole", "--nproc", num_ranks)
        total = len(self.losses("whole"))
        of_epoch, rest = divmod(total, 40)
        self.assertEqual(rest, 0)
        step = self.stop(self.start_meshard("train", "vortex.yaml", *self.settings, "run_id=killed", "--nproc", num_ranks), signal.SIGTERM, 2 * of_epoch + 3)
        for _ in range(5):
            if step % of_epoch != 0:
                break
            step = self.stop(self.start_meshard("train", "--resume", "runs/killed", "--nproc", num_ranks), signal.SIGTERM, 3)
        self.assertNotEqual(step % of_epoch, 0, "no stop was in the middle of an epoch")
        self.stop(self.start_meshard("train", "--resume", "runs/killed", "--nproc", num_ranks), signal.SIGKILL, 2 * of_epoch)
        self.assertLess(step, total)
        self.assert_good(self.meshard("train", "--resume", "runs/killed", "--nproc", num_ranks))
        for found, expected in zip(self.results("killed"), self.results("whole"), strict=True):
            self.assertEqual(found, expected)

    def test_of_one_process_end_in_the_same_bits(self):
        self.end_in_the_same_bits(1)

    def test_of_two_ranks_end_in_the_same_bits(self):
        self.end_in_the_same_bits(2)


class SimulationDenoising(Simulations):
    """A diffusion transformer that draws the next state from noise, told the last one."""

    def setUp(self):
        super().setUp()
        put_fronts(self.folder)

    def states(self, name):
        return [arrays_of(file) for file in sorted((self.folder / name).glob("*.vti"))]

    def test_is_the_same_on_ranks_and_after_a_kill(self):
        words = ("train", "front.yaml", "training.num_epochs=3", "training.noise=0.01")
        for run, num_ranks in (("on1", 1), ("on2", 2), ("on3", 3)):
            self.assert_good(self.meshard(*words, f"run_id={run}", "--nproc", num_ranks))
            self.assert_close(self.losses(run), self.losses("on1"), 1e-4, run)
            for column in ("rel_l2", "persistence"):
                self.assert_close(*([float(row[column]) for row in self.rolled_out(one)] for one in (run, "on1")), 1e-3, f"{column} of {run}")
        process = self.start_meshard(*words, "run_id=killed")
        metrics = self.folder / "runs/killed/metrics.jsonl"
        process.wait_for(lambda: metrics.exists() and metrics.read_text().count('"train_step"') >= 12, "an epoch and two steps")
        process.send_to_group(signal.SIGKILL)
        process.result()
        self.assert_good(self.meshard("train", "--resume", "runs/killed"))
        self.assertEqual((self.losses("killed"), self.rolled_out("killed")), (self.losses("on1"), self.rolled_out("on1")))
        validated = [[line["metrics"] for line in self.lines(run, "val")] for run in ("killed", "on1")]
        self.assertEqual(*validated)   # single steps, too, of the first validation in a process and of later ones
        self.assert_good(self.meshard("evaluate", "runs/on1/checkpoints/last.safetensors", "val", "-o", "judged"))
        judged = json.loads((self.folder / "judged/evaluation.json").read_text())["splits"]["val"]["fields"]["u"]["rel_l2_one_step"]["mean"]
        self.assert_close([judged], [validated[1][-1]["u"]["rel_l2"]], 1e-5, "by evaluate")

    def test_beats_persistence_and_draws_ensembles(self):
        put_fronts(self.folder, num_runs=6)
        self.train("front.yaml", "training.num_epochs=60", "training.val_interval=60", "training.optimizer.lr=3e-3")
        rows = self.rolled_out("front")
        run = rows[-1]["run"]
        self.assertLess(self.mean(rows, "rel_l2"), 0.75 * self.mean(rows, "persistence"))

        def predict(name, *words):
            self.assert_good(self.meshard("predict", "runs/front", f"fronts/run_{run}.pvd", "--steps", 5, "-o", f"{name}.pvd", *words))
            return self.states(name)

        alone = predict("alone")
        errors = [relative_l2(state["u"], truth["u"]) for state, truth in zip(alone[1:], self.run_states(run, "fronts")[1:], strict=True)]
        self.assert_close(errors, [float(row["rel_l2"]) for row in rows if row["run"] == run], 1e-4, "by predict and in training")
        other = predict("other", "--seed", 1)
        both = predict("both", "--samples", 2, "--nproc", 2)
        self.assertGreater(relative_l2(alone[-1]["u"], other[-1]["u"]), 1e-4)
        for i, (one, two, state) in enumerate(zip(alone[1:], other[1:], both[1:], strict=True), 1):
            mean = [(a + b) / 2 for a, b in zip(one["u"], two["u"])]
            self.assertLess(relative_l2(state["u"], mean), 1e-4, f"mean of state {i}")
            spread = [abs(a - b) / math.sqrt(2) for a, b in zip(one["u"], two["u"])]
            self.assertLess(relative_l2(state["u_spread"], spread), 1e-2, f"spread of state {i}")
        predict("rest", "--noise-levels", 3)
        self.assert_fails(self.meshard("predict", "runs/front", f"fronts/run_{run}.pvd", "--steps", 5, "-o", "both.pvd", "--samples", 0), 2, "--samples")
        self.check_killed_ensemble(run)
        self.assert_good(self.meshard("evaluate", "runs/front", run))
        with open(self.folder / "runs/front/evaluation/rollout.csv") as stream:
            self.assert_close([float(row["rel_l2"]) for row in csv.DictReader(stream)], errors, 1e-4, "by evaluate")

    def check_killed_ensemble(self, run):
        """Each way goes on from its own states, in which it differs from the mean."""
        words = ("predict", "runs/front", f"fronts/run_{run}.pvd", "--step", 50, "-o")
        self.assert_good(self.meshard(*words, "whole.pvd", "--steps", 60, "--samples", 3))
        process = self.start_meshard(*words, "cut.pvd", "--steps", 60, "--samples", 3)
        process.wait_for(lambda: (self.folder / "cut.pvd").exists() and (self.folder / "cut.pvd").read_text().count("DataSet") >= 6, "five states")
        process.send_to_group(signal.SIGKILL)
        process.result()
        self.assert_fails(self.meshard(*words, "cut.pvd", "--steps", 60, "--resume", "--samples", 2), 3, "2 runs or samples", "--resume")
        self.assert_good(self.meshard(*words, "cut.pvd", "--steps", 60, "--resume", "--samples", 3))
        files = [{file.name.split("_")[1]: file.read_bytes() for file in (self.folder / name).iterdir()} for name in ("cut", "whole")]
        self.assertEqual(len(files[1]), 61)   # and none of a single way
        self.assertEqual(*files)
        self.assert_good(self.meshard(*words, "all.vtkhdf", "--steps", 60, "--samples", 3))
        self.assertEqual(json.loads(self.meshard("info", "all.vtkhdf", "--json").out)["series"]["num_states"], 61)
        self.assert_fails(self.meshard(*words, "whole.pvd", "--resume", "--samples", 3, "--steps", 70), 3, "it is complete", "--resume")

    def test_refuses_what_belongs_to_models_without_noise(self):
        for word, text in (("training.loss=l1", "mse"), ("training.unroll=2", "samples"), ("model.patch_size=5", "patch_size")):
            self.assert_fails(self.meshard("train", "front.yaml", word), 3 if "patch" in word else 2, word.split("=")[0].split(".")[1], text)


class SimulationMasks(Simulations):
    """Fronts around a body, and with land along the least y, where there are no values, or such as mean nothing."""

    land = [y < 3 or (5 <= y < 9 and 6 <= x < 10) for y in range(16) for x in range(16)]

    def put(self, folder="fronts", garbage=math.nan):
        for state in (self.folder / folder).glob("run_*/*.vti"):
            text = state.read_text()
            values = re.search(r'Name="u"[^>]*>([^<]*)<', text).group(1)
            changed = " ".join(str(garbage) if is_land else value for value, is_land in zip(values.split(), self.land, strict=True))
            sea = " ".join("0" if is_land else "1" for is_land in self.land)
            state.write_text(text.replace(values, changed).replace("</PointData>", f'<DataArray type="UInt8" Name="sea" format="ascii">{sea}</DataArray></PointData>'))

    def setUp(self):
        super().setUp()
        write_simulations(self.folder / "burgers", "burgers", "--runs", 4, "--states", 6, "--points", 256)
        (self.folder / "burgers.yaml").write_text(BURGERS)
        self.put("burgers")

    def counted(self, values):
        return [value for value, is_land in zip(values, self.land, strict=True) if not is_land]

    def test_count_nowhere_on_any_ranks(self):
        for name, *words in (("rates", "training.noise=0.1", "data.next=rate", "training.unroll=2"), ("states", "data.next=state", "data.history=2", "training.unroll=2"),
                             ("drawn", "model.name=dit", "~model.num_channels", "~model.depth", "~model.num_groups", "model.patch_size=4", "model.hidden_size=16", "model.depth=1",
                              "model.num_heads=2", "~training.unroll")):
            words = ["data.mask=sea", "training.max_steps=1", *words]
            for num_ranks in (1, 2, 3):
                with self.subTest(name, num_ranks=num_ranks):
                    run = f"{name}{num_ranks}"
                    self.train("burgers.yaml", *words, f"run_id={run}", "--nproc", num_ranks)
                    self.assert_close(self.losses(run), self.losses(f"{name}1"), 1e-5)
                    assert_same_gradients(self, first_gradients(self.folder / f"runs/{run}"), first_gradients(self.folder / f"runs/{name}1"))
                    for column in ("rel_l2", "persistence", "mean"):
                        self.assert_close(*([float(row[column]) for row in self.rolled_out(one)] for one in (run, f"{name}1")), 1e-3, column)

    def test_are_left_out_of_errors_and_predictions(self):
        words = ("burgers.yaml", "training.num_epochs=2")
        self.train(*words, "run_id=sea", "data.mask=sea", "logging.report=true")
        rows = self.rolled_out("sea")
        id = rows[0]["run"]
        truth = [self.counted(state["u"]) for state in self.run_states(id, "burgers")]
        for name, num_ranks in (("one", 1), ("three", 3)):
            self.assert_good(self.meshard("predict", "runs/sea", f"burgers/run_{id}.pvd", "--steps", 5, "-o", f"{name}.pvd", "--nproc", num_ranks))
        for name in ("one", "three"):
            states = [arrays_of(file)["u"] for file in sorted((self.folder / name).glob("*.vti"))]
            for i, state in enumerate(states):
                self.assertEqual([math.isnan(value) for value in state], self.land, f"state {i} of {name}")
            errors = [relative_l2(self.counted(state), true) for state, true in zip(states[1:], truth[1:], strict=True)]
            self.assert_close([float(row["rel_l2"]) for row in rows if row["run"] == id], errors, 1e-4)
        self.assert_close([float(row["persistence"]) for row in rows if row["run"] == id], [relative_l2(truth[0], true) for true in truth[1:]], 1e-4)
        self.assert_good(self.meshard("evaluate", "runs/sea", id, "--nproc", 2))
        with open(self.folder / "runs/sea/evaluation/rollout.csv") as stream:
            found = list(csv.DictReader(stream))
        self.assert_close([float(row["rel_l2"]) for row in found], errors, 1e-4)
        last = self.counted(states[-1])
        self.assertAlmostEqual(float(found[-1]["energy"]), math.fsum(v * v for v in last) / math.fsum(v * v for v in truth[-1]) - 1, delta=1e-4)
        self.assertAlmostEqual(float(found[-1]["integral"]), abs(math.fsum(last) - math.fsum(truth[-1])) / abs(math.fsum(truth[-1])), delta=1e-4)
        self.assertEqual(json.loads((self.folder / "runs/sea/evaluation/evaluation.json").read_text())["cases"][0]["num_points"], self.land.count(False))

        self.assert_good(self.meshard("predict", "runs/sea", f"burgers/run_{id}.pvd", "--steps", 2, "-o", "part.pvd"))
        self.assert_good(self.meshard("predict", "runs/sea", f"burgers/run_{id}.pvd", "--steps", 5, "-o", "part.pvd", "--resume"))
        one, part = ([file.read_bytes() for file in sorted((self.folder / name).glob("*.vti"))] for name in ("one", "part"))
        self.assertEqual(part, one)

        self.train(*words, "run_id=nan", "data.mask=nan")
        self.assertEqual((self.losses("nan"), self.rolled_out("nan")), (self.losses("sea"), rows))
        self.assert_good(self.meshard("evaluate", "runs/nan", id, "--nproc", 2))
        with open(self.folder / "runs/nan/evaluation/rollout.csv") as stream:
            self.assertEqual(list(csv.DictReader(stream)), found)
        write_simulations(self.folder / "burgers", "burgers", "--runs", 4, "--states", 6, "--points", 256)
        self.put("burgers", garbage=1e30)
        self.train(*words, "run_id=filled", "data.mask=sea")
        self.assertEqual((self.losses("filled"), self.rolled_out("filled")), (self.losses("sea"), rows))

    def test_that_are_wrong_are_named(self):
        for words, code, *texts in ((("data.mask=see",), 3, "no point field 'see'", "sea"), ((), 3, "'u' is NaN", "(x, y, z) = (0, 0, 0)")):
            self.assert_fails(self.meshard("train", "burgers.yaml", *words), code, *texts)
        replace(self.folder / "burgers/run_001/state_0003.vti", ('Name="sea" format="ascii">0', 'Name="sea" format="ascii">1'), (">nan", ">0.5"))
        for mask in ("sea", "nan"):
            self.assert_fails(self.meshard("train", "burgers.yaml", f"data.mask={mask}", "--nproc", 2), 3, "case 001@", "state_0003.vti", f"data.mask ({mask})", "the same in a run")


class SimulationPrediction(Simulations):
    def setUp(self):
        super().setUp()
        copy_sample("simulation", self.folder)

    def states(self, name):
        return {file.name.rpartition("_")[2]: file.read_bytes() for file in (self.folder / name).glob("*.vtp")}

    def wait_for_states(self, process, name, number):
        """Until a running program has written `number` states. Their files are counted, not read: those of an ensemble's tracks go again meanwhile."""
        process.wait_for(lambda: len(list((self.folder / name).glob("*_????.vtp"))) >= number, f"{number} states")

    def test_has_the_times_and_errors_of_the_series_that_it_begins_with(self):
        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", 7, "-o", "out.pvd"))
        self.assertEqual(self.times("out.pvd"), self.times("vortices/run_002.pvd"))
        run = json.loads(self.meshard("info", "out/out_0007.vtp", "--json").out)
        self.assertEqual(sorted(array["name"] for array in run["arrays"]), ["TimeValue", "circulation", "viscosity", "vorticity"])

    def test_is_read_by_vtk_with_times_and_constants(self):
        program = python_with_vtk()
        if program is None:
            self.skipTest("no Python has VTK's modules")
        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", 5, "-o", "out.pvd"))
        start, times = self.run_states("002")[0], self.times("vortices/run_002.pvd")
        for i in range(6):
            file = self.folder / f"out/out_{i:04}.vtp"
            read = subprocess.run([program, "-c", READ_BY_VTK, file], capture_output=True, text=True, check=True)
            self.assertEqual(read.stderr, "")
            found, ours = json.loads(read.stdout), arrays_of(file)
            self.assertEqual(sorted(found), ["Points", "TimeValue", "circulation", "viscosity", "vorticity"])
            self.assertEqual(found["TimeValue"], [times[i]])
            for name in ("Points", "vorticity", "circulation", "viscosity"):
                self.assertEqual(found[name], list(ours[name]), name)
            for name in ("circulation", "viscosity", *(("vorticity", "Points") if i == 0 else ())):   # state 0 is the start
                self.assert_close(found[name], start[name], 1e-7, name)
        self.assertNotEqual(found["Points"], start["Points"])

    def test_is_the_same_on_ranks(self):
        for num_ranks in (1, 2, 3):
            self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", 5, "-o", f"on{num_ranks}.pvd", "--nproc", num_ranks))
        for num_ranks in (2, 3):
            self.assertEqual(self.times(f"on{num_ranks}.pvd"), self.times("on1.pvd"))
            for i in range(6):
                found, expected = (arrays_of(self.folder / f"on{number}/on{number}_{i:04}.vtp") for number in (num_ranks, 1))
                self.assertEqual(found.keys(), expected.keys())
                for name in ("Points", "vorticity"):
                    self.assertLess(relative_l2(found[name], expected[name]), 1e-5, f"{name} of state {i} on {num_ranks} ranks")
                for name in ("circulation", "viscosity", "TimeValue"):
                    self.assertEqual(found[name], expected[name])

    def test_of_a_mesh_takes_the_step_that_is_said(self):
        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002/state_0003.vtp", "--steps", 3, "--step", 25, "-o", "out.pvd"))
        times = self.times("out.pvd")
        self.assertEqual([time - times[0] for time in times], [0, 25, 50, 75])

    def test_killed_goes_on_to_the_same_bytes_and_may_be_one_file(self):
        words = ("predict", "runs/vortex", "vortices/run_003.pvd", "--steps", 300, "-o")
        self.assert_good(self.meshard(*words, "whole.pvd"))
        process = self.start_meshard(*words, "one.vtkhdf")
        self.wait_for_states(process, "one_steps", 20)
        process.send_to_group(signal.SIGKILL)
        process.result()
        self.assertFalse((self.folder / "one.vtkhdf").exists())
        before = self.states("one_steps")
        for _ in range(2):   # the second finds all done
            self.assert_good(self.meshard(*words, "one.vtkhdf", "--resume"))
            self.assertEqual([path.name for path in self.folder.glob("one*")], ["one.vtkhdf"])
        whole, times = self.states("whole"), self.times("whole.pvd")
        self.assertEqual(before, {name: whole[name] for name in before})
        listed = json.loads(self.meshard("info", "one.vtkhdf", "--json").out)["series"]
        self.assertEqual((listed["num_states"], listed["times"]), (301, times))
        for i in (0, 1, 20, 21, 22, 299, 300):
            self.assert_good(self.meshard("convert", "one.vtkhdf", "--time", repr(times[i]), "-o", "state.vtp"))
            self.assertEqual((self.folder / "state.vtp").read_bytes(), whole[f"{i:04}.vtp"], f"state {i}")
        self.assert_fails(self.meshard("predict", "runs/vortex", "vortices/run_003.pvd", "--steps", 5, "-o", "one.vtkhdf", "--resume"), 3, "301 states")

    def test_of_a_series_in_double_precision_may_be_one_file(self):
        for state in (self.folder / "vortices/run_002").iterdir():
            state.write_text(state.read_text().replace("Float32", "Float64"))
        for name in ("out.vtkhdf", "out.pvd"):
            self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", 3, "-o", name))
        for number, time in enumerate(self.times("out.pvd")):
            self.assert_good(self.meshard("convert", "out.vtkhdf", "--time", repr(time), "-o", "state.vtp"))
            found, expected = arrays_of(self.folder / "state.vtp"), arrays_of(self.folder / f"out/out_{number:04}.vtp")
            self.assertEqual(sorted(found), sorted(expected))
            for array, values in expected.items():
                self.assert_close(found[array], values, 1e-7, f"{array} at {time}")

    def test_of_several_runs_has_their_spread(self):
        splits = ("data.split.train=0.5", "data.split.val=0.5", "~data.split.test")
        self.train("vortex.yaml", "run_id=other", "seed=1", *splits)
        for run, word, text in (("next", "data.next=state", "learnt the state of vorticity, points (data.next)"), ("history", "data.history=2", "vorticity 1 before"),
                                ("order", "data.arrays=[viscosity, circulation]", "viscosity, circulation, step")):   # whose numbers would be taken for others
            self.train("vortex.yaml", f"run_id={run}", word, "training.max_steps=1", *splits)
            self.assert_fails(self.meshard("predict", "runs/vortex", f"runs/{run}", "vortices/run_002.pvd", "--steps", 2, "-o", "out.pvd"), 3,
                              f"runs/{run}/", text, "learnt the difference of vorticity, points (data.next), told points", "circulation, viscosity, step", "predict with each alone")
        self.assert_good(self.meshard("predict", "runs/vortex", "runs/other", "vortices/run_002.pvd", "--steps", 2, "-o", "out.pvd"))
        run = json.loads(self.meshard("info", "out/out_0002.vtp", "--json").out)
        self.assertIn("vorticity_spread", [array["name"] for array in run["arrays"]])
        self.assert_fails(self.meshard("predict", "runs/vortex", "runs/other", "vortices/run_002.pvd", "--steps", 3, "-o", "out.pvd", "--resume"), 3, "it is complete", "--resume")
        words = ("predict", "runs/vortex", "runs/other", "vortices/run_003.pvd", "--steps", 60, "--nproc", 2, "-o")
        self.assert_good(self.meshard(*words, "whole.pvd"))
        process = self.start_meshard(*words, "cut.pvd")
        self.wait_for_states(process, "cut", 5)
        process.send_to_group(signal.SIGKILL)
        process.result()
        self.assert_good(self.meshard(*words, "cut.pvd", "--resume"))
        self.assertEqual(self.states("cut"), self.states("whole"))

    def test_says_what_is_wrong_with_its_words(self):
        for words, option in ((("--steps", 0), "--steps"), (("--steps", -1), "--steps"), (("--steps", 2, "--step", 0), "--step"), (("--steps", 2, "--step", -3), "--step"),
                              (("--step", 3), "--step requires --steps"), (("--resume",), "--resume requires --steps"), (("vortices/run_003.pvd", "--steps", 2), "one start")):
            self.assert_fails(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", *words, "-o", "out.pvd"), 2, option)
        copy_sample("runs", self.folder / "others")
        self.assert_fails(self.meshard("predict", "others/car", "vortices/run_002.pvd", "--steps", 2, "-o", "out.pvd"), 2, "--steps", "others/car", "data.series")
        self.assertNotIn("out.pvd", self.names())

    def test_finds_constants_in_field_data_and_says_which_state_lacks_an_array(self):
        """What is one number of a whole state may be told as if it were an array."""
        def moved_to_field_data(text):
            arrays = ""
            for name in ("circulation", "viscosity"):
                found = re.search(rf' *<DataArray type="Float32" Name="{name}"[^>]*>(\S+)[^<]*</DataArray>\n', text)
                arrays += f'<DataArray type="Float32" Name="{name}" NumberOfTuples="1" format="ascii">{found[1]}</DataArray>\n'
                text = text.replace(found[0], "", 1)
            return text.replace("<PolyData>\n", f"<PolyData>\n<FieldData>\n{arrays}</FieldData>\n", 1)

        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", 4, "-o", "out.pvd"))
        expected = self.states("out")["0004.vtp"]
        for state in (self.folder / "vortices/run_002").glob("*.vtp"):
            state.write_text(moved_to_field_data(state.read_text()))
        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", 6, "-o", "out.pvd"))
        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", 4, "-o", "out.pvd"))
        self.assertEqual(sorted(self.states("out")), [f"{number:04}.vtp" for number in range(5)])   # none of the longer one
        found, before = arrays_of(self.folder / "out/out_0004.vtp"), self.folder / "before.vtp"
        before.write_bytes(expected)
        expected = arrays_of(before)
        self.assertEqual(found["vorticity"], expected["vorticity"])
        self.assertEqual(found["Points"], expected["Points"])
        run = json.loads(self.meshard("info", "out/out_0004.vtp", "--json").out)
        self.assertEqual([array["name"] for array in run["arrays"] if array["association"] == "field"], ["circulation", "viscosity", "TimeValue"])
        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", 4, "-o", "one.vtkhdf"))
        one = json.loads(self.meshard("info", "one.vtkhdf", "--json").out)
        self.assertEqual([array["name"] for array in one["arrays"] if array["association"] == "point"], ["vorticity", "circulation", "viscosity"])
        replace(self.folder / "vortices/run_002/state_0003.vtp", ('Name="viscosity"', 'Name="viscous"'))
        for steps in (3, 5):
            self.assert_fails(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", steps, "-o", "out.pvd"), 3, "state_0003.vtp", "'viscosity'")

    def test_does_not_go_on_from_another_one(self):
        def predict(run, start, *words):
            return self.meshard("predict", run, start, "--steps", 4, "--step", 25, "-o", "out.pvd", "--resume", *words)

        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002/state_0000.vtp", "--steps", 2, "--step", 25, "-o", "out.pvd"))
        self.train("vortex.yaml", "run_id=other", "seed=1")
        start = self.folder / "vortices/run_002/state_0000.vtp"
        start.with_name("changed.vtp").write_text(re.sub(r'(Name="vorticity"[^>]*>)[^ <]+', r"\g<1>0.5", start.read_text()))
        self.assert_fails(predict("runs/other", "vortices/run_002/state_0000.vtp"), 3, "by another model", "--resume")
        self.assert_fails(predict("runs/vortex", "vortices/run_002/changed.vtp"), 3, "out_0000.vtp is not the state 0 of the start", "--resume")
        self.assert_good(predict("runs/vortex", "vortices/run_002/state_0000.vtp", "--nproc", 2))
        self.assert_fails(predict("runs/other", "vortices/run_002/state_0000.vtp"), 3, "by another model", "--resume")   # complete as it is

    def test_says_what_is_wrong(self):
        def predict(*words):
            return self.meshard("predict", "runs/vortex", *words)

        self.assert_fails(predict("vortices/run_002.pvd", "-o", "out.vtp"), 2, "--steps")
        self.assert_fails(predict("vortices/run_002.pvd", "--steps", 2, "-o", "out.vtp"), 2, ".pvd")
        self.assert_fails(predict("vortices/run_002.pvd", "--steps", 2, "-o", "out.pvd", "--forces"), 2, "--csv")
        self.assert_fails(predict("vortices/missing.pvd", "--steps", 2, "-o", "out.pvd"), 3, "does not exist")
        self.assert_good(predict("vortices/run_002.pvd", "--steps", 2, "-o", "out.pvd"))
        self.assert_fails(predict("vortices/run_003.pvd", "--steps", 4, "-o", "out.pvd", "--resume"), 3, "another one")
        before = self.states("out")
        self.assert_fails(predict("out.pvd", "--steps", 3, "-o", "out.pvd", "--overwrite"), 2, "out/out_0000.vtp, which is read", "another output")
        self.assert_fails(predict("vortices/../out/out_0002.vtp", "--steps", 3, "-o", f"{self.folder}/out.pvd"), 2, "out_0002.vtp, which is read", "another output")
        self.assertEqual(self.states("out"), before)
        self.assert_good(predict("out/out_0002.vtp", "--steps", 1, "-o", "further.pvd"))
        replace(self.folder / "vortices/run_002/state_0000.vtp", ('Name="viscosity"', 'Name="viscous"'))
        self.assert_fails(predict("vortices/run_002.pvd", "--steps", 2, "-o", "other.pvd"), 3, "viscosity", "viscous")
        replace(self.folder / "vortices/run_003/state_0000.vtp", ('Name="vorticity"', 'Name="curl"'))
        self.assert_fails(predict("vortices/run_003.pvd", "--steps", 2, "-o", "other.pvd"), 3, "vorticity", "curl")
        state = self.folder / "vortices/run_001/state_0000.vtp"
        state.write_text(re.sub(r'(Name="vorticity"[^>]*>)\S+', r"\1nan", state.read_text()))
        self.assert_fails(predict("vortices/run_001.pvd", "--steps", 2, "-o", "other.pvd"), 3, "run_001.pvd, the state at 0 (", "state_0000.vtp", "vorticity", "NaN")
        self.assertNotIn("other.pvd", self.names())
        self.assertNotIn("other", self.names())
        self.assert_fails(self.meshard("evaluate", "runs/vortex", "001"), 3, "state_0000.vtp", "vorticity", "NaN")


class SimulationFaults(Simulations):
    def setUp(self):
        super().setUp()
        put_vortices(self.folder, num_runs=3, num_states=4)

    def assert_refused(self, code, *texts, words=()):
        self.assert_fails(self.meshard("train", "vortex.yaml", "~data.split.test", *words), code, *texts)

    def state(self, run, number):
        return self.folder / f"vortices/run_{run:03}/state_{number:04}.vtp"

    def test_of_points_that_come_are_named(self):
        text = self.state(1, 2).read_text()
        text = text.replace('NumberOfPoints="20"', 'NumberOfPoints="19"')
        text = re.sub(r"(Name=\"(?:vorticity|circulation|viscosity)\"[^>]*>)\S+ ", r"\1", text)
        text = re.sub(r"(Name=\"Points\"[^>]*>)\S+ \S+ \S+ ", r"\1", text)
        self.state(1, 2).write_text(text)
        self.assert_refused(3, "state_0002.vtp", "19 points", "20")

    def test_of_numbers_are_named(self):
        text = self.state(2, 1).read_text()
        self.state(2, 1).write_text(re.sub(r'(Name="vorticity"[^>]*>)\S+', r"\1nan", text))
        self.assert_refused(3, "vorticity", "NaN", "state_0001.vtp")

    def test_of_rows_in_another_order_are_named(self):
        for number in range(4):
            ids = range(20) if number != 2 else range(19, -1, -1)
            array = f'<DataArray type="Int32" Name="particle" format="ascii">{" ".join(map(str, ids))}</DataArray>\n'
            replace(self.state(1, number), ("<PointData>\n", "<PointData>\n" + array))
        self.assert_refused(3, "state_0002.vtp", "'particle'", "in another order", "Sort")

    def test_of_points_that_move_unseen_are_named(self):
        self.assert_refused(3, "state_0001.vtp", "its points lie up to", "data.given=[points]", words=("~data.fields.place",))

    def test_of_levels_beyond_single_precision_are_named(self):
        for state in self.folder.glob("vortices/*/*.vtp"):
            state.write_text(re.sub(r'Float32(" Name="vorticity"[^>]*>)([^<]*)', lambda found: "Float64" + found[1] + " ".join(
                f"{1e6 + 1e-3 * float(word):.9f}" for word in found[2].split()), state.read_text()))
        result = self.train("vortex.yaml", "~data.split.test")
        self.assertRegex(str(result), "vorticity changes by about .* and is about 1e.06, of which single precision tells")
        self.assertNotRegex(str(result), "place.* changes by about")

    def test_of_times_are_named(self):
        index = self.folder / "vortices/run_000.pvd"
        index.write_text(re.sub(r'timestep="[^"]*"( part="0" file="run_000/state_0002)', r'timestep="0.0"\1', index.read_text()))
        self.assert_refused(3, "run_000.pvd", "two states have the time 0", "state_0000.vtp", "state_0002.vtp")

    def test_of_a_run_that_is_too_short_are_named(self):
        self.assert_refused(3, "run 000", "4 states", words=("data.history=4",))
        index = self.folder / "vortices/run_002.pvd"
        index.write_text("".join(line for line in index.read_text().splitlines(True) if not re.search("state_000[123]", line)))
        self.assert_refused(3, "run 002", "1 state;", "2")

    def test_of_files_that_are_missing_are_named(self):
        self.state(1, 2).unlink()
        self.assert_refused(3, "run_001.pvd", "state_0002.vtp", "does not exist")

    def test_of_settings_are_named(self):
        for words, texts in ((("data.fields.place=points", "data.association=cell"), ("data.association=point",)),
                             (("data.surface=*.vtp",), ("data.surface", "data.series")),
                             (("data.given=[vorticity]",), ("data.given", "vorticity, which is learnt")),
                             (("data.given=[points]",), ("data.given has the points, too",)),
                             (("training.exact=true",), ("training.exact",)),
                             (("data.sampling_resolution=5",), ("data.sampling_resolution",)),
                             (("~data.series", "data.surface=run_*/state_*.vtp", "data.inputs=[points]", "training.unroll=2"), ("training.unroll", "data.series"))):
            self.assert_refused(2, *texts, words=words)
