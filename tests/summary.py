# SPDX-License-Identifier: Apache-2.0
"""Passes ctest's output on and puts a summary before its closing lines: `ctest --output-junit FILE ... 2>&1 | python3 summary.py FILE`.

The summary tells the total time, the ten slowest tests, and what was skipped and why.
"""
import re
import signal
import sys
import xml.etree.ElementTree as ElementTree

CLOSING = re.compile(r"\d+% tests passed, \d+ tests? failed out of \d+")
TOTAL_TIME = re.compile(r"Total Test time \(real\) = +([0-9.]+) sec")
# What GoogleTest prints of the cases of a suite: how many there are, which failed, and which were skipped and why; and what Python's unittest prints.
CASES = re.compile(r"^\[==========\] Running (\d+) test", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] ([^ ,\n]+\.[^ ,\n]+)", re.MULTILINE)
SKIPPED = re.compile(r": Skipped\n(.*?)\n\[  SKIPPED \] (\S+)", re.DOTALL)
UNITTEST_SKIPPED = re.compile(r"skipped ['\"](.*)['\"]")
NUM_SLOWEST = 10
NUM_NAMED = 3   # of the tests that were skipped for one reason


def name_of(test):
    return test.get("name").partition("  # GetParam()")[0]


def cases_of(test):
    """(number of cases, those that failed, {name: why} of those that were skipped) of a test."""
    output = test.findtext("system-out") or ""
    num_cases = CASES.search(output)
    failed = set(FAILED.findall(output)) if test.get("status") == "fail" else set()
    if test.get("status") == "fail" and not failed:
        failed = {name_of(test)}
    skipped = {name: reason for reason, name in SKIPPED.findall(output)}
    mark = test.find("skipped")
    if mark is not None and not skipped:
        reason = UNITTEST_SKIPPED.search(output)
        message = mark.get("message", "")
        skipped = {name_of(test): reason.group(1) if reason else "it does not say why" if message.startswith("SKIP_") else message}
    return int(num_cases.group(1)) if num_cases else 1, failed, skipped


def summary(tests, seconds):
    """Lines about the test cases of ctest's JUnit file."""
    num_cases, num_failed, reasons = 0, 0, {}
    for test in tests:
        count, failed, skipped = cases_of(test)
        num_cases += count
        num_failed += len(failed)
        for name, reason in skipped.items():
            reasons.setdefault(" ".join(reason.split()), []).append(name)
    num_skipped = sum(len(names) for names in reasons.values())
    all_seconds = sum(float(test.get("time")) for test in tests)
    yield (f"{num_cases} cases of {len(tests)} tests in {seconds or '?'} s ({all_seconds:.1f} s one after another): "
           f"{num_cases - num_failed - num_skipped} passed, {num_failed} failed, {num_skipped} skipped")
    yield f"the {NUM_SLOWEST} slowest:"
    for test in sorted(tests, key=lambda test: -float(test.get("time")))[:NUM_SLOWEST]:
        yield f"  {float(test.get('time')):8.1f} s  {name_of(test)}"
    yield "skipped:" if reasons else "none was skipped"
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
        yield f"  {len(names):4}  {reason}: {', '.join(names[:NUM_NAMED])}{more}"


def main(junit):
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # ctest ends by it, and then this
    held = []
    for line in sys.stdin:
        # What looks like a beginning of the end may be a test's own output: only the last one is.
        if CLOSING.match(line):
            sys.stdout.writelines(held)
            held = [line]
        elif held:
            held.append(line)
        else:
            sys.stdout.write(line)
        sys.stdout.flush()
    if not held:
        return   # ctest ran no test
    try:
        tests = ElementTree.parse(junit).getroot().findall("testcase")
        found = TOTAL_TIME.search("".join(held))
        print("\n".join(summary(tests, found and found.group(1))) + "\n")
    except (OSError, ElementTree.ParseError) as error:
        print(f"no summary: {error}\n")
    sys.stdout.writelines(held)


if __name__ == "__main__":
    sys.stdin.reconfigure(errors="replace")
    sys.stdout.reconfigure(errors="replace")
    main(sys.argv[1])
