# SPDX-License-Identifier: Apache-2.0
"""Drag and lift by the shape alone, beside those of the fields (`cd_shape`, `cl_shape`), and what a case's distance from the training cases tells."""
import csv
import json
import re

from samples import write_body
from training_modes_test import Modes

FORCES = ("data.reference.U_inf=[30, 0, 0]", "data.forces.area=0.4", "--accept-data")
NUM_CASES = 13


class ShapeCoefficients(Modes):
    timeout = 300

    def setUp(self):
        """Ellipsoids of other lengths, whose Cd of the table is a function of them: twelve train, one is for validation."""
        super().setUp()
        rows = []
        for i in range(NUM_CASES):
            case, length = str(i + 1), 0.8 + 0.05 * ((5 * i) % NUM_CASES)
            folder = self.folder / f"cases/run_{case}"
            folder.mkdir(exist_ok=True)
            write_body(folder / f"boundary_{case}.vtp", (length, 0.4, 0.3))
            rows.append({"id": case, "split": "val" if i == 6 else "train", "speed": 30, "Cd": 0.5 - 0.2 * length, "Cl": 0.1 * length})
        (self.folder / "cases/cases.json").write_text(json.dumps({"cases": rows}))
        self.truth = rows[6]

    def judged(self, path):
        with open(self.folder / path) as file:
            return next(row for row in csv.DictReader(file) if row["id"] == self.truth["id"])

    def test_are_judged_said_and_kept_on_any_number_of_ranks(self):
        for ranks in (1, 2, 3):
            self.train(f"run{ranks}", ranks, *FORCES)
            line = [line for line in self.lines(f"run{ranks}") if line["phase"] == "val"][-1]
            row = self.judged(f"runs/run{ranks}/val_cases.csv")
            for name, column in (("cd", "Cd"), ("cl", "Cl")):
                found = float(row[f"{name}.shape"])
                self.assertAlmostEqual(found, self.truth[column], delta=0.005)
                self.assertAlmostEqual(line["forces"][f"{name}_shape"]["mae"], abs(found - self.truth[column]), delta=1e-12)
                self.assertAlmostEqual(found, float(self.judged("runs/run1/val_cases.csv")[f"{name}.shape"]), delta=1e-9, msg=f"{ranks} ranks")
        expected = self.judged("runs/run1/val_cases.csv")

        for ranks in (1, 2):
            result = self.meshard("evaluate", "runs/run2", "val", "-o", f"judged{ranks}", "--nproc", ranks)
            self.assert_good(result)
            self.assertIn("cd_shape", result.out)
            self.assertAlmostEqual(float(self.judged(f"judged{ranks}/cases.csv")["cd.shape"]), float(expected["cd.shape"]), delta=1e-6)
            result = self.meshard("predict", "runs/run1", "runs/run2", "cases/run_7/boundary_7.vtp", "-o", f"{ranks}.vtp", "--forces", "--nproc", ranks)
            self.assert_good(result)
            said = dict(re.findall(r"(C[dl]) ([-0-9.]+)[^\n]* \(by the shape alone\)", result.out))
            self.assertAlmostEqual(float(said["Cd"]), float(expected["cd.shape"]), delta=2e-4)
            self.assertAlmostEqual(float(said["Cl"]), float(expected["cl.shape"]), delta=2e-4)

    def test_go_on_after_a_stop(self):
        self.train("whole", 1, *FORCES)
        self.train("parts", 2, *FORCES, "training.max_steps=5")
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "training.max_steps=0"))
        whole, parts = (float(self.judged(f"runs/{run}/val_cases.csv")["cd.shape"]) for run in ("whole", "parts"))
        self.assertAlmostEqual(parts, whole, delta=1e-9)

    def test_are_told_of_constants(self):
        path = self.folder / "cases/cases.json"
        rows = json.loads(path.read_text())["cases"]
        for i, row in enumerate(rows):
            row["level"] = (3 * i % NUM_CASES) / NUM_CASES
            row["Cd"] += 0.3 * row["level"]
        path.write_text(json.dumps({"cases": rows}))
        errors = {}
        for name, words in (("told", ("data.constants=[level]",)), ("untold", ())):
            self.train(name, 2, *FORCES, *words)
            errors[name] = abs(float(self.judged(f"runs/{name}/val_cases.csv")["cd.shape"]) - rows[6]["Cd"])
        self.assertLess(errors["told"], 0.02)
        self.assertGreater(errors["untold"], 0.03)

    def test_are_silent_where_drag_is_not_known(self):
        self.train("plain", 1, "--accept-data")
        self.assertNotIn("forces", [line for line in self.lines("plain") if line["phase"] == "val"][-1])
        few = "data.split={train: ['1', '2', '3', '4', '5', '6', '8', '9', '10'], val: ['7']}"
        self.train("few", 1, *FORCES, "~data.split", few)
        self.assertNotIn("cd_shape", [line for line in self.lines("few") if line["phase"] == "val"][-1]["forces"])


class Trust(Modes):
    """How far the truth may lie from a coefficient, and a shape from those of training."""

    def setUp(self):
        """Ellipsoids: twelve train, ten are for validation."""
        super().setUp()
        rows = []
        for i in range(22):
            length = 0.8 + 0.03 * ((5 * i) % 22)
            folder = self.folder / f"cases/run_{i + 1}"
            folder.mkdir(exist_ok=True)
            write_body(folder / f"boundary_{i + 1}.vtp", (length, 0.4, 0.3))
            rows.append({"id": str(i + 1), "split": "val" if i % 11 in (1, 3, 5, 7, 9) else "train", "speed": 30, "Cd": 0.5 - 0.2 * length, "Cl": 0.1 * length})
        (self.folder / "cases/cases.json").write_text(json.dumps({"cases": rows}))
        write_body(self.folder / "needle.vtp", (3, 0.2, 0.3))

    def errors(self, run):
        with open(self.folder / f"runs/{run}/val_cases.csv") as file:
            return {row["id"]: float(row["cd.predicted"]) - float(row["cd.table"]) for row in csv.DictReader(file)}

    def test_is_said_by_validation_cases_and_by_the_nearest_training_case(self):
        for seed, ranks in ((1, 1), (2, 2)):
            self.train(f"run{seed}", ranks, *FORCES, f"seed={seed}")
        of_runs = [self.errors("run1"), self.errors("run2")]
        one = sorted(abs(error) for error in of_runs[0].values())
        both = sorted(abs(of_runs[0][case] + of_runs[1][case]) / 2 for case in of_runs[0])   # the same cases, of which each counts once
        self.assertEqual((len(one), len(both)), (10, 10))
        self.assert_good(self.meshard("evaluate", "runs/run1", "val", "-o", "judged"))
        judged = json.loads((self.folder / "judged/evaluation.json").read_text())["splits"]["val"]["cd_table"]
        self.assertAlmostEqual(judged["interval"], one[9], delta=1e-6)   # ceil(0.9 * 11) = 10 of 10
        self.assertEqual(judged["coverage"], 1)

        inputs = ("cases/run_1/boundary_1.vtp", "cases/run_2/boundary_2.vtp", "needle.vtp")
        for ranks in (1, 2):
            result = self.meshard("predict", "runs/run1", "runs/run2", *inputs, "-o", f"out{ranks}", "--forces", "--csv", f"{ranks}.csv", "--nproc", ranks)
            self.assert_good(result)
            with open(self.folder / f"{ranks}.csv") as file:
                learnt, held_out, needle = csv.DictReader(file)
            self.assertAlmostEqual(float(needle["Cd_interval"]), both[9], delta=1e-6)
            self.assertAlmostEqual(float(learnt["isolation"]), 0, delta=1e-6)
            self.assertLess(float(held_out["isolation"]), 2)
            self.assertGreater(float(needle["isolation"]), 10)
            seen = [float(one["feature_isolation"]) for one in (learnt, held_out, needle)]
            self.assertLess(max(seen[:2]), 5)
            self.assertGreater(seen[2], 5)
            warned = [line for line in result.err.splitlines() if "do not rely" in line]
            self.assertEqual(len(warned), 1, result.err)
            self.assertIn("needle.vtp: its shape and constants lie", warned[0])
