# SPDX-License-Identifier: Apache-2.0
"""What a step of `meshard train` does: losses, clipping, accumulation, steps that are left out; the same on any number of ranks and after a stop."""
import json
import math
import struct

from training_modes_test import Modes, arrays_of

CONSTANT = ("training.scheduler.name=constant", "training.order=fixed")


class Steps(Modes):
    timeout = 300

    def losses(self, run):
        return [line["loss"] for line in self.lines(run) if line["phase"] == "train_step"]

    def checkpoint(self, run, name="last"):
        return arrays_of(self.folder / f"runs/{run}/checkpoints/{name}.safetensors")

    def description(self, run, name="last"):
        return json.loads((self.folder / f"runs/{run}/checkpoints/{name}.json").read_text())

    def numbers(self, run, prefix=""):
        """Of all arrays of the last checkpoint whose names begin so."""
        return {name: struct.unpack(f"<{len(content) // 4}f", content) for name, content in self.checkpoint(run).items() if name.startswith(prefix)}

    def norm(self, run, prefix):
        return math.sqrt(sum(x * x for values in self.numbers(run, prefix).values() for x in values))

    def assert_near(self, run, expected, tolerance=2e-3, prefix=""):
        """Losses and weights up to rounding, which steps of training make larger."""
        for one, other in zip(self.losses(run), self.losses(expected), strict=True):
            self.assertAlmostEqual(one, other, delta=tolerance * abs(other))
        found, wanted = self.numbers(run, prefix), self.numbers(expected, prefix)
        self.assertEqual(found.keys(), wanted.keys())
        for name in wanted:
            largest = max(map(abs, wanted[name]))
            self.assertLess(max(abs(x - y) for x, y in zip(found[name], wanted[name], strict=True)), max(0.02, tolerance) * max(largest, 0.1), name)

    def assert_same_on_ranks(self, name, *words, tolerance=2e-3):
        """On one rank, on three, and with parameters that are cut among two."""
        self.train(name, 1, *words)
        for other, num_ranks, more in (("ranks", 3, ()), ("cut", 2, ("parallel.parameters=sharded",))):
            self.train(f"{name}_{other}", num_ranks, *words, *more)
            self.assert_near(f"{name}_{other}", name, tolerance)

    def assert_goes_on(self, name, stop, num_ranks, *words):
        """A run that stops after so many steps and goes on has the bits of one that does not."""
        self.train(f"{name}_whole", num_ranks, *words)
        self.train(f"{name}_parts", num_ranks, *words, f"training.max_steps={stop}")
        self.assert_good(self.meshard("train", "--resume", f"runs/{name}_parts", "--nproc", num_ranks, "training.max_steps=0"))
        found, expected = self.checkpoint(f"{name}_parts"), self.checkpoint(f"{name}_whole")
        self.assertEqual(found.keys(), expected.keys())
        self.assertEqual([key for key in expected if found[key] != expected[key]], [])
        self.assertEqual(self.losses(f"{name}_parts"), self.losses(f"{name}_whole"))


class Losses(Steps):
    def test_are_the_same_on_any_number_of_ranks(self):
        self.assert_same_on_ranks("mixed", "training.loss=[huber, l1, relative_mse]", "training.loss_weights=[1, 0.5, 0.1]", "training.huber_delta=0.5",
                                  "training.field_weights={pressure: 2, wss: [1, 0.5, 3]}", "training.point_weights=areas")
        self.assert_same_on_ranks("relative", "training.loss=[mse, relative_l2]", "training.loss_weights=[1, 0.05]")

    def test_add_up(self):
        first = {}
        for loss in ("mse", "l1", "relative_l2"):
            self.train(loss, 1, f"training.loss={loss}", "training.max_steps=1")
            first[loss], = self.losses(loss)
        told = self.train("sum", 1, "training.loss=[mse, l1, relative_l2]", "training.loss_weights=[1, 2, 0.5]", "training.max_steps=1", "training.huber_delta=0.5")
        self.assertIn("meshard train: warning: without effect: training.huber_delta (only with training.loss=huber).\n", told.err)
        found, = self.losses("sum")
        expected = first["mse"] + 2 * first["l1"] + 0.5 * first["relative_l2"]
        self.assertAlmostEqual(found, expected, delta=1e-5 * expected)
        self.train("fields", 1, "training.field_weights={pressure: 0}", "training.max_steps=1")
        self.assertNotAlmostEqual(self.losses("fields")[0], first["mse"], delta=1e-3 * first["mse"])

    def test_are_the_same_bits_in_exact_mode(self):
        for num_ranks in (1, 3):
            self.train(f"exact{num_ranks}", num_ranks, "training.exact=true", "training.loss=[huber, relative_l2]", "training.max_steps=4", "training.clip_norm=0.5")
        self.assertEqual(self.checkpoint("exact3"), self.checkpoint("exact1"))
        self.assertEqual(self.losses("exact3"), self.losses("exact1"))

    def test_are_refused_where_they_do_not_fit(self):
        for words, texts in ((["training.loss=mae"], ["mae", "mse|l1|huber"]), (["training.loss=[mse, l1]", "training.loss_weights=[1]"], ["training.loss_weights", "2"]),
                             (["training.field_weights={cp: 2}"], ["cp", "pressure, wss"]), (["training.field_weights={wss: [1, 2]}"], ["field 2 has 3 channels, and 2 weights"]),
                             (["training.point_weights=volumes"], ["goes by volumes", "its cells have areas"]), (["training.point_weights=area"], ["areas"]), (["training.huber_delta=0"], ["training.huber_delta"]),
                             (["training.clip_norm=-1"], ["training.clip_norm"]), (["training.accumulate=0"], ["training.accumulate"])):
            result = self.meshard("train", "car.yaml", *words)
            self.assertIn(result.code, (2, 3), str(result))
            for text in texts:
                self.assertTrue(any(part in result.err for part in text.split("|")), str(result))
        self.assertFalse((self.folder / "runs/car/checkpoints").exists())


class Clipping(Steps):
    def test_scales_the_norm_of_all_gradients_down(self):
        for name, num_ranks, words in (("one", 1, ()), ("ranks", 3, ()), ("cut", 2, ("parallel.parameters=sharded",)), ("cut3", 3, ("parallel.parameters=sharded",)),
                                       ("groups", 2, ("parallel.data=2", "parallel.parameters=sharded"))):
            self.train(f"{name}_large", num_ranks, "training.max_steps=1", "training.clip_norm=1e6", *words)
            self.train(f"{name}_small", num_ranks, "training.max_steps=1", "training.clip_norm=0.01", *words)
            found = [line["grad_norm"] for run in ("large", "small") for line in self.lines(f"{name}_{run}") if line["phase"] == "train_step"]
            self.assertAlmostEqual(found[0], found[1], delta=1e-6 * found[0])
            # AdamW's first mean is a tenth of the gradient.
            self.assertAlmostEqual(10 * self.norm(f"{name}_large", "optimizer.exp_avg."), found[0], delta=1e-5 * found[0])
            self.assertAlmostEqual(10 * self.norm(f"{name}_small", "optimizer.exp_avg."), 0.01, delta=1e-5)
        self.train("plain", 1, "training.max_steps=1")
        self.assertEqual(self.checkpoint("plain"), self.checkpoint("one_large"), "a norm that is small enough changes no bit")
        self.assertNotIn("grad_norm", self.lines("plain")[1])


class Accumulation(Steps):
    def test_is_as_many_data_groups(self):
        exact = ("training.exact=true",)
        self.train("groups", 2, "parallel.data=2", *exact)
        for name, num_ranks in (("one", 1), ("two", 2)):
            self.train(name, num_ranks, "training.accumulate=2", *exact)
            self.assertEqual(len(self.losses(name)), 4, "two steps an epoch of three cases")
            self.assert_near(name, "groups", 1e-5)
        self.train("drawing_groups", 2, "parallel.data=2", "model.plus=true", "training.max_steps=2", *exact)
        self.train("drawing", 1, "training.accumulate=2", "model.plus=true", "training.max_steps=2", *exact)
        self.assert_near("drawing", "drawing_groups", 1e-5)
        self.assert_same_on_ranks("plain", "training.accumulate=2")
        self.train("both", 2, "parallel.data=2", "training.accumulate=2", "parallel.parameters=sharded")
        self.assertEqual(len(self.losses("both")), 2, "one step of all three cases an epoch")
        self.train("three", 1, "training.accumulate=3")
        self.assert_near("both", "three")

    def test_goes_on_to_the_same_bits(self):
        self.assert_goes_on("plain", 3, 2, "training.accumulate=2", "training.clip_norm=0.3", "training.loss=[huber, relative_l2]")


class LeavingOut(Steps):
    def setUp(self):
        """Weights of which one is no number: so is then every loss."""
        super().setUp()
        self.train("seed", 1, "training.max_steps=1")
        content = bytearray((self.folder / "runs/seed/checkpoints/last.safetensors").read_bytes())
        size, = struct.unpack("<Q", content[:8])
        first = 8 + size + json.loads(content[8:8 + size])["blocks.0.ln_mlp2.1.bias"]["data_offsets"][0]
        content[first:first + 4] = struct.pack("<f", math.nan)
        (self.folder / "poisoned.safetensors").write_bytes(content.replace(b'"meshard_hash"', b'"without_hash"'))

    def train_poisoned(self, run, num_ranks, *words):
        return self.meshard("train", "car.yaml", f"run_id={run}", "--nproc", num_ranks, "training.init=poisoned.safetensors", *CONSTANT, *words)

    def test_changes_nothing_on_any_rank(self):
        start = arrays_of(self.folder / "poisoned.safetensors")
        for name, num_ranks, words in (("one", 1, ()), ("ranks", 3, ()), ("cut", 2, ("parallel.parameters=sharded",)), ("half", 2, ("training.precision=float16",))):
            result = self.train_poisoned(name, num_ranks, "training.max_steps=2", "training.max_skipped_steps=2", "training.clip_norm=1", "training.ema=0.9", *words)
            self.assert_good(result)
            self.assertIn("the loss is not finite in step 2 (epoch 1, case 2); the step is left out", result.out + result.err)
            steps = [line for line in self.lines(name) if line["phase"] == "train_step"]
            self.assertEqual([line.get("left_out") for line in steps], [True, True])
            self.assertEqual({line.get("loss_scale") for line in steps}, {65536 if name == "half" else None}, "the scale has no part in it")
            self.assertEqual([line["loss"] for line in self.lines(name) if line["phase"] == "train"], [None])   # no 0, which would be the best
            found = self.checkpoint(name)
            self.assertFalse(any(key.startswith("optimizer.exp_avg") for key in found))
            for key, values in found.items():
                if not key.startswith("norm."):
                    self.assertEqual(values, start[key.removeprefix("optimizer.weights.")], key)

    def test_is_agreed_by_data_groups(self):
        result = self.train_poisoned("groups", 3, "parallel.data=3", "training.max_skipped_steps=5")
        self.assert_good(result)
        self.assertIn("case 1, 2, 3); the step is left out", result.out + result.err)

    def test_is_of_the_step_with_the_case_that_is_bad(self):
        """Not also of a last step that another case fills up."""
        (self.folder / "cases/constants.json").write_text(json.dumps([{"id": str(n), "c": 3e38 if n == 1 else n} for n in range(1, 5)]))
        for run, num_ranks, words in (("groups", 2, ("parallel.data=2",)), ("one", 1, ("training.accumulate=2",))):
            self.train(run, num_ranks, "~data.split.column", "data.split={train: ['1', '2', '3'], val: ['4']}", "data.cases=constants.json", "data.constants=[c]",
                       "training.precision=float16", "training.max_skipped_steps=1", "training.num_epochs=2", *words, *CONSTANT)
            self.assertEqual([line.get("left_out") for line in self.lines(run) if line["phase"] == "train_step"], [True, None] * 2, run)

    def test_ends_where_too_many_follow_each_other(self):
        for words, text in (((), "the loss became NaN in step 1 (epoch 1, case 1). The weights are still the initial ones"), (("training.max_skipped_steps=1",), "2 steps in a row were left out")):
            result = self.train_poisoned("ends", 2, *words)
            self.assertNotEqual(result.code, 0)
            self.assertIn(text, result.err)

    def test_counts_on_after_a_stop(self):
        self.assert_good(self.train_poisoned("stopped", 1, "training.max_steps=2", "training.max_skipped_steps=2"))
        self.assertEqual(self.description("stopped")["skipped_in_a_row"], 2)
        result = self.meshard("train", "--resume", "runs/stopped", "training.max_steps=0")
        self.assertNotEqual(result.code, 0)
        self.assertIn("3 steps in a row", result.err)


class Schedules(Steps):
    def rates(self, run):
        return [line["lr"] for line in self.lines(run) if line["phase"] == "train_step"]

    def test_are_those_of_the_formulas(self):
        epochs, rate = 4, 1e-3   # of three steps
        half = lambda a, b, x: b + (a - b) / 2 * (1 + math.cos(math.pi * x))
        for name, words, formula in (
                ("step", ["step_epochs=2", "gamma=0.5"], lambda t: rate * 0.5 ** (t // 3 // 2)),
                ("exponential", ["gamma=0.9", "min_lr=0.0008"], lambda t: max(8e-4, rate * 0.9 ** (t // 3))),
                ("linear", ["min_lr=1e-4", "warmup_steps=2"], lambda t: rate * (t + 1) / 2 if t < 2 else 1e-4 + 9e-4 * (1 - (t - 2) / 10)),
                ("polynomial", ["power=3"], lambda t: rate * (1 - t / 12) ** 3),
                ("one_cycle", [], lambda t: half(rate / 25, rate, t / 2.6) if t <= 2.6 else half(rate, rate / 25e4, (t - 2.6) / 8.4))):
            self.train(name, 1, f"training.num_epochs={epochs}", f"training.scheduler.name={name}", *(f"training.scheduler.{word}" for word in words))
            for t, found in enumerate(self.rates(name)):
                self.assertAlmostEqual(found, formula(t), delta=1e-12, msg=f"{name}, step {t}")

    def test_go_on_to_the_same_bits(self):
        self.assert_goes_on("cycle", 4, 2, "training.num_epochs=3", "training.scheduler.name=one_cycle", "training.optimizer.lr=0.01")
        self.assertEqual(self.rates("cycle_parts"), self.rates("cycle_whole"))

    def test_fall_where_the_error_does_not(self):
        words = ("data.split={train: ['1', '2'], val: ['3']}", "training.scheduler.name=plateau", "training.scheduler.patience=0", "training.scheduler.threshold=1",
                 "training.scheduler.gamma=0.5", "training.num_epochs=5", "~data.split.column")   # none is better by its whole size
        self.assert_goes_on("plateau", 5, 2, *words)
        self.assertEqual(self.rates("plateau_whole"), [1e-3 * 0.5 ** (t // 2) for t in range(10)])
        self.assertEqual(self.rates("plateau_parts"), self.rates("plateau_whole"))

    def test_are_refused_where_they_cannot_be(self):
        self.assert_fails(self.meshard("train", "car.yaml", "training.scheduler.name=plateau"), 3, "validation cases")
        self.assert_fails(self.meshard("train", "car.yaml", "training.early_stop.patience=2"), 3, "validation cases")
        self.assert_fails(self.meshard("train", "car.yaml", "training.scheduler.name=one_cycle", "training.scheduler.warmup_steps=3"), 2, "warmup_steps")
        self.assert_fails(self.meshard("train", "car.yaml", "training.scheduler.name=one_cycl"), 2, "one_cycle")


class Optimisers(Steps):
    def test_train_the_same_on_any_number_of_ranks(self):
        for name, words in (("lion", ("training.optimizer.lr=1e-4",)), ("muon", ("training.optimizer.weight_decay=0.1",)),
                            ("muon_original", ("training.optimizer.muon_size=original", "training.optimizer.lr=0.02"))):
            self.assert_same_on_ranks(name, f"training.optimizer.name={name.partition('_')[0]}", *words)
        self.train("adamw", 1)
        self.assertNotEqual(self.losses("muon"), self.losses("adamw"))
        self.assertNotEqual(self.losses("lion"), self.losses("muon"))

    def test_go_on_to_the_same_bits(self):
        self.assert_goes_on("lion", 2, 2, "training.optimizer.name=lion", "training.ema=0.9", "training.clip_norm=1")
        self.assert_goes_on("muon", 4, 2, "training.optimizer.name=muon", "training.ema=0.9", "parallel.parameters=sharded", "training.accumulate=1")
        names = self.checkpoint("muon_whole")
        self.assertIn("optimizer.exp_avg_sq.blocks.0.ln_1.weight", names, "no matrix: by AdamW")
        self.assertNotIn("optimizer.exp_avg_sq.blocks.0.ln_mlp2.1.weight", names)
        self.assert_fails(self.meshard("train", "--resume", "runs/lion_whole", "training.optimizer.name=adamw"), 3, "the run's optimiser was lion")

    def test_of_groups_stay_as_they_were(self):
        group = "training.optimizer.groups.head={match: [blocks.0.ln_mlp2.1.*], name: lion}"
        self.train("car", 1, group, "training.max_steps=1")
        self.assert_fails(self.meshard("train", "--resume", "runs/car", "training.optimizer.groups.head.name=adamw"), 3, "training.optimizer.groups were [\"head: lion\"]")

    def test_take_groups_of_parameters(self):
        self.train("start", 1, "training.max_steps=1", "training.optimizer.lr=0")
        words = ("training.optimizer.groups={still: {match: '*.bias', lr: 0}, head: {match: [blocks.0.ln_mlp2.1.*], lr: 1e-5, weight_decay: 0, name: lion}}",
                 "training.max_steps=1", "training.scheduler.name=constant")
        for name, num_ranks, more in (("one", 1, ()), ("cut", 3, ("parallel.parameters=sharded",))):
            self.train(name, num_ranks, *words, *more)
            start, found = self.numbers("start"), self.numbers(name)
            weights = [key for key in start if not key.startswith(("optimizer.", "norm."))]
            moved = {key: max(abs(a - b) for a, b in zip(found[key], start[key])) for key in weights}
            self.assertTrue(all(moved[key] == 0 for key in weights if key.endswith(".bias")))
            head = [key for key in weights if key.startswith("blocks.0.ln_mlp2.1.") and not key.endswith(".bias")]
            self.assertTrue(head)
            for key in head:
                self.assertAlmostEqual(moved[key], 1e-5, delta=2e-7)   # a sign times the rate
            others = [key for key in weights if not key.endswith(".bias") and key not in head]
            self.assertGreater(max(moved[key] for key in others), 5e-4)
        self.assert_fails(self.meshard("train", "car.yaml", "training.optimizer.groups.head.match=nothing*"), 3, "training.optimizer.groups.head has no parameter")
        self.assert_fails(self.meshard("train", "car.yaml", "training.optimizer.groups.head.lr=1"), 2, "training.optimizer.groups.head.match")


class Averages(Steps):
    def test_are_what_is_validated_and_predicted_with(self):
        words = ("data.split={train: ['1', '2'], val: ['3'], test: ['4']}", "~data.split.column", "training.num_epochs=3")
        for name, num_ranks, more in (("one", 1, ()), ("cut", 3, ("parallel.parameters=sharded",))):
            self.train(f"{name}_plain", num_ranks, *words, *more)
            self.train(f"{name}_mean", num_ranks, "training.ema=0.9", *words, *more)
            self.assertEqual(self.losses(f"{name}_mean"), self.losses(f"{name}_plain"), "training does not see it")
            plain, mean = self.numbers(f"{name}_plain"), self.numbers(f"{name}_mean")
            weights = [key for key in plain if not key.startswith(("optimizer.", "norm."))]
            for key in weights:
                self.assertEqual(mean["optimizer.weights." + key], plain[key])
                self.assertNotEqual(mean[key], plain[key])
            # Read as weights of a run that learns nothing, they give the validation error of the averages.
            self.train(f"{name}_again", 1, *words, f"training.init=runs/{name}_mean/checkpoints/last.safetensors", "training.optimizer.lr=0", "training.max_steps=1")
            found = [line["metrics"] for line in self.lines(f"{name}_again") if line["phase"] == "val"][0]
            expected = [line["metrics"] for line in self.lines(f"{name}_mean") if line["phase"] == "val"][-1]
            for field in ("pressure", "wss"):
                self.assertAlmostEqual(found[field]["rel_l2"], expected[field]["rel_l2"], delta=1e-5)
        self.assert_near("cut_mean", "one_mean")
        self.assert_good(self.meshard("predict", "runs/one_mean", "cases/run_1/boundary_1.vtp", "-o", "mean.vtp"))
        self.assert_good(self.meshard("convert", "runs/one_mean/checkpoints/last.safetensors", "mean.pt"))

    def test_are_the_weighted_sums_of_the_weights(self):
        key = "blocks.0.ln_mlp2.1.weight"
        values = {}
        for step in range(4):
            self.train(f"at{step}", 1, f"training.max_steps={max(1, step)}", *(("training.optimizer.lr=0",) if step == 0 else ()), "training.scheduler.name=constant")
            values[step] = self.numbers(f"at{step}")[key]
        self.train("mean", 1, "training.max_steps=3", "training.ema=0.15", "training.scheduler.name=constant")
        mean = values[0]
        for t in range(3):
            decay = min(0.15, (1 + t) / (10 + t))
            mean = [decay * a + (1 - decay) * b for a, b in zip(mean, values[t + 1])]
        for found, expected in zip(self.numbers("mean")[key], mean):
            self.assertAlmostEqual(found, expected, delta=1e-6)


class Endings(Steps):
    words = ("data.split={train: ['1', '2'], val: ['3'], test: ['4']}", "~data.split.column")

    def test_come_early_where_the_error_does_not_fall(self):
        stop = ("training.num_epochs=50", "training.early_stop.patience=2", "training.early_stop.min_delta=1000", *self.words)
        for num_ranks in (1, 2):
            result = self.train(f"early{num_ranks}", num_ranks, *stop)
            self.assertIn("the run ends early", result.out + result.err)
            self.assertEqual(len([line for line in self.lines(f"early{num_ranks}") if line["phase"] == "val"]), 3, "the first, and two that are no better")
            self.assertTrue(any(line["phase"] == "test" for line in self.lines(f"early{num_ranks}")))
            self.assertEqual(self.description(f"early{num_ranks}")["step"], 6)
        self.train("parts", 1, *stop, "training.max_steps=3")
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "training.max_steps=0"))
        self.assertEqual(self.description("parts")["step"], 6, "the epoch that was cut short does not count")

    def test_come_when_the_time_is_over(self):
        result = self.train("long", 2, "training.num_epochs=1000000", "training.save_interval=1000000", "training.max_minutes=0.02")
        self.assertIn("training.max_minutes are over: stopped after step", result.out + result.err)
        step = self.description("long")["step"]
        self.assertEqual(len(self.losses("long")), step)
        self.assertFalse(any(line["phase"] == "test" for line in self.lines("long")))
        self.assert_good(self.meshard("train", "--resume", "runs/long", "training.max_minutes=0", f"training.max_steps={step + 2}"))
        self.assertEqual(len(self.losses("long")), step + 2)


    def test_with_another_loss_begin_a_new_best(self):
        words = ("~data.split.column", "data.split={train: ['1', '2', '3']}", "training.num_epochs=2")
        self.train("loss", 1, *words)
        result = self.meshard("train", "--resume", "runs/loss", "training.num_epochs=3", "training.loss_weights=[10]")
        self.assert_good(result)
        self.assertIn("the loss is another than before", str(result))
        self.assertEqual(json.loads((self.folder / "runs/loss/checkpoints/best.json").read_text())["epoch"], 3)

    def test_within_an_epoch_leave_no_best_of_other_cases(self):
        """Without validation cases an epoch's mean loss tells the best; that of a part of the cases is no such mean."""
        words = ("~data.split.column", "data.split={train: ['1', '2', '3']}", "training.num_epochs=3", "training.optimizer.lr=1e-6")
        self.train("whole", 1, *words)
        for steps in (1, 2):
            self.train(f"parts{steps}", 1, *words, f"training.max_steps={steps}")
            self.assertEqual(self.description(f"parts{steps}", "best")["step"], steps)   # there is no other
            self.assert_good(self.meshard("train", "--resume", f"runs/parts{steps}", "training.max_steps=0"))
            self.assertEqual(self.description(f"parts{steps}", "best")["step"], self.description("whole", "best")["step"])

    def test_within_an_epoch_go_on_with_as_many_cases_a_step(self):
        words = ("~data.split.column", "data.split={train: ['1', '2', '3', '4']}", "training.max_steps=1")
        self.train("parts", 3, *words, "parallel.data=3")   # steps of 3 cases and 1
        go_on = ("train", "--resume", "runs/parts", "training.max_steps=0", "--nproc")
        self.assert_fails(self.meshard(*go_on, 2, "parallel.data=2"), 3, "steps have 3 cases each, and steps have 2 now")
        self.assert_good(self.meshard(*go_on, 1, "parallel.data=1", "training.accumulate=3"))
        found = [line["loss"] for line in self.lines("parts") if line["phase"] == "train"]
        self.train("whole", 3, *words, "parallel.data=3", "training.max_steps=0")
        expected = [line["loss"] for line in self.lines("whole") if line["phase"] == "train"]
        for a, b in zip(found[1:], expected, strict=True):   # the first is that of the part
            self.assertAlmostEqual(a, b, delta=1e-3 * abs(b))


class KeptCheckpoints(Steps):
    def test_are_the_newest_and_the_snapshots(self):
        for name, words, epochs in (("newest", ["keep_last=2"], [4, 5]), ("both", ["keep_last=1", "snapshot_interval=2"], [2, 4, 5]),
                                    ("snapshots", ["snapshot_interval=3", "save_interval=100"], [3]), ("none", [], [])):
            self.train(name, 2, "training.num_epochs=5", *(f"training.{word}" for word in words))
            expected = sorted([f"epoch_{epoch:06}.{end}" for epoch in epochs for end in ("json", "safetensors")] +
                              [f"{which}.{end}" for which in ("best", "last") for end in ("json", "safetensors")])
            self.assertEqual(self.names(self.folder / f"runs/{name}/checkpoints"), expected)
            for epoch in epochs:
                self.assertEqual(self.description(name, f"epoch_{epoch:06}")["epoch"], epoch)
        self.assertEqual(self.checkpoint("newest", "epoch_000005"), self.checkpoint("newest"))
        self.assertNotEqual(self.checkpoint("newest", "epoch_000004"), self.checkpoint("newest"))
        self.assert_good(self.meshard("train", "--resume", "runs/newest", "training.num_epochs=6"))
        self.assertEqual(self.description("newest", "epoch_000006")["epoch"], 6)
        self.assertFalse((self.folder / "runs/newest/checkpoints/epoch_000004.json").exists())
