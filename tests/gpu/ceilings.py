# SPDX-License-Identifier: Apache-2.0
"""What a device can do, by PyTorch: `ceilings.py DEVICE SIZE BYTES` prints one JSON object with gigabytes copied a second (read and written) and Tflop/s of
products of SIZE x SIZE matrices."""
import json
import statistics
import sys
import time

import torch


def seconds(device, work):
    def done():
        if device == "cuda":
            torch.cuda.synchronize()

    work()
    done()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        done()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main(device, size, count):
    source = torch.ones(count // 4, device=device)
    target = torch.empty_like(source)
    found = {"copied_gb_per_second": 2 * count / seconds(device, lambda: target.copy_(source)) * 1e-9}
    for name, kind, allow in (("float32", torch.float32, False), ("tf32", torch.float32, True), ("bfloat16", torch.bfloat16, False)):
        if device != "cuda" and name == "tf32":
            continue
        torch.backends.cuda.matmul.allow_tf32 = allow
        a, b = (torch.rand(size, size, device=device, dtype=kind) for _ in range(2))
        found[f"{name}_tflops"] = 2 * size ** 3 / seconds(device, lambda: a @ b) * 1e-12
    print(json.dumps(found))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
