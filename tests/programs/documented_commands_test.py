# SPDX-License-Identifier: Apache-2.0
"""Every command line that README.md and docs/*.md show is run, on small data, in a folder of its own.

Commands are taken from the pages: all lines of ```bash blocks, and indented lines that begin with one of STARTERS. What a page calls car.vtp or shards/ is made by
the entry of that name in INPUTS. A page with a word that is not in these tables makes a test that fails and says what to add."""
import functools
import dataclasses
import functools
import re
import shlex
import shutil
import subprocess

from runner import PROGRAM, SOURCE, Case
from samples import copy_sample, put_flow, put_fronts, put_sea, put_training, put_vortices, sample, write_image, write_tensor

STARTERS = ("meshard", "mpirun", "torchrun", "srun", "bash")
VERBS = ("info", "partition", "repartition", "check", "merge", "convert", "interpolate", "derive", "prepare", "train", "predict", "generate", "evaluate", "report", "sweep", "export", "forces", "render", "probe", "bench")
MOST_RANKS = 4   # of mpirun: these tests run on two cores


def _put(name):
    return lambda folder, word: copy_sample(name, folder / word)


def _put_cases(folder, word):
    copy_sample("cases", folder / word)


def _put_run(folder, word):
    """A run and the cases that it knows."""
    copy_sample("runs/car", folder / word)
    copy_sample("cases", folder / "cases")


def _put_configuration(folder, word):
    put_training(folder)
    if word != "car.yaml":
        (folder / "car.yaml").rename(folder / word)


def _put_ahmed(folder, word):
    """The sample as it is; its own cases only where a command does not name others."""
    target = folder / word
    target.parent.mkdir(parents=True)
    shutil.copy(SOURCE / word, target)


def _put_probe(folder, word):
    """A TorchScript model of this repository, with an input for it."""
    shutil.copy(SOURCE / "tests/data/programs/unet.pt", folder / word)


def _put_flow(folder, word):
    """A configuration of grids and its cases, or a run of it."""
    if not (folder / "flows").exists():
        put_flow(folder)
    if word == "runs/flow":
        subprocess.run([PROGRAM, "train", "flow.yaml"], cwd=folder, check=True, capture_output=True)


def _put_sea(folder, word):
    """A configuration of grids with land, and its cases, or a run of it."""
    if not (folder / "seas").exists():
        put_sea(folder)
    if word == "runs/sea":
        subprocess.run([PROGRAM, "train", "sea.yaml"], cwd=folder, check=True, capture_output=True)


def _put_vortex(folder, word):
    """A configuration of simulations and three short ones, or a run of it."""
    if not (folder / "vortices").exists():
        put_vortices(folder)
    if word == "runs/vortex":
        subprocess.run([PROGRAM, "train", "vortex.yaml"], cwd=folder, check=True, capture_output=True)


def _put_front(folder, word):
    """A configuration of a denoiser and two short simulations, or a run of it."""
    if not (folder / "fronts").exists():
        put_fronts(folder, num_runs=2, num_states=4)
        (folder / "fronts/run_001.pvd").rename(folder / "fronts/run_009.pvd")
    if word == "runs/front":
        subprocess.run([PROGRAM, "train", "front.yaml"], cwd=folder, check=True, capture_output=True)


# What a command reads, by the name that pages give it.
INPUTS = {
    "car.vtp": _put("body.vtp"), "boundary_001.vtp": _put("body.vtp"), "my_car.stl": _put("body.stl"), "new.stl": _put("body.stl"), "car.stl": _put("body.stl"),
    "car.vtu": _put("box.vtu"), "huge.vtu": _put("box.vtu"), "volume.vtu": _put("box.vtu"), "raw.vtu": _put("box.vtu"), "t1.vtu": _put("box.vtu"),
    "tets.vtu": _put("box.vtu"), "apart.vtu": _put("box.vtu"), "coarse.vtu": _put("box.vtu"), "zlib.vtu": lambda folder, word: subprocess.run([PROGRAM, "convert", sample("box.vtu"), folder / word, "--compress", "zlib"], check=True, capture_output=True),
    "shards/": _put("shards"), "shards": _put("shards"), "motorBike/": _put("motorBike"),
    "runs/ahmed": _put_run, "runs/car": _put_run, "runs/seed1": _put_run, "runs/seed2": _put_run, "runs/seed3": _put_run,
    "apps/sample/ahmed.yaml": _put_ahmed, "cases": _put_cases, "my_case.yaml": _put_configuration, "car.yaml": _put_configuration,
    "GeoTransolver.mdlus": _put("geo.mdlus"), "GeoTransolver.0.501.mdlus": _put("geo.mdlus"),
    "my_car.vtp": _put("predicted.vtp"), "weather.vti": lambda folder, word: write_image(folder / word),
    "StormScope.mdlus": lambda folder, word: shutil.copy(SOURCE / "tests/data/fixtures/checkpoints/stormscope_a/model.mdlus", folder / word),
    "sea.yaml": _put_sea, "runs/sea": _put_sea, "seas/sea_1.vti": _put_sea,
    "flow.yaml": _put_flow, "runs/flow": _put_flow, "flows/flow_1.vti": _put_flow,
    "vortex.yaml": _put_vortex, "runs/vortex": _put_vortex, "vortices/run_009.pvd": _put_vortex,
    "front.yaml": _put_front, "runs/front": _put_front, "fronts/run_009.pvd": _put_front,
    "unet.pt": _put_probe, "model.pt": _put_probe, "x.safetensors": lambda folder, word: write_tensor(folder / word, "input", [2, 3, 16, 16]),
}
# What a command writes: it must be there afterwards. A word that follows one of these options is an output too, and so is the last word of `convert`.
OUTPUT_OPTIONS = ("-o", "--output", "--preview")
# Words that look like paths and are none.
OTHER_WORDS = ("boundary/motorBike",)
# Large meshes and long measurements, in small: what is replaced, by what.
IN_SMALL = {"tets:1000000": "tets:600", "hybrid:1000000": "hybrid:600", "graded:1000000": "graded:600", "surface:1000000": "surface:600",
            "tets:250000": "tets:600", "hybrid:250000": "hybrid:600", "graded:250000": "graded:600", "surface:250000": "surface:600",
            "--points 20000": "--points 2000"}
# Commands that are not run, with the reason. They are checked: bash understands them, their script exists, its options stand in its help.
NOT_RUN = {
    "meshard export runs/car car.onnx": "tests/python/export_test.py does it, with the package `meshard`",
    "bash apps/quickstart.sh": "takes minutes, and builds",
    "bash tests/run.sh": "runs all tests, this one too",
    "bash apps/setup.sh --cuda": "installs packages",
    "cmake --preset gpu": "needs a GPU",
    "cmake --build build/gpu": "takes minutes",
    "ctest --test-dir build/gpu -L gpu": "needs a GPU",
    "bash tests/gpu/run.sh pack": "builds",
    "bash tests/gpu/run.sh --phase tests": "needs a GPU",
    "bash tests/gpu/run.sh --phase figures": "needs a GPU",
    "bash tests/gpu/run.sh --phase python": "needs a GPU",
    "bash tests/gpu/run.sh --device cpu --short": "the test gpu.DryRun does it",
    "build/gpu/bin/meshard bench model --device cuda --points 1000000 --hidden 128 --heads 8": "needs a GPU",
    "export PATH=$PWD/build/release/bin:$PATH": "the tests know where the program is",
    "bash apps/setup.sh": "installs packages",
    "bash apps/install/wheel.sh": "tests/python/bare_system_test.py does it",
    "MESHARD_BUILD=~/venv bash apps/quickstart.sh --no-setup": "tests/python/bare_system_test.py does it",
    "bash apps/install/wheel.sh --cuda": "takes gigabytes, and builds",
    "python3 -m venv ~/venv && ~/venv/bin/pip install build/wheels/cpu/meshard-*-cp311-*.whl": "tests/python/bare_system_test.py does it",
    "export PATH=~/venv/bin:$PATH": "tests/python/bare_system_test.py does it",
    "cmake --preset release && cmake --build build/release": "takes minutes",
    "cmake --install build/release --prefix ~/meshard": "tests/apps/install does it",
    "cd build/release && cpack -G DEB": "tests/apps/install does it",
    "sudo apt install ./meshard_*_amd64.deb": "installs packages",
    "sudo bash /usr/share/meshard/setup.sh": "tests/apps/install does it",
    "python3 -m venv ~/venv && ~/venv/bin/pip install torch==2.11.0": "takes gigabytes",
    "export MESHARD_TORCH=~/venv/lib/python3.11/site-packages/torch": "tests/apps/install does it",
}

# Pages whose commands are checked likewise, but not run, with the reason.
PAGES_NOT_RUN = {"docs/accuracy.md": "each trains for minutes, most on data that a clone does not have"}


@dataclasses.dataclass(frozen=True)
class Command:
    page: str
    line: int
    text: str     # without its comment


def without_comment(line):
    return re.sub(r"\s+#\s.*$", "", line).strip()


def commands_of(page):
    """Commands that a page shows, in order."""
    found, fence, begun = [], None, ""
    for number, line in enumerate((SOURCE / page).read_text().splitlines(), 1):
        line, begun = begun + (line.lstrip() if begun else line), ""
        if line.endswith(" \\"):   # goes on in the next line
            begun = line[:-1]
            continue
        if line.startswith("```"):
            fence = None if fence is not None else line[3:].strip()
            continue
        words = line.split()
        is_shown = fence == "bash" or (fence is None and line.startswith("    ") and words and words[0] in STARTERS)
        if is_shown and words and not line.strip().startswith("#"):
            found.append(Command(page, number, without_comment(line)))
    return found


def all_commands():
    pages = ["README.md", *sorted(f"docs/{path.name}" for path in (SOURCE / "docs").glob("*.md"))]
    return {command.text: command for page in reversed(pages) for command in reversed(commands_of(page))}.values()


def looks_like_a_path(word):
    return "/" in word or re.search(r"[A-Za-z0-9]\.[a-z][a-z0-9]+$", word) is not None


def pieces_of(text):
    """The commands that && joins, each as its words."""
    return [shlex.split(piece) for piece in text.split("&&")]


class DocumentedCommand(Case):
    """One test for each command; `test_...` are made below."""

    def run_documented(self, command):
        where = f"{command.page}:{command.line}: {command.text}"
        if command.text in NOT_RUN or command.page in PAGES_NOT_RUN:
            return self.check_only(command, where)
        text = command.text
        for large, small in IN_SMALL.items():
            text = text.replace(large, small)
        outputs = []
        for words in pieces_of(text):
            self.prepare(words, where, outputs)
        for words in pieces_of(text):
            result = self.run_words(*self.as_started_here(words, where), limit=self.timeout - 10)
            self.assertEqual(result.code, 0, f"{where}\n{result}\nIf the page is right, see the tables of {__file__}: is an input missing there?")
        for name in outputs:
            self.assertTrue((self.folder / name).exists(), f"{where} wrote no {name}")

    def prepare(self, words, where, outputs):
        """Makes the inputs of a command in the test's folder."""
        verb = next((word for word in words if word in VERBS), None)
        before = ""
        for i, word in enumerate(words):
            is_output = before in OUTPUT_OPTIONS or (verb == "convert" and [w for w in words if not w.startswith("-")][3:4] == [word] and words.index(word) == i)
            value = word.partition("=")[2] if "=" in word else word
            before = word
            if is_output:
                outputs.append(word)
            elif value in INPUTS:
                if not (self.folder / value).exists():
                    INPUTS[value](self.folder, value)
            elif looks_like_a_path(value) and value not in OTHER_WORDS and value not in outputs and "*" not in value:
                self.fail(f"{where}: nothing is known of '{value}'. Add it to INPUTS in {__file__}, with what makes a small one, or to OTHER_WORDS if it is no path.")

    def as_started_here(self, words, where):
        words = [str(PROGRAM) if word == "meshard" else word for word in words]
        if words[0] == "mpirun":
            self.needs("mpirun")
            at = words.index("-np") + 1
            words[at] = str(min(MOST_RANKS, int(words[at])))
        elif words[0] != str(PROGRAM):
            self.fail(f"{where}: these tests do not know '{words[0]}'. Add the command to NOT_RUN in {__file__} with the reason, or teach as_started_here to run it.")
        return words

    def check_only(self, command, where):
        self.assertEqual(subprocess.run(["bash", "-n", "-c", command.text]).returncode, 0, where)
        words = shlex.split(command.text)
        if words[0] == "bash":
            script = SOURCE / words[1]
            self.assertEqual(subprocess.run(["bash", "-n", script]).returncode, 0, where)
            if words[2:]:
                text = subprocess.run(["bash", script, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
                for word in words[2:]:
                    self.assertIn(word, text, where)
        elif words[0] == "cmake" and "--preset" in words:
            self.assertIn(f'"name": "{words[words.index("--preset") + 1]}"', (SOURCE / "CMakePresets.json").read_text(), where)
        elif words[0].endswith("meshard"):
            check_options(self, words[1:], where)


@functools.cache
def help_of(*words):
    return subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True).stdout


def check_options(case, words, where):
    """The verb is there, and its help knows every option."""
    case.assertIn(words[0], VERBS, where)
    text = help_of(words[0])
    if words[0] == "bench":   # with some that have options of their own
        text += "".join(help_of("bench", what) for what in ("partition", "data"))
    for word in words[1:]:
        if re.match(r"--?[a-z]", word):
            case.assertRegex(text, rf"(?m)(^|[ ,]){re.escape(word.partition('=')[0])}\b", f"{where}: `meshard {words[0]} --help` has no {word}")


def _test_of(command):
    return lambda self: self.run_documented(command)


for _command in all_commands():
    _page = _command.page.rpartition("/")[2].removesuffix(".md").lower()
    _name = "_".join(re.findall(r"[a-z0-9]+", _command.text.lower()))
    _method = f"test_{_page}_{_name}"[:100]
    while hasattr(DocumentedCommand, _method):
        _method += "_too"
    setattr(DocumentedCommand, _method, _test_of(_command))


class DocumentedWords(Case):
    def test_name_verbs_and_options_that_exist(self):
        """`meshard VERB --option` within a sentence."""
        count = 0
        for page in ["README.md", "apps/sample/README.md", *(f"docs/{path.name}" for path in (SOURCE / "docs").glob("*.md"))]:
            if page.endswith("changelog.md"):   # tells of earlier versions, too
                continue
            for span in re.findall(r"`meshard ([a-z][^`]*)`", (SOURCE / page).read_text()):
                words = re.sub(r"[\[\]|]", " ", span).split()
                check_options(self, words, f"{page}: `meshard {span}`")
                count += 1
        self.assertGreater(count, 30)

    def test_name_this_version(self):
        """What pages ask find_package for, and the changelog's newest section."""
        version = self.meshard("--version").out.split()[1]
        for page in ("docs/install.md", "docs/examples/CMakeLists.txt"):
            asked = re.findall(r"find_package\(meshard ([\d.]+)", (SOURCE / page).read_text())
            self.assertEqual(asked, [version.rpartition(".")[0]], page)
        newest = re.search(r"(?m)^## (\S+)", (SOURCE / "docs/changelog.md").read_text())
        self.assertIn(newest[1], (version, "Unreleased"))

    def test_are_all_shown_commands(self):
        """The extraction finds what it should; a page that is written in another way would be tested by nobody."""
        commands = list(all_commands())
        self.assertGreater(len(commands), 40)
        for verb in VERBS:
            self.assertTrue(any(re.search(rf"\bmeshard\s+{verb}\b", command.text) for command in commands), f"no page shows `meshard {verb}`")
        for text in NOT_RUN:
            self.assertIn(text, [command.text for command in commands], "NOT_RUN names a command that no page shows")
