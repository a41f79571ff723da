# SPDX-License-Identifier: Apache-2.0
"""One rank of a test, started by run.py. What the files of cases use: `mesh()`, `say`, `cuts`, `refused`.

MESHARD_TEST_DEVICE names the device on which tensors are made that say none: `cpu`, `cuda`, or `standin`, the accelerator of the tests, whose library MESHARD_TEST_STANDIN names. With MESHARD_TEST_GOES_ON further cases follow one that fails."""
import importlib
import os
import pathlib
import sys
import time
import traceback

SKIPPED = 77
_mesh = None


def device():
    """The type of device on which the tests' tensors lie."""
    return os.environ.get("MESHARD_TEST_DEVICE", "cpu")


def mesh_type():
    """What `init_device_mesh` is told."""
    return device() if device() in ("cpu", "cuda") else "cpu"


def seeded(seed):
    """A generator of that device."""
    import torch
    return torch.Generator(device()).manual_seed(seed)


def mesh():
    """All ranks, on the axis `domain`."""
    return _mesh


def rank():
    return int(os.environ["RANK"])


def num_ranks():
    return int(os.environ["WORLD_SIZE"])


def say(*words):
    if rank() == 0:
        print(*words, flush=True)


def uneven(n):
    """n rows in the proportion 7 to 3; further ranks hold nothing."""
    return [n * 7 // 10, n - n * 7 // 10] + [0] * (num_ranks() - 2) if num_ranks() > 1 else [n]


def cuts(n):
    """Uneven ones, with ranks that hold nothing at the end and at the start."""
    rest = [0] * (num_ranks() - 1)
    return [uneven(n), rest + [n]] if num_ranks() > 1 else [[n]]


def refused(call, kind, text=""):
    """The message of the error that `call` must raise."""
    try:
        result = call()
    except kind as error:
        assert text in str(error), f"expected '{text}' in: {error}"
        return str(error)
    raise AssertionError(f"not refused: {result!r}")


def load_standin(path):
    """The accelerator of the tests (tests/support/standin), which finds in the package's module where to register."""
    import ctypes
    import types

    import torch
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    import meshard._core  # noqa: F401
    sys.setdlopenflags(flags)
    ctypes.CDLL(path)
    module = types.ModuleType("torch.standin")
    module.is_available = lambda: True
    module.device_count = lambda: 8
    module.current_device = lambda: torch._C._accelerator_getDeviceIndex()
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module._is_in_bad_fork = lambda: False
    module.is_initialized = lambda: True
    module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: None
    torch._register_device_module("standin", module)
    torch._C._accelerator_setDeviceIndex(rank() % int(os.environ.get("MESHARD_STANDIN_DEVICES", "8")))


def run(file, names):
    global _mesh
    try:
        import torch
        import torch.distributed as dist
        if device() == "standin":
            load_standin(os.environ["MESHARD_TEST_STANDIN"])
        import meshard
    except ImportError as error:
        say(f"skipped: {sys.executable} cannot import what is tested: {error}")
        return SKIPPED
    if device() == "cuda":
        if not torch.cuda.is_available():
            say("skipped: torch sees no GPU")
            return SKIPPED
        torch.cuda.set_device(rank() % torch.cuda.device_count())
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device() != "cpu":
        torch.set_default_device(device())
    # For devices Gloo as well: it is there whether ranks share a GPU or not.
    dist.init_process_group("gloo", init_method=f"file://{os.environ['MESHARD_TEST_STORE']}", rank=rank(), world_size=num_ranks())
    torch.set_num_threads(1)
    meshard.set_gather_policy("silent")
    _mesh = meshard.init_device_mesh(mesh_type(), shared_memory=os.environ.get("MESHARD_TEST_TRANSPORT") != "gloo")
    try:
        module = importlib.import_module(pathlib.Path(file).stem)
    except ImportError as error:
        say(f"skipped: {error}")
        return SKIPPED
    cases = {name.removeprefix("test_"): case for name, case in vars(module).items() if name.startswith("test_")}
    unknown = set(names) - set(cases)
    assert not unknown, f"{file} has no case {unknown}; it has {list(cases)}"
    goes_on, failed = bool(os.environ.get("MESHARD_TEST_GOES_ON")), []
    for name in names or cases:
        began = time.perf_counter()
        torch.manual_seed(0)
        try:
            note = cases[name]() or ""
        except Exception:
            print(f"rank {rank()}: {file}: {name} FAILED\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            if not goes_on:
                os._exit(1)   # others may wait for this rank: no orderly end
            failed.append(name)
            note = "FAILED: " + traceback.format_exc().strip().splitlines()[-1][:300]
        if goes_on:   # all ranks, whichever of them have failed
            dist.all_reduce(torch.zeros(1, device="cpu"))
        say(f"{name}  {time.perf_counter() - began:.1f} s  {note}")
    _mesh.barrier()
    if goes_on:   # what was found counts, not how transports end
        sys.stdout.flush()
        os._exit(1 if failed else 0)
    dist.destroy_process_group()
    return 0
