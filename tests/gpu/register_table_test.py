# SPDX-License-Identifier: Apache-2.0
"""ops/cuda/register_table.py, with a script in place of the compiler, which prints what that would."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "ops/cuda/register_table.py"
COMPILER = """#!/bin/sh
cat >&2 <<'END'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN7meshard8run_bodyINS_9BringBackIfLi32EEEEEvlT_' for 'sm_90'
ptxas info    : Function properties for _ZN7meshard8run_bodyINS_9BringBackIfLi32EEEEEvlT_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 127 registers, used 0 barriers
ptxas info    : Compiling entry function '_ZN7meshard8run_bodyINS_14PointGradientsIdLi32EEEEEvlT_' for 'sm_90'
ptxas info    : Function properties for _ZN7meshard8run_bodyINS_14PointGradientsIdLi32EEEEEvlT_
    472 bytes stack frame, SPILLED bytes spill stores, SPILLED bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 472 bytes cumulative stack size
END
echo "kernels.cu(3): warning: something else" >&2
exit CODE
"""


class RegisterTable(unittest.TestCase):
    def compiled(self, spilled, code=0):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        compiler = folder / "nvcc"
        compiler.write_text(COMPILER.replace("SPILLED", str(spilled)).replace("CODE", str(code)))
        compiler.chmod(0o755)
        words = [sys.executable, SCRIPT, compiler, "-o", folder / "kernels.o"]
        return folder / "kernels.o.registers", subprocess.run(words, capture_output=True, text=True)

    def check(self, path):
        return subprocess.run([sys.executable, SCRIPT, "--check", path], capture_output=True, text=True)

    def test_names_each_kernel_and_passes_other_words_on(self):
        path, result = self.compiled(0)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "kernels.cu(3): warning: something else\n")
        lines = [line.split() for line in path.read_text().splitlines()[1:]]
        self.assertEqual(lines, [["kernel", "sm_90"], ["BringBack<float,", "32>", "127/0/0"], ["PointGradients<double,", "32>", "255/472/0"]])
        self.assertEqual(self.check(path).returncode, 0)

    def test_warns_of_a_kernel_that_spills(self):
        path, result = self.compiled(492)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"warning: these kernels spill registers to memory:\n  PointGradients<double, 32> +255/472/984\n")
        checked = self.check(path)
        self.assertEqual(checked.returncode, 1)
        self.assertNotIn("BringBack", checked.stdout)

    def test_fails_where_the_compiler_does(self):
        path, result = self.compiled(0, code=2)
        self.assertEqual(result.returncode, 2)
        self.assertFalse(path.exists())


if __name__ == "__main__":
    unittest.main()
