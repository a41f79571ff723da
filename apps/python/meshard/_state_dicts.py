# SPDX-License-Identifier: Apache-2.0
"""States of modules and optimisers by name, as torch.distributed.checkpoint.state_dict gets and sets them.

An optimiser of parts (`fully_shard`) shows its states as those of the whole parameters, which are stored in parts as these are, and takes them back whole or in
parts; torch's functions know the parts by the names of the module's parameters."""
from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, Callable, Iterator, Optional

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from . import _core
from ._core import FullyShardedModule

_wholes = WeakTensorKeyDictionary()   # weak references to a module's parameters by the parts that an optimiser has
_parts = WeakTensorKeyDictionary()    # parts by the module's parameters
_NUMBERS = ("step", "mu_product", "eta", "mu")   # states of torch's optimisers that are one number, whatever the parameter


def remember_parts(module: torch.nn.Module, handle: FullyShardedModule) -> None:
    parameters = dict(module.named_parameters())
    for name, part in zip(handle.local_parameter_names(), handle.local_parameters()):
        _wholes[part], _parts[parameters[name]] = TensorWeakRef(parameters[name]), part


def whole_of(part: torch.Tensor) -> Optional[torch.Tensor]:
    """The parameter of a module of which an optimiser has this part; None for other tensors."""
    reference = _wholes.get(part)
    return None if reference is None else reference()


def part_of(parameter: torch.Tensor) -> torch.Tensor:
    """What an optimiser has of a module's parameter: under `fully_shard` this rank's part, else itself."""
    return _parts.get(parameter, parameter)


def _shown(part: torch.Tensor, whole: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A state of a part as one of the whole parameter, in the same memory; others, such as numbers of steps, as they are."""
    if state.shape != part.shape:
        return state
    like = _core.flat_values(whole)
    flat = _core.with_portable_layout(state, _core.device_mesh(like), _core.portable_layout(like), list(like.shape), [1])
    return _core.stored_tensor(flat, list(whole.shape))


def _own(parameter: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A state, given whole or in parts, as the optimiser of a sharded parameter, or of a part, holds it."""
    whole = whole_of(parameter)
    shape = parameter.shape if whole is None else whole.shape
    is_own = state.shape != shape or _core.is_sharded(state) or (parameter.shape == shape and not _core.is_sharded(parameter))
    if is_own and not _core.is_stored(state):
        return state
    own = torch.empty_like(parameter, dtype=state.dtype)
    (own if whole is None else _shown(parameter, whole, own)).copy_(state)
    return own


def with_whole_states(plain: Callable) -> Callable:
    @functools.wraps(plain)
    def state_dict(self: torch.optim.Optimizer) -> dict[str, Any]:
        packed = plain(self)
        for number, part in enumerate(itertools.chain.from_iterable(group["params"] for group in self.param_groups)):
            whole = whole_of(part)
            if whole is not None and number in packed["state"]:
                packed["state"][number] = tree_map_only(torch.Tensor, functools.partial(_shown, part, whole), packed["state"][number])
        return packed

    return state_dict


def with_own_states(plain: Callable) -> Callable:
    @functools.wraps(plain)
    @torch.no_grad()
    def process(param: torch.Tensor, value: torch.Tensor, param_id: int, param_groups: Any, key: Any = None) -> torch.Tensor:
        return plain(param, value if key in _NUMBERS else _own(param, value), param_id, param_groups, key)

    return process


@contextlib.contextmanager
def _naming_parts(module: torch.nn.Module) -> Iterator[None]:
    """Inside, `named_parameters` gives the parts that an optimiser has in place of the module's parameters."""
    plain = module.named_parameters
    module.named_parameters = lambda *arguments, **options: ((name, part_of(parameter)) for name, parameter in plain(*arguments, **options))
    try:
        yield
    finally:
        del module.named_parameters


def install() -> None:
    from torch.distributed.checkpoint import state_dict

    gather, verify, get = state_dict._gather_state_dict, state_dict._verify_options, state_dict._get_optim_state_dict

    @functools.wraps(gather)
    def gathered(states: dict[str, Any], *, pg: Any = None, cpu_offload: bool = False, ranks_only: tuple[int, ...] = (), **options: Any) -> dict[str, Any]:
        is_kept = not ranks_only or torch.distributed.get_rank(pg) in ranks_only

        def whole(tensor: torch.Tensor) -> Optional[torch.Tensor]:
            if not (_core.is_sharded(tensor) or _core.is_stored(tensor)):
                return tensor
            full = tensor.clone() if _core.is_stored(tensor) else _core.full_tensor(tensor)
            return None if not is_kept else full.cpu() if cpu_offload else full

        return gather(tree_map_only(torch.Tensor, whole, states), pg=pg, cpu_offload=cpu_offload, ranks_only=ranks_only, **options)

    @functools.wraps(verify)
    def verified(model: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        info = verify(model, *arguments, **options)
        for parameter in model.parameters():
            if parameter in _parts:
                info.fqn_param_mapping[_parts[parameter]] = info.fqn_param_mapping[parameter]
        return info

    @functools.wraps(get)
    def optimizer_states(model: torch.nn.Module, *arguments: Any) -> Any:
        with _naming_parts(model):
            return get(model, *arguments)

    state_dict._gather_state_dict, state_dict._verify_options, state_dict._get_optim_state_dict = gathered, verified, optimizer_states
