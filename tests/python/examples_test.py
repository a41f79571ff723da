# SPDX-License-Identifier: Apache-2.0
"""The training programs of docs/examples under torchrun: two ranks end with the loss of one."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import accelerate  # noqa: F401  without these two the tests are skipped
import lightning  # noqa: F401
import torch

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"


def losses(name, num_ranks):
    """That each rank prints at the end."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "MESHARD_TEST_STORE")}
        ended = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks), EXAMPLES / name],
                               capture_output=True, text=True, timeout=200, cwd=folder, env=dict(environment, OMP_NUM_THREADS="1"))
        saved = pathlib.Path(folder, "trained")   # by Accelerate alone
        assert not saved.exists() or len(torch.load(saved / "custom_checkpoint_0.pkl")) > 20, "no weights were saved"
    assert ended.returncode == 0, f"{name} on {num_ranks} ranks:\n{ended.stdout[-2000:]}\n{ended.stderr[-3000:]}"
    found = dict(re.findall(r"rank (\d): loss ([\d.]+)", ended.stdout))
    assert sorted(found) == [str(rank) for rank in range(num_ranks)], ended.stdout
    return [float(found[str(rank)]) for rank in range(num_ranks)]


def as_on_one_rank(name):
    (one,), two = losses(name, 1), losses(name, 2)
    assert two[0] == two[1], two
    assert abs(two[0] - one) < 2e-4 * one, (one, two)   # rounding, after sixteen steps
    return f"loss {one:.4f}"


def test_lightning():
    return as_on_one_rank("lightning_training.py")


def test_accelerate():
    return as_on_one_rank("accelerate_training.py")
