#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A few cases of compare.py with meshard and DTensor, and verdicts of functions that are wrong, refuse, hang and crash on purpose.

Ends with 77 where `import meshard` fails."""
import collections
import os
import pathlib
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
try:
    import meshard
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import cases  # noqa: E402
import compare  # noqa: E402
import exactness  # noqa: E402
import libraries  # noqa: E402


def fails_on_one_rank(x):
    if meshard.is_sharded(x) and dist.get_rank() == 1:
        raise ValueError("on purpose")
    return x * 1


def verdict(function):
    case = cases.Case("", "on purpose", (2,), [cases.cut(7, 3)], function)
    return exactness.run(case, libraries.Meshard)


class Compare(unittest.TestCase):
    def test_cases_of_two_libraries(self):
        names = ["7 rows on 3 ranks", "linear, uneven rows", "slice across the cut", "flip of the cut dimension", "attention with a mask"]
        versions, said = {}, collections.defaultdict(collections.Counter)
        rows = compare.exactness(versions, said, ["meshard", "DTensor"], names)
        cells = {row.split(" | ")[0].removeprefix("| ").split(" (")[0]: row.split(" | ")[1:3] for row in rows}
        self.assertEqual(versions, {"meshard": meshard.__version__, "DTensor": torch.__version__})
        for name in names[:3]:
            self.assertEqual(cells[name][0], "exact", name)
        for name in names[:2]:
            self.assertEqual(cells[name][1], "exact", name)
        self.assertEqual(cells["slice across the cut"][1], "gathers")
        self.assertEqual([cells["exact"][0], cells["wrong"][0]], ["4", "0"])

    def test_verdicts(self):
        torch.set_num_threads(1)
        self.assertEqual(verdict(lambda x: x.sin()), ("exact", ""))
        self.assertEqual(verdict(lambda x: x * (2 if meshard.is_sharded(x) else 1)), ("wrong", "the result differs by 1"))
        self.assertEqual(verdict(lambda x: x.detach() * x if meshard.is_sharded(x) else x * x), ("wrong", "the gradient of operand 1 differs by 0.5"))
        self.assertEqual(verdict(lambda x: x.flatten()[:3] if meshard.is_sharded(x) else x), ("wrong", "the result has another shape"))
        self.assertEqual(verdict(fails_on_one_rank), ("refuses", "ValueError: on purpose"))
        self.assertEqual(verdict(lambda x: torch.cuda.current_stream() if meshard.is_sharded(x) else x)[0], "needs CUDA")
        self.assertEqual(verdict(lambda x: os.kill(os.getpid(), signal.SIGSEGV) if meshard.is_sharded(x) else x), ("refuses", "a rank crashed"))
        exactness.SECONDS = 2
        self.assertEqual(verdict(lambda x: time.sleep(60) if meshard.is_sharded(x) else x), ("hangs", ""))

    def test_page_has_every_case(self):
        page = compare.PAGE.read_text()
        self.assertIn(compare.END, page.partition(compare.BEGIN)[2])
        self.assertEqual([case.name for case in cases.CASES if f"| {case.name}" not in page], [], "write the page again: compare.py --write")


if __name__ == "__main__":
    unittest.main()
