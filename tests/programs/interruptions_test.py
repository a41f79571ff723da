# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at a terminal, signals to a group, a lost terminal: what a run leaves, and how it ends."""
import json
import os
import pathlib
import random
import signal
import time

from runner import PROGRAM, REPETITIONS, SOURCE, Case
from samples import copy_sample, put_training, write_body, write_box

INTERRUPTED = 130
CTRL_C = "\x03"
ENDLESS = ("training.num_epochs=1000000", "training.save_interval=1000000")   # no checkpoint `last` but for an interruption


class TrainingCase(Case):
    def setUp(self):
        super().setUp()
        put_training(self.folder)

    def start_training(self, *words, before=(), run="car", **options):
        """A training that has done some steps."""
        process = self.start(*before, PROGRAM, "train", "car.yaml", *ENDLESS, f"run_id={run}", *words, **options)
        metrics = self.folder / "runs" / run / "metrics.jsonl"
        process.wait_for(lambda: metrics.exists() and "train_step" in metrics.read_text(), "the first step")
        time.sleep(random.random() * 0.1)
        return process

    def assert_checkpoint(self, run="car", message=""):
        """One of the last step that was done, and nothing half-written beside it."""
        folder = self.folder / "runs" / run
        self.assertTrue((folder / "checkpoints/last.safetensors").exists(), message)
        self.assertEqual([name for name in self.names(folder / "checkpoints") if "partial" in name], [], message)
        steps = (folder / "metrics.jsonl").read_text().count('"train_step"')
        self.assertEqual(json.loads((folder / "checkpoints/last.json").read_text())["step"], steps, message)

    def assert_stopped_well(self, process, run="car", codes=(INTERRUPTED,)):
        """It ends by itself with a checkpoint and nothing half-written, and no rank lives on."""
        result = process.result()
        self.assertIn(result.code, codes, str(result))
        self.assert_checkpoint(run, str(result))
        time.sleep(0.2)
        self.assertEqual(process.processes_left(), [], str(result))
        return result

    def interrupt_often(self, interrupt, *words, codes=(INTERRUPTED,), **options):
        for i in range(REPETITIONS):
            process = self.start_training(*words, run=f"run{i}", **options)
            interrupt(process)
            self.assert_stopped_well(process, run=f"run{i}", codes=codes)


class CtrlC(TrainingCase):
    def test_ends_one_process_with_a_checkpoint(self):
        self.interrupt_often(lambda process: process.type(CTRL_C), terminal=True)

    def test_ends_two_ranks_with_a_checkpoint(self):
        self.interrupt_often(lambda process: process.type(CTRL_C), "--nproc", 2, terminal=True)

    def test_ends_four_ranks_with_a_checkpoint(self):
        self.interrupt_often(lambda process: process.type(CTRL_C), "--nproc", 4, terminal=True)

    def test_says_what_to_do_next_and_that_works(self):
        process = self.start_training("--nproc", 2, terminal=True)
        process.type(CTRL_C)
        result = self.assert_stopped_well(process)
        self.assertIn("go on with --resume runs/car", result.out)
        self.assertNotIn("exit code", result.out)

        step = (self.folder / "runs/car/metrics.jsonl").read_text().count("train_step")
        self.assert_good(self.meshard("train", "--resume", "runs/car", "--nproc", 2, f"training.max_steps={step + 3}"))

    def test_twice_in_a_second_is_once(self):
        process = self.start_training("--nproc", 2, terminal=True)
        process.type(CTRL_C)
        time.sleep(0.3)
        if not process.has_ended():
            process.type(CTRL_C)
        self.assert_stopped_well(process)

    def test_again_a_second_later_ends_at_once(self):
        process = self.start_training("--nproc", 2, terminal=True)
        rank = max(process.processes_left())
        os.kill(rank, signal.SIGSTOP)   # so that no step ends
        process.type(CTRL_C)
        time.sleep(1.3)
        self.assertFalse(process.has_ended())
        process.type(CTRL_C)
        time.sleep(0.5)
        os.kill(rank, signal.SIGCONT)

        self.assertEqual(process.result().code, INTERRUPTED)
        self.assertFalse((self.folder / "runs/car/checkpoints/last.safetensors").exists())

    def test_before_the_first_step_leaves_nothing_half_made(self):
        for i in range(REPETITIONS + 2):
            process = self.start_meshard("train", "car.yaml", *ENDLESS, f"run_id=car{i}", "--nproc", 2, "data.shards=shards", terminal=True)
            time.sleep(random.random() * 0.8)
            if not process.has_ended():
                process.type(CTRL_C)
            result = process.result()
            self.assertIn(result.code, (INTERRUPTED, -signal.SIGINT), str(result))
            shards = self.folder / "shards"
            self.assertEqual([name for name in (self.names(shards) if shards.exists() else []) if "partial" in name], [], str(result))

    def test_leaves_a_checkpoint_where_messages_go_through_tee(self):
        script = f"'{PROGRAM}' train car.yaml {' '.join(ENDLESS)} --nproc 2 2>&1 | tee run.log"
        for _ in range(REPETITIONS):
            process = self.start("bash", "-c", script, terminal=True)
            metrics = self.folder / "runs/car/metrics.jsonl"
            process.wait_for(lambda: metrics.exists() and "train_step" in metrics.read_text(), "the first step")
            process.type(CTRL_C)
            process.result()
            deadline = time.monotonic() + 20
            while process.processes_left() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assert_checkpoint()
            self.run_words("rm", "-r", "runs")


class Termination(TrainingCase):
    def test_of_the_group_leaves_a_checkpoint_on_one_rank(self):
        self.interrupt_often(lambda process: process.send_to_group(signal.SIGTERM))

    def test_of_the_group_leaves_a_checkpoint_on_two_ranks(self):
        self.interrupt_often(lambda process: process.send_to_group(signal.SIGTERM), "--nproc", 2)

    def test_of_the_group_leaves_a_checkpoint_on_four_ranks(self):
        self.interrupt_often(lambda process: process.send_to_group(signal.SIGTERM), "--nproc", 4)

    def test_of_the_first_process_leaves_a_checkpoint(self):
        self.interrupt_often(lambda process: process.send(signal.SIGTERM), "--nproc", 2)

    def test_by_timeout_leaves_a_checkpoint(self):
        """`timeout` signals its child, and then its whole group, itself included."""
        self.interrupt_often(lambda process: process.send(signal.SIGTERM), "--nproc", 2, before=("timeout", "--preserve-status", "100"))

    def test_of_one_rank_leaves_a_checkpoint(self):
        self.interrupt_often(lambda process: os.kill(max(process.processes_left()), signal.SIGTERM), "--nproc", 2)

    def test_by_losing_the_terminal_leaves_a_checkpoint(self):
        self.interrupt_often(lambda process: process.close_terminal(), "--nproc", 2, terminal=True)

    def test_does_not_come_from_a_lost_terminal_under_nohup(self):
        process = self.start_training("--nproc", 2, terminal=True, ignored=[signal.SIGHUP])
        process.close_terminal()
        time.sleep(0.5)
        self.assertFalse(process.has_ended())
        process.send(signal.SIGTERM)
        self.assert_stopped_well(process)

    def test_of_the_launcher_by_force_leaves_a_checkpoint(self):
        process = self.start_training("--nproc", 2)
        process.send(signal.SIGKILL)
        deadline = time.monotonic() + 20
        while process.processes_left() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(process.processes_left(), [])
        self.assert_checkpoint()

    def test_after_the_last_step_changes_nothing(self):
        """Whenever the signal comes, the code says how the run ended: 0 and all steps, or 130 and a checkpoint, or before the first step."""
        for _ in range(REPETITIONS + 2):
            process = self.start_meshard("train", "car.yaml", "--nproc", 2)
            time.sleep(0.3 + random.random())
            if not process.has_ended():
                process.send_to_group(signal.SIGTERM)
            result = process.result()
            metrics = self.folder / "runs/car/metrics.jsonl"
            is_complete = metrics.exists() and any(json.loads(line).get("phase") == "test" for line in metrics.read_text().splitlines())
            self.assertIn(result.code, (0,) if is_complete else (INTERRUPTED, -signal.SIGTERM), str(result))
            if metrics.exists():
                self.run_words("rm", "-r", "runs")   # metrics of this run must not count for the next, which may end before it replaces them


class MpirunInterruption(TrainingCase):
    """mpirun passes a signal on as SIGTERM, and kills what still runs a while later; its exit code is its own."""
    before = ("mpirun", "-np", "2")

    def setUp(self):
        super().setUp()
        self.needs("mpirun")

    def interrupt_often(self, interrupt, **options):
        super().interrupt_often(interrupt, before=self.before, codes=range(1, 256), **options)

    def test_by_ctrl_c_leaves_a_checkpoint(self):
        self.interrupt_often(lambda process: process.type(CTRL_C), terminal=True)

    def test_by_termination_of_the_group_leaves_a_checkpoint(self):
        self.interrupt_often(lambda process: process.send_to_group(signal.SIGTERM))

    def test_by_termination_of_mpirun_leaves_a_checkpoint(self):
        self.interrupt_often(lambda process: process.send(signal.SIGTERM))


class TorchrunInterruption(TrainingCase):
    def start_torchrun(self, **options):
        torchrun = pathlib.Path(os.environ.get("MESHARD_TORCHRUN", SOURCE / "build/venv/bin/torchrun"))
        probe = self.start(torchrun, "--help") if torchrun.exists() else None
        if probe is None or probe.result().code != 0:
            self.skipTest(f"{torchrun} does not run: the set-up for LibTorch leaves out what only Python's torch needs")
        return self.start_training(before=(torchrun, "--no-python", "--standalone", "--nproc-per-node", "2"), **options)

    def test_by_ctrl_c_leaves_a_checkpoint(self):
        process = self.start_torchrun(terminal=True)
        process.type(CTRL_C)
        self.assert_stopped_well(process, codes=range(-64, 256))

    def test_by_termination_of_the_group_leaves_a_checkpoint(self):
        process = self.start_torchrun()
        process.send_to_group(signal.SIGTERM)
        self.assert_stopped_well(process, codes=range(-64, 256))


class InterruptedOutput(Case):
    """Verbs that write meshes leave nothing when they are interrupted, however the signal comes."""

    def interrupt(self, interrupt, *words, before=(), codes=(INTERRUPTED,), within=1.0, **options):
        present = self.names()
        for i in range(REPETITIONS + 4):
            process = self.start(*before, PROGRAM, *words, **options)
            time.sleep(random.random() * within)
            if not process.has_ended():
                interrupt(process)
            result = process.result()
            self.assertIn(result.code, (0, -signal.SIGTERM, -signal.SIGINT, *codes), str(result))
            output = self.folder / words[words.index("-o") + 1]
            if output.exists():   # finished before the signal
                self.assert_good(self.meshard("check" if output.is_dir() else "info", output))
                self.run_words("rm", "-r", output)
            else:
                self.assertNotEqual(result.code, 0)
            self.assertEqual(self.names(), present, str(result))

    def test_of_partition_by_timeout(self):
        """A program that dies of the signal before it has a handler of its own makes `timeout` end with 128 and the signal's number."""
        write_box(self.folder / "box.vtu", 24)
        self.interrupt(lambda process: process.send(signal.SIGTERM), "partition", "box.vtu", "-n", 16, "--ghost-layers", 2, "-o", "out",
                       before=("timeout", "--preserve-status", "100"), codes=(INTERRUPTED, 128 + signal.SIGTERM))

    def test_of_partition_while_metis_cuts(self):
        """METIS has a handler of its own for SIGTERM, which jumps out of whatever is being done."""
        write_box(self.folder / "ascii.vtu", 24)
        self.assert_good(self.meshard("convert", "ascii.vtu", "box.vtu"))
        for _ in range(4):
            self.interrupt(lambda process: process.send(signal.SIGTERM), "partition", "box.vtu", "-n", 256, "--quality", "-o", "out", within=0.4)

    def test_of_partition_under_mpirun(self):
        """mpirun kills ranks a second after it was told to end, unless it is told to wait: on a busy machine their output is not removed by then."""
        self.needs("mpirun")
        write_box(self.folder / "ascii.vtu", 24)
        self.assert_good(self.meshard("convert", "ascii.vtu", "box.vtu"))
        self.interrupt(lambda process: process.send_to_group(signal.SIGTERM), "partition", "box.vtu", "-n", 16, "-o", "out",
                       before=("mpirun", "-np", "2", "--mca", "odls_base_sigkill_timeout", "6"), codes=range(1, 256))

    def test_of_predict_on_two_ranks(self):
        copy_sample("runs", self.folder / "runs")
        copy_sample("body.vtp", self.folder / "body.vtp")
        self.interrupt(lambda process: process.type(CTRL_C), "predict", "runs/car", "body.vtp", "-o", "out.vtp", "--nproc", 2, terminal=True)

    def test_of_derive_and_interpolate_on_two_ranks(self):
        write_box(self.folder / "box.vtu", 16)
        copy_sample("body.vtp", self.folder / "body.vtp")
        for words in (("derive", "box.vtu", "--gradient", "p"), ("interpolate", "box.vtu", "body.vtp")):
            self.interrupt(lambda process: process.type(CTRL_C), *words, "-o", "out.vtu", "--nproc", 2, terminal=True)


class LastWords(Case):
    """Verbs that go through cases say in one line what is left and how to go on, whenever Ctrl-C comes."""
    num_inputs = 6
    timeout = 300   # many interruptions, each some seconds of a busy machine

    def setUp(self):
        super().setUp()
        put_training(self.folder)
        copy_sample("runs", self.folder / "runs")
        self.inputs = []
        for i in range(self.num_inputs):
            write_body(self.folder / f"in{i}.vtp", (1 + 0.05 * i, 0.4, 0.3), n=40)
            self.inputs.append(f"in{i}.vtp")

    def interrupt(self, *words, after, num_ranks=1):
        """Ctrl-C `after` so many seconds, or once it is true, counted from where the program can be asked to end. None if it ended before."""
        process = self.start_meshard(*words, "--nproc", num_ranks, terminal=True)
        status = pathlib.Path(f"/proc/{process.pid}/status")
        process.wait_for(lambda: int(status.read_text().partition("SigCgt:")[2].split()[0], 16) & 1 << (signal.SIGINT - 1), "its handlers")
        if callable(after):
            deadline = time.monotonic() + 60
            while not after() and not process.has_ended() and time.monotonic() < deadline:
                time.sleep(0.002)
        else:
            time.sleep(after)
        if process.has_ended():
            return None
        try:
            process.type(CTRL_C)
        except OSError:   # it has ended just now, and its terminal is closed
            pass
        result = process.result()
        time.sleep(0.1)
        self.assertEqual(process.processes_left(), [], str(result))
        if result.code == 0:
            return None
        self.assertEqual(result.code, INTERRUPTED, str(result))
        lines = [line for line in result.out.splitlines() if "interrupted" in line]
        self.assertEqual(len(lines), 1, str(result))
        return lines[0]

    def test_of_predict_name_where_to_go_on(self):
        for num_ranks in (1, 2):
            for done in (1, 3):
                out = self.folder / f"out{num_ranks}{done}"
                line = self.interrupt("predict", "runs/car", *self.inputs, "-o", out.name, after=lambda: len(self.finished(out)) >= done, num_ranks=num_ranks)
                if line is None:
                    continue
                count = len(self.finished(out))
                self.assertEqual([name for name in self.names(out) if name not in self.inputs], [])
                self.assertRegex(line, rf"meshard predict: interrupted.* ({count}|{count - 1}) of 6 inputs are predicted, in {out.name}")
                first = line.partition("Go on with ")[2].split()[0].rstrip(",.")
                self.assertIn(first, self.inputs)
                self.assertLessEqual(int(first[2]), count)
                self.assert_good(self.meshard("predict", "runs/car", *self.inputs[int(first[2]):], "-o", out.name, "--nproc", num_ranks))
                if first != self.inputs[-1]:   # of one input OUT is a folder, too
                    self.assertEqual(self.names(out), self.inputs)

    def finished(self, folder):
        """The inputs that are predicted so far. The program makes the folder on trial, and removes it again, before it predicts."""
        return [name for name in self.inputs if (folder / name).exists()]

    def test_come_in_the_first_quarter_of_a_second_too(self):
        for num_ranks in (1, 2):
            for words in (("predict", "runs/car", *self.inputs, "-o", "early"), ("prepare", "car.yaml", "data.shards=early"), ("report", "runs/car", "-o", "early")):
                present = self.names()
                for after in (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25):
                    line = self.interrupt(*words, after=after, num_ranks=num_ranks)
                    if line is not None:
                        self.assertIn(f"meshard {words[0]}: interrupted", line)
                        self.assertRegex(line, "same command|Go on")
                    if words[0] == "report" and (self.folder / "early").exists():
                        self.assertTrue((self.folder / "early/report.html").exists(), line)
                    self.run_words("rm", "-rf", "early")
                    self.assertEqual(self.names(), present, line)

    def test_of_report_leave_no_half_of_it(self):
        self.assert_good(self.meshard("report", "runs/car", "-o", "earlier", "--cases", "all"))
        earlier = self.contents("earlier")
        self.assertEqual(len([path for path in earlier if path.suffix == ".png"]), 36)   # 3 cases, 2 fields, 3 pictures in light and dark
        for _ in range(4 * REPETITIONS):
            for out in ("new", "earlier"):
                line = self.interrupt("report", "runs/car", "-o", out, "--cases", "all", after=0.3 + random.random() * 1.2)
                if out == "new" and (self.folder / "new").exists():
                    self.assertEqual(self.names(self.folder / "new"), ["cases.csv", "pictures", "report.html", "report.json"], line)
                    self.assertEqual(len(self.names(self.folder / "new/pictures")), 36)
                    self.run_words("rm", "-r", "new")
                if out == "earlier":
                    self.assertTrue(line is None or self.contents("earlier") == earlier, line)
                    earlier = self.contents("earlier")

    def contents(self, name):
        return {path: path.read_bytes() for path in (self.folder / name).rglob("*") if path.is_file()}

    def test_of_prepare_are_true(self):
        line = self.interrupt("prepare", "car.yaml", "data.shards=kept", after=lambda: (self.folder / "kept").exists())
        if line is not None:
            self.assertIn("kept", line)
            self.assertIn("the same command goes on", line)
        self.assert_good(self.meshard("prepare", "car.yaml", "data.shards=kept"))

    def test_of_prepare_and_train_claim_no_more_than_was_done(self):
        """In the middle of a case that is cut, when others are complete: those stay, what was begun does not, and nothing is said of what other ranks left."""
        for verb in ("prepare", "train"):
            for num_ranks in (1, 2):
                for number in range(2, 2 + 2 * REPETITIONS):
                    def is_at_work():
                        names = self.names(self.folder / "kept") if (self.folder / "kept").exists() else []
                        return any(".cutting" in name for name in names) and sum("-" in name and "." not in name for name in names) >= number - 1

                    for _ in range(5):   # on a busy machine the moment may be missed
                        self.run_words("rm", "-rf", "kept", "runs")
                        line = self.interrupt(verb, "car.yaml", "data.shards=kept", "data.parts=1000", after=is_at_work, num_ranks=num_ranks)
                        if line is not None:
                            break
                    self.assertIsNotNone(line)
                    self.assertRegex(line, f"meshard {verb}: interrupted. Cases that are .* stay in kept; the same command goes on with the others.")
                    self.assertNotIn("removed", line)
                    left = [str(path) for path in (self.folder / "kept").rglob("*") if ".cutting" in path.name or ".partial" in path.name]
                    self.assertEqual(left, [])
