# SPDX-License-Identifier: Apache-2.0
"""Meshes as arrays of numpy; brute force, closed forms and meshio are the oracles. Run on one rank."""
import pathlib
import tempfile
import warnings

import meshard
import numpy as np

from ranks import refused


def box(nx=4, ny=3, nz=2):
    """A grid of hexahedra: points, (offsets, connectivity), types."""
    z, y, x = np.meshgrid(np.arange(nz + 1.), np.arange(ny + 1.), np.arange(nx + 1.), indexing="ij")
    number = np.arange((nx + 1) * (ny + 1) * (nz + 1)).reshape(nz + 1, ny + 1, nx + 1)
    base = number[:-1, :-1, :-1].reshape(-1, 1)
    layer = base + [0, 1, nx + 2, nx + 1]
    corners = np.concatenate([layer, layer + (nx + 1) * (ny + 1)], 1)
    cells = (np.arange(0, corners.size + 1, 8), corners.ravel())
    return np.stack([x, y, z], -1).reshape(-1, 3), cells, np.full(len(corners), 12)


def cube_surface():
    """The unit cube, right-handed seen from outside."""
    points = np.array([[x, y, z] for z in (0., 1.) for y in (0., 1.) for x in (0., 1.)])
    quads = np.array([[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]])
    return meshard.mesh(points, (np.arange(0, 25, 4), quads.ravel()), np.full(6, 9), surface=True)


def test_arrays_are_shared_and_come_back():
    points, cells, types = box()
    p = np.arange(len(types), dtype=np.float32)
    mesh = meshard.mesh(points, cells, types, cell_data={"p": p}, point_data={"u": points.astype(np.float32)})
    assert np.shares_memory(mesh.points, points) and np.shares_memory(mesh.cell_data["p"], p)
    assert (mesh.points == points).all() and (mesh.offsets == cells[0]).all() and (mesh.connectivity == cells[1]).all() and (mesh.cell_types == types).all()
    assert mesh.n_cells == 24 and mesh.n_points == 60 and mesh.point_data["u"].shape == (60, 3)
    refused(lambda: mesh.points.__setitem__((0, 0), 1.0), ValueError, "read-only")
    view = mesh.cell_data["p"]
    del mesh, p
    assert view[23] == 23   # the array keeps its memory


def test_arrays_of_other_kinds_are_taken_or_refused_by_name():
    points, cells, types = box()
    k = len(types)
    kept = {"bool": np.arange(k) % 2 == 0, "big_endian": np.arange(k).astype(">i4"), "big_float": np.arange(k).astype(">f8"), "strided": np.arange(2 * k)[::2],
            "reversed": np.arange(k)[::-1], "fortran": np.asfortranarray(np.arange(3. * k).reshape(k, 3)), "half": np.arange(k).astype("f2"), "list": list(range(k)),
            "uint64": np.full(k, 2**63 + 1, np.uint64), "repeated": np.broadcast_to(np.arange(4.), (k, 4)),
            "unmasked": np.ma.masked_array(np.arange(k), mask=np.zeros(k, bool))}
    mesh = meshard.merge(meshard.partition(meshard.mesh(points, cells, types, cell_data=kept), 3))
    for name, array in kept.items():
        assert np.array_equal(mesh.cell_data[name], np.asarray(array)), name
        assert mesh.cell_data[name].dtype.isnative
    assert mesh.cell_data["bool"].dtype == np.uint8 and mesh.cell_data["half"].dtype == np.float32 and mesh.cell_data["big_endian"].dtype == np.int32
    tensors = meshard.mesh(points, cells, types, cell_data={"T": np.arange(9. * k).reshape(k, 3, 3)})
    assert np.array_equal(tensors.cell_data["T"], np.arange(9. * k).reshape(k, 9))
    texts = ["é%d" % i for i in range(k)]
    for given in (texts, np.array(texts), np.array(texts, object)):
        assert meshard.merge(meshard.partition(meshard.mesh(points, cells, types, cell_data={"name": given}), 2)).cell_data["name"] == texts
    wrong = {"complex": np.arange(k) + 1j, "time": np.arange(k).astype("M8[s]"), "none": np.array([None] * k), "empty": np.zeros((k, 0)), "scalar": np.float64(1),
             "struct": np.zeros(k, [("x", "f4")]), "long": np.zeros(k, np.longdouble), "masked": np.ma.masked_array(np.arange(k), mask=np.arange(k) % 2 == 0)}
    for name, array in wrong.items():
        refused(lambda: meshard.mesh(points, cells, types, cell_data={name: array}), ValueError, f"'{name}'")
    assert np.array_equal(meshard.mesh(points.astype(">f8"), cells, types).points, points)
    assert meshard.mesh(points.astype("f2")).points.dtype == np.float32


def test_polygons_of_numpy_and_of_vtk_are_surfaces():
    """The cube's area, and the same mesh by each spelling."""
    cube = cube_surface()
    quads = cube.connectivity.reshape(-1, 4)
    for polygons in (quads, [list(quad) for quad in quads], (cube.offsets, cube.connectivity)):
        taken = meshard.partition((cube.points, polygons), 1)[0].mesh
        assert taken.is_surface and meshard.merge([*meshard.partition((cube.points, polygons), 2)]).difference(cube) == "", taken.difference(cube)
    triangles = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    assert abs(meshard.forces((cube.points, triangles), np.zeros(12)).area - 6) < 1e-12
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert meshard.forces(meshard.mesh(*box()), np.zeros(24)).area == 0
    assert ["no polygons" in str(one.message) for one in said] == [True]
    mixed = meshard.merge(meshard.partition((cube.points, [[0, 2, 3, 1], [0, 1, 5], [0, 4, 6, 2, 3]]), 1))
    assert mixed.cell_types.tolist() == [9, 5, 7] and mixed.connectivity.tolist() == [0, 2, 3, 1, 0, 1, 5, 0, 4, 6, 2, 3]
    refused(lambda: meshard.partition((cube.points, quads.astype(float)), 1), ValueError, "integers; found float64")
    refused(lambda: meshard.partition((cube.points, [[0, 1, 8]]), 1), ValueError, "8")
    refused(lambda: meshard.partition("no.vtp", 1), OSError, "no.vtp")
    refused(lambda: meshard.partition((1, 2, 3), 1), ValueError, "(points, polygons); found tuple")
    try:
        from vtkmodules.util.numpy_support import numpy_to_vtk, numpy_to_vtkIdTypeArray
        from vtkmodules.vtkCommonCore import vtkPoints, vtkStringArray
        from vtkmodules.vtkCommonDataModel import vtkCellArray, vtkPolyData, vtkUnstructuredGrid
    except ImportError:
        return "VTK has no Python here"
    points, cells = vtkPoints(), vtkCellArray()
    points.SetData(numpy_to_vtk(cube.points, deep=True))
    cells.SetData(numpy_to_vtkIdTypeArray(cube.offsets.astype(np.int64), deep=True), numpy_to_vtkIdTypeArray(cube.connectivity.astype(np.int64), deep=True))
    surface, grid = vtkPolyData(), vtkUnstructuredGrid()
    for of_vtk in (surface, grid):
        of_vtk.SetPoints(points)
    surface.SetPolys(cells)
    grid.SetCells(9, cells)
    p = numpy_to_vtk(np.arange(6.), deep=True)
    p.SetName("p")
    surface.GetCellData().AddArray(p)
    assert abs(meshard.forces(surface, "p").area - 6) < 1e-12
    assert np.array_equal(meshard.merge(meshard.partition(surface, 2)).cell_data["p"], np.arange(6.))
    assert np.array_equal(meshard.merge(meshard.partition(grid, 2)).connectivity, cube.connectivity)

    class OfVtk94(vtkUnstructuredGrid):
        point_data, cell_data, points = {}, {}, ()
        cells = cells
    newer = OfVtk94()
    newer.DeepCopy(grid)
    assert np.array_equal(meshard.partition(newer, 1)[0].mesh.connectivity, cube.connectivity)
    time, note, unnamed = numpy_to_vtk(np.array([0.25]), deep=True), vtkStringArray(), numpy_to_vtk(np.arange(6.), deep=True)
    time.SetName("TimeValue")
    note.SetName("note")
    note.InsertNextValue("made here")
    for array in (time, note):
        surface.GetFieldData().AddArray(array)
    surface.GetCellData().AddArray(unnamed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        meshard.write(f"{folder}/cube.vtp", surface)
        again = meshard.read(f"{folder}/cube.vtp")
    assert again.field_data["TimeValue"].tolist() == [0.25] and again.field_data["note"] == ["made here"]
    assert ["1 arrays of VTK without a name" in str(one.message) for one in said] == [True], [str(one.message) for one in said]
    surface.SetVerts(cells)
    refused(lambda: meshard.partition(surface, 1), ValueError, "vertices")


def test_what_is_assigned_stays():
    points, cells, types = box()
    mesh = meshard.mesh(points, cells, types)
    mesh.cell_data["new"] = np.arange(24.)
    mesh.point_data.update(z=points[:, 2].copy())
    mesh.field_data["note"] = ["made here"]
    assert list(mesh.cell_data) == ["new"] and mesh.cell_data["new"][23] == 23 and len(mesh.point_data) == 1
    parts = meshard.partition(mesh, 2)
    parts[0].mesh.cell_data["more"] = np.zeros(parts[0].mesh.n_cells)
    assert "more" in parts[0].mesh.cell_data
    with tempfile.TemporaryDirectory() as folder:
        meshard.write(f"{folder}/box.vtu", mesh)
        again = meshard.read(f"{folder}/box.vtu")
    assert np.array_equal(again.cell_data["new"], np.arange(24.)) and again.field_data["note"] == ["made here"]
    mesh.cell_data["new"] = np.ones(24)
    assert mesh.cell_data["new"].sum() == 24
    del mesh.cell_data["new"]
    assert "new" not in mesh.cell_data and not mesh.cell_data
    refused(lambda: mesh.cell_data.__setitem__("short", np.zeros(3)), ValueError, "3 rows, expected 24")
    refused(lambda: mesh.cell_data.__delitem__("absent"), KeyError, "absent")


def test_wrong_arrays_are_refused():
    points, cells, types = box()
    refused(lambda: meshard.mesh(points[:, :2], cells, types), ValueError)
    refused(lambda: meshard.mesh(points, (cells[0], cells[1] + 60), types), ValueError)
    refused(lambda: meshard.mesh(points, cells, types[1:]), ValueError)
    refused(lambda: meshard.mesh(points, cells, types, cell_data={"p": np.zeros(3)}), ValueError, "p")
    refused(lambda: meshard.mesh(points, cells, types, cell_data={"c": np.zeros(24, complex)}), ValueError, "'c' is of type complex128")
    refused(lambda: meshard.partition([1, 2], 2), ValueError, "found list")
    whole = meshard.mesh(points, cells, types)
    for wrong, text in ((lambda: meshard.mesh(points, cells, np.array(types) + 256), "types of cells lie in"),
                        (lambda: meshard.mesh(points, (cells[0], np.array(cells[1], np.int64) - 2 ** 32), types), "points of cells lie in"),
                        (lambda: meshard.mesh(points, (cells[0], np.array(cells[1]) + 0.4), types), "points of cells are of type float64"),
                        (lambda: meshard.mesh(points, (np.array(cells[0]) + 0.4, cells[1]), types), "offsets of cells are of type float64"),
                        (lambda: meshard.partition(whole, 2, owners=np.full(24, 0.9)), "owners are of type float64")):
        refused(wrong, ValueError, text)
    assert [part.num_owned for part in meshard.partition(whole, 2, owners=np.arange(24) >= 10)] == [10, 14]


def test_what_is_read_in_another_way_is_a_warning():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mesh = meshard.read(pathlib.Path(__file__).parents[1] / "data/odd/xml/latin1_undeclared.vtu")
    assert list(mesh.cell_data) == ["Température"]
    assert len(said) == 1 and "read as Latin-1" in str(said[0].message), said


def test_parts_are_what_brute_force_says():
    points, cells, types = box()
    mesh = meshard.mesh(points, cells, types, cell_data={"id": np.arange(24)})
    faces = [set(cell) for cell in cells[1].reshape(-1, 8)]
    near = np.array([[a is not b and len(a & b) == 4 for b in faces] for a in faces])
    for method in ("metis", "rcb", "hilbert"):
        parts = meshard.partition(mesh, 3, method=method)
        owners = np.full(24, -1)
        for k, part in enumerate(parts):
            owned = part.global_ids[:part.num_owned]
            assert part.part == k and part.num_parts == 3 and (owners[owned] == -1).all()
            owners[owned] = k
            assert (part.mesh.cell_data["id"] == part.global_ids).all() and (part.mesh.points == points[part.global_point_ids]).all()
        assert (owners >= 0).all() and np.bincount(owners).max() <= 9
        for k, part in enumerate(parts):
            ghosts = part.global_ids[part.num_owned:]
            assert set(ghosts) == set(np.flatnonzero(near[owners == k].any(0) & (owners != k))) and (owners[ghosts] == part.ghost_owners).all()
            assert (part.ghost_levels == (np.arange(len(part.global_ids)) >= part.num_owned)).all()
        assert meshard.merge(parts).difference(mesh) == ""
    given = meshard.partition(mesh, 2, owners=np.arange(24) % 2, ghost_layers=0)
    assert (given[1].global_ids == np.arange(1, 24, 2)).all()
    refused(lambda: meshard.partition(mesh, 2, owners=[0]), ValueError, "24 rows, found 1")
    refused(lambda: meshard.partition(mesh, 2, owners=[2] * 24), ValueError)
    refused(lambda: meshard.partition(mesh, 0), ValueError)
    refused(lambda: meshard.partition(mesh, 2, method="metsi"), ValueError, "metis")
    refused(lambda: meshard.merge([given[0]]), ValueError)


def test_a_cloud_is_cut_by_its_points():
    cloud = np.random.default_rng(1).random((50, 3))
    parts = meshard.partition(cloud, 4)
    assert sorted(np.concatenate([part.global_ids[:part.num_owned] for part in parts])) == list(range(50))


def test_parts_with_other_arrays_are_not_written():
    points, cells, types = box()
    parts = meshard.partition(meshard.mesh(points, cells, types), 2)
    parts[1].mesh.cell_data["z"] = np.zeros(parts[1].mesh.n_cells)
    with tempfile.TemporaryDirectory() as folder:
        refused(lambda: meshard.write_shards(pathlib.Path(folder) / "shards", parts), ValueError, "subdomain 1 has other arrays than subdomain 0")
        assert not list(pathlib.Path(folder).iterdir())


def test_files_come_back_the_same():
    points, cells, types = box()
    mesh = meshard.mesh(points, cells, types, cell_data={"id": np.arange(24), "u": np.ones((24, 3), np.float32)})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "box.vtu"
        meshard.write(path, mesh)
        assert meshard.partition(path, 2)[0].mesh.cell_data["u"].shape[1] == 3
        assert meshard.read(path).difference(mesh) == "" and meshard.read(str(path)).n_cells == 24
        meshard.write_shards(path.parent / "shards", meshard.partition(mesh, 2))
        assert meshard.merge(meshard.read_shards(path.parent / "shards")).difference(mesh) == ""
        assert repr(meshard.read_shards(path.parent / "shards", 1)).startswith("Subdomain 1 of 2")
        refused(lambda: meshard.write_shards(path.parent / "shards", meshard.partition(mesh, 2)), OSError, "shards")
        refused(lambda: meshard.read(path.parent / "none.vtu"), meshard.IoError, "none.vtu")
        refused(lambda: meshard.write(path.parent / "box.xyz", mesh), OSError, ".xyz")


def test_faults_are_found():
    points, cells, types = box()
    assert meshard.check(meshard.mesh(points, cells, types)) == []
    corners = cells[1].copy()
    corners[8:16] = corners[:8]   # the second cell is the first one again
    said = " ".join(meshard.check(meshard.mesh(np.vstack([points, [[9., 9, 9]]]), (cells[0], corners), types)))
    assert "1 cell" in said and "used by no cell" in said, said
    with tempfile.TemporaryDirectory() as folder:
        shards = pathlib.Path(folder) / "shards"
        meshard.write_shards(shards, meshard.partition(meshard.mesh(points, cells, types), 2))
        assert meshard.check(shards) == [] and meshard.check(str(shards)) == []
        piece = next(path for path in shards.rglob("*") if path.suffix == ".vtu")
        piece.write_bytes(piece.read_bytes().replace(b"Int", b"Ins", 1))
        assert meshard.check(shards) and all(isinstance(fault, str) for fault in meshard.check(shards))
        refused(lambda: meshard.check(folder), OSError, "manifest.json")


def test_pieces_that_were_changed_are_refused_by_name():
    points, cells, types = box()
    with tempfile.TemporaryDirectory() as folder:
        shards = pathlib.Path(folder) / "shards"
        meshard.write_shards(shards, meshard.partition(meshard.mesh(points, cells, types, cell_data={"id": np.arange(24)}), 2))
        pieces = sorted(shards.glob("pieces/*.vtu"))
        whole = pieces[1].read_bytes()
        for offset in np.linspace(0, len(whole) - 1, 9).astype(int):
            changed = bytearray(whole)
            changed[offset] ^= 1
            pieces[1].write_bytes(changed)
            for read in (lambda: meshard.read_shards(shards), lambda: meshard.read_shards(str(shards), 1)):
                refused(read, meshard.IoError, f"{pieces[1].name} has the hash")
            assert meshard.read_shards(shards, 0).num_owned == 12, "the other piece is as it was"
        pieces[1].write_bytes(pieces[0].read_bytes())
        refused(lambda: meshard.read_shards(shards, 1), meshard.IoError, pieces[1].name)
        pieces[1].write_bytes(whole)
        assert len(meshard.read_shards(shards)) == 2
        manifest = shards / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
        refused(lambda: meshard.read_shards(shards), meshard.IoError, "manifest.json")


def test_meshio():
    try:
        import meshio
    except ImportError:
        return "meshio is not installed"
    points, cells, types = box()
    given = meshio.Mesh(points, [("hexahedron", cells[1].reshape(-1, 8)), ("quad", [[0, 1, 6, 5]])], cell_data={"p": [np.arange(24.), np.array([7.])]})
    mesh = meshard.partition(given, 2)[0].mesh
    assert set(mesh.cell_data) == {"p"}
    with tempfile.TemporaryDirectory() as folder:
        meshard.write(f"{folder}/box.vtu", given)
        ours = meshard.read(f"{folder}/box.vtu")
        given.write(f"{folder}/theirs.vtu")
        assert meshard.read(f"{folder}/theirs.vtu").cell_data["p"].tolist() == ours.cell_data["p"].tolist() == [*range(24), 7]
    refused(lambda: meshard.partition(meshio.Mesh(points, [("VTK_LAGRANGE_HEXAHEDRON", np.zeros((1, 8), int))]), 2), ValueError, "VTK_LAGRANGE_HEXAHEDRON")
    with tempfile.TemporaryDirectory() as folder:   # legacy files of meshio are read in the other byte order
        given.write(f"{folder}/box.vtk")
        theirs = meshio.read(f"{folder}/box.vtk")
        assert meshard.write(f"{folder}/box.vtu", theirs) is None
        ours = meshard.read(f"{folder}/box.vtu")
        assert ours.cell_data["p"].tolist() == [*range(24), 7] and (ours.points == points).all()


PRISM = np.array([[0., 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 2], [1, 0, 2], [0, 1, 2]])   # its first triangle looks inward: positive volume in VTK
POSITIVE, NEGATIVE = np.arange(6), np.array([0, 2, 1, 3, 5, 4])


def first_triangle_looks_inward(mesh):
    corners = mesh.points[mesh.connectivity[:6]]
    return np.cross(corners[1] - corners[0], corners[2] - corners[0]) @ (corners[3] - corners[0]) > 0


def test_wedges_of_meshio_have_the_order_of_vtk():
    try:
        import meshio
    except ImportError:
        return "meshio is not installed"
    for corners in (POSITIVE, NEGATIVE):   # as gmsh writes them, and as meshio turns those of VTK's files
        assert first_triangle_looks_inward(meshard.partition(meshio.Mesh(PRISM, [("wedge", corners[None])]), 1)[0].mesh)
    assert meshard.check(meshard.mesh(PRISM, ([0, 6], POSITIVE), [13])) == []
    assert "negative volume" in meshard.check(meshard.mesh(PRISM, ([0, 6], NEGATIVE), [13]))[0]


# Polyhedra: a cube, a prism over the letter L, which is concave, and a pyramid of five corners whose faces look inward.
LETTER = [(2, 0), (4, 0), (4, 1), (3, 1), (3, 2), (2, 2)]
POLYHEDRON_POINTS = np.array([[x, y, z] for z in (0., 1) for y in (0., 1) for x in (0., 1)] + [[x, y, z] for z in (0., 1) for x, y in LETTER]
                             + [[6, 0, 0], [7, 0, 0], [7, 1, 0], [6, 1, 0], [6.5, 0.5, 1.5], [9, 0, 0], [10, 0, 0], [9, 1, 0], [9, 0, 1]])
POLYHEDRA = [[[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]],
             [[8 + k for k in reversed(range(6))], [14 + k for k in range(6)]] + [[8 + k, 8 + (k + 1) % 6, 14 + (k + 1) % 6, 14 + k] for k in range(6)],
             [[20, 21, 22, 23], [20, 24, 21], [21, 24, 22], [22, 24, 23], [23, 24, 20]]]
POLYHEDRON_CENTROIDS = [[0.5, 0.5, 0.5], [17 / 6, 5 / 6, 0.5], [6.5, 0.5, 0.375], [9.25, 0.25, 0.25]]   # the last of a tetrahedron


def stream(faces):
    return [len(faces)] + [value for face in faces for value in (len(face), *face)]


def polyhedra():
    """They and a tetrahedron, of arrays."""
    corners = [sorted({point for face in faces for point in face}) for faces in POLYHEDRA] + [[25, 26, 27, 28]]
    streams = [stream(faces) for faces in POLYHEDRA] + [[]]
    ends = [np.cumsum([0] + [len(row) for row in rows]) for rows in (corners, streams)]
    return meshard.mesh(POLYHEDRON_POINTS, (ends[0], sum(corners, [])), [42, 42, 42, 10], face_streams=(ends[1], sum(streams, [])), cell_data={"p": np.arange(4.)})


def assert_are_the_polyhedra(given):
    """In value and after a cut: centroids have closed forms, which need each face of each cell."""
    from meshard._meshes import centroids
    for found in (meshard.merge(meshard.partition(given, 1)), meshard.merge(meshard.partition(given, 3))):
        assert np.allclose(centroids(found), POLYHEDRON_CENTROIDS, atol=1e-14) and found.cell_data["p"].tolist() == [0, 1, 2, 3]
        assert found.cell_types.tolist() == [42, 42, 42, 10] and meshard.check(found) == []


def test_polyhedra_of_arrays():
    assert_are_the_polyhedra(polyhedra())
    cube, corners = stream(POLYHEDRA[0]), ([0, 8], np.arange(8))
    for streams, text in (((([0, len(cube) - 1]), cube[:-1]), "ends within face 5"), (([0, len(cube) + 1], cube + [3]), "1 entries after its 6 faces"),
                          (([0, 0], []), "a polyhedron needs its faces"), (([0, len(cube), 2 * len(cube)], cube * 2), "2 face streams, expected 1"), (None, "0 face streams, expected 1")):
        refused(lambda: meshard.mesh(POLYHEDRON_POINTS, corners, [42], face_streams=streams), ValueError, text)
    refused(lambda: meshard.mesh(POLYHEDRON_POINTS, corners, [12], face_streams=([0, len(cube)], cube)), ValueError, "no cell is a polyhedron")


def test_polyhedra_of_meshio():
    try:
        import meshio
    except ImportError:
        return "meshio is not installed"
    blocks = [(f"polyhedron{n}", [[np.array(face) for face in faces]]) for n, faces in zip((8, 12, 5), POLYHEDRA)] + [("tetra", [[25, 26, 27, 28]])]
    given = meshio.Mesh(POLYHEDRON_POINTS, blocks, cell_data={"p": [[0.], [1.], [2.], [3.]]})
    assert_are_the_polyhedra(given)
    assert meshard.merge(meshard.partition(given, 1)).difference(polyhedra()) == ""
    both = meshio.Mesh(POLYHEDRON_POINTS, [("polyhedron8", [POLYHEDRA[0], POLYHEDRA[0]])])   # several in a block, as lists
    assert meshard.partition(both, 1)[0].mesh.n_cells == 2
    for faces, text in (([], "cell 0, a polyhedron, has no faces"), ([[0, 1, 99]], "index 99"), ([[0, 2, 3, -1]], "index -1")):
        refused(lambda: meshard.check(meshio.Mesh(POLYHEDRON_POINTS, [("polyhedron4", [faces])])), ValueError, text)


def test_arrays_of_the_whole_come_with_meshes_of_meshio():
    try:
        import meshio
    except ImportError:
        return "meshio is not installed"
    given = meshio.Mesh(PRISM, [("wedge", [POSITIVE])], field_data={"wall": np.array([7, 2])}, cell_sets={"set": [[0]]})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mesh = meshard.merge(meshard.partition(given, 1))
    assert mesh.field_data["wall"].tolist() == [7, 2]
    assert [warning.category for warning in told] == [UserWarning] and "cell_sets_to_data()" in str(told[0].message)


def test_meshes_of_pyvista_itself():
    try:
        import pyvista
    except ImportError:
        return "pyvista is not installed"
    rows = [[len(stream(faces)), *stream(faces)] for faces in POLYHEDRA] + [[4, 25, 26, 27, 28]]
    grid = pyvista.UnstructuredGrid(np.array(sum(rows, [])), np.array([42, 42, 42, 10]), POLYHEDRON_POINTS)
    grid.cell_data["p"] = np.arange(4.)
    assert_are_the_polyhedra(grid)
    assert_are_the_polyhedra(grid.extract_cells([0, 1, 2, 3]))
    for name, value in (("TimeValue", [0.25]), ("solver", "foam"), ("parts", ["body", "wheel"])):
        grid.field_data[name] = value
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")   # names that pyvista has given up are some
        meshard.write(f"{folder}/ours.vtu", grid)
        found = pyvista.read(f"{folder}/ours.vtu")
        assert found.field_data["TimeValue"].tolist() == [0.25] and list(np.atleast_1d(found.field_data["parts"])) == ["body", "wheel"]
        assert str(np.atleast_1d(found.field_data["solver"])[0]) == "foam"
        assert np.allclose(found.compute_cell_sizes()["Volume"], grid.compute_cell_sizes()["Volume"], rtol=1e-14)
        for cell in range(3):   # face by face
            faces = [[list(one.get_cell(cell).faces[k].point_ids) for k in range(one.get_cell(cell).n_faces)] for one in (grid, found)]
            assert faces[0] == faces[1]
        for given, volume in ((pyvista.ImageData(dimensions=(3, 4, 5), spacing=(0.5, 1, 1)), 12), (pyvista.RectilinearGrid([0., 1, 3], [0., 2], [0., 1, 2]), 12)):
            meshard.write(f"{folder}/grid.vtu", given)
            assert abs(pyvista.read(f"{folder}/grid.vtu").volume - volume) < 1e-12
    ball = pyvista.Sphere()
    assert abs(meshard.forces(ball, np.ones(ball.n_cells)).area - ball.area) < 1e-6 * ball.area
    refused(lambda: meshard.check(pyvista.Line()), ValueError, "cast_to_unstructured_grid()")
    assert meshard.partition(pyvista.Line().cast_to_unstructured_grid(), 1)[0].mesh.cell_types.tolist() == [3]


class PyvistaGrid:
    """What this package asks of pyvista's UnstructuredGrid."""

    def __init__(self):
        self.points, (self.offset, self.cell_connectivity), self.celltypes = box()
        self.point_data, self.cell_data, self.field_data = {}, {"p": np.arange(24.)}, {"TimeValue": 0.25, "case": "car"}


class PyvistaSurface:
    """And of its PolyData."""
    n_lines = n_verts = n_strips = 0
    points = np.array([[0., 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 0, 0]])
    faces = np.array([4, 0, 1, 2, 3, 3, 1, 4, 2])
    point_data, cell_data, field_data = {}, {}, {}


def test_meshes_of_pyvista():
    mesh = meshard.merge(meshard.partition(PyvistaGrid(), 2))
    assert mesh.cell_data["p"].tolist() == list(range(24)) and mesh.field_data["TimeValue"].tolist() == [0.25] and mesh.field_data["case"] == ["car"]
    found = meshard.forces(PyvistaSurface(), np.array([1.0, 2.0]))
    assert abs(found.area - 1.5) < 1e-15 and np.allclose(found.pressure_force, [0, 0, -2])


def test_forces_are_closed_forms():
    cube = cube_surface()
    still = meshard.forces(cube, np.full(6, 3.0))
    assert abs(still.area - 6) < 1e-14 and np.allclose(still.pressure_force, 0, atol=1e-14)
    height = np.array([0.0, 1, 0.5, 0.5, 0.5, 0.5])   # pressure is z at the centroids: a force of the volume, downwards
    found = meshard.forces(cube, height, np.tile([2.0, 0, 0], (6, 1)), centre=(0.5, 0.5, 0.5))
    assert np.allclose(found.pressure_force, [0, 0, -1]) and np.allclose(found.viscous_force, [12, 0, 0]) and np.allclose(found.viscous_moment, 0)
    refused(lambda: meshard.forces(cube, "p"), ValueError, "no cell array 'p'")
    refused(lambda: meshard.forces(cube, np.zeros(5)), ValueError)
