# SPDX-License-Identifier: Apache-2.0
"""What `meshard train` promises of its settings: the same bits on any number of ranks, parameters cut among ranks, inputs that are computed."""
import json
import math
import shutil
import signal
import struct
import time

from runner import Case
from samples import put_training, write_body, write_box


def arrays_of(path):
    """Name to bytes of each array of a safetensors file."""
    content = path.read_bytes()
    size, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    return {name: content[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]] for name, entry in header.items() if name != "__metadata__"}


def first_gradients(run):
    """The gradients of a run's first step, by parameter: a tenth of them is the optimiser's first mean."""
    prefix = "optimizer.exp_avg."
    return {name[len(prefix):]: [10 * value for value in struct.unpack(f"<{len(content) // 4}f", content)]
            for name, content in arrays_of(run / "checkpoints/last.safetensors").items() if name.startswith(prefix)}


def assert_same_gradients(case, found, expected):
    """Each gradient by itself; those that cancel to nearly nothing have the rounding of what cancels."""
    case.assertEqual(found.keys(), expected.keys())
    largest = max(math.hypot(*gradient) for gradient in expected.values())
    case.assertGreater(largest, 0)
    for name, gradient in expected.items():
        difference = math.hypot(*(a - b for a, b in zip(found[name], gradient, strict=True)))
        case.assertLessEqual(difference, 2e-4 * math.hypot(*gradient) + 1e-6 * largest, name)


class Modes(Case):
    def setUp(self):
        super().setUp()
        put_training(self.folder)

    def train(self, run, num_ranks, *words, code=0, **options):
        result = self.meshard("train", "car.yaml", f"run_id={run}", "--nproc", num_ranks, *words, **options)
        self.assertEqual(result.code, code, str(result))
        return result

    def lines(self, run):
        return [json.loads(line) for line in (self.folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]

    def results(self, run):
        """Losses and errors of every line, and the arrays of both checkpoints."""
        numbers = [(line["phase"], line.get("step"), line["loss"], line.get("metrics")) for line in self.lines(run) if "loss" in line]
        numbers = [one for one in numbers[:-1] if one[0] != "test"] + numbers[-1:]   # a run that stopped and went on was tested twice
        folder = self.folder / "runs" / run / "checkpoints"
        return numbers, arrays_of(folder / "last.safetensors"), arrays_of(folder / "best.safetensors")


class ExactTraining(Modes):
    timeout = 300

    def assert_same_on_ranks(self, name, *words):
        for num_ranks in (1, 2, 3):
            self.train(f"{name}{num_ranks}", num_ranks, "training.exact=true", *words)
        expected = self.results(f"{name}1")
        self.assertEqual([phase for phase, *_ in expected[0]].count("train_step"), 6)
        self.assertTrue(any(key.startswith("optimizer.exp_avg_sq.") for key in expected[1]))
        for num_ranks in (2, 3):
            found = self.results(f"{name}{num_ranks}")
            self.assertEqual(found[0], expected[0], f"{name}: losses and errors on {num_ranks} ranks")
            for checkpoint in (1, 2):
                self.assertEqual(found[checkpoint].keys(), expected[checkpoint].keys())
                different = [key for key in expected[checkpoint] if found[checkpoint][key] != expected[checkpoint][key]]
                self.assertEqual(different, [], f"{name}: arrays of a checkpoint on {num_ranks} ranks")

    def test_gives_the_same_bits_on_any_number_of_ranks(self):
        self.assert_same_on_ranks("transolver")

    def test_gives_the_same_bits_of_every_model_and_memory_mode_it_takes(self):
        small = ("model.n_layers=1", "model.n_hidden=8", "model.n_head=2", "model.slice_num=4")
        self.assert_same_on_ranks("recomputed", "training.memory=recomputed")
        self.assert_same_on_ranks("drawing", "model.plus=true", "model.dropout=0.3")
        self.assert_same_on_ranks("flare", "~model", "model.name=flare", *small)
        self.assert_same_on_ranks("geotransolver", "~model", "model.name=geotransolver", *small)

    def test_differs_without_the_setting(self):
        for num_ranks in (1, 2, 3):
            self.train(f"plain{num_ranks}", num_ranks)
        for other in ("plain2", "plain3"):
            self.assertNotEqual(self.results("plain1")[0], self.results(other)[0])
            self.assertNotEqual(self.results("plain1")[1], self.results(other)[1])

    def test_drops_the_same_rows_on_any_number_of_ranks_without_it(self):
        losses = {}
        for num_ranks in (1, 2, 4):
            self.train(f"dropping{num_ranks}", num_ranks, "model.dropout=0.4", "data.parts=4", "training.max_steps=1")
            losses[num_ranks] = self.results(f"dropping{num_ranks}")[0][0]
        for num_ranks in (2, 4):   # other rows would change the loss by percents
            for one, other in zip(losses[num_ranks], losses[1], strict=True):
                if isinstance(one, float):
                    self.assertAlmostEqual(one, other, delta=1e-4 * abs(other))

    def test_does_not_depend_on_parts_and_data_groups_of_other_sizes(self):
        self.train("one", 1, "training.exact=true")
        self.train("parts", 2, "training.exact=true", "data.parts=7")
        self.assertEqual(self.results("one"), self.results("parts"))
        self.train("groups2", 2, "training.exact=true", "parallel.data=2")
        self.train("groups4", 4, "training.exact=true", "parallel.data=2")
        self.assertEqual(self.results("groups2"), self.results("groups4"))

    def test_does_not_depend_on_threads(self):
        for number in (1, 2, 3):   # large enough to be shared out among threads
            write_body(self.folder / f"cases/run_{number}/boundary_{number}.vtp", (1, 0.4, 0.1 * number), n=24)
        for num_threads in (1, 2):
            self.train(f"threads{num_threads}", 1, "training.exact=true", "training.max_steps=2", environment={"OMP_NUM_THREADS": str(num_threads)})
        self.assertEqual(self.results("threads1"), self.results("threads2"))

    def test_goes_on_on_other_ranks_to_the_same_bits(self):
        self.train("whole", 1, "training.exact=true")
        self.train("parts", 3, "training.exact=true", "training.max_steps=4")
        result = self.meshard("train", "--resume", "runs/parts", "--nproc", 2, "training.max_steps=0")
        self.assert_good(result)
        whole, parts = self.results("whole"), self.results("parts")
        self.assertEqual(parts[1], whole[1])
        self.assertEqual([line for line in parts[0] if line[0] == "train_step"], [line for line in whole[0] if line[0] == "train_step"])

    def test_refuses_by_name_what_adds_in_another_order(self):
        exact = ("training.exact=true", "--validate")
        for words, names in ((("training.memory=streamed",), ("training.memory", "streamed")),
                             (("training.precision=bfloat16",), ("training.precision", "bfloat16")),
                             (("training.precision=tf32",), ("training.precision", "tf32")),
                             (("parallel.data=3",), ("parallel.data", "3")),
                             (("parallel.parameters=sharded",), ("parallel.parameters", "sharded")),
                             (("~model", "model.name=meshgraphnet"), ("model.name", "meshgraphnet")),
                             (("~model", "model.name=geotransolver", "model.include_local_features=true"), ("model.include_local_features",))):
            result = self.meshard("train", "car.yaml", *words, *exact)
            self.assert_fails(result, 2, "training.exact", *names)
        self.assertFalse((self.folder / "runs").exists())


class Noise(Modes):
    def test_of_transolver_plus_belongs_to_the_points_on_any_number_of_ranks(self):
        for num_ranks in (1, 2, 3):
            self.train(f"noise{num_ranks}", num_ranks, "model.plus=true")
        losses = [[line["loss"] for line in self.lines(f"noise{num_ranks}") if line["phase"] == "train_step"] for num_ranks in (1, 2, 3)]
        self.train("other", 1, "model.plus=true", "seed=77")
        other = [line["loss"] for line in self.lines("other") if line["phase"] == "train_step"]
        for cut in losses[1:]:
            self.assertEqual(len(cut), len(losses[0]))
            for one, several in zip(losses[0], cut):
                self.assertAlmostEqual(several, one, delta=1e-3 * one)
        self.assertNotAlmostEqual(other[0], losses[0][0], delta=1e-3 * losses[0][0])


class Precision(Modes):
    def losses(self, run):
        return [line["loss"] for line in self.lines(run) if line["phase"] == "train_step"]

    def assert_near(self, run, expected):
        """Up to the first step that was left out nearly the same losses; then those of fewer steps."""
        found = self.losses(run)
        scales = [65536] + [line["loss_scale"] for line in self.lines(run) if line["phase"] == "train_step"]
        num_before = next((i + 1 for i in range(len(found)) if scales[i + 1] < scales[i]), len(found))
        self.assertEqual(len(found), len(expected))
        for i, (one, other) in enumerate(zip(found, expected)):
            self.assertAlmostEqual(one, other, delta=(2e-3 if i < num_before else 0.15) * other)

    def test_float16_trains_as_float32_on_any_number_of_ranks_and_however_parameters_lie(self):
        self.train("single", 1)
        single = self.losses("single")
        for name, num_ranks, words in (("half", 1, ()), ("half2", 2, ()), ("cut", 3, ("parallel.parameters=sharded",)), ("kept", 1, ("training.memory=recomputed",))):
            self.train(name, num_ranks, "training.precision=float16", *words)
            self.assert_near(name, single)
            self.assertNotEqual(self.losses(name), single)
            self.assertTrue(all(line["loss_scale"] > 0 for line in self.lines(name) if line["phase"] == "train_step"))
        self.assertFalse(any("loss_scale" in line for line in self.lines("single")))

    def test_float16_goes_on_to_the_same_bits(self):
        for words in ((), ("parallel.parameters=sharded",)):
            self.train("whole", 2, "training.precision=float16", *words)
            self.train("parts", 2, "training.precision=float16", "training.max_steps=3", *words)
            checkpoint = json.loads((self.folder / "runs/parts/checkpoints/last.json").read_text())
            self.assertEqual(sorted(checkpoint["loss_scale"]), ["good_steps", "scale"])
            self.assert_good(self.meshard("train", "--resume", "runs/parts", "--nproc", 2, "training.max_steps=0"))
            self.assertEqual(self.results("parts")[1], self.results("whole")[1])
            for name in ("whole", "parts"):
                shutil.rmtree(self.folder / "runs" / name)

    def test_steps_whose_gradients_overflow_are_left_out_on_all_ranks(self):
        self.train("scaled", 2, "training.precision=float16", "training.max_steps=2")
        path = self.folder / "runs/scaled/checkpoints/last.safetensors"
        content = path.read_bytes()
        size, = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + size])
        description = json.loads(header["__metadata__"]["meshard"])
        description["loss_scale"] = {"scale": 2.0 ** 60, "good_steps": 0}
        header["__metadata__"]["meshard"] = json.dumps(description)
        del header["__metadata__"]["meshard_hash"]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size:])
        before = arrays_of(path)
        self.assert_good(self.meshard("train", "--resume", "runs/scaled", "--nproc", 3, "training.max_steps=4"))
        self.assertEqual(arrays_of(path), before, "both steps are left out")
        self.assertEqual([line["loss_scale"] for line in self.lines("scaled") if line["phase"] == "train_step"][2:], [2.0 ** 59, 2.0 ** 58])

    def test_tf32_is_float32_on_cpus_and_says_so(self):
        self.train("single", 1)
        result = self.train("rounded", 1, "training.precision=tf32")
        self.assertIn("training.precision tf32", result.out + result.err)
        self.assertEqual(self.results("rounded"), self.results("single"))


class Profile(Modes):
    def ranges(self, run, rank):
        events = json.loads((self.folder / f"runs/{run}/profile/rank_{rank}.json").read_text())["traceEvents"]
        return [event for event in events if event.get("ph") == "X"]

    def test_traces_steps_of_each_rank_by_layer_and_collective(self):
        for name, words in (("transolver", ()), ("geotransolver", ("~model", "model.name=geotransolver", "model.n_layers=1", "model.n_hidden=8", "model.n_head=2", "model.slice_num=4"))):
            self.train(name, 2, "--profile", 3, *words)
            self.assertEqual(self.names(self.folder / f"runs/{name}/profile"), ["rank_0.json", "rank_1.json"])
            for rank in (0, 1):
                events = self.ranges(name, rank)
                spans = {}
                for event in events:
                    spans.setdefault(event["name"], []).append((event["ts"], event["ts"] + event["dur"]))
                for phase in ("backward", "optimizer"):
                    self.assertEqual(len(spans[phase]), 3, phase)
                for phase in ("forward", "block 1"):
                    self.assertGreaterEqual(len(spans[phase]), 3, phase)   # validation, too
                self.assertTrue(all(any(f <= b and e <= g for f, g in spans["forward"]) for b, e in spans["block 1"]), "a block is part of forward")
                self.assertIn("all_reduce over domain", spans)
                self.assertTrue(any(name.startswith("wait for all_reduce") for name in spans))
                self.assertTrue(any(name.startswith("aten::") for name in spans))

    def tables(self, result):
        """The sums that a run printed: of phases by name, None where there were none; of operators calls and milliseconds, in their order."""
        lines = result.err.splitlines()
        begin, = (i for i, line in enumerate(lines) if line.startswith("profile of "))
        middle, = (i for i, line in enumerate(lines) if line.split()[:1] == ["operator"])
        end, = (i for i, line in enumerate(lines) if line.startswith("a trace of each rank's steps lies in runs/"))
        phases = {words[0]: None if words[1] == "none" else float(words[1]) for words in map(str.split, lines[begin + 2:middle])}
        operators = {}
        for line in lines[middle + 1:end]:
            name, calls, milliseconds, _, sign = line.rsplit(None, 4)
            self.assertEqual(sign, "%")
            operators[name.strip()] = (int(calls), float(milliseconds))
        return phases, operators

    def sums_of_trace(self, run, total):
        """The same from the trace, in another way: phases by what holds in each stretch between two ends of ranges, operators less the operators and ranges within."""
        events = [event for event in self.ranges(run, 0) if event.get("cat") in ("cpu_op", "user_annotation")]
        thread, = {event["tid"] for event in events if event["name"] == "optimizer"}
        events = [(event["ts"], event["ts"] + event["dur"], event["name"], event["cat"] == "cpu_op") for event in events if event["tid"] == thread]
        phases = {}
        ranges = [(begin, end, "messages" if " over " in name else name) for begin, end, name, is_operator in events
                  if not is_operator and (" over " in name or name in ("forward", "backward", "optimizer", "data", "validation"))]
        cuts = sorted({time for begin, end, _ in ranges for time in (begin, end)})
        for a, b in zip(cuts, cuts[1:]):
            inside = [one for one in ranges if one[0] <= a and b <= one[1]]
            always = [one for one in inside if one[2] in ("messages", "data")]
            if inside:
                name = max(always)[2] if always else min(inside)[2]
                phases[name] = phases.get(name, 0) + (b - a) / 1000
        phases["other"] = total - sum(phases.values())
        operators, within = {}, []
        for begin, end, name, is_operator in sorted(events, key=lambda event: (event[0], -event[1])):
            while within and within[-1][0] <= begin:
                within.pop()
            calls, time = operators.get(name, (0, 0))
            if is_operator:
                operators[name] = (calls + 1, time + (end - begin) / 1000)
            if within and within[-1][1]:
                calls, time = operators[within[-1][1]]
                operators[within[-1][1]] = (calls, time - (end - begin) / 1000)
            within.append((end, name if is_operator else None))
        return phases, operators

    def test_prints_what_the_time_went_into(self):
        for name, num_ranks, words in (("one", 1, ()), ("two", 2, ()), ("groups", 2, ("parallel.data=2",)), ("unjudged", 1, ("training.val_interval=100", "training.num_epochs=3"))):
            begin = time.monotonic()
            result = self.train(name, num_ranks, "--profile", 3, "~data.split.column", "data.split={train: ['1', '2', '3'], val: ['4']}", *words)
            outside = 1000 * (time.monotonic() - begin)
            phases, operators = self.tables(result)
            self.assertEqual(list(phases), ["forward", "backward", "optimizer", "messages", "data", "validation", "other", "sum"])
            total = phases.pop("sum")
            expected, by_operator = self.sums_of_trace(name, total)
            for phase, value in phases.items():
                self.assertEqual(value is None, phase not in expected, f"{name}: {phase}")
                if value is not None:
                    self.assertAlmostEqual(value, expected[phase], delta=0.1, msg=f"{name}: {phase}")
                    self.assertGreater(value, 0, f"{name}: {phase}")
            self.assertAlmostEqual(sum(value or 0 for value in phases.values()), total, delta=0.01)
            self.assertEqual(phases["messages"] is None, num_ranks == 1)
            self.assertEqual(phases["validation"] is None, name == "unjudged")
            steps = [line["seconds"] for line in self.lines(name) if line["phase"] == "train_step" and line["step"] in (2, 3, 4)]
            self.assertEqual(len(steps), 3)
            self.assertGreater(total, 1000 * sum(steps))
            self.assertLess(total, outside)
            dearest = sorted((time for _, time in by_operator.values()), reverse=True)[:10]
            self.assertEqual(len(operators), 10)
            for (operator, (calls, milliseconds)), rank in zip(operators.items(), dearest):
                self.assertEqual(calls, by_operator[operator][0], operator)
                self.assertAlmostEqual(milliseconds, by_operator[operator][1], delta=0.02 + 0.0015 * calls, msg=operator)
                self.assertAlmostEqual(milliseconds, rank, delta=0.02 + 0.0015 * calls, msg=operator)

    def test_ends_with_the_run(self):
        self.train("short", 1, "--profile", 100)
        self.assertEqual(len([event for event in self.ranges("short", 0) if event["name"] == "optimizer"]), 5)
        result = self.train("one", 1, "--profile", 2, "training.max_steps=1")
        self.assertIn("--profile has traced nothing", result.err)
        self.assertFalse((self.folder / "runs/one/profile").exists())
        self.assert_fails(self.meshard("train", "car.yaml", "--profile", 0), 2, "--profile")

    def test_changes_no_number(self):
        self.train("plain", 2)
        self.train("traced", 2, "--profile", 2)
        self.assertEqual(self.results("traced"), self.results("plain"))


class ShardedParameters(Modes):
    timeout = 300

    def numbers(self, arrays):
        return {name: struct.unpack(f"<{len(content) // 4}f", content) for name, content in arrays.items()}

    def assert_near(self, found, expected, tolerance=2e-3):
        """Losses and weights up to rounding, which some steps of training make larger."""
        self.assertEqual(len(found[0]), len(expected[0]))
        for one, other in zip(found[0], expected[0]):
            self.assertEqual(one[:2], other[:2])
            self.assertAlmostEqual(one[2], other[2], delta=tolerance * abs(other[2]))
        for checkpoint in (1, 2):
            a, b = self.numbers(found[checkpoint]), self.numbers(expected[checkpoint])
            self.assertEqual({name: len(values) for name, values in a.items()}, {name: len(values) for name, values in b.items()})
            for name in b:
                if not name.startswith("optimizer."):
                    largest = max(map(abs, b[name]))
                    self.assertLess(max(abs(x - y) for x, y in zip(a[name], b[name])), max(0.02, tolerance) * max(largest, 0.1), name)

    def memory(self, run):
        return [line for line in self.lines(run) if line["phase"] == "memory"][-1]

    def test_train_as_whole_ones(self):
        self.train("whole", 1)
        expected = self.results("whole")
        for num_ranks, words in ((1, ()), (2, ()), (3, ()), (3, ("parallel.data=3",)), (4, ("parallel.data=2",))):
            groups = words[0].partition("=")[2] if words else "1"
            if words:
                self.train(f"whole{groups}", int(groups), *words)
                expected = self.results(f"whole{groups}")
            name = f"cut{num_ranks}x{groups}"
            self.train(name, num_ranks, "parallel.parameters=sharded", *words)
            self.assert_near(self.results(name), expected)

    def test_are_cut_among_all_ranks(self):
        self.train("whole", 2)
        whole = self.memory("whole")
        self.assertEqual(whole["gradient_bytes"], whole["parameter_bytes"])
        self.assertEqual(whole["optimizer_bytes"], 2 * whole["parameter_bytes"])
        for num_ranks in (2, 3, 4):
            self.train(f"cut{num_ranks}", num_ranks, "parallel.parameters=sharded", *(("parallel.data=2",) if num_ranks == 4 else ()))
            cut = self.memory(f"cut{num_ranks}")
            for key in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
                self.assertGreaterEqual(cut[key] * num_ranks, whole[key], key)
                self.assertLess(cut[key], whole[key] / num_ranks + 200, key)   # each unit is cut evenly, to the number

    def test_go_on_in_the_other_mode_and_on_other_ranks(self):
        self.train("whole", 2)
        for name, first, then in (("a", "sharded", "replicated"), ("b", "replicated", "sharded"), ("c", "sharded", "sharded")):
            self.train(name, 2, f"parallel.parameters={first}", "training.max_steps=3")
            self.assert_good(self.meshard("train", "--resume", f"runs/{name}", "--nproc", 3, f"parallel.parameters={then}", "training.max_steps=0"))
            self.assert_near(self.results(name), self.results("whole"))

    def test_go_on_to_the_same_bits_on_as_many_ranks(self):
        self.train("whole", 2, "parallel.parameters=sharded")
        self.train("parts", 2, "parallel.parameters=sharded", "training.max_steps=4")
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "--nproc", 2, "training.max_steps=0"))
        self.assertEqual(self.results("parts")[1], self.results("whole")[1])

    def test_of_every_model_and_memory_mode_train(self):
        small = ("model.n_layers=1", "model.n_hidden=8", "model.n_head=2", "model.slice_num=4")
        for name, words in (("recomputed", ("training.memory=recomputed",)), ("narrow", ("training.precision=bfloat16",)),
                            ("plus", ("model.plus=true",)), ("flare", ("~model", "model.name=flare", *small)),
                            ("geotransolver", ("~model", "model.name=geotransolver", *small)),
                            ("meshgraphnet", ("~model", "model.name=meshgraphnet", "model.processor_size=2", "model.hidden_dim_processor=8"))):
            self.train(f"{name}_whole", 2, *words)
            self.train(f"{name}_cut", 2, "parallel.parameters=sharded", *words)
            self.assert_near(self.results(f"{name}_cut"), self.results(f"{name}_whole"), 0.05 if name == "narrow" else 2e-3)
        refused = self.train("streamed", 2, "parallel.parameters=sharded", "training.memory=streamed", code=3)
        self.assertIn("its parameters are cut among ranks", refused.err)

    def test_are_kept_when_a_run_is_interrupted(self):
        process = self.start_meshard("train", "car.yaml", "--nproc", 2, "parallel.parameters=sharded", "training.num_epochs=100000", "training.save_interval=100000")
        metrics = self.folder / "runs/car/metrics.jsonl"
        process.wait_for(lambda: metrics.exists() and "train_step" in metrics.read_text(), "the first step")
        process.send(signal.SIGTERM)
        self.assertEqual(process.result().code, 130)
        steps = metrics.read_text().count('"train_step"')
        self.assertEqual(json.loads((self.folder / "runs/car/checkpoints/last.json").read_text())["step"], steps)
        self.assert_good(self.meshard("train", "--resume", "runs/car", f"training.max_steps={steps + 2}", "training.num_epochs=100000", "parallel.parameters=replicated"))
        self.assert_good(self.meshard("predict", "runs/car", "cases/run_1/boundary_1.vtp", "-o", "out.vtp"))


class ComputedInputs(Modes):
    timeout = 300

    def setUp(self):
        super().setUp()
        for number in (1, 2, 3):
            folder = self.folder / f"volumes/run_{number}"
            folder.mkdir(parents=True)
            write_box(folder / f"volume_{number}.vtu", 5)
            write_body(folder / f"body_{number}.vtp", (0.1 + 0.05 * number, 0.2, 0.3), n=8)
        (self.folder / "volume.yaml").write_text("""run_id: volume
data:
  root: volumes
  volume: run_*/volume_*.vtu
  wall: run_*/body_*.vtp
  split: {train: ['1', '2'], val: ['3']}
  inputs: [points, sdf]
  fields: {pressure: {from: p}}
  shards: shards
model: {name: transolver, n_layers: 1, n_hidden: 16, n_head: 2, mlp_ratio: 1, slice_num: 4}
training: {num_epochs: 2}
""")

    def losses(self, run):
        return [line["loss"] for line in self.lines(run) if line["phase"] == "train_step"]

    def arrays(self, path):
        result = self.meshard("info", path, "--json")
        self.assert_good(result)
        return json.loads(result.out)["arrays"]

    def train_volume(self, run, num_ranks, *words):
        # Mesh and field are the same in all cases, those of validation too; only the walls differ.
        result = self.meshard("train", "volume.yaml", f"run_id={run}", "--nproc", num_ranks, *words)
        if "Embree" in result.err:
            self.skipTest("this build has no Embree")
        self.assert_good(result)

    def test_are_the_same_on_any_number_of_ranks(self):
        for num_ranks in (1, 2, 3):
            self.train_volume(f"volume{num_ranks}", num_ranks, "training.exact=true")
            self.assertEqual(self.results(f"volume{num_ranks}"), self.results("volume1"))
            self.train(f"areas{num_ranks}", num_ranks, "data.inputs=[points, areas, normals]", "training.exact=true")
            self.assertEqual(self.results(f"areas{num_ranks}"), self.results("areas1"))

    def test_change_what_is_learned(self):
        self.train_volume("one", 1)
        write_body(self.folder / "volumes/run_1/body_1.vtp", (0.3, 0.3, 0.3), n=8)
        self.train_volume("two", 1)
        self.assertNotEqual(self.losses("one"), self.losses("two"), "another surface, other distances; the kept shards know")

    def test_are_told_in_prediction(self):
        self.train_volume("car", 2)
        volume, body = "volumes/run_3/volume_3.vtu", "volumes/run_3/body_3.vtp"
        for num_ranks in (1, 3):
            self.assert_good(self.meshard("predict", "runs/car", volume, "--wall", body, "-o", f"out{num_ranks}.vtu", "--nproc", num_ranks))
        self.assert_good(self.meshard("predict", "runs/car", volume, "--wall", "volumes/run_1/body_1.vtp", "-o", "other.vtu"))
        self.assertEqual([array["name"] for array in self.arrays("out3.vtu")], ["p", "pressure"], "what was computed is not written")
        one, three, other = (self.arrays(f"{name}.vtu")[1] for name in ("out1", "out3", "other"))
        for key in ("min", "max"):
            self.assertAlmostEqual(three[key], one[key], delta=1e-4)
            self.assertNotAlmostEqual(other[key], one[key], delta=1e-4)
        self.assert_good(self.meshard("predict", "runs/car", volume, volume.replace("3", "2"), "--wall", body, "--wall", body.replace("3", "2"), "-o", "outs"))
        self.assertEqual(self.names(self.folder / "outs"), ["volume_2.vtu", "volume_3.vtu"])
        self.assert_good(self.meshard("predict", "--model", "runs/car/checkpoints/last.safetensors", volume, "--wall", body, "-o", "file.vtu"))
        self.assert_fails(self.meshard("predict", "runs/car", volume, "-o", "no.vtu"), 2, "--wall")
        self.assert_fails(self.meshard("predict", "runs/car", volume, "--wall", "none.stl", "-o", "no.vtu"), 3, "none.stl does not exist")
        self.assert_fails(self.meshard("predict", "runs/car", volume, "--wall", volume, "-o", "no.vtu"), 3, "there are no polygons")

    def test_are_refused_by_name_where_there_is_no_surface(self):
        self.assert_fails(self.meshard("train", "volume.yaml", "~data.wall"), 2, "sdf", "data.wall")
        self.assert_fails(self.meshard("train", "volume.yaml", "data.inputs=[points]"), 2, "data.wall")
        self.assert_fails(self.meshard("train", "volume.yaml", "data.wall=run_*/nobody_*.vtp"), 3, "no file matches data.wall")
        (self.folder / "volumes/run_2/body_2.vtp").unlink()
        self.assert_fails(self.meshard("train", "volume.yaml"), 3, "case 2 has no surface")
        self.assert_fails(self.meshard("train", "volume.yaml", "~data.wall", "data.inputs=[points, areas]", "--nproc", 2), 3, "has solid cells", "areas")
