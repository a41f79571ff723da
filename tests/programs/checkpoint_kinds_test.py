# SPDX-License-Identifier: Apache-2.0
"""Files of weights: told apart by what is in them, whatever they are called; taken directly wherever the model is known."""
import io
import pickle
import shutil
import zipfile

from runner import Case
from samples import copy_sample, put_training
from training_modes_test import arrays_of

SUFFIXES = (".safetensors", ".mdlus", ".pt")


class KindsOfWeights(Case):
    timeout = 300

    def setUp(self):
        super().setUp()
        put_training(self.folder)
        copy_sample("runs", self.folder / "runs")
        copy_sample("body.vtp", self.folder / "body.vtp")
        self.last = self.folder / "runs/car/checkpoints/last.safetensors"
        shutil.copy(self.last, self.folder / "own.safetensors")
        for suffix in SUFFIXES[1:]:
            self.assert_good(self.meshard("convert", "own.safetensors", "car" + suffix))
        self.assert_good(self.meshard("convert", "car.mdlus", "car.safetensors"))

    def started_from(self, file, run, *words):
        self.assert_good(self.meshard("train", "car.yaml", f"run_id={run}", f"training.init={file}", "training.max_steps=1", *words))
        return arrays_of(self.folder / f"runs/{run}/checkpoints/last.safetensors")

    def test_start_training_alike(self):
        expected = self.started_from("own.safetensors", "own")
        for i, suffix in enumerate(SUFFIXES):
            self.assertEqual(self.started_from("car" + suffix, f"run{i}"), expected, suffix)
            shutil.copy(self.folder / ("car" + suffix), self.folder / f"weights{i}.bin")
            self.assertEqual(self.started_from(f"weights{i}.bin", f"bin{i}"), expected, suffix)
        self.assert_good(self.meshard("train", "car.yaml", "run_id=ranks", "training.init=car.mdlus", "training.max_steps=1", "--nproc", 2, "parallel.parameters=sharded"))

    def test_predict_in_place_of_a_run(self):
        contents = set()
        for words in (("car.mdlus",), ("--model", "car.mdlus"), ("car.safetensors",), ("weights.bin",), ("renamed.pt",)):
            shutil.copy(self.folder / "car.mdlus", self.folder / "weights.bin")
            shutil.copy(self.folder / "car.safetensors", self.folder / "renamed.pt")
            self.assert_good(self.meshard("predict", *words, "body.vtp", "-o", "out.vtp", "--center", "bounds"))
            contents.add((self.folder / "out.vtp").read_bytes())
        self.assertEqual(len(contents), 1)
        self.assert_good(self.meshard("predict", "runs/car", "body.vtp", "-o", "run.vtp"))
        shutil.copy(self.folder / "runs/car/checkpoints/best.safetensors", self.folder / "best.bin")
        self.assert_good(self.meshard("predict", "best.bin", "body.vtp", "-o", "file.vtp"))
        self.assertEqual((self.folder / "run.vtp").read_bytes(), (self.folder / "file.vtp").read_bytes())

    def test_that_were_cut_short_are_said_to_be_by_every_verb(self):
        for suffix in SUFFIXES:
            content = (self.folder / ("car" + suffix)).read_bytes()
            short = self.folder / ("short" + suffix)
            for length in (0, 10, len(content) // 2, len(content) - 5):
                short.write_bytes(content[:length])
                for words in (("info", short), ("convert", short, "out.safetensors"), ("predict", short, "body.vtp", "-o", "out.vtp"),
                              ("predict", "--model", short, "body.vtp", "-o", "out.vtp"), ("train", "car.yaml", "run_id=new", f"training.init={short}")):
                    result = self.meshard(*words)
                    self.assert_fails(result, 3, "short" + suffix)
                    self.assertRegex(result.err, "truncated|has 0 bytes", str(words))

    def test_are_told_by_their_content(self):
        for i, suffix in enumerate(SUFFIXES):
            name = f"weights{i}.bin"
            shutil.copy(self.folder / ("car" + suffix), self.folder / name)
            result = self.meshard("info", name)
            self.assert_good(result)
            self.assertIn("checkpoint of a ", result.out)
            self.assert_good(self.meshard("convert", name, f"again{i}.safetensors"))
            self.assertEqual(arrays_of(self.folder / f"again{i}.safetensors"), arrays_of(self.folder / "car.safetensors"))
        shutil.copy(self.folder / "body.vtp", self.folder / "body.pt")
        self.assertNotEqual(self.meshard("info", "body.pt").code, 0)

    def test_name_the_verb_that_converts_them(self):
        """Where only meshard's own checkpoint will do."""
        for name in ("car.mdlus", "car.pt"):
            shutil.copy(self.folder / name, self.last)
            self.assert_fails(self.meshard("train", "--resume", "runs/car", "training.num_epochs=3"), 3, "last.safetensors is no safetensors file",
                              ".mdlus and .pt", "last.safetensors NAME.safetensors` converts it")

    def test_of_another_model_are_refused_by_name(self):
        copy_sample("geo.mdlus", self.folder / "geo.mdlus")
        self.assert_fails(self.meshard("train", "car.yaml", "run_id=new", "training.init=geo.mdlus"), 3, "geo.mdlus holds a GeoTransolver, the model is a Transolver")

    def test_state_of_an_optimizer_is_no_model(self):
        """As PhysicsNeMo's checkpoint.0.1.pt, here without a tensor's storage: names tell it."""
        state = pickle.dumps({"epoch": 1, "optimizer_state_dict": {"param_groups": [{"lr": 0.1, "params": [0]}]}}, protocol=2)
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("checkpoint/data.pkl", state)
            archive.writestr("checkpoint/version", "3\n")
        (self.folder / "checkpoint.0.1.pt").write_bytes(content.getvalue())
        self.assert_fails(self.meshard("train", "car.yaml", "run_id=new", "training.init=checkpoint.0.1.pt"), 3, "checkpoint.0.1.pt", "the state of an optimizer")
