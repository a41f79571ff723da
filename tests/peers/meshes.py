# SPDX-License-Identifier: Apache-2.0
"""Cuts, neighbours and files beside other libraries: `meshes.py cuts|neighbors|files` prints a line of JSON for each figure.

All run on one thread, and take turns where times are compared. What is not installed is said to be missing."""
import importlib
import importlib.metadata
import json
import os
import pathlib
import statistics
import tempfile
import time

import numpy as np

TURNS, SEEDS = 3, 3


def say(what, figures, **more):
    print(json.dumps({"what": what, "figures": figures, **more}), flush=True)


def versions(*names):
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    print(json.dumps({"versions": found}), flush=True)
    return found


def in_turns(calls, turns=TURNS):
    """Of each call the last result, and the median of its CPU seconds; the first turn warms up and does not count."""
    results, seconds = {}, {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            began = time.process_time()
            results[name] = call()
            if turn:
                seconds[name].append(time.process_time() - began)
    return results, {name: statistics.median(times) for name, times in seconds.items()}


def delaunay(num_points, seed=0):
    """Tetrahedra of random points that are denser near the middle, and the four neighbours of each, -1 outside."""
    from scipy.spatial import Delaunay
    points = np.random.default_rng(seed).normal(size=(num_points, 3))
    mesh = Delaunay(points)
    return points, mesh.simplices.astype(np.int64), mesh.neighbors.astype(np.int64)


def lattice(n):
    """A cube of n x n x n hexahedra, each split into six tetrahedra, and their neighbours by facet."""
    corner = np.stack(np.meshgrid(*[np.arange(n)] * 3, indexing="ij"), -1).reshape(-1, 3)
    paths = np.array([[0, a, a | b, 7] for a in (1, 2, 4) for b in (1, 2, 4) if a != b])   # along the diagonal of a cube
    offsets = (paths[..., None] >> np.arange(3)) & 1
    cells = ((corner[:, None, None] + offsets[None]) @ np.array([(n + 1)**2, n + 1, 1])).reshape(-1, 4)
    points = np.stack(np.meshgrid(*[np.linspace(0, 1, n + 1)] * 3, indexing="ij"), -1).reshape(-1, 3)
    facets = np.sort(np.concatenate([np.delete(cells, i, 1) for i in range(4)]), 1)
    owners = np.tile(np.arange(len(cells)), 4)
    order = np.lexsort(facets.T)
    facets, owners = facets[order], owners[order]
    same = np.flatnonzero((facets[1:] == facets[:-1]).all(1))
    pairs = np.stack([owners[same], owners[same + 1]], 1)
    neighbors = np.full((len(cells), 4), -1)
    ends, others = np.concatenate([pairs[:, 0], pairs[:, 1]]), np.concatenate([pairs[:, 1], pairs[:, 0]])
    order = np.argsort(ends, kind="stable")
    ends, others = ends[order], others[order]
    rank_in_cell = np.arange(len(ends)) - np.searchsorted(ends, ends)
    neighbors[ends, rank_in_cell] = others
    return points, cells, neighbors


def quality(part, neighbors, num_parts):
    """Facets between parts, the most ghosts of a part (cells of others that share a facet with it), and the largest part over the mean."""
    cells, sides = np.nonzero(neighbors >= 0)
    others = neighbors[cells, sides]
    between = part[cells] != part[others]
    ghosts = np.unique(part[cells[between]].astype(np.int64) * len(part) + others[between]) // len(part)
    sizes = np.bincount(part, minlength=num_parts)
    return {"cut": int(between.sum() // 2), "ghosts": int(np.bincount(ghosts, minlength=num_parts).max()), "imbalance": float(sizes.max() / sizes.mean())}


def parts_of(parts, num_cells):
    part = np.empty(num_cells, np.int64)
    for number, one in enumerate(parts):
        part[one.global_ids[:one.num_owned]] = number
    return part


def vtk_parts(points, cells, num_parts):
    """The part of each cell by vtkRedistributeDataSetFilter, which cuts by planes."""
    import vtk
    from vtk.util.numpy_support import numpy_to_vtk, vtk_to_numpy
    grid = vtk_grid(points, cells)
    ids = numpy_to_vtk(np.arange(len(cells)))
    ids.SetName("id")
    grid.GetCellData().AddArray(ids)
    cutter = vtk.vtkRedistributeDataSetFilter()
    cutter.SetInputData(grid)
    cutter.SetNumberOfPartitions(num_parts)
    cutter.PreservePartitionsInOutputOn()
    cutter.Update()
    pieces, part = cutter.GetOutputDataObject(0), np.full(len(cells), num_parts)   # a cell that no piece has counts as one of a further part
    for number in range(pieces.GetNumberOfPartitions()):
        piece = pieces.GetPartition(number)
        if piece is not None and piece.GetNumberOfCells():
            part[vtk_to_numpy(piece.GetCellData().GetArray("id"))] = number
    return part


def vtk_grid(points, cells):
    import vtk
    from vtk.util.numpy_support import numpy_to_vtk, numpy_to_vtkIdTypeArray
    grid, array, corners = vtk.vtkUnstructuredGrid(), vtk.vtkCellArray(), vtk.vtkPoints()
    corners.SetData(numpy_to_vtk(points, deep=True))
    array.SetData(numpy_to_vtkIdTypeArray(np.arange(0, 4 * len(cells) + 1, 4), deep=True), numpy_to_vtkIdTypeArray(cells.reshape(-1), deep=True))
    grid.SetPoints(corners)
    grid.SetCells(vtk.VTK_TETRA, array)
    return grid


def cuts():
    import meshard
    found = versions("pymetis", "kahip", "vtk", "scipy")
    for mesh_name, (points, cells, neighbors) in {"box of tetrahedra": lattice(32), "Delaunay of random points": delaunay(30_000)}.items():
        mesh = tetrahedra(points, cells)
        inside = neighbors >= 0
        starts = np.concatenate([[0], inside.sum(1).cumsum()])
        flat = neighbors[inside]
        for num_parts in (8, 64):
            def metis(seed):
                import pymetis
                options = pymetis.Options(seed=seed, ufactor=30)   # 3 % of imbalance, as all others here
                return np.array(pymetis.part_graph(num_parts, pymetis.CSRAdjacency(starts, flat), recursive=False, options=options).vertex_part)

            calls = {"meshard": lambda seed: parts_of(meshard.partition(mesh, num_parts, ghost_layers=0, seed=seed), len(cells)),
                     "meshard, quality": lambda seed: parts_of(meshard.partition(mesh, num_parts, ghost_layers=0, seed=seed, quality=True), len(cells)),
                     "METIS": metis}
            if found["vtk"]:
                calls["VTK"] = lambda seed: vtk_parts(points, cells, num_parts)
            if found["kahip"]:
                import kahip
                ones = np.ones(len(cells), np.int32).tolist(), np.ones(len(flat), np.int32).tolist()
                as_lists = starts.tolist(), flat.tolist()

                def kaffpa(seed, mode):
                    return np.array(kahip.kaffpa(ones[0], as_lists[0], ones[1], as_lists[1], num_parts, .03, True, seed, mode)[1])

                calls["KaHIP eco"] = lambda seed: kaffpa(seed, kahip.ECO)
                if num_parts == 8 and "box" in mesh_name:   # minutes elsewhere
                    calls["KaHIP strong"] = lambda seed: kaffpa(seed, kahip.STRONG)
            figures = {name: [] for name in calls}
            for seed in range(SEEDS):
                for name, call in calls.items():
                    if seed and name.startswith(("VTK", "KaHIP")):   # the one draws nothing, the other takes long
                        continue
                    began = time.process_time()
                    part = call(seed)
                    figures[name].append({**quality(part, neighbors, num_parts), "seconds": time.process_time() - began})
            say(f"{mesh_name}, {len(cells):,} cells, {num_parts} parts",
                {name: {key: statistics.median(one[key] for one in many) for key in many[0]} for name, many in figures.items()})


def tetrahedra(points, cells):
    import meshard
    offsets = np.arange(0, 4 * len(cells) + 1, 4)
    return meshard.mesh(points, (offsets, cells.reshape(-1)), np.full(len(cells), 10, np.uint8))


def neighbors():
    import meshard
    import torch
    found = versions("scipy", "pynanoflann")
    torch.set_num_threads(1)
    k = 16
    for name, points in {"uniform": np.random.default_rng(0).random((200_000, 3)), "normal": np.random.default_rng(0).normal(size=(200_000, 3))}.items():
        points = points.astype(np.float32)
        tensor, wide = torch.from_numpy(points), points.astype(np.float64)
        calls = {"meshard": lambda: meshard.knn(tensor, tensor, k)}
        if found["scipy"]:
            from scipy.spatial import cKDTree
            calls["scipy cKDTree"] = lambda: cKDTree(wide).query(wide, k, workers=1)[0]
        if found["pynanoflann"]:
            import pynanoflann

            def nanoflann():
                tree = pynanoflann.KDTree(n_neighbors=k, metric="L2", leaf_size=10)
                tree.fit(points)
                return tree.kneighbors(points)[0]

            calls["nanoflann"] = nanoflann
        results, seconds = in_turns(calls)
        # All must have found the same distances.
        ids = results.pop("meshard").ids.numpy().reshape(-1, k)
        ours = np.linalg.norm(wide[ids] - wide[:, None], axis=2)
        for other, theirs in results.items():
            assert np.abs(np.sort(theirs, 1) - ours).max() < 1e-4, other
        say(f"{k} nearest of 200,000 points, {name}", seconds)


def with_all_read(values):
    """An array that is only mapped is read when it is used: here, within the time that counts."""
    values.sum()
    return values


def files():
    import meshard
    found = versions("vtk", "meshio")
    points, cells, _ = lattice(32)
    mesh = tetrahedra(points, cells)
    mesh.point_data["u"] = points * 2
    mesh.cell_data["p"] = np.random.default_rng(0).random(len(cells))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        writers = {"meshard": lambda path: meshard.write(path, mesh)}
        readers = {"meshard": lambda path: with_all_read(np.asarray(meshard.read(path).cell_data["p"]))}
        if found["vtk"]:
            import vtk
            from vtk.util.numpy_support import numpy_to_vtk, vtk_to_numpy
            grid = vtk_grid(points, cells)
            for values, name, data in ((points * 2, "u", grid.GetPointData()), (np.asarray(mesh.cell_data["p"]), "p", grid.GetCellData())):
                values = numpy_to_vtk(values, deep=True)
                values.SetName(name)
                data.AddArray(values)

            def write_vtk(path, raw=False):
                writer = vtk.vtkXMLUnstructuredGridWriter()
                writer.SetFileName(str(path))
                writer.SetInputData(grid)
                if raw:
                    writer.SetCompressorTypeToNone()
                    writer.SetDataModeToAppended()
                    writer.EncodeAppendedDataOff()
                assert writer.Write() == 1

            def read_vtk(path):
                reader = vtk.vtkXMLUnstructuredGridReader()
                reader.SetFileName(str(path))
                reader.Update()
                return with_all_read(vtk_to_numpy(reader.GetOutput().GetCellData().GetArray("p")).copy())

            writers.update({"VTK": write_vtk, "VTK, uncompressed": lambda path: write_vtk(path, True)})
            readers["VTK"] = read_vtk
        if found["meshio"]:
            import meshio
            theirs = meshio.Mesh(points, [("tetra", cells)], point_data={"u": points * 2}, cell_data={"p": [np.asarray(mesh.cell_data["p"])]})
            writers["meshio"] = lambda path: theirs.write(path, file_format="vtu")
            readers["meshio"] = lambda path: with_all_read(meshio.read(path).cell_data["p"][0])
        _, seconds = in_turns({name: (lambda write=write, name=name: write(folder / f"{name}.vtu")) for name, write in writers.items()})
        sizes = {name: os.path.getsize(folder / f"{name}.vtu") / 1e6 for name in writers}
        say(f"write {len(cells):,} tetrahedra and two arrays as .vtu", seconds, megabytes=sizes)
        for source in (source for source in writers if source != "meshio"):   # which writes what VTK writes by default
            path = folder / f"{source}.vtu"
            results, seconds = in_turns({name: (lambda read=read: read(path)) for name, read in readers.items()})
            for name, values in results.items():
                assert np.array_equal(values, np.asarray(mesh.cell_data["p"])), name
            say(f"read what {source} wrote", seconds)


if __name__ == "__main__":
    import sys
    {"cuts": cuts, "neighbors": neighbors, "files": files}[sys.argv[1]]()
