# SPDX-License-Identifier: Apache-2.0
"""The wheel of apps/install/wheel.sh on a system that has Python and nothing else: no compiler, no CMake, none of the libraries that meshard is built with. The system is
a folder with the files of Debian's essential packages, apt and python3-venv; torch, which pip would bring, is linked into its environment, and pip asks for nothing else."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

import auditwheel  # noqa: F401  without which, and scikit-build-core, the test is skipped
import scikit_build_core  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("apt", "python3-venv")   # apt, which every Debian has, brings the C++ library
BY_HAND = ("meshard", "pip", "setuptools", "pkg_resources", "_distutils", "distutils", "__pycache__")   # not to be linked: a new environment has its own, or none
FIRST_STEPS = """
import time
start = time.monotonic()
import torch
import torch.distributed as dist
import meshard
dist.init_process_group("gloo")
mesh = meshard.init_device_mesh("cpu")
rank = mesh.get_rank()
own = torch.full((7 if rank == 0 else 3, 4), 2.0, requires_grad=True)
meshard.from_local(own, mesh, [meshard.Shard(0)]).square().mean().backward()
assert torch.allclose(own.grad, torch.tensor(0.1)), own.grad   # of ten rows with four columns
points = torch.rand(100, 3).double().numpy()
assert sum(part.num_owned for part in meshard.partition(points, 4)) == 100
print(f"rank {rank}: {time.monotonic() - start:.1f} s", flush=True)
"""


def output_of(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **options).stdout


def closure(packages):
    """They, the essential ones, and what these depend on, of the packages that are installed."""
    needs, provided, waiting = {}, {}, list(packages)
    for line in output_of("dpkg-query", "-W", "-f", "${db:Status-Status}\t${Package}\t${Essential}\t${Pre-Depends}, ${Depends}\t${Provides}\n").splitlines():
        state, name, essential, depends, provides = line.split("\t")
        if state == "installed":
            needs[name] = [[re.sub(r"[\s(:].*", "", word.strip()) for word in group.split("|")] for group in depends.split(",") if group.strip()]
            for word in provides.split(","):
                provided.setdefault(re.sub(r"[\s(:].*", "", word.strip()), name)
            waiting += [name] * (essential == "yes")
    found = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            for group in needs[name]:
                waiting += [other if other in needs else provided[other] for other in group if other in needs or other in provided][:1]
    return found


def make_system(root):
    """A root file system, with /usr merged."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("proc", "dev", "tmp", "root", "etc", "opt", "wheels", "apps", "site"):
        (root / name).mkdir()
    for path in map(pathlib.Path, output_of("dpkg-query", "-L", *sorted(closure(PACKAGES))).splitlines()):
        if not path.is_absolute() or path.is_relative_to("/usr/share/doc") or path.is_relative_to("/usr/share/man") or not (path.is_symlink() or path.is_file()):
            continue
        target = root / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_symlink() and not target.exists():
            shutil.copy2(path, target, follow_symlinks=False)
    (root / "usr/bin/awk").symlink_to("mawk")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")


def link_torch(root, environment):
    """Makes pip see torch, numpy and what they need in the environment before it is made, by links to the mounted folder /site."""
    own = pathlib.Path(__import__("torch").__file__).parents[1]
    site = root / environment.lstrip("/") / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    for package in own.iterdir():
        if not package.name.startswith(BY_HAND):
            (site / package.name).symlink_to(f"/site/{package.name}")
    return own


def run_in(root, script, **mounts):
    """What a shell script prints in the system, to which folders of this one are mounted so that it cannot write there; AssertionError if it fails."""
    binds = f"mount --rbind /proc {shlex.quote(str(root / 'proc'))}; mount --rbind /dev {shlex.quote(str(root / 'dev'))}"
    for name, source in mounts.items():
        target = shlex.quote(str(root / name))
        binds += f"; mount --bind {shlex.quote(str(source))} {target}; mount -o remount,bind,ro {target}"
    inside = f"exec chroot {shlex.quote(str(root))} /usr/bin/env -i HOME=/root PATH=/opt/meshard/bin:/usr/bin OMP_NUM_THREADS=1 PIP_NO_INDEX=1 PIP_NO_DEPS=1 bash -e"
    ended = subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-ec", f"{binds}; {inside}"], input=script, capture_output=True, text=True, timeout=500,
                           check=False)
    assert ended.returncode == 0, f"{script}\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout


def steps_of_dockerfile():
    text = (ROOT / "apps/install/Dockerfile").read_text().replace("\\\n", " ")
    return [" ".join(step.split()) for step in re.findall(r"^RUN (.*)$", text, re.MULTILINE)]


def test_both_recipes_of_containers_do_the_same():
    steps = [command.replace('"${EXTRA_INDEX_URL}"', '"{{ EXTRA_INDEX_URL }}"') for step in steps_of_dockerfile() for command in step.split(" && ")]
    post = re.search(r"^%post\n(.*?)^%", (ROOT / "apps/install/meshard.def").read_text(), re.MULTILINE | re.DOTALL).group(1)
    assert [command.strip() for line in post.splitlines() if not re.match(r"\s*(set -e|export PATH=.*)?$", line) for command in line.split(" && ")] == steps


def test_bare_system():
    build = os.environ.get("MESHARD_TEST_BUILD", "")
    if not (pathlib.Path(build) / "bin" / "meshard").exists():
        return "there is no build folder with the programs"
    if not shutil.which("dpkg-query"):
        return "this is no Debian, of whose packages the system is made"
    if f"python{sys.version_info[0]}.{sys.version_info[1]}" != os.path.basename(os.path.realpath("/usr/bin/python3")):
        return "Debian's Python is not that of the tests"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        return "no folders may be mounted"
    with tempfile.TemporaryDirectory() as own:
        folder, seconds = pathlib.Path(own), {}
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LD_LIBRARY_PATH", "MESHARD_TORCH")}
        start = time.monotonic()
        venv = pathlib.Path(sys.executable).parents[1]
        output_of("bash", ROOT / "apps/install/wheel.sh", "--no-setup", "-o", folder / "wheels", env={**environment, "MESHARD_BUILD": build, "MESHARD_VENV": str(venv)})
        seconds["wheel.sh"] = time.monotonic() - start
        wheel, = (folder / "wheels").iterdir()
        assert re.fullmatch(r"meshard-[0-9.]+-cp3\d+-cp3\d+-manylinux_2_(\d+)_x86_64\.whl", wheel.name) and int(wheel.name.split("_")[2]) <= 34, wheel
        names = zipfile.ZipFile(wheel).namelist()
        assert not [name for name in names if re.search(r"libvtk|libmpi|libtorch|libc10|libssl|libcudart", name)], names
        assert any("libmetis" in name for name in names) and any(name.endswith("licences/libmetis5.txt") for name in names), names

        system = folder / "system"
        make_system(system)
        site = link_torch(system, "/opt/meshard")
        shutil.copy(ROOT / "apps/quickstart.sh", system / "apps")
        shutil.copytree(ROOT / "apps/sample", system / "apps/sample")
        assert "no" == run_in(system, "for tool in gcc c++ cmake mpirun ninja; do if command -v $tool; then exit 1; fi; done; echo no").strip()

        def timed(name, script):
            begin = time.monotonic()
            printed = run_in(system, script, wheels=wheel.parent, site=site)
            seconds[name] = time.monotonic() - begin
            return printed

        timed("steps of the Dockerfile", "\n".join(steps_of_dockerfile()))
        printed = timed("first backward", f"cat >/tmp/first.py <<'END'{FIRST_STEPS}END\npython3 -m torch.distributed.run --nproc-per-node 2 /tmp/first.py")
        assert printed.count("rank ") == 2, printed
        timed("quickstart.sh", "MESHARD_BUILD=/opt/meshard bash /apps/quickstart.sh --no-setup --epochs 1 -o /tmp/out")
        timed("report", "cd /tmp; meshard report out/runs/ahmed -o report; test -s report/report.html")
        said = timed("others", """
cd /tmp
meshard --version
meshard convert out/merged.vtp all.vtkhdf    # by HDF5
meshard convert all.vtkhdf again.vtp
meshard-models train --list-keys >/dev/null
if touch /site/written 2>/dev/null; then exit 1; fi    # the environment of the tests stays as it is
touch a.vtk a.cgns
for file in a.vtk a.cgns; do if meshard info $file 2>&1; then exit 1; fi; done
if OMPI_COMM_WORLD_SIZE=2 meshard partition again.vtp -n 2 -o cut 2>&1; then exit 1; fi
""")
        assert said.count("as no wheel has. Convert the file") == 2 and said.count("no MPI, as no wheel has. Start one process") == 1 and "\nVTK" not in said, said
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.0f} MB; seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))
