# SPDX-License-Identifier: Apache-2.0
"""What all verbs that write do alike: inputs as outputs, links, missing folders, and inputs of which some are damaged."""
import json
import os
import pathlib
import shutil

from runner import PROGRAM, Case
from samples import copy_sample, put_flow, put_training, sample, write_body, write_image

MPIRUN = ("mpirun", "-np", "2")


class DamagedInputs(Case):
    """`predict` of many files predicts all that can be read, and names the others at the end."""
    def setUp(self):
        super().setUp()
        self.run_folder = sample("runs") / "car"
        self.good = []
        for i in range(4):
            write_body(self.folder / f"good{i}.vtp", (1 + 0.1 * i, 0.4, 0.3))
            self.good.append(f"good{i}.vtp")

    def damage(self, name, text):
        if isinstance(text, str):
            text = text.encode()
        (self.folder / name).write_bytes(text)
        return name

    def predict(self, *words, before=(), **options):
        return self.run_words(*before, PROGRAM, "predict", self.run_folder, *words, **options)

    def assert_good_ones(self, folder, result):
        self.assertEqual(self.names(self.folder / folder), self.good, str(result))
        if not (self.folder / "alone").exists():
            self.assert_good(self.predict(*self.good, "-o", "alone"))
        for name in self.good:
            self.assertEqual((self.folder / folder / name).stat().st_size, (self.folder / "alone" / name).stat().st_size)

    def test_do_not_keep_the_others_from_being_predicted(self):
        whole = (self.folder / "good0.vtp").read_bytes()
        bad = self.damage("bad.vtp", whole[:len(whole) // 2])
        for num_ranks in (1, 2):
            for place in (0, 2, 4):
                inputs = [*self.good[:place], bad, *self.good[place:]]
                result = self.predict(*inputs, "-o", f"out{num_ranks}{place}", "--nproc", num_ranks)
                self.assert_fails(result, 3, "1 of 5 inputs", "bad.vtp")
                self.assert_good_ones(f"out{num_ranks}{place}", result)

    def test_of_all_kinds_are_named(self):
        whole = (self.folder / "good0.vtp").read_text()
        bad = [self.damage("cut.vtp", whole[:900]), self.damage("empty.vtp", ""), self.damage("text.vtp", "no mesh\n"), self.damage("zeros.vtp", bytes(4000)),
               self.damage("nan.vtp", whole.replace('format="ascii">0', 'format="ascii">nan', 1).replace('NumberOfComponents="3" format="ascii">', 'NumberOfComponents="3" format="ascii">nan ', 2)),
               self.damage("count.vtp", whole.replace('NumberOfPolys="96"', 'NumberOfPolys="99999999999"')), "missing.vtp"]
        (self.folder / "folder.vtp").mkdir()
        bad.append("folder.vtp")
        os.symlink("nowhere.vtp", self.folder / "dangling.vtp")
        bad.append("dangling.vtp")
        for num_ranks in (1, 2):
            result = self.predict(*bad[:5], *self.good, *bad[5:], "-o", f"out{num_ranks}", "--nproc", num_ranks)
            self.assert_fails(result, 3, f"{len(bad)} of {len(bad) + 4} inputs", *bad)
            self.assert_good_ones(f"out{num_ranks}", result)

    def test_without_what_the_model_is_told_are_named(self):
        """A surface of the model's wall that is damaged, for one input of several, on each rank."""
        whole = (self.folder / "good0.vtp").read_bytes()
        self.damage("bad.vtp", whole[:len(whole) // 2])
        put_training(self.folder)
        self.assert_good(self.meshard("train", "car.yaml", "run_id=told", "training.max_steps=1", "data.inputs=[points, normals, sdf]", "data.wall=run_*/boundary_*.vtp"))
        for num_ranks in (1, 2):
            result = self.meshard("predict", "runs/told", *self.good[:3], "--wall", "good0.vtp", "--wall", "bad.vtp", "--wall", "good2.vtp", "-o", f"told{num_ranks}",
                                  "--nproc", num_ranks)
            self.assert_fails(result, 3, "1 of 3 inputs", "good1.vtp")
            self.assertEqual(self.names(self.folder / f"told{num_ranks}"), ["good0.vtp", "good2.vtp"])

    def test_of_forces_are_named_too(self):
        bad = self.damage("bad.vtp", "no mesh")
        for place in (0, 2, 4):
            result = self.meshard("forces", *self.good[:place], bad, *self.good[place:], "--json")
            self.assert_fails(result, 3, "1 of 5 files", "bad.vtp")
            self.assertEqual([one["file"] for one in json.loads(result.out)], self.good)
        result = self.meshard("forces", bad, self.good[0])
        self.assert_fails(result, 3, "1 of 2 files", "bad.vtp")
        self.assertIn("good0.vtp", result.out)

    def test_on_ranks_of_mpirun_are_named_once(self):
        self.needs("mpirun")
        bad = self.damage("bad.vtp", "no mesh")
        result = self.predict(bad, *self.good, "-o", "out", before=MPIRUN)
        self.assertEqual(result.code, 3, str(result))
        self.assertEqual(result.err.count("1 of 5 inputs"), 1, str(result))
        self.assert_good_ones("out", result)

    def test_alone_leave_no_folder(self):
        bad = [self.damage(f"bad{i}.vtp", "no mesh") for i in range(2)]
        for num_ranks in (1, 2):
            before = self.names()
            self.assert_fails(self.predict(*bad, "-o", "new/below", "--nproc", num_ranks), 3, "2 of 2 inputs", *bad)
            self.assert_fails(self.predict(bad[0], "-o", "new/below/out.vtp", "--nproc", num_ranks), 3, "bad0.vtp")
            self.assert_fails(self.predict(bad[0], "-o", "new/below/out.pvtp", "--nproc", num_ranks), 3, "bad0.vtp")
            self.assertEqual(self.names(), before)

    def test_of_grids_are_named(self):
        put_flow(self.folder)
        self.assert_good(self.meshard("train", "flow.yaml", "training.max_steps=1"))
        flows = [f"flows/flow_{i}.vti" for i in range(3)]
        self.damage("flows/flow_1.vti", "no grid")
        for num_ranks in (1, 2):
            result = self.meshard("predict", "runs/flow", *flows, "-o", f"out{num_ranks}", "--nproc", num_ranks)
            self.assert_fails(result, 3, "1 of 3 inputs", "flow_1.vti")
            self.assertEqual(self.names(self.folder / f"out{num_ranks}"), ["flow_0.vti", "flow_2.vti"])


class Writers(Case):
    """Each verb that writes a file which the user names, as words with OUT in place of that file."""
    def setUp(self):
        super().setUp()
        copy_sample("box.vtu", self.folder / "box.vtu")
        copy_sample("body.vtp", self.folder / "body.vtp")
        copy_sample("shards", self.folder / "shards")
        copy_sample("geo.mdlus", self.folder / "geo.mdlus")
        self.run_folder = sample("runs") / "car"

    def writers(self):
        """Words, and the inputs that the output may be."""
        return [(("convert", "box.vtu", "OUT"), ["box.vtu"]),
                (("convert", "geo.mdlus", "OUT", "--to", "mdlus"), ["geo.mdlus"]),
                (("merge", "shards", "-o", "OUT"), ["shards/pieces/mesh_0000.vtu", "shards/pieces/mesh_0003.vtu"]),
                (("merge", "shards", "--verify", "box.vtu", "-o", "OUT"), ["box.vtu"]),
                (("render", "box.vtu", "-o", "OUT"), []),
                (("derive", "box.vtu", "--gradient", "p", "-o", "OUT"), ["box.vtu"]),
                (("derive", "box.vtu", "--gradient", "p", "-o", "OUT", "--nproc", 2), ["box.vtu"]),
                (("derive", "body.vtp", "--wall-distance", "body.vtp", "-o", "OUT"), ["body.vtp"]),
                (("interpolate", "box.vtu", "body.vtp", "-o", "OUT"), ["body.vtp"]),
                (("interpolate", "box.vtu", "box.vtu", "--replace", "-o", "OUT", "--nproc", 2), ["box.vtu"]),
                (("predict", self.run_folder, "body.vtp", "-o", "OUT"), ["body.vtp"]),
                (("predict", self.run_folder, "body.vtp", "-o", "OUT", "--nproc", 2), ["body.vtp"])]

    def run_writer(self, words, output, *more, **options):
        return self.meshard(*(output if word == "OUT" else word for word in words), *more, **options)

    def new_name(self, words, number):
        extension = {"render": ".png", "predict": ".vtp", "interpolate": ".vtp"}.get(words[0], ".vtu")
        if "body.vtp" in words:
            extension = ".vtp"
        if "box.vtu" in words and words[0] == "interpolate" and "body.vtp" not in words:
            extension = ".vtu"
        if "geo.mdlus" in words:
            extension = ".mdlus"
        return f"new{number}{extension}"


class InputAsOutput(Writers):
    def assert_refused(self, words, output, names):
        content = {name: (self.folder / name).read_bytes() for name in names}
        present = self.names()
        self.assert_fails(self.run_writer(words, output), 2, str(output), "--overwrite")
        for name in names:
            self.assertEqual((self.folder / name).read_bytes(), content[name], str(words))
        self.assertEqual(self.names(), present)

    def test_is_refused_by_every_verb_whatever_its_name(self):
        (self.folder / "below").mkdir()
        for words, inputs in self.writers():
            for name in inputs:
                path = pathlib.Path(name)
                names = [name, f"below/../{name}", str(self.folder / name)]
                link, hard = f"below/link{path.suffix}", f"below/hard{path.suffix}"
                os.symlink(self.folder / name, self.folder / link)
                os.link(self.folder / name, self.folder / hard)
                for output in (*names, link, hard):
                    self.assert_refused(words, output, [name])
                os.unlink(self.folder / link)
                os.unlink(self.folder / hard)

    def test_is_refused_where_the_input_is_the_link(self):
        os.rename(self.folder / "box.vtu", self.folder / "real.vtu")
        os.symlink("real.vtu", self.folder / "box.vtu")
        self.assert_refused(("convert", "box.vtu", "OUT"), "real.vtu", ["real.vtu"])
        self.assert_refused(("derive", "box.vtu", "--gradient", "p", "-o", "OUT"), "real.vtu", ["real.vtu"])

    def test_is_replaced_on_request(self):
        for words, inputs in self.writers():
            if not inputs or words[0] == "merge":
                continue
            with self.subTest(words=words):
                self.assert_good(self.run_writer(words, inputs[0], "--overwrite"))
                self.setUpAgain()

    def setUpAgain(self):
        for name in ("box.vtu", "body.vtp", "geo.mdlus"):
            copy_sample(name, self.folder / name)

    def test_is_found_among_the_files_of_an_input(self):
        self.assert_good(self.meshard("convert", "shards", "whole.pvtu"))
        piece = "whole_0001.vtu"
        content = (self.folder / piece).read_bytes()
        for words in (("convert", "whole.pvtu", piece), ("convert", "whole.pvtu", "whole.pvtu"), ("derive", "whole.pvtu", "--gradient", "p", "-o", piece),
                      ("convert", piece, "whole.pvtu"), ("predict", self.run_folder, "whole.pvtu", "-o", piece)):
            self.assert_fails(self.meshard(*words), 2, "--overwrite")
            self.assertEqual((self.folder / piece).read_bytes(), content, str(words))
        (self.folder / "set.pvd").write_text('<VTKFile type="Collection" version="0.1"><Collection><DataSet timestep="0" part="0" file="box.vtu"/></Collection></VTKFile>')
        self.assert_fails(self.meshard("convert", "set.pvd", "box.vtu"), 2, "--overwrite")

    def test_in_the_folder_of_many_inputs_is_refused(self):
        write_body(self.folder / "other.vtp")
        content = (self.folder / "other.vtp").read_bytes()
        for num_ranks in (1, 2):
            self.assert_fails(self.meshard("predict", self.run_folder, "body.vtp", "other.vtp", "-o", ".", "--nproc", num_ranks), 2, "--overwrite")
        self.assertEqual((self.folder / "other.vtp").read_bytes(), content)
        self.assert_good(self.meshard("predict", self.run_folder, "body.vtp", "other.vtp", "-o", ".", "--overwrite"))

    def test_that_is_read_later_is_refused(self):
        """What the first input is written to is the second: it would be read after it was replaced."""
        (self.folder / "a").mkdir()
        (self.folder / "b").mkdir()
        write_body(self.folder / "a/x.vtp")
        write_body(self.folder / "y.vtp")
        os.symlink("../y.vtp", self.folder / "b/x.vtp")
        content = (self.folder / "y.vtp").read_bytes()
        self.assert_fails(self.meshard("predict", self.run_folder, "a/x.vtp", "y.vtp", "-o", "b"), 2, "b/x.vtp", "y.vtp", "--overwrite")
        self.assertEqual((self.folder / "y.vtp").read_bytes(), content)

    def test_of_generate_and_of_grids_is_refused(self):
        write_image(self.folder / "weather.vti")
        (self.folder / "x.safetensors").write_bytes(b"")
        content = (self.folder / "weather.vti").read_bytes()
        self.assert_fails(self.meshard("generate", "x.safetensors", "weather.vti", "-o", "weather.vti"), 2, "--overwrite")
        put_flow(self.folder)
        self.assert_good(self.meshard("train", "flow.yaml", "training.max_steps=1"))
        self.assert_fails(self.meshard("predict", "runs/flow", "flows/flow_1.vti", "-o", "flows/flow_1.vti"), 2, "--overwrite")
        self.assertEqual((self.folder / "weather.vti").read_bytes(), content)

    def test_of_tables_and_pictures_is_refused(self):
        content = (self.folder / "box.vtu").read_bytes()
        os.symlink("box.vtu", self.folder / "table.csv")
        os.symlink("box.vtu", self.folder / "picture.png")
        for words in (("--csv", "table.csv"), ("--preview", "picture.png")):
            self.assert_fails(self.meshard("partition", "box.vtu", "-n", 2, "-o", "cut", *words), 2, words[1])
            self.assertEqual((self.folder / "box.vtu").read_bytes(), content)
            self.assertFalse((self.folder / "cut").exists())
        owners = "".join(f"{row % 2}\n" for row in range(512))
        (self.folder / "owners.part").write_text(owners)
        self.assert_fails(self.meshard("partition", "box.vtu", "--method", "file:owners.part", "--dry-run", "--csv", "./owners.part"), 2, "which is read")
        self.assertEqual((self.folder / "owners.part").read_text(), owners)
        self.assert_fails(self.meshard("partition", "box.vtu", "-n", 2, "--dry-run", "--csv", "new/a.png", "--preview", "new/../new/a.png"), 2, "are one file")
        self.assertFalse((self.folder / "new").exists())
        self.assert_fails(self.meshard("render", "box.vtu", "-o", "picture.png"), 2, "--overwrite")
        self.assertEqual((self.folder / "box.vtu").read_bytes(), content)

    def test_of_the_case_table_is_refused_by_evaluate_and_report(self):
        put_training(self.folder)
        rows = json.loads((self.folder / "cases/cases.json").read_text())["cases"]
        table = "id,split,rho,speed,length\n" + "".join(f"{r['id']},{r['split']},{r['rho']},{r['speed']},{r['length']}\n" for r in rows)
        (self.folder / "cases/cases.csv").write_text(table)
        self.assert_good(self.meshard("train", "car.yaml", "data.cases=cases.csv", "training.max_steps=1"))
        for verb in ("evaluate", "report"):
            self.assert_fails(self.meshard(verb, "runs/car", "-o", "cases"), 2, "cases.csv", "Name another")
            self.assertEqual((self.folder / "cases/cases.csv").read_text(), table)
        self.assertEqual(sorted(os.listdir(self.folder / "cases")), ["cases.csv", "cases.json", "run_1", "run_2", "run_3", "run_4"])


class LinkAsOutput(Writers):
    def assert_followed(self, words, number, target, link):
        self.assert_good(self.run_writer(words, link))
        self.assertTrue((self.folder / link).is_symlink(), str(words))
        self.assertFalse((self.folder / target).is_symlink())
        self.assertGreater((self.folder / target).stat().st_size, 100)

    def test_stays_one_in_every_verb(self):
        for i, (words, _) in enumerate(self.writers()):
            name = self.new_name(words, i)
            (self.folder / f"far{i}").mkdir()
            (self.folder / f"links{i}").mkdir()
            os.symlink(f"../far{i}/{name}", self.folder / f"links{i}/{name}")     # to nothing at first
            os.symlink(f"links{i}/{name}", self.folder / f"again_{name}")           # a link to a link
            for _ in range(2):
                self.assert_followed(words, i, f"far{i}/{name}", f"again_{name}")
            self.assertTrue((self.folder / f"links{i}/{name}").is_symlink())
            self.assertEqual(self.names(self.folder / f"far{i}"), [name] if "mdlus" not in name else self.names(self.folder / f"far{i}"))

    def test_of_an_index_has_its_pieces_where_the_index_is(self):
        (self.folder / "far").mkdir()
        for words in (("convert", "shards", "index.pvtu"), ("predict", self.run_folder, "body.vtp", "-o", "index.pvtp", "--nproc", 2)):
            name = next(word for word in words if str(word).startswith("index"))
            os.symlink(f"far/{name}", self.folder / name)
            self.assert_good(self.meshard(*words))
            self.assertTrue((self.folder / name).is_symlink())
            for path in (name, f"far/{name}"):
                self.assert_good(self.meshard("info", path))

    def test_in_a_circle_or_to_a_device_is_refused(self):
        os.symlink("b.vtu", self.folder / "a.vtu")
        os.symlink("a.vtu", self.folder / "b.vtu")
        self.assert_fails(self.meshard("convert", "box.vtu", "a.vtu"), 3, "a.vtu", "circle")
        null = os.stat("/dev/null")
        os.symlink("/dev/null", self.folder / "null.vtu")
        self.assert_fails(self.meshard("convert", "box.vtu", "null.vtu"), 3, "null.vtu", "no file")
        os.mkfifo(self.folder / "pipe.vtu")
        self.assert_fails(self.meshard("convert", "box.vtu", "pipe.vtu"), 3, "pipe.vtu", "no file")
        self.assertEqual(os.stat("/dev/null").st_rdev, null.st_rdev)
        os.symlink("shards", self.folder / "folder.vtu")
        self.assert_fails(self.meshard("convert", "box.vtu", "folder.vtu"), 3, "is a folder")

    def test_of_files_of_a_run_stays_one(self):
        put_training(self.folder)
        self.assert_good(self.meshard("train", "car.yaml", "training.max_steps=1"))
        (self.folder / "store").mkdir()
        for name in ("last.safetensors", "last.json"):
            shutil.move(self.folder / "runs/car/checkpoints" / name, self.folder / "store" / name)
            os.symlink(f"../../../store/{name}", self.folder / "runs/car/checkpoints" / name)
        self.assert_good(self.meshard("train", "--resume", "runs/car", "training.max_steps=2"))
        self.assertTrue((self.folder / "runs/car/checkpoints/last.json").is_symlink())
        self.assertEqual(json.loads((self.folder / "store/last.json").read_text())["step"], 2)

    def test_of_a_folder_of_checkpoints_stays_one(self):
        put_training(self.folder)
        self.assert_good(self.meshard("train", "car.yaml", "training.max_steps=1"))
        checkpoints = self.folder / "runs/car/checkpoints"
        checkpoints.rename(self.folder / "far")
        checkpoints.symlink_to(self.folder / "far")
        (self.folder / "far/epoch_1.safetensors").touch()   # of the run that is replaced
        self.assert_good(self.meshard("train", "car.yaml", "--overwrite", "training.max_steps=2"))
        self.assertTrue(checkpoints.is_symlink())
        self.assertEqual(self.names(self.folder / "far"), ["best.json", "best.safetensors", "last.json", "last.safetensors"])
        self.assertEqual(json.loads((self.folder / "far/last.json").read_text())["step"], 2)
        self.assert_fails(self.meshard("train", "car.yaml"), 3, "exists. Continue it")


class MissingFolder(Writers):
    def test_is_made_by_every_verb(self):
        for i, (words, _) in enumerate(self.writers()):
            output = f"new{i}/below/{self.new_name(words, i)}"
            self.assert_good(self.run_writer(words, output))
            self.assertGreater((self.folder / output).stat().st_size, 100)

    def test_is_made_for_tables_and_pictures(self):
        self.assert_good(self.meshard("partition", "box.vtu", "-n", 2, "-o", "a/b/cut", "--csv", "c/d/table.csv", "--preview", "e/f/cut.png"))
        self.assertEqual(self.names(self.folder / "c/d"), ["table.csv"])
        self.assertEqual(self.names(self.folder / "e/f"), ["cut.png"])

    def test_does_not_stay_when_nothing_comes(self):
        present = self.names()
        (self.folder / "box.vtu").write_text("damaged")
        (self.folder / "body.vtp").write_text("damaged")
        (self.folder / "shards/pieces/mesh_0001.vtu").write_text("damaged")
        (self.folder / "geo.mdlus").write_text("damaged")
        for i, (words, _) in enumerate(self.writers()):
            self.assert_fails(self.run_writer(words, f"new/below/{self.new_name(words, i)}"), 3)
            self.assertEqual(self.names(), present, str(words))

    def test_does_not_stay_on_a_full_disk(self):
        present = self.names()
        for i, (words, _) in enumerate(self.writers()):
            if "--nproc" in words:
                continue
            self.assert_fails(self.run_writer(words, f"new/below/{self.new_name(words, i)}", max_file_bytes=300), 3)
            self.assertEqual(self.names(), present, str(words))

    def test_below_a_file_or_where_nobody_may_write_is_refused_before_anything_is_read(self):
        (self.folder / "file").write_text("mine")
        for i, (words, _) in enumerate(self.writers()):
            self.assert_fails(self.run_writer(words, f"file/below/{self.new_name(words, i)}"), 3, "file", "cannot be made")
        if os.getuid() != 0:
            self.skipTest("only root can start a program as another user")
        os.chmod(self.folder, 0o755)
        for i, (words, _) in enumerate(self.writers()):
            for place in ("", "new/below/"):
                result = self.run_writer(words, f"{place}{self.new_name(words, i)}", user=65534)
                self.assert_fails(result, 3, "Choose")
        self.assertEqual((self.folder / "file").read_text(), "mine")


class RepeatedRun(Case):
    def test_without_a_step_or_a_checkpoint_says_what_becomes_of_it(self):
        put_training(self.folder)
        self.assert_good(self.meshard("train", "car.yaml", "training.max_steps=0", "run_id=none"))
        run = self.folder / "runs/car"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("run_id: car\n")
        (run / "metrics.jsonl").write_text('{"phase":"dataset"}\n')
        result = self.meshard("train", "car.yaml", "--nproc", 2, "training.max_steps=1")
        self.assert_good(result)
        self.assertEqual(result.err.count("no checkpoint"), 1, str(result))
        self.assertIn("begins anew", result.err)
        self.assertIn("runs/car", result.err)

    def test_with_steps_but_no_checkpoint_is_not_told_to_resume(self):
        put_training(self.folder)
        self.assert_good(self.meshard("train", "car.yaml", "training.max_steps=1"))
        shutil.rmtree(self.folder / "runs/car/checkpoints")
        result = self.meshard("train", "car.yaml")
        self.assert_fails(result, 3, "runs/car", "no checkpoint", "--overwrite")
        self.assertNotIn("--resume", result.err)
        again = self.meshard("train", "car.yaml", "--overwrite", "training.max_steps=1")
        self.assert_good(again)

    def test_in_a_new_folder_says_nothing(self):
        put_training(self.folder)
        self.assertNotIn("begins anew", self.meshard("train", "car.yaml", "training.max_steps=1").err)


class CapitalExtensions(Case):
    """Names from systems that write extensions in capitals are known as others are."""
    def test_are_read_and_written(self):
        write_body(self.folder / "a.vtp", (1, 0.4, 0.3))
        for words in (("convert", "a.vtp", "-o", "B.VTP"), ("convert", "B.VTP", "-o", "C.VTU"), ("convert", "C.VTU", "-o", "D.PVTU"), ("convert", "B.VTP", "-o", "E.PVTP"),
                      ("partition", "D.PVTU", "-n", 2, "-o", "shards"), ("merge", "shards", "-o", "F.VTU"), ("render", "E.PVTP", "-o", "G.PNG"),
                      ("predict", sample("runs") / "car", "E.PVTP", "-o", "H.PVTP"), ("predict", sample("runs") / "car", "E.PVTP", "-o", "I.VTP")):
            self.assert_good(self.meshard(*words))
        index = '<VTKFile type="vtkMultiBlockDataSet" version="1.0"><vtkMultiBlockDataSet><DataSet index="0" file="B.VTP"/></vtkMultiBlockDataSet></VTKFile>'
        (self.folder / "J.VTM").write_text(index)
        counts = [json.loads(self.meshard("info", name, "--json").out) for name in ("a.vtp", "B.VTP", "C.VTU", "D.PVTU", "E.PVTP", "F.VTU", "H.PVTP", "I.VTP", "J.VTM")]
        self.assertEqual(len({(one["num_cells"], one["num_points"]) for one in counts}), 1, counts)
        self.assertIn('type="PPolyData"', (self.folder / "E.PVTP").read_text())
