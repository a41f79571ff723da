# SPDX-License-Identifier: Apache-2.0
"""`meshard prepare`, and training from the store: made once by many, killed and made on, damaged and named; the same bits whether cases stay in memory or not."""
import array
import json
import os
import pathlib
import shutil
import signal
import struct
import time

from runner import PROGRAM, REPETITIONS, Case
from training_modes_test import Modes

STREAMED = "data.memory=0"


class Store(Modes):
    timeout = 300

    def stored(self, folder="shards/store"):
        """Files of stored parts, by case id."""
        found = {}
        for path in sorted((self.folder / folder).glob("*/part_*.rows")):
            found.setdefault(path.parent.name.rpartition("-")[0], []).append(path)
        return found

    def contents(self, folder="shards/store"):
        return {str(path.relative_to(self.folder / folder)): path.read_bytes() for path in (self.folder / folder).glob("*/*.rows")}

    def prepare(self, *words, **options):
        return self.meshard("prepare", "car.yaml", "data.shards=shards", *words, **options)


class Prepare(Store):
    def test_makes_what_training_then_uses(self):
        result = self.prepare("--json", "--ranks", 2)
        self.assert_good(result)
        report = json.loads(result.out)
        self.assertEqual(sum(report["cases"].values()), len(self.stored()))
        self.assertEqual(report["parts"], 2)
        files = [path for paths in self.stored().values() for path in paths]
        measures = list((self.folder / "shards/store").glob("*/measures.f32"))
        self.assertEqual(len(measures), len(self.stored()))
        self.assertEqual(report["store_bytes"], sum(path.stat().st_size for path in files + measures))
        self.assertEqual({path.stat().st_size % 4 for path in files}, {0})
        times = {path: path.stat().st_mtime_ns for path in files}
        self.train("car", 2, "data.shards=shards", "training.max_steps=1")
        self.assertEqual({path: path.stat().st_mtime_ns for path in self.stored_files()}, times, "training has stored something again, or more")
        dataset = self.lines("car")[0]
        self.assertEqual(dataset["points"], report["points"])
        self.assertEqual(dataset["mean"], [one["mean"] for field in report["fields"].values() for one in field])
        self.assertEqual(dataset["std"], [one["std"] for field in report["fields"].values() for one in field])

    def stored_files(self):
        return [path for paths in self.stored().values() for path in paths]

    def test_has_the_statistics_of_the_stored_rows(self):
        self.assert_good(self.prepare("data.parts=3"))
        case = json.loads(next((self.folder / "shards/store").glob("*/case.json")).read_text())
        channels = sum(case["channels"])
        for part in case["parts"]:
            rows = self.targets(next((self.folder / "shards/store").glob(f"{case['case']}-*/{part['file']}")), channels)
            self.assertEqual(len(rows), part["rows"])
            for c in range(channels):
                values = [row[c] for row in rows]
                mean = sum(values) / len(values)
                self.assertAlmostEqual(part["mean"][c], mean, delta=1e-10 * (abs(mean) + 1))
                squares = sum((value - mean) ** 2 for value in values)
                self.assertAlmostEqual(part["squared_differences"][c], squares, delta=1e-9 * (squares + 1))

    def targets(self, path, channels):
        content = path.read_bytes()
        head = json.loads(content[len(b"meshard rows 1\n"):content.index(b"\n", 20)])
        width = head["columns"]
        values = struct.unpack_from(f"<{head['rows'] * width}f", content, head["values"]["at"])
        return [values[i * width + width - channels:(i + 1) * width] for i in range(head["rows"])]

    def test_is_done_once_by_many_at_once(self):
        self.assert_good(self.prepare("data.parts=2", "data.store=alone"))
        expected = self.contents("alone")
        for _ in range(REPETITIONS):
            shutil.rmtree(self.folder / "shards")
            processes = [self.start_meshard("prepare", "car.yaml", "data.shards=shards", "data.parts=2", "--nproc", 1 + i % 2) for i in range(4)]
            for process in processes:
                self.assert_good(process.result())
            self.assertEqual(self.contents(), expected)
            self.assertEqual([name for name in self.names(self.folder / "shards/store") if "cutting" in name or "partial" in name], [])

    def test_goes_on_after_it_was_killed(self):
        self.assert_good(self.prepare("data.store=alone"))
        expected = self.contents("alone")
        num_cut_short = 0
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) * REPETITIONS:
            shutil.rmtree(self.folder / "store", ignore_errors=True)
            process = self.start_meshard("prepare", "car.yaml", "data.shards=shards", "data.store=store")
            process.wait_for(lambda: any((self.folder / "store").glob("*/case.json")), "case that is stored")
            process.send_to_group(number)
            result = process.result()
            num_cut_short += result.code != 0
            kept = {path: path.stat().st_mtime_ns for path in (self.folder / "store").glob("*-????????????????/part_*.rows")}
            self.assert_good(self.prepare("data.store=store"))
            self.assertEqual(self.contents("store"), expected)
            self.assertEqual({path: path.stat().st_mtime_ns for path in kept}, kept, "what was complete is made again")
            self.assertEqual([name for name in self.names(self.folder / "store") if "cutting" in name or "partial" in name], [])
        self.assertGreater(num_cut_short, 0)

    def test_refuses_wrong_words(self):
        self.assert_fails(self.meshard("prepare"), 2, "config")
        self.assert_fails(self.meshard("prepare", "none.yaml"), 3, "none.yaml")
        self.assert_fails(self.prepare("data.fields.pressure.from=pMeann"), 3, "pMeann", "pMean")
        self.assert_fails(self.prepare("data.memory=-1"), 2, "data.memory")
        self.assert_fails(self.prepare("data.sampling=block"), 2, "data.sampling", "blocks")
        self.assert_fails(self.prepare("--ranks", 0), 2, "--ranks")
        self.assert_fails(self.prepare("parallel.data=3"), 2, "--ranks")
        (self.folder / "store").write_text("no folder")
        self.assert_fails(self.prepare("data.store=store"), 3, "store", "cannot be written", "Set data.store")

    def test_leaves_nothing_half_written_on_a_full_disk(self):
        self.assert_good(self.prepare("data.store=alone"))
        limit = max(path.stat().st_size for paths in self.stored("alone").values() for path in paths) // 2
        self.assert_fails(self.prepare(max_file_bytes=limit), 3, "cannot write")
        self.assertEqual(self.contents(), {})
        self.assert_good(self.prepare())
        self.assertEqual(self.contents(), self.contents("alone"))


class Streaming(Store):
    """Cases that are read in their turn, against the same that stay in memory."""

    def assert_same(self, name, *words, num_ranks=(1, 2, 3)):
        for ranks in num_ranks:
            self.train(f"{name}{ranks}", ranks, *words, "data.shards=shards")
            self.train(f"{name}{ranks}_streamed", ranks, *words, STREAMED, "data.shards=shards")
            self.assertEqual(self.results(f"{name}{ranks}"), self.results(f"{name}{ranks}_streamed"), f"{name} on {ranks} ranks")

    def test_gives_the_same_bits(self):
        self.assert_same("plain")
        waits = [line["data_wait"] for line in self.lines("plain2_streamed") if line["phase"] in ("train", "train_step")]
        self.assertTrue(waits and all(0 <= wait <= 1 for wait in waits), waits)
        self.assertNotIn("data_wait", json.dumps(self.lines("plain2")))

    def test_gives_the_same_bits_with_some_of_the_points(self):
        for sampling in ("uniform", "blocks"):
            self.assert_same(sampling, "data.sampling_resolution=60", f"data.sampling={sampling}", "data.parts=5")
        self.assert_same("areas", "data.sampling_resolution=60", "data.sampling=areas", "training.point_weights=areas")

    def test_gives_the_same_bits_with_groups_and_cut_parameters(self):
        self.assert_same("groups", "parallel.data=2", "training.accumulate=2", num_ranks=(2, 4))
        self.assert_same("cut", "parallel.data=2", "parallel.parameters=sharded", num_ranks=(4,))
        self.assert_same("exact", "training.exact=true", num_ranks=(2,))

    def test_goes_on_with_the_same_bits(self):
        words = (STREAMED, "data.shards=shards", "data.sampling_resolution=60", "data.sampling=blocks")
        self.train("whole", 2, *words)
        self.train("parts", 2, *words, "training.max_steps=3")
        self.assert_good(self.meshard("train", "--resume", "runs/parts", "--nproc", 2, "training.max_steps=0"))
        self.assertEqual(self.results("parts")[1], self.results("whole")[1])

    def test_draws_the_same_points_on_any_number_of_ranks(self):
        for sampling in ("blocks", "areas"):
            words = ("data.sampling_resolution=60", f"data.sampling={sampling}", STREAMED)
            losses = []
            for ranks in (1, 2, 3):
                self.train(f"{sampling}{ranks}", ranks, *words)
                losses.append([line["loss"] for line in self.lines(f"{sampling}{ranks}") if line["phase"] == "train_step"])
            for other in losses[1:]:
                for a, b in zip(losses[0], other, strict=True):
                    self.assertAlmostEqual(a, b, delta=2e-3 * abs(a))


class Damage(Store):
    def damaged(self, change):
        self.assert_good(self.prepare())
        path = next(iter(self.stored().values()))[0]
        change(path)
        return path

    def test_that_shows_by_its_length_is_made_good_at_the_start(self):
        self.train("first", 1, "data.shards=shards")
        for change in (lambda path: os.truncate(path, path.stat().st_size // 2), lambda path: path.unlink(), lambda path: (path.parent / "case.json").unlink()):
            self.damaged(change)
            self.train("again", 1, "data.shards=shards", "--overwrite")
            self.assertEqual(self.results("again"), self.results("first"))

    def test_of_bytes_is_named_before_the_first_step(self):
        def flip(path):
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)

        path = self.damaged(flip)
        self.assert_fails(self.meshard("train", "car.yaml", "data.shards=shards"), 3, path.name, path.parent.name, "is damaged", "Remove its folder")
        self.assertFalse((self.folder / "runs/car/checkpoints").exists())

    def test_while_a_run_lasts_is_named(self):
        """The run is held, a file of its training cases is cut short, and it ends by a message, not by a signal."""
        self.assert_good(self.prepare())
        process = self.start_meshard("train", "car.yaml", "data.shards=shards", STREAMED, "training.num_epochs=100000", "training.save_interval=1", limit=200)
        process.wait_for(lambda: any(line["phase"] == "train" for line in self.lines_so_far("car")), "epoch")
        process.send(signal.SIGSTOP)
        case = next(line["case"] for line in self.lines_so_far("car") if line["phase"] == "train_step")
        path = self.stored()[case][0]
        content = path.read_bytes()
        os.truncate(path, 5000)
        process.send(signal.SIGCONT)
        result = process.result()
        self.assert_fails(result, 3, path.name, path.parent.name, "is damaged: it has 5000 bytes")
        last = self.lines_so_far("car")[-1]
        path.write_bytes(content)
        self.assert_good(self.meshard("train", "--resume", "runs/car", f"training.num_epochs={last['epoch'] + 1}"))

    def lines_so_far(self, run):
        path = self.folder / "runs" / run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


class BenchData(Store):
    def test_measures_loader_and_disk(self):
        for words in ((), ("--nproc", 2, "data.sampling_resolution=60", "data.sampling=blocks")):
            result = self.meshard("bench", "data", "car.yaml", "data.shards=shards", "--json", "--repeats", 1, *words)
            self.assert_good(result)
            report = json.loads(result.out)
            for name in ("loader", "cached_loader", "disk"):
                self.assertGreater(report[name]["bytes_per_second"], 0)
            self.assertEqual(report["row_bytes"] % report["points"], 0)
        self.assertEqual(report["points"], 60 * report["cases"], "as many points as a step takes")
        self.assert_fails(self.meshard("bench", "data", "car.yaml", "--cases", -1), 2, "--cases")
        self.assert_fails(self.meshard("bench", "data"), 2, "config")


def write_surface(path, cells_a_side, shift):
    """A surface of squares with a cell field, large enough to count in memory, as binary .vtp."""
    points = array.array("f")
    side = cells_a_side + 1
    for i in range(side):
        for j in range(side):
            points.extend((i / side, j / side, shift * i * j / side / side))
    corners = array.array("i")
    for i in range(cells_a_side):
        for j in range(cells_a_side):
            first = i * side + j
            corners.extend((first, first + 1, first + side + 1, first + side))
    num_cells = cells_a_side * cells_a_side
    ends = array.array("i", range(4, 4 * num_cells + 1, 4))
    field = array.array("f", ((k * 37 % 101) / 101 + shift for k in range(num_cells)))
    blocks, tags, offset = [], [], 0
    for name, kind, components, values in (("p", "Float32", 1, field), ("Points", "Float32", 3, points), ("connectivity", "Int32", 1, corners), ("offsets", "Int32", 1, ends)):
        content = values.tobytes()
        blocks.append(struct.pack("<Q", len(content)) + content)
        tags.append(f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="{components}" format="appended" offset="{offset}"/>')
        offset += len(blocks[-1])
    head = (f'<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian" header_type="UInt64"><PolyData><Piece NumberOfPoints="{side * side}" NumberOfPolys="{num_cells}">'
            f'<CellData>{tags[0]}</CellData><Points>{tags[1]}</Points><Polys>{tags[2]}{tags[3]}</Polys></Piece></PolyData><AppendedData encoding="raw">_')
    path.write_bytes(head.encode() + b"".join(blocks) + b"</AppendedData></VTKFile>")


class Memory(Case):
    timeout = 300
    NUM_CASES, NUM_FEW, SIDE = 24, 3, 300
    BYTES_A_CASE = SIDE * SIDE * (4 * (6 + 3 + 1) + 8)   # rows in memory: inputs, places, target, id

    def train(self, run, *words, limit=None):
        """The largest address space of a run that ends well; with `limit` the run may not have more."""
        command = ["bash", "-c", f"ulimit -v {limit // 1024}; exec \"$@\"" if limit else "exec \"$@\"", "bash"]
        process = self.start(*command, PROGRAM, "train", "car.yaml", f"run_id={run}", "data.shards=shards", *words, limit=200)
        peak = 0
        while not process.has_ended():
            try:
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                peak = max(peak, *(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmPeak")), 0)
            except OSError:
                pass
            time.sleep(0.005)
        return peak, process.result()

    def test_does_not_grow_with_the_number_of_cases(self):
        (self.folder / "cases").mkdir()
        for i in range(self.NUM_CASES):
            write_surface(self.folder / f"cases/body_{i}.vtp", self.SIDE, i / 10)
        (self.folder / "car.yaml").write_text("""
data: {root: cases, surface: body_*.vtp, fields: {pressure: p}, split: {train: 1.0}, sampling_resolution: 1000}
model: {n_layers: 1, n_hidden: 8, n_head: 2, mlp_ratio: 1, slice_num: 4}
training: {num_epochs: 2}
""")
        self.assert_good(self.meshard("prepare", "car.yaml", "run_id=any", "data.shards=shards"))
        few = "data.split={train: [" + ", ".join(f"'{i}'" for i in range(self.NUM_FEW)) + "]}"
        peak, result = self.train("few", few, "data.memory=0")
        self.assert_good(result)
        limit = peak + self.NUM_CASES * self.BYTES_A_CASE // 4
        _, result = self.train("all", "data.memory=0", limit=limit)
        self.assert_good(result)
        _, result = self.train("held", "data.memory=1000", limit=limit)
        self.assertNotEqual(result.code, 0, "the limit was none: all cases fit into it at once")
