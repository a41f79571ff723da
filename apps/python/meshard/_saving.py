# SPDX-License-Identifier: Apache-2.0
"""Sharded tensors, and parameters and states under fully_shard, in files: pickle, torch.save, copy.copy and the queues of torch.multiprocessing hold this rank's part
and the layout; torch.distributed.checkpoint writes the parts of all ranks as pieces of one whole, which any number of ranks can read."""
from __future__ import annotations

import functools
import itertools
import math
import sys
from typing import Any, Callable, NamedTuple, Sequence

import torch

from . import _core
from ._core import DeviceMesh, InvalidInput


def rebuilt(part: torch.Tensor, names: Sequence[str], shape: Sequence[int], coordinate: Sequence[int], axes: Sequence[tuple], sizes: Sequence[int],
            strides: Sequence[int], requires_grad: bool, number: int = -1) -> torch.Tensor:
    """The tensor that `reduced` took apart, on a mesh of this process with the same axes and the same rank: the one of that number, else the newest. Not
    collective.

    Raises InvalidInput (a ValueError) where there is no such mesh, or part and layout do not fit."""
    mesh = _core.living_mesh(list(names), list(shape), list(coordinate), number)
    if mesh is None and all(size == 1 for size in shape) and list(names) == ["domain"]:
        mesh = DeviceMesh.single()
    if mesh is None:
        grid = ", ".join(f"{name}={size}" for name, size in zip(names, shape))
        raise InvalidInput(f"a sharded tensor of a device mesh ({grid}), saved by the rank at {list(coordinate)}, but this process has no such mesh or is another "
                           f"rank of it. Make one first: init_device_mesh({tuple(shape)}, mesh_dim_names={tuple(names)}). For any number of ranks use "
                           "torch.distributed.checkpoint, or save full_tensor(x).")
    return _core.with_portable_layout(part, mesh, list(axes), list(sizes), list(strides)).requires_grad_(requires_grad)


def rebuilt_whole(flat: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A parameter or state under fully_shard, of its flattened values. Not collective."""
    return _core.stored_tensor(flat, shape)


def _part_to_save(tensor: torch.Tensor) -> torch.Tensor:
    if _core.is_stored(tensor):
        tensor = _flat_values(tensor)
    if _core.is_stale(tensor):
        raise RuntimeError("a view that lies otherwise than its base, which was written to since the view was last used: ranks bring it up to date together. "
                           "Save x.clone() of it.")
    return _core.held_part(tensor)


def reduced(tensor: torch.Tensor, to_process_of_this: bool = False) -> tuple:
    """What pickle keeps of a sharded tensor: only this rank's part; for a process that was forked from this one or made it, the mesh's number, too. Not collective."""
    mesh = _core.device_mesh(tensor)
    return rebuilt, (_part_to_save(tensor), list(mesh.mesh_dim_names), list(mesh.shape), mesh.get_coordinate(), _core.portable_layout(tensor),
                     list(tensor.shape), list(tensor.stride()), tensor.requires_grad, _core.number_of_mesh(mesh) if to_process_of_this else -1)


def shallow_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor with the same values in the same memory, on the same mesh. Not collective."""
    part, _, _, _, axes, sizes, strides, requires_grad, _ = reduced(tensor)[1]
    return _core.with_portable_layout(part, _core.device_mesh(tensor), axes, sizes, strides).requires_grad_(requires_grad)


def with_reduce(plain: Callable) -> Callable:
    @functools.wraps(plain)
    def reduce_ex(self: torch.Tensor, protocol: int) -> Any:
        if _core.is_stored(self):
            return rebuilt_whole, (_flat_values(self), list(self.shape))
        return reduced(self) if _core.is_sharded(self) else plain(self, protocol)

    return reduce_ex


def install_in_queues() -> None:
    """torch.multiprocessing sends tensors as handles of their memory: of a sharded one it sends this rank's part and the layout."""
    from multiprocessing.reduction import ForkingPickler
    from torch.multiprocessing import reductions

    plain = reductions.reduce_tensor

    @functools.wraps(plain)
    def reduce_tensor(tensor: torch.Tensor) -> Any:
        return reduced(tensor, to_process_of_this=True) if _core.is_sharded(tensor) else plain(tensor)

    reductions.reduce_tensor = reduce_tensor
    for kind in (torch.Tensor, torch.nn.parameter.Parameter):
        ForkingPickler.register(kind, reduce_tensor)


def _flat_values(stored: torch.Tensor) -> torch.Tensor:
    flat = _core.flat_values(stored)
    if flat is None:
        raise RuntimeError("a view of a parameter under fully_shard has no memory; save the parameter, or clone() the view on all ranks.")
    return flat


class _Chunk(NamedTuple):
    """One block of the whole that this rank holds: where it begins, its shape, and how it lies in the part."""

    offsets: torch.Size
    sizes: torch.Size
    of: Callable[[torch.Tensor], torch.Tensor]


def _chunk(ranges: Sequence[tuple[int, int, int]]) -> _Chunk:
    """The block that `ranges` describes: for each dimension where it begins, its size, and where it begins in the part."""
    def of(part: torch.Tensor) -> torch.Tensor:
        for dim, (_, size, at) in enumerate(ranges):
            part = part.narrow(dim, at, size)
        return part

    return _Chunk(torch.Size(begin for begin, _, _ in ranges), torch.Size(size for _, size, _ in ranges), of)


def _blocks(shape: Sequence[int], begin: int, end: int) -> list[tuple[list[int], list[int]]]:
    """Where the blocks begin, and their shapes, that make up the values from one to another of a tensor of that shape, one after the other."""
    if not shape:
        return [([], [])] * (end - begin)
    row = math.prod(shape[1:])
    blocks = []
    while begin < end:
        index, at = divmod(begin, row)
        if at == 0 and end - begin >= row:   # whole rows
            count = (end - begin) // row
            blocks.append(([index] + [0] * (len(shape) - 1), [count, *shape[1:]]))
            begin += count * row
        else:   # a part of one
            stop = min(row, at + end - begin)
            blocks += [([index, *offsets], [1, *sizes]) for offsets, sizes in _blocks(shape[1:], at, stop)]
            begin += stop - at
    return blocks


def _chunks_of_stored(tensor: torch.Tensor, to_write: bool) -> list[_Chunk]:
    chunks = []
    for flat in _chunks(_flat_values(tensor), to_write):
        blocks, at = _blocks(tensor.shape, flat.offsets[0], flat.offsets[0] + flat.sizes[0]), 0
        for offsets, sizes in blocks if tensor.numel() > 0 else [([0] * tensor.dim(), list(tensor.shape))]:
            count = math.prod(sizes)
            chunks.append(_Chunk(torch.Size(offsets), torch.Size(sizes), lambda part, at=at, count=count, sizes=sizes: part.narrow(0, at, count).view(sizes)))
            at += count
    return chunks


def _is_in_parts(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and (_core.is_sharded(tensor) or _core.is_stored(tensor))


def _chunks(tensor: torch.Tensor, to_write: bool) -> list[_Chunk]:
    """The blocks of a tensor in parts on this rank; to be written, each by one rank alone, and none that is empty unless the whole is."""
    if _core.is_stored(tensor):
        return _chunks_of_stored(tensor, to_write)
    mesh = _core.device_mesh(tensor)
    ranges = [[(0, size, 0)] for size in tensor.shape]
    for axis, (placement, extents, coordinate) in enumerate(zip(_core.placements(tensor), _core.extents(tensor), mesh.get_coordinate())):
        if placement.is_partial():
            raise InvalidInput("torch.distributed.checkpoint: a sharded tensor is a pending sum on the axis "
                               f"'{mesh.mesh_dim_names[axis]}'. Redistribute it to Replicate() or Shard(dim) first.")
        if placement.is_shard():
            total, first, own = sum(extents), sum(extents[:coordinate]), extents[coordinate]
            blocks = _core.portable_layout(tensor)[axis][4]
            ranges[placement.dim] = [(block * total + first, own, block * own) for block in range(blocks)]
        elif to_write and coordinate != 0:
            return []
    chunks = [_chunk(chosen) for chosen in itertools.product(*ranges)]
    if tensor.numel() > 0:
        return [chunk for chunk in chunks if chunk.sizes.numel() > 0]
    return chunks[:1] if not to_write or not any(mesh.get_coordinate()) else []


def _replace(module: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Puts another function in the place of one, also where modules of torch.distributed.checkpoint have imported it."""
    plain = getattr(module, name)
    new = functools.wraps(plain)(make(plain))
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("torch.distributed.checkpoint") and getattr(other, name, None) is plain:
            setattr(other, name, new)


def install_in_checkpoint() -> None:
    """torch.distributed.checkpoint asks what of a tensor this rank writes, wants to read, and where that lies."""
    from torch.distributed.checkpoint import planner_helpers
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    def metadata(chunk: _Chunk) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(offsets=chunk.offsets, sizes=chunk.sizes)

    def writes(plain: Callable) -> Callable:
        def create(fqn: str, object: Any) -> Any:
            if not _is_in_parts(object):
                return plain(fqn, object)
            properties = TensorProperties.create_from_tensor(_part_to_save(object))
            return [WriteItem(index=MetadataIndex(fqn, chunk.offsets), type=WriteItemType.SHARD,
                              tensor_data=TensorWriteData(chunk=metadata(chunk), properties=properties, size=object.size()))
                    for chunk in _chunks(object, to_write=True)]

        return create

    def chunk_list(plain: Callable) -> Callable:
        def create(tensor: torch.Tensor) -> Any:
            if not _is_in_parts(tensor):
                return plain(tensor)
            return [metadata(chunk) for chunk in _chunks(tensor, to_write=False)]

        return create

    _replace(planner_helpers, "_create_write_items", writes)
    _replace(planner_helpers, "_create_chunk_list", chunk_list)


def install_in_checkpoint_lookup() -> None:
    from torch.distributed.checkpoint import utils

    def lookup(plain: Callable) -> Callable:
        def find(tensor: torch.Tensor, index: Any) -> torch.Tensor:
            if not _is_in_parts(tensor):
                return plain(tensor, index)
            for chunk in _chunks(tensor, to_write=False):
                if index.offset is None or chunk.offsets == index.offset:
                    return chunk.of(_part_to_save(tensor))
            raise InvalidInput(f"torch.distributed.checkpoint: this rank holds no block of '{index.fqn}' that begins at {tuple(index.offset)}.")

        return find

    _replace(utils, "find_tensor_shard", lookup)


def install_in_staging() -> None:
    """torch.distributed.checkpoint.async_save writes copies in the memory of the CPU."""
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    plain = StateDictStager._offload_tensor

    @functools.wraps(plain)
    def offload(self: Any, tensor: torch.Tensor, memo: dict, non_blocking: bool = False) -> torch.Tensor:
        if not _is_in_parts(tensor):
            return plain(self, tensor, memo, non_blocking=non_blocking)
        flat = _flat_values(tensor) if _core.is_stored(tensor) else tensor
        copy = flat.detach().to("cpu", copy=True)
        memo[id(tensor)] = _core.stored_tensor(copy, list(tensor.shape)) if _core.is_stored(tensor) else copy
        return memo[id(tensor)]

    StateDictStager._offload_tensor = offload
