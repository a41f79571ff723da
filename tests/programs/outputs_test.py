# SPDX-License-Identifier: Apache-2.0
"""Outputs in new and existing folders, twice in a row and two at once, on 1, 2 and 4 ranks."""
import json
import os
import signal

from evaluation_test import arrays_of
from runner import PROGRAM, REPETITIONS, Case
from samples import copy_sample, put_training, sample, write_body, write_box

MPIRUN = ("mpirun", "-np", "2")


class PredictOutput(Case):
    def setUp(self):
        super().setUp()
        self.run_folder = sample("runs") / "car"
        write_body(self.folder / "a.vtp")
        write_body(self.folder / "b.vtp", (1.2, 0.5, 0.3))

    def predict(self, *words, before=(), inputs=("a.vtp", "b.vtp"), **options):
        return self.run_words(*before, PROGRAM, "predict", self.run_folder, *inputs, *words, **options)

    def drag(self, path):
        result = self.meshard("forces", path, "--pressure", "pressure", "--shear", "wss", "--json")
        self.assert_good(result)
        return json.loads(result.out)["drag"]

    def assert_as_on_one_rank(self, folder):
        self.assertEqual(self.names(self.folder / folder), ["a.vtp", "b.vtp"])
        self.assert_good(self.predict("-o", "serial"))
        for name in ("a.vtp", "b.vtp"):
            serial = self.drag(f"serial/{name}")
            self.assertAlmostEqual(self.drag(f"{folder}/{name}"), serial, delta=1e-4 * abs(serial))

    def test_comes_into_a_new_folder_on_two_ranks(self):
        for i in range(REPETITIONS):
            self.assert_good(self.predict("-o", f"new{i}/below", "--nproc", 2))
        self.assert_as_on_one_rank("new0/below")

    def test_comes_into_a_new_folder_on_four_ranks(self):
        for i in range(REPETITIONS):
            self.assert_good(self.predict("-o", f"new{i}", "--nproc", 4))
        self.assert_as_on_one_rank("new0")

    def test_comes_into_a_new_folder_under_mpirun(self):
        self.needs("mpirun")
        for i in range(REPETITIONS):
            self.assert_good(self.predict("-o", f"new{i}", before=MPIRUN))
        self.assert_as_on_one_rank("new0")

    def test_replaces_an_earlier_one(self):
        for _ in range(2):
            self.assert_good(self.predict("-o", "out", "--nproc", 2))
        self.assert_as_on_one_rank("out")

    def test_of_two_runs_at_once_is_whole(self):
        for _ in range(REPETITIONS):
            processes = [self.start_meshard("predict", self.run_folder, "a.vtp", "b.vtp", "-o", "out", "--nproc", 2) for _ in range(2)]
            for process in processes:
                self.assert_good(process.result())
        self.assert_as_on_one_rank("out")

    def test_in_pieces_is_whole_whatever_there_was(self):
        for num_ranks in (4, 2, 1):
            self.assert_good(self.predict("-o", "new/out.pvtp", "--nproc", num_ranks, inputs=("a.vtp",)))
            self.assert_good(self.meshard("convert", "new/out.pvtp", "back.vtp"))
            self.assertIn("96 cells", self.meshard("info", "back.vtp").out)

    def test_in_pieces_has_fields_at_all_points(self):
        """Points that several ranks' cells share stand in each of their pieces."""
        for i in range(4):
            write_body(self.folder / f"body{i}.vtp", (1 + 0.1 * i, 0.4, 0.3))
            self.assert_good(self.meshard("derive", f"body{i}.vtp", "--wall-distance", "b.vtp", "--at", "points", "-o", f"far{i}.vtp"))
        (self.folder / "far.yaml").write_text(
            "data: {root: ., surface: 'far*.vtp', association: point, inputs: [points], fields: {distance: Wall Distance}, split: {train: 0.5, val: 0.25, test: 0.25}}\n"
            "model: {name: transolver, n_layers: 1, n_hidden: 8, n_head: 2, slice_num: 4}\ntraining: {num_epochs: 1}\nrun_id: far\n")
        self.assert_good(self.meshard("train", "far.yaml"))
        found = {}
        for name, words in (("serial", ()), ("pieces", ("--nproc", 3))):
            self.assert_good(self.meshard("predict", "runs/far", "far3.vtp", "-o", f"{name}.pvtp", *words))
            self.assert_good(self.meshard("convert", f"{name}.pvtp", f"{name}.vtp", "--compress", "none", "--join-points", "0"))
            arrays = arrays_of(self.folder / f"{name}.vtp")
            places = zip(*[iter(arrays["Points"])] * 3)
            found[name] = dict(zip(places, arrays["distance"], strict=True))
        self.assertEqual(found["pieces"].keys(), found["serial"].keys())
        for place, value in found["serial"].items():
            self.assertAlmostEqual(found["pieces"][place], value, delta=1e-5)

    def test_in_pieces_never_mixes_two_runs(self):
        """A run on four ranks that fails while it replaces the pieces of two."""
        write_body(self.folder / "c.vtp", n=30)   # larger than the checkpoint
        (self.folder / "four").mkdir()
        self.assert_good(self.predict("-o", "four/out.pvtp", "--nproc", 4, inputs=("c.vtp",)))
        sizes = [path.stat().st_size for path in (self.folder / "four/out_pieces").iterdir()]
        self.assertLess(min(sizes), max(sizes))
        self.assert_good(self.predict("-o", "out.pvtp", "--nproc", 2, inputs=("c.vtp",)))

        result = self.predict("-o", "out.pvtp", "--nproc", 4, inputs=("c.vtp",), max_file_bytes=max(sizes) - 1)

        self.assertEqual(result.code, 3, str(result))
        if (self.folder / "out.pvtp").exists():
            self.assert_good(self.meshard("convert", "out.pvtp", "back.vtp"))
            self.assertIn("5400 cells", self.meshard("info", "back.vtp").out, str(result))

    def test_is_refused_where_a_file_has_the_folders_name(self):
        (self.folder / "out").write_text("mine")
        self.assert_fails(self.predict("-o", "out", "--nproc", 2), 3, "out", "cannot be made")
        self.assert_fails(self.predict("-o", "out/new.vtp", inputs=("a.vtp",)), 3, "out", "cannot be made")
        self.assertEqual((self.folder / "out").read_text(), "mine")

    def test_is_refused_where_a_folder_has_the_files_name(self):
        (self.folder / "new.vtp").mkdir()
        self.assert_fails(self.predict("-o", "new.vtp", "--nproc", 2, inputs=("a.vtp",)), 3, "new.vtp is a folder")
        self.assertEqual(self.names(), ["a.vtp", "b.vtp", "new.vtp"])


class PartitionOutput(Case):
    def setUp(self):
        super().setUp()
        copy_sample("box.vtu", self.folder / "box.vtu")

    def assert_whole(self, shards):
        self.assert_good(self.meshard("check", shards))
        self.assert_good(self.meshard("merge", shards, "--verify", "box.vtu"))

    def test_is_never_replaced(self):
        self.assert_good(self.meshard("partition", "box.vtu", "-n", 3, "-o", "new/shards"))
        self.assert_fails(self.meshard("partition", "box.vtu", "-n", 2, "-o", "new/shards"), 3, "exists")
        self.assert_whole("new/shards")

    def test_of_two_runs_at_once_is_that_of_one(self):
        for i in range(REPETITIONS):
            processes = [self.start_meshard("partition", "box.vtu", "-n", 3, "-o", f"shards{i}") for _ in range(2)]
            results = [process.result() for process in processes]
            self.assertIn(sorted(result.code for result in results), ([0, 3], [3, 3]), "\n".join(map(str, results)))
            self.assertIn(0, [result.code for result in results])
            self.assert_whole(f"shards{i}")
        self.assertEqual([name for name in self.names() if "partial" in name], [])

    def test_of_one_run_outlives_the_failure_of_another(self):
        """Both make the folder above; the one that fails must not take it away with what the other put there."""
        write_box(self.folder / "large.vtu", 24)
        failing = self.start_meshard("partition", "large.vtu", "-n", 400, "--ghost-layers", 2, "-o", "new/a")
        failing.wait_for((self.folder / "new").exists, "the folder")
        failing.send(signal.SIGSTOP)
        self.assert_good(self.meshard("partition", "box.vtu", "-n", 2, "-o", "new/b"))
        failing.send(signal.SIGTERM)
        failing.send(signal.SIGCONT)
        self.assert_fails(failing.result(), 130, "unfinished output was removed")
        self.assertEqual(self.names(self.folder / "new"), ["b"])
        self.assert_whole("new/b")

    def test_comes_from_ranks_of_mpirun(self):
        self.needs("mpirun")
        self.assert_good(self.run_words(*MPIRUN, PROGRAM, "partition", "box.vtu", "-n", 5, "-o", "new/shards"))
        self.assert_whole("new/shards")
        again = self.run_words(*MPIRUN, PROGRAM, "partition", "box.vtu", "-n", 5, "-o", "new/shards")
        self.assertEqual(again.code, 3, str(again))
        self.assertEqual(again.err.count("meshard partition:"), 1, str(again))
        self.assert_whole("new/shards")

    def test_is_refused_where_a_file_has_its_name(self):
        (self.folder / "out").write_text("mine")
        self.assert_fails(self.meshard("partition", "box.vtu", "-n", 2, "-o", "out"), 3, "exists")
        self.assert_fails(self.meshard("partition", "box.vtu", "-n", 2, "-o", "out/shards"), 3, "is no folder")
        self.assertEqual(self.names(), ["box.vtu", "out"])


class MergeOutput(Case):
    def setUp(self):
        super().setUp()
        self.shards, self.box = sample("shards"), sample("box.vtu")

    def merge(self, output):
        return self.meshard("merge", self.shards, "-o", output, "--verify", self.box)

    def test_replaces_an_earlier_one(self):
        for _ in range(2):
            self.assert_good(self.merge("back.vtu"))
        self.assertEqual(self.names(), ["back.vtu"])

    def test_of_two_runs_at_once_is_whole(self):
        for _ in range(REPETITIONS):
            processes = [self.start_meshard("merge", self.shards, "-o", "back.vtu") for _ in range(2)]
            for process in processes:
                self.assert_good(process.result())
        self.assertEqual((self.folder / "back.vtu").read_bytes(), self.box.read_bytes())
        self.assertEqual(self.names(), ["back.vtu"])

    def test_is_refused_where_a_folder_has_its_name(self):
        (self.folder / "back.vtu").mkdir()
        self.assert_fails(self.merge("back.vtu"), 3, "is a folder")


class RunFolder(Case):
    def setUp(self):
        super().setUp()
        put_training(self.folder)

    def train(self, *words, before=(), **options):
        return self.run_words(*before, PROGRAM, "train", "car.yaml", *words, **options)

    def assert_trained(self, run="runs/car"):
        self.assertEqual(self.names(self.folder / run),
                         ["checkpoints", "command.txt", "config.yaml", "metrics.jsonl", "resolved_config.yaml", "shards", "test_cases.csv", "version.txt"])
        phases = [json.loads(line)["phase"] for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([phases.count(phase) for phase in ("dataset", "train_step", "test")], [1, 6, 1])

    def test_is_made_on_one_two_and_four_ranks(self):
        losses = []
        for num_ranks in (1, 2, 4):
            self.assert_good(self.train("--nproc", num_ranks, f"output_dir=new/{num_ranks}"))
            self.assert_trained(f"new/{num_ranks}/car")
            lines = (self.folder / f"new/{num_ranks}/car/metrics.jsonl").read_text().splitlines()
            losses.append(json.loads(lines[-1])["loss"])
        for loss in losses:
            self.assertAlmostEqual(loss, losses[0], delta=1e-3 * losses[0])

    def test_is_made_by_ranks_of_mpirun(self):
        self.needs("mpirun")
        self.assert_good(self.train(before=MPIRUN))
        self.assert_trained()
        again = self.train(before=MPIRUN)
        self.assertNotEqual(again.code, 0)
        self.assertIn("exists. Continue it", again.err)
        self.assert_trained()

    def test_is_replaced_only_on_request(self):
        self.assert_good(self.train("--nproc", 2))
        self.assert_fails(self.train("--nproc", 2), 3, "runs/car exists", "--resume", "--overwrite")
        for folder in ("evaluation", "report", "tensorboard"):
            (self.folder / "runs/car" / folder).mkdir()
        (self.folder / "runs/car/test_rollout.csv").write_text("of another model")
        self.assert_good(self.train("--nproc", 2, "--overwrite"))
        self.assert_trained()
        self.assertEqual([name for name in ("evaluation", "report", "tensorboard", "test_rollout.csv") if (self.folder / "runs/car" / name).exists()], [])

    def test_is_written_by_one_of_two_runs_at_once(self):
        first = self.start_meshard("train", "car.yaml", "--nproc", 2, "training.num_epochs=1000000")
        metrics = self.folder / "runs/car/metrics.jsonl"
        first.wait_for(lambda: metrics.exists() and "train_step" in metrics.read_text(), "the first step")
        for words in ((), ("--overwrite",), ("--nproc", 2, "--overwrite")):
            self.assert_fails(self.train(*words), 3, "is being trained by another process")
        first.send(signal.SIGTERM)
        self.assertEqual(first.result().code, 130)
        self.assertIn("train_step", metrics.read_text())

    def test_is_refused_where_a_file_has_its_name(self):
        (self.folder / "runs").write_text("mine")
        self.assert_fails(self.train(), 3, "runs/car", "cannot be made")

    def test_may_be_left_and_taken_up_again_often(self):
        for i in range(3):
            self.assert_good(self.train(*(("--overwrite",) if i else ()), "training.max_steps=2"))
            self.assert_good(self.meshard("train", "--resume", "runs/car", "--nproc", 2, "training.max_steps=4"))
            self.assert_good(self.meshard("train", "--resume", "runs/car/", "training.max_steps=0"))
            self.assertEqual((self.folder / "runs/car/metrics.jsonl").read_text().count("train_step"), 6)

    def test_holds_another_model_of_the_command_line(self):
        for name in ("meshgraphnet", "flare", "geotransolver"):
            self.assert_good(self.train("~model", f"model.name={name}", f"run_id={name}", "--nproc", 2, "training.max_steps=1"))
        changed = self.train("model.name=meshgraphnet", "--print-config")
        self.assert_good(changed)
        self.assertIn("meshgraphnet has no model.", changed.err)


class OtherVerbsOnRanks(Case):
    def test_of_bench(self):
        for num_ranks in (1, 2, 4):
            self.assert_good(self.meshard("bench", "--points", 200, "--repeats", 1, "--nproc", num_ranks))

    def test_of_bench_under_mpirun(self):
        self.needs("mpirun")
        self.assert_good(self.run_words(*MPIRUN, PROGRAM, "bench", "--points", 200, "--repeats", 1))

    def test_of_derive_and_interpolate_under_mpirun(self):
        self.needs("mpirun")
        copy_sample("box.vtu", self.folder / "box.vtu")
        copy_sample("body.vtp", self.folder / "body.vtp")
        self.assert_good(self.run_words(*MPIRUN, PROGRAM, "derive", "box.vtu", "-o", "more.vtu", "--gradient", "p", "--wall-distance", "body.vtp"))
        self.assert_good(self.run_words(*MPIRUN, PROGRAM, "interpolate", "more.vtu", "body.vtp", "-o", "body.vtp", "--overwrite"))
        self.assertEqual(self.names(), ["body.vtp", "box.vtu", "more.vtu"])
        said = self.meshard("info", "body.vtp").out
        for name in ("Gradient", "Wall Distance", "pMean"):
            self.assertIn(name, said)

    def test_of_another_number_than_the_launcher_started(self):
        self.needs("mpirun")
        result = self.run_words(*MPIRUN, PROGRAM, "bench", "--points", 200, "--nproc", 4)
        self.assertEqual(result.code, 2, str(result))
        self.assertIn("the launcher (openmpi) started 2 ranks", result.err)
