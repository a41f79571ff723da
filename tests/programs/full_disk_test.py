# SPDX-License-Identifier: Apache-2.0
"""Files that cannot grow further, as on a full disk: a sentence, exit code 3, and nothing half-written under a final name."""
from runner import PROGRAM, Case
from samples import copy_sample, put_training, write_body, write_box


class FullDisk(Case):
    def test_ends_partition(self):
        write_box(self.folder / "box.vtu", 16)
        for limit in (0, 1000, 100000):
            self.assert_fails(self.meshard("partition", "box.vtu", "-n", 2, "-o", "shards", max_file_bytes=limit), 3, "cannot write")
            self.assertEqual(self.names(), ["box.vtu"])

    def test_ends_merge_and_keeps_the_earlier_file(self):
        copy_sample("shards", self.folder / "shards")
        (self.folder / "back.vtu").write_text("mine")
        for limit in (0, 10000):
            self.assert_fails(self.meshard("merge", "shards", "-o", "back.vtu", max_file_bytes=limit), 3, "cannot write")
        self.assertEqual((self.folder / "back.vtu").read_text(), "mine")
        self.assertEqual(self.names(), ["back.vtu", "shards"])

    def test_ends_predict(self):
        copy_sample("runs", self.folder / "runs")
        write_body(self.folder / "body.vtp", n=20)
        for limit in (0, 20000):
            for num_ranks in (1, 2):
                result = self.meshard("predict", "runs/car", "body.vtp", "-o", "new.vtp", "--nproc", num_ranks, max_file_bytes=limit)
                self.assert_fails(result, 3, "cannot write")
                self.assertEqual(self.names(), ["body.vtp", "runs"], str(result))

    def test_ends_convert_render_and_probe_like_outputs(self):
        copy_sample("box.vtu", self.folder / "box.vtu")
        for output in ("out.vtu", "out.pvtu", "out.vtkhdf"):
            self.assert_fails(self.meshard("convert", "box.vtu", output, max_file_bytes=5000), 3)
            self.assertEqual(self.names(), ["box.vtu"])
        self.assert_fails(self.meshard("render", "box.vtu", "-o", "out.png", max_file_bytes=500), 3)
        self.assertEqual(self.names(), ["box.vtu"])

    def test_ends_train_at_its_checkpoint_and_keeps_the_earlier_one(self):
        put_training(self.folder)
        self.assert_good(self.meshard("train", "car.yaml", "training.max_steps=3"))
        checkpoint = self.folder / "runs/car/checkpoints/last.safetensors"
        before = checkpoint.read_bytes()
        for num_ranks in (1, 2):
            # Shards and lines of metrics are smaller than a checkpoint.
            result = self.meshard("train", "--resume", "runs/car", "--nproc", num_ranks, "training.max_steps=5", max_file_bytes=len(before) * 9 // 10)
            self.assertEqual(result.code, 3, str(result))
            self.assertIn("cannot write", result.err)
            self.assertEqual(checkpoint.read_bytes(), before)
            self.assertEqual([name for name in self.names(checkpoint.parent) if "partial" in name], [])
        self.assert_good(self.meshard("train", "--resume", "runs/car", "training.max_steps=5"))

    def test_ends_train_at_its_records(self):
        put_training(self.folder)
        for limit in (0, 300, 1500):
            result = self.meshard("train", "car.yaml", max_file_bytes=limit)
            self.assertEqual(result.code, 3, str(result))
            run = self.folder / "runs/car"
            for name in self.names(run):
                if name in ("config.yaml", "command.txt", "version.txt", "resolved_config.yaml"):
                    self.assertGreater((run / name).stat().st_size, 0)
                self.assertNotIn("partial", name)
            self.run_words("rm", "-rf", "runs")

    def test_ends_report_and_evaluate_with_all_files_or_none(self):
        put_training(self.folder)
        copy_sample("runs", self.folder / "runs")
        for words, out in ((("report", "runs/car", "-o", "new"), "new"), (("evaluate", "runs/car", "test", "-o", "judged"), "judged")):
            self.assert_good(self.meshard(*words))
            sizes = sorted({path.stat().st_size for path in (self.folder / out).rglob("*") if path.is_file()})
            self.assertGreater(len(sizes), 1)
            earlier = self.contents(out)
            for limit in (*sizes[:-1], sizes[-1] * 9 // 10):   # some fit, others do not; a report's length depends on the seconds that it names
                self.assert_fails(self.meshard(*words[:-1], "other", max_file_bytes=limit), 3, "cannot write")
                self.assertFalse((self.folder / "other").exists(), limit)
                self.assert_fails(self.meshard(*words, max_file_bytes=limit), 3, "cannot write")
                self.assertEqual(self.contents(out), earlier)

    def contents(self, name):
        return {path: path.read_bytes() for path in (self.folder / name).rglob("*") if path.is_file()}

    def test_of_standard_output_is_an_error(self):
        copy_sample("box.vtu", self.folder / "box.vtu")
        with open("/dev/full", "w") as full:
            self.assert_fails(self.meshard("info", "box.vtu", stdout=full), 3, "could not write to standard output")
        self.assert_fails(self.run_words("bash", "-c", f"'{PROGRAM}' info box.vtu >&-"), 3, "could not write to standard output. Is it closed")
