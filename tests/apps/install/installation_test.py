# SPDX-License-Identifier: Apache-2.0
"""What a build installs, as a user gets it: `installation_test.py Installed.NAME...`. Each test stands for itself but for the two that make what the others look at:
Installed.test_tree and Package.test_package. The environment names the build, its tools, and a folder to work in (CMakeLists.txt)."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["INSTALLATION_BUILD"])
WORK = pathlib.Path(os.environ["INSTALLATION_WORK"])
CMAKE = os.environ["INSTALLATION_CMAKE"]
COMPILER = os.environ["INSTALLATION_COMPILER"]
LAUNCHER = os.environ["INSTALLATION_LAUNCHER"]   # of the compiler, or empty
TORCH = os.environ["INSTALLATION_TORCH"]         # the folder `torch` of LibTorch's wheel; empty for a build without it
TREE = WORK / "tree"
PACKAGE = WORK / "package"
EXTRACTED = WORK / "extracted"
MESH = SOURCE / "apps/sample/boundary_003.vtp"
SKIPPED = 77


def run(*words, cwd=WORK, **variables):
    """Under nothing that may stand for what is not installed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHARD_") and name not in ("LD_LIBRARY_PATH", "VIRTUAL_ENV", "CMAKE_PREFIX_PATH")}
    environment.update(OMP_NUM_THREADS="1", **variables)
    return subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)


class Case(unittest.TestCase):
    maxDiff = None

    def succeed(self, *words, **options):
        result = run(*words, **options)
        self.assertEqual(result.returncode, 0, f"{' '.join(map(str, words))}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}")
        return result.stdout

    def fail_with(self, code, *words, **options):
        """The sentence on standard error, which is all that is printed."""
        result = run(*words, **options)
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (code, "", 1), result.stderr[-4000:])
        return result.stderr

    def empty_folder(self, name):
        folder = WORK / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def configure(self, folder, prefix, *options, code=0):
        result = run(CMAKE, "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={COMPILER}",
                     f"-DCMAKE_CXX_COMPILER_LAUNCHER={LAUNCHER}", *options)
        self.assertEqual(result.returncode, code, result.stdout[-2000:] + result.stderr[-4000:])
        return " ".join(result.stderr.split())   # CMake breaks lines

    def build(self, folder, prefix, *options):
        self.configure(folder, prefix, *options)
        self.succeed(CMAKE, "--build", folder / "build")
        return folder / "build"

    def check_cutting(self, program, folder):
        self.succeed(program / "meshard", "partition", MESH, "-n", 3, "-o", folder / "shards")
        self.succeed(program / "meshard", "check", folder / "shards")
        self.succeed(program / "meshard", "merge", folder / "shards", "-o", folder / "back.vtp", "--verify", MESH)

    def check_program_of_ones_own(self, folder, prefix):
        """Of the example that needs io alone, where there is no LibTorch; checked by the program that was installed with it."""
        examples = self.empty_folder(folder)
        for name in ("CMakeLists.txt", "cut_mesh.cpp"):
            shutil.copy(prefix / "share/doc/meshard/examples" / name, examples)
        built = self.build(examples, prefix, "-DCMAKE_DISABLE_FIND_PACKAGE_TorchWheel=ON")
        self.assertEqual([line.split()[:4] for line in self.succeed(built / "cut_mesh", MESH, 3, examples / "shards").splitlines()],
                         [["Subdomain", str(part), "of", "3:"] for part in range(3)])
        self.succeed(prefix / "bin/meshard", "check", examples / "shards")
        self.succeed(prefix / "bin/meshard", "merge", examples / "shards", "-o", examples / "back.vtp", "--verify", MESH)


class Installed(Case):
    def test_tree(self):
        """Made at one place and moved to another, where all the other tests find it."""
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        self.succeed(CMAKE, "--install", BUILD, "--prefix", WORK / "first")
        (WORK / "first").rename(TREE)

    def test_programs(self):
        self.check_cutting(TREE / "bin", self.empty_folder("programs"))
        if TORCH:
            self.assertIn("model.name", self.succeed(TREE / "bin/meshard", "train", "--list-keys"))
            self.assertIn("meshard", self.succeed(TREE / "bin/meshard-models", "--version"))

    def test_own_program_without_torch(self):
        self.check_program_of_ones_own("own_program", TREE)

    def test_refusals_of_find_package(self):
        folder = self.empty_folder("refusals")

        def refusal(components, *options):
            (folder / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.25)\nproject(own LANGUAGES CXX)\nfind_package(meshard {components})\n")
            return self.configure(folder, TREE, *options, code=1)

        self.assertRegex(refusal("REQUIRED COMPONENTS io mesh"), "no component 'mesh'. It was built with: partition io")
        version = self.succeed(TREE / "bin/meshard", "--version").split()[1]
        major, minor, _ = version.split(".")
        for other in ("0.1", f"{major}.{int(minor) + 1}"):
            self.assertIn(f"version: {version}", refusal(f"{other} REQUIRED"))
        if TORCH:
            self.assertRegex(refusal("REQUIRED", "-DCMAKE_DISABLE_FIND_PACKAGE_TorchWheel=ON"), "needs LibTorch. Set MESHARD_TORCH or -DTORCH_ROOT")
            other = folder / "torch"
            (other / "lib").mkdir(parents=True)
            (other / "lib/libtorch_cpu.so").touch()
            (other / "version.py").write_text("__version__ = '2.%d.0'\n" % (11 if "2.15" in (pathlib.Path(TORCH) / "version.py").read_text() else 15))
            self.assertRegex(refusal("REQUIRED", "-DCMAKE_DISABLE_FIND_PACKAGE_TorchWheel=OFF", f"-DTORCH_ROOT={other}"), r"LibTorch in .* is 2\.1\d\.0, and meshard's component '\w+' was built with 2\.1")

    def test_headers(self):
        """None includes what is not installed; those of partition and io compile each alone. Of the others, examples include some first."""
        root = TREE / "include/meshard"
        headers = sorted(header.relative_to(root) for header in root.rglob("*.h"))
        missing = [f"{header} includes {name}" for header in headers for name in re.findall(r'^\s*#\s*include "([^"]+)"', (root / header).read_text(), re.MULTILINE)
                   if not (root / name).is_file()]
        self.assertEqual(missing, [])
        alone = [header for header in headers if header.parts[0] in ("partition", "io")]
        self.assertGreater(len(alone), 60)
        folder = self.empty_folder("headers")
        # The language's own headers, which take most of the time, once for all.
        system = sorted({name for header in alone for name in re.findall(r"^#include <(.+)>$", (root / header).read_text(), re.MULTILINE)})
        (folder / "system.h").write_text("".join(f"#include <{name}>\n" for name in system))
        flags = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", root, "-x")
        self.succeed(COMPILER, *flags, "c++-header", folder / "system.h", "-o", folder / "system.h.gch")

        def compile_alone(header):
            source = folder / f"{'_'.join(header.parts)}.cpp"
            source.write_text(f'#include "{header}"\n')
            return run(COMPILER, *flags, "c++", "-fsyntax-only", "-Winvalid-pch", "-include", folder / "system.h", source).stderr

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            self.assertEqual([error for error in pool.map(compile_alone, alone) if error], [])

    @unittest.skipUnless(TORCH, "a build without LibTorch")
    def test_examples(self):
        """As they lie in the tree, all of them. A linker that drops libraries of which nothing is called must leave the rules of operators."""
        folder = self.empty_folder("examples")
        shutil.copytree(TREE / "share/doc/meshard/examples", folder, dirs_exist_ok=True)
        built = self.build(folder, TREE, "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed")
        for name, expected in (("seam", "wrong without communication: 31 32\n.*without communication: [1-9][0-9.]*\n.*with it: 0\n"),
                               ("own_rule", "bytes that rank 0 received: 32\nerror: 0, of the gradient: 0\n"),
                               ("own_model", "loss after 50 steps: 0.[0-9]+ alone, 0.[0-9]+ on 3 ranks, within 1e-4: yes\n")):
            result = run(built / name)
            self.assertEqual(result.returncode, 0, result.stderr[-4000:])
            self.assertRegex(result.stdout, expected)
            self.assertNotIn("has no rule", result.stderr)
        self.assertRegex(self.succeed(built / "own_meshard", "train", "--list-keys"), r"model\.width[^\n]*point_mlp")


@unittest.skipUnless(shutil.which("dpkg-shlibdeps") and shutil.which("file"), "needs dpkg-dev and file")
class Package(Case):
    def test_package(self):
        self.empty_folder("package")
        shutil.rmtree(EXTRACTED, ignore_errors=True)
        self.succeed(pathlib.Path(CMAKE).with_name("cpack"), "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", PACKAGE)
        self.succeed("dpkg-deb", "-x", self.package(), EXTRACTED)

    def package(self):
        (package,) = PACKAGE.glob("*.deb")
        return package

    def test_contents(self):
        """All that the tree has, but its link to this machine's LibTorch, and no path of this machine."""
        files = {path.relative_to(TREE) for path in TREE.rglob("*")}
        self.assertEqual({path.relative_to(EXTRACTED / "usr") for path in EXTRACTED.rglob("*") if path != EXTRACTED / "usr"}, files - {pathlib.Path("lib/meshard/torch")})
        for path in self.machine_code():
            dynamic = self.succeed("readelf", "-d", path)
            for run_path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
                self.assertTrue(all(folder.startswith("$ORIGIN") for folder in run_path.split(":")), f"{path}: {run_path}")

    def machine_code(self):
        return [path for path in (EXTRACTED / "usr").glob("*/*") if path.is_file() and not path.is_symlink() and path.suffix != ".a"]

    def test_depends_on_what_is_linked(self):
        depends = set(re.findall(r"(?:^|, )([a-z0-9.+-]+)", self.succeed("dpkg-deb", "-f", self.package(), "Depends")))
        places = dict(reversed(re.findall(r"^\s*(\S+) \([^)]*\) => (\S+)$", self.succeed("/sbin/ldconfig", "-p"), re.MULTILINE)))   # own architecture first
        of_torch = {path.name for path in pathlib.Path(TORCH, "lib").glob("*.so*")} if TORCH else set()
        own = {path.name for path in (EXTRACTED / "usr/lib").iterdir()}
        needed = {name for path in self.machine_code() for name in re.findall(r"\(NEEDED\).*\[(.*)\]", self.succeed("readelf", "-d", path))}
        self.assertIn("libmetis.so.5", needed)
        for name in sorted(needed - of_torch - own):
            if name.startswith("ld-linux"):
                continue
            place = os.path.realpath(places[name])
            found = run("dpkg", "-S", place).stdout or run("dpkg", "-S", place.removeprefix("/usr")).stdout
            self.assertIn(found.partition(":")[0], depends, name)

    def test_programs(self):
        folder = self.empty_folder("package_programs")
        program = EXTRACTED / "usr/bin/meshard"
        self.check_cutting(program.parent, folder)
        if not TORCH:
            return
        link = EXTRACTED / "usr/lib/meshard/torch"
        link.unlink(missing_ok=True)
        train = (program, "train", "--list-keys")
        self.assertRegex(self.fail_with(2, *train), f"^meshard train: train needs LibTorch .*, which is not in {link}. `bash '.*/share/meshard/setup.sh' --torch 2.1[15]` installs it; .*MESHARD_TORCH")
        self.assertIn("model.name", self.succeed(*train, MESHARD_TORCH=TORCH))
        self.assertRegex(self.fail_with(2, *train, MESHARD_TORCH=str(folder)), f"MESHARD_TORCH is '{folder}', where there is no lib/libtorch_cpu.so")
        (folder / "lib").mkdir()
        (folder / "lib/libtorch_cpu.so").touch()
        (folder / "version.py").write_text("__version__ = '2.5.1+cpu'\n")
        self.assertRegex(self.fail_with(2, *train, MESHARD_TORCH=str(folder)), r"is LibTorch 2\.5\.1\+cpu; this meshard needs 2\.")

        environment = pathlib.Path(TORCH).parents[3]
        if not any(environment.glob(".meshard-torch-*-cuda-no")):
            self.skipTest("LibTorch does not come from setup.sh")
        self.succeed("bash", EXTRACTED / "usr/share/meshard/setup.sh", MESHARD_VENV=str(environment))
        self.assertIn("model.name", self.succeed(*train))
        link.unlink()

    def test_own_program_without_torch(self):
        self.check_program_of_ones_own("package_own_program", EXTRACTED / "usr")


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    sys.exit(1 if not result.wasSuccessful() else SKIPPED if result.skipped and len(result.skipped) == result.testsRun else 0)
