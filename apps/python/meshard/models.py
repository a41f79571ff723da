# SPDX-License-Identifier: Apache-2.0
"""The models of the library as `torch.nn.Module`: names, shapes and arguments of their parameters are PhysicsNeMo's, so state_dicts go both ways, and their blocks
are fused kernels, on CPUs and on GPUs. Given sharded tensors they compute what they compute on whole ones::

    model = meshard.models.Transolver(functional_dim=2, embedding_dim=3, out_dim=4, n_hidden=128)
    model.load_state_dict(physicsnemo_model.state_dict())
    meshard.replicate(model, mesh)
    y = model(fx, embedding)
"""
from __future__ import annotations

import json
from typing import Any, Optional, Sequence, Union

import torch

from . import _core
from ._core import InvalidInput

__all__ = ["FLARE", "GeoTransolver", "LibraryModel", "MeshGraphNet", "Transolver"]


class LibraryModel(torch.nn.Module):
    """What the models have in common. `arguments` has all arguments of the constructor, the defaults too.

    Raises InvalidInput (a ValueError) for an argument that does not exist, with the nearest name, and for a value that is out of bounds."""

    _kind = ""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        if not self._kind:
            raise InvalidInput("LibraryModel: make one of meshard.models: FLARE, GeoTransolver, MeshGraphNet, Transolver.")
        try:
            text = json.dumps(arguments)
        except TypeError as error:
            raise InvalidInput(f"{self._kind}: arguments are numbers, texts and lists of them: {error}.") from None
        self._model = _core.Model(self._kind, text)
        self.arguments = json.loads(self._model.arguments())
        for name, parameter in self._model.parameters():
            parameter.__class__ = torch.nn.Parameter   # the very tensor that the model computes with
            owner, leaf = self._owner_of(name)
            owner.register_parameter(leaf, parameter)
        for name, buffer in self._model.buffers():
            owner, leaf = self._owner_of(name)
            owner.register_buffer(leaf, buffer)
        self._tensors = [*self.parameters(), *self.buffers()]
        default = torch.get_default_device()   # as modules of torch.nn, made where torch.device says
        if default.type not in ("cpu", "meta"):
            self.to(default)

    def _owner_of(self, name: str) -> tuple[torch.nn.Module, str]:
        *path, leaf = name.split(".")
        owner: torch.nn.Module = self
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner._modules[part]
        return owner, leaf

    def _apply(self, fn: Any, recurse: bool = True) -> LibraryModel:
        super()._apply(fn, recurse)
        # A parameter stays the tensor it was; buffers are replaced, and the model would not know of the new ones.
        kept = {id(tensor) for tensor in self._tensors}
        old = dict(self._model.buffers())
        for name, _ in list(self.named_buffers()):
            owner, leaf = self._owner_of(name)
            if id(owner._buffers[leaf]) not in kept:
                old[name].data = owner._buffers[leaf]
                owner._buffers[leaf] = old[name]
        return self

    def _require_own_tensors(self) -> None:
        for now, own in zip([*self.parameters(), *self.buffers()], self._tensors):
            if now is not own:
                raise InvalidInput(f"{self._kind}: a parameter or buffer was replaced by another tensor, which the model does not compute with. Write to the "
                                   "tensors instead, as load_state_dict does without assign=True.")

    def train(self, mode: bool = True) -> LibraryModel:
        """As of torch.nn.Module."""
        self._model.train(mode)
        return super().train(mode)

    def set_memory(self, mode: str) -> None:
        """What training keeps of each point: 'stored' (all, the fastest), 'recomputed' (the layers' inputs) or 'streamed' (only the model's). Results differ by
        rounding only. Raises InvalidInput (a ValueError) for a mode that the model does not have."""
        self._model.set_memory(mode)

    def seed_draws(self, seed: int) -> None:
        """Seeds torch's generators and the model's own noise (of Transolver++). Ranks that share rows pass the same seed."""
        self._model.seed_draws(seed)

    def __deepcopy__(self, memo: dict) -> LibraryModel:
        made = type(self)(**self.arguments)
        memo[id(self)] = made
        _restore(made, {name: tensor.detach() for name, tensor in self.state_dict().items()}, self.training,
                 [parameter.requires_grad for parameter in self.parameters()])
        return made

    def __reduce__(self) -> tuple:
        return _remade, (type(self).__name__, self.arguments, self.state_dict(), self.training, [parameter.requires_grad for parameter in self.parameters()])

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())


def _restore(model: LibraryModel, state: dict, training: bool, takes_gradient: Sequence[bool]) -> None:
    own = dict([*model.named_parameters(), *model.named_buffers()])
    for name, value in state.items():
        own[name].data = value.detach().clone()   # in the type of the state
    model.train(training)
    for parameter, takes in zip(model.parameters(), takes_gradient):
        parameter.requires_grad_(takes)


def _remade(kind: str, arguments: dict, state: dict, training: bool, takes_gradient: Sequence[bool]) -> LibraryModel:
    model = globals()[kind](**arguments)
    _restore(model, state, training, takes_gradient)
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
