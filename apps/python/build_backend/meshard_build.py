# SPDX-License-Identifier: Apache-2.0
"""How pip builds the package: with scikit-build-core, against the torch of the environment into which it installs, which is not downloaded again for the build.
Where there is none, the build brings one. The wheel depends on that minor version, since torch's C++ interface changes between them.

As a program it prints the folder of that torch."""
import importlib.util
import pathlib
import re
import sys
import sysconfig

MINORS = ("2.11", "2.15")   # also in sharding/FindTorchWheel.cmake
DEFAULT = MINORS[0]


def torch_folder():
    """Of the torch that this Python imports, else of the one beside which pip installs, which an isolated build does not import; None without one."""
    found = importlib.util.find_spec("torch")
    folders = list(found.submodule_search_locations or []) if found else [f"{sysconfig.get_path(kind)}/torch" for kind in ("purelib", "platlib")]
    return next((folder for folder in folders if (pathlib.Path(folder) / "version.py").exists()), None)


def minor_of(folder):
    """For example '2.11'. Raises RuntimeError for one for which meshard is not made."""
    version = re.search(r"__version__ = '([^']*)'", (pathlib.Path(folder) / "version.py").read_text()).group(1)
    minor = ".".join(version.split(".")[:2])
    if minor not in MINORS:
        raise RuntimeError(f"meshard is made for torch {' and '.join(MINORS)}, and {folder} is {version}. Install one of them: pip install 'torch=={DEFAULT}.*'.")
    return minor


def _needs(requirements):
    folder = torch_folder()
    if folder:
        minor_of(folder)
        return requirements
    return [*requirements, f"torch=={DEFAULT}.*"]


def dynamic_metadata(field, settings=None):
    """What the wheel depends on."""
    folder = torch_folder()
    return [f"torch=={minor_of(folder) if folder else DEFAULT}.*", "numpy"]


if __name__ == "__main__":
    print(torch_folder() or sys.exit(1))
else:
    from scikit_build_core import build as _scikit
    from scikit_build_core.build import *  # noqa: F401,F403

    def get_requires_for_build_wheel(config_settings=None):
        return _needs(_scikit.get_requires_for_build_wheel(config_settings))

    def get_requires_for_build_editable(config_settings=None):
        return _needs(_scikit.get_requires_for_build_editable(config_settings))
