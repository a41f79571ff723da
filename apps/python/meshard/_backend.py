# SPDX-License-Identifier: Apache-2.0
"""The backend `meshard` of torch.distributed, `torch.distributed.init_process_group("meshard")`: ranks of one host through shared memory, tensors of GPUs over NCCL (by way of the host
where ranks share a GPU), all else as Gloo does it."""
from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from . import _core


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.Backend:
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout=timeout)
    return _core.torch_backend(dist.PrefixStore("memory", store), rank, size, timeout, gloo)


def install() -> None:
    """Once; later calls do nothing."""
    if dist.is_available() and not hasattr(dist.Backend, "MESHARD"):
        dist.Backend.register_backend("meshard", _make, devices=["cpu", "cuda"])
