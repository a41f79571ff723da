# SPDX-License-Identifier: Apache-2.0
"""What `train` finds out about its data before the first step."""
import json
import shutil

from evaluation_test import area_vectors, arrays_of
from runner import Case
from samples import put_training

import math

FLOW = ("data.reference.U_inf=[40, 0, 0]", "data.reference.rho=1.25", "data.forces.area=0.1")


class DataCheck(Case):
    """Bodies whose table has the coefficients of their fields, integrated here."""

    def setUp(self):
        super().setUp()
        put_training(self.folder)
        self.table = json.loads((self.folder / "cases/cases.json").read_text())
        for row in self.table["cases"]:
            arrays = arrays_of(self.body(row["id"]))
            vectors = area_vectors(arrays)
            forces = [sum(-p * v[axis] - shear * math.hypot(*v) for p, v, shear in
                          zip(arrays["pMean"], vectors, arrays["wallShearStressMean"][axis::3])) for axis in range(3)]
            row.update(Cd=forces[0] / (0.5 * 40 * 40 * 0.1), Cl=forces[2] / (0.5 * 40 * 40 * 0.1))
        self.write_table()

    def body(self, number):
        return self.folder / f"cases/run_{number}/boundary_{number}.vtp"

    def write_table(self):
        (self.folder / "cases/cases.json").write_text(json.dumps(self.table))

    def found(self, run="car"):
        lines = [json.loads(line) for line in (self.folder / f"runs/{run}/metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["phase"] == "data"][0]

    def test_says_what_was_found_on_any_number_of_ranks(self):
        for ranks in (1, 2, 3):
            result = self.meshard("train", "car.yaml", *FLOW, f"run_id=r{ranks}", "training.max_steps=1", "--nproc", ranks)
            self.assert_good(result)
            self.assertIn("data: normals point out of the body\n", result.err)
            self.assertIn("apart at most (4 cases", result.err)
            found = self.found(f"r{ranks}")
            self.assertEqual((found["normals"], found["shear"], found["cd_closure"]["n"]), (1, -1, 4))
            self.assertLess(found["cd_closure"]["max_abs"], 1e-6)
            self.assertEqual(found["contradictions"], [])

    def test_stops_a_run_whose_forces_do_not_close_unless_they_are_accepted(self):
        self.table["cases"][1]["Cd"] += 0.1
        self.write_table()
        self.assert_fails(self.meshard("train", "car.yaml", *FLOW), 3, "apart in 1 of 4 cases: 2 (", "--accept-data")
        self.assertFalse((self.folder / "runs/car/checkpoints").exists())
        result = self.meshard("train", "car.yaml", *FLOW, "training.max_steps=1", "--accept-data", "--nproc", 2)
        self.assert_good(result)
        self.assertIn("data: accepted, though: Cd", result.err)
        self.assert_fails(self.meshard("train", "--resume", "runs/car", "output_dir=elsewhere"), 2, "output_dir=elsewhere", "copy the folder and resume the copy")
        self.assertFalse((self.folder / "elsewhere").exists())
        self.assert_good(self.meshard("train", "--resume", "runs/car", "training.max_steps=2"))

    def test_names_the_kind_with_which_they_close(self):
        result = self.meshard("train", "car.yaml", *FLOW, "data.fields.pressure.kind=static", "data.reference.rho=3")
        self.assert_fails(result, 3, "With data.fields.pressure.kind=kinematic they close: set it.")

    def test_finds_a_case_of_the_test_among_those_that_train(self):
        shutil.copy(self.body("2"), self.body("4"))
        self.table["cases"][3].update({name: self.table["cases"][1][name] for name in ("Cd", "Cl")})
        self.write_table()
        self.assert_fails(self.meshard("train", "car.yaml", *FLOW), 3, "in two splits", "2 (train) and 4 (test)", "data.split")
