#!/usr/bin/env bash
# Makes the wheel of meshard for any x86-64 Linux of recent years (RHEL 9, Ubuntu 22.04, Debian 12 and later): the package of Python, the two programs, and the
# libraries in them but torch's. What the build folder has compiled already is not compiled again.
#
#   bash apps/install/wheel.sh                 for CPUs, with the Python and torch 2.11 of build/venv, into build/wheels/cpu
#   bash apps/install/wheel.sh --cuda          for NVIDIA GPUs, too: a build of its own in build/gpu, the wheel in build/wheels/gpu
#   bash apps/install/wheel.sh --python 3.12   for another Python, installed with its headers: the bindings alone are compiled again
#   bash apps/install/wheel.sh --torch 2.15    for torch 2.15: a build of its own
#   bash apps/install/wheel.sh --no-setup      skip the set-up (apps/setup.sh)
#   bash apps/install/wheel.sh -o DIR          into DIR
#
# MESHARD_BUILD names another build folder, MESHARD_VENV another virtual environment, MESHARD_JOBS the number of compilers at once.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
refuse() { echo "wheel.sh: $*" >&2; exit 2; }
with_setup=yes
suffix=
folder=release
kind=cpu
setup=(--python)
cuda=()
version=
out=
while [ $# -gt 0 ]; do
  case "$1" in
    --cuda) folder=gpu; kind=gpu; setup+=(--cuda); cuda=(-DMESHARD_WITH_CUDA=ON) ;;
    --python) version=${2:-}; [[ "$version" =~ ^3\.[0-9]+$ ]] || refuse "--python needs a version as 3.12."; shift ;;
    --torch) [ -n "${2:-}" ] || refuse "--torch needs 2.11 or 2.15."
      setup+=(--torch "$2"); [ "$2" = 2.11 ] || suffix=-$2; shift ;;
    --no-setup) with_setup=no ;;
    -o) [ -n "${2:-}" ] || refuse "-o needs a folder."
      out=$(realpath -m "$2"); shift ;;
    -h|--help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) refuse "unknown option '$1'. Known: --cuda, --python VERSION, --torch VERSION, --no-setup, -o DIR, --help." ;;
  esac
  shift
done
build=$(realpath -m "${MESHARD_BUILD:-$root/build/$folder$suffix}")
export MESHARD_VENV=${MESHARD_VENV:-$root/build/venv$suffix}
out=${out:-$root/build/wheels/$kind$suffix}
[ "$with_setup" = no ] || bash "$root/apps/setup.sh" "${setup[@]}"
venv_python=$MESHARD_VENV/bin/python3
[ -x "$venv_python" ] || refuse "$venv_python is missing. Run without --no-setup."

# --- the Python that the wheel is for ------------------------------------------------------------------------------------
python=$venv_python
if [ -n "$version" ] && [ "$version" != "$("$venv_python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" ]; then
  python=$root/build/wheel-python$version/bin/python3
  if ! "$python" -c 'import scikit_build_core' 2>/dev/null; then
    command -v "python$version" >/dev/null || refuse "there is no python$version on PATH. Install it with its headers (python$version-dev)."
    "python$version" -m venv "$root/build/wheel-python$version"
    "$python" -m pip install -q scikit-build-core || refuse "pip could not install scikit-build-core. Is there a network? For a mirror set PIP_INDEX_URL."
  fi
fi

# --- link and pack ---------------------------------------------------------------------------------------------------------
if ! grep -qsx "MESHARD_PYTHON:FILEPATH=$python" "$build/CMakeCache.txt"; then
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DMESHARD_PYTHON=$python" ${cuda[@]+"${cuda[@]}"}
fi
cmake --build "$build" -j "${MESHARD_JOBS:-$(nproc)}" --target meshard_wheel
"$venv_python" "$root/apps/install/pack_wheel.py" --build "$build" --python "$python" -o "$out"
