# SPDX-License-Identifier: Apache-2.0
"""The wheel of a build folder, in a fresh environment: package and programs find torch there, and name no folder of this machine to look for libraries."""
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from unittest import mock

import scikit_build_core  # noqa: F401  without which the test is skipped

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command, **options):
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=400, **options)
    assert ended.returncode == 0, f"{command}:\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
    return ended.stdout


def fresh_environment(folder):
    """A virtual environment with nothing but torch, which is a link to this one's, and what torch imports."""
    run(sys.executable, "-m", "venv", folder)
    own = pathlib.Path(sysconfig.get_paths()["purelib"])
    site = next((folder / "lib").glob("python3*")) / "site-packages"
    for package in own.iterdir():
        if not package.name.startswith(("meshard", "pip", "_distutils", "distutils", "__pycache__")) and not (site / package.name).exists():
            (site / package.name).symlink_to(package)
    return folder / "bin"


def test_the_build_asks_for_a_compiler_where_torch_has_cuda():
    own = importlib.util.spec_from_file_location("meshard_build", ROOT / "apps/python/build_backend/meshard_build.py")
    backend = importlib.util.module_from_spec(own)
    own.loader.exec_module(backend)
    with tempfile.TemporaryDirectory() as folder:
        site = pathlib.Path(folder)
        for name in ("torch/version.py", "torch/lib/libtorch_cuda.so"):
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text("__version__ = '2.11.0'")
        with mock.patch.object(backend, "torch_folder", lambda: str(site / "torch")), mock.patch.object(backend, "installed_compiler", lambda: None):
            assert backend._needs(["x"]) == ["x"] and backend.compiler() is None, "for CPUs, where torch's libraries have no headers beside them"
            for name in ("cu13/include/cublas_v2.h", "cu13/include/cusparse.h", "cu13/include/cusolverDn.h", "nccl/include/nccl.h", "cu13/bin/nvcc", "cu13/lib/x"):
                (site / "nvidia" / name).parent.mkdir(parents=True, exist_ok=True)
                (site / "nvidia" / name).touch()
            assert backend._needs(["x"]) == ["x", *backend.COMPILER]
            with mock.patch.object(sys, "path", [folder]):
                assert backend.compiler() == site / "nvidia/cu13/bin/nvcc" and (site / "nvidia/cu13/lib64/x").exists()
        with mock.patch.object(backend, "torch_folder", lambda: str(site / "torch")), mock.patch.object(backend, "installed_compiler", lambda: "/toolkit/nvcc"):
            assert backend._needs(["x"]) == ["x"] and backend.compiler() == "/toolkit/nvcc"


def test_wheel():
    build = os.environ.get("MESHARD_TEST_BUILD", "")
    if not (pathlib.Path(build) / "bin" / "meshard").exists():
        return "there is no build folder with the programs"
    with tempfile.TemporaryDirectory() as own:
        folder = pathlib.Path(own)
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LD_LIBRARY_PATH", "MESHARD_TORCH")}
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT / "apps" / "python",
            "-C", f"cmake.define.MESHARD_BUILD={build}", env=environment)
        wheel, = folder.glob("meshard-*.whl")
        programs = fresh_environment(folder / "own env")   # a blank, with which an interpreter's line would end
        run(programs / "python3", "-m", "pip", "install", "-q", "--no-deps", wheel, env=environment)
        said = run(programs / "python3", "-c", "import meshard, torch; x = meshard.from_local(torch.ones(3, 2), meshard.DeviceMesh.single(), [meshard.Shard(0)]); "
                   "print(meshard.__file__, x.sum().item(), meshard.models.Transolver.__name__, meshard.__version__)", env=environment, cwd=own)
        version = wheel.name.split("-")[1]
        assert said.startswith(str(folder / "own env")) and said.endswith(f"6.0 Transolver {version}\n"), said
        assert run(programs / "meshard", "--version", env=environment).startswith(f"meshard {version}\n")
        assert "model.n_hidden" in run(programs / "meshard", "train", "--list-keys", env=environment)   # a verb that loads torch
        reading, writing = os.pipe()
        os.close(reading)
        ended = subprocess.run([programs / "meshard", "--help"], env=environment, stdout=writing, stderr=subprocess.PIPE, check=False)
        assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, b""), ended
        os.close(writing)
        site = next((folder / "own env/lib").glob("python3*")) / "site-packages"
        for file in [site / "meshard/programs/meshard-models", *site.glob("meshard/*.so")]:
            folders = [line for line in run("readelf", "-d", file).splitlines() if "RPATH" in line or "RUNPATH" in line]
            assert all("$ORIGIN" in line and str(ROOT) not in line for line in folders), (file, folders)

        def refusal():
            ended = subprocess.run([programs / "meshard", "train", "--list-keys"], env=environment, capture_output=True, text=True, check=False)
            assert ended.returncode == 2 and ended.stderr.count("\n") == 1, ended
            return ended.stderr

        link = site / "torch"
        elsewhere = link.readlink().parent
        link.unlink()
        assert re.search(f"train needs LibTorch [0-9.]+, which is not in {link}. `pip install torch==[0-9.]+` installs it", refusal()), refusal()
        (link / "lib").mkdir(parents=True)
        (link / "lib/libtorch_cpu.so").touch()
        (link / "version.py").write_text("__version__ = '2.5.1+cpu'\n")
        assert f"{link} is LibTorch 2.5.1+cpu; this meshard needs 2." in refusal()
        shutil.rmtree(link)
        (site / "elsewhere.pth").write_text(f"{elsewhere}\n")   # Python knows of a torch elsewhere where it is
        assert "model.n_hidden" in run(programs / "meshard", "train", "--list-keys", env=environment)
