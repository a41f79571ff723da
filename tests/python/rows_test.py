# SPDX-License-Identifier: Apache-2.0
"""Neighbours, rows and distances on torch tensors, plain and cut; brute force and closed forms are the oracles."""
import math

import meshard
import torch

from ranks import device, mesh, rank, refused, seeded, uneven
from sharded_check import near

f64 = torch.float64
points = torch.rand(40, 3, dtype=f64, generator=seeded(1))
queries = torch.rand(17, 3, dtype=f64, generator=seeded(2))


def cut(tensor, extents=None):
    return meshard.distribute_tensor(tensor, mesh(), [meshard.Shard(0)], extents=[extents or uneven(len(tensor))])


def own(tensor):
    """This rank's rows of what `cut` makes."""
    return tensor.split(uneven(len(tensor)))[rank()]


def test_knn_is_that_of_brute_force():
    expected = torch.cdist(own(queries), points).topk(3, largest=False)
    for place in (lambda whole: whole, cut, lambda whole: cut(whole, uneven(40)[::-1])):
        p = place(points)
        found = meshard.knn(p, cut(queries), 3)
        assert found.offsets.tolist() == [3 * i for i in range(len(own(queries)) + 1)]
        assert found.ids.view(-1, 3).tolist() == expected.indices.tolist()
        near(found.distances.view(-1, 3), expected.values, 1e-12)
        near(meshard.gather_neighbors(place(points), found), points[found.ids], 0)


def test_knn_of_places_very_far_and_very_near():
    """A rank's points are not enough to know the nearest ones; of squares that are 0 in single precision ids decide."""
    for scale in (1e16, 1e-3):
        for dtype in (torch.float32, f64):
            far = (points * scale).to(dtype)
            expected = torch.cdist(far[:1].to(f64), far.to(f64)).topk(4, largest=False).indices
            assert meshard.knn(cut(far), far[:1], 4).ids.tolist() == expected[0].tolist()
    assert meshard.knn(cut((points * 1e-24).float()), torch.zeros(1, 3), 4).ids.tolist() == [0, 1, 2, 3]


def test_radius_search_is_that_of_brute_force():
    distances = torch.cdist(own(queries), points)
    found = meshard.radius_search(cut(points), cut(queries), 0.4)
    for i, row in enumerate(distances):
        ids = found.ids[found.offsets[i]:found.offsets[i + 1]].tolist()
        assert ids == sorted((j for j in range(40) if row[j] <= 0.4), key=lambda j: row[j].item())
    everything = meshard.radius_search(cut(points.float()), cut(queries.float()), 1e18)
    assert everything.offsets.diff().tolist() == [40] * len(own(queries))
    limited = meshard.radius_search(cut(points), cut(queries), 0.4, max_neighbors=2)
    assert (limited.offsets.diff() == found.offsets.diff().clamp(max=2)).all()
    refused(lambda: meshard.knn(points, queries[:, :2], 3), ValueError, "knn")
    refused(lambda: meshard.knn(points, queries, 0), ValueError, "k")


def test_rows_by_id():
    ids = torch.tensor([3, 39, 3, rank()])   # others on other ranks
    x, w = cut(points).requires_grad_(), points.clone().requires_grad_()
    gathered = meshard.gather_rows(x, ids)
    near(gathered, points[ids], 0)
    added = meshard.scatter_add(x, cut(torch.arange(40).flip(0)), cut(points))
    added.square().sum().backward()
    (w + points.flip(0)).square().sum().backward()
    near(x.grad, w.grad, 1e-12)
    refused(lambda: meshard.gather_rows(x, torch.tensor([40])), ValueError, "40")
    # Of a plain tensor all ranks have all rows, and each some of the ids.
    rows = torch.arange(40) % 7
    for target in (torch.zeros(7, 3, dtype=f64), meshard.distribute_tensor(torch.zeros(7, 3, dtype=f64), mesh(), [meshard.Replicate()])):
        near(meshard.full_tensor(meshard.scatter_add(target, cut(rows), cut(points))), torch.zeros(7, 3, dtype=f64).index_add(0, rows, points), 1e-12)


def test_segments():
    offsets = torch.tensor([0, 3, 3, 10])
    values = torch.randn(10, 2, dtype=f64, requires_grad=True)
    parts = [values[0:3], values[3:10]]
    for name, function in (("sum", lambda v: v.sum(0)), ("mean", lambda v: v.mean(0)), ("max", lambda v: v.amax(0)), ("min", lambda v: v.amin(0))):
        near(meshard.segment_reduce(values, offsets, name), torch.stack([function(parts[0]), torch.zeros(2, dtype=f64), function(parts[1])]), 1e-14)
    near(meshard.segment_softmax(values, offsets), torch.cat([part.softmax(0) for part in parts]), 1e-14)
    meshard.segment_reduce(values, offsets).square().sum().backward()
    near(values.grad, torch.cat([2 * part.sum(0).expand_as(part) for part in parts]).detach(), 1e-14)
    refused(lambda: meshard.segment_reduce(values, offsets, "median"), ValueError, "found 'median'")
    if device() == "cpu":   # a device finds out later, and can compute no more
        refused(lambda: meshard.segment_reduce(values, offsets[:-1]), ValueError)


def test_signed_distance_to_a_cube():
    """The cube from -1 to 1: max |x| - 1 inside."""
    vertices = torch.tensor([[x, y, z] for x in (-1., 1.) for y in (-1., 1.) for z in (-1., 1.)], dtype=f64)
    faces = torch.tensor([[0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1], [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]])
    inside = queries * 1.8 - 0.9
    try:
        meshard.signed_distance(vertices, faces, inside)
    except ValueError as without:
        if "without Embree" in str(without):
            return str(without)
        raise
    for sign in ("pseudo_normal", "winding_number"):
        found = meshard.signed_distance(vertices, faces, cut(inside), sign=sign)
        near(found.distances, inside.abs().amax(1) - 1, 1e-12)
        assert meshard.extents(found.distances) == [uneven(17)]
    outside = meshard.signed_distance(vertices, faces, torch.tensor([[2., 2., 2.], [9., 0., 0.]], dtype=f64), max_distance=5)
    assert abs(outside.distances[0].item() - math.sqrt(3)) < 1e-12 and math.isnan(outside.distances[1].item()) and outside.faces[1] == -1
    refused(lambda: meshard.signed_distance(vertices, faces, inside, sign="up"), ValueError, "found 'up'")
