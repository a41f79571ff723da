#!/usr/bin/env bash
# Says which C++ sources are not as .clang-format wants them, or, with --fix, writes them so. Other releases of
# clang-format break some lines elsewhere: this one comes from PyPI, into the virtual environment of apps/setup.sh.
set -euo pipefail
version=20.1.8
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${MESHARD_VENV:-$root/build/venv}
clang_format=$venv/bin/clang-format

case "${1:-}" in
  "") options=(--dry-run -Werror --ferror-limit=1) ;;
  --fix) options=(-i) ;;
  *) echo "format.sh: unknown option '$1'. Known: --fix." >&2; exit 2 ;;
esac
[ -x "$venv/bin/python3" ] || { echo "format.sh: no virtual environment in $venv. Run apps/setup.sh first." >&2; exit 77; }
if [ "$("$clang_format" --version 2>/dev/null | grep -o '[0-9]*\.[0-9]*\.[0-9]*' | head -n 1)" != "$version" ]; then
  "$venv/bin/pip" install -q "clang-format==$version" || { echo "format.sh: pip could not install clang-format $version. Is there a network?" >&2; exit 77; }
fi

cd "$root"
find partition sharding ops models io apps tests docs \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 -n 40 -P "${MESHARD_JOBS:-$(nproc)}" "$clang_format" "${options[@]}" || {
    echo "format.sh: the sources above are not formatted. Run: bash tests/format.sh --fix" >&2; exit 1; }
