# SPDX-License-Identifier: Apache-2.0
"""torch's C++ interface changes between minor versions: the package runs with the one that it was built for."""
from __future__ import annotations

import torch

from ._build_info import TORCH


def check(running: str = torch.__version__, built_for: str = TORCH) -> None:
    """Raises ImportError unless the running torch has the minor version for which the package was built."""
    if running.split(".")[:2] != built_for.split(".")[:2]:
        raise ImportError(f"meshard was built for torch {built_for}, but the torch that is running is {running}. Install torch "
                          f"{'.'.join(built_for.split('.')[:2])}.*, or build meshard again where this torch is: pip install ./apps/python in its checkout.")
