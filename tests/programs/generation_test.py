# SPDX-License-Identifier: Apache-2.0
"""`meshard generate` as a user runs it: the same fields on any number of ranks, and mistakes that are named before anything is written."""
import json
import re
import struct

from runner import SOURCE, Case
from samples import write_image

CHECKPOINT = SOURCE / "tests/data/fixtures/checkpoints/stormscope_a/model.mdlus"


def fields_of(path):
    """Name -> numbers of the appended arrays in single precision."""
    raw = path.read_bytes()
    start = raw.index(b"_", raw.index(b"<AppendedData")) + 1
    fields = {}
    for kind, name, offset in re.findall(r'<DataArray type="(\w+)" Name="(\w+)"[^>]*offset="(\d+)"', raw[:start].decode()):
        at = start + int(offset)
        size = struct.unpack("<Q", raw[at:at + 8])[0]
        if kind == "Float32":
            fields[name] = struct.unpack(f"<{size // 4}f", raw[at + 8:at + 8 + size])
    return fields


def put_deviations(path, source, values):
    """The weights of a file of safetensors, whose model has these for `sigma_data`, one a channel."""
    raw = source.read_bytes()
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:end]), b""
    for name, array in header.items():
        if name == "__metadata__":
            continue
        first, last = array["data_offsets"]
        content = raw[end + first:end + last]
        if name == "sigma_data":
            array["shape"], content = [len(values)], struct.pack(f"<{len(values)}f", *values)
        array["data_offsets"] = [len(data), len(data) + len(content)]
        data += content
    description = json.loads(header["__metadata__"]["meshard"])
    description["model"]["sigma_data"] = values
    header["__metadata__"]["meshard"] = json.dumps(description)
    del header["__metadata__"]["meshard_hash"]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    path.with_suffix(".json").write_text(json.dumps(description))


class Generation(Case):
    def setUp(self):
        super().setUp()
        write_image(self.folder / "conditions.vti")

    def generate(self, *words, conditions="conditions.vti", checkpoint=CHECKPOINT, condition="0.3,-0.1,0.5"):
        return self.meshard("generate", checkpoint, conditions, "--condition", condition, "--steps", 4, *words)

    def test_gives_the_same_fields_on_any_number_of_ranks(self):
        for ranks in (1, 2, 3):
            self.assert_good(self.generate("-o", f"{ranks}.vti", "--seed", 5, "--churn", 2, "--nproc", ranks))
        serial = fields_of(self.folder / "1.vti")
        self.assertEqual(sorted(serial), ["background", "generated_1", "generated_2", "terrain", "u"])
        largest = max(abs(x) for x in serial["generated_1"])
        self.assertGreater(largest, 0.01)
        for ranks in (2, 3):
            other = fields_of(self.folder / f"{ranks}.vti")
            for name, numbers in serial.items():
                for a, b in zip(numbers, other[name]):
                    self.assertAlmostEqual(a, b, delta=1e-4 * largest)

    def test_follows_the_seed(self):
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            self.assert_good(self.generate("-o", f"{name}.vti", "--seed", seed, "--fields", "rain,wind"))
        a, b, c = (fields_of(self.folder / f"{name}.vti") for name in "abc")
        self.assertEqual(a["rain"], b["rain"])
        self.assertNotEqual(a["rain"], c["rain"])

    def test_makes_several_images_of_one_condition(self):
        self.assert_good(self.generate("-o", "many.vti", "--samples", 2))
        fields = fields_of(self.folder / "many.vti")
        self.assertIn("generated_2_2", fields)
        self.assertNotEqual(fields["generated_1_1"], fields["generated_1_2"])

    def test_takes_converted_weights(self):
        self.assert_good(self.meshard("convert", CHECKPOINT, "storm.safetensors"))
        self.assert_good(self.meshard("convert", "storm.safetensors", "storm.mdlus"))
        for name, file in (("a", CHECKPOINT), ("b", "storm.safetensors"), ("c", "storm.mdlus")):
            self.assert_good(self.generate("-o", f"{name}.vti", checkpoint=file))
        self.assertEqual(fields_of(self.folder / "a.vti"), fields_of(self.folder / "b.vti"))
        self.assertEqual(fields_of(self.folder / "a.vti"), fields_of(self.folder / "c.vti"))

    def test_takes_a_deviation_for_each_channel(self):
        self.assert_good(self.meshard("convert", CHECKPOINT, "storm.safetensors"))
        for name, values in (("same", [0.5, 0.5]), ("other", [0.5, 2.0]), ("many", [0.5, 0.5, 0.5])):
            put_deviations(self.folder / f"{name}.safetensors", self.folder / "storm.safetensors", values)
        for name, ranks in (("storm", 1), ("same", 1), ("other", 1), ("other", 3)):
            self.assert_good(self.generate("-o", f"{name}_{ranks}.vti", "--nproc", ranks, checkpoint=f"{name}.safetensors"))
        found = {name: fields_of(self.folder / f"{name}.vti") for name in ("storm_1", "same_1", "other_1", "other_3")}
        largest = max(abs(x) for x in found["storm_1"]["generated_1"])
        for field in ("generated_1", "generated_2"):
            for name, expected in (("same_1", "storm_1"), ("other_3", "other_1")):
                for a, b in zip(found[name][field], found[expected][field], strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-4 * largest)
        self.assertGreater(max(abs(a - b) for a, b in zip(found["other_1"]["generated_2"], found["storm_1"]["generated_2"], strict=True)), 0.1 * largest)
        self.assert_fails(self.generate("-o", "out.vti", checkpoint="many.safetensors"), 3, "3 numbers for 2 channels")

    def test_names_what_is_wrong_and_writes_nothing(self):
        write_image(self.folder / "small.vti", 15, 12)
        before = self.names(self.folder)
        for result, code, *texts in (
                (self.generate("-o", "out.vti", conditions="small.vti"), 3, "15 x 12 x 1 points", "images of 16 x 12 x 1"),
                (self.generate("-o", "out.vti", condition="0.3"), 3, "3 numbers of the whole image, and 1 were given", "--condition"),
                (self.generate("-o", "out.vti", "--arrays", "terain,background,u"), 3, "no point array 'terain'", "Did you mean 'terrain'?"),
                (self.generate("-o", "out.vti", "--arrays", "terrain"), 3, "1 channels of conditions", "told 3", "--arrays"),
                (self.generate("-o", "out.vti", "--fields", "rain"), 3, "makes 2 channels, and --fields names 1"),
                (self.generate("-o", "out.vti", "--fields", "rain,terrain"), 3, "an array 'terrain' already"),
                (self.generate("-o", "out.vti", "--sigma-max", "0.001"), 2, "sigma_max must be larger than sigma_min"),
                (self.generate("-o", "out.vtu"), 2, "must end in .vti"),
                (self.generate("-o", "out.vti", conditions="none.vti"), 3, "none.vti does not exist"),
                (self.generate("-o", "out.vti", checkpoint=SOURCE / "tests/data/fixtures/checkpoints/transolver_a/model.mdlus"), 3, "holds a Transolver"),
                (self.generate("-o", "out.vti", conditions=CHECKPOINT), 2, "must end in .vti")):
            with self.subTest(texts[0]):
                self.assert_fails(result, code, *texts)
        self.assertEqual(self.names(self.folder), before)
