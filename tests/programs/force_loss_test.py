# SPDX-License-Identifier: Apache-2.0
"""Errors of drag and lift in the loss (`training.force_weights`)."""
import json
import struct

from runner import Case
from samples import put_training

FLOW = ("data.reference.U_inf=[4, 0, 0]", "data.forces.area=0.1", "training.order=fixed", "training.max_steps=4", "training.num_epochs=4")


def weights_of(path):
    """Name to values of the float32 tensors of a checkpoint."""
    content = path.read_bytes()
    size, = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + size])
    return {name: struct.unpack_from(f"<{(end - begin) // 4}f", content, 8 + size + begin)
            for name, entry in header.items() if name != "__metadata__" and entry["dtype"] == "F32" for begin, end in [entry["data_offsets"]]}


class ForceLoss(Case):
    timeout = 300

    def setUp(self):
        super().setUp()
        put_training(self.folder)

    def train(self, run, *words, config=FLOW):
        result = self.meshard("train", "car.yaml", *config, f"run_id={run}", *words)
        self.assert_good(result)
        return [json.loads(line)["loss"] for line in (self.folder / f"runs/{run}/metrics.jsonl").read_text().splitlines() if '"train_step"' in line]

    def test_is_the_same_on_any_number_of_ranks(self):
        for more in ((), ("data.sampling_resolution=40",), ("data.sampling_resolution=40", "data.sampling=areas")):
            plain = self.train("plain", *more, "--overwrite")
            serial = self.train("r1", *more, "training.force_weights=[0.05, 0.01]", "--overwrite")
            self.assertGreater(serial[0], plain[0] * 1.001)
            expected = weights_of(self.folder / "runs/r1/checkpoints/last.safetensors")
            for ranks in (2, 3):
                losses = self.train(f"r{ranks}", *more, "training.force_weights=[0.05, 0.01]", "--nproc", ranks, "data.parts=5", "--overwrite")
                for a, b in zip(serial, losses):
                    self.assertLess(abs(a - b), 1e-4 * abs(a), f"{ranks} ranks, {more}: {serial} {losses}")
                found = weights_of(self.folder / f"runs/r{ranks}/checkpoints/last.safetensors")
                for name, values in expected.items():
                    if name.startswith(("optimizer.", "norm.")):
                        continue
                    self.assertLess(max(abs(a - b) for a, b in zip(values, found[name])), 2e-4, name)

    def test_goes_on_as_if_there_had_been_no_stop(self):
        words = ("training.force_weights=[0.05, 0.01]",)
        whole = self.train("whole", *words)
        self.train("cut", *words, "training.max_steps=2")
        self.assert_good(self.meshard("train", "--resume", "runs/cut", "training.max_steps=4"))
        lines = (self.folder / "runs/cut/metrics.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["loss"] for line in lines if '"train_step"' in line], whole)

    def test_is_refused_without_what_makes_forces_coefficients(self):
        words = ("train", "car.yaml", "training.force_weights=[0.05, 0.01]")
        self.assert_fails(self.meshard(*words, "data.inputs=[points]"), 2, "needs the normals of the points")
        self.assert_fails(self.meshard(*words), 3, "training.force_weights", "data.reference.U_inf")
        self.assert_fails(self.meshard(*words[:2], "training.force_weights=[0.05]"), 2, "must be two numbers")
