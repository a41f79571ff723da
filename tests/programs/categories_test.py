# SPDX-License-Identifier: Apache-2.0
"""Categories: which whole numbers stand for kinds of points does not matter, on any ranks; and a kind that training did not have is named."""
import json
import re

from runner import Case
from samples import data_array, put_flow, put_vortices, write_flow
from simulation_test import arrays_of, relative_l2
from training_modes_test import arrays_of as weights_of

POINTS = """\
run_id: static
data:
  root: vortices
  surface: run_*/state_0003.vtp
  association: point
  inputs: [points]
  fields: {vorticity: vorticity}
  categories: [kind]
  split: {train: ['000', '001'], val: ['002'], test: ['003']}
model: {name: transolver, n_hidden: 16, n_layers: 1, n_head: 2, slice_num: 4}
training: {num_epochs: 2}
"""

# In ascending order, so that the columns of kinds keep their order.
FEW, WIDE = (0, 4, 6), (-7, 900, 70000)
STEPS = ("training.num_epochs=1", "training.max_steps=4", "data.arrays=[circulation, viscosity]", "data.categories=[kind]")
OF_GRIDS = ("model.name=unet2d", "model.num_channels=8", "model.depth=2", "model.num_groups=2", "training.num_epochs=1")


class Categories(Case):
    timeout = 300

    def put_points(self, kinds):
        """Runs whose points are of the kinds in turn."""
        put_vortices(self.folder, num_runs=4, num_states=5)
        for state in (self.folder / "vortices").glob("run_*/*.vtp"):
            text = state.read_text()
            count = int(re.search(r'NumberOfPoints="(\d+)"', text).group(1))
            state.write_text(text.replace("<PointData>", "<PointData>" + data_array("kind", "Int32", 1, [kinds[i % 3] for i in range(count)]), 1))
        (self.folder / "static.yaml").write_text(POINTS)

    def put_grids(self, name, kinds):
        for number in range(4):
            write_flow(self.folder / f"flows/{name}_{number}.vti", number, change=lambda arrays: {**arrays, "kind": (1, [kinds[i // 40 % 3] for i in range(192)])})

    def train(self, file, run, *words):
        self.assert_good(self.meshard("train", file, f"run_id={run}", *words))
        lines = map(json.loads, (self.folder / "runs" / run / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if line["phase"] in ("train_step", "val", "test")]

    def num_weights(self, run):
        weights = weights_of(self.folder / f"runs/{run}/checkpoints/last.safetensors")
        return sum(len(values) // 4 for name, values in weights.items() if not name.startswith(("optimizer.", "average.", "raw.")))

    def assert_near(self, found, expected):
        for one, other in zip(found, expected, strict=True):
            self.assertAlmostEqual(one, other, delta=1e-4 * abs(other))

    def test_of_points_and_their_runs_are_told_one_by_one(self):
        losses = {}
        for kinds in (FEW, WIDE):
            self.put_points(kinds)
            losses[kinds] = [self.train("static.yaml", f"static{len(losses)}"), self.train("vortex.yaml", f"steps{len(losses)}", *STEPS)]
        self.assertEqual(losses[FEW], losses[WIDE])
        for name, file, words, expected in (("static", "static.yaml", (), losses[WIDE][0]), ("steps", "vortex.yaml", STEPS, losses[WIDE][1])):
            self.assert_near(self.train(file, f"{name}_on3", *words, "--nproc", 3), expected)
        told = self.train("static.yaml", "numbers", "data.categories=[]")
        self.assertNotEqual(told, losses[WIDE][0])
        self.assertEqual(self.num_weights("static1") - self.num_weights("numbers"), 3 * 32)   # of the first layer, three inputs more
        self.check_static("runs/static1")
        self.check_steps("runs/steps1")

    def check_static(self, run):
        self.assert_good(self.meshard("evaluate", run, "all", "-o", "errors", "--nproc", 2))
        for case in json.loads((self.folder / "errors/evaluation.json").read_text())["cases"]:
            self.assert_good(self.meshard("predict", run, f"vortices/run_{case['id']}/state_0003.vtp", "-o", "out.vtp", "--overwrite"))
            found = arrays_of(self.folder / "out.vtp")
            self.assertAlmostEqual(relative_l2(found["vorticity_predicted"], found["vorticity"]), case["fields"]["vorticity"]["rel_l2"], delta=1e-5)
        self.assert_good(self.meshard("train", "--resume", run, "training.num_epochs=3"))

    def check_steps(self, run):
        words = ("predict", run, "vortices/run_003.pvd", "--steps", 3, "-o")
        for name, num_ranks in (("alone.pvd", 1), ("both.pvd", 2)):
            self.assert_good(self.meshard(*words, name, "--nproc", num_ranks))
        alone, both = (arrays_of(self.folder / f"{name}/{name}_0003.vtp") for name in ("alone", "both"))
        self.assertLess(relative_l2(both["vorticity"], alone["vorticity"]), 1e-5)
        self.assertEqual(set(alone["kind"]), set(WIDE))

    def test_of_grids_are_told_one_by_one(self):
        put_flow(self.folder)
        words = ("data.categories=[kind]", *OF_GRIDS)
        losses = {}
        for name, kinds in (("few", FEW), ("wide", WIDE)):
            self.put_grids(name, kinds)
            losses[name] = self.train("flow.yaml", name, f"data.grid={name}_*.vti", *words)
        self.assertEqual(losses["few"], losses["wide"])
        self.assert_near(self.train("flow.yaml", "on3", "data.grid=wide_*.vti", *words, "--nproc", 3), losses["wide"])
        self.assert_good(self.meshard("evaluate", "runs/wide", "all", "--nproc", 2))
        self.assert_good(self.meshard("predict", "runs/wide", "flows/wide_3.vti", "-o", "out.vti"))
        self.assert_fails(self.meshard("predict", "runs/wide", "flows/few_3.vti", "-o", "other.vti"), 3, "few_3.vti", "'kind' is 0", "(x, y, z)", "-7, 900, 70000")
        self.assertNotIn("other.vti", self.names())
        for number in range(4):
            write_flow(self.folder / f"flows/many_{number}.vti", number, change=lambda arrays: {**arrays, "kind": (1, range(192))})
        self.assert_fails(self.meshard("train", "flow.yaml", "run_id=many", "data.grid=many_*.vti", words[0]), 3, "case 0", "'kind' has 192 different values", "at most 64")

    def test_that_are_wrong_are_named(self):
        self.put_points(FEW)
        self.train("static.yaml", "static", "training.max_steps=1")
        self.train("vortex.yaml", "steps", *STEPS)
        state = self.folder / "vortices/run_003/state_0003.vtp"
        text = state.read_text()
        state.write_text(re.sub(r'(Name="kind"[^>]*>\S+ )\S+', r"\g<1>5", text))
        for words in (("runs/static", state), ("runs/steps", "vortices/run_003.pvd", "--steps", 4)):
            self.assert_fails(self.meshard("predict", *words, "-o", "out.vtp" if state in words else "out.pvd"), 3, "state_0003.vtp", "'kind' is 5 in row 1", "0, 4, 6")
        self.assert_fails(self.meshard("train", "static.yaml", "run_id=other"), 3, "case 003", "'kind' has 5", "0, 4, 6")
        self.assert_fails(self.meshard("evaluate", "runs/static", "test"), 3, "state_0003.vtp", "'kind' is 5")
        state.write_text(re.sub(r'type="Int32" Name="kind"([^>]*>\S+ )\S+', r'type="Float32" Name="kind"\g<1>0.5', text))
        self.assert_fails(self.meshard("train", "static.yaml", "run_id=other"), 3, "case 003", "'kind' is 0.5 in row 1", "whole numbers")
        for words, *texts in ((["data.categories=[kinds]"], 3, "no point field 'kinds'", "kind"), (["data.categories=[kind, kind]"], 2, "twice"),
                              (["data.categories=[k*]"], 2, "pattern"), (["data.categories=[place]"], 3, "place")):
            self.assert_fails(self.meshard("train", "static.yaml", "run_id=other", *words), *texts)
