# SPDX-License-Identifier: Apache-2.0
"""Simulations in time: learnt on ranks as alone, better than persistence, written as series that go on after a kill; and what is wrong with series is said."""
import csv
import json
import re
import signal
import subprocess
import sys

from runner import SOURCE, Case
from samples import VORTEX, put_vortices

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


def write_simulations(folder, what, *words):
    subprocess.run([sys.executable, SOURCE / "apps/sample/simulations.py", what, folder / what, *map(str, words)], check=True)


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

    def mean(self, rows, column, field=None):
        values = [float(row[column]) for row in rows if field in (None, row["field"])]
        return sum(values) / len(values)


class SimulationTraining(Simulations):
    def test_on_a_cloud_that_moves_is_far_better_than_persistence(self):
        write_simulations(self.folder, "vortex", "--states", 21, "--points", 150)
        (self.folder / "vortex.yaml").write_text(VORTEX.replace("root: vortices", "root: vortex").replace("n_hidden: 16, n_layers: 1", "n_hidden: 48, n_layers: 2").replace(
            "num_epochs: 1", "num_epochs: 12, optimizer: {lr: 2.0e-3}"))
        self.train("vortex.yaml")
        rows = self.rolled_out("vortex") + self.rolled_out("vortex", "test")
        self.assertEqual(max(int(row["step"]) for row in rows), 20)
        last = [row for row in rows if row["step"] == "20"]
        for field in ("place", "vorticity"):
            self.assertLess(self.mean(last, "rel_l2", field), 0.5 * self.mean(last, "persistence", field))

    def test_of_grids_is_the_same_on_ranks_and_after_a_stop(self):
        write_simulations(self.folder, "burgers", "--runs", 4, "--states", 6, "--points", 256)
        (self.folder / "burgers.yaml").write_text(BURGERS)
        self.train("burgers.yaml")
        self.train("burgers.yaml", "run_id=ranks", "--nproc", 2)
        for one, other in zip(self.rolled_out("burgers"), self.rolled_out("ranks"), strict=True):
            self.assertAlmostEqual(float(one["rel_l2"]), float(other["rel_l2"]), delta=1e-4 * float(one["rel_l2"]))
        self.train("burgers.yaml", "run_id=stopped", "training.max_steps=4")
        self.assert_good(self.meshard("train", "--resume", "runs/stopped", "training.max_steps=0"))
        self.assertEqual(self.rolled_out("stopped"), self.rolled_out("burgers"))
        self.assert_good(self.meshard("predict", "runs/burgers", "burgers/run_001.pvd", "--steps", 7, "-o", "out.pvd", "--nproc", 2))
        self.assertEqual(len(self.names(self.folder / "out")), 8)

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
        replace(self.folder / "vortex.yaml", ("{vorticity: vorticity, place: points}", "{integral: integral}"), ("arrays: [circulation, viscosity]", "given: [forcing]\n  inputs: [points]"),
                ("num_epochs: 1", "num_epochs: 30, optimizer: {lr: 5.0e-3}"), ("split: {train: 0.7, val: 0.2, test: 0.1}", "split: {train: 0.75, val: 0.25}"))
        self.train("vortex.yaml")
        rows = self.rolled_out("vortex")
        self.assertLess(self.mean(rows, "rel_l2"), 0.2 * self.mean(rows, "persistence"))
        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_003.pvd", "--steps", 11, "-o", "out.pvd"))
        short = self.meshard("predict", "runs/vortex", "vortices/run_003.pvd", "--steps", 12, "-o", "longer.pvd")
        self.assert_fails(short, 3, "forcing", "it has 12 states")


class SimulationPrediction(Simulations):
    def setUp(self):
        super().setUp()
        put_vortices(self.folder, num_runs=4, num_states=8)
        self.train("vortex.yaml", "data.split.train=0.5", "data.split.val=0.5", "~data.split.test")

    def states(self, name):
        return {file.name.partition("_")[2]: file.read_bytes() for file in (self.folder / name).glob("*.vtp")}

    def times(self, name):
        return [float(time) for time in re.findall(r'timestep="([^"]*)"', (self.folder / name).read_text())]

    def test_has_the_times_and_errors_of_the_series_that_it_begins_with(self):
        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002.pvd", "--steps", 7, "-o", "out.pvd"))
        self.assertEqual(self.times("out.pvd"), self.times("vortices/run_002.pvd"))
        run = json.loads(self.meshard("info", "out/out_0007.vtp", "--json").out)
        self.assertEqual(sorted(array["name"] for array in run["arrays"]), ["TimeValue", "circulation", "viscosity", "vorticity"])

    def test_of_a_mesh_takes_the_step_that_is_said(self):
        self.assert_good(self.meshard("predict", "runs/vortex", "vortices/run_002/state_0003.vtp", "--steps", 3, "--step", 25, "-o", "out.pvd"))
        times = self.times("out.pvd")
        self.assertEqual([time - times[0] for time in times], [0, 25, 50, 75])

    def test_killed_goes_on_to_the_same_bytes(self):
        words = ("predict", "runs/vortex", "vortices/run_003.pvd", "--steps", 300, "-o")
        self.assert_good(self.meshard(*words, "whole.pvd"))
        process = self.start_meshard(*words, "parts.pvd")
        process.wait_for(lambda: len(self.states("parts")) > 20, "twenty states")
        process.send_to_group(signal.SIGKILL)
        process.result()
        self.assertLess(len(self.times("parts.pvd")), 301)
        self.assert_good(self.meshard(*words, "parts.pvd", "--resume"))
        self.assertEqual(self.times("parts.pvd"), self.times("whole.pvd"))
        whole, parts = self.states("whole"), self.states("parts")
        self.assertEqual(whole, {name: parts[name] for name in whole})

    def test_of_several_runs_has_their_spread(self):
        self.train("vortex.yaml", "run_id=other", "seed=1", "data.split.train=0.5", "data.split.val=0.5", "~data.split.test")
        self.assert_good(self.meshard("predict", "runs/vortex", "runs/other", "vortices/run_002.pvd", "--steps", 2, "-o", "out.pvd"))
        run = json.loads(self.meshard("info", "out/out_0002.vtp", "--json").out)
        self.assertIn("vorticity_spread", [array["name"] for array in run["arrays"]])
        self.assert_fails(self.meshard("predict", "runs/vortex", "runs/other", "vortices/run_002.pvd", "--steps", 3, "-o", "out.pvd", "--resume"), 2, "--resume")

    def test_says_what_is_wrong(self):
        def predict(*words):
            return self.meshard("predict", "runs/vortex", *words)

        self.assert_fails(predict("vortices/run_002.pvd", "-o", "out.vtp"), 2, "--steps")
        self.assert_fails(predict("vortices/run_002.pvd", "--steps", 2, "-o", "out.vtp"), 2, ".pvd")
        self.assert_fails(predict("vortices/run_002.pvd", "--steps", 2, "-o", "out.pvd", "--forces"), 2, "--csv")
        self.assert_fails(predict("vortices/missing.pvd", "--steps", 2, "-o", "out.pvd"), 3, "does not exist")
        self.assert_good(predict("vortices/run_002.pvd", "--steps", 2, "-o", "out.pvd"))
        self.assert_fails(predict("vortices/run_003.pvd", "--steps", 4, "-o", "out.pvd", "--resume"), 3, "another one")
        replace(self.folder / "vortices/run_002/state_0000.vtp", ('Name="viscosity"', 'Name="viscous"'))
        self.assert_fails(predict("vortices/run_002.pvd", "--steps", 2, "-o", "other.pvd"), 3, "viscosity", "viscous")
        self.assertNotIn("other.pvd", self.names())
        for verb in ("evaluate", "report"):
            self.assert_fails(self.meshard(verb, "runs/vortex", *(("-o", "report") if verb == "report" else ())), 3, "rollout.csv")


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

    def test_of_times_are_named(self):
        index = self.folder / "vortices/run_000.pvd"
        index.write_text(re.sub(r'timestep="[^"]*"( part="0" file="run_000/state_0002)', r'timestep="0.0"\1', index.read_text()))
        result = self.meshard("train", "vortex.yaml")
        self.assertNotEqual(result.code, 0)
        self.assertIn("run_000", result.err)

    def test_of_a_run_that_is_too_short_are_named(self):
        self.assert_refused(3, "run 000", "4 states", words=("data.history=4",))

    def test_of_settings_are_named(self):
        for words, texts in ((("data.fields.place=points", "data.association=cell"), ("data.association=point",)),
                             (("data.surface=*.vtp",), ("data.surface", "data.series")),
                             (("training.exact=true",), ("training.exact",)),
                             (("data.sampling_resolution=5",), ("data.sampling_resolution",)),
                             (("~data.series", "data.surface=run_*/state_*.vtp", "data.inputs=[points]", "training.unroll=2"), ("training.unroll", "data.series"))):
            self.assert_refused(2, *texts, words=words)
