# SPDX-License-Identifier: Apache-2.0
"""Cases on disk as sharded tensors, and ghosts: the mesh before it was cut is the oracle."""
import math
import pathlib
import pickle
import shutil
import tempfile

import meshard
import numpy as np
import torch
import torch.distributed as dist

from meshes_test import box
from ranks import mesh, num_ranks, rank, refused
from sharded_check import near


def shared_folder(own):
    folder = [own]
    dist.broadcast_object_list(folder)
    return pathlib.Path(folder[0])


def parted(scale=1.0, owners=None):
    """A mesh and its parts, one for each rank, the same on all ranks."""
    points, cells, types = box()
    whole = meshard.mesh(points * scale, cells, types, cell_data={"p": np.arange(24.) * scale, "U": np.arange(72.).reshape(24, 3), "zone": np.arange(24) % 3})
    owners = (np.arange(24) >= 17).astype(int) if owners is None and num_ranks() > 1 else owners   # 17 and 7; further ranks hold nothing
    return whole, meshard.partition(whole, num_ranks(), owners=owners)


def test_cases_are_sharded_tensors():
    with tempfile.TemporaryDirectory() as own:
        root = shared_folder(own)
        if rank() == 0:
            for k in (2, 1):
                meshard.write_shards(root / f"case_{k}", parted(k)[1])
            (root / "notes").mkdir()
        mesh().barrier()
        cases = meshard.datasets.Shards(root, mesh(), dtype=torch.float64)
        assert len(cases) == 2 and [case["name"] for case in (cases[0], cases[1])] == ["case_1", "case_2"]
        before = mesh().num_messages
        case = cases[1]
        assert mesh().num_messages == before   # not collective
        whole, parts = parted(2)
        order = np.concatenate([part.global_ids[:part.num_owned] for part in parts])
        for name in ("p", "U", "zone"):
            near(case[name], torch.from_numpy(np.asarray(whole.cell_data[name])[order]), 0)
        near(case["ids"], torch.from_numpy(order), 0)
        corners = whole.points[np.asarray(whole.connectivity).reshape(24, 8)].mean(1)   # boxes: the centroid is the mean of the corners
        near(case["points"], torch.from_numpy(corners[order]), 1e-12)
        assert meshard.extents(case["p"]) == [[part.num_owned for part in parts]] and case["part"].num_owned == parts[rank()].num_owned
        loader = torch.utils.data.DataLoader(meshard.datasets.Shards(root, mesh(), fields=["p"], transform=lambda case: case["p"].mean()), batch_size=None)
        assert [f"{value:.1f}" for value in loader] == ["11.5", "23.0"]
        pressures = meshard.datasets.Shards(root, mesh(), fields=["p"], transform=lambda case: {"p": case["p"], "name": case["name"]})
        by_workers = list(torch.utils.data.DataLoader(pressures, batch_size=None, num_workers=2))   # read by other processes
        assert [case["name"] for case in by_workers] == ["case_1", "case_2"]
        near(by_workers[1]["p"], torch.from_numpy(np.asarray(whole.cell_data["p"])[order]), 0)
        with_parts = list(torch.utils.data.DataLoader(meshard.datasets.Shards(root, mesh(), fields=["p"]), batch_size=None, num_workers=1))
        assert np.array_equal(with_parts[1]["part"].global_ids, parts[rank()].global_ids)
        single = meshard.datasets.Shards(root / "case_1", mesh(), fields=["p"])
        assert len(single) == 1 and single[0]["p"].dtype is torch.float32 and set(single[0]) == {"points", "p", "ids", "name", "part"}
        refused(lambda: pickle.dumps(parts[0]), TypeError, "write_shards")
        read = single[0]["part"]
        assert np.array_equal(pickle.loads(pickle.dumps(read)).global_ids, read.global_ids)
        read.mesh.cell_data["p"] = np.zeros(read.mesh.n_cells)
        if read.mesh.n_cells > 0:   # without rows there is nothing that differs
            refused(lambda: pickle.dumps(read), TypeError, "were changed since it was read")
        read.mesh.cell_data["more"] = np.zeros(read.mesh.n_cells)
        refused(lambda: pickle.dumps(read), TypeError, "were changed since it was read")
        refused(lambda: meshard.merge([read, None]), ValueError, "found None")
        renamed = meshard.partition(parted()[0], num_ranks())
        for one in renamed:
            one.mesh.cell_data["ids"] = np.zeros(one.mesh.n_cells)
        mesh().barrier()
        if rank() == 0:
            meshard.write_shards(root / "named", renamed)
        mesh().barrier()
        refused(lambda: meshard.datasets.Shards(root / "named", mesh())[0], ValueError, "has an array 'ids'")
        mesh().barrier()
        if rank() == 0:
            shutil.rmtree(root / "named")
        refused(lambda: meshard.datasets.Shards(root / "case_1", mesh(), fields=["q"])[0], ValueError, "no array 'q' of its rows; it has ['U', 'p', 'zone'")
        refused(lambda: meshard.datasets.Shards(root / "notes", mesh()), ValueError, "notes")
        refused(lambda: meshard.datasets.Shards(root / "none", mesh()), ValueError, "none")
        if rank() == 0:
            meshard.write_shards(root / "notes" / "more", meshard.partition(parted()[0], num_ranks() + 1))
        mesh().barrier()
        refused(lambda: meshard.datasets.Shards(root / "notes", mesh()), ValueError, f"{num_ranks() + 1} parts, but the axis 'domain' has {num_ranks()} ranks")
        mesh().barrier()


def test_ghosts_are_their_owners_rows():
    whole, parts = parted()
    part = parts[rank()]
    plan = meshard.GhostPlan(part, mesh())
    assert (plan.num_owned, plan.num_ghosts) == (part.num_owned, len(part.global_ids) - part.num_owned)
    values = torch.from_numpy(np.array(whole.cell_data["U"]))
    ids = torch.from_numpy(part.global_ids.copy())
    own = values[ids[:part.num_owned]].clone().requires_grad_()
    assert torch.equal(meshard.exchange_ghosts(own, plan), values[ids[part.num_owned:]]) and torch.equal(meshard.with_ghosts(own, plan), values[ids])
    sharded = meshard.from_local(own.detach(), mesh(), [meshard.Shard(0)])
    assert torch.equal(meshard.with_ghosts(sharded, plan), values[ids])
    # Backward: a row's gradient is the sum over all ranks that see it.
    weights = [torch.from_numpy(np.cos(1. + r + p.global_ids)) for r, p in enumerate(parts)]
    (meshard.with_ghosts(own, plan) * weights[rank()][:, None]).sum().backward()
    expected = torch.zeros(24, dtype=torch.float64)
    for weight, p in zip(weights, parts):
        expected.index_add_(0, torch.from_numpy(p.global_ids.copy()), weight)
    near(own.grad, expected[ids[:part.num_owned]][:, None].expand(-1, 3), 1e-14)
    near(meshard.scatter_ghosts(weights[rank()], plan), expected[ids[:part.num_owned]], 1e-14)
    complex_own = own.detach().to(torch.complex128).requires_grad_()
    (meshard.with_ghosts(complex_own, plan) * weights[rank()][:, None]).real.sum().backward()
    near(complex_own.grad.real, own.grad, 1e-14)
    lazy = (1j * complex_own.detach()).conj()   # a flag, whose memory holds the other numbers
    assert torch.equal(meshard.with_ghosts(lazy, plan), -1j * values[ids]) and torch.equal(meshard.with_ghosts(lazy.imag, plan), -values[ids])
    # Extremes and means, also of numbers whose sums are infinite: ghosts' rows count for their owner's.
    for dtype, value in ((torch.float64, math.inf), (torch.float16, 40000.)):
        for reduction in ("max", "min", "mean"):
            for gradient in (False, True):
                rows = torch.full((len(part.global_ids), 1), value, dtype=dtype, requires_grad=gradient)
                assert meshard.scatter_ghosts(rows, plan, reduction).tolist() == [[value]] * part.num_owned
    highest = weights[rank()].clone().requires_grad_()
    of_all = torch.stack([torch.full((24,), -9., dtype=torch.float64).index_copy(0, torch.from_numpy(p.global_ids.copy()), w) for w, p in zip(weights, parts)])
    meshard.scatter_ghosts(highest, plan, "max").sum().backward()
    assert torch.equal(highest.grad, (highest.detach() == of_all.max(0).values[ids]).to(torch.float64))
    by_arrays = meshard.GhostPlan(None, mesh(), global_ids=part.global_ids, num_owned=part.num_owned, ghost_owners=part.ghost_owners)
    assert torch.equal(meshard.exchange_ghosts(own.detach(), by_arrays), values[ids[part.num_owned:]]) and "owned rows" in repr(by_arrays)


def test_wrong_ghosts_are_refused_on_every_rank():
    part = parted()[1][rank()]
    refused(lambda: meshard.GhostPlan(None, mesh()), ValueError, "expected a part")
    given = dict(global_ids=part.global_ids, num_owned=part.num_owned + (rank() == 0), ghost_owners=part.ghost_owners)
    refused(lambda: meshard.GhostPlan(None, mesh(), **given), ValueError, "do not fit")
    plan = meshard.GhostPlan(part, mesh())
    refused(lambda: meshard.scatter_ghosts(torch.zeros(plan.num_owned + plan.num_ghosts), plan, "product"), ValueError, "found 'product'")
    refused(lambda: meshard.with_ghosts(torch.zeros(plan.num_owned + 1), plan), ValueError)
