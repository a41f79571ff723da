# SPDX-License-Identifier: Apache-2.0
"""The architectures that `meshard.export` can take elsewhere, as plain modules of torch: one case without a batch, parameters under the names of the library's
models, and what only training needs (dropout, noise) left out.

Letters: N points, C channels, H heads, D channels of a head, S slices, E edges, G constants."""
from __future__ import annotations

import math
from typing import Any, Callable, Mapping, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "celu": F.celu, "elu": F.elu, "gelu": F.gelu, "hardtanh": F.hardtanh, "identity": lambda x: x, "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "logsigmoid": F.logsigmoid, "relu": F.relu, "relu6": F.relu6, "selu": F.selu, "sigmoid": torch.sigmoid, "silu": F.silu, "sin": torch.sin,
    "softplus": F.softplus, "softshrink": F.softshrink, "softsign": F.softsign, "squareplus": lambda x: 0.5 * (x + torch.sqrt(x * x + 4)),
    "tanh": torch.tanh, "tanhshrink": F.tanhshrink, "threshold": lambda x: F.threshold(x, 1.0, 1.0)}
_CAPPED: dict[str, Callable[[Tensor], Tensor]] = {"capped_gelu": F.gelu, "cappek_leaky_relu": lambda x: F.leaky_relu(x, 0.01)}   # the reference's spelling


class Activation(nn.Module):
    """An activation by its name in checkpoints."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name.lower()
        if self.name == "prelu":
            self.weight = nn.Parameter(torch.empty(1))
        elif self.name in _CAPPED:
            self.register_buffer("cap", torch.empty(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.name == "prelu":
            return torch.where(x > 0, x, x * self.weight)
        if self.name in _CAPPED:
            return torch.minimum(_CAPPED[self.name](x), self.cap)
        return _ACTIVATIONS[self.name](x)


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, out: int, act: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), Activation(act), nn.Linear(hidden, out))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def by_heads(x: Tensor, heads: int) -> Tensor:
    """(N, H * D) to (H, N, D)."""
    return x.unflatten(-1, (heads, -1)).transpose(0, 1)


def together(x: Tensor) -> Tensor:
    """(H, N, D) to (N, H * D)."""
    return x.transpose(0, 1).flatten(1)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """(H, S, D) each."""
    return torch.softmax(queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1]), -1) @ values


class Slices(nn.Module):
    """Assigns points to slices (Wu et al. 2024, eq. 1 and 2; Luo et al. 2025 with `plus`)."""

    def __init__(self, width: int, head_dim: int, model: Mapping[str, Any]) -> None:
        super().__init__()
        self.heads, self.plus = model["n_head"], model["plus"]
        of_authors = model.get("authors_constants", False)
        self.epsilon = 1e-5 if of_authors else 1e-2
        self.bounds = (-math.inf, math.inf) if of_authors else (0.5, 5.0)
        self.temperature = nn.Parameter(torch.empty(1, 1, self.heads, 1))
        self.in_project_slice = nn.Linear(head_dim, model["slice_num"])
        self.in_project_x = nn.Linear(width, self.heads * head_dim)
        if self.plus:
            self.proj_temperature = nn.Sequential(nn.Linear(head_dim, model["slice_num"]), nn.GELU(), nn.Linear(model["slice_num"], 1), nn.GELU())
        else:
            self.in_project_fx = nn.Linear(width, self.heads * head_dim)

    def slice(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, C) to weights (H, N, S) and tokens (H, S, D)."""
        x_mid = by_heads(self.in_project_x(x), self.heads)
        temperature = self.temperature.view(self.heads, 1, 1)
        if self.plus:
            features, temperature = x_mid, (temperature + self.proj_temperature(x_mid)).clamp_min(0.01)
        else:
            features, temperature = by_heads(self.in_project_fx(x), self.heads), temperature.clamp(*self.bounds)
        weights = torch.softmax(self.in_project_slice(x_mid) / temperature, -1)
        sums = weights.transpose(-2, -1) @ features
        return weights, sums / (weights.sum(-2).unsqueeze(-1) + self.epsilon)


class PhysicsAttention(Slices):
    def __init__(self, width: int, model: Mapping[str, Any]) -> None:
        head_dim = width // model["n_head"]
        super().__init__(width, head_dim, model)
        self.qkv_project = nn.Linear(head_dim, 3 * head_dim, bias=False)
        self.out_linear = nn.Linear(self.heads * head_dim, width)

    def states(self, tokens: Tensor, context: Optional[Tensor]) -> Tensor:
        return attend(*self.qkv_project(tokens).chunk(3, -1))

    def forward(self, x: Tensor, context: Optional[Tensor] = None) -> Tensor:
        weights, tokens = self.slice(x)
        return self.out_linear(together(weights @ self.states(tokens, context)))


class FlareAttention(nn.Module):
    """Mixes the points through learned queries (Puri et al. 2025)."""

    def __init__(self, width: int, model: Mapping[str, Any]) -> None:
        super().__init__()
        self.heads = model["n_head"]
        head_dim = width // self.heads
        self.q_global = nn.Parameter(torch.empty(1, self.heads, model["slice_num"], head_dim))
        self.in_project_x = nn.Linear(width, self.heads * head_dim)
        self.self_k, self.self_v = nn.Linear(head_dim, head_dim), nn.Linear(head_dim, head_dim)
        self.out_linear = nn.Linear(self.heads * head_dim, width)

    def mix(self, x_mid: Tensor, context: Optional[Tensor]) -> Tensor:
        """(H, N, D) to the same shape."""
        logits = self.self_k(x_mid) @ self.q_global[0].transpose(-2, -1)                            # (H, N, S)
        gathered = torch.softmax(logits.transpose(-2, -1), -1) @ self.self_v(x_mid)                 # (H, S, D)
        return torch.softmax(logits, -1) @ gathered

    def forward(self, x: Tensor, context: Optional[Tensor] = None) -> Tensor:
        return self.out_linear(together(self.mix(by_heads(self.in_project_x(x), self.heads), context)))


class ContextMixing:
    """What GeoTransolver's layers have besides: attention to the context, and how it is mixed with their own."""

    def __init__(self, width: int, context_dim: int, model: Mapping[str, Any]) -> None:
        super().__init__(width, model)
        head_dim = width // model["n_head"]
        self.cross_q, self.cross_k, self.cross_v = (nn.Linear(n, head_dim) for n in (head_dim, context_dim, context_dim))
        if model["state_mixing_mode"] == "weighted":
            self.state_mixing = nn.Parameter(torch.empty(()))
        else:
            self.concat_project = nn.Sequential(nn.Linear(2 * head_dim, head_dim), nn.GELU())

    def mixed(self, own: Tensor, cross: Tensor) -> Tensor:
        if hasattr(self, "concat_project"):
            return self.concat_project(torch.cat([own, cross], -1))
        share = torch.sigmoid(self.state_mixing)
        return share * own + (1 - share) * cross


class Gale(ContextMixing, PhysicsAttention):
    def states(self, tokens: Tensor, context: Tensor) -> Tensor:
        own = super().states(tokens, context)
        return self.mixed(own, attend(self.cross_q(tokens), self.cross_k(context), self.cross_v(context)))


class GaleFa(ContextMixing, FlareAttention):
    def mix(self, x_mid: Tensor, context: Tensor) -> Tensor:
        # With scale 1, unlike the others.
        cross = torch.softmax(self.cross_q(x_mid) @ self.cross_k(context).transpose(-2, -1), -1) @ self.cross_v(context)
        return self.mixed(super().mix(x_mid, context), cross)


class Block(nn.Module):
    """Attention and MLP, each after a layer norm and added to its input."""

    def __init__(self, attention: nn.Module, width: int, model: Mapping[str, Any]) -> None:
        super().__init__()
        self.ln_1, self.Attn = nn.LayerNorm(width), attention
        self.ln_mlp1 = nn.Sequential(nn.LayerNorm(width), Mlp(width, model["mlp_ratio"] * width, width, model["act"]))

    def forward(self, x: Tensor, context: Optional[Tensor] = None) -> Tensor:
        x = x + self.Attn(self.ln_1(x), context)
        return x + self.ln_mlp1(x)


class TimeEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("freqs", torch.empty(width // 2))

    def forward(self, time: Tensor) -> Tensor:
        angles = time * self.freqs
        return torch.cat([torch.cos(angles), torch.sin(angles)], -1)


class Transolver(nn.Module):
    def __init__(self, model: Mapping[str, Any], attention: Callable[..., nn.Module] = PhysicsAttention) -> None:
        super().__init__()
        width = model["n_hidden"]
        self.functional_dim = model["functional_dim"]
        self.preprocess = Mlp(self.functional_dim + model["embedding_dim"], 2 * width, width, model["act"])
        self.blocks = nn.ModuleList(Block(attention(width, model), width, model) for _ in range(model["n_layers"]))
        self.blocks[-1].ln_mlp2 = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, model["out_dim"]))
        if model["time_input"]:
            self.time_embed = TimeEmbedding(width)
            self.time_fc = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, embedding: Tensor, constants: Optional[Tensor], time: Optional[Tensor], edges: Optional[Tensor]) -> Tensor:
        if self.functional_dim:   # without constants these channels are ones
            ones = torch.ones_like(embedding[:, :1])
            embedding = torch.cat([embedding, ones if constants is None else ones * constants], -1)
        x = self.preprocess(embedding)
        if time is not None:
            x = x + self.time_fc(self.time_embed(time))
        for block in self.blocks:
            x = block(x)
        return self.blocks[-1].ln_mlp2(x)


class Flare(Transolver):
    def __init__(self, model: Mapping[str, Any]) -> None:
        super().__init__(model, FlareAttention)


class ContextBuilder(nn.Module):
    """Tokens of the geometry and of the constants, (H, S, context_dim)."""

    def __init__(self, model: Mapping[str, Any]) -> None:
        super().__init__()
        head_dim = model["n_hidden"] // model["n_head"]
        self.geometry_tokenizer = Slices(model["geometry_dim"], head_dim, model)
        self.global_tokenizer = Slices(model["global_dim"], head_dim, model) if model["global_dim"] else None
        self.context_dim = head_dim * (1 if self.global_tokenizer is None else 2)

    def forward(self, geometry: Tensor, constants: Optional[Tensor]) -> Tensor:
        tokens = self.geometry_tokenizer.slice(geometry)[1]
        if self.global_tokenizer is None:
            return tokens
        return torch.cat([tokens, self.global_tokenizer.slice(constants.unsqueeze(0))[1]], -1)


class GeoTransolver(nn.Module):
    def __init__(self, model: Mapping[str, Any]) -> None:
        super().__init__()
        width = model["n_hidden"]
        functional_dim, out_dim = (model[name] if isinstance(model[name], int) else model[name][0] for name in ("functional_dim", "out_dim"))
        attention = GaleFa if model["attention_type"] == "GALE_FA" else Gale
        self.context_builder = ContextBuilder(model)
        self.preprocess = nn.ModuleList([Mlp(functional_dim, 2 * width, width, model["act"])])
        self.blocks = nn.ModuleList(Block(attention(width, self.context_builder.context_dim, model), width, model) for _ in range(model["n_layers"]))
        self.ln_mlp_out = nn.ModuleList([nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out_dim))])

    def forward(self, embedding: Tensor, constants: Optional[Tensor], time: Optional[Tensor], edges: Optional[Tensor]) -> Tensor:
        context = self.context_builder(embedding[:, :3], constants)
        x = self.preprocess[0](embedding)
        for block in self.blocks:
            x = block(x, context)
        return self.ln_mlp_out[0](x)


class GraphMlp(nn.Module):
    def __init__(self, width: int, hidden: int, out: int, layers: int, act: str, has_norm: bool = True) -> None:
        super().__init__()
        widths = [width] + [hidden] * layers
        parts = [part for pair in zip(widths, widths[1:]) for part in (nn.Linear(*pair), Activation(act))]
        self.model = nn.Sequential(*parts, nn.Linear(widths[-1], out), *([nn.LayerNorm(out)] if has_norm else []))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class EdgeMlp(GraphMlp):
    def __init__(self, width: int, layers: int, act: str) -> None:
        super().__init__(3 * width, width, width, layers, act)

    def of_edges(self, edges: Tensor, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return self.model(torch.cat([edges, nodes[source], nodes[target]], -1))


class SplitEdgeMlp(nn.Module):
    """An edge's MLP whose first layer meets nodes before they are gathered (`do_concat_trick`)."""

    def __init__(self, width: int, layers: int, act: str) -> None:
        super().__init__()
        for name in ("lin_efeat", "lin_src", "lin_dst"):
            setattr(self, name, nn.Parameter(torch.empty(width, width)))
        self.bias = nn.Parameter(torch.empty(width))
        self.model = nn.Sequential(*[part for _ in range(layers) for part in (Activation(act), nn.Linear(width, width))], nn.LayerNorm(width))

    def of_edges(self, edges: Tensor, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return self.model(F.linear(edges, self.lin_efeat, self.bias) + F.linear(nodes, self.lin_src)[source] + F.linear(nodes, self.lin_dst)[target])


class MeshGraphNet(nn.Module):
    def __init__(self, model: Mapping[str, Any]) -> None:
        super().__init__()
        width, act = model["hidden_dim_processor"], model["mlp_activation_fn"]
        self.takes_mean = model["aggregation"] == "mean"
        self.edge_encoder = GraphMlp(model["input_dim_edges"], model["hidden_dim_edge_encoder"], width, model["num_layers_edge_encoder"], act)
        self.node_encoder = GraphMlp(model["input_dim_nodes"], model["hidden_dim_node_encoder"], width, model["num_layers_node_encoder"], act)
        self.node_decoder = GraphMlp(width, model["hidden_dim_node_decoder"], model["output_dim"], model["num_layers_node_decoder"], act, has_norm=False)
        edge_mlp = SplitEdgeMlp if model["do_concat_trick"] else EdgeMlp
        layers = nn.ModuleList()   # edges and nodes alternate
        for _ in range(model["processor_size"]):
            layers.append(nn.ModuleDict({"edge_mlp": edge_mlp(width, model["num_layers_edge_processor"], act)}))
            layers.append(nn.ModuleDict({"node_mlp": GraphMlp(2 * width, width, width, model["num_layers_node_processor"], act)}))
        self.processor = nn.ModuleDict({"processor_layers": layers})

    def forward(self, embedding: Tensor, constants: Optional[Tensor], time: Optional[Tensor], edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        places = embedding[:, :3]
        offsets = places[source] - places[target]
        messages = self.edge_encoder(torch.cat([offsets, torch.linalg.vector_norm(offsets, dim=-1, keepdim=True)], -1))
        if constants is not None:
            embedding = torch.cat([embedding, torch.ones_like(embedding[:, :1]) * constants], -1)
        nodes = self.node_encoder(embedding)
        counts = torch.zeros_like(places[:, :1]).index_add(0, target, torch.ones_like(offsets[:, :1])).clamp_min(1) if self.takes_mean else 1
        layers = self.processor["processor_layers"]
        for of_edges, of_nodes in zip(layers[::2], layers[1::2]):
            messages = messages + of_edges["edge_mlp"].of_edges(messages, nodes, source, target)
            heard = torch.zeros_like(nodes).index_add(0, target, messages) / counts
            nodes = nodes + of_nodes["node_mlp"](torch.cat([heard, nodes], -1))
        return self.node_decoder(nodes)


ARCHITECTURES = {"Transolver": Transolver, "FLARE": Flare, "GeoTransolver": GeoTransolver, "MeshGraphNet": MeshGraphNet}


class CoordinateEncoding(nn.Module):
    """Sines and cosines of waves over the places (`data.encoding`)."""

    def __init__(self, kind: str, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.is_fourier = kind == "fourier"
        for name in ("directions",) if self.is_fourier else ("log_frequencies", "phases"):
            self.register_buffer(name, torch.empty_like(tensors[f"encoding.{name}"]))

    def forward(self, places: Tensor) -> Tensor:
        x, y, z = places[:, :1], places[:, 1:2], places[:, 2:]
        if self.is_fourier:
            angles = (x * self.directions[0] + y * self.directions[1] + z * self.directions[2]) * (2 * math.pi)
        else:
            of_axes = (self.log_frequencies.exp() * (2 * math.pi)).chunk(3)
            angles = torch.cat([x * of_axes[0], y * of_axes[1], z * of_axes[2]], -1) + self.phases
        return torch.cat([angles.sin(), angles.cos()], -1)


class CoefficientHead(nn.Module):
    """Numbers of the whole case by the mean of channels of its points."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        num_coefficients, num_features = tensors["coefficients.out.weight"].shape
        self.hidden, self.out = nn.Linear(num_features, num_features), nn.Linear(num_features, num_coefficients)

    def forward(self, features: Tensor) -> Tensor:
        return self.out(F.gelu(self.hidden(features.mean(0))))
