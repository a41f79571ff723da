#!/usr/bin/env bash
# Sets up, builds and tests: `bash tests/run.sh [ctest options]`, e.g. `bash tests/run.sh -L partition`.
# Before ctest's last lines stand the total time, the slowest tests, and what was skipped and why.
# MESHARD_BUILD names another build folder, MESHARD_JOBS the number of compilers at once (of tests there is one more), MESHARD_PYTHON a Python with
# torch, for the tests of `import meshard`; `bash tests/run.sh --python [ctest options]` completes that of the virtual environment, which later runs
# use, too; with --peers instead it also has the models of other libraries that these tests cut.
# `bash tests/run.sh --torch 2.15 --python [ctest options]` does all with torch 2.15, in folders of its own.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${MESHARD_BUILD:-$root/build/release}
jobs=${MESHARD_JOBS:-$(nproc)}
tests=$((jobs + 1))   # processes of tests also wait for each other and for files

setup=(--nvcc)
while true; do
  case "${1:-}" in
    -h | --help) sed -n "2,8s/^# //p" "${BASH_SOURCE[0]}"; exit 0 ;;
    --python | --peers) setup+=("$1"); shift ;;
    --torch)
      [ $# -ge 2 ] || { echo "run.sh: --torch needs 2.11 or 2.15." >&2; exit 2; }
      setup+=(--torch "$2")
      build=${MESHARD_BUILD:-$root/build/release-$2}
      export MESHARD_VENV=${MESHARD_VENV:-$root/build/venv-$2}
      shift 2 ;;
    *) break ;;
  esac
done
bash "$root/apps/setup.sh" "${setup[@]}"
python=${MESHARD_PYTHON:-}
venv=${MESHARD_VENV:-$root/build/venv}
if [ -z "$python" ] && compgen -G "$venv/.meshard-python-*" >/dev/null; then python=$venv/bin/python3; fi   # --python was said once
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release ${python:+"-DMESHARD_PYTHON=$python"}
cmake --build "$build" -j "$jobs"
results=$build/test_results.xml
rm -f "$results"
ctest --test-dir "$build" --output-on-failure -j "$tests" --output-junit "$results" --test-output-size-passed 16384 "$@" 2>&1 | python3 "$root/tests/summary.py" "$results"
