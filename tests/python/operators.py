#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every operator of PyTorch's own database (OpInfo) on ranks that hold 7 and 3 parts of a dimension, further ones nothing: results and gradients equal those of the plain operator, or the
operator is refused by name. No wrong number, no crash, no hang.

    operators.py                          draws a few samples, dimensions and modes of each operator; ends with 1 if one of them failed
    operators.py --seed 5                 other ones
    operators.py --draws 0                all of them (half an hour)
    operators.py --seconds 300            stops then, and tells of those that were reached
    operators.py --only add nn.functional.conv2d --modes input out

A crash or a hang ends the ranks; they start again behind the operator."""
import argparse
import collections
import json
import os
import pathlib
import sys
import tempfile
import time

import run

TYPES = ["float64", "complex128", "int64", "float32", "bool"]
MODES = ["input", "arguments", "empty", "inplace", "out", "misfit"]

GOOD = {"equal", "refused", "plain fails", "began"}


def lines_of(log, num_ranks):
    found = []
    for rank in range(num_ranks):
        path = pathlib.Path(f"{log}.{rank}")
        found.append([json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [])
    return found


def run_all(options, log):
    """Lines of rank 0, and a line for each operator that ended the ranks. None if the package is not there."""
    order = {"log": str(log), "first": 0, "only": options.only, "modes": options.modes, "draws": options.draws, "seed": options.seed, "types": options.types}
    broken = []
    end = time.monotonic() + options.seconds
    while True:
        os.environ["MESHARD_TEST_OPERATORS"] = json.dumps(order)
        code = run.launch("operators_test.py", options.ranks, [], seconds=max(1, end - time.monotonic()))
        if code == run.SKIPPED:
            return None
        lines = lines_of(log, options.ranks)
        is_over = time.monotonic() >= end
        if is_over:
            print(f"stopped after {options.seconds} s at {lines[0][-1]['op'] if lines[0] else 'the first operator'}")
        if code == 0 or is_over:
            return [line for line in lines[0] if line["verdict"] != "began"] + [line for rank in lines[1:] for line in rank if line["verdict"] not in GOOD] + broken
        last = max((rank[-1] for rank in lines if rank), key=lambda line: (line["number"], line["verdict"] == "began"), default=None)
        if last is None:
            sys.exit("operators.py: the ranks ended before the first operator")
        broken.append(dict(last, verdict="ended", words="crash or hang"))
        order["first"] = last["number"] + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MESHARD_TEST_SEED", "1")), help="of the draws")
    parser.add_argument("--draws", type=int, default=2, help="runs of each operator in each mode; 0: all")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], metavar="OPERATOR")
    parser.add_argument("--types", nargs="+", default=TYPES, help="each operator takes the first of these that it can")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--seconds", type=int, default=4 * 3600, help="that all of it takes at most")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = run_all(options, pathlib.Path(folder) / "log")
    if lines is None:
        return run.SKIPPED
    counts = collections.Counter(line["verdict"] for line in lines)
    print(f"seed {options.seed}: {len({line['op'] for line in lines})} operators, {len(lines)} runs: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common()))
    for line in lines:
        if line["verdict"] not in GOOD:
            print(f"{line['verdict']}: {line['op']}, mode {line['mode']}, sample {line['sample']}, dimension {line['dim']}: {line['words']}")
    return 0 if set(counts) <= GOOD and counts["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
