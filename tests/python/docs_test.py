# SPDX-License-Identifier: Apache-2.0
"""The Python of docs/python.md runs, block after block."""
import contextlib
import io
import pathlib
import re
from unittest import mock

from ranks import mesh

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_page(name):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks, f"{name} shows no Python"
    printed, names = io.StringIO(), {}
    with mock.patch("torch.distributed.init_process_group"), contextlib.redirect_stdout(printed):   # the ranks are connected already
        for i, block in enumerate(blocks):
            exec(compile(block, f"{name}, Python block {i + 1}", "exec"), names)
    return printed.getvalue()


def test_page_of_python():
    assert f"Shard(0) of 7{'+3' * (mesh().size() - 1)} on domain" in run_page("docs/python.md")
