# SPDX-License-Identifier: Apache-2.0
"""`meshard evaluate` and `report`: every number recomputed here from the files of the predictions, in plain Python."""
import base64
import csv
import html
import html.parser
import json
import math
import re
import shutil
import struct
import subprocess
import tempfile
import xml.etree.ElementTree as xml

from runner import Case
from samples import copy_sample, write_body

TYPES = {"Float32": "f", "Float64": "d", "Int64": "q", "Int32": "i", "UInt8": "B"}


def arrays_of(path):
    """Name to values of each array of a .vtp file, written as text or appended raw without compression."""
    content = path.read_bytes()
    head, _, rest = content.partition(b"<AppendedData")
    raw = rest[rest.index(b"_") + 1:] if rest else b""
    tree = xml.fromstring(head if not rest else head + b"</VTKFile>")
    width = "Q" if tree.get("header_type") == "UInt64" else "I"
    found = {}
    for array in tree.iter("DataArray"):
        kind = TYPES[array.get("type")]
        if array.get("format") == "appended":
            begin = int(array.get("offset"))
            size, = struct.unpack_from("<" + width, raw, begin)
            found[array.get("Name")] = struct.unpack_from(f"<{size // struct.calcsize(kind)}{kind}", raw, begin + struct.calcsize(width))
        else:
            found[array.get("Name")] = [float(word) if kind in "fd" else int(word) for word in (array.text or "").split()]
    return found


LENGTH, CENTER = 1.5, [0.2, -0.1, 0.05]   # of moments


def cells_of(arrays):
    points, offsets, corners = arrays["Points"], arrays["offsets"], arrays["connectivity"]
    return [[points[3 * p:3 * p + 3] for p in corners[offsets[i - 1] if i else 0:end]] for i, end in enumerate(offsets)]


def area_vectors(arrays):
    vectors = []
    for cell in cells_of(arrays):
        vector = [0.0] * 3
        for a, b in zip(cell, cell[1:] + cell[:1]):
            a, b = [x - o for x, o in zip(a, cell[0])], [x - o for x, o in zip(b, cell[0])]
            for k in range(3):
                vector[k] += 0.5 * (a[(k + 1) % 3] * b[(k + 2) % 3] - a[(k + 2) % 3] * b[(k + 1) % 3])
        vectors.append(vector)
    return vectors


def centroids(arrays):
    """Of the triangles between the edges of a cell and the mean of its points, by their areas."""
    found = []
    for cell in cells_of(arrays):
        mean = [sum(x[k] for x in cell) / len(cell) for k in range(3)]
        weighted, weight = [0.0] * 3, 0.0
        for a, b in zip(cell, cell[1:] + cell[:1]):
            u, v = [x - o for x, o in zip(a, mean)], [x - o for x, o in zip(b, mean)]
            size = math.hypot(*(u[(k + 1) % 3] * v[(k + 2) % 3] - u[(k + 2) % 3] * v[(k + 1) % 3] for k in range(3)))
            weight += size
            for k in range(3):
                weighted[k] += size * (mean[k] + a[k] + b[k]) / 3
        found.append([w / weight for w in weighted])
    return found


class Judged(Case):
    """The runs of the samples, with what drag needs."""
    timeout = 300

    def setUp(self):
        super().setUp()
        copy_sample("cases", self.folder / "cases")
        copy_sample("car.yaml", self.folder / "car.yaml")
        settings = (self.folder / "car.yaml").read_text()
        (self.folder / "car.yaml").write_text(settings.replace("{column: split}", "{train: ['1', '2'], val: ['3'], test: ['4']}"))
        rows = json.loads((self.folder / "cases/cases.json").read_text())
        for row in rows["cases"]:
            row.update(Cd=0.3 + 0.01 * int(row["id"]), Cl=0.1)
        (self.folder / "cases/cases.json").write_text(json.dumps(rows))
        self.good("train", "car.yaml", "data.reference.U_inf=[40, 0, 0]", "data.forces.area=0.1", "training.num_epochs=3", "logging.tensorboard=true",
                  "--accept-data")   # the table's coefficients are made up

    def good(self, *words, code=0):
        result = self.meshard(*words)
        self.assertEqual(result.code, code, str(result))
        return result

    def recomputed(self, number):
        """Of one case: metrics and coefficients from the file that `predict` writes."""
        source = f"cases/run_{number}/boundary_{number}.vtp"
        self.good("predict", "runs/car", source, "-o", f"predicted_{number}.vtp")
        predicted, truth = arrays_of(self.folder / f"predicted_{number}.vtp"), arrays_of(self.folder / source)
        found = {}
        for name, array in (("pressure", "pMean"), ("wss", "wallShearStressMean")):
            y, t = predicted[name], truth[array]
            found[name] = {"rel_l2": math.sqrt(sum((a - b) ** 2 for a, b in zip(y, t)) / sum(b * b for b in t)),
                           "rel_l1": sum(abs(a - b) for a, b in zip(y, t)) / sum(abs(b) for b in t),
                           "mae": sum(abs(a - b) for a, b in zip(y, t)) / len(t),
                           "rmse": math.sqrt(sum((a - b) ** 2 for a, b in zip(y, t)) / len(t)),
                           "max_abs": max(abs(a - b) for a, b in zip(y, t))}
        vectors = area_vectors(truth)
        areas = [math.hypot(*vector) for vector in vectors]
        t, y = truth["pMean"], predicted["pressure"]
        found["pressure"]["rel_l2_area"] = math.sqrt(sum(a * (p - q) ** 2 for a, p, q in zip(areas, y, t)) / sum(a * q * q for a, q in zip(areas, t)))

        def coefficient(pressure, shear, axis):   # the shear of these bodies has OpenFOAM's sign
            force = sum(-p * v[axis] - shear[3 * i + axis] * areas[i] for i, (p, v) in enumerate(zip(pressure, vectors)))
            return force / (0.5 * 40 * 40 * 0.1)

        centers = centroids(truth)

        def moment(pressure, shear, axis):
            one, other = (axis + 1) % 3, (axis + 2) % 3
            total = 0.0
            for i, (p, v, x) in enumerate(zip(pressure, vectors, centers)):
                force, arm = [-p * v[k] - shear[3 * i + k] * areas[i] for k in range(3)], [a - b for a, b in zip(x, CENTER)]
                total += arm[one] * force[other] - arm[other] * force[one]
            return total / (0.5 * 40 * 40 * 0.1 * LENGTH)

        for name, number, axis in (("cd", coefficient, 0), ("cl", coefficient, 2), ("cs", coefficient, 1), ("cmx", moment, 0), ("cmy", moment, 1), ("cmz", moment, 2)):
            found[name] = {"true": number(t, truth["wallShearStressMean"], axis), "predicted": number(y, predicted["wss"], axis)}
            found[name]["error"] = found[name]["predicted"] - found[name]["true"]
        return found

    def assert_numbers(self, case, expected):
        for field in ("pressure", "wss"):
            for metric, value in expected[field].items():
                self.assertAlmostEqual(case["fields"][field][metric] / value, 1, 5, f"{case['id']} {field} {metric}")
        for name in ("cd", "cl", "cs", "cmx", "cmy", "cmz"):
            for which, value in expected[name].items():
                self.assertAlmostEqual(case[name][which], value, 6, f"{case['id']} {name} {which}")


def crc32c(data):
    """Bit by bit."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82F63B78 if checksum & 1 else 0)
    return checksum ^ 0xFFFFFFFF


def fields_of(message):
    """(number, value) of each field of a message in protocol buffers' encoding."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        size = {0: None, 1: 8, 5: 4}.get(key & 7, -1)
        if size is None:
            yield key >> 3, varint()
            continue
        size = varint() if size < 0 else size
        yield key >> 3, message[at:at + size]
        at += size


def events_of(path):
    """(step, {name: value}) of each event of a file of TensorBoard; both checksums of each record are compared."""
    content, at = path.read_bytes(), 0
    while at < len(content):
        length, = struct.unpack_from("<Q", content, at)
        data = content[at + 12:at + 12 + length]
        for part, place in ((content[at:at + 8], at + 8), (data, at + 12 + length)):
            checksum = crc32c(part)
            masked = ((checksum >> 15 | checksum << 17) + 0xa282ead8) & 0xFFFFFFFF
            if struct.unpack_from("<I", content, place)[0] != masked:
                raise ValueError(f"a checksum at byte {place} is wrong")
        at += 16 + length
        event = dict(fields_of(data))
        values = [dict(fields_of(value)) for _, value in fields_of(event.get(5, b""))]
        yield event.get(2, 0), {value[1].decode(): struct.unpack("<f", value[2])[0] for value in values}


class Evaluation(Judged):
    def test_agrees_with_plain_python_on_any_number_of_ranks(self):
        expected = {number: self.recomputed(number) for number in ("3", "4")}
        for ranks in (1, 2, 3):
            self.good("evaluate", "runs/car", "val", "test", f"data.forces.length={LENGTH}", f"data.forces.center={CENTER}", "-o", f"judged_{ranks}", "--nproc", ranks)
            numbers = json.loads((self.folder / f"judged_{ranks}/evaluation.json").read_text())
            self.assertEqual([case["id"] for case in numbers["cases"]], ["3", "4"])
            for case in numbers["cases"]:
                self.assert_numbers(case, expected[case["id"]])
                self.assertAlmostEqual(sum(case["drag_along_x"]["predicted"]), case["cd"]["predicted"], 9)
            test = numbers["splits"]["test"]
            self.assertAlmostEqual(test["cd_table"]["mae"], abs(expected["4"]["cd"]["predicted"] - 0.34), 6)
            self.assertAlmostEqual(test["cd_table"]["guess_mae"], 0.34 - 0.315, 9)
            rows = list(csv.DictReader((self.folder / f"judged_{ranks}/cases.csv").open()))
            self.assertEqual(sorted(row["id"] for row in rows), ["3", "4"])
            for row in rows:
                self.assertAlmostEqual(float(row["wss.rel_l2"]) / expected[row["id"]]["wss"]["rel_l2"], 1, 5)
                self.assertAlmostEqual(float(row["cmy.predicted"]), expected[row["id"]]["cmy"]["predicted"], 6)
            self.assertAlmostEqual(test["cmz"]["mae"], abs(expected["4"]["cmz"]["error"]), 6)
        self.assertNotIn("cmz", json.loads(self.good("evaluate", "runs/car", "-o", "plain", "--json").out)["splits"]["test"])   # no length is said
        last = [json.loads(line) for line in (self.folder / "runs/car/metrics.jsonl").read_text().splitlines()]
        val = [line for line in last if line["phase"] == "val"][-1]
        self.assertEqual(set(val["forces"]), {"cd", "cl", "cs", "cd_table", "cl_table"})
        self.assertEqual({row["seconds"] for row in csv.DictReader((self.folder / "runs/car/val_cases.csv").open())}, {""})   # not measured

    def test_of_runs_with_other_fields_has_columns_by_name(self):
        self.good("train", "car.yaml", "run_id=shear", "~data.fields.pressure", "training.num_epochs=1")
        self.good("report", "runs/car", "runs/shear", "-o", "both")
        found = list(csv.DictReader((self.folder / "both/cases.csv").read_text().splitlines()))
        for run in ("car", "shear"):
            self.good("evaluate", f"runs/{run}", "-o", f"of_{run}")
            for row in csv.DictReader((self.folder / f"of_{run}/cases.csv").read_text().splitlines()):
                (same,) = [other for other in found if other["run"] == run and other["id"] == row["id"]]
                self.assertEqual({name: value for name, value in same.items() if value and name not in ("run", "seconds")},
                                 {name: value for name, value in row.items() if value and name != "seconds"})

    def test_at_the_end_of_training_is_by_the_weights_that_predict(self):
        # With this learning rate the second of three epochs is the best by far.
        self.good("train", "car.yaml", "run_id=worse", "training.num_epochs=3", "training.optimizer.lr=1", "training.scheduler.name=constant", "--accept-data")
        lines = [json.loads(line) for line in (self.folder / "runs/worse/metrics.jsonl").read_text().splitlines()]
        vals = [line["metrics"]["pressure"]["rel_l2"] + line["metrics"]["wss"]["rel_l2"] for line in lines if line["phase"] == "val"]
        test = next(line for line in lines if line["phase"] == "test")
        self.assertLess(min(vals), vals[-1] / 1.01, "the last epoch is the best: this run shows nothing")
        self.assertEqual(test["epoch"], 1 + vals.index(min(vals)))
        self.good("evaluate", "runs/worse", "test", "-o", "judged")
        judged = json.loads((self.folder / "judged/evaluation.json").read_text())["splits"]["test"]
        for field in ("pressure", "wss"):
            self.assertAlmostEqual(test["metrics"][field]["rel_l2"] / judged["fields"][field]["rel_l2"]["mean"], 1, delta=1e-5)

    def test_of_training_is_in_events_of_tensorboard(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)
        self.assertEqual(len(list((self.folder / "runs/car/tensorboard").iterdir())), 1)
        events = list(events_of(next((self.folder / "runs/car/tensorboard").iterdir())))
        lines = [json.loads(line) for line in (self.folder / "runs/car/metrics.jsonl").read_text().splitlines()]
        losses = [(line["step"], line["loss"]) for line in lines if line["phase"] == "train_step"]
        found = [(step, values["train_step/loss"]) for step, values in events if "train_step/loss" in values]
        self.assertEqual([step for step, _ in found], [step for step, _ in losses])
        for (_, value), (_, expected) in zip(found, losses):
            self.assertAlmostEqual(value / expected, 1, 6)
        val = [line for line in lines if line["phase"] == "val"][-1]
        last = [values for _, values in events if "val/errors/wss/x/rel_l2" in values][-1]
        self.assertAlmostEqual(last["val/errors/wss/x/rel_l2"] / val["errors"]["wss"]["x"]["rel_l2"], 1, 6)
        self.assertAlmostEqual(last["val/forces/cd/mae"] / val["forces"]["cd"]["mae"], 1, 6)

    def test_of_training_is_read_by_the_package_of_tensorboard(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("the package tensorboard is not installed")
        events = EventAccumulator(str(self.folder / "runs/car/tensorboard")).Reload()
        lines = [json.loads(line) for line in (self.folder / "runs/car/metrics.jsonl").read_text().splitlines()]
        losses = [(line["step"], line["loss"]) for line in lines if line["phase"] == "train_step"]
        found = [(event.step, event.value) for event in events.Scalars("train_step/loss")]
        self.assertEqual([step for step, _ in found], [step for step, _ in losses])
        for (_, value), (_, expected) in zip(found, losses):
            self.assertAlmostEqual(value / expected, 1, 6)

    def test_counts_a_file_that_is_named_again_once(self):
        out = self.good("evaluate", "runs/car", "test", "cases/run_4/boundary_4.vtp", "-o", "again", "--json").out
        self.assertEqual([case["id"] for case in json.loads(out)["cases"]], ["4"])
        shutil.copy(self.folder / "cases/run_4/boundary_4.vtp", self.folder / "new.vtp")
        out = self.good("evaluate", "runs/car", "new.vtp", "./new.vtp", "-o", "new", "--json").out
        self.assertEqual([case["id"] for case in json.loads(out)["cases"]], ["new"])

    def test_ends_with_one_where_a_bound_is_broken_and_refuses_what_is_not_there(self):
        self.assertIn("test.cd.mae is", self.good("evaluate", "runs/car", "--fail-if", "test.cd.mae>0", code=1).err)
        self.good("evaluate", "runs/car", "--fail-if", "test.pressure.rel_l2>1000")
        self.assertIn("expected NUMBER>BOUND", self.good("evaluate", "runs/car", "--fail-if", "test.cd.mae", code=2).err)
        self.assertIn("there is no 'wall'", self.good("evaluate", "runs/car", "--fail-if", "test.wall.mae>1", code=2).err)
        self.assertIn("Did you mean 'test'", self.good("evaluate", "runs/car", "tes", code=2).err)
        (self.folder / "cases/run_4/boundary_4.vtp").write_text("<VTKFile")
        self.assertIn("boundary_4.vtp", self.good("evaluate", "runs/car", code=3).err)


class MovedData(Judged):
    """Cases that lie elsewhere than the run remembers, or not at all."""

    def test_is_told_and_said_anew(self):
        before = self.good("evaluate", "runs/car", "val", "-o", "before", "--json").out
        (self.folder / "cases").rename(self.folder / "else where")
        missing = "data.root is cases, and there is no folder " + str(self.folder / "cases")
        for words in (("evaluate", "runs/car", "val"), ("evaluate", "runs/car"), ("evaluate", "runs/car", "3"), ("evaluate", "runs/car", "all", "--nproc", 2),
                      ("report", "runs/car", "-o", "report"), ("report", "runs/car", "-o", "report", "--cases", "3"), ("train", "--resume", "runs/car", "training.num_epochs=4"),
                      ("train", "car.yaml", "run_id=other"), ("prepare", "car.yaml"), ("sweep", "car.yaml", "-o", "sweep", "--seeds", 2), ("bench", "data", "car.yaml")):
            self.assert_fails(self.meshard(*words), 3, missing, "data.root=FOLDER")
        self.assertFalse((self.folder / "report").exists())
        self.assertFalse((self.folder / "runs/other").exists())
        for ranks in (1, 2):
            after = self.good("evaluate", "runs/car", "val", "data.root=else where", "-o", "after", "--json", "--nproc", ranks).out
            error = [json.loads(text)["splits"]["val"]["fields"]["pressure"]["rel_l2"]["mean"] for text in (before, after)]
            self.assertAlmostEqual(error[0], error[1], places=6)
        self.good("report", "runs/car", "data.root=else where", "-o", "report")
        self.good("train", "--resume", "runs/car", "training.num_epochs=4", "data.root=else where", "--accept-data")
        self.good("evaluate", "runs/car", "val")   # the run remembers it
        (self.folder / "cases").symlink_to("gone")
        self.assert_fails(self.meshard("evaluate", "runs/car", "val", "data.root=cases"), 3, "is a link to gone, which is not there")
        self.assert_fails(self.meshard("evaluate", "runs/car", "val", "data.root=car.yaml"), 3, "car.yaml is no folder")
        self.assert_fails(self.meshard("evaluate", "runs/car", "val", "data.fields=x"), 2, "only data.root")

    def test_of_one_kind_is_told(self):
        (self.folder / "cases/cases.json").rename(self.folder / "cases.json")
        self.assert_fails(self.meshard("evaluate", "runs/car", "val"), 3, "cases.json cannot be read", "the data of the run are not found")
        (self.folder / "cases.json").rename(self.folder / "cases/cases.json")
        shutil.rmtree(self.folder / "cases/run_3")
        self.assert_fails(self.meshard("evaluate", "runs/car", "4"), 3, "names case '3', which has no file")

    def test_of_a_split_without_cases_is_told(self):
        self.good("train", "car.yaml", "run_id=no_val", "data.split={train: ['1', '2'], test: ['3']}", "~data.split.val", "training.num_epochs=1", "--accept-data")
        self.assert_fails(self.meshard("evaluate", "runs/no_val", "val"), 2, "the run has no cases of 'val'; it has 2 of train, 0 of val and 1 of test")


class Page(html.parser.HTMLParser):
    """Cells with numbers, pictures and addresses of a report."""

    def __init__(self, text):
        super().__init__()
        self.values, self.pictures, self.dark, self.outside, self.sortable = [], [], [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "td":
            self.values.append(attributes["data-value"])
        if tag == "th":
            self.sortable += "data-sort" in attributes
        for name in ("src", "href"):
            if name in attributes and not attributes[name].startswith("data:"):
                self.outside.append(attributes[name])
        if tag == "img":
            self.pictures.append(base64.b64decode(attributes["src"].partition(",")[2]))
        if tag == "source":
            self.dark.append(base64.b64decode(attributes["srcset"].partition(",")[2]))


def numbers_in(json_value):
    if isinstance(json_value, dict):
        return [number for value in json_value.values() for number in numbers_in(value)]
    if isinstance(json_value, list):
        return [number for value in json_value for number in numbers_in(value)]
    return [json_value] if isinstance(json_value, (int, float)) else []


class Report(Judged):
    def test_has_only_numbers_of_its_json_and_pictures_in_the_page(self):
        expected = {number: self.recomputed(number) for number in ("3", "4")}
        self.good("report", "runs/car", f"data.forces.length={LENGTH}", f"data.forces.center={CENTER}", "-o", "report", "--nproc", 2)
        numbers = json.loads((self.folder / "report/report.json").read_text())
        cases = numbers["runs"][0]["evaluation"]["cases"]
        self.assertEqual([case["id"] for case in cases], ["3", "4"])
        for case in cases:
            self.assert_numbers(case, expected[case["id"]])
        page = Page((self.folder / "report/report.html").read_text())
        known = set(numbers_in(numbers))
        shown = [float(value) for value in page.values if re.fullmatch(r"-?[0-9.]+(e[-+]?[0-9]+)?", value)]
        self.assertGreater(len(shown), 50)
        self.assertEqual([value for value in shown if value not in known and int(value) not in (3, 4)], [])
        self.assertEqual(page.outside, [])
        self.assertGreater(page.sortable, 10)
        self.assertEqual(len(page.pictures), 2 * 2 * 3)
        self.assertEqual(len(page.dark), 2 * 2 * 3)
        for picture in page.pictures + page.dark:
            self.assertEqual(picture[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual([point[0] for point in numbers["runs"][0]["curves"]["loss"]], [1, 2, 3])

    def test_ends_with_one_where_a_bound_is_broken(self):
        self.good("report", "runs/car", "-o", "kept", "--fail-if", "test.pressure.rel_l2>1000")
        result = self.good("report", "runs/car", "-o", "broken", "--fail-if", "test.pressure.rel_l2>0", "--fail-if", "test.cd.mae>1000", "--nproc", 2, code=1)
        self.assertIn("--fail-if test.pressure.rel_l2>0: test.pressure.rel_l2 is", result.err)
        self.assertNotIn("cd.mae", result.err)
        self.assertEqual(self.names(self.folder / "broken"), self.names(self.folder / "kept"))
        self.assertIn("expected NUMBER>BOUND", self.good("report", "runs/car", "-o", "none", "--fail-if", "test.cd.mae", code=2).err)
        self.assertIn("expected x, y or z and a number", self.good("report", "runs/car", "-o", "none", "--plane", "w=1", code=2).err)
        self.assertFalse((self.folder / "none").exists())

    def test_shows_how_errors_are_spread(self):
        self.good("report", "runs/car", "-o", "report", "--nproc", 2)
        self.good("report", "runs/car", "-o", "alone")
        run, alone = (json.loads((self.folder / folder / "report.json").read_text())["runs"][0] for folder in ("report", "alone"))
        for split in run["evaluation"]["splits"]:
            cases = [case for case in run["evaluation"]["cases"] if case["split"] == split]
            for field, components in (("pressure", 1), ("wss", 3)):
                found = run["evaluation"]["splits"][split]["error_histograms"][field]
                self.assertEqual(len(found["counts"]), 40)
                total = found["below"] + sum(found["counts"]) + found["above"]
                self.assertEqual(total, components * sum(case["num_points"] for case in cases))
                other = alone["evaluation"]["splits"][split]["error_histograms"][field]
                self.assertLessEqual(sum(abs(a - b) for a, b in zip(found["counts"], other["counts"])), 0.02 * total, "but for rounding the same on one rank")
        page = (self.folder / "report/report.html").read_text()
        self.assertIn("Errors of pressure", page)
        self.assertIn("Errors of wss", page)

    def test_says_that_training_had_not_converged(self):
        path = self.folder / "runs/car/metrics.jsonl"
        lines = path.read_text().splitlines()

        def judged(errors):
            vals = [json.dumps({"phase": "val", "epoch": i + 1, "loss": 1, "metrics": {"pressure": {"rel_l2": error}, "wss": {"rel_l2": error}}}) for i, error in enumerate(errors)]
            path.write_text("\n".join([line for line in lines if '"val"' not in line] + vals) + "\n")
            self.good("report", "runs/car", "-o", "report", "--cases", "4")
            return json.loads((self.folder / "report/report.json").read_text())["runs"][0]["convergence"], (self.folder / "report/report.html").read_text()

        found, page = judged([1 - 0.03 * i for i in range(20)])
        self.assertFalse(found["converged"])
        self.assertAlmostEqual(found["fell_by"], 1 - 0.43 / 0.49)
        self.assertIn("Training had not converged", page)
        found, page = judged([1 / (i + 1) for i in range(10)] + [0.0999] * 10)
        self.assertTrue(found["converged"])
        self.assertNotIn("not converged", page)
        found, page = judged([1, 0.5])
        self.assertIsNone(found)

    def region_of(self, body, predicted):
        """Of the 4 x 4 x 4 equal boxes around a body the share of squared errors of the pressure, and of cells, in the one with most: from the files."""
        true, found = arrays_of(body), arrays_of(predicted)
        points, offsets = true["Points"], true["offsets"]
        bounds = [(min(points[axis::3]), max(points[axis::3])) for axis in range(3)]
        squares, counts = {}, {}
        for i, end in enumerate(offsets):
            cell = [points[3 * p:3 * p + 3] for p in true["connectivity"][offsets[i - 1] if i else 0:end]]
            place = [sum(point[axis] for point in cell) / len(cell) for axis in range(3)]
            box = tuple(min(3, int(4 * (x - low) / (high - low))) for x, (low, high) in zip(place, bounds))
            squares[box] = squares.get(box, 0) + (found["pressure"][i] - true["pMean"][i]) ** 2
            counts[box] = counts.get(box, 0) + 1
        box = max(squares, key=squares.get)
        return squares[box] / sum(squares.values()), counts[box] / len(offsets), [low + (high - low) * (k + side) / 4 for k, (low, high) in zip(box, bounds) for side in (0, 1)]

    def test_says_why_a_case_is_the_worst(self):
        """A case of a pressure far below that of the others, and of a size that no training case has."""
        write_body(self.folder / "cases/run_4/boundary_4.vtp", lengths=(1.5, 0.4, 0.3))
        body = self.folder / "cases/run_4/boundary_4.vtp"
        tree = xml.fromstring(body.read_text())
        pressure = next(array for array in tree.iter("DataArray") if array.get("Name") == "pMean")
        pressure.text = " ".join(str(0.01 * float(value)) for value in pressure.text.split())
        body.write_bytes(xml.tostring(tree))
        self.good("report", "runs/car", "-o", "report", "--cases", "all")
        run = json.loads((self.folder / "report/report.json").read_text())["runs"][0]["evaluation"]
        self.assertNotIn("worst", run["splits"]["test"])   # of one case nothing is the worst
        log = self.good("train", "car.yaml", "run_id=more", "data.split={train: ['1', '2'], test: ['3', '4']}", "~data.split.val", "training.num_epochs=9",
                        "data.inputs=[points]", "data.center=none", "data.length=none", "--accept-data").err
        self.assertIn("worst of test, case 4: pressure has ", log)
        self.good("predict", "runs/more", body, "-o", "predicted.vtp")
        error_share, cell_share, bounds = self.region_of(body, self.folder / "predicted.vtp")
        for ranks in (1, 2):
            out = self.good("evaluate", "runs/more", "test", "-o", f"judged_{ranks}", "--nproc", ranks).out
            self.assertRegex(out, r"worst, 4: pressure has [0-9.]+ times the median rel_l2; [0-9]+ % of its squared error lies in [0-9.]+ % of its cells, "
                                  r"x .* to .*beyond the training cases: points.x goes from ")
            numbers = json.loads((self.folder / f"judged_{ranks}/evaluation.json").read_text())
            worst = numbers["splits"]["test"]["worst"]
            self.assertEqual((worst["id"], worst["field"]), ("4", "pressure"))
            region = next(case for case in numbers["cases"] if case["id"] == "4")["error_regions"]["pressure"]
            self.assertAlmostEqual(region["error_share"], error_share, 4)
            self.assertAlmostEqual(region["row_share"], cell_share, 9)
            for ours, expected in zip(region["bounds"], bounds):
                self.assertAlmostEqual(ours, expected, 5)
        self.good("report", "runs/more", "-o", "report")
        self.assertIn("Worst of test: case 4. pressure has ", html.unescape((self.folder / "report/report.html").read_text()))

    def test_keeps_the_pictures_of_two_runs_of_one_name_apart(self):
        shutil.copytree(self.folder / "runs/car", self.folder / "others/car")
        self.good("report", "runs/car", "others/car", "-o", "report", "--cases", "4")
        numbers = json.loads((self.folder / "report/report.json").read_text())
        self.assertEqual([run["name"] for run in numbers["runs"]], ["car", "car_2"])
        pictures = self.names(self.folder / "report/pictures")
        self.assertEqual(len([name for name in pictures if name.startswith("car_2_4_")]), 2 * 2 * 3)
        self.assertEqual(len([name for name in pictures if name.startswith("car_4_")]), 2 * 2 * 3)

    def test_is_written_at_the_end_of_training_where_it_is_asked_for(self):
        self.assertFalse((self.folder / "runs/car/report").exists())
        words = ("train", "car.yaml", "run_id=end", "training.num_epochs=2", "logging.report=true")
        self.assertIn("runs/end/report/report.html\n", self.good(*words, "--nproc", 2).err)
        numbers = json.loads((self.folder / "runs/end/report/report.json").read_text())
        self.assertEqual([case["id"] for case in numbers["runs"][0]["evaluation"]["cases"]], ["3", "4"])
        self.good("report", "runs/end", "-o", "later")
        later = json.loads((self.folder / "later/report.json").read_text())
        for ours, theirs in zip(numbers["runs"][0]["evaluation"]["cases"], later["runs"][0]["evaluation"]["cases"]):
            self.assertAlmostEqual(ours["fields"]["pressure"]["rel_l2"], theirs["fields"]["pressure"]["rel_l2"], 6)

    def in_browser(self, page, script, *flags, width=400):
        """What `script`, the body of a function that returns something, finds in the page; chromium must print no message of the page."""
        shown = page.with_suffix(".test.html")
        watch = "<script>window.troubles=[];addEventListener('error',e=>troubles.push(String(e.message||e.target.src)),true);" \
                "addEventListener('unhandledrejection',e=>troubles.push(String(e.reason)))</script>"
        ask = f"<script>addEventListener('load',function(){{var found=(function(){{{script}}})();" \
              "document.title='found '+JSON.stringify({found:found,troubles:troubles})})</script></body>"
        shown.write_text(page.read_text().replace("<head>", "<head>" + watch).replace("</body>", ask))
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--window-size={width},800",
                                   f"--user-data-dir={home}", *flags, "--dump-dom", f"file://{shown}"], capture_output=True, text=True, timeout=120)
        title = re.search(r"<title>found (.*?)</title>", done.stdout)
        self.assertIsNotNone(title, done.stderr[-2000:])
        self.assertNotIn("CONSOLE", done.stderr)
        answer = json.loads(html.unescape(title[1]))
        self.assertEqual(answer["troubles"], [])
        return answer["found"]

    def test_draws_in_a_browser_without_an_error(self):
        self.needs("chromium")
        self.good("report", "runs/car", "-o", "report")
        page = self.folder / "report/report.html"
        wide = self.in_browser(page, "return {page:document.documentElement.scrollWidth,window:innerWidth,pictures:Array.from(document.images).map(i=>i.naturalWidth),"
                                     "svgs:document.querySelectorAll('svg').length,dots:Array.from(document.querySelectorAll('circle title')).map(t=>t.textContent)}")
        self.assertLessEqual(wide["page"], wide["window"])
        self.assertEqual(wide["pictures"], [640] * 12)
        self.assertGreater(wide["svgs"], 4)
        self.assertTrue(any(text.startswith("case 4: true ") for text in wide["dots"]), wide["dots"])
        columns = "var tables=Array.from(document.querySelectorAll('table')),table=tables[tables.length-1],head=table.tHead.rows[0].cells,found=[];" \
                  "var column=k=>Array.from(table.tBodies[0].rows).map(r=>r.cells[k].dataset.value);"
        for k, down in ((0, False), (3, False), (3, True)):
            clicks = f"head[{k}].click();" * (2 if down else 1)
            values = self.in_browser(page, columns + clicks + f"return column({k})")
            self.assertEqual(len(values), 2)
            self.assertEqual(values, sorted(values, key=float, reverse=down))

    def test_is_readable_on_light_and_dark_screens(self):
        self.needs("chromium")
        self.good("report", "runs/car", "-o", "report")
        script = "var probe=document.createElement('p');probe.style.cssText='background:Canvas;color:CanvasText';document.body.appendChild(probe);" \
                 "var seen=e=>getComputedStyle(e);var text=document.querySelector('svg text');" \
                 "var canvas=document.createElement('canvas'),pen=canvas.getContext('2d');pen.drawImage(document.images[0],0,0);" \
                 "return {picture:'rgb('+Array.from(pen.getImageData(3,3,1,1).data).slice(0,3)+')',dark:matchMedia('(prefers-color-scheme: dark)').matches,back:seen(probe).backgroundColor,text:seen(document.body).color,svg:seen(text).fill}"
        for flag, is_dark in (("--force-color-profile=srgb", False), ("--blink-settings=preferredColorScheme=0", True)):
            found = self.in_browser(self.folder / "report/report.html", script, flag)
            self.assertEqual(found["dark"], is_dark, found)
            light = {name: sum(float(number) for number in re.findall(r"[0-9.]+", found[name])[:3]) / 765 for name in ("back", "text", "svg", "picture")}
            for name in ("text", "svg"):
                self.assertGreater(abs(light["back"] - light[name]), 0.6, found)
            self.assertEqual(light["back"] < 0.5, is_dark, found)
            self.assertAlmostEqual(light["picture"], light["back"], delta=0.1, msg=str(found))
