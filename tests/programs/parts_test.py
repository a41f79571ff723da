# SPDX-License-Identifier: Apache-2.0
"""Cases with a surface and a volume: DoMINO trains on both, or on one of them, AB-UPT on both, and both predict either."""
import json
import math
import re
import shutil

import twins
from evaluation_test import arrays_of
from runner import SOURCE, Case

MODEL = """{name: domino, interp_res: [16, 8, 8], processor_type: conv, base_filters: 2, base_neurons: 4, surface_box: [-1, -0.5, -0.3, 1, 0.5, 0.6],
  volume_box: [-7, -5, -1, 11, 5, 6], surface_radii: [0.3], surface_neighbors_in_radius: [8], volume_radii: [1], volume_neighbors_in_radius: [8],
  local_surface_radii: [0.5], local_surface_neighbors: [8], local_volume_radii: [0.6], local_volume_neighbors: [8], num_neighbors_surface: 3,
  num_neighbors_volume: 2, basis_width: 8, position_width: 8, aggregation_width: 8}"""
CONFIGURATION = """run_id: both
data:
  root: cases
  surface: run_*/boundary_*.vtp
  wall: run_*/ahmed_*.stl
  split: {train: ['1', '2', '4'], val: ['5'], test: ['6']}
  fields:
    pressure: {from: pMean, kind: kinematic}
    wss: {from: wallShearStressMean, kind: stress}
  inputs: [points, normals, areas]
  center: none
  length: none
  volume:
    files: run_*/volume_*.vtu
    fields:
      velocity: {from: UMeanTrim, kind: velocity}
      volume_pressure: {from: pMeanTrim, kind: kinematic}
    sampling_resolution: 100
  reference: {U_inf: [1, 0, 0]}
model: """ + MODEL + """
training: {num_epochs: 2, optimizer: {lr: 3.0e-3}, part_weights: [2, 1]}
"""
ONLY_SURFACE = ("~data.volume",)
ONLY_VOLUME = ("~data.surface", "~data.volume", "~data.fields", "data.volume=run_*/volume_*.vtu", "data.fields.velocity.from=UMeanTrim", "data.inputs=[points]")


AB_UPT = ("model={name: abupt, hidden_dim: 24, num_heads: 2, mlp_ratio: 2, physics_blocks: [perceiver, shared, cross], num_surface_blocks: 1,"
          " num_volume_blocks: 1, volume_box: [-7, -5, -1, 11, 5, 6], num_geometry_points: 300, num_supernodes: 40, num_surface_anchors: 50,"
          " num_volume_anchors: 61}", "data.inputs=[points]")


class Parts(Case):
    timeout = 300

    def setUp(self):
        super().setUp()
        twins.ahmed_surface(self.folder / "cases", 6)
        twins.drivaerml_volume(self.folder / "volumes", 6)
        for number in range(1, 7):
            if number != 3:   # which has a surface only
                shutil.copy(self.folder / f"volumes/run_{number}/volume_{number}.vtu", self.folder / f"cases/run_{number}")
        (self.folder / "both.yaml").write_text(CONFIGURATION)

    def train(self, run, ranks, *words):
        result = self.meshard("train", "both.yaml", f"run_id={run}", *words, "--nproc", ranks, "--accept-data")
        self.assert_good(result)
        return result

    def lines(self, run):
        return [json.loads(line) for line in (self.folder / f"runs/{run}/metrics.jsonl").read_text().splitlines()]

    def losses(self, run):
        return [line["loss"] for line in self.lines(run) if line["phase"] in ("train_step", "val", "test")]

    def assert_same_losses(self, run, other, num_steps=6):
        self.assertEqual(len([line for line in self.lines(run) if line["phase"] == "train_step"]), num_steps)
        for a, b in zip(self.losses(run), self.losses(other), strict=True):
            self.assertAlmostEqual(a, b, delta=2e-5 * abs(b))

    def test_are_trained_together_with_the_same_losses_on_any_number_of_ranks(self):
        result = self.train("one", 1)
        self.assertIn("1 case(s) with only one of the two are left out", result.err)
        for ranks in (2, 3):
            self.train(f"on_{ranks}", ranks)
            self.assert_same_losses(f"on_{ranks}", "one")

        self.train("halves", 2, "training.max_steps=4")
        self.assert_good(self.meshard("train", "--resume", "runs/halves", "training.max_steps=0", "--nproc", 2))
        self.assertEqual(self.losses("halves")[-2:], self.losses("on_2")[-2:])
        self.assert_fails(self.meshard("train", "--resume", "runs/halves", "~data.volume"), 3, "data.volume.files", "was set when the run began")

    def test_train_ab_upt_whose_points_are_asked_one_by_one(self):
        for ranks in (1, 2, 3):
            self.train(f"on_{ranks}", ranks, *AB_UPT, "data.sampling_resolution=90")   # 1, 2, 3 ranks: anchors in unequal parts, too
        for ranks in (2, 3):
            self.assert_same_losses(f"on_{ranks}", "on_1")
        self.train("halves", 2, *AB_UPT, "data.sampling_resolution=90", "training.max_steps=4")
        self.assert_good(self.meshard("train", "--resume", "runs/halves", "training.max_steps=0", "--nproc", 2))
        self.assertEqual(self.losses("halves")[-2:], self.losses("on_2")[-2:])

        self.train("recomputed", 2, *AB_UPT, "data.sampling_resolution=90", "training.memory=recomputed")
        self.assert_same_losses("recomputed", "on_1")
        self.assert_good(self.meshard("evaluate", "runs/on_2", "--nproc", 2))
        of_run = next(line for line in self.lines("on_1") if line["phase"] == "test")["metrics"]   # which asked all of both parts at once
        judged = {}
        for folder in ("evaluation", "evaluation/volume"):
            judged.update(json.loads((self.folder / f"runs/on_2/{folder}/evaluation.json").read_text())["cases"][0]["fields"])
        self.assertEqual(set(judged), set(of_run))
        for name, values in of_run.items():
            self.assertAlmostEqual(judged[name]["rel_l2"], values["rel_l2"], delta=1e-4 * values["rel_l2"])
        reported = self.meshard("report", "runs/on_2", "-o", "report")
        self.assert_good(reported)
        self.assertNotIn("no drag and lift", reported.out + reported.err)   # which the surface has, and no volume
        wall = self.folder / "cases/run_6/ahmed_6.stl"
        files = ("boundary_6.vtp", "volume_6.vtu")
        for file, other, field, true in (files + ("pressure", "pMean"), files[::-1] + ("velocity", "UMeanTrim")):
            words = ("predict", "runs/on_1", self.folder / "cases/run_6" / file, "--wall", wall, "-o", file)
            self.assert_good(self.meshard(*words, "--other-part", self.folder / "cases/run_6" / other, "--nproc", 3))
            found = arrays_of(self.folder / file)
            error = sum((a - b) ** 2 for a, b in zip(found[field], found[true], strict=True)) / sum(b * b for b in found[true])
            self.assertAlmostEqual(math.sqrt(error), judged[field]["rel_l2"], delta=1e-4 * math.sqrt(error))

        alone = self.meshard("predict", "runs/on_1", self.folder / "cases/run_6/boundary_6.vtp", "--wall", wall, "-o", "alone.vtp")
        self.assert_good(alone)
        self.assertIn("--other-part", alone.err)
        self.assertNotEqual(arrays_of(self.folder / "alone.vtp")["pressure"], arrays_of(self.folder / "boundary_6.vtp")["pressure"])
        self.assert_fails(self.meshard("predict", "runs/on_1", files[0], "--other-part", "none.vtu", "-o", "none.vtp"), 3, "does not exist")

        for words, texts in ((("~data.volume",), ("model.name", "takes cases with surface and volume")),
                             (("model.anchors=body_",), ("anchors", "points", "body")),
                             (("model.num_supernodes=301",), ("num_supernodes is 301", "num_geometry_points")),
                             (("model.volume_box=[0]",), ("volume_box", "lowest x, y, z")),
                             (("data.inputs=[points, normals]",), ("data.inputs", "Set [points]"))):
            self.assert_fails(self.meshard("train", "both.yaml", *AB_UPT, "run_id=none", *words), 2, *texts)
        elsewhere = self.meshard("train", "both.yaml", *AB_UPT, "run_id=none", "model.volume_box=[50, 50, 50, 51, 51, 51]")
        self.assertEqual(elsewhere.code, 3, elsewhere)
        self.assertIn("no corner of the body lies in volume_box", elsewhere.err)

    def test_are_learnt_by_ab_upt(self):
        self.train("learnt", 2, *AB_UPT, "data.sampling_resolution=120", "training.num_epochs=60", "training.optimizer.lr=3.0e-3", "model.radius=40")
        means = [line["loss"] for line in self.lines("learnt") if line["phase"] == "train"]
        self.assertLess(means[-1], 0.5 * means[0])

    def test_are_weighed_in_the_loss(self):
        self.train("both", 1, "training.max_steps=1")
        for run, weights in (("surface", "[1,0]"), ("volume", "[0,1]")):
            self.train(run, 1, "training.max_steps=1", f"training.part_weights={weights}")
        first = {run: self.losses(run)[0] for run in ("both", "surface", "volume")}
        self.assertAlmostEqual(first["both"], 2 * first["surface"] + first["volume"], delta=1e-5 * first["both"])

    def test_are_predicted_and_evaluated_one_by_one(self):
        static = ("data.fields.pressure.kind=static", "data.fields.wss.kind=static", "data.reference.rho=1")   # the volume is not measured by rho
        self.train("both", 2, "model.num_neighbors_volume=1", *static)   # without drawn stencils, so that two predictions are the same
        self.assert_good(self.meshard("evaluate", "runs/both", "--nproc", 2))
        judged = {}
        for folder in ("evaluation", "evaluation/volume"):
            numbers = json.loads((self.folder / f"runs/both/{folder}/evaluation.json").read_text())
            judged.update(numbers["cases"][0]["fields"])
        self.assertEqual(set(judged), {"pressure", "wss", "velocity", "volume_pressure"})
        of_run = next(line for line in self.lines("both") if line["phase"] == "test")["errors"]
        for name, values in of_run.items():   # the run read shards and, of the volume, the store's volumes of cells; `evaluate` reads the files
            for metric in ("rel_l2", "rel_l2_area"):
                self.assertAlmostEqual(judged[name][metric], values[metric], delta=1e-4 * values[metric])

        sources = [self.folder / "cases/run_6/boundary_6.vtp", self.folder / "cases/run_6/volume_6.vtu"]
        wall = self.folder / "cases/run_6/ahmed_6.stl"
        self.assert_good(self.meshard("predict", "runs/both", *reversed(sources), "--wall", wall, "--set", "rho=1", "-o", "predicted", "--nproc", 2))
        found = {**arrays_of(self.folder / "predicted/volume_6.vtu"), **arrays_of(self.folder / "predicted/boundary_6.vtp")}
        for name, true in (("pressure", "pMean"), ("wss", "wallShearStressMean"), ("velocity", "UMeanTrim"), ("volume_pressure", "pMeanTrim")):
            error = sum((a - b) ** 2 for a, b in zip(found[name], found[true], strict=True)) / sum(b * b for b in found[true])
            self.assertAlmostEqual(math.sqrt(error), judged[name]["rel_l2"], delta=1e-4 * math.sqrt(error))
        self.assert_fails(self.meshard("predict", "runs/both", sources[0], "-o", "none.vtp"), 2, "encodes the surface of the body", "--wall")
        self.assertFalse((self.folder / "none.vtp").exists())

        printed = json.loads(self.meshard("evaluate", "runs/both", sources[1], "--json", "--fail-if", "test.velocity.rel_l2>1e9").out)
        self.assertEqual(set(printed["splits"]["test"]["fields"]), {"velocity", "volume_pressure"})

        self.assert_good(self.meshard("report", "runs/both", "-o", "report", "--nproc", 2, "--cases", "test"))
        report = json.loads((self.folder / "report/report.json").read_text())
        self.assertEqual([run["name"] for run in report["runs"]], ["both", "both_volume"])
        for run in report["runs"]:
            for name, values in run["evaluation"]["cases"][0]["fields"].items():
                self.assertAlmostEqual(values["rel_l2"], judged[name]["rel_l2"], delta=1e-4 * judged[name]["rel_l2"])
        self.assertIn("velocity, cells at y = ", (self.folder / "report/report.html").read_text())
        self.assertIn("both_volume_6_velocity_error_dark.png", self.names(self.folder / "report/pictures"))

        planes = ("report", "runs/both", "-o", "planes", "--cases", "test", "--plane", "x=1", "--plane", "z=0.5")
        self.assert_good(self.meshard(*planes))
        page = (self.folder / "planes/report.html").read_text()
        self.assertTrue("velocity, cells at x = 1<" in page and "velocity, cells at z = 0.5<" in page)
        drawn = self.names(self.folder / "planes/pictures")
        self.assertIn("both_volume_6_x=1_velocity_true.png", drawn)
        self.assertEqual(len({(self.folder / "planes/pictures" / name).read_bytes() for name in drawn if "velocity_true.png" in name}), 2)
        self.assertIn("both_6_pressure_error.png", drawn)   # the surface from outside as ever
        self.assert_fails(self.meshard("report", "runs/both", "-o", "beside", "--cases", "test", "--plane", "x=99"), 3, "x = 99", "lies beside the volume", "Choose another --plane")

    def test_are_told_of_bodies_that_are_inside_out(self):
        def turned(path, share):
            """The same triangles, of which the first ones are turned."""
            facets = re.findall(r"facet.*?endfacet\n", path.read_text(), re.DOTALL)
            for i in range(round(share * len(facets))):
                corners = re.findall(r"vertex .*\n", facets[i])
                facets[i] = facets[i].replace("".join(corners), "".join(corners[::-1]))
            return "solid body\n" + "".join(facets) + "endsolid body\n"

        self.train("both", 1, "model.num_neighbors_volume=1")
        sources = [self.folder / "cases/run_6/boundary_6.vtp", self.folder / "cases/run_6/volume_6.vtu"]
        walls = {"right": 0, "inward": 1, "mixed": 0.3}
        for name, share in walls.items():
            (self.folder / f"{name}.stl").write_text(turned(self.folder / "cases/run_6/ahmed_6.stl", share))

        def predicted(wall, *words):
            result = self.meshard("predict", "runs/both", *sources, "--wall", f"{wall}.stl", "-o", "out", *words)
            self.assert_good(result)
            found = arrays_of(self.folder / "out/boundary_6.vtp")["pressure"], arrays_of(self.folder / "out/volume_6.vtu")["velocity"]
            return found, [line for line in result.err.splitlines() if f"{wall}.stl" in line]

        right, quiet = predicted("right")
        self.assertEqual(quiet, [])
        for name, text in (("inward", "its normals point inwards"), ("mixed", "its normals are mixed")):
            found, warnings = predicted(name)
            self.assertEqual(len(warnings), 2, warnings)   # one a file
            self.assertIn(text + ("" if name == "mixed" else ", and those of the training cases point outwards"), warnings[0])
            self.assertNotEqual(found[0], right[0])
            for ranks in (1, 2):
                found, quiet = predicted(name, "--orient", "outward", "--nproc", ranks)
                self.assertEqual(quiet, [])
                for numbers, expected in zip(found, right):
                    for a, b in zip(numbers, expected, strict=True):
                        self.assertAlmostEqual(a, b, delta=1e-5 * max(map(abs, expected)))

        wall = self.folder / "cases/run_1/ahmed_1.stl"
        wall.write_text(turned(wall, 1))
        told = self.train("told", 1, "model.num_neighbors_volume=1")
        self.assertIn("of 3 walls of training cases, 1 points inward and 2 point outward", told.out + told.err)
        quiet = self.train("turned", 1, "model.num_neighbors_volume=1", "data.orient=outward")
        self.assertNotIn("inward", quiet.out + quiet.err)
        self.assert_same_losses("turned", "both")
        self.assertGreater(max(abs(a - b) / b for a, b in zip(self.losses("told"), self.losses("both"), strict=True)), 1e-7)

    def add_polygon_without_area(self, path):
        text = path.read_text()
        number = int(re.search(r'NumberOfPolys="(\d+)"', text)[1])
        text = text.replace(f'NumberOfPolys="{number}"', f'NumberOfPolys="{number + 1}"')
        for name, values in (("pMean", "0.5"), ("wallShearStressMean", "0 0 0"), ("connectivity", "3 3 3 3"), ("offsets", 4 * number + 4)):
            text = re.sub(f'(Name="{name}"[^<]*)', rf"\1 {values}", text)
        path.write_text(text)

    def test_may_be_trained_alone(self):
        for number in (2, 6):   # whose areas the model is told by their logarithm
            self.add_polygon_without_area(self.folder / f"cases/run_{number}/boundary_{number}.vtp")
        for name, words in (("surface", ONLY_SURFACE), ("volume", ONLY_VOLUME)):
            self.train(name, 1, *words)
            self.train(f"{name}_on_2", 2, *words, "training.memory=recomputed")
            self.assert_same_losses(f"{name}_on_2", name)
        self.assert_good(self.meshard("predict", "runs/volume", self.folder / "cases/run_6/volume_6.vtu", "--wall", self.folder / "cases/run_6/ahmed_6.stl", "-o", "new.vtu"))
        self.assertIn("velocity", arrays_of(self.folder / "new.vtu"))

    def test_are_sampled_with_their_neighbours_among_all_points(self):
        words = ("data.sampling_resolution=40", "data.sampling=areas", "training.point_weights=[areas, volumes]", "training.num_epochs=1")
        self.train("one", 1, *words)
        self.train("on_3", 3, *words, "data.memory=0")   # cases are read anew in each step
        self.assert_same_losses("on_3", "one", num_steps=3)
        self.train("all", 1, "training.num_epochs=1")
        self.assertNotAlmostEqual(self.losses("one")[0], self.losses("all")[0], delta=1e-5)

    def test_are_learnt(self):
        self.train("whole", 2, "training.num_epochs=25", "data.volume.sampling_resolution=0", "model.num_neighbors_volume=1", "training.optimizer.lr=0.01")
        means = [line["loss"] for line in self.lines("whole") if line["phase"] == "train"]
        self.assertLess(means[-1], 0.5 * means[0])

    def test_are_prepared_beforehand(self):
        result = self.meshard("prepare", "both.yaml", "data.shards=shards", "--json")
        self.assert_good(result)
        numbers = json.loads(result.out)
        self.assertEqual((set(numbers["fields"]), set(numbers["volume"]["fields"])), ({"pressure", "wss"}, {"velocity", "volume_pressure"}))
        before = self.shards_of_cases()
        self.train("both", 1, "data.shards=shards")
        self.assertEqual(self.shards_of_cases(), before)

    def shards_of_cases(self):
        """Folders without the one of kept hashes, which has those of files that are some seconds old."""
        return {path.name for path in (self.folder / "shards").iterdir()} - {"sources"}

    def test_that_do_not_fit_are_refused(self):
        for words, texts in (
                (("model.name=transolver",), ("takes the points of a surface or of a volume, not both", "domino")),
                (("~data.wall",), ("encodes the surface of the body", "data.wall=")),
                (("data.inputs=[points]",), ("data.inputs", "[points, normals, areas]")),
                (("data.center=bounds",), ("data.center", "differ between surface and volume")),
                (("data.volume.fields.pressure=pMeanTrim",), ("has the name of a field of the surface",)),
                (("~data.surface",), ("data.surface must be set",)),
                (("training.part_weights=[1]",), ("training.part_weights", "expected 2 numbers")),
                (("training.field_weights={pressure: 0, wss: 0}",), ("0 for all fields of the surface", "training.part_weights")),
                (("training.exact=true",), ("training.exact does not go with",)),
                (("model.surface_box=[0,0,0]",), ("surface_box", "lowest x, y, z")),
                (("training.augment.mirror=y",), ("does not turn with the points",))):
            self.assert_fails(self.meshard("train", "both.yaml", *words), 2, *texts)
        reference = SOURCE / "tests/data/fixtures/checkpoints/domino_a/model.mdlus"
        self.assert_fails(self.meshard("predict", "--model", reference, "cases/run_1/boundary_1.vtp", "-o", "out.vtp"), 3, "the boxes around it", "run's folder")
        self.assert_fails(self.meshard("train", "both.yaml", "data.volume.files=nothing_*.vtu"), 3, "no file matches", "data.volume.files")
        self.assertFalse((self.folder / "runs").exists())
