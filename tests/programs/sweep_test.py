# SPDX-License-Identifier: Apache-2.0
"""`meshard sweep`: which cases its runs see, what it says of them, and how it goes on after an end."""
import csv
import json
import shutil
import signal
import statistics

from runner import Case
from samples import put_training


def ranked(a, b):
    """Spearman's correlation of values without ties."""
    def ranks(values):
        return [sorted(values).index(value) for value in values]

    return statistics.correlation(ranks(a), ranks(b))


class Sweep(Case):
    timeout = 300

    def setUp(self):
        super().setUp()
        put_training(self.folder)   # cases 1, 2 and 3 train, 4 is the test

    def sweep(self, *words, code=0):
        result = self.meshard("sweep", "car.yaml", *words)
        self.assertEqual(result.code, code, str(result))
        return result

    def numbers(self, folder="swept"):
        return json.loads((self.folder / folder / "sweep.json").read_text())

    def lines(self, run):
        return [json.loads(line) for line in (self.folder / "swept" / run / "metrics.jsonl").read_text().splitlines()]

    def test_compares_places_of_a_grid_over_folds_and_seeds_without_the_test_cases(self):
        words = ("-o", "swept", "--grid", "training.optimizer.lr=[1e-3, 1e-2]", "--folds", 3, "training.num_epochs=1", "--device", "cpu")
        result = self.sweep(*words, "--seeds", 2)
        numbers = self.numbers()
        self.assertEqual(len(numbers["runs"]), 12)
        seen = {}
        for run in numbers["runs"]:
            self.assertEqual(run["state"], "done")
            lines = self.lines(run["name"])
            val = [line for line in lines if line["phase"] == "val"][-1]
            error = statistics.fmean(field["rel_l2"] for field in val["metrics"].values())
            self.assertAlmostEqual(run["rel_l2"], error, 12)
            self.assertEqual([line for line in lines if line["phase"] == "test"], [])
            dataset = [line for line in lines if line["phase"] == "dataset"][0]["cases"]
            self.assertEqual(dataset, {"train": 2, "val": 1, "test": 0})
            config = (self.folder / "swept" / run["name"] / "resolved_config.yaml").read_text()
            self.assertIn(f"seed: {run['seed']}", config)
            description = json.loads((self.folder / "swept" / run["name"] / "checkpoints/last.json").read_text())
            self.assertEqual(sorted(description["train_cases"] + run["val_cases"]), ["1", "2", "3"])
            seen.setdefault((run["point"], run["seed"]), []).extend(run["val_cases"])
        self.assertEqual({tuple(sorted(ids)) for ids in seen.values()}, {("1", "2", "3")})
        for point in numbers["points"]:
            errors = [run["rel_l2"] for run in numbers["runs"] if run["point"] == point["point"]]
            self.assertEqual(point["n"], 6)
            self.assertAlmostEqual(point["rel_l2"]["mean"], statistics.fmean(errors), 12)
            self.assertAlmostEqual(point["rel_l2"]["spread"], statistics.stdev(errors), 12)
            self.assertIn(f"{point['point']}", result.out)
        self.assertEqual(len((self.folder / "swept/sweep.csv").read_text().splitlines()), 13)

        steps = {run["name"]: len(self.lines(run["name"])) for run in numbers["runs"]}
        more = self.sweep(*words, "--seeds", 3)
        self.assertEqual(len(self.numbers()["runs"]), 18)
        self.assertEqual(more.out.count(": done"), 18)
        for name, count in steps.items():
            self.assertEqual(len(self.lines(name)), count, f"{name} was trained again")

    def test_judges_drag_by_the_cases_of_all_folds_together(self):
        words = ("data.reference.U_inf=[10, 0, 0]", "data.forces.area=0.4", "training.num_epochs=1")
        result = self.sweep("-o", "swept", "--folds", 3, "--seeds", 2, *words)
        numbers = self.numbers()
        judged = []   # case, predicted, true
        for run in numbers["runs"]:
            with open(self.folder / "swept" / run["name"] / "val_cases.csv", newline="") as table:
                rows = list(csv.DictReader(table))
            self.assertEqual([row["id"] for row in rows], run["val_cases"])
            judged += [(row["id"], float(row["cd.predicted"]), float(row["cd.true"])) for row in rows]
            self.assertEqual([(case["id"], case["cd"]["predicted"], case["cd"]["true"]) for case in run["cases"]], judged[-len(rows):])
        self.assertEqual(len(judged), 6)
        errors = [predicted - true for _, predicted, true in judged]
        drag = numbers["points"][0]["cd"]
        self.assertEqual(drag["each_run"]["n"], 6)
        self.assertAlmostEqual(drag["each_run"]["mae"], statistics.fmean(map(abs, errors)), 12)
        self.assertAlmostEqual(drag["each_run"]["bias"], statistics.fmean(errors), 12)

        cases = sorted({case for case, _, _ in judged})
        mean = [statistics.fmean(predicted for case, predicted, _ in judged if case == wanted) for wanted in cases]
        true = [next(truth for case, _, truth in judged if case == wanted) for wanted in cases]
        of_mean = drag["mean_of_runs"]
        self.assertEqual(of_mean["n"], 3)
        self.assertAlmostEqual(of_mean["mae"], statistics.fmean(abs(a - b) for a, b in zip(mean, true)), 12)
        self.assertAlmostEqual(of_mean["spearman"], ranked(mean, true), 12)
        self.assertIn("all validation cases together", result.out)
        self.assertRegex(result.out, r"Cd, mean of runs +3 ")

    def test_takes_another_split_than_that_of_the_file(self):
        self.sweep("-o", "swept", "--folds", 2, "~data.split", "data.split.train=1", "training.num_epochs=1")
        judged = [case for run in self.numbers()["runs"] for case in run["val_cases"]]
        self.assertEqual(sorted(judged), ["1", "2", "3", "4"])   # the test case of the file, too

    def test_goes_on_after_an_interruption_and_after_its_budget(self):
        words = ("-o", "swept", "--folds", 2, "training.num_epochs=400")
        process = self.start_meshard("sweep", "car.yaml", *words)
        log = self.folder / "swept/fold1_seed0.log"
        process.wait_for(lambda: log.exists() and "epoch 3" in log.read_text(), "third epoch")
        process.send(signal.SIGTERM)
        self.assertEqual(process.result().code, 130)
        stopped = json.loads((self.folder / "swept/fold1_seed0/checkpoints/last.json").read_text())
        self.assertLess(stopped["step"], stopped["num_steps"])
        self.assertEqual(self.numbers()["runs"][0]["state"], "stopped")

        out = self.sweep(*words, "--budget", "1s").out
        self.assertRegex(out, "the budget of 1s is used up: . of 2 runs are done; the same command goes on")
        limited = self.sweep("-o", "limited", *words[2:], "training.max_minutes=0.001").out   # a limit of each run, not of the sweep
        self.assertIn("\n0 of 2 runs are done; the same command goes on", limited)
        self.sweep(*words)
        self.assertEqual([run["state"] for run in self.numbers()["runs"]], ["done", "done"])
        for name in ("fold1_seed0", "fold2_seed0"):
            epochs = [line["epoch"] for line in self.lines(name) if line["phase"] == "train"]
            self.assertEqual(epochs, list(range(1, 401)))

    def test_replaces_the_splits_of_sets_and_keeps_the_shards_of_the_configuration(self):
        config = (self.folder / "car.yaml").read_text()
        for folder, numbers in (("a", (1, 2)), ("b", (3, 4))):
            for number in numbers:
                shutil.copytree(self.folder / f"cases/run_{number}", self.folder / f"cases/{folder}/run_{number}")
        sets = "sets: {one: {root: a, split: {train: ['1', '2']}}, two: {root: b, split: {train: ['3'], test: ['4']}}}"
        (self.folder / "car.yaml").write_text(config.replace("  cases: cases.json\n  split: {column: split}\n", f"  shards: kept\n  {sets}\n"))
        self.sweep("-o", "swept", "--folds", 3, "training.num_epochs=1")
        self.assertEqual(sorted(run["val_cases"] for run in self.numbers()["runs"]), [["one:1"], ["one:2"], ["two:3"]])
        self.assertTrue((self.folder / "kept").is_dir())
        self.assertFalse((self.folder / "swept/shards").exists())
        self.sweep("-o", "other", "--folds", 2, "training.num_epochs=1", "data.sets.one.split.train=['1']")
        group = "data.sets={one: {root: a, split: {train: ['1']}}, two: {root: b}}"
        self.assert_fails(self.sweep("-o", "group", "--folds", 2, "training.num_epochs=1", group, code=2), 2, "data.sets.one.split.train stands within a group", "one by one")

    def test_refuses_runs_of_other_settings_in_folders_of_its_names(self):
        self.sweep("-o", "swept", "--folds", 2, "training.num_epochs=1", "--grid", "training.early_stop.patience=[10]")
        result = self.sweep("-o", "swept", "--folds", 2, "training.num_epochs=1", "--grid", "training.scheduler.patience=[10, 2]", code=2)
        self.assert_fails(result, 2, "patience=10_fold1_seed0 holds a run of another sweep", "training.early_stop.patience is 10, and this sweep's would be 0")

    def test_refuses_what_no_run_could_be(self):
        self.assert_fails(self.sweep("-o", "swept", code=2), 2, "no validation cases", "--folds")
        self.assert_fails(self.sweep("-o", "swept", "--folds", 4, code=2), 2, "expected 2 to 3")
        self.assert_fails(self.sweep("-o", "swept", "--folds", 2, "--grid", "training.optimizer.lr=[1e-3, fast]", code=2), 2, "training.optimizer.lr", "fast")
        self.assert_fails(self.sweep("-o", "swept", "--folds", 2, "--grid", "data.split.train=[0.5]", code=2), 2, "a sweep sets itself")
        self.assert_fails(self.sweep("-o", "swept", "--folds", 2, "--budget", "soon", code=2), 2, "60m")
        self.assert_fails(self.sweep("-o", "swept", "--folds", 2, "--grid", "model.n_hidden=[64, 66]", "--grid", "model.n_head=[1, 4]", code=2), 2, "n_hidden must be a multiple of n_head")
        self.sweep("-o", "swept", "--folds", 2, "--grid", "model.n_hidden=[66]", "--grid", "model.n_head=[3, 6]", "--dry-run")   # 4 heads of the file do not divide it
        self.assertFalse((self.folder / "swept").exists())
        self.sweep("-o", "swept", "--folds", 2, "training.num_epochs=1")
        self.assert_fails(self.sweep("-o", "swept", "--folds", 3, "training.num_epochs=1", code=2), 2, "holds a sweep of another configuration")
        self.assert_fails(self.sweep("-o", "cases", "--folds", 3, "training.num_epochs=1", code=2), 2, "holds files, and no sweep")
