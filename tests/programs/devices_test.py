# SPDX-License-Identifier: Apache-2.0
"""Where the programs compute: `--device`, the key `device`, and `meshard info --devices`, on machines without a GPU."""
import json
import pathlib

from runner import PROGRAM, Case
from samples import put_training, sample, write_tensor

HAS_GPU = pathlib.Path("/dev/nvidiactl").exists()
NOT_HERE = ("device cuda: ", "`meshard info --devices`")


class Devices(Case):
    def setUp(self):
        super().setUp()
        put_training(self.folder)

    def train(self, *words, **options):
        return self.meshard("train", "car.yaml", "training.max_steps=1", *words, **options)

    def test_are_refused_by_name_before_anything_is_written(self):
        for words in (("--device", "gpu"), ("device=gpu",), ("--device", "gpu", "--nproc", 2)):
            self.assert_fails(self.train(*words), 2, "device 'gpu' is not one of auto, cpu, cuda. Did you mean 'cuda'?")
        self.assert_fails(self.train("--device", "cud"), 2, "Did you mean 'cuda'?")
        self.assert_fails(self.train("--device", "cuda:1"), 2, "'cuda:1' is not one of")
        self.assertNotIn("runs", self.names())

    def test_that_are_not_there_are_refused_with_the_reason(self):
        if HAS_GPU:
            self.skipTest("there is a GPU")
        self.assert_fails(self.train("--device", "cuda"), 2, *NOT_HERE)
        self.assert_fails(self.train("device=cuda", "--nproc", 2), 2, *NOT_HERE)
        self.assert_fails(self.train("--device", "cuda", environment={"RANK": "0", "WORLD_SIZE": "1"}), 2, *NOT_HERE)
        self.assertNotIn("runs", self.names())
        self.assert_fails(self.train("--device", "cpu", "--nproc", 2, "parallel.backend=nccl"), 5, "nccl was asked for, but ")

    def test_of_the_option_count_before_those_of_the_file(self):
        (self.folder / "car.yaml").write_text("device: cuda\n" + (self.folder / "car.yaml").read_text())
        result = self.train("--device", "cpu", "--nproc", 2)
        self.assert_good(result)
        self.assertIn("2 domain, device cpu, transport shm", result.out + result.err)
        self.assertIn("device: cpu", (self.folder / "runs/car/resolved_config.yaml").read_text())
        self.assert_good(self.train("--device", "cpu", "device=cpu", "--overwrite"))
        self.assert_fails(self.train("--device", "cpu", "device=cuda"), 2, "--device cpu and device=cuda contradict each other")

    def test_of_a_run_may_change_when_it_goes_on(self):
        self.assert_good(self.train("device=cpu"))
        result = self.meshard("train", "--resume", "runs/car", "training.max_steps=2", "--device", "auto")
        self.assert_good(result)
        self.assertIn("resumed after step 1", result.out + result.err)
        self.assertIn("device: auto", (self.folder / "runs/car/resolved_config.yaml").read_text())

    def test_stand_in_the_plan(self):
        result = self.meshard("train", "car.yaml", "--print-plan", "--device", "cpu")
        self.assert_good(result)
        self.assertRegex(result.out, r"(?m)^  device +cpu *$")


class DevicesOfOtherVerbs(Case):
    def test_are_refused_by_name(self):
        run = sample("runs/car")
        mesh = next(sample("cases").rglob("*.vtp"))
        self.assert_fails(self.meshard("predict", run, mesh, "-o", "out.vtp", "--device", "gpu"), 2, "device 'gpu' is not one of auto, cpu, cuda")
        write_tensor(self.folder / "input.safetensors", "input", (4, 2))
        self.assert_fails(self.meshard("probe", "model.pt", "--input", "input.safetensors", "--shard", 0, "--device", "gpu"), 2, "device 'gpu' is not one of")
        self.assert_fails(self.meshard("bench", "model", "--device", "gpu"), 2, "device 'gpu' is not one of")
        self.assert_fails(self.meshard("bench", "model", "--device", "cpu", "--points", 100, "--graph"), 3, "work of the device 'cpu' cannot be recorded")
        self.assert_fails(self.meshard("bench", "ghosts", "--device", "cuda"), 2, "ghosts is timed on CPUs")
        self.assertEqual(self.names(), ["input.safetensors"])

    def test_predict_on_the_cpu_when_asked(self):
        run = sample("runs/car")
        mesh = next(sample("cases").rglob("*.vtp"))
        result = self.meshard("predict", run, mesh, "-o", "out.vtp", "--device", "cpu", "--nproc", 2)
        self.assert_good(result)
        self.assertNotIn("device", result.err)


class InfoOfDevices(Case):
    def test_says_what_there_is_and_what_to_do(self):
        result = self.meshard("info", "--devices")
        self.assert_good(result)
        self.assertRegex(result.out, r"(?m)^  CPU +\d+ threads, ")
        self.assertRegex(result.out, r"(?m)^  LibTorch +\d+\.\d+\.\d+, with(out)? CUDA libraries")
        report = json.loads(self.meshard("info", "--devices", "--json").out)
        self.assertGreater(report["threads"], 0)
        self.assertEqual(report["gpus"] == [], report["advice"] is not None)
        if report["advice"]:
            self.assertIn("GPUs cannot be used: ", result.out)
            self.assertIn(report["advice"], result.out)
        if not report["cuda_libraries"]:
            self.assertIn("run apps/setup.sh --cuda", report["advice"])

    def test_takes_no_file_and_a_file_no_devices(self):
        self.assert_fails(self.meshard("info", "--devices", "car.vtp"), 2, "--devices says nothing of car.vtp")
        self.assert_fails(self.meshard("info"), 2, "which file? Give FILE, or --devices.")

    def test_of_the_program_with_models_leads_back_to_files(self):
        mesh = next(sample("cases").rglob("*.vtp"))
        beside = PROGRAM.parent / "meshard-models"
        self.assertEqual(self.run_words(beside, "info", mesh).out, self.meshard("info", mesh).out)
