#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes `import torch` work on a machine for CPUs without NVIDIA's libraries: `absent_cuda.py SITE_PACKAGES [COMPILER]`.

torch's wheel of PyPI is linked against 3 GB of CUDA libraries (cuBLAS, cuDNN, NCCL, ...), which the loader wants at the import although nothing on a CPU calls
them. In place of each that is missing this writes one of its name, whose functions end the process with a sentence. The CUDA runtime must be there: torch asks
it whether there is a GPU."""
import pathlib
import re
import subprocess
import sys

SOURCE = """#include <stdio.h>
#include <stdlib.h>
static void absent(void) {{ fputs("{library} was called, which is not here; {remedy}\\n", stderr); abort(); }}
"""


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def missing_libraries(libraries, folders):
    """Names that the libraries ask for and that no folder has. What the system has elsewhere does not count: it may be gone tomorrow."""
    needed = {name for library in libraries for name in re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", str(library)))}
    return sorted(name for name in needed if re.match(r"lib(cu|nccl|nv)", name) and not any((folder / name).exists() for folder in folders))


def functions_by_library(libraries, missing):
    """What each missing library must define: name and version (None without one). Names without a version do not say whose they are: the first has them all."""
    functions = {name: set() for name in missing}
    for library in libraries:
        owners, owner = {}, None
        for kind, name in re.findall(r"(File|Name): (\S+)", output_of("readelf", "-W", "-V", str(library))):
            if kind == "File":
                owner = name
            else:
                owners[name] = owner
        for symbol in re.findall(r"^\s+U (\S+)$", output_of("nm", "-D", "--undefined-only", str(library)), re.MULTILINE):
            name, _, version = symbol.partition("@")
            if owners.get(version) in functions:
                functions[owners[version]].add((name, version))
            elif not version and re.match(r"(cu[a-zA-Z]|nccl|nv)", name):
                functions[missing[0]].add((name, None))
    return functions


def write_library(path, functions, compiler, remedy="install torch with its dependencies"):
    """A shared library of this name with these functions."""
    source = SOURCE.format(library=path.name, remedy=remedy) + "".join(f'void {name}(void) __attribute__((alias("absent")));\n' for name, _ in sorted(functions, key=str))
    versions = {}
    for name, version in functions:
        versions.setdefault(version, []).append(name)
    script = "".join(f"{version} {{ global: {'; '.join(sorted(names))}; }};\n" for version, names in versions.items() if version)
    sources = path.with_suffix(".c"), path.with_suffix(".map")
    sources[0].write_text(source)
    sources[1].write_text(script)
    command = [compiler, "-shared", "-fPIC", "-w", f"-Wl,-soname,{path.name}", "-o", str(path), str(sources[0])]
    subprocess.run(command + ([f"-Wl,--version-script={sources[1]}"] if script else []), check=True)
    for file in sources:
        file.unlink()


def main(site_packages, compiler="gcc"):
    torch = pathlib.Path(site_packages) / "torch" / "lib"
    libraries = sorted(path for path in torch.glob("*.so") if path.is_file())
    if not libraries:
        sys.exit(f"absent_cuda.py: {site_packages} has no torch/lib. Name the folder site-packages into which pip has installed torch.")
    missing = missing_libraries(libraries, [torch, *(pathlib.Path(site_packages) / "nvidia").glob("*/lib")])
    for name, functions in functions_by_library(libraries, missing).items() if missing else ():
        write_library(torch / name, functions, compiler)
    print(f"{len(missing)} stand-ins: {' '.join(missing)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
