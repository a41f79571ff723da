# SPDX-License-Identifier: Apache-2.0
"""Ranks as forks of a process that has imported what they need: each run has ranks of its own, so that one that fails or waits for ever harms no other."""
import json
import os
import select
import signal
import tempfile
import time

import torch
import torch.distributed as dist

NEEDS_GPU = ("cuda", "nvidia driver", "nccl", "_for_cpu", "processgroupgloo")   # what only says no because the tensors lie on CPUs, or travel over Gloo


def described(error):
    lines = str(error).strip().splitlines()
    if "re-initialize CUDA" in str(error):   # what torch says for "found no NVIDIA driver" in a fork
        return "RuntimeError: calls torch.cuda"
    return f"{type(error).__name__}: {' '.join(lines[0].split()) if lines else ''}"[:200]


def _rank_main(function, rank, size, store, pipe):
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        answer = ["answer", function()]
    except BaseException as error:   # an answer, too
        said = described(error)
        answer = ["needs CUDA" if any(word in said.lower() for word in NEEDS_GPU) else "refuses", getattr(error, "stage", "") + said]
    os.write(pipe, json.dumps([rank, time.monotonic(), *answer]).encode() + b"\n")
    while True:   # the parent ends all ranks when all have answered: none meets the end of another
        signal.pause()


def run(function, size, seconds):
    """("answer", what each rank's function returned), or ("refuses" | "needs CUDA", what the first rank that failed said), or ("hangs", "")."""
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
                _rank_main(function, rank, size, folder + "/store", write)
            ranks.append(child)
        answers, text, end = [], b"", time.monotonic() + seconds
        while len(answers) < size and (left := end - time.monotonic()) > 0:
            if select.select([read], [], [], min(left, .2))[0]:
                text += os.read(read, 65536)
                *lines, text = text.split(b"\n")
                answers += [json.loads(line) for line in lines]
            for child in list(ranks):
                if os.waitpid(child, os.WNOHANG)[0]:
                    ranks.remove(child)
                    answers.append([-1, 0.0, "refuses", "a rank crashed"])
            if any(answer[2] != "answer" for answer in answers):
                end = min(end, time.monotonic() + .3)   # those that wait for this rank would wait for ever
        for child in ranks:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    failed = sorted((answer for answer in answers if answer[2] != "answer"), key=lambda answer: answer[1])
    if failed:
        return tuple(failed[0][2:])
    if len(answers) < size:
        return "hangs", ""
    return "answer", [answer[3] for answer in sorted(answers)]
