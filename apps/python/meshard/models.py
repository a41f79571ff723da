# SPDX-License-Identifier: Apache-2.0
"""The models of the library as `torch.nn.Module`: names, shapes and arguments of their parameters are PhysicsNeMo's, so state_dicts go both ways, and their blocks
are fused kernels, on CPUs and on GPUs. Given sharded tensors they compute what they compute on whole ones::

    model = meshard.models.Transolver(functional_dim=2, embedding_dim=3, out_dim=4, n_hidden=128)
    model.load_state_dict(physicsnemo_model.state_dict())
    meshard.replicate(model, mesh)
    y = model(fx, embedding)
"""
from __future__ import annotations

import copy
import json
import warnings
from typing import Any, Optional, Sequence, Union

import torch

from . import _core
from ._core import InvalidInput

__all__ = ["FLARE", "GeoTransolver", "LibraryModel", "MeshGraphNet", "Transolver"]


class _Part(torch.nn.Module):
    """A module that only gives parameters of a library model their names: the library computes the whole."""

    def _say(self, *_: Any, **__: Any) -> None:
        warnings.warn("hooks of a module within a model of meshard.models are never called: the library computes the model as a whole. Put them on the model.", stacklevel=3)

    def register_forward_hook(self, *given: Any, **named: Any) -> Any:
        self._say()
        return super().register_forward_hook(*given, **named)

    def register_forward_pre_hook(self, *given: Any, **named: Any) -> Any:
        self._say()
        return super().register_forward_pre_hook(*given, **named)

    def register_full_backward_hook(self, *given: Any, **named: Any) -> Any:
        self._say()
        return super().register_full_backward_hook(*given, **named)


class LibraryModel(torch.nn.Module):
    """What the models have in common. `arguments` has all arguments of the constructor, the defaults too.

    Raises InvalidInput (a ValueError) for an argument that does not exist, with the nearest name, and for a value that is out of bounds."""

    _kind = ""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        if not self._kind:
            raise InvalidInput("LibraryModel: make one of meshard.models: FLARE, GeoTransolver, MeshGraphNet, Transolver.")
        try:
            text = json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{self._kind}: arguments are finite numbers, texts and lists of them: {error}.") from None
        self._model = _core.Model(self._kind, text)
        self.arguments = json.loads(self._model.arguments())
        self._mode: Optional[str] = None   # of set_memory
        self._places: list[tuple[dict, str, torch.nn.Module]] = []      # modules that name tensors, and where their parents keep them
        self._tensors: dict[str, tuple[dict, str, torch.Tensor]] = {}   # what the model computes with, and where the module keeps it
        for name, parameter in self._model.parameters():
            parameter.__class__ = torch.nn.Parameter   # the very tensor
            owner, leaf = self._owner_of(name)
            owner.register_parameter(leaf, parameter)
            self._tensors[name] = owner._parameters, leaf, parameter
        for name, buffer in self._model.buffers():
            owner, leaf = self._owner_of(name)
            owner.register_buffer(leaf, buffer)
            self._tensors[name] = owner._buffers, leaf, buffer
        default = torch.get_default_device()   # as modules of torch.nn, made where torch.device says
        if default.type not in ("cpu", "meta"):
            self.to(default)

    def _owner_of(self, name: str) -> tuple[torch.nn.Module, str]:
        *path, leaf = name.split(".")
        owner: torch.nn.Module = self
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, _Part())
                self._places.append((owner._modules, part, owner._modules[part]))
            owner = owner._modules[part]
        return owner, leaf

    def _apply(self, fn: Any, recurse: bool = True) -> LibraryModel:
        super()._apply(fn, recurse)
        # A parameter stays the tensor it was; buffers are replaced, and the model would not know of the new ones.
        for kept, leaf, own in self._tensors.values():
            if kept[leaf] is not own and not isinstance(own, torch.nn.Parameter):
                own.data = kept[leaf]
                kept[leaf] = own
        return self

    def _require_own_tensors(self) -> None:
        for kept, leaf, own in self._tensors.values():
            if kept.get(leaf) is not own:
                raise InvalidInput(f"{self._kind}: a parameter or buffer was replaced by another tensor, which the model does not compute with. Write to the "
                                   "tensors instead, as load_state_dict does without assign=True.")
        for parts, leaf, part in self._places:
            if parts.get(leaf) is not part:
                raise InvalidInput(f"{self._kind}: its module '{leaf}' was replaced by another, which the model does not compute with: the library computes it as a "
                                   "whole. Put other layers before or behind the model.")
            if part.training != self.training:
                raise InvalidInput(f"{self._kind}: its module '{leaf}' is in another mode than the model (train or eval), which the library computes as a whole. Set "
                                   "the mode of the model.")

    def train(self, mode: bool = True) -> LibraryModel:
        """As of torch.nn.Module."""
        self._model.train(mode)
        return super().train(mode)

    def set_memory(self, mode: str) -> None:
        """What training keeps of each point: 'stored' (all, the fastest), 'recomputed' (the layers' inputs) or 'streamed' (only the model's). Results differ by
        rounding only. Raises InvalidInput (a ValueError) for a mode that the model does not have."""
        self._model.set_memory(mode)
        self._mode = mode

    def seed_draws(self, seed: int) -> None:
        """Seeds torch's generators and the model's own noise (of Transolver++). Ranks that share rows pass the same seed."""
        self._model.seed_draws(seed)

    def __deepcopy__(self, memo: dict) -> LibraryModel:
        made = _made(type(self), self.arguments)
        memo[id(self)] = made
        made._take(self._own_state())
        for name, (_, _, own) in self._tensors.items():
            memo[id(own)] = made._tensors[name][2]   # an optimiser that is copied along trains the copy
        made._add(copy.deepcopy(self._added(), memo))
        return made

    def __reduce__(self) -> tuple:
        return _remade, (type(self), self.arguments, self._own_state(), self._added())

    def _own_state(self) -> dict[str, tuple[torch.Tensor, bool]]:
        return {name: (own.detach(), own.requires_grad) for name, (_, _, own) in self._tensors.items()}

    def _take(self, state: dict[str, tuple[torch.Tensor, bool]]) -> None:
        for name, (value, takes_gradient) in state.items():
            own = self._tensors[name][2]
            own.data = value.clone()   # in the type of the state
            own.requires_grad_(takes_gradient)

    def _added(self) -> dict[str, Any]:
        """What a subclass or a user has added to the library's module: attributes, hooks, parameters, buffers and modules."""
        library = {leaf for kept, leaf, _ in self._tensors.values() if kept is self._parameters or kept is self._buffers}
        library.update(name.split(".")[0] for name in self._tensors)
        added = {name: value for name, value in self.__dict__.items() if name not in ("_model", "_tensors", "_places", "arguments")}
        for kind in ("_parameters", "_buffers", "_modules"):
            added[kind] = {name: value for name, value in self.__dict__[kind].items() if name not in library}
        return added

    def _add(self, added: dict[str, Any]) -> None:
        for name, value in added.items():
            if name in ("_parameters", "_buffers", "_modules"):
                self.__dict__[name].update(value)
            else:
                self.__dict__[name] = value
        self._model.train(self.training)
        if self._mode is not None:
            self._model.set_memory(self._mode)
        for name, module in self._modules.items():
            if name not in added["_modules"]:
                module.train(self.training)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())


def _made(kind: type[LibraryModel], arguments: dict[str, Any]) -> LibraryModel:
    """A model of the class without a call of its constructor, whose arguments may be a subclass's own."""
    made = kind.__new__(kind)
    with torch.random.fork_rng(devices=[]):   # its parameters are then overwritten: a copy draws nothing
        LibraryModel.__init__(made, **arguments)
    return made


def _remade(kind: type[LibraryModel], arguments: dict[str, Any], state: dict[str, tuple[torch.Tensor, bool]], added: dict[str, Any]) -> LibraryModel:
    model = _made(kind, arguments)
    model._take(state)
    model._add(added)
    return model


class Transolver(LibraryModel):
    """Transolver (Wu et al. 2024), with `plus=True` Transolver++ (Luo et al. 2025). Arguments as of physicsnemo.models.transolver.Transolver and the keys of
    `meshard train`: functional_dim, out_dim, embedding_dim, n_layers, n_hidden, n_head, slice_num, ..."""

    _kind = "Transolver"

    def forward(self, fx: torch.Tensor, embedding: Optional[torch.Tensor] = None, time: Optional[torch.Tensor] = None) -> torch.Tensor:
        """fx (B, N, functional_dim), embedding (B, N, embedding_dim), time (B) to (B, N, out_dim), plain or cut along B or N. Collective if one is cut.

        Raises InvalidInput (a ValueError) on shapes that do not fit the arguments."""
        self._require_own_tensors()
        return self._model.transolver(fx, embedding, time)


class FLARE(Transolver):
    """FLARE (Puri et al. 2025): a Transolver whose layers mix the points through `slice_num` learned queries."""

    _kind = "FLARE"


class GeoTransolver(LibraryModel):
    """GeoTransolver: Transolver whose layers attend to a geometry and to constants of the case. Arguments as of physicsnemo.models.geotransolver.GeoTransolver."""

    _kind = "GeoTransolver"

    def forward(self, local_embedding: Union[torch.Tensor, Sequence[torch.Tensor]], local_positions: Union[torch.Tensor, Sequence[torch.Tensor], None] = None,
                global_embedding: Optional[torch.Tensor] = None, geometry: Optional[torch.Tensor] = None) -> Any:
        """local_embedding (B, N, functional_dim), local_positions (B, N, 3), global_embedding (B, N_g, global_dim), geometry (B, N_geo, geometry_dim) to
        (B, N, out_dim); with several streams, lists of embeddings and positions to a list. Collective if one is cut.

        Raises InvalidInput (a ValueError) for inputs that are missing, too many, or do not fit the arguments."""
        self._require_own_tensors()
        is_single = isinstance(local_embedding, torch.Tensor)
        embeddings = [local_embedding] if is_single else list(local_embedding)
        positions = [] if local_positions is None else [local_positions] if isinstance(local_positions, torch.Tensor) else list(local_positions)
        results = self._model.geotransolver(embeddings, positions, global_embedding, geometry)
        return results[0] if is_single else results


class MeshGraphNet(LibraryModel):
    """MeshGraphNet (Pfaff et al. 2021). Arguments as of physicsnemo.models.meshgraphnet.MeshGraphNet, and `num_neighbors`, for `of_points`."""

    _kind = "MeshGraphNet"

    def forward(self, node_features: torch.Tensor, edge_features: torch.Tensor, graph: Any = None) -> torch.Tensor:
        """node_features (N, input_dim_nodes), edge_features (E, input_dim_edges) to (N, output_dim), as PhysicsNeMo's.

        graph: what has an `edge_index`, as graphs of PyTorch Geometric, or that itself: (2, E), int64, the source and the target of each edge, plain, the edges of
        the whole graph on every rank. The way between ranks is found once for each such tensor.

        Nodes are plain or cut along N, edges plain (all of them on every rank) or cut along E in any way. Collective if nodes are cut.

        With positions (1, N, 3) in place of edge_features it is `of_points(embedding, positions, constants)`.

        Raises InvalidInput (a ValueError) for shapes that do not fit the arguments or each other, and nodes that an edge names but the graph has not."""
        if isinstance(node_features, torch.Tensor) and node_features.dim() == 3:
            return self.of_points(node_features, edge_features, graph)
        edge_index = getattr(graph, "edge_index", graph)
        if not isinstance(edge_index, torch.Tensor):
            raise InvalidInput(f"MeshGraphNet: expected a graph with an edge_index, or a tensor (2, E), found {type(graph).__name__}.")
        self._require_own_tensors()
        return self._model.of_graph(node_features, edge_features, edge_index)

    def of_points(self, embedding: torch.Tensor, positions: torch.Tensor, constants: Optional[torch.Tensor] = None) -> torch.Tensor:
        """The model on the graph of each point's `num_neighbors` nearest points, which is searched once for each tensor of positions. An edge carries the vector
        from its target to its source, and its length: input_dim_edges is 4.

        embedding (1, N, C), positions (1, N, 3), constants (1, G), C + G = input_dim_nodes, to (1, N, output_dim). Collective if one is cut.

        Raises InvalidInput (a ValueError) for a batch of several cases, and shapes that do not fit the arguments."""
        self._require_own_tensors()
        return self._model.of_points(embedding, positions, constants)
