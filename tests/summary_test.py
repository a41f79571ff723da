# SPDX-License-Identifier: Apache-2.0
"""`python3 summary_test.py`: what summary.py makes of ctest's output and its JUnit file."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

OUTPUT = """    Start 1: A
1/4 Test #1: A ........   Passed    0.10 sec
50% tests passed, 1 tests failed out of 2
a test printed the line above
100% tests passed, 0 tests failed out of 4

Total Test time (real) =   7.25 sec

The following tests did not run:
\t  2 - B (Skipped)
"""

JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="x" tests="4">
  <testcase name="A" time="0.1" status="run"><system-out>Note: Google Test filter = A.One:A.Two/0:A.Two/1
[==========] Running 3 tests from 1 test suite.
[ RUN      ] A.One
/place/a.cpp:2: Skipped
no GPU, &lt;none
at all
[  SKIPPED ] A.One (0 ms)
[ RUN      ] A.Two/0
[       OK ] A.Two/0 (0 ms)
</system-out></testcase>
  <testcase name="B" time="0.2" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>[==========] Running 1 test from 1 test suite.
[ RUN      ] B.B
/place/b.cpp:4: Skipped
no GPU, &lt;none
at all
[  SKIPPED ] B.B (0 ms)
</system-out></testcase>
  <testcase name="C" time="30" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>test_c ... skipped 'no Python'</system-out></testcase>
  <testcase name="D" time="20" status="fail"><failure message=""/><system-out>[==========] Running 4 tests from 1 test suite.
[  FAILED  ] D.One (0 ms)
[  FAILED  ] D.Two/1, where GetParam() = 2 (0 ms)
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] D.One
</system-out></testcase>
</testsuite>
"""


def run(output, junit):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "junit.xml")
        if junit is not None:
            path.write_text(junit)
        result = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("summary.py"), path], input=output, capture_output=True, text=True)
    assert result.returncode == 0 and not result.stderr, result
    return result.stdout


class Summary(unittest.TestCase):
    def test_stands_before_the_closing_lines(self):
        begin, end = OUTPUT.split("100%")
        out = run(OUTPUT, JUNIT)
        self.assertTrue(out.startswith(begin))
        self.assertTrue(out.endswith("\n100%" + end))
        self.assertEqual(out[len(begin):-len("100%" + end)], """\
9 cases of 4 tests in 7.25 s (50.3 s one after another): 4 passed, 2 failed, 3 skipped
the 10 slowest:
      30.0 s  C
      20.0 s  D
       0.2 s  B
       0.1 s  A
skipped:
     2  no GPU, <none at all: A.One, B.B
     1  no Python: C

""")

    def test_is_left_out_without_a_file(self):
        self.assertEqual(run("Test project\n  Test #1: A\n", None), "Test project\n  Test #1: A\n")
        out = run(OUTPUT, None)
        self.assertIn("no summary: ", out)
        self.assertTrue(out.endswith(OUTPUT.split("100%")[1]))

    def test_names_three_of_many(self):
        many = "".join(f'<testcase name="T{i}" time="0" status="notrun"><skipped message="Unable to find executable: /x"/></testcase>' for i in range(12))
        self.assertIn("    12  Unable to find executable: /x: T0, T1, T2 and 9 more\n", run(OUTPUT, f"<testsuite>{many}</testsuite>"))


if __name__ == "__main__":
    unittest.main()
