# SPDX-License-Identifier: Apache-2.0
"""meshard.models: the library's models as modules of torch, sharded = serial, and PhysicsNeMo's where it is installed; meshard.probe."""
import concurrent.futures
import copy
import importlib
import io
import pickle
import types
import warnings

import meshard
import torch
import torch.nn as nn

from ranks import cuts, mesh, num_ranks, rank, refused, seeded
from sharded_check import compare, near

f64 = torch.float64
SMALL = dict(functional_dim=2, out_dim=3, n_layers=2, n_hidden=16, n_head=4, slice_num=8, use_te=False)


def points(n=50, batch=1):
    generator = seeded(2)
    return [torch.randn(batch, n, 2, dtype=f64, generator=generator), torch.randn(batch, n, 3, dtype=f64, generator=generator)]


def made(kind, **arguments):
    torch.manual_seed(1)
    return getattr(meshard.models, kind)(**arguments).to(f64)


def transolver(**more):
    return made("Transolver", embedding_dim=3, **SMALL, **more)


def test_transolver():
    return compare(transolver(), points(batch=2), [1, 1])


def test_transolver_recomputed_and_streamed():
    for mode in ("recomputed", "streamed"):
        model = transolver()
        model.set_memory(mode)
        near(model(*points()), transolver()(*points()), 1e-12)
    refused(lambda: transolver().set_memory("forgotten"), ValueError, "forgotten")


def test_flare():
    return compare(made("FLARE", embedding_dim=3, **SMALL), points(), [1, 1])


def test_geotransolver():
    model = made("GeoTransolver", geometry_dim=3, global_dim=2, **SMALL)
    return compare(model, [*points(), torch.randn(1, 1, 2, dtype=f64, generator=seeded(4))], [1, 1, None],
                   call=lambda m, f, g, e: m(f, geometry=g, global_embedding=e))


def test_mesh_graph_net():
    model = made("MeshGraphNet", input_dim_nodes=2, input_dim_edges=4, output_dim=3, processor_size=2, hidden_dim_processor=8, hidden_dim_node_encoder=8,
                 hidden_dim_edge_encoder=8, hidden_dim_node_decoder=8)
    embedding, places = points()
    return compare(model, [embedding, places], [1, 1], call=lambda m, e, p: m(e, p.detach()))


def written_mesh_graph_net(state, steps, nodes, edges, edge_index):
    """MeshGraphNet with these weights, in plain PyTorch."""
    def mlp(name, x):
        def layer(i):
            return state[f"{name}.model.{i}.weight"], state[f"{name}.model.{i}.bias"]

        for i in (0, 2):
            x = nn.functional.linear(x, *layer(i)).relu()
        x = nn.functional.linear(x, *layer(4))
        return nn.functional.layer_norm(x, x.shape[1:], *layer(5)) if f"{name}.model.5.weight" in state else x

    source, target = edge_index
    nodes, edges = mlp("node_encoder", nodes), mlp("edge_encoder", edges)
    for step in range(steps):
        edges = edges + mlp(f"processor.processor_layers.{2 * step}.edge_mlp", torch.cat([edges, nodes[source], nodes[target]], 1))
        heard = torch.zeros_like(nodes).index_add(0, target, edges)
        nodes = nodes + mlp(f"processor.processor_layers.{2 * step + 1}.node_mlp", torch.cat([heard, nodes], 1))
    return mlp("node_decoder", nodes)


def test_mesh_graph_net_on_a_given_graph():
    model = made("MeshGraphNet", input_dim_nodes=2, input_dim_edges=3, output_dim=3, processor_size=2, hidden_dim_processor=8, hidden_dim_node_encoder=8,
                 hidden_dim_edge_encoder=8, hidden_dim_node_decoder=8)
    generator = seeded(6)
    nodes, edges = (torch.randn(*shape, dtype=f64, generator=generator) for shape in ((20, 2), (20, 3)))
    edge_index = torch.stack([torch.randint(0, 20, (20,), generator=generator), torch.randint(5, 15, (20,), generator=generator)])   # some nodes hear nothing
    near(model(nodes, edges, types.SimpleNamespace(edge_index=edge_index)), written_mesh_graph_net(model.state_dict(), 2, nodes, edges, edge_index), 1e-9)
    refused(lambda: model(nodes, edges[1:], edge_index), ValueError, "a row of edge_features for each of the 20 edges")
    refused(lambda: model(nodes, edges, edge_index + 10), ValueError, "names the row 2")
    refused(lambda: model(nodes, edges, "graph"), ValueError, "found str")
    compare(model, [nodes, edges], [0, None], call=lambda m, n, e: m(n, e, edge_index))
    return compare(model, [nodes, edges], [0, 0], call=lambda m, n, e: m(n, e, edge_index))


def test_state_dict_is_physicsnemos():
    notes = []
    for kind, path, more, call in (
            ("Transolver", "physicsnemo.models.transolver", dict(embedding_dim=3), lambda m, f, e: m(f, e)),
            ("FLARE", "physicsnemo.models.flare", dict(embedding_dim=3), lambda m, f, e: m(f, e)),
            ("GeoTransolver", "physicsnemo.models.geotransolver", dict(geometry_dim=3), lambda m, f, e: m(local_embedding=f, geometry=e))):
        try:
            theirs = getattr(importlib.import_module(path), kind)(**SMALL, **more).to(f64)
        except ImportError:
            return "PhysicsNeMo is not installed"
        ours = made(kind, **SMALL, **more)
        assert {name: tuple(value.shape) for name, value in ours.state_dict().items()} == {name: tuple(value.shape) for name, value in theirs.state_dict().items()}
        ours.load_state_dict(theirs.state_dict())
        inputs = points()
        near(call(ours, *inputs), call(theirs, *inputs), 1e-9)
        theirs.load_state_dict(ours.state_dict())
        notes.append(kind)
    return ", ".join(notes)


def test_is_a_module_like_others():
    model = transolver()
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters()) and next(model.parameters()).dtype is f64
    inputs = points()
    before = model(*inputs)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model(*inputs).square().mean().backward()
    optimizer.step()
    after = model(*inputs)
    assert not torch.equal(before, after)   # the model computes with what the optimiser wrote
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        near(twin(*inputs), after, 0)
        assert next(twin.parameters()) is not next(model.parameters())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = transolver()
    fresh.load_state_dict(torch.load(file))
    near(fresh(*inputs), after, 0)
    assert model.arguments["n_hidden"] == 16 and "n_hidden=16" in repr(model)
    model.eval()
    assert not model.training


def test_parts_of_a_model_have_no_life_of_their_own():
    model, inputs = transolver(), points()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.get_submodule("blocks.0").register_forward_hook(lambda *_: None)
    assert len(said) == 1 and "never called" in str(said[0].message)
    for child in model.children():
        child.eval()
    refused(lambda: model(*inputs), ValueError, "is in another mode than the model")
    model.eval()
    model(*inputs)
    model.blocks.add_module("0", nn.Identity())
    refused(lambda: model(*inputs), ValueError, "its module '0' was replaced")


def test_copies_draw_nothing_and_keep_the_memory_mode():
    model = transolver().train()
    model.set_memory("recomputed")
    state = torch.random.get_rng_state()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(torch.random.get_rng_state(), state) and twin._mode == "recomputed"
        near(twin(*points()), model(*points()), 1e-12)


class Own(meshard.models.Transolver):
    """A subclass with a constructor, a module and attributes of its own."""

    def __init__(self, width):
        super().__init__(embedding_dim=3, time_input=True, **{**SMALL, "n_hidden": width})
        self.last = nn.Linear(3, 1)
        self.seen = []

    def forward(self, fx, embedding, time):
        return self.last(super().forward(fx, embedding, time))


def test_copies_are_whole():
    torch.manual_seed(2)
    model = Own(16).to(f64)
    model.seen.append(7)
    inputs = [*points(), torch.tensor([0.5], dtype=f64)]
    model(*inputs).sum().backward()
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.optim.swa_utils.AveragedModel(model).module]
    for twin in twins:
        assert type(twin) is Own and twin.seen == [7] and twin.seen is not model.seen
        near(twin(*inputs), model(*inputs), 0)
        twin.last.weight.data.zero_()
        assert model.last.weight.abs().min() > 0
    copied = copy.deepcopy({"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)})
    before = copied["model"](*inputs)
    copied["model"](*inputs).square().sum().backward()
    copied["optimizer"].step()
    assert not torch.equal(copied["model"](*inputs), before) and torch.equal(model(*inputs), before)   # the copy alone was trained


def test_graphs_follow_what_is_written():
    arguments = dict(input_dim_nodes=2, output_dim=3, processor_size=1, hidden_dim_processor=8, hidden_dim_node_encoder=8, hidden_dim_edge_encoder=8,
                     hidden_dim_node_decoder=8)
    model, (embedding, places) = made("MeshGraphNet", input_dim_edges=4, **arguments), points()
    with torch.no_grad():
        first = model.of_points(embedding, places)
        places.copy_(places.flip(1))
        moved = model.of_points(embedding, places)
        near(moved, model.of_points(embedding, places.clone()), 0)
        assert not torch.allclose(first, moved)
        with concurrent.futures.ThreadPoolExecutor(8) as several:   # one model, clouds of their own
            for found in several.map(lambda _: model.of_points(embedding, places.clone()), range(200)):
                near(found, moved, 0)
    on_edges, nodes = made("MeshGraphNet", input_dim_edges=3, **arguments), embedding[0]
    edge_index, edges = torch.randint(0, 50, (2, 20), generator=seeded(9)), torch.randn(20, 3, dtype=f64, generator=seeded(8))
    with torch.inference_mode():
        near(on_edges(nodes, edges, edge_index.clone()), on_edges(nodes, edges, edge_index), 0)


def test_buffers_follow_the_type():
    model = meshard.models.Transolver(embedding_dim=3, time_input=True, **SMALL)
    inputs = [*(x.float() for x in points()), torch.tensor([0.5])]
    single = model(*inputs)
    near(model.to(f64)(*(x.to(f64) for x in inputs)), single, 1e-4)
    assert model(*(x.to(f64) for x in inputs)).dtype is f64


def test_wrong_use_is_refused():
    refused(lambda: meshard.models.Transolver(n_hiden=3, **SMALL), ValueError, "n_hidden")
    refused(lambda: meshard.models.Transolver(functional_dim=2, out_dim=3, n_hidden=15, n_head=4), ValueError, "15")
    refused(lambda: meshard.models.Transolver(functional_dim=torch, out_dim=3), ValueError, "Transolver")
    refused(lambda: meshard.models.LibraryModel(), ValueError, "Transolver")
    model = transolver()
    refused(lambda: model(points()[0]), ValueError, "embedding")
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    refused(lambda: model(*points()), ValueError, "assign=True")


def test_probe_says_equal():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(f64)
    x = torch.randn(20, 4, dtype=f64, generator=seeded(rank()))   # rank 0 decides
    state = torch.get_rng_state()
    for extents in [None, *cuts(20)]:
        report = meshard.probe(model, [x], mesh(), extents=extents)
        assert report.equal and not report.refusal and {found.name for found in report.differences} == {"output", "grad_input 0", *(f"grad.{n}" for n, _ in
                                                                                                                                model.named_parameters())}
        assert all(not op.gathered for op in report.operators) and "aten::" in str(report) and "equal to one process" in str(report)
    assert torch.equal(torch.get_rng_state(), state) and all(p.grad is None for p in model.parameters())


class Shifted(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)).to(f64)


def test_exported_programs_shard():
    example = torch.ones(20, 4)
    program = torch.export.export(Shifted(), (example,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},)).module()
    report = meshard.probe(program, [torch.randn(30, 4)], mesh())
    assert report.equal and {op.name for op in report.operators} > {"aten::_assert_tensor_metadata", "aten::mean.dim"}, report
    assert all(not op.gathered for op in report.operators), report
    x = meshard.distribute_tensor(example, mesh(), [meshard.Shard(0)])
    torch.ops.aten._assert_tensor_metadata(x, [20, 4], [4, 1], torch.float32)
    refused(lambda: torch.ops.aten._assert_tensor_metadata(x, [20, 5]), RuntimeError, "Expected: [20, 5], Got: [20, 4]")
    refused(lambda: torch.ops.aten._assert_tensor_metadata(x, None, None, f64), RuntimeError, "dtype mismatch")


class PartOnly(nn.Module):
    """Wrong on cut rows: it takes this rank's part for the whole."""

    def forward(self, x):
        return x * meshard.to_local(x).sum() if meshard.is_sharded(x) else x * x.sum()


def test_probe_compares_what_has_no_difference():
    from meshard._probe import _differences

    def equal(ours, serial):
        return _differences({"y": torch.tensor(ours)}, {"y": torch.tensor(serial)})[0].equal

    inf, nan = float("inf"), float("nan")
    assert equal([inf, -inf, nan, 1.], [inf, -inf, nan, 1.]) and equal([1., 2.], [1.000001, 2.]) and equal([7, 8], [7, 8])
    assert not equal([5., 1.], [inf, 1.]) and not equal([inf, 1.], [5., 1.]) and not equal([nan, 1.], [5., 1.])
    assert not equal([1000, 20], [1000, 21]) and not equal([2**53 + 1], [2**53])


def test_probe_says_different():
    report = meshard.probe(PartOnly(), [torch.arange(1., 21, dtype=f64).view(20, 1)], mesh(), backward=False)
    assert report.equal == (num_ranks() == 1) and (report.equal or "NOT equal" in str(report))
    refused(lambda: meshard.probe(nn.Linear(1, 1), [torch.ones(3, 1)], mesh(), shard=2), ValueError, "no dimension 2")


def test_mesh_graph_net_of_levels_has_derivatives_by_its_points():
    """Also after a call without derivatives of the same points, and once more."""
    torch.manual_seed(0)
    sizes = dict.fromkeys(("hidden_dim_processor", "hidden_dim_node_encoder", "hidden_dim_edge_encoder", "hidden_dim_node_decoder"), 8)
    model = meshard.models.MeshGraphNet(input_dim_nodes=3, input_dim_edges=4, output_dim=2, processor_size=2, num_neighbors=3, levels=[5, 11], **sizes).double()
    places, told, step = torch.rand(1, 20, 3, dtype=torch.float64), torch.randn(1, 20, 3, dtype=torch.float64), torch.randn(1, 20, 3, dtype=torch.float64)

    def loss(p):
        return model.of_points(told, p).square().sum()

    with torch.no_grad():
        expected = (loss(places + 1e-6 * step) - loss(places - 1e-6 * step)) / 2e-6
        loss(places)
    places.requires_grad_()
    for _ in range(2):
        with torch.no_grad():
            loss(places)
        near((torch.autograd.grad(loss(places), places)[0] * step).sum(), expected, 1e-6)
    refused(lambda: meshard.models.Transolver(functional_dim=1, out_dim=1, embedding_dim=3, dropout=float("nan")), ValueError, "finite numbers")
