# SPDX-License-Identifier: Apache-2.0
"""X-MeshGraphNet: graphs of several scales among points drawn from a case."""
import json
import math

import twins
from evaluation_test import arrays_of
from runner import Case

CONFIGURATION = """run_id: scales
data:
  root: cases
  surface: run_*/boundary_*.vtp
  split: {train: ['1', '2'], val: ['3'], test: ['4']}
  fields:
    pressure: {from: pMean, kind: kinematic}
    wss: {from: wallShearStressMean, kind: stress}
  inputs: [points, normals]
  reference: {U_inf: [1, 0, 0]}
model: {name: meshgraphnet, levels: [10, 40, 120], num_neighbors: 4, processor_size: 3, hidden_dim_processor: 16, hidden_dim_node_encoder: 16,
  hidden_dim_edge_encoder: 16, hidden_dim_node_decoder: 16, do_concat_trick: true, mlp_activation_fn: silu}
training: {num_epochs: 2, optimizer: {lr: 3.0e-3}}
"""


class Scales(Case):
    timeout = 200

    def setUp(self):
        super().setUp()
        twins.ahmed_surface(self.folder / "cases", 4)
        (self.folder / "scales.yaml").write_text(CONFIGURATION)

    def train(self, run, ranks, *words):
        self.assert_good(self.meshard("train", "scales.yaml", f"run_id={run}", *words, "--nproc", ranks, "--accept-data"))
        return self.lines(run)

    def lines(self, run):
        return [json.loads(line) for line in (self.folder / f"runs/{run}/metrics.jsonl").read_text().splitlines()]

    def losses(self, run):
        return [line["loss"] for line in self.lines(run) if line["phase"] in ("train_step", "val", "test")]

    def test_train_with_the_same_losses_on_any_number_of_ranks(self):
        for levels in ("[10, 40, 120]", "[10, 100000]"):   # points that are no nodes, and none
            runs = [f"{len(levels)}_on_{ranks}" for ranks in (1, 2, 3)]
            for ranks, run in enumerate(runs, 1):
                self.train(run, ranks, f"model.levels={levels}")
                self.assertEqual(len(self.losses(run)), 4 + 2 + 1)
                for a, b in zip(self.losses(run), self.losses(runs[0]), strict=True):
                    self.assertAlmostEqual(a, b, delta=2e-5 * abs(b))
        self.train("without", 1, "model.levels=[]")
        self.assertNotAlmostEqual(self.losses("without")[0], self.losses(runs[0])[0], delta=1e-4)

    def test_go_on_and_predict(self):
        self.train("whole", 2)
        self.train("halves", 2, "training.max_steps=2")
        self.assert_good(self.meshard("train", "--resume", "runs/halves", "training.max_steps=0", "--nproc", 2))
        self.assertEqual(self.losses("halves")[-2:], self.losses("whole")[-2:])
        self.assert_good(self.meshard("evaluate", "runs/whole"))
        judged = json.loads((self.folder / "runs/whole/evaluation/evaluation.json").read_text())["cases"][0]["fields"]
        self.assert_good(self.meshard("predict", "runs/whole", self.folder / "cases/run_4/boundary_4.vtp", "-o", "new.vtp", "--nproc", 3))
        found = arrays_of(self.folder / "new.vtp")
        error = sum((a - b) ** 2 for a, b in zip(found["pressure"], found["pMean"], strict=True)) / sum(b * b for b in found["pMean"])
        self.assertAlmostEqual(math.sqrt(error), judged["pressure"]["rel_l2"], delta=1e-4 * math.sqrt(error))

    def test_are_learnt(self):
        means = [line["loss"] for line in self.train("long", 1, "training.num_epochs=25", "training.optimizer.lr=0.01") if line["phase"] == "train"]
        self.assertLess(means[-1], 0.5 * means[0])

    def test_that_shrink_are_refused(self):
        for levels in ("[40, 10]", "[0]", "[1.5]"):
            self.assert_fails(self.meshard("train", "scales.yaml", f"model.levels={levels}"), 2, "levels")
