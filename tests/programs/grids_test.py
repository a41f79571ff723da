# SPDX-License-Identifier: Apache-2.0
"""`meshard train`, `predict` and `evaluate` on regular grids: image data and models of grids, the same on any number of ranks and after a stop."""
import json
import math
import re
import struct
import xml.etree.ElementTree

from generation_test import fields_of
from runner import SOURCE, Case
from samples import FLOW, SEA, put_flow, put_sea, write_flow, write_zarr_flow
from training_modes_test import arrays_of, assert_same_gradients, first_gradients

MODELS = {
    "vit": ((8, 24), ("model.name=vit",)),
    "dit": ((8, 24), ("model.name=dit", "model.patch_size=[4, 2]", "model.hidden_size=16", "model.depth=1", "model.num_heads=2")),
    "unet2d": ((8, 24), ("model.name=unet2d", "model.num_channels=8", "model.depth=2", "model.num_groups=2")),
    "fno2d": ((8, 24), ("model.name=fno", "model.latent_channels=8", "model.num_fno_layers=2", "model.num_fno_modes=3", "model.padding=2")),
    "fno3d": ((6, 5, 10), ("model.name=fno", "model.latent_channels=8", "model.num_fno_layers=2", "model.num_fno_modes=[3, 2, 2]", "model.padding=1")),
    "unet": ((4, 8, 12), ("model.name=unet", "model.model_depth=2", "model.num_conv_blocks=1", "model.feature_map_channels=[8, 16]")),
    "gates": ((4, 8, 12), ("model.name=unet", "model.model_depth=2", "model.num_conv_blocks=1", "model.feature_map_channels=[8, 16]", "model.use_attn_gate=true",
                           "model.attn_decoder_feature_maps=[16]", "model.attn_feature_map_channels=[8]", "model.attn_intermediate_channels=4"))}


class Grids(Case):
    timeout = 300

    def train(self, run, num_ranks, *words, **options):
        result = self.meshard("train", "flow.yaml", f"run_id={run}", "--nproc", num_ranks, *words, **options)
        self.assert_good(result)
        return result

    def lines(self, run):
        return [json.loads(line) for line in (self.folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]

    def numbers(self, run):
        """Losses of the steps, and losses and errors of validations and test."""
        found = []
        for line in self.lines(run):
            if line["phase"] == "train_step":
                found.append(line["loss"])
            elif line["phase"] in ("val", "test"):
                found += [line["loss"], *(one["rel_l2"] for one in line["metrics"].values())]
        return found

    def assert_near(self, found, expected, tolerance):
        for one, other in zip(found, expected, strict=True):
            self.assertAlmostEqual(one, other, delta=tolerance * abs(other))


class GridTraining(Grids):
    def assert_same_on_ranks(self, name, domain="[2, 2]"):
        """The whole, three slabs, and blocks of which none stays in memory."""
        shape, words = MODELS[name]
        put_flow(self.folder, shape)
        self.train("1", 1, *words)
        self.train("3", 3, *words)
        result = self.train("blocks", 4, *words, f"parallel.domain={domain}", "data.memory=0")
        self.assertIn("each is read when it is its turn", str(result))
        expected = self.numbers("1")
        self.assertEqual(len(expected), 2 * 2 + 2 * 3 + 3)
        self.assertTrue(all(math.isfinite(number) and number > 0 for number in expected))
        for run in ("3", "blocks"):
            self.assert_near(self.numbers(run), expected, 1e-4)
        self.assertEqual({line["shards_per_case"] for line in self.lines("3") if line["phase"] == "dataset"}, {3})
        return result

    def test_of_a_vision_transformer_is_the_same_on_ranks(self):
        self.assert_same_on_ranks("vit")

    def test_of_a_diffusion_transformer_is_the_same_on_ranks(self):
        self.assert_same_on_ranks("dit")

    def test_of_a_unet_of_images_is_the_same_on_ranks(self):
        self.assert_same_on_ranks("unet2d")

    def test_of_an_fno_of_images_is_the_same_on_ranks(self):
        self.assert_same_on_ranks("fno2d")

    def test_of_an_fno_of_volumes_is_the_same_on_ranks(self):
        self.assert_same_on_ranks("fno3d")

    def test_of_a_unet_of_volumes_is_the_same_on_ranks(self):
        self.assert_same_on_ranks("unet", "[1, 2, 2]")

    def test_of_a_unet_with_gates_is_the_same_on_ranks(self):
        self.assertIn("parallel.domain is [2, 2]", str(self.assert_same_on_ranks("gates", "auto")))

    def test_learns(self):
        put_flow(self.folder)
        self.train("long", 1, "training.num_epochs=60", "training.optimizer.lr=0.01")
        losses = [line["loss"] for line in self.lines("long") if line["phase"] == "train_step"]
        self.assertLess(losses[-1], 0.3 * losses[0])

    def test_goes_on_with_the_same_bits(self):
        put_flow(self.folder)
        self.train("whole", 2)
        self.train("parts", 2, "training.max_steps=1")
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "--nproc", 2, "training.max_steps=0"))
        whole, parts = (arrays_of(self.folder / f"runs/{run}/checkpoints/last.safetensors") for run in ("whole", "parts"))
        self.assertEqual(parts, whole)
        self.assertIn("norm.input_mean", whole)
        self.assertEqual(self.numbers("parts")[-3:], self.numbers("whole")[-3:])

    def test_goes_on_in_another_cut(self):
        put_flow(self.folder)
        self.train("whole", 1)
        self.train("parts", 4, "parallel.domain=[2, 2]", "training.max_steps=1")
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "--nproc", 3, "parallel.domain=[1, 3]", "training.max_steps=3"))
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "--nproc", 1, "parallel.domain=auto", "training.max_steps=0"))
        self.assert_near(self.numbers("parts")[-3:], self.numbers("whole")[-3:], 1e-4)

    def test_spreads_cases_and_parameters(self):
        put_flow(self.folder)
        self.train("one", 1, "training.accumulate=2")
        self.train("groups", 2, "parallel.data=2")
        self.train("cut", 4, "parallel.domain=[2, 2]", "parallel.parameters=sharded", "training.accumulate=2")
        for run in ("groups", "cut"):
            self.assert_near(self.numbers(run), self.numbers("one"), 1e-4)

    def test_of_groups_validates_by_one_set_of_running_means(self):
        shape, words = MODELS["unet"]
        put_flow(self.folder, shape)
        self.train("groups", 2, *words, "model.normalization=batchnorm", "parallel.data=2", "~data.split.test", "data.split.val=0.5")
        self.assert_good(self.meshard("evaluate", "runs/groups/checkpoints/last.safetensors", "val", "-o", "judged"))
        judged = json.loads((self.folder / "judged/evaluation.json").read_text())["splits"]["val"]["fields"]
        val = [line for line in self.lines("groups") if line["phase"] == "val"][-1]["metrics"]
        self.assert_near([judged[name]["rel_l2"]["mean"] for name in val], [one["rel_l2"] for one in val.values()], 1e-6)

    def test_of_groups_hears_each_case_once(self):
        """The case that fills up the last step of two groups leaves no trace: orders that differ in it alone have the same running means."""
        (self.folder / "flows").mkdir()
        for n in range(3):
            write_flow(self.folder / f"flows/flow_{n}.vti", 3 * n, (8, 8, 8))
        (self.folder / "flow.yaml").write_text(FLOW)
        found = []
        for order in (["0", "1", "2"], ["1", "0", "2"]):
            (self.folder / "order").write_text(json.dumps({"epoch": 1, "order": order}) + "\n")
            self.train("".join(order), 2, "~data.split.train", "~data.split.val", "~data.split.test", "data.split={train: ['0', '1', '2']}", "~model", "model.name=unet",
                       "model.model_depth=2", "model.feature_map_channels=[4, 4, 4, 4]", "model.normalization=batchnorm", "training.optimizer.lr=0",
                       "training.num_epochs=1", "parallel.data=2", "training.order_file=order")
            found.append(arrays_of(self.folder / f"runs/{''.join(order)}/checkpoints/last.safetensors"))
        means = [name for name in found[0] if name.endswith(("running_mean", "running_var"))]
        self.assertGreater(len(means), 4)
        for name in means:
            for one, other in zip(*(values[name] for values in found)):
                self.assertAlmostEqual(one, other, delta=1e-6)

    def test_of_a_step_that_is_left_out_leaves_no_trace(self):
        """The constant of a case is so large that its gradients are not finite: running means are those before its step."""
        put_flow(self.folder, (8, 8, 8))
        (self.folder / "flows/cases.json").write_text(json.dumps([{"id": str(n), "c": 3e38 if n == 1 else 3} for n in range(4)]))
        words = ("~data.split.train", "~data.split.val", "~data.split.test", "data.split={train: ['0', '1', '2']}", "data.cases=cases.json", "data.constants=[c]", "~model",
                 "model.name=unet", "model.model_depth=2", "model.feature_map_channels=[4, 4, 4, 4]", "model.normalization=batchnorm", "training.optimizer.lr=0",
                 "training.num_epochs=1", "training.order_file=order", "training.max_skipped_steps=2", "training.precision=float16")
        found = {}
        for run, order, num_steps in (("before", ["0", "2", "1"], 1), ("after", ["0", "1", "2"], 2)):
            (self.folder / "order").write_text(json.dumps({"epoch": 1, "order": order}) + "\n")
            result = self.train(run, 1, *words, f"training.max_steps={num_steps}")
            self.assertEqual("not finite in step 2" in str(result), run == "after", result)
            found[run] = arrays_of(self.folder / f"runs/{run}/checkpoints/last.safetensors")
        means = [name for name in found["after"] if name.endswith(("running_mean", "running_var"))]
        self.assertGreater(len(means), 4)
        for name in means:
            self.assertEqual(found["after"][name], found["before"][name])

    def test_has_pictures_in_the_report(self):
        put_flow(self.folder)
        self.train("seen", 2)
        self.assert_good(self.meshard("report", "runs/seen", "-o", "report", "--nproc", 2))
        alone = self.meshard("report", "runs/seen", "-o", "alone")
        self.assert_good(alone)
        drawn = self.names(self.folder / "report/pictures")
        self.assertTrue(any(name.endswith("_error_dark.png") for name in drawn), drawn)
        self.assertEqual(drawn, self.names(self.folder / "alone/pictures"))
        for name in drawn:
            if "_true" in name:
                self.assertEqual((self.folder / "report/pictures" / name).read_bytes(), (self.folder / "alone/pictures" / name).read_bytes())

    def assert_shares_modes(self, name, *words):
        shape, model = MODELS[name]
        put_flow(self.folder, shape)
        words = (*model, *words, "training.clip_norm=0.1")
        self.train("one", 1, *words)
        for num_ranks in (2, 3):
            self.train(str(num_ranks), num_ranks, *words, "parallel.parameters=sharded")
            self.assert_near(self.numbers(str(num_ranks)), self.numbers("one"), 1e-4)
        of_one, of_two = (next(line for line in self.lines(run) if line["phase"] == "memory")["parameter_bytes"] for run in ("one", "2"))
        self.assertLess(of_two, 0.7 * of_one)

        self.train("parts", 3, *words, "parallel.parameters=sharded", "training.max_steps=1")
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "--nproc", 2, "training.max_steps=0"))
        self.assert_near(self.numbers("parts")[-3:], self.numbers("one")[-3:], 1e-4)
        found, expected = ({name for name in arrays_of(self.folder / f"runs/{run}/checkpoints/last.safetensors") if not name.startswith("optimizer.")}
                           for run in ("parts", "one"))
        self.assertEqual(found, expected)
        self.assert_good(self.meshard("predict", "runs/parts", "flows/flow_1.vti", "-o", "out.vti"))

    def test_shares_the_modes_of_an_fno_of_images_where_parameters_are_cut(self):
        self.assert_shares_modes("fno2d", "training.ema=0.5")

    def test_shares_the_modes_of_an_fno_of_volumes_of_which_a_rank_has_none(self):
        self.assert_shares_modes("fno3d", "training.optimizer.name=muon")

    def test_tells_columns_of_the_table(self):
        put_flow(self.folder)
        (self.folder / "flows/cases.csv").write_text("id,speed\n" + "".join(f"{number},{2 + number}\n" for number in range(4)))
        self.train("told", 2, "data.cases=[cases.csv]", "data.constants=[speed]")
        description = json.loads((self.folder / "runs/told/checkpoints/last.json").read_text())
        self.assertEqual(description["model"]["in_channels"], 3)
        self.assert_fails(self.meshard("predict", "runs/told", "flows/flow_1.vti", "-o", "out.vti"), 2, "told 'speed'", "--set speed=")
        self.assert_good(self.meshard("predict", "runs/told", "flows/flow_1.vti", "-o", "out.vti", "--set", "speed=3"))


class GridPrediction(Grids):
    def setUp(self):
        super().setUp()
        put_flow(self.folder)
        self.train("flow", 1)

    def test_writes_image_data_and_is_the_same_on_ranks(self):
        for num_ranks in (1, 2, 3):
            self.assert_good(self.meshard("predict", "runs/flow", "flows/flow_1.vti", "-o", f"out_{num_ranks}.vti", "--nproc", num_ranks))
        (self.folder / "flow_1.pvti").write_text(
            '<VTKFile type="PImageData" version="1.0" byte_order="LittleEndian"><PImageData WholeExtent="0 8 0 24 0 0"><PCellData>'
            + "".join(f'<PDataArray type="Float32" Name="{name}" NumberOfComponents="{count}"/>' for name, count in (("permeability", 1), ("inflow", 1), ("p", 1), ("U", 2)))
            + '</PCellData><Piece Extent="0 8 0 24 0 0" Source="flows/flow_1.vti"/></PImageData></VTKFile>')
        self.assert_good(self.meshard("predict", "runs/flow", "flow_1.pvti", "-o", "of_pieces.vti", "--nproc", 2))
        self.assertEqual((self.folder / "of_pieces.vti").read_bytes(), (self.folder / "out_2.vti").read_bytes())
        one = fields_of(self.folder / "out_1.vti")
        self.assertEqual(sorted(one), ["U", "inflow", "p", "permeability", "pressure", "velocity"])
        self.assertEqual((len(one["pressure"]), len(one["velocity"])), (8 * 24, 2 * 8 * 24))
        for num_ranks in (2, 3):
            for name, numbers in fields_of(self.folder / f"out_{num_ranks}.vti").items():
                largest = max(map(abs, one[name]))
                self.assertLess(max(abs(x - y) for x, y in zip(numbers, one[name], strict=True)), 1e-5 * largest, name)
        extent = xml.etree.ElementTree.fromstring((self.folder / "out_1.vti").read_bytes().split(b"<AppendedData")[0] + b"</VTKFile>").find("ImageData")
        self.assertEqual(extent.get("WholeExtent"), "0 8 0 24 0 0")

    def test_has_the_errors_that_evaluation_finds(self):
        self.assert_good(self.meshard("evaluate", "runs/flow", "all", "-o", "errors", "--nproc", 2))
        cases = {case["id"]: case for case in json.loads((self.folder / "errors/evaluation.json").read_text())["cases"]}
        self.assertEqual(len(cases), 4)
        self.assert_good(self.meshard("predict", "runs/flow", "flows/flow_2.vti", "-o", "out.vti"))
        fields = fields_of(self.folder / "out.vti")
        error = math.sqrt(sum((x - y) ** 2 for x, y in zip(fields["pressure"], fields["p"])) / sum(y * y for y in fields["p"]))
        self.assertAlmostEqual(cases["2"]["fields"]["pressure"]["rel_l2"], error, delta=1e-5 * error)
        self.assertNotIn("cd", cases["2"])

    def test_and_evaluation_cut_the_blocks_of_training(self):
        self.train("blocks", 4, *MODELS["fno2d"][1], "model.padding=4", "parallel.domain=[1, 4]")
        for num_ranks in (1, 3, 4):
            self.assert_good(self.meshard("predict", "runs/blocks", "flows/flow_1.vti", "-o", f"out_{num_ranks}.vti", "--nproc", num_ranks))
            self.assert_good(self.meshard("evaluate", "runs/blocks", "-o", f"errors_{num_ranks}", "--nproc", num_ranks))
        one = fields_of(self.folder / "out_1.vti")
        error = json.loads((self.folder / "errors_1/evaluation.json").read_text())["cases"][0]["fields"]["pressure"]["rel_l2"]
        for num_ranks in (3, 4):
            for name, numbers in fields_of(self.folder / f"out_{num_ranks}.vti").items():
                largest = max(map(abs, one[name]))
                self.assertLess(max(abs(x - y) for x, y in zip(numbers, one[name], strict=True)), 1e-5 * largest, name)
            found = json.loads((self.folder / f"errors_{num_ranks}/evaluation.json").read_text())["cases"][0]["fields"]["pressure"]["rel_l2"]
            self.assertAlmostEqual(found, error, delta=1e-4 * error)
        write_flow(self.folder / "narrow.vti", 0, (3, 24))
        words = ("predict", "runs/blocks", "narrow.vti", "-o", "narrow_out.vti", "--nproc")
        narrow = []
        for num_ranks in (1, 4):   # one of which has no rows
            self.assert_good(self.meshard(*words, num_ranks))
            narrow.append(fields_of(self.folder / "narrow_out.vti")["pressure"])
        largest = max(map(abs, narrow[0]))
        self.assertLess(max(abs(x - y) for x, y in zip(*narrow, strict=True)), 1e-5 * largest)

    def test_gives_mean_and_spread_of_several_runs(self):
        self.train("other", 1, "seed=1", "data.split.train=[0, 1]", "data.split.val=[2]", "data.split.test=[3]")
        self.assert_good(self.meshard("predict", "runs/flow", "runs/other", "flows/flow_0.vti", "-o", "out.vti"))
        self.assertIn("pressure_spread", fields_of(self.folder / "out.vti"))

    def test_names_what_is_wrong_and_writes_nothing(self):
        write_flow(self.folder / "small.vti", 0, (8, 20))
        write_flow(self.folder / "bare.vti", 0, change=lambda arrays: {name: array for name, array in arrays.items() if name != "inflow"})
        write_flow(self.folder / "points.vti", 0, where="PointData")
        before = self.names()
        for words, code, *texts in (
                (("small.vti", "-o", "out.vti"), 3, "small.vti, a grid of 8 x 20", "(batch, 2, 24, 8)"),
                (("bare.vti", "-o", "out.vti"), 3, "bare.vti", "no cell field 'inflow'"),
                (("points.vti", "-o", "out.vti"), 3, "has 'permeability' at its points", "data.association=point"),
                (("flow.yaml", "-o", "out.vti"), 2, "flow.yaml is no grid"),
                (("flows/flow_0.vti", "-o", "out.vtu"), 2, "must end in .vti"),
                (("flows/flow_0.vti", "-o", "out.vti", "--forces"), 2, "--forces", "no surface")):
            with self.subTest(texts[0]):
                self.assert_fails(self.meshard("predict", "runs/flow", *words), code, *texts)
        self.assertEqual(self.names(), before)


class GridMasks(Grids):
    """A sea with land, whose rows of the least y are all land, and whose land has no values, or such as mean nothing."""

    shape = (8, 24)
    land = [y < 8 or (y > 20 and x < 3) for y in range(24) for x in range(8)]

    def put_sea(self, name="flow", land=land, garbage=math.nan):
        def change(arrays):
            for one in ("permeability", "p"):
                arrays[one][1][:] = [garbage if is_land else value for value, is_land in zip(arrays[one][1], land)]
            return {**arrays, "sea": (1, [0 if is_land else 2 for is_land in land]), "twice": (2, [1] * 2 * len(land)),
                    "vtkGhostType": (1, [32 if is_land else 1 for is_land in land])}
        for number in range(4):
            write_flow(self.folder / f"flows/{name}_{number}.vti", number, self.shape, change=change)

    def setUp(self):
        super().setUp()
        put_flow(self.folder, self.shape)
        self.put_sea()

    def test_count_nowhere_on_any_ranks(self):
        words = ("data.mask=sea", "training.num_epochs=1", "training.clip_norm=1e6")
        self.train("1", 1, *words)
        self.train("3", 3, *words)   # the first of which has land alone
        self.train("blocks", 4, *words, "parallel.domain=[2, 2]", "data.memory=0")
        norms = {run: [line["grad_norm"] for line in self.lines(run) if line["phase"] == "train_step"] for run in ("1", "3", "blocks")}
        for run in ("3", "blocks"):
            self.assert_near(self.numbers(run), self.numbers("1"), 1e-4)
            self.assert_near(norms[run], norms["1"], 1e-3)
        for num_ranks in (1, 2, 3):
            self.train(f"step{num_ranks}", num_ranks, *words, "training.max_steps=1")
            assert_same_gradients(self, first_gradients(self.folder / f"runs/step{num_ranks}"), first_gradients(self.folder / "runs/step1"))

        self.assert_good(self.meshard("evaluate", "runs/1", "all", "-o", "errors", "--nproc", 3))
        cases = {case["id"]: case for case in json.loads((self.folder / "errors/evaluation.json").read_text())["cases"]}
        line = next(line for line in self.lines("1") if line["phase"] == "val")
        weights = arrays_of(self.folder / "runs/1/checkpoints/last.safetensors")
        mean, deviation = (struct.unpack("<3f", weights[f"norm.{name}"]) for name in ("mean", "std"))
        sea = [i for i, is_land in enumerate(self.land) if not is_land]
        self.assertEqual({case["num_points"] for case in cases.values()}, {len(sea)})
        trained = []
        for id in (id for id, case in cases.items() if case["split"] == "train"):
            values = re.search('Name="p"[^>]*>([^<]*)<', (self.folder / f"flows/flow_{id}.vti").read_text()).group(1).split()
            trained += [float(values[i]) for i in sea]
        self.assertAlmostEqual(mean[0], sum(trained) / len(trained), delta=1e-5 * mean[0])

        judged = next(id for id, case in cases.items() if case["split"] == "val")
        for num_ranks in (3, 1):
            self.assert_good(self.meshard("predict", "runs/1", f"flows/flow_{judged}.vti", "-o", "out.vti", "--nproc", num_ranks))
            fields = fields_of(self.folder / "out.vti")
            self.assertEqual([math.isnan(value) for value in fields["pressure"]], self.land)
            self.assertEqual([math.isnan(value) for value in fields["velocity"][1::2]], self.land)
        truth = sum(fields["p"][i] ** 2 for i in sea)
        error = math.sqrt(sum((fields["pressure"][i] - fields["p"][i]) ** 2 for i in sea) / truth)
        self.assertAlmostEqual(cases[judged]["fields"]["pressure"]["rel_l2"], error, delta=1e-5 * error)
        self.assertAlmostEqual(line["metrics"]["pressure"]["rel_l2"], error, delta=1e-5 * error)
        pairs = [(fields["pressure"][i], fields["p"][i], deviation[0]) for i in sea]
        pairs += [(fields["velocity"][2 * i + c], fields["U"][2 * i + c], deviation[1 + c]) for i in sea for c in range(2)]
        loss = sum(((found - true) / scale) ** 2 for found, true, scale in pairs) / len(pairs)
        self.assertAlmostEqual(line["loss"], loss, delta=1e-4 * loss)
        self.assert_good(self.meshard("report", "runs/1", "-o", "report"))

    def test_are_told_by_several_kinds_of_arrays_and_change_nothing_else(self):
        words = ("training.num_epochs=1", *MODELS["dit"][1])
        self.put_sea("filled", garbage=1e30)
        self.put_sea("mixed")
        for path in (self.folder / "flows").glob("mixed_*.vti"):   # the array that is read first is infinite where another is NaN
            path.write_text(re.sub('(Name="permeability"[^>]*>)([^<]*)', lambda found: found[1] + found[2].replace("nan", "inf"), path.read_text()))
        for run, grid, mask in (("sea", "flow", "sea"), ("nan", "flow", "nan"), ("ghosts", "flow", "vtkGhostType"), ("filled", "filled", "sea"), ("mixed", "mixed", "nan")):
            self.train(run, 1, *words, f"data.grid={grid}_*.vti", f"data.mask={mask}")
        for run in ("nan", "ghosts", "filled", "mixed"):
            self.assertEqual(self.numbers(run), self.numbers("sea"), run)
        self.train("cut", 3, *words, "data.mask=sea")
        self.assert_near(self.numbers("cut"), self.numbers("sea"), 1e-4)
        self.assert_good(self.meshard("prepare", "flow.yaml", *words, "data.mask=sea", "data.store=blocks"))
        self.train("stored", 1, *words, "data.mask=sea", "data.store=blocks")
        self.assertEqual(self.numbers("stored"), self.numbers("sea"))

    def test_that_are_wrong_are_named(self):
        self.put_sea("dry", [True] * 192)
        for words, code, *texts in ((("data.mask=twice",), 3, "'twice' has 2 components"), (("data.mask=see",), 3, "no cell field 'see'", "sea"),
                                    (("data.grid=dry_*.vti", "data.mask=sea"), 3, "case 0: data.mask leaves nothing of it"), ((), 3, "'permeability' is not finite", "data.mask")):
            with self.subTest(texts[0]):
                self.assert_fails(self.meshard("train", "flow.yaml", "--nproc", 2, *words), code, *texts)


class GridData(Grids):
    def refuse(self, code, texts, *words, **options):
        self.assert_fails(self.meshard("train", "flow.yaml", *words), code, *texts)

    def test_that_is_wrong_is_named_before_the_first_step(self):
        put_flow(self.folder)
        flows = self.folder / "flows"

        def change(name):
            def changed(arrays):
                arrays[name][1][8 * 3 + 5] = math.nan
                return arrays
            return changed

        write_flow(flows / "nan_0.vti", 0, change=change("p"))
        write_flow(flows / "bare_0.vti", 0, change=lambda arrays: {"p": arrays["p"], "U": arrays["U"]})
        write_flow(flows / "deep_0.vti", 0, (8, 24, 3))
        write_flow(flows / "odd_0.vti", 0, (8, 18))
        write_flow(flows / "line_0.vti", 0, (8, 1))
        (flows / "mesh_0.vti").write_text('<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian"><PolyData/></VTKFile>\n')
        write_flow(flows / "mixed_0.vti", 0)
        write_flow(flows / "mixed_1.vti", 1, (8, 28))
        train = ("~data.split", "data.split.train=1.0")
        for name, *texts in (("nan", "case 0", "nan_0.vti", "'p' is not finite at", "(5, 3, 0)"),
                             ("bare", "bare_0.vti", "no cell field 'permeability'"),
                             ("deep", "deep_0.vti", "3 directions", "vit takes 2"),
                             ("odd", "odd_0.vti", "multiple of patch_size"),
                             ("line", "line_0.vti", "in a line"),
                             ("mesh", "mesh_0.vti", "image data (.vti) or a rectilinear grid (.vtr) are expected"),
                             ("mixed", "case 1", "8 x 28 cells", "8 x 24 cells")):
            with self.subTest(name):
                self.refuse(3, texts, *train, f"data.grid={name}_*.vti")
        with self.subTest("blocks"):
            self.refuse(3, ("case 0", "parallel.domain is [2, 1, 2], and the grid is 8 x 24", "3 numbers for 2 directions"), *train, "parallel.domain=[2, 1, 2]", "--nproc", 4)
        with self.subTest("unet"):
            self.refuse(3, ("case 0, a grid of 8 x 18", "multiples of 4"), *train, "~model", "data.grid=odd_*.vti", "model.name=unet2d", "model.depth=2", "model.num_channels=8")
        for run in (self.folder / "runs").glob("*"):
            self.assertFalse((run / "checkpoints").exists())

    def test_in_zarr_groups_trains_as_in_image_data(self):
        put_flow(self.folder)
        for number in range(4):
            write_zarr_flow(self.folder / f"flows/flow_{number}.zarr", number)
        self.train("images", 1)
        self.train("1", 1, "data.grid=flow_*.zarr")
        self.train("2", 2, "data.grid=flow_*.zarr")
        self.assertEqual(self.numbers("1"), self.numbers("images"))
        self.assert_near(self.numbers("2"), self.numbers("images"), 1e-4)
        for name, input in (("images", "flow_1.vti"), ("chunks", "flow_1.zarr/")):
            self.assert_good(self.meshard("predict", "runs/images", f"flows/{input}", "-o", f"{name}.vti", "--nproc", 2))
            self.assert_good(self.meshard("convert", f"flows/{input}", f"{name}.vtp"))
        self.assertEqual(fields_of(self.folder / "chunks.vti"), fields_of(self.folder / "images.vti"))
        self.assertEqual(fields_of(self.folder / "chunks.vtp"), fields_of(self.folder / "images.vtp"))
        described = self.folder / "flows/flow_1.zarr/p/zarr.json"
        whole = described.read_text()
        described.write_text(whole.replace("float32", "float16"))
        told = self.meshard("info", "flows/flow_1.zarr")
        self.assertIn("a grid of 8 x 24 cells", told.out)
        self.assertIn("p has the data type float16, which is not read", told.out)
        found = json.loads(self.meshard("info", "flows/flow_1.zarr", "--json").out)
        self.assertEqual({array["name"]: array["num_components"] for array in found["arrays"]}, {"U": 2, "inflow": 1, "permeability": 1})
        self.assert_fails(self.meshard("train", "flow.yaml", "data.grid=flow_*.zarr"), 3, "flow_1.zarr", "the array 'p' has the data type float16")
        described.write_text(whole)
        self.assert_fails(self.meshard("train", "flow.yaml", "data.grid=flow_*.zarr", "data.arrays=[inflow, speed]"), 3, "case", ".zarr", "no cell field 'speed'")
        (self.folder / "flows/flow_2.zarr/p/c/1/1").write_bytes(b"short")
        self.assert_fails(self.meshard("train", "flow.yaml", "data.grid=flow_*.zarr"), 3, "flow_2.zarr: array 'p': chunk c/1/1", "should hold 140 bytes", "found 5")

    def test_trains_from_a_store_of_blocks_that_fits_the_files(self):
        put_flow(self.folder, (6, 8, 70), num_cases=3)
        model = ("~model", *MODELS["fno3d"][1], "data.split={train: [0, 1], val: [2], test: []}", "data.memory=0", "training.num_epochs=1")
        self.train("files", 1, *model)
        words = ("flow.yaml", "data.store=blocks", *model)
        prepared = self.meshard("prepare", *words, "--json", "--nproc", 2)
        self.assert_good(prepared)
        said = json.loads(prepared.out)
        self.assertEqual((said["cases"], said["store"]), ({"train": 2, "val": 1, "test": 0}, "blocks"))
        stored = sorted((self.folder / "blocks").glob("*.zarr"))
        self.assertEqual([path.name[:2] for path in stored], ["0-", "1-", "2-"])
        self.assertEqual(sorted(str(path.relative_to(stored[0])) for path in stored[0].glob("U/c/**/*") if path.is_file()), ["U/c/0/0/0/0", "U/c/1/0/0/0"])
        times = [path.stat().st_mtime_ns for path in stored]
        self.assert_good(self.meshard("prepare", *words))
        self.assertEqual([path.stat().st_mtime_ns for path in stored], times)

        result = self.train("stored", 1, "data.store=blocks", *model)
        self.assertIn("the cases are read from the store blocks", str(result))
        self.assertEqual(self.numbers("stored"), self.numbers("files"))
        cut = self.train("cut", 4, "data.store=blocks", "parallel.domain=[2, 2]", *model)
        self.assertIn("the cases are read from the store blocks", str(cut))
        self.assert_near(self.numbers("cut"), self.numbers("files"), 1e-4)

        chunk = stored[1] / "p/c/1/0/0"
        whole = chunk.read_bytes()
        for content, text in ((whole[:-5], "is damaged or cut short"), (None, "is missing")):
            chunk.write_bytes(content) if content else chunk.unlink()
            self.refuse(3, (f"blocks/{stored[1].name}: array 'p': chunk c/1/0/0 {text}", "meshard prepare makes it again"), "data.store=blocks", *model)
        chunk.write_bytes(whole)
        write_flow(self.folder / "flows/flow_1.vti", 7, (6, 8, 70))
        changed = self.train("changed", 1, "data.store=blocks", *model)
        self.assertIn("the store blocks has 2 of 3 cases as they are now, and case 1 with other arrays or of another state of flows/flow_1.vti", str(changed))
        self.assertNotEqual(self.numbers("changed"), self.numbers("files"))
        self.assert_good(self.meshard("prepare", *words))
        self.train("anew", 1, "data.store=blocks", *model)
        self.assertEqual(self.numbers("anew"), self.numbers("changed"))

    def test_stores_arrays_of_groups(self):
        put_flow(self.folder, (8, 24))
        for path in (self.folder / "flows").glob("*.vti"):
            path.write_text(path.read_text().replace('Name="p"', 'Name="gas/at wall/p"').replace('Name="inflow"', 'Name="gas/inflow"'))
        words = ("data.fields.pressure.from=gas/at wall/p", "data.arrays=[permeability, gas/inflow]", "training.num_epochs=1")
        self.train("files", 1, *words)
        self.assert_good(self.meshard("prepare", "flow.yaml", "data.store=blocks", *words))
        self.assertIn("the cases are read from the store blocks", str(self.train("stored", 1, "data.store=blocks", *words)))
        self.assertEqual(self.numbers("stored"), self.numbers("files"))

    def test_takes_no_settings_of_points(self):
        put_flow(self.folder)
        for words, *texts in ((("data.surface=a_*.vtp",), "data.surface does not go with data.grid"),
                              (("data.forces.area=2",), "data.forces.area", "no surface on which forces act"),
                              (("data.sampling_resolution=10",), "data.sampling_resolution"),
                              (("data.inputs=[points]",), "data.inputs", "data.arrays"),
                              (("training.augment.mirror=y",), "training.augment.mirror"),
                              (("training.exact=true",), "training.exact"),
                              (("model.name=transolver",), "a model of points", "vit"),
                              (("~data.arrays",), "data.arrays must name"),
                              (("model.height=12",), "model.height is 12")):
            with self.subTest(texts[0]):
                self.refuse(3 if words[0] == "model.height=12" else 2, texts, *words)
        self.assertFalse((self.folder / "runs/flow/checkpoints").exists())

    def test_is_described_as_the_page_shows(self):
        for shown in (FLOW, SEA):
            self.assertIn(f"```yaml\n{shown}```", (SOURCE / "docs/grids.md").read_text())

    def test_of_several_arrays_is_told_by_a_pattern(self):
        put_sea(self.folder)

        def train(run, *words):
            self.assert_good(self.meshard("train", "sea.yaml", f"run_id={run}", "--nproc", 2, "training.num_epochs=1", *words))
            return self.numbers(run)
        patterns = train("patterns")
        self.assertEqual(patterns, train("names", "data.arrays=[T_0, T_1, T_2, depth]"))
        self.assertNotEqual(patterns, train("other", "data.arrays=[T_2, T_1, T_0, depth]"))
        self.assert_good(self.meshard("prepare", "sea.yaml", "data.store=blocks"))
        self.assertEqual(patterns, train("stored", "data.store=blocks"))
        self.assert_good(self.meshard("predict", "runs/patterns", "seas/sea_1.vti", "-o", "out.vti"))
        self.assertEqual(len(fields_of(self.folder / "out.vti")["current"]), 2 * 16 * 12)
        for words, *texts in ((("data.arrays=[S_*]",), "no cell field that 'S_*' matches"), (("data.arrays=[u_*]",), "all arrays that 'u_*' matches are learnt")):
            self.assert_fails(self.meshard("train", "sea.yaml", *words), 3, *texts)

    def test_at_points_trains_too(self):
        put_flow(self.folder, where="PointData")
        self.train("points", 2, "data.association=point")
        self.assert_good(self.meshard("predict", "runs/points", "flows/flow_1.vti", "-o", "out.vti"))
        self.assertEqual(len(fields_of(self.folder / "out.vti")["pressure"]), 8 * 24)
