# SPDX-License-Identifier: Apache-2.0
"""Places where torch looks for a tensor's memory, or compiles code that does: on a sharded tensor they would fail without saying why, or compute nonsense.

Each is one function of torch in whose place stands one that asks `is_sharded` first, and is otherwise the old one. `import meshard` installs them.
"""
from __future__ import annotations

import copy as copies
import functools
import importlib.abc
import importlib.util
import sys
from typing import Any, Callable

import torch

from . import _core, _parameters, _saving, _state_dicts

_is_installed = False


def _with_repr(plain: Callable) -> Callable:
    def text_of(tensor: torch.Tensor) -> str:
        # Never collective: who prints on one rank alone must not wait for the others.
        gradient = f", grad_fn=<{tensor.grad_fn.name()}>" if tensor.grad_fn is not None else ", requires_grad=True" if tensor.requires_grad else ""
        rank = _core.device_mesh(tensor).get_rank()
        with torch._C.DisableTorchFunction():
            part = plain(_core.held_part(tensor))
        age = " as it was before its base was written to" if _core.is_stale(tensor) else ""
        return f"ShardTensor(shape={tuple(tensor.shape)}, {_core.describe(tensor)}, rank {rank} holds {part}{age}{gradient})"

    @functools.wraps(plain)
    def text(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if _core.is_stored(self):
            return f"{type(self).__name__}(shape={tuple(self.shape)}, dtype={self.dtype}, stored in parts by fully_shard)"
        return text_of(self) if _core.is_sharded(self) else plain(self, tensor_contents=tensor_contents)

    return text


def _with_deepcopy(plain: Callable) -> Callable:
    @functools.wraps(plain)
    def deepcopy(self: torch.Tensor, memo: dict) -> torch.Tensor:
        is_detached = _core.is_stored(self) and type(self) is torch.Tensor and self.grad_fn is None
        if not _core.is_sharded(self) and not is_detached:
            return plain(self, memo)
        if id(self) in memo:
            return memo[id(self)]
        if is_detached:
            memo[id(self)] = _core.stored_tensor(_core.flat_values(self).clone(), list(self.shape))
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only sharded tensors that no operator has made (leaves of the graph) can be deep-copied; detach() this one first.")
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        if self.grad is not None:
            copy.grad = deepcopy(self.grad, memo)
        copy.__dict__.update(copies.deepcopy(self.__dict__, memo))   # what the user has added
        memo[id(self)] = copy
        return copy

    return deepcopy


def _copy(self: torch.Tensor) -> torch.Tensor:
    return _saving.shallow_copy(self) if _core.is_sharded(self) else copies._reconstruct(self, None, *self.__reduce_ex__(4))


def _refused(plain: Callable, what: str, remedy: str = "use to_local or full_tensor") -> Callable:
    @functools.wraps(plain)
    def call(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if _core.is_sharded(self):
            raise RuntimeError(f"{what}: a sharded tensor has no memory of the whole; {remedy}")
        if _core.is_stored(self):
            raise RuntimeError(f"{what}: a parameter under fully_shard is stored in parts; use handle.full_parameters() or handle.local_parameters()")
        return plain(self, *arguments, **options)

    return call


def _with_is_shared(plain: Callable) -> Callable:
    @functools.wraps(plain)
    def is_shared(self: torch.Tensor) -> bool:
        return not _core.is_sharded(self) and not _core.is_stored(self) and plain(self)

    return is_shared


def _with_new_tensor(plain: Callable) -> Callable:
    @functools.wraps(plain)
    def new_tensor(self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
        if not _core.is_sharded(self):
            return plain(self, data, dtype=dtype, device=device, **options)
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **options)

    return new_tensor


def _with_register_hook(plain: Callable) -> Callable:
    @functools.wraps(plain)
    def register_hook(self: torch.Tensor, hook: Callable) -> Any:
        if self.is_leaf and self.requires_grad:
            return _core.keeping_hooks(self, lambda: plain(self, hook))
        return plain(self, hook)

    return register_hook


def _dense_only(plain: Callable) -> Callable:
    @functools.wraps(plain)
    def make(*arguments: Any, **options: Any) -> Any:
        if any(isinstance(value, torch.Tensor) and _core.is_sharded(value) for value in (*arguments, *options.values())):
            raise _core.MissingShardRule(f"{plain.__name__} makes a sparse tensor, and sharded ones are dense. Use it on full_tensor(x).")
        return plain(*arguments, **options)

    return make


def _install_in_compiler() -> None:
    """torch.compile traces the shape of the whole, and would write kernels that read its memory: a frame that gets a sharded tensor runs as it is."""
    from torch._dynamo.exc import unimplemented
    from torch._dynamo.variables.builder import VariableBuilder

    plain = VariableBuilder.wrap_tensor

    @functools.wraps(plain)
    def wrap_tensor(self: Any, value: torch.Tensor) -> Any:
        if _core.is_sharded(value) or _core.is_stored(value):
            unimplemented(gb_type="sharded tensor of meshard", context=_core.describe(value) if _core.is_sharded(value) else "a parameter under fully_shard",
                          explanation="Kernels that torch.compile writes read the memory of a whole that is on no rank.",
                          hints=["Functions that take sharded tensors run without being compiled: leave fullgraph off."], skip_frame=True)
        return plain(self, value)

    VariableBuilder.wrap_tensor = wrap_tensor


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `act` when something imports the module `name`."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            self._act()

        spec.loader.exec_module = exec_module
        return spec


def _once_imported(name: str, act: Callable[[], None]) -> None:
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _AfterImport(name, act))


def install() -> None:
    """Once; later calls do nothing."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    torch._tensor_str._str = _with_repr(torch._tensor_str._str)
    torch.Tensor.__deepcopy__ = _with_deepcopy(torch.Tensor.__deepcopy__)
    torch.Tensor.__copy__ = _copy
    torch.Tensor.__reduce_ex__ = _saving.with_reduce(torch.Tensor.__reduce_ex__)
    torch.Tensor.share_memory_ = _refused(torch.Tensor.share_memory_, "share_memory_")
    torch.Tensor.is_shared = _with_is_shared(torch.Tensor.is_shared)
    for name in ("untyped_storage", "storage"):
        setattr(torch.Tensor, name, _refused(getattr(torch.Tensor, name), name))
    for name in ("sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor", "sparse_compressed_tensor"):
        setattr(torch, name, _dense_only(getattr(torch, name)))
    torch.Tensor.register_hook = _with_register_hook(torch.Tensor.register_hook)
    torch.Tensor.new_tensor = _with_new_tensor(torch.Tensor.new_tensor)
    torch.Tensor.new = _refused(torch.Tensor.new, "new", "x.new_empty, x.new_zeros and x.new_tensor make tensors of its type")
    torch.serialization.add_safe_globals([_saving.rebuilt, _saving.rebuilt_whole])   # for torch.load as it is by default
    torch.optim.Optimizer.state_dict = _state_dicts.with_whole_states(torch.optim.Optimizer.state_dict)
    torch.optim.Optimizer._process_value_according_to_param_policy = staticmethod(
        _state_dicts.with_own_states(torch.optim.Optimizer._process_value_according_to_param_policy))
    torch.nn.Module.zero_grad = _parameters.with_zeroed_parts(torch.nn.Module.zero_grad)
    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = _parameters.with_norm_of_all_parts(torch.nn.utils.clip_grad_norm_)
    _saving.install_in_queues()
    # The compiler alone takes more than a second to import.
    _once_imported("torch._dynamo.variables.builder", _install_in_compiler)
    _once_imported("torch.distributed.checkpoint.planner_helpers", _saving.install_in_checkpoint)
    _once_imported("torch.distributed.checkpoint.utils", _saving.install_in_checkpoint_lookup)
    _once_imported("torch.distributed.checkpoint._state_dict_stager", _saving.install_in_staging)
    _once_imported("torch.distributed.checkpoint.state_dict", _state_dicts.install)
