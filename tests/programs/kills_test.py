# SPDX-License-Identifier: Apache-2.0
"""Training that is killed at random moments and goes on each time ends with the bits of a run that nobody disturbed."""
import os
import random
import signal
import time

from training_modes_test import Modes

NUM_KILLS = 10
SETTINGS = ("~data.split.column", "data.split={train: ['1', '2', '3'], val: ['4']}", "data.memory=0", "data.sampling_resolution=60", "data.sampling=blocks", "model.dropout=0.1",
            "model.n_hidden=96",   # so that writing a checkpoint takes a while
            "training.ema=0.9", "training.clip_norm=1", "training.scheduler.name=plateau", "training.scheduler.patience=2", "training.keep_last=2", "training.num_epochs=40")


class Kills(Modes):
    timeout = 200

    def half_written(self):
        """Names in the checkpoints' folder, which `--overwrite` removes and makes anew at any moment."""
        try:
            return [name for name in os.listdir(self.folder / "runs/killed/checkpoints") if ".partial" in name]
        except FileNotFoundError:
            return []

    def size_of_metrics(self):
        """Bytes of the run's table, which `--overwrite` removes, too."""
        try:
            return os.stat(self.folder / "runs/killed/metrics.jsonl").st_size
        except FileNotFoundError:
            return 0

    def kill(self, process, draw):
        """At one of three kinds of moments: at any time, between two steps, while a checkpoint is written. Returns which it was; `ended` if the run came first."""
        kind = draw.choice(("at any time", "between steps", "while writing", "while writing"))
        number = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))   # SIGTERM leaves a checkpoint in the middle of an epoch
        size = self.size_of_metrics() + draw.randrange(1, 2000)
        begin = time.monotonic() + draw.random()
        num_files = draw.randrange(1, 6)
        was_half_written = False
        while not process.has_ended():
            is_half_written = bool(self.half_written())
            num_files -= is_half_written and not was_half_written
            was_half_written = is_half_written
            if (kind == "at any time" and time.monotonic() > begin or kind == "between steps" and self.size_of_metrics() > size
                    or kind == "while writing" and num_files <= 0):
                process.send_to_group(number)
                return f"{kind}, signal {int(number)}"
        return "ended"

    def end_in_the_same_bits(self, num_ranks, *more):
        seed = int(os.environ.get("MESHARD_KILL_SEED", random.randrange(10 ** 6)))
        draw = random.Random(seed)
        self.train("whole", num_ranks, *SETTINGS, *more, "data.shards=shards")
        kinds = []
        where = f"MESHARD_KILL_SEED={seed}"
        while len(kinds) < NUM_KILLS:
            can_resume = (self.folder / "runs/killed/checkpoints/last.safetensors").exists()
            words = ("--resume", "runs/killed") if can_resume else ("car.yaml", "run_id=killed", *SETTINGS, *more, "data.shards=others", "--overwrite")
            process = self.start_meshard("train", *words, "--nproc", num_ranks)
            kinds.append(self.kill(process, draw))
            result = process.result()
            expected = (0,) if kinds[-1] == "ended" else (0, 130, -signal.SIGKILL, -signal.SIGTERM)
            self.assertIn(result.code, expected, f"{where}: {kinds}\n{result}")
            if result.code == 0:
                break
        self.assertGreaterEqual(len(kinds), NUM_KILLS // 2, f"{where}: the run ended too early: {kinds}")
        self.assert_good(self.meshard("train", "--resume", "runs/killed", "--nproc", num_ranks))
        self.assertEqual(self.half_written(), [], f"{where}: {kinds}")
        expected, found = self.results("whole"), self.results("killed")
        self.assertEqual(found[0], expected[0], f"{where}: {kinds}")
        for checkpoint in (1, 2):
            different = [name for name in expected[checkpoint] if found[checkpoint].get(name) != expected[checkpoint][name]]
            self.assertEqual(different, [], f"{where}: {kinds}")
        self.assertEqual(self.names(self.folder / "runs/killed/checkpoints"), self.names(self.folder / "runs/whole/checkpoints"), f"{where}: {kinds}")

    def test_of_one_process_leave_a_run_that_ends_in_the_same_bits(self):
        self.end_in_the_same_bits(1)

    def test_of_two_ranks_leave_a_run_that_ends_in_the_same_bits(self):
        self.end_in_the_same_bits(2, "data.sampling=areas", "training.point_weights=areas")
