# SPDX-License-Identifier: Apache-2.0
"""The package by itself, without ranks of torch.distributed: run on one."""
import ast
import pathlib

import meshard
import torch
from meshard import _core, _meshes, _torch_version

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


def test_wrong_reductions_are_refused():
    refused(lambda: meshard.Partial("avg"), ValueError, "found 'avg'")
