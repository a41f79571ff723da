# SPDX-License-Identifier: Apache-2.0
"""The programs on the stand-in accelerator (tests/support/standin): the CPU's results to rounding, and no more copies and waits than a GPU can bear."""
import collections
import json
import socket
import threading

from runner import PROGRAM, Case
from samples import put_training, write_body

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

    def test_trains_with_the_bits_of_the_cpu_in_exact_mode(self):
        words = ["training.max_steps=3", "training.exact=true", "training.optimizer={name: muon, lr: 0.006}"]
        self.assert_good(self.meshard("train", "car.yaml", "run_id=cpu", *words, "--device", "cpu"))
        expected = self.losses("cpu")
        self.assertGreaterEqual(len(expected), 3)
        for num_ranks in (1, 2, 4):
            self.assert_good(self.on_device("train", "car.yaml", f"run_id=there{num_ranks}", *words, "--nproc", num_ranks))
            self.assertEqual(self.losses(f"there{num_ranks}"), expected)

    def test_goes_on_where_the_cpu_stopped(self):
        self.assert_good(self.meshard("train", "car.yaml", "run_id=whole", "training.max_steps=4", "--device", "cpu"))
        self.assert_good(self.meshard("train", "car.yaml", "run_id=parts", "training.max_steps=2", "--device", "cpu"))
        self.assert_good(self.on_device("train", "--resume", "runs/parts", "training.max_steps=4", "--nproc", 2))
        self.assert_near(self.losses("parts")[-1:], self.losses("whole")[-1:])

    def counts(self, num_steps, *words, num_ranks=1):
        """What a run of so many steps asks of its devices."""
        name = f"steps{num_steps}of{num_ranks}{len(words)}"
        report = self.folder / name
        self.assert_good(self.on_device("train", "car.yaml", f"run_id={name}", "training.num_epochs=1", f"training.max_steps={num_steps}", *words,
                                        "--nproc", num_ranks, MESHARD_STANDIN_REPORT=str(report)))
        found = collections.Counter()
        for line in report.read_text().splitlines():
            _, what, operator, number = line.split()
            found[what, operator] += int(number)
        return found

    def of_one_step(self, *words, num_ranks=1, after=2):
        more = self.counts(after + 1, *words, num_ranks=num_ranks)
        more.subtract(self.counts(after, *words, num_ranks=num_ranks))
        return {key: number for key, number in more.items() if number}

    def test_copies_and_waits_in_a_step_are_those_of_its_loss(self):
        for num_ranks in (1, 2):
            found = self.of_one_step(num_ranks=num_ranks)
            self.assertGreater(sum(number for (what, _), number in found.items() if what == "launch"), 10)
            waits = {key: number for key, number in found.items() if key[0] != "launch"}
            # On each rank; sums over the ranks, of gradients too, are no waits of the host.
            self.assertEqual(waits, {("copy", "copy_to_host_late"): num_ranks, ("sync", "synchronize_event"): 2 * num_ranks})

    def test_steps_from_a_graph_have_the_losses_of_steps_as_they_are(self):
        words = ["training.max_steps=10", "training.num_epochs=10", "data.sampling_resolution=40", "training.clip_norm=1"]
        for memory in ("stored", "recomputed", "streamed"):
            for precision in ("float32", "bfloat16"):
                runs = []
                for capture in ("false", "true"):
                    runs.append(f"{memory}_{precision}_{capture}")
                    result = self.on_device("train", "car.yaml", f"run_id={runs[-1]}", *words, f"training.memory={memory}", f"training.precision={precision}",
                                            f"training.graph_capture={capture}")
                    self.assert_good(result)
                with self.subTest(memory=memory, precision=precision):
                    self.assertIn("1 kind(s) of steps were recorded, and 7 of 10 steps ran from there", result.out + result.err)
                    self.assertEqual(self.losses(runs[0]), self.losses(runs[1]))

    def test_a_step_from_a_graph_is_one_launch_and_the_optimiser(self):
        words = ["data.sampling_resolution=40", "training.num_epochs=20", "training.val_interval=100"]
        found = self.of_one_step(*words, "training.graph_capture=true", after=8)
        self.assertEqual(found["launch", "graph"], 1)
        launches = sum(number for (what, _), number in found.items() if what == "launch")
        as_they_are = sum(number for (what, _), number in self.of_one_step(*words, after=8).items() if what == "launch")
        self.assertLess(launches, as_they_are / 2)
        waits = {key: number for key, number in found.items() if key[0] == "sync"}
        self.assertEqual(waits, {("sync", "synchronize_event"): 2})

    def test_says_why_steps_are_not_recorded(self):
        words = ["train", "car.yaml", "training.max_steps=5", "training.num_epochs=5", "data.sampling_resolution=40", "training.graph_capture=true"]
        for more, why in ((["--nproc", 2], "messages between ranks are not recorded"), (["training.accumulate=2"], "gradients of several cases"),
                          (["training.offload=true"], "training.offload copies tensors"), (["model.dropout=0.1"], "the model draws random numbers")):
            result = self.on_device(*words, f"run_id=run{len(why)}", *more)
            self.assert_good(result)
            self.assertIn(f"training.graph_capture: steps run as they are: ", result.out + result.err)
            self.assertIn(why, result.out + result.err)
        result = self.meshard(*words, "run_id=cpu", "--device", "cpu")
        self.assertIn("ranks compute on CPUs, where nothing is recorded", result.out + result.err)

    def test_does_not_begin_where_another_rank_computes_on_the_cpu(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        results = {}

        def run(rank, start):
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            results[rank] = start(ranks)

        starts = (lambda ranks: self.on_device("train", "car.yaml", **ranks),
                  lambda ranks: self.meshard("train", "car.yaml", "--device", "cpu", environment=ranks))
        threads = [threading.Thread(target=run, args=(rank, start)) for rank, start in enumerate(starts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assert_fails(results[0], 5, "rank 0 computes on a device of type standin, but rank 1 on cpu")
        self.assert_fails(results[1], 5, "rank 1 computes on a device of type cpu, but rank 0 on standin")

    def test_keeps_what_backward_needs_on_the_host(self):
        for i, path in enumerate(self.folder.glob("cases/run_*/boundary_*.vtp")):
            write_body(path, lengths=(1.0, 0.4 + 0.02 * i, 0.3), n=16)
        words = ["training.max_steps=2", "model.n_hidden=256", "model.n_head=8"]  # 1.6 MB a tensor of points
        self.assert_good(self.meshard("train", "car.yaml", "run_id=cpu", *words, "--device", "cpu"))
        copies = {}
        for offload in ("false", "true"):
            report = self.folder / f"report_{offload}"
            self.assert_good(self.on_device("train", "car.yaml", f"run_id=offload_{offload}", *words, f"training.offload={offload}",
                                            MESHARD_STANDIN_REPORT=str(report)))
            self.assert_near(self.losses(f"offload_{offload}"), self.losses("cpu"))
            found = collections.Counter()
            for line in report.read_text().splitlines():
                _, what, operator, number = line.split()
                found[what, operator] += int(number)
            copies[offload] = found
        more = {key: number - copies["false"][key] for key, number in copies["true"].items() if number > copies["false"][key] and key[0] != "launch"}
        self.assertGreater(more.get(("copy", "copy_to_host_late"), 0), 2 * 10)  # in each of two steps
        self.assertEqual({what for what, _ in more}, {"copy"}, more)  # nothing waits for them

    def test_streams_with_the_losses_of_the_cpu(self):
        words = ["training.max_steps=3", "training.memory=streamed"]
        self.assert_good(self.meshard("train", "car.yaml", "run_id=cpu", *words, "--device", "cpu"))
        for num_ranks in (1, 2):
            self.assert_good(self.on_device("train", "car.yaml", f"run_id=there{num_ranks}", *words, "--nproc", num_ranks))
            self.assert_near(self.losses(f"there{num_ranks}"), self.losses("cpu"))
        mesh = next(self.folder.rglob("*.vtp"))
        self.assert_good(self.on_device("predict", "runs/cpu", mesh, "-o", "there.vtp", "--memory", "streamed"))
        self.assertIn("streamed", self.on_device("train", "car.yaml", *words, "--print-plan").out.split("training ")[1])

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
