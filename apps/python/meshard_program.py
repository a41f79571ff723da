# SPDX-License-Identifier: Apache-2.0
"""Behind `meshard` and `meshard-models` on PATH: becomes the program of that name that came with the package, and tells it where this Python has torch. No part of the
package, whose import loads torch."""
import importlib.util
import os
import signal
import sys

SITE = os.path.dirname(os.path.abspath(__file__))


def become(name):
    if not os.path.isdir(os.path.join(SITE, "torch")):   # beside the package, where the program looks by itself
        torch = importlib.util.find_spec("torch")
        if torch and torch.submodule_search_locations:
            os.environ.setdefault("MESHARD_TORCH", torch.submodule_search_locations[0])
    os.environ.setdefault("MESHARD_PYTHON", sys.executable)   # which `export` runs
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)   # Python ignores it: `meshard train --list-keys | head` is no error
    os.execv(os.path.join(SITE, "meshard", "programs", name), sys.argv)


def meshard():
    become("meshard")


def meshard_models():
    become("meshard-models")
