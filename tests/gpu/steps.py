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


class Stopped(Failed):
    """A program that was stopped at its time limit."""

    def __init__(self, message, output):
        super().__init__(message)
        self.output = output


class Day:
    """Where steps run, and what they found."""

    def __init__(self, options):
        self.device, self.is_short, self.only, self.out = options.device, options.short, options.only, options.out
        self.programs = options.programs
        self.deadline = time.monotonic() + options.seconds
        self.limit = 0                  # of the step that runs, as of time.monotonic()
        self.log = None
        self.torch = torch_folder()
        self.million = None             # figures of 1 M points
        self.python = None              # that imports torch, once it was looked for
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
            raise Stopped(f"`{' '.join(map(str, words))[:120]}` was stopped at its time limit; it said: {last_lines(output)}", output) from None
        self.log.write(output + f"\n(exit code {process.returncode})\n")
        return process.returncode, output

    def run(self, words, **options):
        """The output of a program that ends well within the step's time."""
        code, output = self.finish(self.start(words, self.environment(**options)), words)
        if code != 0:
            raise Failed(f"exit code {code} of `{' '.join(map(str, words))[:120]}`: {last_lines(output)}")
        return output

    def data(self, name):
        """A file of the repository, of which `pack` keeps a copy."""
        path = next((folder / name for folder in (SOURCE, self.programs.parent / "source") if (folder / name).exists()), None)
        if path is None:
            raise Missing(f"{name}, neither in {SOURCE} nor in {self.programs.parent / 'source'}")
        return path

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
    if day.python:
        return day.python
    python = next((candidate for candidate in (os.environ.get("MESHARD_TORCH_PYTHON"), sys.executable) if candidate and
                   subprocess.run([candidate, "-c", "import torch"], capture_output=True).returncode == 0), None)
    if python is None:
        raise Missing("a Python with torch (MESHARD_TORCH_PYTHON names one)")
    day.python = python
    return python


def ceilings(day):
    """What the device can do: bytes copied and products a second."""
    if day.device == "standin":
        raise Missing("speed of its own: the stand-in computes on the CPU")
    size, bytes_ = (256, 1 << 22) if day.is_short else (8192, 1 << 32) if day.device == "cuda" else (1024, 1 << 28)
    text = day.run([python_with_torch(day), day.data("tests/gpu/ceilings.py"), day.device, size, bytes_])
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
    words = [day.program("meshard"), "train", day.data("apps/sample/ahmed.yaml"), *training_settings(day, name), *settings, "--overwrite", "--device", device]
    if ranks > 1:
        words[3:3] = ["--nproc", str(ranks)]
    text = day.run(words, on_device=device == day.device if on_device is None else on_device, **variables)
    return losses(day, name), text


def training_settings(day, name):
    return [f"data.root={day.data('apps/sample')}", f"run_id={name}", f"output_dir={day.folder / 'runs'}", "training.num_epochs=2",
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
        day.run([day.program("meshard"), "predict", day.folder / "runs/cpu", day.data("apps/sample/boundary_041.vtp"), "-o", output, "--device", device],
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
    day.run([day.program("meshard"), "probe", day.data("tests/data/programs/unet.pt"), "--input", tensor, "--shard", "2", "--nproc", "2", "--backward", "--device", day.device])
    return {}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train_by_hand(day, name, ranks):
    """As torchrun starts ranks, each with a host name of its own for NCCL, which otherwise refuses two ranks on a GPU."""
    words = [day.program("meshard"), "train", day.data("apps/sample/ahmed.yaml"), *training_settings(day, name), "--overwrite", "--device", day.device]
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

def run_of(points, slices, precision, memory="auto"):
    return {"points": points, "slices": slices, "precision": precision, "memory": memory}


def scaled(day, run):
    """The run as it is, or a small one of its kind."""
    if day.device == "cpu":   # where nothing is recorded
        run = {name: value for name, value in run.items() if name != "graph"}
    return {**run, "points": max(8, run["points"] // 2000), "slices": max(1, run["slices"] // 16)} if day.is_short else run


def objects_in(text):
    """JSON objects among other lines."""
    decoder, found, at = json.JSONDecoder(), [], text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
            found.append(value)
        except json.JSONDecodeError:
            end = at + 1
        at = text.find("{", end)
    return found


def reports(day, words, count, share=1.0):
    """What a program reports of `count` runs, a JSON object each, within a share of the step's time that is left; and what became of the others."""
    whole = day.limit
    day.limit = min(whole, time.monotonic() + share * (whole - time.monotonic()))
    try:
        code, output = day.finish(day.start(words, day.environment()), words)
        note = "" if code == 0 else last_lines(output, 2)
    except Stopped as stopped:
        output, note = stopped.output, "time"
    finally:
        day.limit = whole
    found = objects_in(output)
    return found + [{"error": note or "no report"}] * (count - len(found))


def bench(day, runs, repeats, share=1.0):
    """Runs of `bench model`, all in one process."""
    shape = SHORT_SHAPE if day.is_short else SHAPE
    first, *others = [",".join(f"{name}={value}" for name, value in scaled(day, run).items()) for run in runs]
    words = [day.program("meshard"), "bench", "model", "--json", "--device", day.device, f"--repeats={1 if day.is_short else repeats}",
             *(f"--{name}={value}" for name, value in shape.items()), *(f"--{word}" for word in first.split(","))]
    return reports(day, [*words, *(word for other in others for word in ("--also", other))], len(runs), share)


def bench_peers(day, runs, repeats, share=1.0):
    """The same model and shapes in PyTorch: compiled, or as it is where nothing can be compiled."""
    if day.device == "standin":
        return [{"error": "PyTorch for the stand-in"}] * len(runs)
    try:
        python = python_with_torch(day)
    except Missing as what:
        return [{"error": str(what)}] * len(runs)
    form = "eager" if day.is_dry else "blocks"
    shapes = [f"{run['points']}:{run['slices']}:{run['precision']}:{run.get('form', form) if not day.is_dry else form}" for run in (scaled(day, run) for run in runs)]
    shape = SHORT_SHAPE if day.is_short else SHAPE
    words = [python, day.data("tests/models/eager_transolver_benchmark.py"), "-", "--peer", f"--device={day.device}", f"--threads={1 if day.is_short else os.cpu_count()}",
             f"--repeats={1 if day.is_short else repeats}", *(f"--{name}={value}" for name, value in shape.items()), "--shapes", *shapes]
    return reports(day, words, len(runs), share)


def name_of(run):
    return f"{run['points']}_{run['slices']}_{run['precision']}" + ("" if run["memory"] == "auto" else f"_{run['memory']}")


def figures(runs, repeats=3, peers=None):
    """A step: runs of ours, and beside each what compiled PyTorch takes for that shape, in the same call."""
    peers = [run for run in runs if run["memory"] in ("auto", "stored")] if peers is None else peers

    def step(day):
        ours = bench(day, runs, repeats, share=0.5 if peers else 1.0)
        theirs = bench_peers(day, peers, repeats) if peers else []
        found = {}
        for run, one in zip(runs, ours):
            if "error" in one:
                found[name_of(run)] = {"error": one["error"]}
                continue
            kept = ("memory", "bytes_per_point", "peak_bytes", "output_error", "gradient_error")
            found[name_of(run)] = {"points_per_second": 1e6 / one["training_us_per_point"], "inference_points_per_second": 1e6 / one["inference_us_per_point"],
                                   **{key: one[key] for key in kept}}
            if one["graph_us_per_point"]:
                found[name_of(run)]["graph_points_per_second"] = 1e6 / one["graph_us_per_point"]
        for run, one in zip(peers, theirs):
            beside = found.setdefault(name_of(run), {})
            key = "pytorch" if run.get("form") is None else "pytorch_" + run["form"]
            if "error" in one:
                beside[key] = {"error": one["error"]}
                continue
            speed = {"form": one["form"], "points_per_second": 1e6 / one["training_us_per_point"], "inference_points_per_second": 1e6 / one["inference_us_per_point"]}
            beside[key] = speed
            if "points_per_second" in beside and run.get("form") != "eager":
                for kind in ("points_per_second", "inference_points_per_second"):
                    ratio = kind.replace("points_per_second", "times_as_fast_as_compiled")
                    beside[ratio] = min(beside.get(ratio, math.inf), beside[kind] / speed[kind])
        if not any("points_per_second" in one for one in found.values()):
            raise Failed("; ".join(sorted({one.get("error", "no figure") for one in found.values()})))
        return found

    step.__doc__ = "Training and inference of a Transolver: " + ", ".join(map(name_of, runs)) + "."
    return step


MILLION = 1_000_000
HEADLINE = run_of(MILLION, 64, "bfloat16")
OF_A_MILLION = [HEADLINE, *(run_of(MILLION, 64, "bfloat16", memory) for memory in ("stored", "recomputed", "streamed")),
                *(run_of(MILLION, 64, precision) for precision in ("tf32", "float32", "float16"))]
OF_FEW = [*(dict(run_of(MILLION // 10, 64, precision), graph="true") for precision in ("bfloat16", "tf32", "float32")), dict(run_of(8192, 64, "bfloat16"), graph="true"),
          run_of(MILLION // 10, 512, "bfloat16")]
OF_MANY_SLICES = [run_of(MILLION, 512, precision) for precision in ("bfloat16", "tf32", "float32")]
OF_MANY_POINTS = [run_of(4 * MILLION, 64, "bfloat16"), run_of(8_800_000, 64, "bfloat16"), run_of(8_800_000, 512, "bfloat16")]


def of_a_million(day):
    """1 M points, 64 slices: all precisions and memory modes, and PyTorch as it is, compiled as a whole and block by block."""
    day.million = figures(OF_A_MILLION, peers=[dict(HEADLINE, form="whole"), HEADLINE, *OF_A_MILLION[4:], dict(HEADLINE, form="eager")])(day)
    return day.million


def memory_modes(day):
    """What the memory modes take beside `stored`, of 1 M points."""
    if day.million is None:
        raise Missing("the figures of 1 M points")
    of = {mode: day.million.get(name_of(run_of(MILLION, 64, "bfloat16", mode)), {}) for mode in ("stored", "recomputed", "streamed")}
    if "points_per_second" not in of["stored"]:
        raise Missing("the figure of `stored`: " + of["stored"].get("error", "none"))
    return {f"{mode}_over_stored": of["stored"]["points_per_second"] / one["points_per_second"] for mode, one in of.items() if mode != "stored" and "points_per_second" in one}


def attention(day):
    """Attention in the pieces that ranks compute, beside the whole one by LibTorch."""
    words = [day.program("attention_benchmark"), day.device, 256 if day.is_short else 32768]
    lines = [json.loads(line) for line in day.run(words).splitlines() if line.startswith("{")]
    return {line.pop("type"): line for line in lines}


# --- Python ------------------------------------------------------------------------------------------------------------------

def package_folder(day):
    """What PYTHONPATH must name for `import meshard`."""
    for folder in (day.programs.parent / "python", day.programs.parent / "apps/python"):
        if list((folder / "meshard").glob("_core.*.so")):
            return folder
    raise Missing(f"the package meshard, neither in {day.programs.parent / 'python'} nor in {day.programs.parent / 'apps/python'}")


def python_run(day, words, *, share=1.0, **variables):
    """Exit code and output of a Python that can import meshard, on the device; ended at a share of the step's time that is left."""
    folders = [str(package_folder(day)), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": ":".join(folders), "PYTHONDONTWRITEBYTECODE": "1", "MESHARD_TEST_DEVICE": day.device, "OMP_NUM_THREADS": "1", **variables}
    whole = day.limit
    day.limit = min(whole, time.monotonic() + share * (whole - time.monotonic()))
    try:
        return day.finish(day.start([python_with_torch(day), *words], day.environment(**variables)), words)
    finally:
        day.limit = whole


def imports(day):
    """`import meshard`, built for this Python, torch and device."""
    if day.device == "standin":
        raise Missing("a Python on the stand-in")
    program = ("import json, sys, torch, meshard; from meshard import _build_info; x = meshard.from_local(torch.ones(3, 2, device=sys.argv[1]), "
               "meshard.DeviceMesh.single(), [meshard.Shard(0)]); print(json.dumps({'python': sys.version.split()[0], 'torch': torch.__version__, 'for_gpus': "
               "_build_info.CUDA, 'sum': (x @ x.T).sum().item()}))")
    code, output = python_run(day, ["-c", program, day.device])
    if code != 0:
        raise Failed(last_lines(output))
    found = objects_in(output)[-1]
    if found["sum"] != 18 or (day.device == "cuda" and not found["for_gpus"]):
        raise Failed(f"expected a sum of 18 and a package for GPUs, found {found}")
    return found


def python_tests(files, ranks=2, shared="nccl"):
    """Tests of the package, file by file. shared: how ranks on one GPU talk, `nccl` or `host`."""
    def step(day):
        found, failed = {}, []
        for i, file in enumerate(files):
            words = [day.data("tests/python/run.py"), f"{file}_test.py", ranks]
            try:
                code, output = python_run(day, words, share=1 if i + 1 == len(files) else 0.6, MESHARD_TEST_SHARED_GPU=shared, MESHARD_TEST_GOES_ON="1")
            except Stopped as stopped:
                code, output = "time", stopped.output
            wrong = [line[:300] for line in output.splitlines() if "  FAILED: " in line] or [f"{code}: " + last_lines(output)]
            found[file] = "passed" if code == 0 else "skipped: " + last_lines(output, 1) if code == 77 else "FAILED: " + " | ".join(wrong)
            failed += [file] if code not in (0, 77) else []
        if all(words.startswith("skipped") for words in found.values()):
            raise Missing("; ".join(found.values()))
        if failed:
            raise Failed(f"{', '.join(failed)} of {', '.join(found)}: " + " || ".join(f"{file}: {found[file]}" for file in failed)[:8000])
        return found

    step.__doc__ = f"The package's own tests on {ranks} ranks: {', '.join(files)}."
    return step


def operator_database(day):
    """PyTorch's own database of operators, two ranks, a draw of each."""
    words = [day.data("tests/python/operators.py"), "--draws", "1", "--seconds", max(20, int(day.limit - time.monotonic()) - 15), *(["--only", "add", "nn.functional.conv2d", "softmax"] if day.is_short else [])]
    code, output = python_run(day, words, MESHARD_TEST_SHARED_GPU="nccl")
    if code == 77:
        raise Missing(last_lines(output, 1))
    summary = next((line for line in output.splitlines() if line.startswith("seed ")), "")
    wrong = [line[:200] for line in output.splitlines() if line.startswith(("wrong", "error", "ended"))]
    if code != 0:
        raise Failed(f"{summary}: " + " || ".join(wrong[:25]))
    stopped = [line for line in output.splitlines() if line.startswith("stopped after ")]
    return {"summary": summary, **({"stopped": stopped[0]} if stopped else {})}


def overhead(day):
    """What an operator takes longer on a sharded tensor than on a plain one."""
    if day.is_short:
        raise Missing("time: for figures alone")
    port = str(free_port())
    code, output = python_run(day, ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port, day.data("tests/python/overhead_benchmark.py"),
                                    "plain", "meshard"])
    if code != 0:
        raise Failed(last_lines(output))
    found = {}
    for line in output.splitlines():
        words = line.rsplit(None, 3)
        if len(words) == 4 and words[1] in ("grad", "no_grad"):
            found[f"{words[0].strip()}, {words[1]}"] = {"plain": float(words[2]), "meshard": float(words[3])}
    if not found:
        raise Failed(f"no figures: {last_lines(output)}")
    added = sorted(one["meshard"] - one["plain"] for one in found.values())
    return {"microseconds": found, "largest_added": added[-1], "median_added": added[len(added) // 2]}


# Name, seconds at most, step. The most important come first: when a phase's time is used up, the rest is left out.
PHASES = {
    "tests": [("machine", 20, machine), ("programs start", 60, programs_start), ("ceilings", 60, ceilings), ("kernels", 60, kernels),
              ("training agrees", 120, training_agrees), ("ranks", 150, ranks), ("resumes", 60, resumes), ("records", 60, records), ("predicts", 40, predicts), ("probes", 60, probes),
              ("operators", 200, operators), ("sanitizer", 150, sanitized)],
    "figures": [("machine", 20, machine), ("attention", 40, attention), ("1 M points", 260, of_a_million), ("memory modes", 1, memory_modes),
                ("few points", 110, figures(OF_FEW, repeats=5)), ("512 slices", 90, figures(OF_MANY_SLICES, repeats=2)),
                ("many points", 80, figures(OF_MANY_POINTS, repeats=1, peers=[])), ("ceilings", 30, ceilings)],
    "python": [("machine", 20, machine), ("imports", 60, imports), ("devices", 90, python_tests(["devices", "package"])), ("devices by host", 60, python_tests(["devices"], shared="host")),
               ("tensors", 120, python_tests(["tensors", "direct", "rows", "backend"])), ("modules", 100, python_tests(["modules", "architectures"])),
               ("training", 100, python_tests(["training", "library", "saving"])), ("other libraries", 100, python_tests(["models", "physicsnemo"])),
               ("one rank", 40, python_tests(["devices", "tensors"], ranks=1)), ("overhead", 60, overhead), ("operator database", 400, operator_database)],
}
# What a short run leaves out, because it repeats other steps at another size; and what may be missing in a dry run, because it needs a GPU or PyTorch.
NOT_SHORT = ("512 slices", "many points")
NOT_DRY = ("imports", "devices", "devices by host", "tensors", "modules", "training", "other libraries", "one rank", "overhead", "operator database", "attention", "ceilings", "kernels", "sanitizer", "operators", "records")
# What is shown beside the figures: name, goal, step, path of the figure in it, whether it is reached.
GOALS = [
    ("losses of CPU and device over 20 steps", "<= 1e-4", "training agrees", ("largest_loss_difference",), lambda value: value <= 1e-4),
    ("losses of several ranks against one", "<= 1e-4", "ranks", ("largest_loss_difference",), lambda value: value <= 1e-4),
    ("errors under compute-sanitizer", "0", "sanitizer", ("errors",), lambda value: value == 0),
    *(goal for what, step, run, least in [
        ("1 M points, S=64, bfloat16", "1 M points", HEADLINE, 10e6), ("1 M points, S=64, tf32", "1 M points", run_of(MILLION, 64, "tf32"), 3e6),
        ("1 M points, S=64, float32", "1 M points", run_of(MILLION, 64, "float32"), 1.2e6), ("0.1 M points, S=64, bfloat16", "few points", OF_FEW[0], 5e6),
        ("1 M points, S=512, bfloat16", "512 slices", OF_MANY_SLICES[0], 3.8e6)]
      for goal in [(f"training, {what}, points/s", f">= {least:.2g}", step, (name_of(run), "points_per_second"), lambda value, least=least: value >= least),
                   (f"  times as fast as compiled PyTorch", ">= 2", step, (name_of(run), "times_as_fast_as_compiled"), lambda value: value >= 2)]),
    ("training from a graph, 0.1 M points, S=64, bfloat16, points/s", ">= 8e6", "few points", (name_of(OF_FEW[0]), "graph_points_per_second"), lambda value: value >= 8e6),
    ("inference, 1 M points, S=64, bfloat16, points/s", ">= 2.5e7", "1 M points", (name_of(HEADLINE), "inference_points_per_second"), lambda value: value >= 25e6),
    ("bytes a point, 1 M points, S=64, bfloat16, stored", "<= 42000", "1 M points", (name_of(OF_A_MILLION[1]), "bytes_per_point"), lambda value: value <= 42000),
    ("time of `recomputed` over `stored`", "<= 1.35", "memory modes", ("recomputed_over_stored",), lambda value: value <= 1.35),
    ("time of `streamed` over `stored`", "<= 2.5", "memory modes", ("streamed_over_stored",), lambda value: value <= 2.5),
    ("training, 8.8 M points, S=64, bfloat16, points/s", "> 0", "many points", (name_of(OF_MANY_POINTS[1]), "points_per_second"), lambda value: value > 0),
    ("attention in four pieces, times the whole one, bfloat16", "<= 1.15", "attention", ("bfloat16", "full_four_pieces_over_whole"), lambda value: value <= 1.15),
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
            if (day.is_short and name in NOT_SHORT) or (day.only and name not in day.only):
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
    if not rows:
        return
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
    parser.add_argument("--only", action="append", metavar="STEP", choices=[name for steps in PHASES.values() for name, _, _ in steps], help="this step alone; may be repeated")
    parser.add_argument("--seconds", type=float, default=PHASE_SECONDS, help="time of a phase; what does not fit is left out")
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
