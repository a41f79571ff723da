# SPDX-License-Identifier: Apache-2.0
"""The programs on the stand-in accelerator (tests/support/standin): the CPU's results to rounding, and no more copies and waits than a GPU can bear."""
import collections
import json
import re
import shutil
import socket
import threading
import zlib

from runner import PROGRAM, Case
from grids_test import MODELS as MODELS_OF_GRIDS
from samples import put_flow, put_training, write_body

LIBRARY = PROGRAM.parent.parent / "lib" / "libmeshard_standin.so"


class OnDevice(Case):
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

    def counts(self, num_steps, *words, num_ranks=1):
        """What a run of so many steps asks of its devices."""
        name = f"steps{num_steps}of{num_ranks}-{zlib.crc32(str(words).encode())}"
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


class StandIn(OnDevice):
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

    def test_copies_and_waits_in_a_step_are_those_of_its_loss(self):
        for num_ranks in (1, 2):
            found = self.of_one_step(num_ranks=num_ranks)
            self.assertGreater(sum(number for (what, _), number in found.items() if what == "launch"), 10)
            waits = {key: number for key, number in found.items() if key[0] != "launch"}
            # On each rank; sums over the ranks, of gradients too, are no waits of the host.
            self.assertEqual(waits, {("copy", "copy_to_host_late"): num_ranks, ("sync", "synchronize_event"): num_ranks})

    def test_copies_nothing_for_its_draws_once_all_cases_were_seen(self):
        for words in (["model.dropout=0.1"], ["model.plus=true"]):
            found = self.of_one_step("training.num_epochs=9", *words, after=7)
            self.assertEqual({key: number for key, number in found.items() if key[0] != "launch"},
                             {("copy", "copy_to_host_late"): 1, ("sync", "synchronize_event"): 1}, words)

    def test_cases_that_are_read_in_each_step_are_copied_beside_its_work(self):
        found = self.of_one_step("data.memory=0")
        self.assertNotIn(("copy", "copy_to_device_pageable"), found)
        self.assertIn(("copy", "copy_to_device_late"), found)

    def test_seconds_of_a_step_are_those_of_the_device(self):
        # Each launch takes 20 ms there, by its own clock, which no host waits for: a step takes as long as its launches.
        launches = sum(number for (what, _), number in self.of_one_step().items() if what == "launch")
        self.assert_good(self.on_device("train", "car.yaml", "run_id=clock", "training.num_epochs=1", "training.max_steps=3", MESHARD_STANDIN_LAUNCH_SECONDS="0.02"))
        lines = [json.loads(line) for line in (self.folder / "runs/clock/metrics.jsonl").read_text().splitlines()]
        seconds = {line["step"]: line["seconds"] for line in lines if line["phase"] == "train_step"}
        self.assertGreater(launches, 50)
        self.assertAlmostEqual(seconds[2], 0.02 * launches, delta=0.02 * 5)
        in_steps = next(line["seconds_in_steps"] for line in lines if line["phase"] == "train")
        self.assertAlmostEqual(in_steps, sum(seconds.values()), delta=1e-6)

    def assert_out_of_memory(self, result, *texts):
        self.assertEqual(result.code, 4, str(result))
        last = result.err.splitlines()[-1]
        for text in ("meshard ", "out of memory: ", *texts):
            self.assertIn(text, last)
        for frames in ("frame #", "Exception raised", "c10::"):
            self.assertNotIn(frames, result.err)
        self.assertEqual(len([line for line in result.err.splitlines() if "out of memory" in line]), 1, result.err)

    def test_says_what_does_not_fit_into_a_device(self):
        for i, path in enumerate(self.folder.glob("cases/run_*/boundary_*.vtp")):
            write_body(path, lengths=(1.0, 0.4 + 0.02 * i, 0.3), n=16)
        model = ["model.n_hidden=256", "model.n_head=8"]
        little = {"MESHARD_STANDIN_MEMORY": str(16 << 20)}
        found = self.on_device("train", "car.yaml", "run_id=big", *model, **little)
        self.assert_out_of_memory(found, "a training step of case", "1536 points", "the 16.0 MiB of standin:0", "memory mode stored", "a point",
                                  "Use ", "--nproc ", "data.sampling_resolution")
        self.assertFalse((self.folder / "runs/big/checkpoints/last.safetensors").exists())
        self.assert_good(self.meshard("train", "car.yaml", "run_id=cpu", *model, "training.max_steps=1", "--device", "cpu"))
        deep = {"MESHARD_STANDIN_MEMORY": str(40 << 20)}
        plan = self.on_device("train", "car.yaml", "run_id=deep", *model, "model.n_layers=3", "--print-plan", **deep)   # which takes the memory of one layer
        self.assert_good(plan)
        self.assertRegex(plan.out, r"stored: [\d.]+ KiB a point, [\d.]+ MiB a rank with weights, does not fit into 40.0 MiB; on [2-9] ranks it does")
        self.assertRegex(plan.out, r"recomputed: [\d.]+ KiB a point, [\d.]+ MiB a rank with weights *\n")
        self.assert_out_of_memory(self.on_device("train", "car.yaml", "run_id=deep", *model, "model.n_layers=3", **deep), "a training step of case")
        mesh = next(self.folder.rglob("*.vtp"))
        less = {"MESHARD_STANDIN_MEMORY": str(10 << 20)}
        self.assert_out_of_memory(self.on_device("predict", "runs/cpu", mesh, "-o", "there.vtp", "--memory", "stored", **less),
                                  "a prediction of", "1536 points", "--memory recomputed")
        self.assertFalse((self.folder / "there.vtp").exists())
        self.assert_out_of_memory(self.on_device("bench", "model", "--points", 20000, "--repeats", 1, **little), "a training step of transolver, 20000 points",
                                  "--points")

    def test_bench_model_goes_on_after_a_run_that_does_not_fit(self):
        result = self.on_device("bench", "model", "--points", 20000, "--repeats", 1, "--json", "--also", "points=500,precision=tf32,graph=true", "--also",
                                "points=500,precision=float16", "--also", "points=4000,memory=auto", "--also", "points=500,memory=streamed,slices=8",
                                MESHARD_STANDIN_MEMORY=str(32 << 20))
        self.assert_good(result)
        runs = [json.loads(line) for line in result.out.splitlines()]
        self.assertIn("out of memory", runs[0]["error"])
        self.assertEqual([(run["points"], run["slices"], run["memory"], run["precision"]) for run in runs[1:]],
                         [(500, 32, "stored", "tf32"), (500, 32, "stored", "float16"), (4000, 32, "recomputed", "float32"), (500, 8, "streamed", "float32")])
        self.assertLess(runs[2]["gradient_error"], 0.05)
        self.assertGreater(runs[2]["gradient_error"], 1e-5)
        self.assertEqual(runs[1]["output_error"], 0)   # on hosts products in TF32 are products in float32
        self.assertEqual([bool(run["graph_us_per_point"]) for run in runs[1:]], [True, False, False, False])
        for run in runs[1:]:
            self.assertNotIn("error", run)
            self.assertGreater(run["training_us_per_point"], 0)
            self.assertLess(run["peak_bytes"], 32 << 20)

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
        for result in results.values():
            self.assert_fails(result, 2, "the ranks were started differently: device is ", " on rank 0 and 'cpu' on rank 1")

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
        self.assertEqual(more.get(("copy", "copy_to_host_late"), 0), 2 * 7)  # in each of two steps the seven tensors of points that the block keeps
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

    def test_integrates_forces_of_fields_without_units(self):
        words = ("training.max_steps=1", "data.targets=nondimensional", "data.reference.U_inf=[4, 0, 0]", "data.forces.area=0.1")
        self.assert_good(self.meshard("train", "car.yaml", "run_id=cpu", *words, "--device", "cpu"))
        mesh = next(self.folder.rglob("*.vtp"))

        def forces(result):
            self.assert_good(result)
            return [float(number) for number in re.findall(r"-?[0-9]+[.][0-9]+(?:e-?[0-9]+)?", result.out)]

        here = forces(self.meshard("predict", "runs/cpu", mesh, "-o", "here.vtp", "--forces", "--device", "cpu"))
        there = forces(self.on_device("predict", "runs/cpu", mesh, "-o", "there.vtp", "--forces"))
        self.assertEqual(len(there), len(here))
        self.assertGreater(len(here), 0)
        for one, other in zip(there, here):
            self.assertAlmostEqual(one, other, delta=1e-3 * (1 + abs(other)))


SMALL = ("model.n_layers=1", "model.n_hidden=16", "model.n_head=2", "model.slice_num=4")
DRAWN = ("data.sampling_resolution=40",)
MODELS_OF_POINTS = {
    "transolver": DRAWN,
    "flare": ("~model", "model.name=flare", *SMALL, *DRAWN),
    "geotransolver": ("~model", "model.name=geotransolver", *SMALL, *DRAWN),
    "constants": ("~model", "model.name=geotransolver", *SMALL, *DRAWN, "data.constants=[rho, speed]"),
    "encoded": (*DRAWN, "data.encoding=learnable", "data.encoding_scales=[0.5, 2]"),
    "weighted": (*DRAWN, "training.point_weights=areas"),
    # Searches for the neighbours of a case that stays as it is: its tensors themselves are recorded.
    "meshgraphnet": ("~model", "model.name=meshgraphnet", "model.processor_size=2", "model.hidden_dim_processor=8")}
REPLAYS = {"meshgraphnet": 5}   # of 12 steps, where it is not all but the warm-ups


class StepsFromAGraph(OnDevice):
    def assert_same_losses(self, name, *words, configuration="car.yaml", num_ranks=1, replays=9):
        runs = {}
        for capture in ("false", "true"):
            runs[capture] = f"{name}_{num_ranks}_{capture}"
            result = self.on_device("train", configuration, f"run_id={runs[capture]}", "training.num_epochs=20", "training.max_steps=12", "training.clip_norm=1", *words,
                                    f"training.graph_capture={capture}", "--nproc", num_ranks)
            self.assert_good(result)
        self.assertEqual(len(self.losses(runs["true"])), len(self.losses(runs["false"])))
        self.assertEqual(self.losses(runs["true"]), self.losses(runs["false"]))
        self.assertIn(f"and {replays} of 12 steps ran from there", result.out + result.err)

    def put_flows(self, name):
        shutil.rmtree(self.folder / "flows", ignore_errors=True)
        put_flow(self.folder, MODELS_OF_GRIDS[name][0])

    def test_have_the_losses_of_steps_as_they_are(self):
        for memory in ("stored", "recomputed", "streamed"):
            for precision in ("float32", "bfloat16"):
                with self.subTest(memory=memory, precision=precision):
                    self.assert_same_losses(f"{memory}_{precision}", *DRAWN, f"training.memory={memory}", f"training.precision={precision}")

    def test_have_the_losses_of_steps_as_they_are_for_models_of_points(self):
        for name, words in MODELS_OF_POINTS.items():
            with self.subTest(name):
                self.assert_same_losses(name, *words, replays=REPLAYS.get(name, 9))

    def test_have_the_losses_of_steps_as_they_are_for_models_of_grids(self):
        for name, (_, words) in MODELS_OF_GRIDS.items():
            with self.subTest(name):
                self.put_flows(name)
                if name != "dit":
                    self.assert_same_losses(name, *words, configuration="flow.yaml")
                    continue
                result = self.on_device("train", "flow.yaml", *words, "training.max_steps=1", "training.graph_capture=true")
                self.assert_good(result)
                self.assertIn("steps run as they are: a step draws a level of noise", result.out + result.err)

    def test_have_the_losses_of_steps_as_they_are_on_several_ranks(self):
        for name, words, expected in (("cases", (), {}),
                                      ("streamed", ("training.memory=streamed", "training.precision=bfloat16"), {}),
                                      ("groups", (*DRAWN, "parallel.data=2"), {"replays": 6}),         # of two cases a step, and of one
                                      ("groups", ("parallel.data=2",), {"replays": 6, "num_ranks": 4}),
                                      ("ghosts", MODELS_OF_POINTS["meshgraphnet"], {"replays": 5}),
                                      ("drawn", DRAWN, {"replays": 0})):                               # other points on each rank in each step
            with self.subTest(name):
                self.assert_same_losses(name, *words, **{"num_ranks": 2, **expected})
        for name in ("vit", "fno2d", "unet2d"):
            with self.subTest(name):
                self.put_flows(name)
                self.assert_same_losses(name, *MODELS_OF_GRIDS[name][1], configuration="flow.yaml", num_ranks=2)

    def test_are_one_launch_and_the_optimiser(self):
        words = [*DRAWN, "training.num_epochs=20", "training.val_interval=100"]
        # Steps 10 and 11 lie within an epoch of three cases: neither run writes a best checkpoint that the other does not.
        found = self.of_one_step(*words, "training.graph_capture=true", after=10)
        self.assertEqual(found["launch", "graph"], 1)
        launches = sum(number for (what, _), number in found.items() if what == "launch")
        as_they_are = sum(number for (what, _), number in self.of_one_step(*words, after=10).items() if what == "launch")
        self.assertLess(launches, as_they_are / 2)
        waits = {key: number for key, number in found.items() if key[0] == "sync"}
        self.assertEqual(waits, {("sync", "synchronize_event"): 1})

    def test_are_refused_with_a_reason(self):
        words = ["train", "car.yaml", "training.max_steps=5", "training.num_epochs=5", *DRAWN, "training.graph_capture=true"]
        for more, why in ((["training.accumulate=2"], "gradients of several cases"),
                          (["training.offload=true"], "training.offload copies tensors"), (["model.dropout=0.1"], "the model draws random numbers")):
            result = self.on_device(*words, f"run_id=run{len(why)}", *more)
            self.assert_good(result)
            self.assertIn("training.graph_capture: steps run as they are: ", result.out + result.err)
            self.assertIn(why, result.out + result.err)
        result = self.on_device(*words, "run_id=sharing", "--nproc", 2, MESHARD_STANDIN_DEVICES="1")
        self.assertIn("ranks share a device, and their messages go by way of the host", result.out + result.err)
        result = self.meshard(*words, "run_id=cpu", "--device", "cpu")
        self.assertIn("ranks compute on CPUs, where nothing is recorded", result.out + result.err)
