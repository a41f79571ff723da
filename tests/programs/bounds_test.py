# SPDX-License-Identifier: Apache-2.0
"""How many ranks, threads and parts are too many."""
import json
import os
import time

from runner import PROGRAM, Case
from samples import copy_sample, put_training, sample, write_tensor

CORES = len(os.sched_getaffinity(0))


class Bounds(Case):
    def limited(self, kilobytes, *words):
        return self.run_words("bash", "-c", f"ulimit -v {kilobytes}; exec \"$@\"", "bash", PROGRAM, *words)

    def test_of_ranks_come_from_the_cores(self):
        put_training(self.folder)
        run = sample("runs") / "car"
        write_tensor(self.folder / "x.safetensors", "input", (4, 4))
        copy_sample("box.vtu", self.folder / "box.vtu")
        for words in (("train", "car.yaml"), ("prepare", "car.yaml"), ("predict", run, sample("body.vtp"), "-o", "new.vtp"), ("evaluate", run),
                      ("report", run, "-o", "report"), ("bench",), ("bench", "scaling"), ("bench", "ghosts"), ("bench", "data", "car.yaml"),
                      ("probe", sample("car.yaml"), "--input", "x.safetensors", "--shard", 0),
                      ("sweep", "car.yaml", "-o", "sweep", "--grid", "training.optimizer.lr=[1e-3, 1e-4]"), ("derive", "box.vtu", "-o", "new.vtu", "--gradient", "p"),
                      ("interpolate", "box.vtu", "box.vtu", "-o", "new.vtu")):
            with self.subTest(" ".join(map(str, words[:2]))):
                begin = time.monotonic()
                result = self.meshard(*words, "--nproc", 1000)
                self.assert_fails(result, 2, "--nproc 1000", f"may use {CORES} core", f"bear {4 * CORES} ranks", "--oversubscribe")
                self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(self.names(), ["box.vtu", "car.yaml", "cases", "x.safetensors"])

    def test_of_ranks_count_the_cores_that_are_allowed(self):
        self.needs("taskset")
        core = min(os.sched_getaffinity(0))
        bench = ("bench", "--points", 200, "--repeats", 1, "--nproc")
        self.assert_fails(self.run_words("taskset", "-c", core, PROGRAM, *bench, 5), 2, "may use 1 core, which bear 4 ranks")
        self.assert_good(self.run_words("taskset", "-c", core, PROGRAM, *bench, 4))
        self.assert_good(self.run_words("taskset", "-c", core, PROGRAM, *bench, 5, "--oversubscribe"))

    def test_of_ranks_come_from_the_memory(self):
        words = ("bench", "--points", 200, "--oversubscribe", "--nproc")
        begin = time.monotonic()
        self.assert_fails(self.meshard(*words, 10_000_000), 2, "each rank takes about", "are free", "Start ")
        self.assert_fails(self.limited(1_500_000, *words, 300), 2, "each rank takes about", "1.4 GiB are free", "Start ")
        self.assertLess(time.monotonic() - begin, 20)

    def test_of_what_a_rank_may_map_are_said(self):
        result = self.limited(650_000, "bench", "--points", 200, "--nproc", 2)
        self.assert_fails(result, 2, "each rank maps about", "634.8 MiB (ulimit -v)")
        result = self.limited(500_000, "bench", "--points", 200, "--nproc", 2)
        self.assert_fails(result, 2, "LibTorch, which maps 580 MiB before anything is read, and ulimit -v allows 488 MiB")

    def test_of_what_one_rank_may_map_are_said(self):
        for kilobytes in (595_000, 610_000, 640_000):
            result = self.limited(kilobytes, "bench", "--points", 200, "--repeats", 1)
            if result.code != 0:
                self.assertIn(result.code, (2, 4), str(result))
                self.assertRegex(result.err, "ulimit -v|out of memory")

    def test_of_threads_come_from_the_cores(self):
        copy_sample("box.vtu", self.folder / "box.vtu")
        words = ("partition", "box.vtu", "-n", 4, "-o", "cut", "--threads")
        self.assert_fails(self.meshard(*words, 100_000), 2, f"--threads is 100000; expected 1 to {max(64, 4 * CORES)}.")
        self.assert_good(self.limited(300_000, *words, 64))   # more than this may map

    def test_of_parts_come_from_what_they_take(self):
        copy_sample("box.vtu", self.folder / "box.vtu")
        process = self.start_meshard("partition", "box.vtu", "-o", "many", "--allow-empty", "-n", 200_000)
        process.wait_for(lambda: "\n" in process.text(), "warning")
        self.assertRegex(process.text(), "warning: box.vtu: 200000 parts make a folder of at least 820.2 MiB, a file a part, for 512 rows of the mesh")
        self.assertNotIn("many", self.names())
        process.end()
        result = self.meshard("partition", "box.vtu", "-o", "most", "--allow-empty", "-n", 2_000_000_000)
        self.assert_fails(result, 2, "2000000000 parts make a folder of at least 7.8 TiB", " left. Ask for fewer.")
        result = self.meshard("partition", "box.vtu", "--allow-empty", "-n", 1_000_513, "--dry-run")
        self.assert_fails(result, 2, "1000513 parts of 512 cells are asked for; at most 1000000 parts may stay empty")
        self.assertNotIn("warning", self.meshard("partition", "box.vtu", "-n", 4, "-o", "few").err)

    def test_of_numbers_are_decimal(self):
        copy_sample("box.vtu", self.folder / "box.vtu")
        for text, parts in (("010", 10), ("08", 8), ("+012", 12), ("8", 8)):
            result = self.meshard("partition", "box.vtu", "-n", text, "--dry-run", "--json")
            self.assertEqual(json.loads(result.out)["num_parts"], parts, str(result))
        for text in ("0x10", "0b1", ""):
            result = self.meshard("partition", "box.vtu", "-n", text, "--dry-run")
            self.assert_fails(result, 2, f"--num-parts is '{text}'; expected a number in decimal digits")
        result = self.meshard("interpolate", "box.vtu", "box.vtu", "-o", "new.vtu", "--neighbors", "0x8")
        self.assert_fails(result, 2, "--neighbors is '0x8'")
        result = self.meshard("partition", "box.vtu", "-n", 2, "--capacities", "1e308,1e308", "--dry-run")
        self.assert_fails(result, 2, "--capacities is '1e308,1e308'")

    def test_of_memory_are_no_faults_of_shards(self):
        copy_sample("box.vtu", self.folder / "box.vtu")
        self.assert_good(self.meshard("partition", "box.vtu", "-n", 2, "-o", "cut"))
        piece = self.folder / "cut" / "pieces" / "mesh_0000.vtu"
        self.assertTrue(piece.exists(), str(self.names(self.folder / "cut")))
        with open(piece, "r+b") as file:
            file.truncate(8 << 30)   # more than may be mapped
        result = self.limited(4_000_000, "check", "cut")
        self.assert_fails(result, 4, "out of memory")

    def test_of_parts_of_cases_come_from_what_they_take(self):
        put_training(self.folder)
        for verb in ("prepare", "train"):
            process = self.start_meshard(verb, "car.yaml", "data.shards=shards", "data.parts=200000")
            process.wait_for(lambda: "warning" in process.text() and process.text().endswith("\n"), "warning")
            self.assertRegex(process.text(), "warning: data.parts: case ., and each of its size: 200000 parts make a folder of at least 820.2 MiB, a file a part, for 96 rows")
            process.end()
            result = self.meshard(verb, "car.yaml", "data.shards=shards", "data.parts=4", "run_id=few")
            self.assert_good(result)
            self.assertNotIn("warning", result.err)
