#!python
# SPDX-License-Identifier: Apache-2.0
"""On PATH as `meshard` and `meshard-models`: becomes the program of that name that came with the package, and tells it where this Python has torch."""
import importlib.util
import os
import sys

name = os.path.basename(sys.argv[0])


def folders(package):
    found = importlib.util.find_spec(package)
    return list(found.submodule_search_locations or []) if found else []


programs = [folder for folder in folders("meshard") if os.path.exists(os.path.join(folder, "programs", name))]
if not programs:
    sys.exit(f"{name}: {sys.executable} has no package `meshard` with programs. Install it there: pip install meshard-....whl")
beside = os.path.join(os.path.dirname(programs[0]), "torch")   # where the program looks by itself
if not os.path.isdir(beside):
    os.environ.setdefault("MESHARD_TORCH", next(iter(folders("torch")), beside))
os.environ.setdefault("MESHARD_PYTHON", sys.executable)   # which `export` runs
os.execv(os.path.join(programs[0], "programs", name), sys.argv)
