# SPDX-License-Identifier: Apache-2.0
"""The programs on the stand-in accelerator (tests/support/standin): the CPU's results to rounding, and no more copies and waits than a GPU can bear."""
import collections
import json

from runner import PROGRAM, Case
from samples import put_training

LIBRARY = PROGRAM.parent.parent / "lib" / "libmeshard_standin.so"


class StandIn(Case):
    timeout = 300

    def setUp(self):
        super().setUp()
        if not LIBRARY.exists():
            self.skipTest(f"{LIBRARY} is not built")
        put_training(self.folder)

    def on_device(self, *words, **environment):
        return self.meshard(*words, "--device", "standin", environment={"LD_PRELOAD": str(LIBRARY), **environment})

    def losses(self, run):
        lines = [json.loads(line) for line in (self.folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    def assert_near(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            self.assertAlmostEqual(one, other, delta=1e-5 * abs(other))

    def test_trains_with_the_losses_of_the_cpu(self):
        self.assert_good(self.meshard("train", "car.yaml", "run_id=cpu", "training.max_steps=3", "--device", "cpu"))
        for num_ranks in (1, 2):
            result = self.on_device("train", "car.yaml", f"run_id=there{num_ranks}", "training.max_steps=3", "--nproc", num_ranks)
            self.assert_good(result)
            self.assertIn("device standin", result.out + result.err)
            self.assert_near(self.losses(f"there{num_ranks}"), self.losses("cpu"))

    def test_goes_on_where_the_cpu_stopped(self):
        self.assert_good(self.meshard("train", "car.yaml", "run_id=whole", "training.max_steps=4", "--device", "cpu"))
        self.assert_good(self.meshard("train", "car.yaml", "run_id=parts", "training.max_steps=2", "--device", "cpu"))
        self.assert_good(self.on_device("train", "--resume", "runs/parts", "training.max_steps=4", "--nproc", 2))
        self.assert_near(self.losses("parts")[-1:], self.losses("whole")[-1:])

    def test_copies_and_waits_in_a_step_are_those_of_its_loss(self):
        def counts(num_steps):
            report = self.folder / f"report{num_steps}"
            self.assert_good(self.on_device("train", "car.yaml", f"run_id=steps{num_steps}", "training.num_epochs=1", f"training.max_steps={num_steps}",
                                            MESHARD_STANDIN_REPORT=str(report)))
            found = collections.Counter()
            for line in report.read_text().splitlines():
                _, what, operator, number = line.split()
                found[what, operator] += int(number)
            return found

        few, more = counts(2), counts(3)
        more.subtract(few)
        self.assertGreater(sum(number for (what, _), number in more.items() if what == "launch"), 10)
        waits = {key: number for key, number in more.items() if key[0] != "launch" and number}
        self.assertEqual(waits, {("copy", "copy_to_host_late"): 1, ("sync", "synchronize_event"): 2})

    def test_predicts_what_the_cpu_predicts(self):
        self.assert_good(self.meshard("train", "car.yaml", "run_id=cpu", "training.max_steps=1", "--device", "cpu"))
        mesh = next(self.folder.rglob("*.vtp"))
        self.assert_good(self.meshard("predict", "runs/cpu", mesh, "-o", "here.vtp", "--device", "cpu"))
        self.assert_good(self.on_device("predict", "runs/cpu", mesh, "-o", "there.vtp", "--nproc", 2))
        ranges = [json.loads(self.meshard("info", name, "--json").out)["arrays"] for name in ("here.vtp", "there.vtp")]
        self.assertEqual([array["name"] for array in ranges[0]], [array["name"] for array in ranges[1]])
        for here, there in zip(*ranges):
            for bound in ("min", "max"):
                if bound in here:
                    self.assertAlmostEqual(there[bound], here[bound], delta=1e-4 * (1 + abs(here[bound])))
