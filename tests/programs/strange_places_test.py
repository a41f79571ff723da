# SPDX-License-Identifier: Apache-2.0
"""Odd names, missing and read-only folders, closed streams, more ranks than parts: what people do without meaning to."""
import json
import os
import pwd
import signal
import stat
import subprocess

from runner import PROGRAM, SOURCE, Case
from samples import copy_sample, put_training, sample, write_body


class OddNames(Case):
    def setUp(self):
        super().setUp()
        self.odd = self.folder / "my cars, größer 100% (été) 'a' $b"
        self.odd.mkdir()

    def test_of_meshes_and_shards(self):
        copy_sample("box.vtu", self.odd / "würfel & co.vtu")
        at = dict(cwd=self.odd)
        self.assert_good(self.meshard("partition", "würfel & co.vtu", "-n", 3, "-o", "neue teile", **at))
        self.assert_good(self.meshard("check", "neue teile", **at))
        self.assert_good(self.meshard("merge", self.odd / "neue teile", "-o", "zurück.vtu", "--verify", "./würfel & co.vtu", **at))
        self.assert_good(self.meshard("repartition", "./neue teile/", "-n", 2, "-o", "../andere teile", **at))
        self.assert_good(self.meshard("convert", "neue teile", "index #1.pvtu", **at))
        self.assert_good(self.meshard("convert", "index #1.pvtu", "ganz.vtkhdf", **at))
        self.assert_good(self.meshard("render", "neue teile", "-o", "bild ü.png", "--color-by", "PartitionId", **at))
        self.assertTrue(all(not name.startswith(".") for name in self.names(self.odd)))

    def test_of_runs(self):
        put_training(self.odd)
        at = dict(cwd=self.odd)
        self.assert_good(self.meshard("train", "car.yaml", "--nproc", 2, "output_dir=meine läufe: 1", "run_id=a b, c", "data.shards=sh ü", **at))
        run = "meine läufe: 1/a b, c"
        self.assert_good(self.meshard("train", "--resume", run, "training.num_epochs=3", **at))
        self.assert_good(self.meshard("predict", run, "cases/run_1/boundary_1.vtp", "-o", "neu ü/car 1.vtp", "--nproc", 2, **at))
        self.assert_good(self.meshard("forces", "neu ü/car 1.vtp", "--pressure", "pressure", "--shear", "wss", **at))

    def test_of_a_run_that_was_moved(self):
        put_training(self.folder)
        self.assert_good(self.meshard("train", "car.yaml"))
        (self.folder / "runs/car").rename(self.odd / "moved run")
        self.assert_good(self.meshard("train", "--resume", self.odd / "moved run", "training.num_epochs=3"))
        self.assert_good(self.meshard("predict", "moved run/", "../cases/run_1/boundary_1.vtp", "-o", "../new.vtp", cwd=self.odd))
        self.assertFalse((self.folder / "runs/car").exists())

    def test_that_look_like_options(self):
        copy_sample("box.vtu", self.folder / "-box.vtu")
        self.assert_good(self.meshard("info", "./-box.vtu"))
        self.assert_good(self.meshard("info", "--", "-box.vtu"))

    def test_with_control_characters_do_not_steer_the_terminal(self):
        image = self.folder / "colours.vti"
        image.write_text('<VTKFile type="ImageData" byte_order="LittleEndian"><ImageData WholeExtent="0 1 0 1 0 0" Origin="0 0 0" Spacing="1 1 1">'
                         '<Piece Extent="0 1 0 1 0 0"><CellData><DataArray type="Float32" Name="red\x1b[31m" format="ascii">1</DataArray></CellData></Piece></ImageData></VTKFile>')
        self.assertIn("red\\x1b[31m", self.meshard("info", image).out)
        self.assert_fails(self.meshard("info", "no\x1b[2Jfile.vtu"), 3, "no\\x1b[2Jfile.vtu")

    def test_of_the_programs_folder_and_links_to_it(self):
        (self.folder / "bin dir").mkdir()
        (self.folder / "bin dir/meshard").symlink_to(PROGRAM)
        self.assert_good(self.run_words(self.folder / "bin dir/meshard", "bench", "--points", 100, "--repeats", 1, "--nproc", 2))
        self.assert_good(self.run_words("bash", "-c", "meshard bench --points 100 --repeats 1 --nproc 2", environment={"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}))


class MissingThings(Case):
    def test_are_named(self):
        for words in (["info", "no.vtu"], ["partition", "no.vtu", "-n", 2, "-o", "s"], ["check", "no"], ["merge", "no", "-o", "a.vtu"], ["forces", "no.vtp"],
                      ["convert", "no.vtu", "a.vtu"], ["interpolate", "no.vtu", "no.vtu", "-o", "a.vtu"], ["derive", "no.vtu", "--gradient", "p", "-o", "a.vtu", "--nproc", 2],
                      ["repartition", "no", "-n", 2, "-o", "s"], ["render", "no.vtp", "-o", "a.png"], ["train", "no.yaml"],
                      ["train", "--resume", "no"], ["predict", "no", "a.vtp", "-o", "b.vtp"], ["predict", "no", "a.vtp", "-o", "b.vtp", "--nproc", 2],
                      ["probe", "no.pt", "--input", "x.safetensors", "--shard", 1]):
            result = self.meshard(*words)
            self.assert_fails(result, 3, "no")
            self.assertEqual(self.names(), [], str(result))

    def test_of_a_configuration_are_named(self):
        put_training(self.folder)
        self.assert_fails(self.meshard("train", "car.yaml", "data.root=nowhere"), 3, "nowhere")
        self.assert_fails(self.meshard("train", "car.yaml", "data.cases=nothing.json", "--nproc", 2), 3, "nothing.json")
        self.assert_fails(self.meshard("train", "car.yaml", "training.init=no.safetensors", "--nproc", 2, "--validate"), 3, "no.safetensors")
        self.assert_fails(self.meshard("train", "cases"), 3, "cases")

    def test_of_files_that_are_none_are_named(self):
        put_training(self.folder)
        (self.folder / "loop.vtu").symlink_to("loop.vtu")
        os.mkfifo(self.folder / "pipe.yaml")
        self.assert_fails(self.meshard("info", "loop.vtu"), 3, "'loop.vtu': Too many levels of symbolic links")
        with open(os.open(self.folder / "pipe.yaml", os.O_RDWR), "wb"):   # so that opening it does not wait
            self.assert_fails(self.meshard("train", "pipe.yaml"), 3, "pipe.yaml is no file but a stream")

    def test_of_standard_input_do_no_harm(self):
        copy_sample("box.vtu", self.folder / "box.vtu")
        put_training(self.folder)
        closed = dict(closed=[0])
        self.assert_good(self.meshard("partition", "box.vtu", "-n", 2, "-o", "shards", **closed))
        self.assert_good(self.meshard("train", "car.yaml", "--nproc", 2, **closed))

    def test_of_all_streams_do_no_harm(self):
        """A file that is opened must not become a closed stream's successor: messages would end up in it."""
        put_training(self.folder)
        body = self.folder / "cases/run_1/boundary_1.vtp"
        closed = dict(closed=[0, 1, 2])
        self.meshard("train", "car.yaml", "--nproc", 2, **closed)
        self.meshard("predict", "runs/car", body, "-o", "quiet.vtp", **closed)
        self.assert_good(self.meshard("predict", "runs/car", body, "-o", "new.vtp"))
        self.assertEqual((self.folder / "quiet.vtp").read_bytes(), (self.folder / "new.vtp").read_bytes())
        for line in (self.folder / "runs/car/metrics.jsonl").read_text().splitlines():
            self.assertTrue(line.startswith('{"phase"'), line)

    def test_of_standard_error_do_no_harm(self):
        put_training(self.folder)
        self.assert_good(self.meshard("train", "car.yaml", closed=[2]))
        for line in (self.folder / "runs/car/metrics.jsonl").read_text().splitlines():
            self.assertTrue(line.startswith('{"phase"'), line)

    def test_of_a_temporary_folder_are_named(self):
        put_training(self.folder)
        self.assert_fails(self.meshard("train", "car.yaml", "--nproc", 2, environment={"TMPDIR": str(self.folder / "nowhere")}), 3, "TMPDIR")


class ReadOnly(Case):
    """As another user, for the administrator may write everywhere."""

    def setUp(self):
        super().setUp()
        self.user = {}
        if os.getuid() == 0:
            try:
                nobody = pwd.getpwnam("nobody").pw_uid
            except KeyError:
                self.skipTest("there is no user nobody")
            # The folder below which the tests' folders lie must be open to all, and the program, too.
            self.folder.chmod(0o755)
            try:
                if subprocess.run([PROGRAM, "--version"], user=nobody, capture_output=True, stdin=subprocess.DEVNULL).returncode != 0:
                    raise PermissionError
                if subprocess.run(["ls", self.folder], user=nobody, capture_output=True).returncode != 0:
                    raise PermissionError
            except PermissionError:
                self.skipTest(f"the user nobody may not run {PROGRAM}")
            self.user = dict(user=nobody)
        put_training(self.folder)
        for name in ("box.vtu", "body.vtp", "shards", "runs"):
            copy_sample(name, self.folder / name)
        for path in [self.folder, *self.folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        self.addCleanup(self.allow)

    def allow(self):
        for path in [self.folder, *self.folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)

    def test_folders_are_named(self):
        for words in (["partition", "box.vtu", "-n", 2, "-o", "new"], ["merge", "shards", "-o", "back.vtu"], ["convert", "box.vtu", "out.vtu"],
                      ["convert", "shards", "out.pvtu"], ["convert", "shards", "out.vtkhdf"], ["render", "body.vtp", "-o", "a.png"],
                      ["interpolate", "box.vtu", "body.vtp", "-o", "out.vtp"], ["derive", "box.vtu", "--gradient", "p", "-o", "out.vtu", "--nproc", 2],
                      ["repartition", "shards", "-n", 2, "-o", "new"], ["train", "car.yaml", "run_id=new"], ["train", "car.yaml", "run_id=new", "--nproc", 2],
                      ["train", "car.yaml", "--overwrite"], ["train", "--resume", "runs/car", "training.num_epochs=3"],
                      ["predict", "runs/car", "body.vtp", "-o", "new.vtp"], ["predict", "runs/car", "body.vtp", "-o", "new/new.vtp", "--nproc", 2],
                      ["predict", "runs/car", "body.vtp", "-o", "new.pvtp", "--nproc", 2]):
            with self.subTest(" ".join(map(str, words))):
                result = self.meshard(*words, **self.user)
                self.assertEqual(result.code, 3, str(result))
                self.assertTrue(result.err.splitlines()[-1].startswith("meshard"), str(result))
                self.assertRegex(result.err, "(?i)permission|may write|written")

    def test_inputs_are_no_fault(self):
        self.assert_good(self.meshard("check", "shards", **self.user))
        self.assert_good(self.meshard("info", "box.vtu", **self.user))


class Streams(Case):
    def test_to_a_pipe_that_is_closed_early(self):
        for verb in ("info box.vtu --json", "train --list-keys", "partition --help"):
            copy_sample("box.vtu", self.folder / "box.vtu")
            result = self.run_words("bash", "-c", f"set -o pipefail; '{PROGRAM}' {verb} | head -n 1")
            self.assertIn(result.code, (0, 128 + signal.SIGPIPE), str(result))
            self.assertEqual(result.err, "")

    def test_of_several_ranks_to_a_closed_pipe(self):
        copy_sample("box.vtu", self.folder / "box.vtu")
        folder = self.folder / "temporary"
        folder.mkdir()
        for also in ("", "2>&1"):
            result = self.run_words("bash", "-c", f"set -o pipefail; TMPDIR='{folder}' '{PROGRAM}' derive box.vtu --gradient p -o new.vtu --nproc 2 {also} | true")
            self.assertIn(result.code, (0, 128 + signal.SIGPIPE), str(result))
            self.assertEqual(result.err, "")
            self.assertEqual(list(folder.iterdir()), [])

    def test_to_dev_null_as_output_file(self):
        result = self.meshard("convert", sample("box.vtu"), "/dev/null")
        self.assert_fails(result, 3, "/dev/null is no file but a device")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    def test_to_dev_null(self):
        self.assert_good(self.run_words("bash", "-c", f"'{PROGRAM}' info '{sample('box.vtu')}' >/dev/null 2>&1 </dev/null"))

    def test_of_messages_that_nobody_reads(self):
        put_training(self.folder)
        self.assert_good(self.run_words("bash", "-c", f"set -o pipefail; '{PROGRAM}' train car.yaml --nproc 2 training.num_epochs=40 2>&1 | head -n 1"))
        self.assertTrue((self.folder / "runs/car/checkpoints/last.safetensors").exists())


class Mistypes(Case):
    def test_of_a_value_for_predict_are_named(self):
        run = sample("runs") / "geo"
        words = ("predict", run, sample("body.vtp"), "-o", "new.vtp", "--set", "rho=1.2")
        self.assert_good(self.meshard(*words, "--set", "speed=30"))
        self.assert_fails(self.meshard(*words, "--set", "sped=30"), 2, "--set sped", "rho, speed")
        self.assert_fails(self.meshard(*words), 2, "--set speed=")
        self.assert_fails(self.meshard("predict", sample("runs") / "car", sample("body.vtp"), "-o", "b.vtp", "--set", "length=2"), 2, "no such value")

    def test_of_the_number_of_ranks_are_short(self):
        result = self.meshard("bench", "--nproc", 0)
        self.assert_fails(result, 2, "0 is not above 0")
        self.assertLess(len(result.err), 100)

    def test_of_the_time_limit_are_named(self):
        put_training(self.folder)
        for limit in ("0", "-5", "soon", "1.5", "99999999999", "1000001"):
            for ranks in ((), ("--nproc", 2)):
                result = self.meshard("train", "car.yaml", *ranks, environment={"MESHARD_TIMEOUT_SECONDS": limit})
                self.assert_fails(result, 2, f"MESHARD_TIMEOUT_SECONDS is '{limit}', expected a whole number of seconds from 1 to 1000000.")
                self.assertNotIn("torchrun", result.err)
        self.assertFalse((self.folder / "runs").exists())

    def test_of_ports_are_named(self):
        put_training(self.folder)
        for port in ("http", "0", "99999"):
            environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            self.assert_fails(self.meshard("train", "car.yaml", environment=environment), 2, f"tcp://127.0.0.1:{port} must be a number from 1 to 65535")

    def test_of_numbers_name_their_bounds(self):
        put_training(self.folder)
        copy_sample("box.vtu", self.folder / "box.vtu")
        most = 2**31 - 1
        for words, text in ((("partition", "box.vtu", "-o", "cut", "-n", "99999999999"), f"--num-parts is '99999999999'; expected a whole number of at most {most}."),
                            (("partition", "box.vtu", "-o", "cut", "-n", "99999999999999999999"), f"'99999999999999999999'; expected a whole number of at most {most}."),
                            (("partition", "box.vtu", "-o", "cut", "-n", "2.5"), f"--num-parts is '2.5'; expected a whole number of at most {most}."),
                            (("partition", "box.vtu", "-o", "cut", "-n", "two"), "--num-parts is 'two'; expected a number."),
                            (("train", "car.yaml", "--nproc", "99999999999"), f"--nproc is '99999999999'; expected a whole number of at most {most}."),
                            (("bench", "--points", "99999999999999999999"), f"expected a whole number of at most {2**63 - 1}."),
                            (("train", "car.yaml", "seed=99999999999"), "'99999999999'; expected a whole number from 0 to 1000000000")):
            self.assert_fails(self.meshard(*words), 2, text)

    def test_of_a_key_twice_are_refused(self):
        put_training(self.folder)
        text = (self.folder / "car.yaml").read_text()
        for change, expected in (((text + "seed: 1\nseed: 2\n"), "car.yaml:13:1: seed stands twice, here and at car.yaml:12:1"),
                                 ((text + "training: {max_steps: 1}\n"), "car.yaml:12:1: training stands twice, here and at car.yaml:11:1"),
                                 (text.replace("{num_epochs: 2}", "{num_epochs: 2, num_epochs: 3}"), "training.num_epochs stands twice"),
                                 (text.replace("  root: cases\n", "  root: cases\n  cases: other.json\n"), "car.yaml:6:3: data.cases stands twice, here and at car.yaml:4:3")):
            (self.folder / "car.yaml").write_text(change)
            self.assert_fails(self.meshard("train", "car.yaml"), 2, expected)
        self.assertFalse((self.folder / "runs").exists())

    def test_of_tabs_are_named(self):
        put_training(self.folder)
        text = (self.folder / "car.yaml").read_text()
        for change, line in ((text.replace("  surface", "\tsurface"), 4), (text.replace("  surface", "  \tsurface"), 4), (text.replace("    pressure", "\t\tpressure"), 8)):
            (self.folder / "car.yaml").write_text(change)
            self.assert_fails(self.meshard("train", "car.yaml"), 2, f"car.yaml:{line}: the line is indented by a tab; YAML wants spaces.")

    def test_of_a_field_are_not_passed_over(self):
        put_training(self.folder)
        self.assert_fails(self.meshard("train", "car.yaml", "data.fields.pressure=nope"), 3, "nope")


class ManyRanks(Case):
    def test_than_parts(self):
        put_training(self.folder)
        """Then ranks have nothing of a case, and all the same results."""
        losses = []
        for words in (("--nproc", 4, "data.parts=2"), ()):
            self.assert_good(self.meshard("train", "car.yaml", "--overwrite", *words))
            losses.append(json.loads((self.folder / "runs/car/metrics.jsonl").read_text().splitlines()[-1])["loss"])
        self.assertAlmostEqual(losses[0], losses[1], delta=1e-3 * losses[1])

    def test_than_cells(self):
        write_body(self.folder / "cube.vtp", n=1)   # six cells
        run = sample("runs") / "car"
        result = self.meshard("predict", run, "cube.vtp", "-o", "new.vtp", "--nproc", 8)
        self.assertIn(result.code, (0, 2, 3), str(result))
        self.assertEqual(self.names(), ["cube.vtp"] if result.code else ["cube.vtp", "new.vtp"], str(result))
        self.assert_fails(self.meshard("partition", "cube.vtp", "-n", 7, "-o", "shards"), 2, "7")

    def test_of_no_sensible_number(self):
        for number in ("0", "-1", "two", "1e9"):
            self.assertEqual(self.meshard("bench", "--nproc", number).code, 2)
