# SPDX-License-Identifier: Apache-2.0
"""torch's C++ interface changes between minor versions: the package runs with the one that it was built for. Tensors of GPUs want a package that was built for them."""
from __future__ import annotations

import warnings

import torch

from ._build_info import CUDA, TORCH

FOR_CPUS = ("meshard was built for CPUs: tensors of GPUs have none of its kernels (searches, rows, slice attention) and no NCCL. For GPUs build it again, with NVIDIA's compiler, where "
            "torch has its CUDA libraries: pip install --force-reinstall --no-deps ./apps/python in its checkout.")


def check(running: str = torch.__version__, built_for: str = TORCH) -> None:
    """Raises ImportError unless the running torch has the minor version for which the package was built."""
    if running.split(".")[:2] != built_for.split(".")[:2]:
        raise ImportError(f"meshard was built for torch {built_for}, but the torch that is running is {running}. Install torch "
                          f"{'.'.join(built_for.split('.')[:2])}.*, or build meshard again where this torch is: pip install ./apps/python in its checkout.")


def warn_of_gpus(built_for_gpus: bool = CUDA, num_gpus: int | None = None) -> None:
    """Warns where torch sees a GPU and the package was built without them. Starts nothing on a GPU."""
    if not built_for_gpus and (torch.cuda.device_count() if num_gpus is None else num_gpus) > 0:
        warnings.warn(FOR_CPUS, RuntimeWarning, stacklevel=3)
