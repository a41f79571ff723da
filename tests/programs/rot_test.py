# SPDX-License-Identifier: Apache-2.0
"""Files that changed after they were written: a flipped bit, a file of another folder, a version to come. Whatever reads them says so or gives what it gave before."""
import json
import re
import shutil
import struct

from runner import Case
from samples import copy_sample, put_training
from training_modes_test import arrays_of


def flip(path, offset, bit=1):
    """Offsets below 0 count from the end."""
    content = bytearray(path.read_bytes())
    content[offset] ^= bit
    path.write_bytes(content)


def offsets_in(path, count):
    """Evenly over the file, the first and the last byte among them."""
    last = path.stat().st_size - 1
    return sorted({last * i // (count - 1) for i in range(count)})


def header_of(path):
    """The header of a safetensors file as JSON, and its data."""
    content = path.read_bytes()
    size, = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + size]), content[8 + size:]


def put_header(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Rot(Case):
    timeout = 300

    def assert_refused_or_same(self, path, run, texts, count, min_refused, code=3):
        """Flips a bit at each of `count` places of the file: `run` ends with `code` and one line with these texts, or gives what it gives with the whole file."""
        whole = path.read_bytes()
        expected = run()
        self.assertEqual(expected[0].code, 0, str(expected[0]))
        num_refused = 0
        for i, offset in enumerate(offsets_in(path, count)):
            flip(path, offset, 1 << i % 7)
            found = run()
            path.write_bytes(whole)
            if found[0].code == 0:
                self.assertEqual(found[1], expected[1], f"byte {offset} of {path.name} was flipped, and the result is another")
                continue
            num_refused += 1
            self.assertIn(code if isinstance(code, tuple) else (code,), [(found[0].code,), code], f"byte {offset}: {found[0]}")
            for text in texts:
                self.assertIn(text, found[0].err, f"byte {offset} of {path.name}")
        self.assertGreaterEqual(num_refused, min_refused, f"{path.name}: flipped bits were not seen")


class RottenShards(Rot):
    def setUp(self):
        super().setUp()
        copy_sample("shards", self.folder / "shards")
        self.piece = self.folder / "shards/pieces/mesh_0002.vtu"

    VERBS = (("merge", "shards", "-o", "out.vtu"), ("repartition", "shards", "-n", 2, "-o", "out"), ("convert", "shards", "out.vtu"), ("convert", "shards", "out.vtkhdf"),
             ("convert", "shards", "out.pvtu"), ("render", "shards", "-o", "out.png"))

    def test_pieces_are_refused_by_every_verb(self):
        whole = self.piece.read_bytes()
        for offset in (*offsets_in(self.piece, 7), -200):
            flip(self.piece, offset)
            for words in self.VERBS:
                self.assert_fails(self.meshard(*words), 3, "mesh_0002.vtu has the hash", "the manifest says", "Cut the source again")
                self.assertEqual(self.names(), ["shards"], words)
            self.piece.write_bytes(whole)

    def test_pieces_of_another_folder_are_refused(self):
        self.assert_good(self.meshard("merge", "shards", "-o", "box.vtu"))
        self.assert_good(self.meshard("partition", "box.vtu", "-n", 4, "--seed", 7, "-o", "other"))
        shutil.copy(self.folder / "other/pieces/mesh_0002.vtu", self.piece)
        for words in self.VERBS:
            self.assert_fails(self.meshard(*words), 3, "mesh_0002.vtu has", "the manifest says")

    def test_pieces_are_read_all_the_same_where_that_is_asked_for(self):
        content = self.piece.read_bytes()
        field = int(re.search(rb'<DataArray [^>]*Name="p"[^>]*offset="(\d+)"', content)[1])
        flip(self.piece, content.index(b"_", content.index(b"<AppendedData")) + 1 + field + 8)
        for words in self.VERBS:
            self.assert_good(self.meshard(*words, "--no-verify"))

    def test_manifest_is_refused_or_means_the_same(self):
        def merged():
            result = self.meshard("merge", "shards", "-o", "out.vtu")
            content = (self.folder / "out.vtu").read_bytes() if result.code == 0 else None
            (self.folder / "out.vtu").unlink(missing_ok=True)
            return result, content

        self.assert_refused_or_same(self.folder / "shards/manifest.json", merged, ["manifest.json"], 60, 30)
        manifest = self.folder / "shards/manifest.json"
        whole = manifest.read_text()
        for before, after in (('"seed": 0', '"seed": 1'), ('"method": "metis"', '"method": "metix"'), ("box.vtu", "bax.vtu")):
            self.assertIn(before, whole)
            manifest.write_text(whole.replace(before, after, 1))
            for words in (*self.VERBS, ("info", "shards")):
                self.assert_fails(self.meshard(*words), 3, "manifest.json", "is damaged or was changed")

    def test_pieces_are_refused_through_the_index_too(self):
        copy_sample("body.vtp", self.folder / "body.vtp")
        index = self.folder / "shards/mesh.pvtu"
        verbs = [[word if word != "shards" else index for word in words] for words in (*self.VERBS[2:], ("derive", "shards", "--gradient", "p", "-o", "out.vtu"),
                 ("interpolate", "shards", "body.vtp", "-o", "out.vtp"), ("partition", "shards", "-n", 2, "-o", "out"))]
        for words in verbs:
            result = self.meshard(*words)
            self.assert_good(result)
            self.assertNotIn("warning", result.err)
            self.run_words("bash", "-c", "rm -rf out*")
        whole = self.piece.read_bytes()
        field = int(re.search(rb'<DataArray [^>]*Name="p"[^>]*offset="(\d+)"', whole)[1])
        flip(self.piece, whole.index(b"_", whole.index(b"<AppendedData")) + 1 + field + 8)
        for words in verbs:
            self.assert_fails(self.meshard(*words), 3, "mesh.pvtu", "piece 'pieces/mesh_0002.vtu' has the hash", "when it was written xxh64:", "remove Hash")
            self.assertEqual(self.names(), ["body.vtp", "shards"], words)
        text = index.read_text()
        index.write_text(re.sub(' Hash="[^"]*"', "", text))   # as of earlier versions and other programs
        self.assert_good(self.meshard("convert", index, "out.vtu"))
        (self.folder / "out.vtu").unlink()
        self.piece.write_bytes(whole)
        index.write_text(text)

        def converted():
            result = self.meshard("convert", index, "out.vtu")
            content = (self.folder / "out.vtu").read_bytes() if result.code == 0 else None
            (self.folder / "out.vtu").unlink(missing_ok=True)
            return result, content

        self.assert_refused_or_same(index, converted, ["mesh"], 40, 10)

    def test_folders_of_earlier_versions_are_read(self):
        manifest = self.folder / "shards/manifest.json"
        content = json.loads(manifest.read_text())
        del content["hash"]
        manifest.write_text(json.dumps(content))
        self.assert_good(self.meshard("merge", "shards", "-o", "out.vtu"))
        self.assert_good(self.meshard("check", "shards"))


class RottenRun(Rot):
    def setUp(self):
        super().setUp()
        put_training(self.folder)
        copy_sample("runs", self.folder / "runs")
        copy_sample("body.vtp", self.folder / "body.vtp")
        self.run = self.folder / "runs/car"
        self.checkpoint = self.run / "checkpoints/best.safetensors"
        self.last = self.run / "checkpoints/last.safetensors"

    def predicted(self, *words):
        result = self.meshard("predict", *(words or ("runs/car",)), "body.vtp", "-o", "out.vtp")
        content = (self.folder / "out.vtp").read_bytes() if result.code == 0 else None
        (self.folder / "out.vtp").unlink(missing_ok=True)
        return result, content

    def resumed(self):
        shutil.rmtree(self.folder / "again", ignore_errors=True)
        shutil.copytree(self.run, self.folder / "again/car")
        result = self.meshard("train", "--resume", "again/car", "training.num_epochs=3")
        return result, arrays_of(self.folder / "again/car/checkpoints/last.safetensors") if result.code == 0 else None

    def test_weights_and_their_description_are_refused(self):
        self.assert_refused_or_same(self.checkpoint, self.predicted, ["best.safetensors"], 20, 18)
        header, _ = header_of(self.checkpoint)
        size = len(self.checkpoint.read_bytes()) - sum(entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__")
        whole = self.checkpoint.read_bytes()
        expected = self.predicted()[1]
        for offset in range(8, size, max(1, size // 30)):   # the header alone
            flip(self.checkpoint, offset)
            result, content = self.predicted()
            self.assertTrue(result.code == 3 or content == expected, f"byte {offset}\n{result}")
            self.checkpoint.write_bytes(whole)

    def test_checkpoint_is_refused_by_every_verb(self):
        header, data = header_of(self.last)
        flip(self.checkpoint, -300)
        for words in (("predict", "runs/car", "body.vtp", "-o", "out.vtp"), ("predict", "--model", self.checkpoint, "body.vtp", "-o", "out.vtp"),
                      ("evaluate", "runs/car", "test"), ("report", "runs/car", "-o", "rep"), ("info", self.checkpoint), ("convert", self.checkpoint, "out.pt")):
            self.assert_fails(self.meshard(*words), 3, "best.safetensors is damaged or was changed", "hash")
        self.assertEqual([name for name in self.names() if name.startswith(("out", "rep"))], [])
        for name in ("blocks.0.ln_mlp2.1.bias", "optimizer.exp_avg.blocks.0.ln_mlp2.1.bias", "optimizer.exp_avg_sq.blocks.0.ln_mlp2.1.bias", "norm.std"):
            whole = self.last.read_bytes()
            flip(self.last, len(whole) - len(data) + header[name]["data_offsets"][0])
            self.assert_fails(self.meshard("train", "--resume", "runs/car", "training.num_epochs=3"), 3, "last.safetensors is damaged or was changed")
            self.assert_fails(self.meshard("train", "car.yaml", "run_id=new", f"training.init={self.last}"), 3, "last.safetensors is damaged or was changed")
            self.last.write_bytes(whole)

    def test_optimizer_is_refused_or_goes_on_as_before(self):
        self.assert_refused_or_same(self.last, self.resumed, ["last.safetensors"], 20, 18)

    def test_weighted_means_are_refused(self):
        self.assert_good(self.meshard("train", "car.yaml", "run_id=mean", "training.ema=0.9"))
        path = self.folder / "runs/mean/checkpoints/best.safetensors"
        header, data = header_of(path)
        raw = next(name for name in header if name.startswith("optimizer.weights."))
        for name in (raw, raw.removeprefix("optimizer.weights.")):
            whole = path.read_bytes()
            flip(path, len(whole) - len(data) + header[name]["data_offsets"][0])
            self.assert_fails(self.meshard("predict", "runs/mean", "body.vtp", "-o", "out.vtp"), 3, "best.safetensors is damaged or was changed")
            path.write_bytes(whole)

    def test_settings_are_refused_or_mean_the_same(self):
        path = self.run / "resolved_config.yaml"
        self.assert_refused_or_same(path, self.predicted, ["resolved_config.yaml"], 30, 25, code=(2, 3))
        whole = path.read_text()
        path.write_text(whole.replace("seed: 0", "seed: 1").replace("lr: 0.001", "lr: 0.002"))
        for words in (("predict", "runs/car", "body.vtp", "-o", "out.vtp"), ("evaluate", "runs/car", "test"), ("train", "--resume", "runs/car")):
            self.assert_fails(self.meshard(*words), 3, "resolved_config.yaml is damaged or was changed", "remove its first line")
        path.write_text(whole)

    def test_settings_that_were_cut_short_are_refused(self):
        path = self.run / "resolved_config.yaml"
        whole = path.read_bytes()
        for length in (0, 5, 40, len(whole) // 4, len(whole) // 2, whole.index(b"training:"), len(whole) - 1):
            path.write_bytes(whole[:length])
            for words in (("predict", "runs/car", "body.vtp", "-o", "out.vtp"), ("evaluate", "runs/car", "test"), ("train", "--resume", "runs/car", "training.num_epochs=3")):
                self.assert_fails(self.meshard(*words), 3, "resolved_config.yaml", "is damaged")

    def test_checkpoint_behind_a_link_that_leads_nowhere_is_not_replaced_by_another(self):
        self.checkpoint.unlink()
        self.checkpoint.symlink_to("/nowhere/best.safetensors")
        for words in (("predict", "runs/car", "body.vtp", "-o", "out.vtp"), ("evaluate", "runs/car", "test"), ("report", "runs/car", "-o", "rep")):
            self.assert_fails(self.meshard(*words), 3, "best.safetensors")
        self.checkpoint.unlink()
        self.assert_good(self.predicted()[0])   # a run that was stopped before its first validation has only the last

    def test_files_of_another_run_are_refused(self):
        self.assert_good(self.meshard("train", "car.yaml", "run_id=other", "seed=5", "training.max_steps=1"))
        for name in ("checkpoints/best.safetensors", "resolved_config.yaml"):
            shutil.copy(self.run / name, self.folder / "kept")
            shutil.copy(self.folder / "runs/other" / name, self.run / name)
            self.assert_fails(self.predicted()[0], 3, "best.safetensors is of another run than", "resolved_config.yaml")
            shutil.copy(self.folder / "kept", self.run / name)

    def test_description_beside_weights_is_refused_or_means_the_same(self):
        self.assert_good(self.meshard("convert", "runs/geo/checkpoints/last.safetensors", "geo.pt"))
        self.assert_refused_or_same(self.folder / "geo.json", lambda: (result := self.meshard("info", "geo.pt", "--json"), result.out), ["geo.json"], 40, 15)
        self.assert_refused_or_same(self.folder / "geo.pt", lambda: (result := self.meshard("info", "geo.pt", "--json"), result.out), ["geo.pt"], 20, 12)

    def test_earlier_versions_are_read(self):
        expected = self.predicted()[1]
        for path in (self.checkpoint, self.last):
            header, data = header_of(path)
            del header["__metadata__"]["meshard_hash"]
            put_header(path, header, data)
        config = self.run / "resolved_config.yaml"
        lines = config.read_text().splitlines(keepends=True)
        self.assertRegex(lines[0], r"^# meshard run 1 xxh64:[0-9a-f]{16}\n$")
        text = "".join(lines[1:]).replace("\nlogging:\n", "\nlogging:\n  jsonl: true   # default\n")   # a key that is gone
        self.assertIn("jsonl", text)
        config.write_text(text.replace("\ntraining:\n", "\ntraining:\n  force_weights: [0.05, 0.01]   # car.yaml:14\n"))
        self.assertEqual(self.predicted()[1], expected)
        resume = ("train", "--resume", "runs/car", "training.num_epochs=3")
        self.assert_fails(self.meshard(*resume), 2, "there is no key 'training.force_weights'")   # whose term of the loss is gone
        config.write_text(text)
        self.assertEqual(self.predicted()[1], expected)
        self.assert_good(self.meshard(*resume))

    def test_weights_written_anew_by_other_programs_are_read(self):
        """Arrays in another order, another layout of the header: what is said is the same, and so is its hash."""
        expected = self.predicted()[1]
        header, data = header_of(self.checkpoint)
        metadata = header.pop("__metadata__")
        arrays, put = {}, b""
        for name in sorted(header, key=lambda name: (-len(data[slice(*header[name]["data_offsets"])]), name)):
            content = data[slice(*header[name]["data_offsets"])]
            arrays[name] = {**header[name], "data_offsets": [len(put), len(put) + len(content)]}
            put += content
        put_header(self.checkpoint, {**arrays, "__metadata__": dict(reversed(metadata.items()))}, put)
        self.assertEqual(self.predicted()[1], expected)

    def test_equal_runs_have_equal_files(self):
        for run in ("a", "b"):
            self.assert_good(self.meshard("train", "car.yaml", f"run_id={run}"))
        for name in ("best", "last"):
            self.assertEqual(*((self.folder / f"runs/{run}/checkpoints/{name}.safetensors").read_bytes() for run in ("a", "b")))


class RottenStore(Rot):
    SAMPLINGS = ((), ("data.sampling_resolution=60", "data.memory=0"), ("data.sampling_resolution=60", "data.sampling=blocks", "data.memory=0"),
                 ("data.sampling_resolution=60", "data.sampling=areas", "data.memory=0"), ("data.memory=0", "training.point_weights=areas"))

    def setUp(self):
        super().setUp()
        put_training(self.folder)
        self.assert_good(self.meshard("prepare", "car.yaml", "data.shards=shards", "data.parts=2"))

    def trained(self, words):
        result = self.meshard("train", "car.yaml", "run_id=x", "--overwrite", "data.shards=shards", "data.parts=2", "--accept-data", *words)
        arrays = arrays_of(self.folder / "runs/x/checkpoints/last.safetensors") if result.code == 0 else None
        return result, arrays

    def test_files_are_refused_or_made_anew(self):
        self.assert_good(self.trained(())[0])   # writes figures.json
        folder = sorted((self.folder / "shards/store").glob("*-*"))[0]
        names = self.names(folder)
        self.assertEqual(names, ["case.json", "figures.json", "hashes.u64", "measures.f32", "part_0000.rows", "part_0001.rows"])
        whole = {name: (folder / name).read_bytes() for name in names}
        for k, words in enumerate(self.SAMPLINGS):
            expected = self.trained(words)
            self.assert_good(expected[0])
            for name in names:
                offsets = offsets_in(folder / name, 10)
                for i, offset in enumerate(offsets[k % 5::5]):   # all ten in the five samplings
                    flip(folder / name, offset, 1 << (k + i) % 7)
                    result, arrays = self.trained(words)
                    if result.code == 0:
                        self.assertEqual(arrays, expected[1], f"{words}: byte {offset} of {name}")
                    else:
                        self.assert_fails(result, 3, folder.name, "is damaged", "Remove its folder: it is made again")
                    for one, content in whole.items():
                        (folder / one).write_bytes(content)

    def test_files_of_another_case_are_refused_or_made_anew(self):
        expected = self.trained(())
        first, second = sorted((self.folder / "shards/store").glob("*-*"))[:2]
        for name in self.names(first):
            kept = (first / name).read_bytes()
            shutil.copy(second / name, first / name)
            result, arrays = self.trained(())
            if result.code == 0:
                self.assertEqual(arrays, expected[1], name)
            else:
                self.assertEqual(result.code, 3, str(result))
            (first / name).write_bytes(kept)

    def test_shards_are_refused(self):
        shutil.rmtree(self.folder / "shards/store")
        piece = next((self.folder / "shards").glob("*/pieces/mesh_0001.vtp"))
        flip(piece, -100)
        self.assert_fails(self.trained(())[0], 3, "mesh_0001.vtp has the hash", "the manifest says")

    def test_cases_that_earlier_versions_stored_are_read(self):
        for words in self.SAMPLINGS:
            expected = self.trained(words)[1]
            for path in (self.folder / "shards/store").glob("*/case.json"):
                content = json.loads(path.read_text())
                content.pop("hash", None)
                content.pop("has_page_hashes", None)
                path.write_text(json.dumps(content))
                (path.parent / "hashes.u64").unlink(missing_ok=True)
            times = {path: path.stat().st_mtime_ns for path in (self.folder / "shards/store").glob("*/part_*.rows")}
            self.assertEqual(self.trained(words)[1], expected)
            self.assertEqual({path: path.stat().st_mtime_ns for path in times}, times, "stored anew")


class Versions(Rot):
    def setUp(self):
        super().setUp()
        put_training(self.folder)
        copy_sample("runs", self.folder / "runs")
        copy_sample("body.vtp", self.folder / "body.vtp")
        copy_sample("shards", self.folder / "shards")

    def test_of_checkpoints_are_refused(self):
        for name in ("best", "last"):
            path = self.folder / f"runs/car/checkpoints/{name}.safetensors"
            header, data = header_of(path)
            description = json.loads(header["__metadata__"]["meshard"])
            description["version"] = 99
            header["__metadata__"]["meshard"] = json.dumps(description)
            put_header(path, header, data)
        last = self.folder / "runs/car/checkpoints/last.safetensors"
        for words in (("predict", "runs/car", "body.vtp", "-o", "out.vtp"), ("predict", "--model", last, "body.vtp", "-o", "out.vtp"), ("evaluate", "runs/car", "test"),
                      ("report", "runs/car", "-o", "rep"), ("train", "--resume", "runs/car", "training.num_epochs=3"), ("train", "car.yaml", "run_id=new", f"training.init={last}"),
                      ("info", last), ("convert", last, "out.mdlus")):
            self.assert_fails(self.meshard(*words), 3, ".safetensors", "a checkpoint of meshard, has version 99, this program knows version 1")

    def test_of_shards_are_refused(self):
        manifest = self.folder / "shards/manifest.json"
        for version in ("9", "0", '"1"'):
            manifest.write_text(re.sub(r'"version": [^,]+', f'"version": {version}', manifest.read_text(), count=1))
            for words in (("merge", "shards", "-o", "out.vtu"), ("repartition", "shards", "-n", 2, "-o", "out"), ("convert", "shards", "out.vtu"), ("info", "shards"),
                          ("render", "shards", "-o", "out.png")):
                self.assert_fails(self.meshard(*words), 3, "manifest.json", f"has version {version}, this program knows version 1")

    def test_of_runs_are_refused(self):
        config = self.folder / "runs/car/resolved_config.yaml"
        config.write_text(config.read_text().replace("# meshard run 1 ", "# meshard run 9 "))
        for words in (("predict", "runs/car", "body.vtp", "-o", "out.vtp"), ("evaluate", "runs/car", "test"), ("report", "runs/car", "-o", "rep"),
                      ("train", "--resume", "runs/car", "training.num_epochs=3")):
            self.assert_fails(self.meshard(*words), 3, "resolved_config.yaml", "has version 9, this program knows version 1")

    def test_of_stores_and_cached_shards_are_refused(self):
        words = ("car.yaml", "data.shards=kept")
        self.assert_good(self.meshard("prepare", *words))
        for pattern, find, put in (("store/*/case.json", b'"version": 3', b'"version": 9'), ("store/*/part_0000.rows", b"meshard rows 1", b"meshard rows 9"),
                                   ("*/manifest.json", b'"version": 1', b'"version": 9')):
            path = sorted((self.folder / "kept").glob(pattern))[0]
            whole = path.read_bytes()
            self.assertIn(find, whole)
            path.write_bytes(whole.replace(find, put, 1))
            for verb in ("train", "prepare"):
                if verb == "prepare" and path.suffix == ".rows":
                    continue   # which reads none
                result = self.meshard(verb, *words, "run_id=new")
                self.assert_fails(result, 3, path.parent.name, path.name, "has version 9, this program knows version ")
            path.write_bytes(whole)
