# SPDX-License-Identifier: Apache-2.0
"""Several data sets in one run: the same as one set of the same cases, their shares on any number of ranks, their metrics apart."""
import csv
import json
import shutil

from training_modes_test import Modes

SETS = ("~data.split.column", "data.split={train: ['one:1', 'one:2', 'two:3'], test: ['two:4']}", "data.sets.one.root=a", "data.sets.two.root=b")


class DataSets(Modes):
    timeout = 200

    def setUp(self):
        super().setUp()
        for folder, numbers in (("a", (1, 2)), ("b", (3, 4))):
            for number in numbers:
                shutil.copytree(self.folder / f"cases/run_{number}", self.folder / f"cases/{folder}/run_{number}")
            shutil.copy(self.folder / "cases/cases.json", self.folder / f"cases/{folder}/cases.json")

    def order(self, run):
        return [line["case"] for line in self.lines(run) if line["phase"] == "train_step"]

    def losses(self, run):
        return [line["loss"] for line in self.lines(run) if line["phase"] == "train_step"]

    def test_without_shares_are_one_set_of_the_same_cases(self):
        self.train("one", 1, "training.exact=true")
        self.train("sets", 1, "training.exact=true", *SETS)
        self.assertEqual(self.results("sets"), self.results("one"))
        self.assertEqual(set(self.order("sets")), {"one:1", "one:2", "two:3"})
        self.train("alone", 1, "~data.split.column", "data.split={train: ['1', '2']}", "training.max_steps=1")
        (of_sets,), (alone,) = ([line for line in self.lines(run) if line["phase"] == "dataset"] for run in ("sets", "alone"))
        self.assertEqual(set(of_sets["sets"]), {"one", "two"})
        for name in ("mean", "std"):
            for found, expected in zip(of_sets["sets"]["one"][name], alone[name], strict=True):
                self.assertAlmostEqual(found, expected, delta=1e-5 * abs(expected) + 1e-9)
        self.train("own", 1, "training.exact=true", "~data.split", *SETS[2:], "data.sets.two.split={train: ['3'], test: ['4']}")
        self.assertEqual(self.results("own"), self.results("one"))

    def test_give_their_shares_on_any_number_of_ranks_and_after_a_stop(self):
        words = (*SETS, "data.sets.one.share=1", "data.sets.two.share=2", "data.sampling_resolution=60", "training.num_epochs=3")
        for ranks in (1, 2, 3):
            result = self.train(f"ranks{ranks}", ranks, *words)
        self.assertIn("2 of the 3 cases of an epoch are of two, which has 1", result.out + result.err)
        order = self.order("ranks1")
        self.assertEqual([order[i:i + 3].count("two:3") for i in (0, 3, 6)], [2, 2, 2])
        self.assertEqual({order.count("one:1"), order.count("one:2")}, {1, 2})
        for ranks in (2, 3):
            self.assertEqual(self.order(f"ranks{ranks}"), order)
            for a, b in zip(self.losses("ranks1"), self.losses(f"ranks{ranks}"), strict=True):
                self.assertAlmostEqual(a, b, delta=2e-3 * abs(a))
        self.train("parts", 2, *words, "training.max_steps=4")
        self.assert_fails(self.meshard("train", "--resume", "runs/parts", "--nproc", 2, "training.max_steps=0", "data.sets.two.share=3"), 3, "shares of data.sets were [1.0,2.0]")
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "--nproc", 2, "training.max_steps=0"))
        self.assertEqual(self.losses("parts"), self.losses("ranks2"))
        self.assertEqual(self.results("parts")[1], self.results("ranks2")[1])

    def test_are_judged_apart(self):
        self.train("judged", 2, "~data.split", *SETS[2:], "data.sets.one.split={train: ['1'], val: ['2']}", "data.sets.two.split={train: ['3'], val: ['4']}")
        line = next(line for line in reversed(self.lines("judged")) if line["phase"] == "val")
        with open(self.folder / "runs/judged/val_cases.csv") as file:
            rows = {row["id"]: row for row in csv.DictReader(file)}
        self.assertEqual(set(rows), {"one:2", "two:4"})
        for name, case in (("one", "one:2"), ("two", "two:4")):
            for field in ("pressure", "wss"):
                self.assertEqual(line["sets"][name]["errors"][field]["rel_l2"], float(rows[case][f"{field}.rel_l2"]))
        self.assertAlmostEqual(line["errors"]["wss"]["rel_l2"], sum(line["sets"][name]["errors"]["wss"]["rel_l2"] for name in ("one", "two")) / 2)
        result = self.meshard("evaluate", "runs/judged", "val", "-o", "judged")
        self.assert_good(result)
        self.assertIn("two (1 case): rel_l2 pressure", result.out)
        found = json.loads((self.folder / "judged/evaluation.json").read_text())["splits"]["val"]["sets"]
        self.assertAlmostEqual(found["two"]["fields"]["wss"]["rel_l2"]["mean"], line["sets"]["two"]["errors"]["wss"]["rel_l2"], delta=1e-4)

    def test_tell_the_columns_of_their_own_tables(self):
        words = ("training.exact=true", "data.constants=[rho]", "training.max_steps=2")
        self.train("common", 1, *words, *SETS)
        self.train("own", 1, *words, *SETS, "~data.cases", "data.sets.one.cases=cases.json", "data.sets.two.cases=cases.json")
        self.assertEqual(self.results("own"), self.results("common"))

    def test_have_rows_in_tables_of_predictions_by_their_ids(self):
        shutil.copytree(self.folder / "cases/run_1", self.folder / "cases/b/run_1")
        self.train("told", 1, *SETS, "data.constants=[rho]", "training.max_steps=1")
        shutil.copy(self.folder / "cases/run_1/boundary_1.vtp", self.folder / "boundary_1.vtp")

        def rho(source, rows, code=0, *texts):
            (self.folder / "t.csv").write_text("id,rho\n" + "".join(f"{name},{value}\n" for name, value in rows.items()))
            result = self.meshard("predict", "runs/told", source, "-o", "out.vtp", "--overwrite", "--table", "t.csv", "--json")
            if code:
                return self.assert_fails(result, code, *texts)
            self.assert_good(result)
            return json.loads(result.out)["predictions"][0]["values"]["rho"]

        both = {"one:1": 1.1, "two:1": 1.3}
        self.assertEqual(rho("cases/a/run_1/boundary_1.vtp", both), 1.1)
        self.assertEqual(rho("cases/b/run_1/boundary_1.vtp", both), 1.3)
        self.assertEqual(rho("boundary_1.vtp", {"two:1": 1.3, "2": 5}), 1.3)
        self.assertEqual(rho("cases/b/run_1/boundary_1.vtp", {"1": 1.2, "2": 5}), 1.2)
        self.assertEqual(rho("boundary_1.vtp", {**both, "boundary_1": 1.2}), 1.2)
        rho("boundary_1.vtp", both, 3, "rows of several data.sets for boundary_1.vtp, 'one:1', 'two:1'", "'boundary_1.vtp', as its id")
        rho("cases/a/run_1/boundary_1.vtp", {"two:1": 1.3}, 3, "no row for", "'one:1'")

    def test_that_contradict_themselves_are_refused(self):
        def refused(code, words, *texts):
            self.assert_fails(self.meshard("train", "car.yaml", "~data.split", *SETS[2:], *words), code, *texts)

        refused(2, ("data.sets.two.share=2",), "data.sets.one has no share")
        refused(2, ("data.split.train=0.5", "data.sets.one.split.train=0.5"), "data.sets.one.split and data.split exclude each other")
        refused(2, ("data.split.manifest=m.json",), "give each its own split")
        refused(3, ("data.sets.two.split.train=['33']",), "data.sets.two: ", "'33'")
        refused(3, ("data.sets.two.split.test=1.0", "data.sets.two.share=2", "data.sets.one.share=2"), "data.sets.two has a share", "none of its cases trains")
        refused(3, ("data.sets.two.files=none_*.vtp",), "data.sets.two: no file matches")
        refused(3, ("data.sets.two.root=c",), "data.sets.two: ", "there is no folder")
        refused(2, ("~data.cases", "data.sets.one.cases=cases.json", "data.constants=[rho]"), "data.constants needs data.sets.two.cases")
        refused(2, ("data.sets.two.shar=2",), "data.sets.two.shar", "share")
        self.assertFalse((self.folder / "runs").exists())
