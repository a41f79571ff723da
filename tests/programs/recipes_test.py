# SPDX-License-Identifier: Apache-2.0
"""The recipes in apps/recipes, each from its first command to the last on a tiny twin of its data: same folders, names and arrays."""
import json
import math
import os
import random
import re
import struct
import subprocess

import twins
from evaluation_test import arrays_of
from runner import PROGRAM, SOURCE, Case

TRAINED = ("training.num_epochs=4", "training.val_interval=2")
SMALL = ("model.n_layers=1", "model.n_hidden=16", "model.n_head=2", "model.slice_num=4", *TRAINED, "training.ema=0", "data.sampling_resolution=60")
SMALL_DOMINO = ("model.interp_res=[16,8,8]", "model.base_filters=2", "model.base_neurons=4", "model.surface_neighbors_in_radius=[4,4,4]",
                "model.volume_neighbors_in_radius=[4,4,4,4]", "model.local_surface_neighbors=[4,4]", "model.local_volume_neighbors=[4,4]",
                "model.num_neighbors_surface=3", "model.num_neighbors_volume=2", "model.basis_width=8", "model.position_width=8", "model.aggregation_width=8",
                *TRAINED, "data.sampling_resolution=60", "data.volume.sampling_resolution=60", "training.precision=float32")


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


class Recipe(Case):
    """A recipe's commands as its first lines give them, with a small model."""
    timeout = 300

    def run_recipe(self, name, *words, small=SMALL):
        self.root = self.folder / "data"
        getattr(twins, name)(self.root)
        recipe = SOURCE / f"apps/recipes/{name}.yaml"
        lines = recipe.read_text().splitlines()
        for line in lines:   # what is done once in the data's folder
            command = re.match(r"#   (ls .*)", line)
            if command:
                subprocess.run(["sh", "-c", command[1]], cwd=self.root, check=True)
        self.assertTrue(any(line.startswith(f"#   meshard train apps/recipes/{name}.yaml data.root=") for line in lines))
        for num_ranks, run in ((1, "one"), (2, "two")):
            self.assert_good(self.meshard("train", recipe, f"data.root={self.root}", f"run_id={run}", *small, *words, "--nproc", num_ranks,
                                          "--accept-data"))   # the twins' coefficients are made up
        self.assert_same_losses("one", "two")
        self.assert_good(self.meshard("train", recipe, f"data.root={self.root}", *words, "--print-config"))
        self.assert_good(self.meshard("evaluate", "runs/one", "all"))
        numbers = json.loads((self.folder / "runs/one/evaluation/evaluation.json").read_text())
        self.assertEqual({case["split"] for case in numbers["cases"]}, {"train", "val", "test"} if name != "shapenet_car" else {"train", "test"})
        for case in numbers["cases"]:
            for field in case["fields"].values():
                self.assertTrue(math.isfinite(field["rel_l2"]))
        return numbers

    def lines(self, run):
        return [json.loads(line) for line in (self.folder / f"runs/{run}/metrics.jsonl").read_text().splitlines()]

    def assert_same_losses(self, run, other):
        found = [[line["loss"] for line in self.lines(name) if line["phase"] == "train_step"] for name in (run, other)]
        self.assertGreater(len(found[0]), 4)
        for a, b in zip(*found, strict=True):
            self.assertAlmostEqual(a, b, delta=2e-3 * abs(b))

    def predicted(self, source, *words, to="new.vtp"):
        self.assert_good(self.meshard("predict", "runs/one", source, "-o", to, *words))
        return arrays_of(self.folder / to)


class Recipes(Recipe):
    def test_of_ahmed_bodies(self):
        numbers = self.run_recipe("ahmed_surface", "data.reference.U_inf=[1,0,0]")
        tables = {case["id"]: case["cd"]["table"] for case in numbers["cases"]}
        self.assertEqual(tables, {str(n): 0.3 + 0.01 * n for n in range(1, 13)})
        found = self.predicted(self.root / "run_3/ahmed_3.stl")
        self.assertEqual(len(found["wss"]), 3 * len(found["pressure"]))
        recipe = SOURCE / "apps/recipes/ahmed_surface.yaml"
        self.assert_fails(self.meshard("train", recipe, f"data.root={self.root}"), 2, "data.reference.U_inf must be set")

    def test_of_car_surfaces(self):
        numbers = self.run_recipe("drivaerml_surface")
        self.assertEqual({case["id"]: case["cd"]["table"] for case in numbers["cases"]}, {str(n): 0.3 + 0.01 * n for n in range(1, 13)})
        self.predicted(self.root / "run_3/drivaer_3.stl")

    def test_of_car_volumes(self):
        numbers = self.run_recipe("drivaerml_volume")
        judged = {case["id"]: case for case in numbers["cases"]}
        for case in judged.values():   # validation took its inputs from shards, `predict` takes them from the files
            if case["split"] == "test":
                of_run = next(line for line in self.lines("one") if line["phase"] == "test")["metrics"]["velocity"]["rel_l2"]
                self.assertAlmostEqual(case["fields"]["velocity"]["rel_l2"], of_run, delta=1e-4 * of_run)
        source = self.root / "run_2/volume_2.vtu"
        found = self.predicted(source, "--wall", self.root / "run_2/drivaer_2.stl", "--nproc", 2, to="new.vtu")
        error = sum((a - b) ** 2 for a, b in zip(found["velocity"], found["UMeanTrim"])) / sum(b * b for b in found["UMeanTrim"])
        self.assertAlmostEqual(math.sqrt(error), judged["2"]["fields"]["velocity"]["rel_l2"], delta=1e-4 * math.sqrt(error))
        self.assertEqual([len(found[name]) for name in ("velocity", "pressure", "viscosity")], [3 * 216, 216, 216])

    def test_of_volumes_around_ahmed_bodies(self):
        self.run_recipe("ahmed_volume", "data.reference.U_inf=[1,0,0]")
        found = self.predicted(self.root / "run_3/volume_3.vtu", "--wall", self.root / "run_3/ahmed_3.stl", to="new.vtu")
        self.assertEqual([len(found[name]) for name in ("velocity", "pressure")], [3 * 216, 216])
        recipe = SOURCE / "apps/recipes/ahmed_volume.yaml"
        self.assert_fails(self.meshard("train", recipe, f"data.root={self.root}"), 2, "data.reference.U_inf must be set")

    def test_of_cars_with_their_volumes(self):
        numbers = self.run_recipe("drivaerml_domino", small=SMALL_DOMINO)
        self.assertEqual(set(numbers["cases"][0]["fields"]), {"pressure", "wss"})
        sources = [self.root / f"run_3/{name}" for name in ("boundary_3.vtp", "volume_3.vtu")]
        self.assert_good(self.meshard("predict", "runs/one", *sources, "--wall", self.root / "run_3/drivaer_3.stl", "-o", "predicted"))
        found = arrays_of(self.folder / "predicted/volume_3.vtu")
        self.assertEqual([len(found[name]) for name in ("velocity", "volume_pressure", "viscosity")], [3 * 216, 216, 216])

    def test_of_aerofoils(self):
        self.run_recipe("airfrans")
        name = sorted(path.name for path in self.root.glob("airFoil*"))[0]
        source = self.root / name / f"{name}_internal.vtu"
        slow = self.predicted(source, "--set", "U_inf=40", "--set", "angle=4", to="slow.vtu")
        self.assertEqual(len(slow["velocity"]), 3 * 169)
        self.assert_fails(self.meshard("predict", "runs/one", source, "-o", "none.vtu", "--set", "angle=4"), 2, "U_inf", "--set U_inf=")

    def test_of_simple_cars(self):
        self.run_recipe("shapenet_car")
        found = self.predicted(next(self.root.glob("param0/*/quadpress_smpl.vtk")))
        self.assertEqual(3 * len(found["pressure"]), len(found["Points"]))


class SimulationRecipes(Recipe):
    """Those of simulations, whose records are converted first."""

    def run_simulation_recipe(self, name, fields, *small):
        self.root = self.folder / "data"
        getattr(twins, name)(self.root)
        recipe = SOURCE / f"apps/recipes/{name}.yaml"
        once = [line[4:] for line in recipe.read_text().splitlines() if re.match(r"#   (for|ls) ", line)]
        self.assertEqual(len(once), 2)
        path = f"{PROGRAM.parent}:{os.environ['PATH']}"
        for line in once:
            subprocess.run(["sh", "-ec", line], cwd=self.root, check=True, capture_output=True, env={**os.environ, "PATH": path})
        for num_ranks, run in ((1, "one"), (2, "two")):
            self.assert_good(self.meshard("train", recipe, f"data.root={self.root}", f"run_id={run}", *small, "training.num_epochs=2", "--nproc", num_ranks))
        self.assert_same_losses("one", "two")
        validated = [line for line in self.lines("one") if line["phase"] == "val"]
        self.assertEqual(set(validated[-1]["rollout"]["rel_l2"]), set(fields))
        self.assert_good(self.meshard("train", recipe, f"data.root={self.root}", "--print-config"))
        self.assert_good(self.meshard("predict", "runs/one", self.root / "test_0000.vtkhdf", "--steps", 8, "-o", "test.pvd", "--nproc", 2))
        found = arrays_of(self.folder / "test/test_0008.vtp")
        for field, components in fields.items():
            self.assertEqual(len(found[field]) * 3, len(found["Points"]) * components)

    def test_of_flow_behind_cylinders(self):
        self.run_simulation_recipe("cylinder_flow", {"velocity": 2, "pressure": 1}, "model.processor_size=1", "model.hidden_dim_processor=8")
        # What the converted states hold is what was put into the records.
        generator = random.Random(11)
        runs = [twins.trajectory(generator, {"velocity": 2, "pressure": 1}, 9) for _ in range(2)]
        self.assert_good(self.meshard("convert", self.root / "train_0001.vtkhdf", "--time", "0.03", "-o", "state.vtu"))
        found = arrays_of(self.folder / "state.vtu")
        num_points = len(runs[1]["node_type"][2])
        self.assertEqual([found["Points"][3 * i + c] for i in range(num_points) for c in (0, 1)], [as_float32(v) for v in runs[1]["mesh_pos"][2]])
        self.assertEqual(list(found["connectivity"]), runs[1]["cells"][2])
        self.assertEqual(list(found["node_type"]), runs[1]["node_type"][2])
        for field, components in (("velocity", 2), ("pressure", 1)):
            size = num_points * components
            self.assertEqual(list(found[field]), [as_float32(v) for v in runs[1][field][2][3 * size:4 * size]])

    def test_of_aerofoils_in_compressible_flow(self):
        self.run_simulation_recipe("airfoil", {"velocity": 2, "density": 1, "pressure": 1}, "model.n_layers=1", "model.n_hidden=8", "model.n_head=2",
                                   "model.slice_num=4")


class Records(Case):
    """Files of TensorFlow's records that are damaged."""

    def setUp(self):
        super().setUp()
        twins.cylinder_flow(self.folder / "data")
        self.records, self.meta = self.folder / "data/valid.tfrecord", self.folder / "data/meta.json"

    def assert_refused(self, *texts):
        self.assert_fails(self.meshard("convert", self.records, "-o", "out"), 3, *texts)
        self.assertEqual([path.name for path in (self.folder / "out").glob("*1.vtkhdf")], [])

    def test_that_are_damaged_are_named(self):
        whole, meta = self.records.read_bytes(), self.meta.read_text()
        first = 16 + struct.unpack("<Q", whole[:8])[0]   # bytes of the first record
        for damaged, *texts in ((whole[:first + 5], "record 1", "cut off after 5 bytes"), (whole[:-9], "record 1", "cut off"),
                                (whole[:first + 99] + b"?" + whole[first + 100:], "record 1", "another checksum"),
                                (whole[:first] + b"?" + whole[first + 1:], "record 1", "its length has another checksum"),
                                (whole[:first] + twins.record({"cells": b""}), "record 1", "lacks 'mesh_pos'"),
                                (whole[:first] + twins.record({"cells": b"123"}), "record 1", "'cells' has 3 bytes")):
            self.records.write_bytes(damaged)
            self.assert_refused("valid.tfrecord", *texts)
        self.records.write_bytes(whole)
        for old, new, text in (('"int32"', '"complex64"', "complex64"), ('"static"', '"sometimes"', "'cells' must be static"), ("{", "[", "meta.json"),
                               ('"dt": 0.01', '"dt": -1', "dt is -1"), ("[1, -1, 2]", "[1, -1, 4]", "'mesh_pos' has 392 bytes")):
            self.meta.write_text(meta.replace(old, new, 1))
            self.assert_refused(text)
        self.meta.unlink()
        self.assert_refused("meta.json", "description of the records")

    def test_are_written_into_a_folder(self):
        self.assert_fails(self.meshard("convert", self.records, "-o", "out.vtkhdf"), 2, "valid.tfrecord", "-o FOLDER")
        self.assert_fails(self.meshard("convert", self.records, "-o", "out", "--time", "1"), 2, "--time")
