# SPDX-License-Identifier: Apache-2.0
"""The three libraries of sharded tensors, each used as its own documentation says."""
import collections
import importlib.metadata
import itertools

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

NAMES = ["meshard", "DTensor", "ShardTensor"]
ALL_GATHERS = {"all_gather_into_tensor", "all_gather_into_tensor_coalesced", "allgather_", "_allgather_base_", "allgather_coalesced_",
               "allgather_into_tensor_coalesced_"}


class AllGathers(TorchDispatchMode):
    """Keeps the most numbers that an all-gather of torch.distributed has put together while it is on."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind.__name__ in ("DTensor", "ShardTensor") for kind in types):
            return NotImplemented   # what the sharded tensor does with its parts comes here afterwards
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[-1]
        if name in ALL_GATHERS:
            filled = torch.utils._pytree.tree_leaves(args[0] if name.endswith("_") else result)
            self.largest = max(self.largest, sum(x.numel() for x in filled if isinstance(x, torch.Tensor) and x.is_floating_point()))
        return result


def part_of(whole, dims, extents, coordinate):
    """The part at that coordinate of the mesh: cut along each axis's dimension in turn."""
    for axis, dim in enumerate(dims):
        if dim is not None:
            own = extents[axis] if extents[axis] is not None else chunks(whole.shape[dim], extents.shape[axis])
            whole = whole.narrow(dim, sum(own[:coordinate[axis]]), own[coordinate[axis]])
    return whole


class Extents(list):
    """How many entries each rank of each axis has: None is the layout of torch.chunk. `shape` is the mesh's."""

    def __init__(self, shape, given):
        super().__init__(given if given is not None else [None] * len(shape))
        self.shape = shape


def chunks(n, ranks):
    """The lengths of torch.chunk, with zeros at the end."""
    size = -(-n // ranks)
    return [max(0, min(size, n - size * rank)) for rank in range(ranks)]


class Meshard:
    def __init__(self, shape):
        import meshard
        self._library = meshard
        meshard.set_gather_policy("silent")
        self._shape = shape
        self.mesh = meshard.init_device_mesh("cpu", shape, mesh_dim_names=("domain", "data")[:len(shape)])

    @staticmethod
    def version():
        import meshard
        return meshard.__version__

    @staticmethod
    def load():
        import meshard   # noqa: F401

    def cut(self, whole, dims, extents):
        m = self._library
        placements = [m.Replicate() if dim is None else m.Shard(dim) for dim in dims]
        if len(dims) == 1 and extents[0] is None:
            extents = [chunks(whole.shape[dims[0]], self._shape[0])]
        return m.distribute_tensor(whole, self.mesh, placements, extents=None if all(x is None for x in extents) else list(extents)).detach()

    def replicated(self, whole):
        return self._library.distribute_tensor(whole, self.mesh, [self._library.Replicate()] * len(self._shape)).detach()

    def weights(self, wholes):
        held = torch.nn.ParameterList([torch.nn.Parameter(x, requires_grad=x.is_floating_point()) for x in wholes])
        self._library.replicate(held, self.mesh)
        return list(held)

    def full(self, x):
        return self._library.full_tensor(x) if self._library.is_sharded(x) else x

    def redistribute(self, x, dim):
        return self._library.redistribute(x, [self._library.Shard(dim)])

    def gathers(self, run):
        with self._library.record_rules() as rules:
            result = run()
        # Where each rank gets all that others hold, the bytes of all ranks are the whole's, once for each further rank.
        sent = torch.tensor([float(event.num_bytes) for event in rules.events] + [0.0])
        dist.all_reduce(sent)
        further = max(1, dist.get_world_size() - 1)
        return result, float("inf") if any(event.gathered for event in rules.events) else sent.max().item() / 8 / further


class DTensor:
    def __init__(self, shape):
        import torch.distributed.tensor as library
        self._library = library
        self._shape = shape
        self.mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=("domain", "data")[:len(shape)])

    @staticmethod
    def version():
        return torch.__version__

    @staticmethod
    def load():
        import torch._dynamo   # noqa: F401  (a first operator imports it)
        import torch.distributed.tensor   # noqa: F401

    def _placements(self, dims):
        return [self._library.Replicate() if dim is None else self._library.Shard(dim) for dim in dims]

    def cut(self, whole, dims, extents):
        if all(given is None or given == chunks(whole.shape[dim], ranks) for given, dim, ranks in zip(extents, dims, self._shape)):
            return self._library.distribute_tensor(whole, self.mesh, self._placements(dims)).detach()
        local = part_of(whole, dims, extents, self.mesh.get_coordinate()).contiguous()
        return self._library.DTensor.from_local(local, self.mesh, self._placements(dims), run_check=True, shape=whole.shape, stride=whole.stride()).detach()

    def replicated(self, whole):
        return self._library.distribute_tensor(whole, self.mesh, self._placements([None] * len(self._shape))).detach()

    def weights(self, wholes):
        return [self.replicated(x).requires_grad_(x.is_floating_point()) for x in wholes]

    def full(self, x):
        return x.full_tensor() if isinstance(x, self._library.DTensor) else x

    def redistribute(self, x, dim):
        return x.redistribute(placements=self._placements([dim]))

    def gathers(self, run):
        with AllGathers() as seen:
            result = run()
        return result, seen.largest


class ShardTensor(DTensor):
    """PhysicsNeMo's. Its own operators are registered on import where there is a GPU; here they are registered by hand, so that they count."""

    def __init__(self, shape):
        super().__init__(shape)
        import physicsnemo.domain_parallel as own
        self._own = own

    @staticmethod
    def version():
        return importlib.metadata.version("nvidia-physicsnemo")

    @staticmethod
    def load():
        DTensor.load()
        import physicsnemo.domain_parallel as own
        own.register_custom_ops()

    def cut(self, whole, dims, extents):
        coordinate = self.mesh.get_coordinate()
        shapes = {}
        for axis, ranks in enumerate(self._shape):
            line = itertools.product(*([rank] if other != axis else range(ranks) for other, rank in enumerate(coordinate)))
            shapes[axis] = [tuple(part_of(whole, dims, extents, place).shape) for place in line]
        local = part_of(whole, dims, extents, coordinate).contiguous()
        return self._own.ShardTensor.from_local(local, self.mesh, self._placements(dims), sharding_shapes=shapes).detach()

    def replicated(self, whole):
        shapes = {axis: [tuple(whole.shape)] * ranks for axis, ranks in enumerate(self._shape)}
        return self._own.ShardTensor.from_local(whole, self.mesh, self._placements([None] * len(self._shape)), sharding_shapes=shapes).detach()

    def weights(self, wholes):
        return [x.clone().requires_grad_(x.is_floating_point()) for x in wholes]   # plain tensors are promoted

    def full(self, x):
        return x.full_tensor() if isinstance(x, (self._own.ShardTensor, self._library.DTensor)) else x


class Serial:
    """Plain tensors of one process: the oracle."""

    def redistribute(self, x, dim):
        return x


LIBRARIES = collections.OrderedDict(zip(NAMES, [Meshard, DTensor, ShardTensor]))
