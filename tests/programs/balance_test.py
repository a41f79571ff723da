# SPDX-License-Identifier: Apache-2.0
"""parallel.balance: ranks that compute more slowly than the others have smaller shares of each case, of points and of grids, and nothing else changes."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import unittest

from grids_test import Grids
from samples import put_flow, write_body
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


def threads_of(process):
    return [int(thread.name) for thread in pathlib.Path(f"/proc/{process}/task").iterdir()]


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


def train_on_uneven_cores(case, file, *words):
    """Trains the run `shared` on two ranks, of which the second gets a tenth of its core for the steps, whatever else runs: beside it a program computes to which the
    system gives more by ten steps of priority."""
    if len(os.sched_getaffinity(0)) < 2:
        raise unittest.SkipTest("each rank needs a core of its own")
    fast, slow = sorted(os.sched_getaffinity(0))[:2]
    busy = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{slow}}})\nwhile True: pass"])
    try:
        process = case.start_meshard("train", file, "run_id=shared", "--nproc", 2, *words)
        process.wait_for((case.folder / "runs/shared/metrics.jsonl").exists, "the cases are read")
        on_fast, on_slow = ranks_of(process.pid)
        for thread in threads_of(on_fast):
            os.sched_setaffinity(thread, {fast})
        for thread in threads_of(on_slow):
            os.sched_setaffinity(thread, {slow})
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, busy.pid) + 10)
        case.assert_good(process.result())
    finally:
        busy.kill()
        busy.wait()


def assert_follow_speeds(case, shares, losses, losses_alone):
    case.assertEqual(shares[0], [0.5, 0.5])
    case.assertGreater(max(of_fast for of_fast, _ in shares), 0.6)   # 0.9 where nothing else runs
    for found, expected in zip(losses, losses_alone, strict=True):
        case.assertAlmostEqual(found, expected, delta=1e-4 * expected)


class Balance(Modes):
    timeout = 200
    words = ("parallel.balance=auto", "data.parts=32", "training.num_epochs=4", "model.n_hidden=64", "training.scheduler.name=constant")

    def setUp(self):
        super().setUp()
        for i, path in enumerate(sorted(self.folder.glob("cases/run_*/boundary_*.vtp"))):
            write_body(path, lengths=(1.0, 0.4 + 0.02 * i, 0.3), n=40)

    def shares(self, run):
        return [line["shares"] for line in self.lines(run) if line["phase"] == "train"]

    def losses(self, run):
        return [line["loss"] for line in self.lines(run) if line["phase"] == "train_step"]

    def test_gives_a_rank_with_a_tenth_of_a_core_less_to_do(self):
        self.train("alone", 1, *self.words[1:])
        train_on_uneven_cores(self, "car.yaml", *self.words)
        assert_follow_speeds(self, self.shares("shared"), self.losses("shared"), self.losses("alone"))

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


class GridBalance(Grids):
    words = ("parallel.balance=auto", "training.num_epochs=4", "training.scheduler.name=constant", "model.n_hidden=64")

    def of_phase(self, run, phase, key):
        return [line[key] for line in self.lines(run) if line["phase"] == phase]

    def test_gives_a_rank_with_a_tenth_of_a_core_fewer_rows(self):
        put_flow(self.folder, (96, 64))
        self.train("alone", 1, *self.words[1:])
        train_on_uneven_cores(self, "flow.yaml", *self.words)
        assert_follow_speeds(self, *(self.of_phase("shared", phase, key) for phase, key in (("train", "shares"), ("train_step", "loss"))),
                             self.of_phase("alone", "train_step", "loss"))

    def test_goes_on_with_the_shares_of_a_run_in_blocks(self):
        put_flow(self.folder)
        self.train("alone", 1)
        self.train("whole", 4, "parallel.balance=auto", "parallel.domain=[2, 2]", "training.max_steps=1")
        tell_shares(self.folder / "runs/whole/checkpoints/last.safetensors", [0.1, 0.1, 0.3, 0.5])
        self.assert_good(self.meshard("train", "--resume", "runs/whole", "--nproc", 4, "training.max_steps=0", "data.memory=0"))
        for found, expected in zip(self.of_phase("whole", "train", "shares")[-1], (1 / 12, 1 / 12, 5 / 12, 5 / 12), strict=True):
            self.assertAlmostEqual(found, expected)   # one of six groups of rows along y, and each half of x
        self.assert_near(self.numbers("whole")[-3:], self.numbers("alone")[-3:], 1e-4)
