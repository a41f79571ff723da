#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is done on the first day with a GPU: tests, then figures, each beside its goal.
#
#   bash tests/gpu/run.sh pack                        here: programs and tests for GPUs, stripped, with the libraries they need, in build/gpu-pack
#   bash tests/gpu/run.sh --phase tests               there, below ten minutes: tests.json, tests.log
#   bash tests/gpu/run.sh --phase figures             there, below ten minutes: figures.json, figures.log
#   bash tests/gpu/run.sh --device cpu --short        here: a dry run in a minute; --device standin the same on the accelerator of the tests
#
# --programs DIR   folder of the programs; build/gpu-pack/bin, build/gpu/bin or build/release/bin, the first that is there
# --out DIR        folder of the results; build/gpu-results
# MESHARD_TORCH names the folder `torch` of LibTorch's wheel where it is neither in build/venv nor python3's own. MESHARD_GPU_ARCHITECTURES are those that
# `pack` compiles for, 90-real by default. Nothing is read from a network. Every step has a time limit; what is missing is named in the results.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
pack=$root/build/gpu-pack

# Programs and tests in a folder that may be carried elsewhere. LibTorch and what belongs to it is there already, and so are the system's own libraries.
pack() {
  local build=$root/build/gpu program library
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMESHARD_WITH_CUDA=ON -DMESHARD_WITH_VTK=OFF -DMESHARD_WITH_HDF5=OFF -DMESHARD_INSTALL=OFF \
    -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_embree=ON -DCMAKE_CUDA_ARCHITECTURES="${MESHARD_GPU_ARCHITECTURES:-90-real}"
  local programs=(meshard meshard-models ops_tests gpu_tests attention_benchmark)
  cmake --build "$build" --target "${programs[@]}"
  rm -rf "$pack"
  mkdir -p "$pack/bin" "$pack/lib"
  cp "$build/gpu_tests.txt" "$pack/"
  for program in "${programs[@]}"; do
    strip -o "$pack/bin/$program" "$build/bin/$program"
    chmod +x "$pack/bin/$program"
    ldd "$build/bin/$program" | awk '$2 == "=>" && $3 ~ "^/(usr/)?lib/" {print $3}'
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
  -h | --help) sed -n '3,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
esac
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "run.sh: needs Python 3 ($python is not there). Set PYTHON=/path/to/python3." >&2; exit 2; }
exec "$python" "$root/tests/gpu/steps.py" "$@"
