# SPDX-License-Identifier: Apache-2.0
"""`meshard bench plan`: what it says of GPUs that are not here, and what it refuses."""
import json

from runner import Case

MODEL = ("n_hidden=256", "n_layers=8", "slice_num=64", "mlp_ratio=2")


class BenchPlan(Case):
    def plan(self, *words, **options):
        result = self.meshard("bench", "plan", *words, "--json", **options)
        self.assert_good(result)
        return json.loads(result.out)

    def test_says_that_it_is_a_model(self):
        result = self.meshard("bench", "plan", "--points", "140M", *MODEL)
        self.assert_good(result)
        self.assertTrue(result.out.startswith("A model, not a measurement"), str(result))
        self.assertIn("a model", self.plan("--points", "1k", "--gpus", 1)["is"])

    def test_names_the_fewest_gpus_for_a_mesh(self):
        plan = self.plan("--points", "140M", *MODEL)
        fewest = {entry["memory_mode"]: entry["ranks"] for entry in plan["fewest"]}
        self.assertEqual(list(fewest), ["stored", "recomputed", "streamed"])
        self.assertGreater(fewest["stored"], fewest["recomputed"])
        self.assertGreater(fewest["recomputed"], fewest["streamed"])
        enough = self.plan("--points", "140M", *MODEL, "--gpus", fewest["recomputed"], "--memory", "recomputed")["plans"][0]
        short = self.plan("--points", "140M", *MODEL, "--gpus", fewest["recomputed"] - 1, "--memory", "recomputed")["plans"][0]
        self.assertEqual((enough["fits"], short["fits"]), (True, False))
        ranks = [entry["ranks"] for entry in plan["plans"]]
        self.assertEqual(ranks, [2 ** k for k in range(len(ranks))])
        self.assertGreaterEqual(ranks[-1], fewest["stored"])

    def test_counts_one_message_a_layer_each_way_the_gradients_and_the_loss(self):
        plan = self.plan("--points", "8.8M", "--gpus", 8, *MODEL)
        step = plan["plans"][0]
        self.assertEqual(step["messages"], 8 + 8 + 5 + 1)  # gradients of 14.7 MiB in messages of at most 4, which no parameter is cut for
        self.assertEqual(step["message_bytes"], 8 * 4 * (256 + 8) * 64 + 8 * 4 * 256 * 64 + 4 * plan["parameters"] + 16)
        self.assertAlmostEqual(sum(step["seconds"].values()) + step["message_seconds"], step["step_seconds"])
        self.assertEqual(self.plan("--points", "8.8M", "--gpus", 1, *MODEL)["plans"][0]["messages"], 0)

    def test_follows_the_device_and_its_links(self):
        seconds = {name: self.plan("--points", "1M", "--gpus", 16, "--device", name, *MODEL)["plans"][0]["step_seconds"] for name in ("a100", "h100", "h200", "b200")}
        self.assertEqual(sorted(seconds, key=seconds.get), ["b200", "h200", "h100", "a100"])
        messages = {links: self.plan("--points", "1M", "--gpus", 16, "--links", links, *MODEL)["plans"][0]["message_seconds"] for links in ("nvlink,ib", "nvlink,ethernet", "pcie,ib")}
        self.assertEqual(min(messages, key=messages.get), "nvlink,ib")

    def test_knows_every_model(self):
        for name in ("transolver", "flare", "geotransolver", "meshgraphnet", "mesh_graph_net"):
            self.assertGreater(self.plan("--points", 100000, "--gpus", 2, "--model", name)["plans"][0]["flop"], 1e9, name)

    def test_predicts_this_machine(self):
        for num_ranks in (1, 2):
            plan = self.plan("--points", 2000, "--device", "here", "--nproc", num_ranks, "n_hidden=32", "n_head=4", environment={"OMP_NUM_THREADS": "1"})
            self.assertEqual(plan["plans"][0]["ranks"], num_ranks)
            self.assertGreater(plan["rates"]["product_flops"], 1e8)
            self.assertGreater(plan["plans"][0]["step_seconds"], 1e-4)

    def test_refuses_what_cannot_be(self):
        for points in ("0", "-5", "1.5", "many", "3T"):
            self.assert_fails(self.meshard("bench", "plan", f"--points={points}"), 2, f"--points {points}")
        wrong = {
            ("--points", 10, "--gpus", 11): "every GPU needs a point",
            ("--points", 10, "--gpus", "two"): "--gpus two",
            ("--points", 10, "--device", "h20"): "Did you mean 'h200'?",
            ("--points", 10, "--links", "nvlnk,ib"): "Did you mean 'nvlink'?",
            ("--points", 10, "--model", "transolvr"): "Did you mean 'transolver'?",
            ("--points", 10, "n_hiden=64"): "Did you mean 'n_hidden'?",
            ("--points", 10, "n_hidden=100", "n_head=8"): "n_head",
            ("--points", 10, "--model", "geotransolver", "--memory", "streamed"): "It can in stored, recomputed",
            ("--points", 10, "--model", "geotransolver", "include_local_features=true"): "ball queries",
            ("--points", 10, "--nproc", 2): "--device here",
            ("n_hidden=64",): "--points is missing",
        }
        for words, text in wrong.items():
            self.assert_fails(self.meshard("bench", "plan", *words), 2, text)
