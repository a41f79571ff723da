# SPDX-License-Identifier: Apache-2.0
"""`meshard train --print-plan`: what it says will run is what there is then, on one rank and on two, and nothing is trained."""
import json
import math
import re

from runner import Case
from samples import put_training, write_body


class TrainingPlan(Case):
    def setUp(self):
        super().setUp()
        put_training(self.folder)

    def plan(self, *words, **options):
        """Of each line its word, and what it says; lines without a word go on with the one before."""
        result = self.meshard("train", "car.yaml", "--print-plan", *words, **options)
        self.assert_good(result)
        self.assertEqual(self.names(self.folder / "runs/car"), ["shards"], "a plan leaves nothing but shards")
        lines = {}
        for line in result.out.splitlines():
            word, text = re.fullmatch(r"  (\w*) +(\S.*?) *", line).groups()
            last = word or last
            lines.setdefault(last, []).append(text)
        self.assertEqual(list(lines), ["model", "ranks", "device", "points", "precision", "memory", "needs", "training", "validation"], str(result))
        return lines

    def points(self, plan):
        total, fewest, most = re.fullmatch(r"(\d+) in case \S+, (\d+)(?: to (\d+))? a rank", plan["points"][0]).groups()
        return int(total), int(fewest), int(most or fewest)

    def test_of_one_rank_has_all_points_and_the_parameters_of_the_checkpoint(self):
        plan = self.plan()
        self.assertEqual(plan["ranks"], ["1: 1 data x 1 domain, transport none"])
        self.assertEqual(len(set(self.points(plan))), 1)
        self.assertEqual((plan["precision"], plan["memory"]), (["float32"], ["stored"]))
        self.assertEqual((plan["training"], plan["validation"]), (["block 1: fused"], ["block 1: inferred"]))

        self.assert_good(self.meshard("train", "car.yaml", "training.max_steps=1"))
        data = (self.folder / "runs/car/checkpoints/last.safetensors").read_bytes()
        arrays = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        count = sum(math.prod(array["shape"]) for name, array in arrays.items() if not name.startswith(("norm.", "optimizer.", "__metadata__")))
        self.assertEqual(plan["model"], [f"transolver, {count} parameters"])

    def test_of_two_ranks_shares_the_points(self):
        plan = self.plan("--nproc", 2)
        total, fewest, most = self.points(plan)
        self.assertTrue(plan["ranks"][0].startswith("2: 1 data x 2 domain, transport "))
        self.assertEqual(fewest + most, total)
        self.assertEqual(total, self.points(self.plan())[0])
        self.assertEqual(plan["training"], ["block 1: fused"])

    def test_of_two_data_groups_has_a_case_each(self):
        plan = self.plan("--nproc", 2, "parallel.data=2")
        self.assertTrue(plan["ranks"][0].startswith("2: 2 data x 1 domain, transport "))
        self.assertEqual(len(set(self.points(plan))), 1)

    def test_says_why_blocks_are_not_fused(self):
        plan = self.plan("--nproc", 2, "model.dropout=0.1", "model.n_layers=3")
        self.assertEqual(plan["training"], ["blocks 1 to 3: eager, not fused: it has dropout in training"])
        self.assertEqual(plan["validation"], ["blocks 1 to 3: inferred"])
        plan = self.plan("model.name=flare", "training.memory=recomputed")
        self.assertEqual(plan["training"], ["block 1: recomputed, not fused: its attention is not physics attention"])
        self.assertEqual(plan["validation"], plan["training"])
        plan = self.plan("~model", "model.name=meshgraphnet", "model.processor_size=1")
        self.assertEqual(plan["training"], ["eager: MeshGraphNet has no blocks of slice attention that could be fused"])

    def test_knows_memory_modes_and_precision(self):
        plan = self.plan("--nproc", 2, "training.memory=streamed", "training.precision=bfloat16")
        self.assertEqual((plan["precision"], plan["memory"]), (["bfloat16"], ["streamed"]))
        self.assertEqual((plan["training"], plan["validation"]), (["block 1: streamed"], ["block 1: streamed"]))

    def bytes_of_modes(self, *words, **options):
        needs = {}
        for line in self.plan(*words, **options)["needs"]:
            mode, number, unit = re.fullmatch(r"(\w+): ([\d.]+) (bytes|KiB) a point, [\d.]+ [KM]iB a rank with weights", line).groups()
            needs[mode] = float(number) * (1024 if unit == "KiB" else 1)
        return needs

    def test_counts_what_each_memory_mode_keeps(self):
        for i, path in enumerate(self.folder.glob("cases/run_*/boundary_*.vtp")):
            write_body(path, lengths=(1.0, 0.4 + 0.02 * i, 0.3), n=16)   # beside whose points slices and weights are nothing
        words = ("model.n_hidden=8", "model.slice_num=2")
        few, more = self.bytes_of_modes(*words), self.bytes_of_modes(*words, "model.n_layers=2")
        self.assertEqual(list(few), ["stored", "recomputed", "streamed"])
        self.assertAlmostEqual(more["recomputed"] - few["recomputed"], 8 * 4, delta=8)   # a layer more keeps its input, eight numbers of four bytes
        self.assertAlmostEqual(more["streamed"], few["streamed"], delta=8)
        self.assertGreater(more["stored"] - few["stored"], 3 * 8 * 4)
        for mode, number in self.bytes_of_modes(*words, "--nproc", 2).items():
            self.assertAlmostEqual(number, few[mode], delta=8 + 0.1 * few[mode])
        self.assertEqual(list(self.bytes_of_modes(*words, "model.dropout=0.1")), ["stored", "recomputed"])
        self.assertEqual(list(self.bytes_of_modes("~model", "model.name=meshgraphnet", "model.processor_size=1", "model.hidden_dim_processor=8")), ["stored"])

    def test_refuses_what_training_would_refuse(self):
        self.assert_fails(self.meshard("train", "car.yaml", "--print-plan", "training.memory=streamed", "model.dropout=0.1"), 3, "it has dropout in training", "Use `recomputed`")

    def test_leaves_an_earlier_run_alone(self):
        self.assert_good(self.meshard("train", "car.yaml", "training.max_steps=1"))
        kept = {path: path.read_bytes() for path in (self.folder / "runs/car").rglob("*") if path.is_file()}
        self.assert_good(self.meshard("train", "car.yaml", "--print-plan", "model.dropout=0.1"))
        self.assertEqual({path: path.read_bytes() for path in (self.folder / "runs/car").rglob("*") if path.is_file()}, kept)
