# SPDX-License-Identifier: Apache-2.0
"""What a model is told and what it learns: targets without units, vectors with one deviation, encodings of places, heights, and cases that are varied; each
the same on any number of ranks and after a stop."""
import json
import math

from evaluation_test import arrays_of
from training_steps_test import CONSTANT, Steps

NONDIMENSIONAL = ("data.targets=nondimensional",)
LEARNABLE = ("data.encoding=learnable", "data.encoding_frequencies=4", "data.encoding_scales=[0.5, 4]")
FOURIER = ("data.encoding=fourier", "data.encoding_frequencies=3", "data.encoding_scales=[0.5, 2]")


class Inputs(Steps):
    def give_speeds(self, speeds, scale_fields):
        """A column U_inf of the table; on request fields that grow with its square, on bodies of one shape."""
        rows = json.loads((self.folder / "cases/cases.json").read_text())
        for row, speed in zip(rows["cases"], speeds, strict=True):
            row["U_inf"] = speed
            if scale_fields:
                self.scale_fields(row["id"], speed * speed)
        (self.folder / "cases/cases.json").write_text(json.dumps(rows))

    def scale_fields(self, number, factor):
        path = self.folder / f"cases/run_{number}/boundary_{number}.vtp"
        text = (self.folder / "cases/run_1/boundary_1.vtp").read_text() if number != "1" else path.read_text()
        head, _, rest = text.partition("<CellData>")
        data, _, tail = rest.partition("</CellData>")
        for name in ("pMean", "wallShearStressMean"):
            before, _, after = data.partition(f'Name="{name}"')
            opening, _, after = after.partition(">")
            numbers, _, after = after.partition("<")
            base = [float(word) for word in (self.base[name] if number != "1" else numbers.split())]
            self.base[name] = base
            data = f'{before}Name="{name}"{opening}>' + " ".join(f"{factor * value:.9g}" for value in base) + "<" + after
        path.write_text(head + "<CellData>" + data + "</CellData>" + tail)

    base = {}

    def dataset(self, run):
        return next(line for line in self.lines(run) if line["phase"] == "dataset")


class Targets(Inputs):
    def test_of_one_speed_are_learnt_alike_with_and_without_units(self):
        self.train("physical", 1, "training.max_steps=6", *CONSTANT)
        self.train("divided", 1, "training.max_steps=6", "data.reference.U_inf=[0, 30, 40]", *NONDIMENSIONAL, *CONSTANT)
        for one, other in zip(self.losses("divided"), self.losses("physical"), strict=True):
            self.assertAlmostEqual(one, other, delta=1e-3 * other)
        for key in ("mean", "std"):
            for one, other in zip(self.dataset("divided")[key], self.dataset("physical")[key], strict=True):
                self.assertAlmostEqual(one * 0.5 * 50 * 50, other, delta=1e-5 * abs(other) + 1e-7)
        found = [next(line for line in self.lines(run) if line["phase"] == "test")["metrics"]["pressure"]["rel_l2"] for run in ("divided", "physical")]
        self.assertAlmostEqual(found[0], found[1], delta=1e-2 * found[1])

    def test_without_units_are_those_of_each_case(self):
        self.base = {}
        self.give_speeds([1, 2, 3, 4], scale_fields=True)
        self.train("divided", 1, *NONDIMENSIONAL)
        one = arrays_of(self.folder / "cases/run_1/boundary_1.vtp")
        pressure = [2 * p for p in one["pMean"]]   # over q = 1/2: the same in all cases
        mean = sum(pressure) / len(pressure)
        count = 3 * len(pressure)
        deviation = math.sqrt(3 * sum((p - mean) ** 2 for p in pressure) / (count - 1))
        self.assertAlmostEqual(self.dataset("divided")["mean"][0], mean, delta=1e-5 * deviation)
        self.assertAlmostEqual(self.dataset("divided")["std"][0], deviation, delta=1e-5 * deviation)

        # The model is not told the speed: what it predicts grows with its square.
        source = "cases/run_2/boundary_2.vtp"
        for speed in (1, 3):
            self.assert_good(self.meshard("predict", "runs/divided", source, "-o", f"at_{speed}.vtp", "--set", f"U_inf={speed}"))
        slow, fast = arrays_of(self.folder / "at_1.vtp"), arrays_of(self.folder / "at_3.vtp")
        for name in ("pressure", "wss"):
            largest = max(map(abs, fast[name]))
            self.assertLess(max(abs(9 * a - b) for a, b in zip(slow[name], fast[name], strict=True)), 1e-5 * largest)

        # Errors are of fields in their own units, by each case's own speed.
        self.assert_good(self.meshard("predict", "runs/divided", "cases/run_4/boundary_4.vtp", "-o", "own.vtp", "--set", "U_inf=4"))
        y, t = arrays_of(self.folder / "own.vtp")["pressure"], arrays_of(self.folder / "cases/run_4/boundary_4.vtp")["pMean"]
        expected = math.sqrt(sum((a - b) ** 2 for a, b in zip(y, t)) / sum(b * b for b in t))
        test = next(line for line in self.lines("divided") if line["phase"] == "test")
        self.assertAlmostEqual(test["metrics"]["pressure"]["rel_l2"], expected, delta=1e-4 * expected)
        guess = math.sqrt(sum((16 * 0.5 * mean - b) ** 2 for b in t) / sum(b * b for b in t))
        self.assertAlmostEqual(test["errors"]["pressure"]["guess_rel_l2"], guess, delta=1e-4 * guess)
        for model in ("runs/divided", "runs/divided/checkpoints/last.safetensors"):
            self.assert_good(self.meshard("evaluate", model, "4", "-o", "judged"))
            judged = json.loads((self.folder / "judged/evaluation.json").read_text())["cases"][0]["fields"]["pressure"]
            self.assertAlmostEqual(judged["rel_l2"], expected, delta=1e-4 * expected)
            self.assertAlmostEqual(judged["guess_rel_l2"], guess, delta=1e-4 * guess)

    def test_are_refused_without_what_they_are_divided_by(self):
        self.assert_fails(self.meshard("train", "car.yaml", *NONDIMENSIONAL), 3, "case 1", "U_inf is not said", "data.reference.U_inf")
        self.assert_fails(self.meshard("train", "car.yaml", *NONDIMENSIONAL, "data.reference.U_inf=0"), 3, "U_inf is 0", "above 0")
        self.assert_fails(self.meshard("train", "car.yaml", *NONDIMENSIONAL, "data.fields.pressure.kind=static", "data.reference.U_inf=4"), 3, "p_inf is not said")
        self.assert_fails(self.meshard("train", "car.yaml", "~data.fields", *NONDIMENSIONAL, "data.fields={pressure: pMean}"), 2, "data.targets", "kind")
        self.assert_fails(self.meshard("train", "car.yaml", "~data.fields", "data.vector_deviation=shared", "data.fields={pressure: pMean}"), 2, "data.vector_deviation", "kind")
        self.give_speeds([10, 20, 30, 40], scale_fields=False)
        self.train("divided", 1, "training.max_steps=1", *NONDIMENSIONAL)
        self.assert_fails(self.meshard("predict", "runs/divided", "cases/run_1/boundary_1.vtp", "-o", "new.vtp"), 2, "U_inf", "--set U_inf=")
        self.assert_fails(self.meshard("predict", "runs/divided", "cases/run_1/boundary_1.vtp", "-o", "new.vtp", "--set", "U_inf=-1"), 3, "U_inf is -1")
        self.assert_fails(self.meshard("predict", "runs/divided", "cases/run_1/boundary_1.vtp", "-o", "new.vtp", "--set", "speed=1"), 2, "it asks for U_inf")
        self.assertNotIn("new.vtp", self.names())


class VectorDeviation(Inputs):
    def test_is_one_for_all_components(self):
        self.train("shared", 1, "data.vector_deviation=shared", "training.max_steps=2")
        squares = count = 0
        for number in (1, 2, 3):
            values = arrays_of(self.folder / f"cases/run_{number}/boundary_{number}.vtp")["wallShearStressMean"]
            squares += sum(value * value for value in values)
            count += len(values)
        deviation = math.sqrt(squares / count)
        line = self.dataset("shared")
        self.assertEqual(line["mean"][1:], [0, 0, 0])
        for value in line["std"][1:]:
            self.assertAlmostEqual(value, deviation, delta=1e-6 * deviation)
        # What a model would give that knows nothing is the mean of the training cases all the same.
        self.train("channels", 1, "training.max_steps=2")
        guesses = [next(line for line in self.lines(run) if line["phase"] == "test")["errors"]["wss"]["guess_rel_l2"] for run in ("shared", "channels")]
        self.assertEqual(guesses[0], guesses[1])
        self.assert_good(self.meshard("evaluate", "runs/shared", "4"))
        judged = json.loads((self.folder / "runs/shared/evaluation/evaluation.json").read_text())["cases"][0]["fields"]["wss"]
        self.assertAlmostEqual(judged["guess_rel_l2"], guesses[1], delta=1e-6)
        self.assert_same_on_ranks("vectors", "data.vector_deviation=shared", "training.max_steps=4")


class Encodings(Inputs):
    def test_are_the_same_on_any_number_of_ranks(self):
        for name, words in (("waves", FOURIER), ("trained", LEARNABLE)):
            self.assert_same_on_ranks(name, *words, "training.max_steps=4", tolerance=5e-3)

    def test_go_on_after_a_stop(self):
        self.assert_goes_on("waves", 2, 2, *FOURIER)
        self.assert_goes_on("trained", 2, 3, *LEARNABLE, "training.optimizer.name=muon")
        self.assert_goes_on("cut", 2, 2, *LEARNABLE, "parallel.parameters=sharded", "training.ema=0.5")

    def test_are_the_same_bits_in_exact_mode(self):
        for num_ranks in (1, 3):
            self.train(f"exact{num_ranks}", num_ranks, "training.exact=true", "training.max_steps=4", *LEARNABLE)
        self.assertEqual(self.checkpoint("exact3"), self.checkpoint("exact1"))

    def test_are_trained_and_kept_with_the_model(self):
        self.train("trained", 1, *LEARNABLE)
        found = self.numbers("trained", "encoding.")
        self.assertEqual({name: len(values) for name, values in found.items()}, {"encoding.log_frequencies": 12, "encoding.phases": 12})
        first = [math.log(0.5) + k * math.log(8) / 3 for k in range(4)] * 3
        moved = [abs(a - b) for a, b in zip(found["encoding.log_frequencies"], first)]
        self.assertGreater(max(moved), 1e-4)
        self.assertLess(max(moved), 0.1)
        self.train("drawn", 1, *FOURIER)
        self.train("elsewhere", 1, *FOURIER, "seed=7")
        directions = [self.numbers(run, "encoding.")["encoding.directions"] for run in ("drawn", "elsewhere")]
        self.assertEqual(len(directions[0]), 3 * 6)
        self.assertNotEqual(directions[0], directions[1])
        # `predict` has them from the checkpoint, of the run or alone.
        expected = next(line for line in self.lines("trained") if line["phase"] == "test")["metrics"]["pressure"]["rel_l2"]
        source = self.folder / "cases/run_4/boundary_4.vtp"
        for words in (["runs/trained", source], ["--model", "runs/trained/checkpoints/last.safetensors", source]):
            self.assert_good(self.meshard("predict", *words, "-o", "new.vtp"))
            y, t = arrays_of(self.folder / "new.vtp")["pressure"], arrays_of(source)["pMean"]
            self.assertAlmostEqual(math.sqrt(sum((a - b) ** 2 for a, b in zip(y, t)) / sum(b * b for b in t)), expected, delta=1e-4 * expected)

    def test_of_another_kind_are_no_way_to_go_on(self):
        self.train("trained", 1, *LEARNABLE, "training.max_steps=1")
        self.assert_fails(self.meshard("train", "--resume", "runs/trained", "data.encoding=none", "training.max_steps=2"), 3, "data.encoding was \"learnable\"")
        self.assert_fails(self.meshard("train", "car.yaml", "data.encoding=wavelets"), 2, "wavelets")
        self.assert_fails(self.meshard("train", "car.yaml", "data.encoding=fourier", "data.encoding_scales=[0]"), 2, "data.encoding_scales")


class Heights(Inputs):
    def test_reach_the_model_in_training_and_prediction(self):
        words = ("data.inputs=[points, normals, height, box]", "data.forces.up=[0, 1, 0]")
        self.assert_same_on_ranks("high", *words, "training.max_steps=4")
        self.train("long", 1, *words)
        expected = next(line for line in self.lines("long") if line["phase"] == "test")["metrics"]["pressure"]["rel_l2"]
        source = self.folder / "cases/run_4/boundary_4.vtp"
        self.assert_good(self.meshard("predict", "runs/long", source, "-o", "new.vtp", "--nproc", 2))
        y, t = arrays_of(self.folder / "new.vtp")["pressure"], arrays_of(source)["pMean"]
        self.assertAlmostEqual(math.sqrt(sum((a - b) ** 2 for a, b in zip(y, t)) / sum(b * b for b in t)), expected, delta=1e-4 * expected)
        self.assert_fails(self.meshard("train", "car.yaml", *words, "data.ground=floor"), 2, "data.ground")


class Augmentation(Inputs):
    words = ("training.augment.mirror=y", "training.augment.translation=[0.1, 0.05, 0]")

    def test_is_the_same_on_any_number_of_ranks(self):
        self.assert_same_on_ranks("varied", *self.words, "training.max_steps=5")
        self.train("plain", 1, "training.max_steps=5")
        self.assertNotEqual(self.losses("varied"), self.losses("plain"))

    def test_goes_on_after_a_stop(self):
        turned = ("data.constants=[rho, speed, length]", "training.augment.rotation=20", "training.augment.free_stream=[rho, speed, length]")
        self.assert_goes_on("varied", 2, 2, *self.words, *turned)

    def test_is_the_same_bits_in_exact_mode(self):
        for num_ranks in (1, 3):
            self.train(f"exact{num_ranks}", num_ranks, "training.exact=true", "training.max_steps=4", *self.words, "data.sampling_resolution=40")
        self.assertEqual(self.checkpoint("exact3"), self.checkpoint("exact1"))

    def test_is_the_same_bits_where_cases_are_read_in_their_turn(self):
        words = (*self.words, *LEARNABLE, *NONDIMENSIONAL, "data.reference.U_inf=30", "data.vector_deviation=shared", "data.sampling_resolution=40")
        for memory in ("auto", "0"):
            self.train(f"memory_{memory}", 2, *words, f"data.memory={memory}")
        self.assertEqual(self.checkpoint("memory_0"), self.checkpoint("memory_auto"))
        self.assertEqual(self.losses("memory_0"), self.losses("memory_auto"))

    def test_leaves_statistics_and_validation_as_they_are(self):
        self.train("plain", 1, "training.max_steps=1", "training.optimizer.lr=0")
        self.train("varied", 1, "training.max_steps=1", "training.optimizer.lr=0", *self.words)
        plain, varied = self.dataset("plain"), self.dataset("varied")
        self.assertEqual([plain["mean"], plain["std"]], [varied["mean"], varied["std"]])
        of_test = [next(line for line in self.lines(run) if line["phase"] == "test")["metrics"] for run in ("plain", "varied")]
        self.assertEqual(of_test[0], of_test[1])

    def test_is_refused_where_it_would_lie(self):
        path = self.folder / "cases/run_1/boundary_1.vtp"
        head, _, rest = path.read_text().partition("<Points>")
        opening, _, rest = rest.partition(">")
        numbers, _, tail = rest.partition("<")
        values = [float(word) for word in numbers.split()]
        values[1::3] = [max(0.0, y) for y in values[1::3]]   # half a body
        path.write_text(f"{head}<Points>{opening}>" + " ".join(f"{value:.9g}" for value in values) + "<" + tail)
        self.assert_fails(self.meshard("train", "car.yaml", *self.words), 3, "case 1 lies on one side of the plane y = 0", "training.augment.half_bodies=mirrored")
        self.assert_good(self.meshard("train", "car.yaml", *self.words, "training.augment.half_bodies=mirrored", "training.max_steps=1"))
        for words, texts in ((["training.augment.rotation=5"], ["free_stream"]), (["training.augment.mirror=x"], ["free_stream"]),
                             (["training.augment.translation=[1]"], ["expected 3 numbers"]), (["training.augment.sided_constants=[yaw]"], ["yaw", "data.constants"]),
                             (["training.augment.mirror=y", "training.augment.half_bodies=mirrored", "~data.fields.wss.kind"], ["'wss' has 3"])):
            result = self.meshard("train", "car.yaml", "run_id=other", *words)
            self.assertIn(result.code, (2, 3), str(result))
            for text in texts:
                self.assertIn(text, result.err)


class PrintedConfiguration(Inputs):
    def test_says_where_every_value_comes_from(self):
        result = self.meshard("train", "car.yaml", "training.num_epochs=7", "model.n_layers=3", "--print-config")
        self.assert_good(result)
        sources = {}
        for line in result.out.splitlines():
            value, _, source = line.partition("   # ")
            if source:
                sources[value.strip()] = source
        self.assertEqual(sources["num_epochs: 7"], "command line")
        self.assertEqual(sources["n_layers: 3"], "command line")
        self.assertEqual(sources["encoding: none"], "default")
        self.assertEqual(sources["n_hidden: 16"], "car.yaml:10:50")
        self.assertEqual(sources["from: pMean"], "car.yaml:8:22")
        leaves = [line for line in result.out.splitlines() if not line.endswith(":")]
        self.assertEqual([line for line in leaves if "   # " not in line], [])
