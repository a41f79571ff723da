#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of one file on several ranks: `run.py modules_test.py 3`, or some of them: `run.py modules_test.py 3 linear gru`.

Each rank is a forked process that imports the file and calls its functions `test_...` in turn, with what `ranks.py` gives. The first case that fails on a rank
ends all ranks. Ends with 77 if the package or something that the file needs is not there."""
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time

import ranks

SKIPPED = 77
SECONDS = 500


def _become_rank(rank, num_ranks, folder, file, names):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(num_ranks), MESHARD_TEST_STORE=f"{folder}/store")
    # By other host names NCCL takes ranks for ones on several hosts, which may share a GPU; else their messages go by way of the host.
    if os.environ.get("MESHARD_TEST_SHARED_GPU") == "nccl":
        os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    sys.exit(ranks.run(file, names))


def launch(file, num_ranks, names, seconds=SECONDS):
    """Ends with 0, 1 or SKIPPED; ranks that need more seconds are killed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if ranks.device() != "cuda":   # whose driver does not survive a fork
        with contextlib.suppress(ImportError):   # each rank says it
            import torch   # once for all ranks: two seconds
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_become_rank, args=(rank, num_ranks, folder, file, names)) for rank in range(num_ranks)]
        for process in processes:
            process.start()
        end = time.monotonic() + seconds
        codes = [None] * num_ranks
        while None in codes and not any(codes) and time.monotonic() < end:
            multiprocessing.connection.wait([process.sentinel for process in processes if process.exitcode is None], 0.05)
            codes = [process.exitcode for process in processes]
        if any(codes):   # others may wait for the one that failed: they have a moment to say what they know
            time.sleep(1)
        for process in processes:
            process.kill()
            process.join()
        codes = [process.exitcode for process in processes]
    failed = [code for code in codes if code not in (0, SKIPPED, -9)]
    if failed or (-9 in codes and SKIPPED not in codes):
        print(f"{file} on {num_ranks} ranks: exit codes {codes}", file=sys.stderr)
        return 1
    return SKIPPED if SKIPPED in codes else 0


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
