#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is done on the first day with a GPU: tests, then figures, each beside its goal.
#
#   bash tests/gpu/run.sh pack                        here: programs and tests for GPUs, stripped, with the libraries they need, in build/gpu-pack
#   bash tests/gpu/run.sh --phase tests               there, below ten minutes: tests.json, tests.log
#   bash tests/gpu/run.sh --phase figures             there, below ten minutes: figures.json, figures.log
#   bash tests/gpu/run.sh --phase python              there, below ten minutes: python.json, python.log
#   bash tests/gpu/run.sh --device cpu --short        here: a dry run in a minute; --device standin the same on the accelerator of the tests
#
# --only STEP      of the phase this step alone; may be repeated
# --seconds N      time of a phase, 560 by default; what does not fit is left out
# --programs DIR   folder of the programs; build/gpu-pack/bin, build/gpu/bin or build/release/bin, the first that is there
# --out DIR        folder of the results; build/gpu-results
# MESHARD_TORCH names the folder `torch` of LibTorch's wheel where it is neither in build/venv nor python3's own. MESHARD_GPU_ARCHITECTURES are those that
# `pack` compiles for, 90-real by default. MESHARD_GPU_PYTHON is the Python for which it builds `import meshard`: that version of the other machine's, here
# with its headers alone, `python3.12` by default; empty leaves the package out. Nothing is read from a network. Every step has a time limit; what is missing is named in the results.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
pack=$root/build/gpu-pack

# A Python with its headers, by the name of its program; nothing where there is none.
python_with_headers() {
  local name=$1 candidate
  for candidate in "$name" "$HOME"/.*/versions/"${name#python}"*/bin/"$name" /opt/*/bin/"$name" /usr/local/bin/"$name"; do
    if "$candidate" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
}

# Programs and tests in a folder that may be carried elsewhere. LibTorch and what belongs to it is there already, and so are the system's own libraries.
pack() {
  local build=$root/build/gpu program library python=
  if [ -n "${MESHARD_GPU_PYTHON-python3.12}" ]; then
    python=$(python_with_headers "${MESHARD_GPU_PYTHON-python3.12}")
    [ -n "$python" ] || echo "run.sh: there is no ${MESHARD_GPU_PYTHON-python3.12} with its headers (Python.h) here, so that \`import meshard\` is left out. Name one: MESHARD_GPU_PYTHON=/path/to/python3.12." >&2
  fi
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMESHARD_WITH_CUDA=ON -DMESHARD_WITH_VTK=OFF -DMESHARD_WITH_HDF5=OFF -DMESHARD_INSTALL=OFF \
    -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_embree=ON -DCMAKE_CUDA_ARCHITECTURES="${MESHARD_GPU_ARCHITECTURES:-90-real}" -DMESHARD_PYTHON="$python"
  local programs=(meshard meshard-models ops_tests gpu_tests attention_benchmark)
  cmake --build "$build" --target "${programs[@]}" ${python:+meshard_python}
  rm -rf "$pack"
  mkdir -p "$pack/bin" "$pack/lib" "$pack/source" "$pack/python"
  cp "$build/gpu_tests.txt" "$pack/"
  # Files that the steps read, for where the rest of the checkout does not travel.
  (cd "$root" && cp --parents -r tests/data/programs tests/models/eager_transolver_benchmark.py tests/gpu/ceilings.py tests/python "$pack/source/")
  local modules=()
  if [ -n "$python" ]; then
    modules=("$build"/apps/python/meshard/*.so)
    cp -r "$build/apps/python/meshard" "$pack/python/"
    strip "$pack"/python/meshard/*.so
    for library in "$root"/build/venv/lib/python3*/site-packages/expecttest; do   # which PyTorch's database of operators imports
      if [ -d "$library" ]; then cp -r "$library" "$pack/python/"; fi
    done
  fi
  find "$pack/source" "$pack/python" -name __pycache__ -prune -exec rm -r {} +
  for program in "${programs[@]}"; do
    strip -o "$pack/bin/$program" "$build/bin/$program"
    chmod +x "$pack/bin/$program"
    ldd "$build/bin/$program" "${modules[@]}" | awk '$2 == "=>" && $3 ~ "^/(usr/)?lib/" {print $3}'
  done | sort -u | while read -r library; do
    case $(basename "$library") in
      lib[cm].so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.* | libstdc++.so.* | libgcc_s.so.* | libcu* | libnv* | libnccl*) ;;
      *) cp -L "$library" "$pack/lib/" ;;
    esac
  done
  echo "packed: $pack, $(du -sh "$pack" | cut -f1)"
}

case ${1:-} in
  pack) pack; exit ;;
  -h | --help) sed -n '3,19s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
esac
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "run.sh: needs Python 3 ($python is not there). Set PYTHON=/path/to/python3." >&2; exit 2; }
exec "$python" "$root/tests/gpu/steps.py" "$@"
