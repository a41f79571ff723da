# SPDX-License-Identifier: Apache-2.0
"""The package by itself, without ranks of torch.distributed: run on one."""
import ast
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import meshard
import torch
from meshard import _core, _learning, _meshes, _torch_version

from ranks import refused
from sharded_check import near


def test_one_rank_needs_no_torch_distributed():
    mesh = meshard.DeviceMesh.single()
    x = meshard.from_local(torch.ones(3, 2), mesh, [meshard.Shard(0)])
    near(x.sum(0), torch.full((2,), 3.0), 0)
    assert repr(mesh) == "DeviceMesh(domain=1, rank 0)" and mesh.shape == (1,) and mesh.ndim == 1


def test_other_torch_is_refused():
    _torch_version.check("2.11.7+cu130", "2.11.0")
    for other in ("2.12.0", "3.11.0", "2.1.1"):
        refused(lambda: _torch_version.check(other, "2.11.0"), ImportError, f"built for torch 2.11.0, but the torch that is running is {other}")


def test_nothing_is_added_to_torch_tensor():
    """Libraries tell other sharded tensors by such names."""
    assert not {name for name in dir(torch.Tensor) if name in ("redistribute", "full_tensor", "to_local", "placements", "device_mesh", "_local_tensor", "_spec")}


def test_all_that_is_public_has_a_docstring():
    assert "py.typed" in {path.name for path in pathlib.Path(meshard.__file__).parent.iterdir()}
    assert sorted(meshard.__all__) == meshard.__all__
    for name in meshard.__all__:
        assert (getattr(meshard, name).__doc__ or "").strip(), name


def check_stubs(module):
    tree = ast.parse((pathlib.Path(meshard.__file__).parent / f"{module.__name__.split('.')[1]}.pyi").read_text())
    stubbed = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    there = {name for name in dir(module) if not name.startswith("__")}
    assert set(stubbed) == there, set(stubbed) ^ there
    for name, node in stubbed.items():
        if isinstance(node, ast.ClassDef):
            members = {member.name if isinstance(member, ast.FunctionDef) else member.target.id for member in node.body
                       if isinstance(member, (ast.FunctionDef, ast.AnnAssign))}
            missing = {member for member in members if not hasattr(getattr(module, name), member)}
            assert not missing, (name, missing)


def test_stubs_name_what_the_modules_have():
    check_stubs(_core)
    check_stubs(_meshes)
    check_stubs(_learning)


def test_checkpoints_of_the_program_open_in_other_programs():
    """Of safetensors' own package: names, values and what a checkpoint says of itself; the weights fit the model of torch, and another layout of the file is read back."""
    program = pathlib.Path(os.environ.get("MESHARD_TEST_BUILD", "")) / "bin/meshard"
    if not program.exists():
        return "there is no build folder with the programs"
    try:
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file
    except ImportError:
        return "safetensors is not installed"
    sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
    from samples import put_training
    with tempfile.TemporaryDirectory() as own:
        folder = pathlib.Path(own)
        put_training(folder)
        environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "PYTHONPATH")}

        def run(*words, code=0):
            ended = subprocess.run([str(program), *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
            assert ended.returncode == code, ended
            return ended.stderr

        run("train", "car.yaml", "training.ema=0.5")
        path = folder / "runs/car/checkpoints/last.safetensors"
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            names = set(file.keys())
        assert sorted(metadata) == ["format", "meshard", "meshard_hash"] and metadata["format"] == "pt", metadata
        said = json.loads(metadata["meshard"])
        assert said["format"] == "meshard checkpoint" and said["model_class"] == "Transolver" and said["step"] == said["num_steps"] == 6, said
        arguments = {name: said["model"][name] for name in ("functional_dim", "out_dim", "embedding_dim", "n_layers", "n_hidden", "n_head", "mlp_ratio", "slice_num")}
        model = meshard.models.Transolver(**arguments, use_te=False)
        arrays = load_file(path)
        assert set(arrays) == names
        weights = {name: value for name, value in arrays.items() if not name.startswith(("optimizer.", "norm."))}
        model.load_state_dict(weights)
        assert {f"optimizer.{kind}.{name}" for kind in ("exp_avg", "exp_avg_sq", "weights") for name in weights} <= names
        # Written by that package, with another order in the file: what is in it is the same, and one other number is not.
        save_file(dict(reversed(arrays.items())), path, dict(reversed(metadata.items())))
        run("train", "--resume", "runs/car", "training.num_epochs=3")
        arrays = load_file(path)
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        arrays["norm.std"][0] = arrays["norm.std"][0].nextafter(torch.tensor(10.0))
        save_file(arrays, path, metadata)
        assert "last.safetensors is damaged or was changed" in run("train", "--resume", "runs/car", "training.num_epochs=4", code=3)


def test_wrong_reductions_are_refused():
    refused(lambda: meshard.Partial("avg"), ValueError, "found 'avg'")
