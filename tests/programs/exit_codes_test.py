# SPDX-License-Identifier: Apache-2.0
import re

from runner import SOURCE, Case, exit_codes_of_source


class ExitCodes(Case):
    def test_are_all_in_the_help(self):
        text = self.meshard("--help").out
        said = text[text.index("Exit codes:"):]
        self.assertEqual(sorted(map(int, re.findall(r"\b(\d+) [a-z]", said))), sorted(exit_codes_of_source().values()), said)

    def test_are_all_in_the_docs(self):
        table = re.findall(r"^\| (\d+) \| \S", (SOURCE / "docs/commands.md").read_text(), re.MULTILINE)
        self.assertEqual(sorted(map(int, table)), sorted(exit_codes_of_source().values()))

    def test_are_the_only_ones_in_the_source(self):
        """Numbers that stand elsewhere, since the folders below apps/ cannot name those of apps/console/console.h."""
        codes = set(exit_codes_of_source().values())
        for path in [*SOURCE.glob("apps/*.cpp"), *SOURCE.glob("io/*.cpp"), *SOURCE.glob("sharding/*.cpp")]:
            for number in re.findall(r"\b_?exit\((\d+)\)|\bkExit\w* = (\d+)", path.read_text()):
                self.assertIn(int("".join(number)), codes, f"{path.relative_to(SOURCE)} ends the program with a code that no one documents")
