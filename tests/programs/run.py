#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the programs: `run.py --list`, `run.py NAME...`, `run.py` for all. Ends with 77 if all were skipped.

MESHARD_PROGRAM names the program under test, MESHARD_REPETITIONS=20 repeats each interruption as often."""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
SKIPPED = 77


def camel_case(method):
    return "".join(word[:1].upper() + word[1:] for word in method.removeprefix("test_").split("_"))


def cases():
    """Name, as ctest shows it, to test."""
    found = {}
    for path in sorted(HERE.glob("*_test.py")):
        for suite in unittest.defaultTestLoader.loadTestsFromName(path.stem):
            for test in suite:
                name = f"{type(test).__name__}.{camel_case(test.id().rpartition('.')[2])}"
                assert name not in found, f"two tests are called {name}"
                found[name] = test
    return found


def main(arguments):
    known = cases()
    if arguments == ["--list"]:
        for name, test in known.items():
            print(f"{name} {getattr(test, 'timeout', 120)}")
        return 0
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(f"run.py: there is no test {unknown[0]}; `run.py --list` lists them.", file=sys.stderr)
        return 2
    chosen = [known[name] for name in arguments or known]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(chosen))
    for test, reason in result.skipped:
        print(f"[  SKIPPED ] {type(test).__name__}: {reason}")
    if not result.wasSuccessful():
        return 1
    return SKIPPED if len(result.skipped) == len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
