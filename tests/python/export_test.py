# SPDX-License-Identifier: Apache-2.0
"""Networks taken elsewhere: what files give, run by torch.export's loader and by onnxruntime, beside meshard's predictions of the run. Run on one rank."""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import meshard
import numpy as np
import torch
from meshard import _networks, export
from safetensors.torch import save_file

from ranks import refused

sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
PROGRAM = pathlib.Path(os.environ.get("MESHARD_TEST_BUILD", "")) / "bin/meshard"
ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
NO_ONNX = "skipped in part: onnx, onnxscript and onnxruntime are not installed (apps/setup.sh --peers)"
SLICES = dict(out_dim=4, n_layers=2, n_hidden=16, n_head=4, slice_num=8)
GEOMETRY = dict(functional_dim=6, geometry_dim=3, **SLICES)
GRAPH = dict(input_dim_edges=4, output_dim=4, processor_size=2, hidden_dim_processor=8, hidden_dim_node_encoder=8, hidden_dim_edge_encoder=8,
             hidden_dim_node_decoder=8, num_neighbors=5)


def run(folder, *words, code=0, **environment):
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    ended = subprocess.run([str(PROGRAM), *map(str, words)], cwd=folder, env={**own, **environment}, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == code, ended
    return ended.stdout + ended.stderr


def library_model(kind, seed=1, **arguments):
    torch.manual_seed(seed)
    model = getattr(meshard.models, kind)(**arguments)
    with torch.no_grad():
        for tensor in model.parameters():   # norms, temperatures and mixings, too, are then none that they begin with
            tensor.add_(0.3 * torch.randn_like(tensor))
    return model.eval()


def learnt(kind, data={}, **arguments):
    """A stand-in for what `meshard.load` gets of C++, with a model of the library."""
    model = library_model(kind, **arguments)
    tensors = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    tensors |= {"norm.mean": np.array([3, 1, 2, 0.5], np.float32), "norm.std": np.array([20, 1, 2, 3], np.float32)}
    data = dict(association="cell", inputs="points, normals", center="none", length="2", up=[0, 0, 1], ground="bounds", encoding="none", constants=[],
                time="", reference={}, reference_columns={}) | data
    fields = [dict(name=name, channels=channels, factor=1, powers={}, is_above_p_inf=False) for name, channels in (("p", 1), ("wss", 3))]
    constants = sorted({*data["constants"], *([data["time"]] if data["time"] else [])})
    description = dict(file="weights", model_class=kind, model=model.arguments, data=data, fields=fields, constants=constants, head=None)
    return types.SimpleNamespace(checkpoints=["weights"], network=lambda: (json.dumps(description), tensors))


def test_modules_compute_what_the_library_computes():
    named = refused(lambda: meshard.models.Transolver(functional_dim=1, embedding_dim=6, act="none", **SLICES), ValueError, "There are: ")
    activations = named.split("There are: ")[1].rstrip(".").split()
    assert len(activations) > 20
    two = dict(constants=["rho", "speed"])
    cases = [("Transolver", {}, dict(functional_dim=1, embedding_dim=6, act=act, **SLICES)) for act in activations]
    cases += [("Transolver", two, dict(functional_dim=2, embedding_dim=6, plus=True, **SLICES)),
              ("Transolver", dict(two, time="t"), dict(functional_dim=2, embedding_dim=6, time_input=True, authors_constants=True, **SLICES)),
              ("FLARE", two, dict(functional_dim=2, embedding_dim=6, dropout=0.1, **SLICES)),
              ("GeoTransolver", two, dict(global_dim=2, concrete_dropout=True, dropout=0.1, **GEOMETRY)),
              ("GeoTransolver", {}, dict(plus=True, state_mixing_mode="concat_project", **GEOMETRY)),
              ("GeoTransolver", two, dict(global_dim=2, attention_type="GALE_FA", **GEOMETRY)),
              ("MeshGraphNet", two, dict(input_dim_nodes=8, mlp_activation_fn="silu", **GRAPH)),
              ("MeshGraphNet", {}, dict(input_dim_nodes=6, do_concat_trick=True, aggregation="mean", **GRAPH))]
    for kind, data, arguments in cases:
        network, of_library, _ = export.network_of(learnt(kind, data, **arguments))
        inputs = network.example(60, 5, seed=1)
        found, expected = network(**inputs), of_library(**inputs)
        for name in ("p", "wss"):
            assert found[name].shape == expected[name].shape, (kind, arguments, name)
            assert (found[name] - expected[name]).abs().max() < 1e-5 * expected[name].abs().max(), (kind, arguments, name)


def gives(file, inputs):
    """The fields that a file gives, by name."""
    if file.suffix == ".pt2":
        return {name: values.numpy() for name, values in torch.export.load(file).module()(**{name: torch.from_numpy(array) for name, array in inputs.items()}).items()}
    import onnxruntime
    session = onnxruntime.InferenceSession(file)
    assert {one.name for one in session.get_inputs()} == set(inputs)
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs)))


def near(found, expected):
    assert set(expected) <= set(found)
    for name, values in expected.items():
        assert found[name].shape == values.shape and found[name].dtype == np.float32
        assert np.abs(found[name] - values).max() < 1e-5 * np.abs(values).max(), name


def measured(mesh):
    """What docs/python.md says of a mesh of quadrilaterals, by numpy alone."""
    corners = mesh.points[mesh.connectivity.reshape(-1, 4)].astype(np.float64)
    across = np.cross(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1]) / 2
    areas = np.linalg.norm(across, axis=1)
    bounds = np.stack([mesh.points.min(0), mesh.points.max(0)], 1).ravel().astype(np.float64)
    return dict(points=corners.mean(1), normals=across / areas[:, None], areas=areas, bounds=bounds)


def test_files_give_what_meshard_predicts():
    if not PROGRAM.exists():
        return "there is no build folder with the programs"
    from samples import copy_sample, put_training
    with tempfile.TemporaryDirectory() as own:
        folder = pathlib.Path(own)
        put_training(folder)
        for name in ("car", "geo"):
            copy_sample(f"runs/{name}", folder / f"runs/{name}")
        # All that is computed around a network: inputs of every kind, waves, fields without units, coefficients.
        run(folder, "train", "car.yaml", "run_id=graph", "~model", "model.name=meshgraphnet", "model.processor_size=2",
            "model.hidden_dim_processor=8", "training.max_steps=2", "data.inputs=[points, normals, areas, height, box]", "data.encoding=learnable", "data.constants=[rho]", "data.length=length",
            "data.targets=nondimensional", "data.reference.U_inf=[speed, 0, 3]", "data.reference.p_inf=5", "data.fields.pressure.kind=static",
            "training.coefficient_weights=[0.1, 0.1]", "data.reference.rho=rho", "data.forces.area=0.5", "--accept-data")
        body = folder / "cases/run_4/boundary_4.vtp"
        told = {"car": {}, "geo": dict(rho=1.2, speed=34), "graph": dict(rho=1.2, speed=34, length=1.4)}
        for name, constants in told.items():
            surrogate = meshard.load(folder / f"runs/{name}", device="cpu")
            inputs, expected = surrogate.network_inputs(body, **constants), dict(surrogate.predict(body, **constants))
            by_hand = measured(meshard.read(body))
            for kind in set(inputs) - {"constants", "edges"}:
                assert inputs[kind].dtype == np.float64
                assert np.allclose(inputs[kind] / inputs[kind].mean(), by_hand[kind] / by_hand[kind].mean(), atol=1e-6) if kind == "areas" else \
                    np.allclose(inputs[kind], by_hand[kind], atol=1e-6), kind
            if name == "graph":
                assert inputs["constants"].tolist() == [1.4, 1.2, 34] and inputs["edges"].shape == (2, 6 * 96)
                head = surrogate.forces(body, **constants)
                expected |= {which: np.array(head[which], np.float32) for which in ("Cd_head", "Cl_head")}
            file = folder / f"made/{name}{'.pt2' if name == 'car' else '.onnx'}"
            if file.suffix == ".pt2" or ONNX:
                if name == "geo":
                    printed = run(folder, "export", f"runs/{name}", file, MESHARD_PYTHON=sys.executable)
                    assert re.search(r"(?s)takes  points +\(N, 3\).*takes  constants +\(2\) .*rho, speed\n.*gives  wss +\(N, 3\).*written to", printed), printed
                else:
                    assert list(surrogate.export(file)["inputs"]) == list(inputs)
                near(gives(file, inputs), expected)
        assert sorted(path.name for path in (folder / "made").iterdir()) == (["car.pt2", "geo.onnx", "graph.onnx"] if ONNX else ["car.pt2"])
        refused(lambda: meshard.load([folder / "runs/car"] * 2).export("a.pt2"), ValueError, "expected one run, found 2")
        assert "no package `meshard`" in run(folder, "export", "runs/car", "a.pt2", code=2, MESHARD_PYTHON=sys.executable, PYTHONPATH="")
        for words, code, what in ((("runs/car", "a.onxx"), 2, "a.onxx'; expected a name that ends in .onnx or .pt2"), (("cases", "a.pt2"), 3, "no checkpoints")):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                assert export.main([str(folder / words[0]), words[1]]) == code
            assert said.getvalue().startswith("meshard export: ") and what in said.getvalue(), said.getvalue()
        assert "none cannot be started" in run(folder, "export", "runs/car", "a.pt2", code=2, MESHARD_PYTHON="none")
    return None if ONNX else NO_ONNX


def test_flare_of_weights_alone():
    with tempfile.TemporaryDirectory() as own:
        folder = pathlib.Path(own)
        model = library_model("FLARE", functional_dim=1, embedding_dim=3, **SLICES)
        save_file(model.state_dict(), folder / "flare.safetensors")
        (folder / "flare.json").write_text(json.dumps({"model_class": "FLARE", "model": model.arguments}))
        surrogate = meshard.load(folder / "flare.safetensors", device="cpu")
        mesh = (np.random.default_rng(1).random((90, 3)), np.arange(90).reshape(30, 3))
        file = folder / "flare.pt2"
        surrogate.export(file)
        near(gives(file, surrogate.network_inputs(mesh)), surrogate.predict(mesh))


def test_what_cannot_be_exported_is_named():
    for kind, arguments, what in (("GeoTransolver", dict(include_local_features=True, **GEOMETRY), "GeoTransolver with local features"),
                                  ("Transolver", dict(functional_dim=1, embedding_dim=6, structured_shape=[4, 5], **SLICES), "Transolver with points on a grid"),
                                  ("MeshGraphNet", dict(input_dim_nodes=6, levels=[10, 20], **GRAPH), "MeshGraphNet with graphs on several scales")):
        refused(lambda: export.export(learnt(kind, **arguments), "a.pt2"), ValueError, f"weights: {what}")
    other = learnt("Transolver", functional_dim=1, embedding_dim=6, **SLICES)
    description, tensors = other.network()
    unknown = types.SimpleNamespace(checkpoints=["w"], network=lambda: (description.replace('"Transolver"', '"DoMINO"'), tensors))
    refused(lambda: export.export(unknown, "a.pt2"), ValueError,
            "DoMINO cannot be exported. What can: Transolver, FLARE, GeoTransolver without local features, and MeshGraphNet")


def test_files_that_give_other_fields_are_refused():
    class Wrong(_networks.Transolver):
        def forward(self, *inputs):
            return super().forward(*inputs) * self.factor

    right = _networks.ARCHITECTURES["Transolver"]
    of_a_run = learnt("Transolver", functional_dim=1, embedding_dim=6, **SLICES)
    with tempfile.TemporaryDirectory() as own:
        file = pathlib.Path(own) / "a.pt2"
        try:
            _networks.ARCHITECTURES["Transolver"] = Wrong
            Wrong.factor = 1.01
            refused(lambda: export.export(of_a_run, file), meshard.Error, "of their largest values from the model's own. Nothing was written")
            assert not list(file.parent.iterdir())
        finally:
            _networks.ARCHITECTURES["Transolver"] = right
