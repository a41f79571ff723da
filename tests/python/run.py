#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of one file on several ranks: `run.py modules_test.py 3`, or some of them: `run.py modules_test.py 3 linear gru`.

Each rank is a process that imports the file and calls its functions `test_...` in turn, with what `ranks.py` gives. The first case that fails on a rank
ends all ranks. Ends with 77 if the package or something that the file needs is not there."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
SECONDS = 500


def launch(file, num_ranks, names, seconds=SECONDS):
    """Ends with 0, 1 or SKIPPED; ranks that need more seconds are killed."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(num_ranks):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(num_ranks), MESHARD_TEST_STORE=f"{folder}/store", OMP_NUM_THREADS="1")
            # By other host names NCCL takes ranks for ones on several hosts, which may share a GPU; else their messages go by way of the host.
            if environment.get("MESHARD_TEST_SHARED_GPU") == "nccl":
                environment.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
            ranks.append(subprocess.Popen([sys.executable, str(HERE / "ranks.py"), file, *names], env=environment))
        end = time.monotonic() + seconds
        codes = [None] * num_ranks
        while None in codes and not any(codes) and time.monotonic() < end:
            time.sleep(0.05)
            codes = [rank.poll() for rank in ranks]
        if any(codes):   # others may wait for the one that failed: they have a moment to say what they know
            time.sleep(1)
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
        codes = [rank.wait() for rank in ranks]
    failed = [code for code in codes if code not in (0, SKIPPED, -9)]
    if failed or (-9 in codes and SKIPPED not in codes):
        print(f"{file} on {num_ranks} ranks: exit codes {codes}", file=sys.stderr)
        return 1
    return SKIPPED if SKIPPED in codes else 0


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
