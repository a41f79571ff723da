# SPDX-License-Identifier: Apache-2.0
"""The steps of run.sh: tests on a GPU, then figures, each beside its goal. See there for the options."""
import argparse
import json
import math
import os
import pathlib
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PHASE_SECONDS = 560     # of a call that may last ten minutes
SHAPE = {"layers": 8, "hidden": 256, "heads": 8}
SHORT_SHAPE = {"layers": 1, "hidden": 16, "heads": 2}
SHORT_TRAINING = ["model.n_layers=1", "model.n_hidden=16", "model.n_head=2", "model.slice_num=4", "data.split.train=[003,005,011]", "data.split.val=[012]",
                  "data.split.test=[013]", "~data.split.column"]


class Missing(Exception):
    """Something that this machine or build does not have."""


class Failed(Exception):
    """Something that should not be so."""


def last_lines(text, count=6):
    return " | ".join(text.strip().splitlines()[-count:])[-900:]


class Day:
    """Where steps run, and what they found."""

    def __init__(self, options):
        self.device, self.is_short, self.out = options.device, options.short, options.out
        self.programs = options.programs
        self.deadline = time.monotonic() + PHASE_SECONDS
        self.limit = 0                  # of the step that runs, as of time.monotonic()
        self.log = None
        self.torch = torch_folder()
        self.figures = {}               # of all steps, by name
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="meshard-gpu-"))

    @property
    def is_dry(self):
        return self.device != "cuda"

    def environment(self, *, on_device=True, **more):
        variables = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1" if self.is_short else str(os.cpu_count())), **more}
        libraries = [self.programs.parent / "lib", *([self.torch / "lib"] if self.torch else [])]
        variables["LD_LIBRARY_PATH"] = ":".join([*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        if self.torch:
            variables["MESHARD_TORCH"] = str(self.torch)
        if self.device == "standin" and on_device:
            variables["LD_PRELOAD"] = str(standin_library(self.programs))
        return variables

    def start(self, words, environment):
        self.log.write(f"$ {' '.join(map(str, words))}\n")
        self.log.flush()
        return subprocess.Popen([str(word) for word in words], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)

    def finish(self, process, words):
        try:
            output, _ = process.communicate(timeout=max(1, self.limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            self.log.write(output + "\n(stopped at its time limit)\n")
            raise Failed(f"`{' '.join(map(str, words))[:120]}` was stopped at its time limit; it said: {last_lines(output)}") from None
        self.log.write(output + f"\n(exit code {process.returncode})\n")
        return process.returncode, output

    def run(self, words, **options):
        """The output of a program that ends well within the step's time."""
        code, output = self.finish(self.start(words, self.environment(**options)), words)
        if code != 0:
            raise Failed(f"exit code {code} of `{' '.join(map(str, words))[:120]}`: {last_lines(output)}")
        return output

    def program(self, name):
        path = self.programs / name
        if not path.exists():
            raise Missing(f"the program {name} is not in {self.programs}")
        return path


def torch_folder():
    """The folder `torch` of LibTorch's wheel, None if the programs must find it themselves."""
    candidates = [pathlib.Path(os.environ["MESHARD_TORCH"])] if os.environ.get("MESHARD_TORCH") else sorted(SOURCE.glob("build/venv/lib/python3*/site-packages/torch"))
    if not candidates:
        found = subprocess.run([sys.executable, "-c", "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"],
                               capture_output=True, text=True).stdout.strip()
        candidates = [pathlib.Path(found)] if found else []
    return next((path for path in candidates if (path / "lib/libtorch_cpu.so").exists()), None)


def standin_library(programs):
    return programs.parent / "lib/libmeshard_standin.so"


def relative(a, b):
    return abs(a - b) / max(abs(a), abs(b), 1e-30)


# --- tests -----------------------------------------------------------------------------------------------------------------

def machine(day):
    """What runs here."""
    found = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "device": day.device, "torch": str(day.torch)}
    if day.device == "cuda":
        if not shutil.which("nvidia-smi"):
            raise Missing("nvidia-smi: no driver of NVIDIA's on this machine")
        found["gpus"] = day.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]).strip().splitlines()
    return found


def programs_start(day):
    """Both programs start, with all libraries that they need."""
    lost = [line.strip() for line in day.run(["ldd", day.program("meshard-models")], on_device=False).splitlines() if "not found" in line]
    if lost:
        raise Failed("libraries are missing: " + ", ".join(lost))
    return {"version": day.run([day.program("meshard"), "--version"]).splitlines()[0]}


def python_with_torch(day):
    """A Python that imports torch; its figures are an oracle, the programs do without it."""
    python = next((candidate for candidate in (os.environ.get("MESHARD_TORCH_PYTHON"), sys.executable) if candidate and
                   subprocess.run([candidate, "-c", "import torch"], capture_output=True).returncode == 0), None)
    if python is None:
        raise Missing("a Python with torch (MESHARD_TORCH_PYTHON names one)")
    return python


def ceilings(day):
    """What the device can do: bytes copied and products a second."""
    if day.device == "standin":
        raise Missing("speed of its own: the stand-in computes on the CPU")
    size, bytes_ = (256, 1 << 22) if day.is_short else (8192, 1 << 32) if day.device == "cuda" else (1024, 1 << 28)
    text = day.run([python_with_torch(day), SOURCE / "tests/gpu/ceilings.py", day.device, size, bytes_])
    return json.loads(text.splitlines()[-1])


def counts_of(path):
    """Of GoogleTest's JSON: passed, skipped, and the names of those that failed."""
    passed, skipped, failed = 0, 0, []
    for suite in json.loads(path.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            if test.get("failures"):
                failed.append(f"{suite['name']}.{test['name']}")
            elif test.get("result") == "SKIPPED":
                skipped += 1
            else:
                passed += 1
    return passed, skipped, failed


def gtest(day, name, filter_, before=()):
    report = day.folder / f"{name}.json"
    report.unlink(missing_ok=True)
    words = [*before, day.program(name), f"--gtest_filter={filter_}", f"--gtest_output=json:{report}", "--gtest_brief=1"]
    code, output = day.finish(day.start(words, day.environment(MESHARD_TEST_DEVICE=day.device, OMP_NUM_THREADS="1")), words)
    if not report.exists():
        raise Failed(f"{name} ended with exit code {code} and no report: {last_lines(output)}")
    passed, skipped, failed = counts_of(report)
    if failed or code != 0:
        raise Failed(f"{len(failed)} of {name} failed (exit code {code}): {', '.join(failed[:8])}")
    if passed == 0:
        raise Missing(f"a device for {name}: all {skipped} tests were skipped")
    return {"passed": passed, "skipped": skipped}


def listed_tests(day):
    """The programs and filters of the tests labelled gpu, as the build wrote them."""
    path = day.programs.parent / "gpu_tests.txt"
    if not path.exists():
        raise Missing(f"{path}, which the build writes")
    return dict(line.split() for line in path.read_text().splitlines())


def kernels(day):
    """Kernels against the same code on the host."""
    if day.device != "cuda":
        raise Missing("kernels of CUDA: they run on GPUs alone")
    return gtest(day, "gpu_tests", "*")


def operators(day):
    """Rules and operators on the device against the CPU."""
    if day.device == "standin" and day.is_short:
        raise Missing("time: `ctest -L standin` has these tests")
    tests = listed_tests(day)
    return gtest(day, "ops_tests", "Reductions.Equal*" if day.is_short else tests["ops_tests"])


def sanitized(day):
    """Kernels under compute-sanitizer."""
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if day.device != "cuda" or tool is None:
        raise Missing("compute-sanitizer" if day.device == "cuda" else "kernels of CUDA: they run on GPUs alone")
    for checker in ("memcheck", "racecheck"):
        gtest(day, "gpu_tests", "*", before=[tool, "--tool", checker, "--error-exitcode", "9"])
    return {"errors": 0, **{f"operators_{key}": value for key, value in gtest(day, "ops_tests", "GpuOperators.*", before=[tool, "--error-exitcode", "9"]).items()}}


def steps_of(day):
    return 4 if day.is_short else 20


def train(day, name, device, *settings, ranks=1, on_device=None, **variables):
    """Trains on the sample's cases; losses of its steps, by number."""
    words = [day.program("meshard"), "train", SOURCE / "apps/sample/ahmed.yaml", *training_settings(day, name), *settings, "--overwrite", "--device", device]
    if ranks > 1:
        words[3:3] = ["--nproc", str(ranks)]
    text = day.run(words, on_device=device == day.device if on_device is None else on_device, **variables)
    return losses(day, name), text


def training_settings(day, name):
    return [f"data.root={SOURCE / 'apps/sample'}", f"run_id={name}", f"output_dir={day.folder / 'runs'}", "training.num_epochs=2",
            f"training.max_steps={steps_of(day)}", "training.scheduler.warmup_steps=2", "training.val_interval=2",
            "data.sampling_resolution=0", "training.optimizer={name: adamw, lr: 3.0e-3}",   # all points; Muon multiplies in bfloat16 on GPUs
            *(SHORT_TRAINING if day.is_short else [])]


def losses(day, name):
    lines = map(json.loads, (day.folder / "runs" / name / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if line["phase"] == "train_step"}


def differ(first, second):
    if not first or sorted(first) != sorted(second):
        raise Failed(f"other steps: {sorted(first)} and {sorted(second)}")
    if not all(math.isfinite(loss) for loss in (*first.values(), *second.values())):
        raise Failed("losses are not finite")
    return max(relative(first[step], second[step]) for step in first)


def training_agrees(day):
    """ahmed.yaml on the CPU and on the device: the same losses."""
    on_cpu, _ = train(day, "cpu", "cpu")
    on_device, text = train(day, "device", day.device)
    if day.device != "cpu" and day.device not in text:
        raise Failed(f"the run does not say that it is on {day.device}: {last_lines(text)}")
    difference = differ(on_cpu, on_device)
    if difference > 1e-3:
        raise Failed(f"losses differ by {difference:.2e}")
    return {"steps": len(on_cpu), "largest_loss_difference": difference, "last_loss": on_device[max(on_device)]}


def resumes(day):
    """A run of the CPU goes on on the device, and one of the device on the CPU."""
    half = max(1, steps_of(day) // 2)
    found = {}
    for first, second in (("cpu", day.device), (day.device, "cpu")):
        name = f"{first}-{second}"
        train(day, name, first, f"training.max_steps={half}")
        day.run([day.program("meshard"), "train", "--resume", day.folder / "runs" / name, f"training.max_steps={steps_of(day)}", "--device", second],
                on_device=second == day.device)
        found[name] = differ(losses(day, "cpu"), losses(day, name))
    if max(found.values()) > 1e-3:
        raise Failed(f"losses differ from those of a run in one go: {found}")
    return {"largest_loss_difference": max(found.values())}


def records(day):
    """Steps that are recorded and run again: the losses of steps that run as they are, and the time of each."""
    if day.device == "cpu":
        raise Missing("a device: on CPUs nothing is recorded")
    same_shapes = ("data.sampling_resolution=256", "training.val_interval=100")
    as_they_are, _ = train(day, "as-they-are", day.device, *same_shapes)
    recorded, text = train(day, "recorded", day.device, *same_shapes, "training.graph_capture=true")
    found = re.search(r"(\d+) of (\d+) steps ran from there", text)
    if not found:
        raise Failed(f"no step was recorded: {last_lines(text)}")
    difference = differ(as_they_are, recorded)
    if difference > (1e-6 if day.device == "cuda" else 0):   # cuBLAS has another workspace in a graph
        raise Failed(f"losses differ by {difference:.2e}")
    seconds = [sorted(line["seconds"] for line in map(json.loads, (day.folder / "runs" / name / "metrics.jsonl").read_text().splitlines())
                      if line["phase"] == "train_step")[0] for name in ("as-they-are", "recorded")]
    return {"steps_from_a_graph": int(found[1]), "largest_loss_difference": difference, "seconds_as_they_are": seconds[0], "seconds_recorded": seconds[1]}


def ranges_of(day, path):
    arrays = json.loads(day.run([day.program("meshard"), "info", path, "--json"], on_device=False))["arrays"]
    return {array["name"]: array["component_ranges"] for array in arrays}


def predicts(day):
    """A run's fields on a new mesh, from the CPU and from the device."""
    found = []
    for device in ("cpu", day.device):
        output = day.folder / f"predicted-{device}.vtp"
        day.run([day.program("meshard"), "predict", day.folder / "runs/cpu", SOURCE / "apps/sample/boundary_041.vtp", "-o", output, "--device", device],
                on_device=device == day.device)
        found.append(ranges_of(day, output))
    worst = 0.0
    for name, ranges in found[0].items():
        for ours, theirs in zip(ranges, found[1][name]):
            width = max(ours[1] - ours[0], 1e-30)
            worst = max(worst, abs(ours[0] - theirs[0]) / width, abs(ours[1] - theirs[1]) / width)
    if worst > 1e-3:
        raise Failed(f"ranges of the fields differ by {worst:.2e} of their width")
    return {"largest_field_difference": worst}


def probes(day):
    """A TorchScript model cut over ranks."""
    tensor = day.folder / "x.safetensors"
    header = json.dumps({"input": {"dtype": "F32", "shape": [2, 3, 16, 16], "data_offsets": [0, 4 * 1536]}}).encode()
    tensor.write_bytes(len(header).to_bytes(8, "little") + header + struct.pack("<1536f", *map(math.sin, range(1536))))
    day.run([day.program("meshard"), "probe", SOURCE / "tests/data/programs/unet.pt", "--input", tensor, "--shard", "2", "--nproc", "2", "--backward", "--device", day.device])
    return {}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train_by_hand(day, name, ranks):
    """As torchrun starts ranks, each with a host name of its own for NCCL, which otherwise refuses two ranks on a GPU."""
    words = [day.program("meshard"), "train", SOURCE / "apps/sample/ahmed.yaml", *training_settings(day, name), "--overwrite", "--device", day.device]
    port = str(free_port())
    processes = [day.start(words, day.environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                                                  MASTER_PORT=port, NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1"))
                 for rank in range(ranks)]
    try:
        results = [day.finish(process, words) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, 9)
    if any(code for code, _ in results):
        raise Failed("; ".join(f"rank {rank}: exit code {code}: {last_lines(text, 2)}" for rank, (code, text) in enumerate(results)))
    return losses(day, name), "".join(text for _, text in results)


def ranks(day):
    """2 and 4 ranks, over the device's transport and by way of the host: one rank's losses."""
    alone = losses(day, "device")
    found = {}
    for count in (2,) if day.is_short else (2, 4):
        shared, _ = train(day, f"host{count}", day.device, ranks=count)
        found[f"host_{count}"] = differ(alone, shared)
        if day.device == "cuda":
            shared, text = train_by_hand(day, f"nccl{count}", count)
            if "nccl" not in text:
                raise Failed(f"the run does not say that it went over NCCL: {last_lines(text)}")
            found[f"nccl_{count}"] = differ(alone, shared)
    if max(found.values()) > 1e-3:
        raise Failed(f"losses differ from one rank's: {found}")
    return {**found, "largest_loss_difference": max(found.values())}


# --- figures -----------------------------------------------------------------------------------------------------------------

def bench(day, points, slices, precision, memory):
    shape = {**(SHORT_SHAPE if day.is_short else SHAPE), "points": points, "slices": slices, "precision": precision, "memory": memory, "repeats": 1 if day.is_short else 3}
    words = [day.program("meshard"), "bench", "model", "--json", "--device", day.device, *(f"--{name}={value}" for name, value in shape.items())]
    code, output = day.finish(day.start(words, day.environment()), words)
    if code != 0:
        raise Failed(last_lines(output, 2))
    text = output[output.index("{"):]
    return json.loads(text[:text.rindex("}") + 1])


def speed_in(day, points, slices, precision):
    """The fastest memory mode that fits."""
    problems = []
    for memory in ("stored", "recomputed", "streamed"):
        try:
            found = bench(day, points, slices, precision, memory)
        except Failed as problem:
            problems.append(f"{memory}: {problem}")
            if "--precision" in str(problem):
                raise Missing(f"precision {precision} of `bench model`: {problem}") from None
            continue
        return {"memory": memory, "points_per_second": 1e6 / found["training_us_per_point"], "inference_points_per_second": 1e6 / found["inference_us_per_point"],
                "peak_bytes": found["peak_bytes"], **({"does_not_fit": problems} if problems else {})}
    raise Failed("; ".join(problems))


def speeds(points, slices):
    """Training and inference of a Transolver in three precisions."""
    def step(day):
        found, absent = {}, []
        for precision in ("bfloat16", "tf32", "float32"):
            try:
                found[precision] = speed_in(day, points // 2000 if day.is_short else points, slices // 16 if day.is_short else slices, precision)
            except Missing as what:
                absent.append(str(what))
        if not found:
            raise Missing("; ".join(absent))
        return {**found, **({"absent": absent} if absent else {})}
    step.__doc__ = f"{points / 1e6:g} M points, {slices} slices: training in three precisions."
    return step


def eager(day):
    """The same model in PyTorch, eager and compiled, beside ours."""
    if day.device == "standin":
        raise Missing("PyTorch for the stand-in")
    python = python_with_torch(day)
    found = {}
    for precision in ("bfloat16", "float32"):
        shape = {**(SHORT_SHAPE if day.is_short else SHAPE), "points": 500 if day.is_short else 1_000_000, "slices": 4 if day.is_short else 64,
                 "rounds": 1, "repeats": 1 if day.is_short else 3, "device": day.device, "precision": precision, "threads": 1 if day.is_short else os.cpu_count()}
        words = [python, SOURCE / "tests/models/eager_transolver_benchmark.py", day.program("meshard"), "--json", *(f"--{name}={value}" for name, value in shape.items())]
        note = {}
        try:
            text = "" if day.is_dry else day.run([*words, "--compile"])
        except Failed as problem:   # torch.compile wants a C compiler, for one
            text, note = "", {"not_compiled": str(problem)}
        found[precision] = {**json.loads((text or day.run(words)).splitlines()[-1]), **note}
    return found


def attention(day):
    """Attention in the pieces that ranks compute, beside the whole one by LibTorch."""
    words = [day.program("attention_benchmark"), day.device, 256 if day.is_short else 32768]
    lines = [json.loads(line) for line in day.run(words).splitlines() if line.startswith("{")]
    return {line.pop("type"): line for line in lines}


# Name, seconds at most, step. The most important come first: when a phase's time is used up, the rest is left out.
PHASES = {
    "tests": [("machine", 20, machine), ("programs start", 60, programs_start), ("ceilings", 60, ceilings), ("kernels", 60, kernels),
              ("training agrees", 120, training_agrees), ("ranks", 150, ranks), ("resumes", 60, resumes), ("records", 60, records), ("predicts", 40, predicts), ("probes", 60, probes),
              ("operators", 200, operators), ("sanitizer", 150, sanitized)],
    "figures": [("machine", 20, machine), ("1 M points, 64 slices", 120, speeds(1_000_000, 64)), ("eager", 150, eager), ("attention", 40, attention),
                ("8.8 M points, 64 slices", 150, speeds(8_800_000, 64)), ("0.1 M points, 64 slices", 60, speeds(100_000, 64)),
                ("4 M points, 64 slices", 100, speeds(4_000_000, 64)), ("1 M points, 512 slices", 100, speeds(1_000_000, 512)),
                ("0.1 M points, 512 slices", 60, speeds(100_000, 512)), ("4 M points, 512 slices", 120, speeds(4_000_000, 512)),
                ("8.8 M points, 512 slices", 150, speeds(8_800_000, 512)), ("ceilings", 60, ceilings)],
}
# What a short run leaves out, because it repeats other steps at another size; and what may be missing in a dry run, because it needs a GPU or PyTorch.
NOT_SHORT = ("0.1 M points, 64 slices", "4 M points, 64 slices", "0.1 M points, 512 slices", "4 M points, 512 slices", "8.8 M points, 512 slices")
NOT_DRY = ("attention", "ceilings", "kernels", "sanitizer", "eager", "operators", "records")
# What is shown beside the figures: name, goal, step, path of the figure in it, whether it is reached.
GOALS = [
    ("losses of CPU and device over 20 steps", "<= 1e-4", "training agrees", ("largest_loss_difference",), lambda value: value <= 1e-4),
    ("losses of several ranks against one", "<= 1e-4", "ranks", ("largest_loss_difference",), lambda value: value <= 1e-4),
    ("errors under compute-sanitizer", "0", "sanitizer", ("errors",), lambda value: value == 0),
    ("training, 1 M points, S=64, bfloat16, points/s", ">= 8e6", "1 M points, 64 slices", ("bfloat16", "points_per_second"), lambda value: value >= 8e6),
    ("training, 1 M points, S=512, bfloat16, points/s", ">= 4e6", "1 M points, 512 slices", ("bfloat16", "points_per_second"), lambda value: value >= 4e6),
    ("training, 1 M points, S=64, float32, points/s", "> 0", "1 M points, 64 slices", ("float32", "points_per_second"), lambda value: value > 0),
    ("times as fast as eager PyTorch, bfloat16", ">= 2", "eager", ("bfloat16", "training_times_as_fast"), lambda value: value >= 2),
    ("attention in four pieces, times the whole one, bfloat16", "<= 1.2", "attention", ("bfloat16", "full_four_pieces_over_whole"), lambda value: value <= 1.2),
    ("training, 8.8 M points, S=64, bfloat16, points/s", "> 0", "8.8 M points, 64 slices", ("bfloat16", "points_per_second"), lambda value: value > 0),
]


def goals_of(day, steps):
    rows = []
    for name, goal, step, path, is_reached in GOALS:
        if step not in steps:
            continue
        value = steps[step]["figures"]
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        state = steps[step]["outcome"] if value is None else "dry run" if day.is_dry else "reached" if is_reached(value) else "NOT REACHED"
        rows.append({"name": name, "goal": goal, "figure": value, "state": state})
    return rows


def run_phase(day, phase):
    results = {}
    with open(day.out / f"{phase}.log", "w") as day.log:
        for name, seconds, step in PHASES[phase]:
            if day.is_short and name in NOT_SHORT:
                continue
            start = time.monotonic()
            day.limit = min(day.deadline, start + seconds)
            outcome, note, figures = "passed", "", {}
            try:
                if day.deadline - start < 5:
                    raise Missing("time: the phase's is used up")
                day.log.write(f"\n=== {name}: {step.__doc__}\n")
                figures = step(day)
            except Missing as what:
                outcome, note = "missing", str(what)
            except Failed as what:
                outcome, note = "FAILED", str(what)
            results[name] = {"outcome": outcome, "seconds": round(time.monotonic() - start, 2), "note": note, "figures": figures}
            print(f"{outcome:8s}{time.monotonic() - start:7.1f} s  {name}{': ' + note if note else ''}", flush=True)
            write(day, phase, results)
    return results


def write(day, phase, results):
    """After each step, so that what was found outlives whatever comes."""
    text = json.dumps({"phase": phase, "device": day.device, "short": day.is_short, "steps": results, "goals": goals_of(day, results),
                       "missing": [f"{name}: {step['note']}" for name, step in results.items() if step["outcome"] == "missing"]}, indent=2)
    (day.out / f"{phase}.json").write_text(text + "\n")


def show_goals(rows):
    width = max(len(row["name"]) for row in rows)
    print(f"\n{'':{width}s}  {'goal':>10s}  {'found':>12s}")
    for row in rows:
        figure = "-" if row["figure"] is None else f"{row['figure']:.4g}"
        print(f"{row['name']:{width}s}  {row['goal']:>10s}  {figure:>12s}  {row['state']}")


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description="Tests and figures on a GPU; see the head of tests/gpu/run.sh.")
    parser.add_argument("--device", choices=("cuda", "standin", "cpu"), default="cuda")
    parser.add_argument("--phase", choices=(*PHASES, "all"), default="all")
    parser.add_argument("--programs", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=SOURCE / "build/gpu-results")
    parser.add_argument("--short", action="store_true", help="small models and few steps, for a dry run")
    options = parser.parse_args()
    if options.programs is None:
        candidates = [SOURCE / "build" / name for name in ("gpu-pack/bin", "gpu/bin", "release/bin")]
        options.programs = next((path for path in candidates if (path / "meshard-models").exists()), None)
    if options.programs is None or not (options.programs / "meshard").exists():
        parser.error(f"there is no program meshard in {options.programs or 'build/*/bin'}. Build it, or run `bash tests/gpu/run.sh pack` first.")
    options.programs = options.programs.resolve()
    if options.device == "standin" and not standin_library(options.programs).exists():
        parser.error(f"there is no {standin_library(options.programs)}: build the target meshard_standin.")
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for phase in PHASES if options.phase == "all" else [options.phase]:
        day = Day(options)
        try:
            print(f"--- {phase}, on {options.device}{', short' if options.short else ''}: {options.out / phase}.json")
            results = run_phase(day, phase)
        finally:
            shutil.rmtree(day.folder, ignore_errors=True)
        show_goals(goals_of(day, results))
        failed |= any(step["outcome"] == "FAILED" or (day.is_dry and step["outcome"] == "missing" and name not in NOT_DRY) for name, step in results.items())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
