# SPDX-License-Identifier: Apache-2.0
"""Times meshard's Transolver against the same model in eager PyTorch, alternating. Not a test: figures for docs/benchmarks.md.

    build/venv/bin/python tests/models/eager_transolver_benchmark.py build/release/bin/meshard --points 16384 --threads 1 --rounds 5
    build/venv/bin/python tests/models/eager_transolver_benchmark.py build/gpu/bin/meshard --points 1000000 --device cuda --precision bfloat16 --compile

The Python must be able to import torch 2.11: apps/setup.sh leaves out what only Python needs, so take an environment of its own (`pip install torch==2.11.0`).

One round runs meshard, PyTorch, and PyTorch with a C library that keeps freed memory, each in a process of its own. Shown are microseconds a
point, medians over the rounds, and the ratio of the better PyTorch setting to meshard, a median of the rounds' own. With one thread CPU
seconds count, which other programs on the machine disturb less. On a GPU wall time counts. --precision float32, the default, means products of full single
precision on both sides, tf32 products in TF32; bfloat16 is autocast's in PyTorch. --compile adds a process with torch.compile.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

EAGER = ("PyTorch", "PyTorch, memory kept")
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


def make_model(torch, channels, layers, heads, slices, ratio, inputs, outputs):
    nn = torch.nn

    class Mlp(nn.Module):
        def __init__(self, i, h, o):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(i, h), nn.GELU(), nn.Linear(h, o))

        def forward(self, x):
            return self.layers(x)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            d = channels // heads
            self.temperature = nn.Parameter(torch.full((1, 1, heads, 1), 0.5))
            self.in_x, self.in_fx = nn.Linear(channels, channels), nn.Linear(channels, channels)
            self.slice, self.qkv, self.out = nn.Linear(d, slices), nn.Linear(d, 3 * d, bias=False), nn.Linear(channels, channels)

        def forward(self, x):
            b, n, c = x.shape
            x_mid = self.in_x(x).view(b, n, heads, c // heads)
            fx_mid = self.in_fx(x).view(b, n, heads, c // heads)
            w = torch.softmax(self.slice(x_mid) / torch.clamp(self.temperature, 0.5, 5), dim=-1)
            normed = w / (w.sum(1) + 1e-2).unsqueeze(1)
            token = torch.matmul(normed.permute(0, 2, 3, 1), fx_mid.permute(0, 2, 1, 3))
            q, k, v = self.qkv(token).chunk(3, dim=-1)
            token = nn.functional.scaled_dot_product_attention(q, k, v)
            y = torch.matmul(w.permute(0, 2, 1, 3), token)
            return self.out(y.permute(0, 2, 1, 3).reshape(b, n, c))

    class Block(nn.Module):
        def __init__(self, last):
            super().__init__()
            self.ln_1, self.attention = nn.LayerNorm(channels), Attention()
            self.mlp = nn.Sequential(nn.LayerNorm(channels), Mlp(channels, ratio * channels, channels))
            self.head = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, outputs)) if last else None

        def forward(self, x):
            x = x + self.attention(self.ln_1(x))
            x = x + self.mlp(x)
            return self.head(x) if self.head else x

    return nn.Sequential(Mlp(inputs, 2 * channels, channels), *[Block(i + 1 == layers) for i in range(layers)])


def time_peer(arguments):
    """Of one shape, or of those of --shapes, each on a line of its own; of one that fails, the error."""
    import torch

    torch.set_num_threads(arguments.threads)
    if not arguments.shapes:
        return print(json.dumps(times_of(torch, arguments, arguments.points, arguments.slices, arguments.precision, "whole" if arguments.compile else "eager")))
    for shape in arguments.shapes:
        points, slices, precision, form = shape.split(":")
        try:
            found = times_of(torch, arguments, int(points), int(slices), precision, form)
        except Exception as error:   # memory, or one of the many kinds of the compiler
            found = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"}
        print(json.dumps({"points": int(points), "slices": int(slices), "precision": precision, "form": form, **found}), flush=True)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


def times_of(torch, arguments, points, slices, precision, form):
    """Microseconds a point. form: eager, whole (torch.compile of the model) or blocks (of each block: alike, so that one is compiled for all)."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    model = make_model(torch, arguments.hidden, arguments.layers, arguments.heads, slices, 2, 7, 4)
    model.to(arguments.device)
    torch._dynamo.reset()
    if form == "whole":
        model = torch.compile(model, dynamic=False)
    elif form == "blocks":
        for part in model:
            part.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, target = (torch.rand(1, points, width, device=arguments.device) for width in (7, 4))
    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)

    def predict():
        with torch.autocast(arguments.device, half or torch.bfloat16, enabled=half is not None):
            return model(x).float()

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(predict(), target)
        (loss * 1024 if half is torch.float16 else loss).backward()
        optimizer.step()

    def infer():
        with torch.no_grad():
            predict()

    def median(work):
        work()
        if arguments.device == "cuda":
            torch.cuda.synchronize()
        wall, cpu = [], []
        for _ in range(arguments.repeats):
            start, start_cpu = time.perf_counter(), time.process_time()
            work()
            if arguments.device == "cuda":
                torch.cuda.synchronize()
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - start_cpu)
        return statistics.median(wall) / points * 1e6, statistics.median(cpu) / points * 1e6

    training, inference = median(step), median(infer)
    return {"training_us_per_point": training[0], "training_cpu_us_per_point": training[1],
            "inference_us_per_point": inference[0], "inference_cpu_us_per_point": inference[1]}


def ratios_of(found, work, peers):
    """Of each round: the better of some peers' time over meshard's."""
    return [min(times) / own for *times, own in zip(*(found[name][work] for name in peers), found["meshard"][work])]


def summary(found):
    """Microseconds a point, and how many times as fast as eager and as compiled PyTorch meshard is; medians."""
    shown = {f"{name}, {work}": statistics.median(times[work]) for name, times in found.items() for work in ("training", "inference")}
    for word, peers in (("", EAGER), ("_as_compiled", ("PyTorch, compiled",))):
        if set(peers) <= set(found):
            shown.update({f"{work}_times_as_fast{word}": statistics.median(ratios_of(found, work, peers)) for work in ("training", "inference")})
    return shown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("meshard", help="the program")
    parser.add_argument("--points", type=int, default=16384)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--slices", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--compile", action="store_true", help="time torch.compile, too")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end instead of the report")
    parser.add_argument("--repeats", type=int, default=3, help="steps that are timed in a process")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", metavar="POINTS:SLICES:PRECISION:FORM", help="for --peer: several runs in one process; forms are eager, whole, blocks")
    parser.add_argument("--peer", action="store_true", help="be PyTorch's process")
    arguments = parser.parse_args()
    if arguments.peer:
        return time_peer(arguments)

    shape = [f"--{name}={getattr(arguments, name)}" for name in ("points", "hidden", "layers", "heads", "slices", "repeats", "device", "precision")]
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
    peer = [sys.executable, os.path.abspath(__file__), "-", "--peer", f"--threads={arguments.threads}", *shape]
    runs = {"meshard": ([arguments.meshard, "bench", "model", "--json", *shape], environment),
            "PyTorch": (peer, environment),
            "PyTorch, memory kept": (peer, {**environment, **KEEP_MEMORY})}
    if arguments.compile:
        runs["PyTorch, compiled"] = ([*peer, "--compile"], environment)
    kind = "cpu_us_per_point" if arguments.threads == 1 and arguments.device == "cpu" else "us_per_point"
    found = {name: {"training": [], "inference": []} for name in runs}
    shares = []
    for _ in range(arguments.rounds):
        for name, (command, variables) in runs.items():
            result = json.loads(subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout)
            for work in ("training", "inference"):
                found[name][work].append(result[f"{work}_{kind}"])
            if "share_of_sgemm" in result:
                shares.append(result["share_of_sgemm"])
    if arguments.json:
        return print(json.dumps(summary(found)))
    print(f"{arguments.points} points, {arguments.device}, {arguments.precision}, {arguments.threads} thread(s), {arguments.rounds} rounds; microseconds a point")
    for name, times in found.items():
        print(f"  {name:22s} training {statistics.median(times['training']):6.1f}   inference {statistics.median(times['inference']):6.1f}")
    for work in ("training", "inference"):
        ratios = ratios_of(found, work, EAGER)
        print(f"  {work}: {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"  share of the sgemm rate in training: {100 * statistics.median(shares):.0f} %")


main()
