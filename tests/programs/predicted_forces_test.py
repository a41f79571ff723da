# SPDX-License-Identifier: Apache-2.0
"""`predict --forces` for many shapes: one table, and what is missing said once."""
import csv
import json
import math
import os

from evaluation_test import arrays_of
from runner import PROGRAM, Case
from samples import put_training, write_body

SPEED, AREAS = 30.0, (0.4, 0.8, 1.6, 0.2)
COEFFICIENTS = ["Cd", "Cl", "Cs", "Cd_std", "Cl_std", "Cs_std", "Cd_interval", "Cl_interval", "Cd_head", "Cl_head", "Cd_shape", "Cl_shape", "isolation", "feature_isolation"]
MOMENTS = ["Cmx", "Cmy", "Cmz"]


class PredictedForces(Case):
    def setUp(self):
        super().setUp()
        put_training(self.folder)
        self.inputs = []
        for i in range(len(AREAS)):
            write_body(self.folder / f"boundary_{i}.vtp", (1 + 0.1 * i, 0.4, 0.3))
            self.inputs.append(f"boundary_{i}.vtp")

    def train(self, run, *words):
        self.assert_good(self.meshard("train", "car.yaml", f"run_id={run}", "training.max_steps=2", "--accept-data", *words))

    def predict(self, *words, run="runs/car", inputs=None, **options):
        return self.meshard("predict", run, *(inputs or self.inputs), "-o", "out", "--forces", *words, **options)

    def rows(self, path="table.csv"):
        with open(self.folder / path) as file:
            return list(csv.DictReader(file))

    def integrals(self, name, area):
        """Drag and lift coefficients of what was written, by `meshard forces`, with shear of either sign."""
        result = self.meshard("forces", f"out/{name}", "--pressure", "pressure", "--shear", "wss", "--u-inf", SPEED, "--area", area, "--json")
        self.assert_good(result)
        found = json.loads(result.out)
        return {c: [found[f"{c}_pressure"] + sign * found[f"{c}_viscous"] for sign in (1, -1)] for c in ("Cd", "Cl", "Cs")}

    def assert_right(self, row, name, area):
        for coefficient, expected in self.integrals(name, area).items():
            value = float(row[coefficient])
            self.assertLess(min(abs(value - one) for one in expected), 2e-5 * max(1, abs(value)), f"{name} {coefficient}: {value}, {expected}")

    def test_without_an_area_say_so_once_and_how(self):
        self.train("car")
        for num_ranks in (1, 2):
            result = self.predict("--nproc", num_ranks)
            self.assert_good(result)
            lines = [line for line in result.err.splitlines() if "drag" in line]
            self.assertEqual(len(lines), 1, str(result))
            for word in ("--set U_inf=", "--set area=", "--table"):
                self.assertIn(word, lines[0])
            self.assertNotIn("Cd", result.out)

    def test_take_the_area_for_all_from_set(self):
        self.train("car")
        for num_ranks in (1, 2):
            result = self.predict("--set", "area=0.5", "--set", f"U_inf={SPEED}", "--csv", "new/below/table.csv", "--nproc", num_ranks)
            self.assert_good(result)
            self.assertNotIn("no drag", result.err)
            rows = self.rows("new/below/table.csv")
            self.assertEqual([row["input"] for row in rows], self.inputs)
            self.assertEqual([row["output"] for row in rows], [f"out/{name}" for name in self.inputs])
            self.assertEqual(list(rows[0]), ["input", "output", *COEFFICIENTS, "U_inf", "area", "note", "warnings"])
            for row, name in zip(rows, self.inputs):
                self.assert_right(row, name, 0.5)
                self.assertEqual((row["area"], row["Cd_std"], row["Cd_head"], row["note"]), ("0.5", "", "", ""))

    def test_take_columns_from_a_table(self):
        self.train("car", f"data.reference.U_inf={SPEED}", "data.forces.area=frontal")
        (self.folder / "ids.csv").write_text("id,frontal,remark\n" + "".join(f'{i},{AREAS[i]},"a, b"\n' for i in (2, 0, 1, 3)))
        names = [{"id": name, "frontal": area} for name, area in zip(self.inputs, AREAS)]
        (self.folder / "names.json").write_text(json.dumps({"cases": names}))
        (self.folder / "stems.json").write_text(json.dumps([{**row, "id": row["id"][:-4]} for row in names]))
        last = "runs/car/checkpoints/last.safetensors"   # knows of the run's settings what the run's folder does
        for table, num_ranks, run in (("ids.csv", 1, "runs/car"), ("ids.csv", 1, last), ("names.json", 2, "runs/car"), ("stems.json", 1, "runs/car")):
            self.assert_good(self.predict("--table", table, "--csv", "table.csv", "--nproc", num_ranks, run=run))
            for row, name, area in zip(self.rows(), self.inputs, AREAS):
                self.assert_right(row, name, area)
                self.assertEqual(float(row["frontal"]), area)
                self.assertNotIn("remark", row)

    def test_of_the_table_count_before_those_of_set(self):
        self.train("car", f"data.reference.U_inf={SPEED}")
        (self.folder / "t.csv").write_text("id,area\n" + "".join(f"{i},{AREAS[i] if i < 3 else ''}\n" for i in range(4)))
        self.assert_good(self.predict("--table", "t.csv", "--set", "area=5", "--csv", "table.csv"))
        for row, name, area in zip(self.rows(), self.inputs, (*AREAS[:3], 5)):
            self.assert_right(row, name, area)

    def test_have_moments_where_a_length_is_said(self):
        self.train("car", f"data.reference.U_inf={SPEED}", "data.forces.area=0.5")
        center, length = (0.3, -0.2, 0.1), 1.7
        told = [word for name, x in zip("xyz", center) for word in ("--set", f"moment_{name}={x}")]
        for num_ranks in (1, 2):
            result = self.predict("--csv", "table.csv", "--set", f"moment_length={length}", *told, "--nproc", num_ranks)
            self.assert_good(result)
            rows = self.rows()
            self.assertEqual(list(rows[0])[2:11], ["Cd", "Cl", "Cs", *MOMENTS, "Cd_std", "Cl_std", "Cs_std"])
            for row, name in zip(rows, self.inputs):
                self.assertIn(f"Cmz {float(row['Cmz']):.5f}", result.out)
                found = [json.loads(self.meshard("forces", f"out/{name}", "--pressure", "pressure", "--shear", "wss", "--shear-sign", sign, "--u-inf", SPEED,
                                                 "--area", 0.5, "--length", length, f"--center={','.join(map(str, center))}", "--json").out)
                         for sign in ("openfoam", "traction")]
                one = min(found, key=lambda one: abs(one["Cd"] - float(row["Cd"])))
                for names, expected in ((["Cd"], [one["Cd"]]), (["Cs"], [one["Cs"]]), (MOMENTS, one["Cm"])):
                    for name, value in zip(names, expected, strict=True):
                        self.assertAlmostEqual(float(row[name]), value, delta=1e-10 * max(1, abs(value)), msg=name)
        # A run that says them is told nothing; where a column lacks a number, the other coefficients stay.
        words = ("data.forces.length=wheelbase", "data.forces.center=[axle, 0, 0]")
        self.train("told", f"data.reference.U_inf={SPEED}", "data.forces.area=0.5", *words)
        (self.folder / "axles.csv").write_text("id,wheelbase,axle\n" + "".join(f"{i},1.7,{'' if i == 2 else 0.3}\n" for i in range(4)))
        result = self.predict("--csv", "told.csv", "--table", "axles.csv", "--set", "axle=0", run="runs/told", inputs=self.inputs[:2])
        self.assert_good(result)
        self.assertTrue(all(row["Cmy"] and row["wheelbase"] == "1.7" for row in self.rows("told.csv")))
        result = self.predict("--csv", "told.csv", "--table", "axles.csv", run="runs/told")
        self.assert_good(result)
        self.assertIn("boundary_2.vtp: no moments", result.err)
        self.assertIn("'axle'", result.err)
        self.assertEqual([bool(row["Cmy"]) for row in self.rows("told.csv")], [True, True, False, True])
        self.assertTrue(all(row["Cd"] for row in self.rows("told.csv")))
        self.assertIn("'moment_length'", self.predict("--set", "moment_length=0").err)

    def test_are_divided_by_what_the_fields_are_measured_by(self):
        """Told numbers take the place of the run's for fields and coefficients alike."""
        write_body(self.folder / "open.vtp", is_open=True)
        names = ["Cd", "Cl", "Cs", *MOMENTS]
        words = ("data.fields.pressure.kind=static", "data.reference={U_inf: [24, 0, 18], rho: 1.2, p_inf: 5}", "data.forces={area: 0.5, length: 1.7, center: [0.3, 0, 0]}")
        self.train("divided", "data.targets=nondimensional", *words)
        self.train("physical", *words)

        def found(*told, run="runs/divided"):
            result = self.meshard("predict", run, "open.vtp", "-o", "out.vtp", "--overwrite", "--forces", "--json", *told)
            self.assert_good(result)
            one, = json.loads(result.out)["predictions"]
            return [one[name] for name in names], one, arrays_of(self.folder / "out.vtp")

        def assert_near(values, expected):
            for value, one in zip(values, expected, strict=True):
                self.assertAlmostEqual(value, one, delta=2e-5 * max(map(abs, expected)))

        (self.folder / "t.csv").write_text("id,U_inf,rho,p_inf\nopen,60,2.4,1005\n")
        own, _, fields = found()
        for told in (("--table", "t.csv"), ("--set", "U_inf=60", "--set", "rho=2.4", "--set", "p_inf=1005")):
            values, one, other = found(*told)
            assert_near(values, own)
            assert_near([p - 1005 for p in other["pressure"]], [8 * (p - 5) for p in fields["pressure"]])
            self.assertIn("open.vtp: U_inf is 60, in place of 30 in the run's settings.", one["warnings"])
            self.assertEqual(one["values"], {"U_inf": 60, "rho": 2.4, "p_inf": 1005})
        result = self.meshard("forces", "out.vtp", "--pressure", "pressure", "--shear", "wss", "--pressure-kind", "static", "--rho", 2.4, "--p-inf", 1005,
                              "--u-inf", "48,0,36", "--area", 0.5, "--length", 1.7, "--center", "0.3,0,0", "--shear-sign", "traction", "--json")
        by_verb = json.loads(result.out)
        self.assertAlmostEqual(by_verb["Cl_pressure"] + by_verb["Cl_viscous"] * math.copysign(1, by_verb["Cd_viscous"]), values[1], delta=1e-5 * abs(values[1]))
        assert_near(found("--set", "area=0.25")[0], [2 * value for value in own])
        assert_near(found("--set", "moment_length=3.4")[0][3:], [value / 2 for value in own[3:]])
        self.assertGreater(abs(found("--set", "moment_x=1")[0][4] - own[4]), 0.01 * abs(own[4]))
        # Fields in their units stay, and coefficients follow.
        own = found(run="runs/physical")[0]
        assert_near(found("--set", "U_inf=60", "--set", "rho=2.4", run="runs/physical")[0], [value / 8 for value in own])

        # A quantity that has columns is told by these.
        self.train("columns", "data.targets=nondimensional", "data.reference={U_inf: [speed, 0, 0]}")
        refused = self.meshard("predict", "runs/columns", "open.vtp", "-o", "new.vtp", "--set", "U_inf=60")
        self.assert_fails(refused, 2, "--set U_inf: the model asks for no such value", "speed")

    def test_without_a_free_stream_that_makes_lift_leave_the_fields(self):
        self.train("car", "data.reference.U_inf=[u, 0, w]", "data.forces.area=0.5")
        for u, w, text in ((0, 30, "flows along data.forces.up"), (0, 0, "does not flow"), (30, 0, "")):
            result = self.predict("--set", f"u={u}", "--set", f"w={w}", "--csv", "table.csv")
            self.assert_good(result)
            self.assertIn(text, result.err)
            for row in self.rows():
                self.assertEqual((row["Cd"] == "", text in row["note"]), (bool(text), True))
                self.assertIn(b"wss", (self.folder / row["output"]).read_bytes())
                (self.folder / row["output"]).unlink()

    def test_as_json_are_the_table(self):
        self.train("car", f"data.reference.U_inf={SPEED}")
        self.train("other", f"data.reference.U_inf={SPEED}", "seed=7")
        result = self.meshard("predict", "runs/car", "runs/other", *self.inputs, "-o", "out", "--forces", "--set", "area=0.5", "--json", "--csv", "table.csv")
        self.assert_good(result)
        found = json.loads(result.out)
        self.assertEqual([os.path.basename(os.path.dirname(os.path.dirname(model))) for model in found["models"]], ["car", "other"])
        for one, row in zip(found["predictions"], self.rows(), strict=True):
            self.assertEqual((one["input"], one["output"]), (row["input"], row["output"]))
            self.assertEqual(one["values"], {"area": 0.5})
            for name in COEFFICIENTS:
                self.assertEqual(one[name], float(row[name]) if row[name] else None)
            self.assertGreater(one["Cd_std"], 0)
        alone = json.loads(self.meshard("predict", "runs/car", *self.inputs, "-o", "out", "--json").out)
        self.assertEqual([one["Cd"] for one in alone["predictions"]], [None] * len(AREAS))

    def test_of_damaged_inputs_are_rows_with_a_note(self):
        self.train("car", f"data.reference.U_inf={SPEED}")
        (self.folder / "boundary_1.vtp").write_text("no mesh")
        for num_ranks in (1, 2):
            result = self.predict("--set", "area=0.5", "--csv", "table.csv", "--json", "--nproc", num_ranks)
            self.assertEqual(result.code, 3, str(result))
            rows = self.rows()
            self.assertEqual([bool(row["Cd"]) for row in rows], [True, False, True, True])
            self.assertEqual(rows[1]["output"], "")
            self.assertIn("VTK XML", rows[1]["note"])
            found = json.loads(result.out)["predictions"]
            self.assertIn("VTK XML", found[1]["note"])
            # What is doubtful of an input is said and stands in its row.
            for row, one, name in zip(rows, found, self.inputs, strict=True):
                self.assertEqual(row["warnings"], "; ".join(one["warnings"]))
                self.assertTrue(all(text.startswith(f"{name}: ") and f"warning: {text}\n" in result.err for text in one["warnings"]), str(result))
            self.assertIn("boundary_0.vtp: beyond the training cases", rows[0]["warnings"])
            self.assertEqual([row["warnings"] for row in rows[1:3]], ["", ""])

    def test_refuse_tables_that_do_not_fit_before_anything_is_written(self):
        self.train("car", f"data.reference.U_inf={SPEED}")
        (self.folder / "few.csv").write_text("id,area\n0,1\n1,1\n")
        (self.folder / "no_id.csv").write_text("name,area\n0,1\n")
        before = self.names()
        for num_ranks in (1, 2):
            self.assert_fails(self.predict("--table", "few.csv", "--nproc", num_ranks), 3, "few.csv", "boundary_2.vtp", "'2'")
        self.assert_fails(self.predict("--table", "no_id.csv"), 3, "no_id.csv", "id")
        self.assert_fails(self.predict("--table", "none.csv"), 3, "none.csv does not exist")
        self.assert_fails(self.predict("--set", "aera=1"), 2, "aera", "area")
        self.assert_fails(self.meshard("predict", "runs/car", *self.inputs, "-o", "out", "--csv", "t.csv"), 2, "--forces")
        self.assert_fails(self.predict("--set", "area=1", "--table", "few.csv", "--csv", "few.csv", inputs=self.inputs[:2]), 2, "few.csv")
        self.assertEqual(self.names(), before)

    def test_that_cannot_be_said_for_other_reasons_are_said_once(self):
        self.train("car", "~data.fields", "data.fields.pressure.from=pMean", f"data.reference.U_inf={SPEED}", "data.forces.area=1")
        result = self.predict()
        self.assert_good(result)
        self.assertEqual(len([line for line in result.err.splitlines() if "no drag and lift" in line]), 1, str(result))
        self.assertIn("kind", result.err)
