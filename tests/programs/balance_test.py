# SPDX-License-Identifier: Apache-2.0
"""parallel.balance: ranks that compute more slowly than the others have smaller shares of each case, and nothing else changes."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import unittest

from samples import write_body
from training_modes_test import Modes


def ranks_of(launcher):
    """Process ids of ranks 0 and 1 that a launcher has started."""
    found = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = status.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue   # it has ended meanwhile
        if name.startswith("meshard rank ") and int(rest.split()[1]) == launcher:
            found[int(name.rsplit(" ", 1)[1])] = int(status.parent.name)
    return [found[rank] for rank in sorted(found)]


def keep_on(process, core):
    for thread in pathlib.Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def tell_shares(checkpoint, shares):
    """Writes a checkpoint that was made with such shares."""
    content = checkpoint.read_bytes()
    size, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    del header["__metadata__"]["meshard_hash"]
    header["__metadata__"]["meshard"] = json.dumps({**json.loads(header["__metadata__"]["meshard"]), "rank_shares": shares})
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    checkpoint.write_bytes(struct.pack("<Q", len(told)) + told + content[8 + size:])


class Balance(Modes):
    timeout = 200
    words = ("parallel.balance=auto", "data.parts=32", "training.num_epochs=8", "model.n_hidden=64", "training.scheduler.name=constant")

    def setUp(self):
        super().setUp()
        for i, path in enumerate(sorted(self.folder.glob("cases/run_*/boundary_*.vtp"))):
            write_body(path, lengths=(1.0, 0.4 + 0.02 * i, 0.3), n=40)

    def shares(self, run):
        return [line["shares"] for line in self.lines(run) if line["phase"] == "train"]

    def losses(self, run):
        return [line["loss"] for line in self.lines(run) if line["phase"] == "train_step"]

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "each rank needs a core of its own")
    def test_gives_a_rank_with_a_quarter_of_a_core_less_to_do(self):
        self.train("alone", 1, *self.words[1:])
        fast, slow = sorted(os.sched_getaffinity(0))[:2]
        busy = [subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{slow}}})\nwhile True: pass"]) for _ in range(3)]
        try:
            process = self.start_meshard("train", "car.yaml", "run_id=shared", "--nproc", 2, *self.words)
            process.wait_for(lambda: len(ranks_of(process.pid)) == 2, "two ranks")
            for rank, core in zip(ranks_of(process.pid), (fast, slow)):
                keep_on(rank, core)
            self.assert_good(process.result())
        finally:
            for other in busy:
                other.kill()
                other.wait()
        shares = self.shares("shared")
        self.assertEqual(shares[0], [0.5, 0.5])
        self.assertGreater(max(of_fast for of_fast, _ in shares), 0.6)   # 0.8 where nothing else runs
        for found, expected in zip(self.losses("shared"), self.losses("alone"), strict=True):
            self.assertAlmostEqual(found, expected, delta=1e-4 * expected)

    def test_goes_on_with_the_shares_of_a_run_that_stopped(self):
        self.train("whole", 2, *self.words, "training.max_steps=6")
        tell_shares(self.folder / "runs/whole/checkpoints/last.safetensors", [0.75, 0.25])
        self.assert_good(self.meshard("train", "--resume", "runs/whole", "--nproc", 2, "training.max_steps=9"))
        self.assertEqual(self.shares("whole")[2], [0.75, 0.25])
        self.assertEqual(len(self.losses("whole")), 9)

    def test_is_refused_where_shares_cannot_follow(self):
        for words, text in ((("data.parts=4",), "data.parts makes 4 for 2 ranks. Leave data.parts out, or set it to 8 or more"),
                            (("training.exact=true",), "parallel.balance is auto, which training.exact does not go with")):
            self.assert_fails(self.meshard("train", "car.yaml", "--nproc", 2, "parallel.balance=auto", *words), 2, text)
