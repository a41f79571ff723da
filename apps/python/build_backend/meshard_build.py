# SPDX-License-Identifier: Apache-2.0
"""How pip builds the package: with scikit-build-core, against the torch of the environment into which it installs, which is not downloaded again for the build.
Where there is none, the build brings one. The wheel depends on that minor version, since torch's C++ interface changes between them.

Where torch has its CUDA libraries with their headers, the package is built for GPUs, too: by an installed compiler of CUDA 13, else by NVIDIA's wheels, which the build brings.

As a program it prints the folder of that torch, with `nvcc` the compiler for its GPUs."""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

MINORS = ("2.11", "2.15")   # also in sharding/FindTorchWheel.cmake
DEFAULT = MINORS[0]
COMPILER = ("nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-runtime==13.0.96")   # also in apps/setup.sh
CUDA_MAJOR = "13"


def torch_folder():
    """Of the torch in the variable MESHARD_TORCH, else of the one that this Python imports, else of the one beside which pip installs, which an isolated build does not
    import; None without one."""
    if os.environ.get("MESHARD_TORCH"):
        return os.environ["MESHARD_TORCH"]
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


def has_cuda(folder):
    """Whether a torch has its libraries for GPUs, and beside it lie the headers of those that it uses."""
    folder = pathlib.Path(folder)
    headers = [folder.parent / "nvidia/cu13/include" / name for name in ("cublas_v2.h", "cusparse.h", "cusolverDn.h")] + [folder.parent / "nvidia/nccl/include/nccl.h"]
    return (folder / "lib/libtorch_cuda.so").exists() and all(header.exists() for header in headers)


def installed_compiler():
    """An nvcc of CUDA 13 on PATH or where toolkits are installed; None without one."""
    for nvcc in filter(None, (os.environ.get("CUDACXX"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc")):
        try:
            said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
        if f"release {CUDA_MAJOR}." in said:
            return nvcc
    return None


def compiler_of_wheels():
    """The nvcc of NVIDIA's wheels that this Python sees, ready to be used; None without them."""
    for path in filter(None, sys.path):
        folder = pathlib.Path(path) / "nvidia/cu13"
        if (folder / "bin/nvcc").exists():
            if not (folder / "lib64").exists():   # where it looks for its libraries, which the wheels have in lib
                (folder / "lib64").symlink_to("lib")
            return folder / "bin/nvcc"
    return None


def compiler():
    """For the GPUs of the torch that is there; None where it has none, or nothing compiles for them."""
    folder = torch_folder()
    return (installed_compiler() or compiler_of_wheels()) if folder and has_cuda(folder) else None


def _needs(requirements):
    folder = torch_folder()
    if folder:
        minor_of(folder)
    else:
        requirements = [*requirements, f"torch=={DEFAULT}.*"]
    wants_compiler = (folder is None or has_cuda(folder)) and not installed_compiler() and sys.platform == "linux"
    return [*requirements, *(COMPILER if wants_compiler else ())]


def dynamic_metadata(field, settings=None):
    """What the wheel depends on."""
    folder = torch_folder()
    return [f"torch=={minor_of(folder) if folder else DEFAULT}.*", "numpy"]


if __name__ == "__main__":
    print((compiler() if sys.argv[1:] == ["nvcc"] else torch_folder()) or sys.exit(1))
else:
    from scikit_build_core import build as _scikit
    from scikit_build_core.build import *  # noqa: F401,F403

    def get_requires_for_build_wheel(config_settings=None):
        return _needs(_scikit.get_requires_for_build_wheel(config_settings))

    def get_requires_for_build_editable(config_settings=None):
        return _needs(_scikit.get_requires_for_build_editable(config_settings))
