# SPDX-License-Identifier: Apache-2.0
"""Drag and lift by a head of the model beside its fields (`training.coefficient_weights`)."""
import csv
import json
import re
import struct

from training_modes_test import Modes

HEAD = ("training.coefficient_weights=[0.5, 0.2]", "training.coefficient_features=8", "training.num_epochs=4")
COLUMNS = {"1": (0.29, 0.20), "2": (0.31, 0.15), "3": (0.33, 0.10), "4": (0.33, 0.12)}


class CoefficientHead(Modes):
    timeout = 300

    def setUp(self):
        super().setUp()
        path = self.folder / "cases/cases.json"
        table = json.loads(path.read_text())
        for row in table["cases"]:
            row["Cd"], row["Cl"] = COLUMNS[row["id"]]
        path.write_text(json.dumps(table))

    def losses(self, run):
        return [line["loss"] for line in self.lines(run) if line["phase"] == "train_step"]

    def numbers(self, run, checkpoint="last"):
        arrays = self.results(run)[1 if checkpoint == "last" else 2]
        return {name: struct.unpack(f"<{len(content) // 4}f", content) for name, content in arrays.items()}

    def test_is_the_same_on_any_number_of_ranks(self):
        for name, words in (("all", ()), ("some", ("data.sampling_resolution=60",)), ("cut", ("parallel.parameters=sharded",))):
            for ranks in (1, 2, 3):
                self.train(f"{name}{ranks}", ranks, *HEAD, *words, "data.parts=5")
            expected = self.numbers(f"{name}1")
            self.assertEqual(len(expected["coefficients.out.bias"]), 2)
            for ranks in (2, 3):
                for a, b in zip(self.losses(f"{name}1"), self.losses(f"{name}{ranks}"), strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-3 * abs(a), msg=f"{name} on {ranks} ranks")
                found = self.numbers(f"{name}{ranks}")
                for key, values in expected.items():
                    if key.startswith("coefficients."):
                        self.assertLess(max(abs(a - b) for a, b in zip(values, found[key])), 2e-3, f"{name} on {ranks} ranks: {key}")

    def test_gives_the_same_bits_in_exact_mode_and_after_a_stop(self):
        for ranks in (1, 2):
            self.train(f"exact{ranks}", ranks, *HEAD, "training.exact=true")
        self.assertEqual(self.losses("exact1"), self.losses("exact2"))
        one, two = self.results("exact1")[1], self.results("exact2")[1]
        self.assertEqual([name for name in one if one[name] != two[name]], [])
        self.train("parts", 2, *HEAD, "training.exact=true", "training.max_steps=5")
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "--nproc", 2, "training.max_steps=0"))
        self.assertEqual(self.results("parts")[1], self.results("exact2")[1])

    def test_learns_the_columns_of_the_table(self):
        # Told the speeds, by which the cases differ more than by their shapes: else they take longer to tell apart.
        self.train("learnt", 1, *HEAD, "training.num_epochs=400", "training.coefficient_weights=[1, 1]", "training.optimizer.lr=3e-3", "data.constants=[speed]")
        result = self.meshard("evaluate", "runs/learnt", "train", "-o", "judged", "--nproc", 2)
        self.assert_good(result)
        self.assertIn("cd_head", result.out)
        with open(self.folder / "judged/cases.csv") as file:
            rows = {row["id"]: row for row in csv.DictReader(file)}
        self.assertEqual(set(rows), {"1", "2", "3"})
        for case, row in rows.items():
            self.assertAlmostEqual(float(row["cd.head"]), COLUMNS[case][0], delta=0.01)
            self.assertAlmostEqual(float(row["cl.head"]), COLUMNS[case][1], delta=0.03)
        summary = json.loads((self.folder / "judged/evaluation.json").read_text())["splits"]["train"]["cd_head"]
        errors = [abs(float(row["cd.head"]) - COLUMNS[case][0]) for case, row in rows.items()]
        self.assertAlmostEqual(summary["mae"], sum(errors) / 3, delta=1e-9)

    def test_is_judged_beside_the_fields_and_written_by_predict(self):
        self.train("head", 2, *HEAD, "data.reference.U_inf=[30, 0, 0]", "data.forces.area=0.4", "data.forces.length=2", "--accept-data")
        line = next(line for line in self.lines("head") if line["phase"] == "test")
        self.assertEqual(sorted(line["forces"]), ["cd", "cd_head", "cd_table", "cl", "cl_head", "cl_table", "cmx", "cmy", "cmz", "cs"])
        with open(self.folder / "runs/head/test_cases.csv") as file:
            row, = csv.DictReader(file)
        self.assertAlmostEqual(line["forces"]["cd_head"]["mae"], abs(float(row["cd.head"]) - 0.33), delta=1e-12)
        self.assertAlmostEqual(line["forces"]["cmy"]["mae"], abs(float(row["cmy.error"])), delta=1e-12)
        said = []
        for ranks, output in ((1, "one.vtp"), (2, "two.vtp")):
            result = self.meshard("predict", "runs/head", "cases/run_4/boundary_4.vtp", "-o", output, "--nproc", ranks)
            self.assert_good(result)
            said.append([float(text) for text in re.findall(r"C[dl] ([-0-9.]+) \(by the model's head\)", result.out)])
            info = self.meshard("info", output)
            self.assertIn("Cd_head", info.out)
        best = min((line for line in self.lines("head") if line["phase"] == "train"), key=lambda one: one["loss"])
        self.assertEqual(len(said[0]), 2)
        for a, b in zip(*said):
            self.assertAlmostEqual(a, b, delta=2e-5)
        if best["epoch"] == 4:   # then `best` is what the test has judged
            self.assertAlmostEqual(said[0][0], float(row["cd.head"]), delta=2e-5)

    def test_off_changes_nothing(self):
        self.train("plain", 1)
        self.train("off", 1, "training.coefficient_weights=[0, 0]")
        self.assertEqual(self.results("off"), self.results("plain"))
        self.assertFalse(any(name.startswith("coefficients") for name in self.results("plain")[1]))

    def test_refuses_what_it_cannot_learn(self):
        (self.folder / "cases/cases.json").write_text(json.dumps({"cases": [{"id": case, "split": "train"} for case in COLUMNS]}))
        self.assert_fails(self.meshard("train", "car.yaml", *HEAD), 3, "training.coefficient_weights", "column Cd")
        self.assert_fails(self.meshard("train", "car.yaml", "training.coefficient_weights=[1]"), 2, "expected 2 numbers")
