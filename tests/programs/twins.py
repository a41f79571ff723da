# SPDX-License-Identifier: Apache-2.0
"""Tiny twins of public data sets: the same folders, file names, arrays, associations and units, with a few hundred points of made-up flow."""
import json
import math
import random
import shutil
import struct

from evaluation_test import arrays_of, crc32c
from samples import data_array, write_body


def _arrays(kind, arrays):
    """`kind` is CellData or PointData; arrays are (name, components, values)."""
    return f"<{kind}>" + "".join(data_array(name, "Float32", components, values) for name, components, values in arrays) + f"</{kind}>"


def _unstructured(path, points, cells, cell_type, data):
    flat = [value for place in points for value in place]
    path.write_text(
        f'<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian"><UnstructuredGrid>'
        f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(cells)}">{data}'
        f'<Points>{data_array("Points", "Float32", 3, flat)}</Points>'
        f'<Cells>{data_array("connectivity", "Int64", 1, [p for cell in cells for p in cell])}'
        f'{data_array("offsets", "Int64", 1, [len(cells[0]) * (i + 1) for i in range(len(cells))])}'
        f'{data_array("types", "UInt8", 1, [cell_type] * len(cells))}</Cells></Piece></UnstructuredGrid></VTKFile>\n')


def write_stl(path, lengths, n=8):
    """An ellipsoid of triangles turned outwards, standing on z = 0."""
    def at(i, j):
        a, b = math.pi * i / n, 2 * math.pi * (j % n) / n
        return lengths[0] * math.cos(a), lengths[1] * math.sin(a) * math.cos(b), lengths[2] * math.sin(a) * math.sin(b) + lengths[2]

    text = "solid body\n"
    for i in range(n):
        for j in range(n):
            corners = at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)
            for triangle in ([(0, 1, 2)] if i < n - 1 else []) + ([(0, 2, 3)] if i > 0 else []):
                text += "facet normal 0 0 0\nouter loop\n" + "".join("vertex {:.9g} {:.9g} {:.9g}\n".format(*corners[p]) for p in triangle) + "endloop\nendfacet\n"
    path.write_text(text + "endsolid body\n")


def write_surface(path, lengths, pressure, shear, speed):
    """A closed body with a point of stagnation at its front; kinematic fields in m2/s2."""
    write_body(path, lengths, 5)
    text = path.read_text().replace('"pMean"', f'"{pressure}"').replace('"wallShearStressMean"', f'"{shear}"')
    path.write_text(text)
    arrays = arrays_of(path)
    points, corners = arrays["Points"], arrays["connectivity"]
    middles = [[sum(points[3 * int(p) + c] for p in corners[4 * i:4 * i + 4]) / 4 for c in range(3)] for i in range(len(corners) // 4)]
    q = 0.5 * speed * speed
    p = [q * (1 - 2 * (y * y / lengths[1] ** 2 + z * z / lengths[2] ** 2)) * (0.8 if x > 0 else 1) for x, y, z in middles]
    tau = [value for x, y, z in middles for value in (-0.004 * q * (1 - 0.5 * x / lengths[0]), 0.001 * q * y / lengths[1], 0.001 * q * z / lengths[2])]
    old_p, old_tau = arrays[pressure], arrays[shear]
    for name, old, new, components in ((pressure, old_p, p, 1), (shear, old_tau, tau, 3)):
        before = text[text.index(f'<DataArray type="Float32" Name="{name}"'):]
        before = before[:before.index("</DataArray>") + len("</DataArray>")]
        assert len(old) == len(new)
        text = text.replace(before, data_array(name, "Float32", components, new))
    path.write_text(text)


def ahmed_surface(root, num_cases=12):
    """run_N/boundary_N.vtp, ahmed_N.stl and force_mom_N.csv, whose first line has a blank after each comma."""
    for number in range(1, num_cases + 1):
        folder = root / f"run_{number}"
        folder.mkdir(parents=True)
        write_surface(folder / f"boundary_{number}.vtp", (0.5 + 0.02 * number, 0.2, 0.15), "pMean", "wallShearStressMean", 1)
        write_stl(folder / f"ahmed_{number}.stl", (0.5 + 0.02 * number, 0.2, 0.15))
        (folder / f"force_mom_{number}.csv").write_text(f"Cd, Cl\n{0.3 + 0.01 * number}, {-0.1 * number}\n")


def drivaerml_surface(root, num_cases=12):
    for number in range(1, num_cases + 1):
        folder = root / f"run_{number}"
        folder.mkdir(parents=True)
        lengths = (2.3 + 0.05 * number, 1.0, 0.7)
        write_surface(folder / f"boundary_{number}.vtp", lengths, "pMeanTrim", "wallShearStressMeanTrim", 38.889)
        write_stl(folder / f"drivaer_{number}.stl", lengths)
        (folder / f"force_mom_{number}.csv").write_text(f"Cd,Cl,Clf,Clr,Cs\n{0.28 + 0.01 * number},0.1,0.05,0.05,0.01\n")
        (folder / f"force_mom_constref_{number}.csv").write_text(f"Cd,Cl,Clf,Clr,Cs\n{0.3 + 0.01 * number},0.12,0.06,0.06,0.01\n")
        (folder / f"geo_ref_{number}.csv").write_text("lRef,aRef,forcesCoR,lRefRef,aRefRef,forcesCoRRef\n2.79,2.298,(1.402 0 -0.3176),2.78618,2.17,(1.402 0 -0.3176)\n")


def drivaerml_domino(root):
    """Surfaces and volumes of the same cars."""
    drivaerml_surface(root)
    drivaerml_volume(root / "volumes")
    for folder in (root / "volumes").iterdir():
        number = folder.name.removeprefix("run_")
        (folder / f"volume_{number}.vtu").rename(root / folder.name / f"volume_{number}.vtu")
    shutil.rmtree(root / "volumes")


def drivaerml_volume(root, num_cases=12):
    _volumes(root, num_cases, "drivaer", "MeanTrim", 38.889)


def ahmed_volume(root, num_cases=12):
    _volumes(root, num_cases, "ahmed", "Mean", 1)


def _volumes(root, num_cases, body, mean, speed, n=6):
    """run_N/volume_N.vtu, a box of hexahedra with UMean and pMean, or whatever `mean` they end with, and BODY_N.stl inside it."""
    corners = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1))
    for number in range(1, num_cases + 1):
        folder = root / f"run_{number}"
        folder.mkdir(parents=True)
        lengths = (2.3 + 0.05 * number, 1.0, 0.7)
        write_stl(folder / f"{body}_{number}.stl", lengths)

        def at(i, j, k):
            return i + (n + 1) * (j + (n + 1) * k)

        points = [(16 * i / n - 6, 8 * j / n - 4, 5 * k / n) for k in range(n + 1) for j in range(n + 1) for i in range(n + 1)]
        cells = [[at(i + a, j + b, k + c) for a, b, c in corners] for k in range(n) for j in range(n) for i in range(n)]
        middles = [[sum(points[p][c] for p in cell) / 8 for c in range(3)] for cell in cells]
        near = [math.exp(-(x * x / lengths[0] ** 2 + y * y + z * z) / 4) for x, y, z in middles]
        data = _arrays("CellData", [(f"U{mean}", 3, [v * speed for (x, y, z), e in zip(middles, near) for v in (1 - e, 0.13 * e * y, 0.13 * e * z)]),
                                    (f"p{mean}", 1, [0.4 * speed ** 2 * e * (1 if x < 0 else -0.5) for (x, y, z), e in zip(middles, near)]),
                                    ("CptMeanTrim", 1, [1 - e for e in near]), ("nut", 1, [1e-4 + 0.01 * e for e in near])])
        _unstructured(folder / f"volume_{number}.vtu", points, cells, 12, data)


def airfrans(root, num_cases=12, n=12):
    """airFoil2D_SST_U_ANGLE_DIGITS/..._internal.vtu: two-dimensional, with arrays of points, and an aerofoil file that meshard does not read."""
    generator = random.Random(5)
    for number in range(1, num_cases + 1):
        speed, angle = round(generator.uniform(31, 94), 3), round(generator.uniform(-5, 15), 3)
        name = f"airFoil2D_SST_{speed}_{angle}_{number % 3}.1_4.2_12.{number}"
        folder = root / name
        folder.mkdir(parents=True)
        points = [(3 * i / n - 1, 2 * j / n - 1, 0.0) for j in range(n + 1) for i in range(n + 1)]
        cells = [[i + (n + 1) * j, i + 1 + (n + 1) * j, i + 1 + (n + 1) * (j + 1), i + (n + 1) * (j + 1)] for j in range(n) for i in range(n)]
        distances = [math.hypot(x - min(max(x, 0), 1), y) for x, y, z in points]
        near = [math.exp(-4 * d) for d in distances]
        turn = math.radians(angle)
        data = _arrays("PointData", [("U", 3, [v for e in near for v in (speed * math.cos(turn) * (1 - e), speed * math.sin(turn) * (1 - e), 0)]),
                                     ("p", 1, [0.5 * speed ** 2 * e * (1 if x < 0 else -0.3) for (x, y, z), e in zip(points, near)]),
                                     ("nut", 1, [1e-5 * speed * e for e in near]), ("implicit_distance", 1, distances)])
        _unstructured(folder / f"{name}_internal.vtu", points, cells, 9, data)
        (folder / f"{name}_aerofoil.vtp").write_text("not read\n")


def shapenet_car(root, num_cases=6):
    """paramK/ID/quadpress_smpl.vtk, legacy, with point_scalars; hexvelo_smpl.vtk and press.npy beside it are not read."""
    for number in range(1, num_cases + 1):
        folder = root / f"param{number % 3}" / f"{number:032x}"
        folder.mkdir(parents=True)
        write_body(folder / "body.vtp", (2 + 0.1 * number, 0.8, 0.6), 4)
        arrays = arrays_of(folder / "body.vtp")
        points, corners = arrays["Points"], [int(p) for p in arrays["connectivity"]]
        (folder / "body.vtp").unlink()
        count, num_cells = len(points) // 3, len(corners) // 4
        pressure = [80 * (1 if points[3 * i] < 0 else -0.4) * abs(points[3 * i]) for i in range(count)]
        text = f"# vtk DataFile Version 2.0\ncar\nASCII\nDATASET UNSTRUCTURED_GRID\nPOINTS {count} float\n"
        text += "\n".join("{:.6g} {:.6g} {:.6g}".format(*points[3 * i:3 * i + 3]) for i in range(count))
        text += f"\nCELLS {num_cells} {5 * num_cells}\n" + "\n".join("4 {} {} {} {}".format(*corners[4 * i:4 * i + 4]) for i in range(num_cells))
        text += f"\nCELL_TYPES {num_cells}\n" + "9\n" * num_cells
        text += f"POINT_DATA {count}\nSCALARS point_scalars float 1\nLOOKUP_TABLE default\n" + "\n".join(f"{p:.6g}" for p in pressure) + "\n"
        (folder / "quadpress_smpl.vtk").write_text(text)
        (folder / "hexvelo_smpl.vtk").write_text("not read\n")


def record(features):
    """A record of TensorFlow's with an Example of {name: bytes}: length, masked checksum, message, masked checksum."""
    def field(number, content):
        size, length = len(content), b""
        while size >= 0x80:
            length += bytes([size & 0x7F | 0x80])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + content

    def masked(data):
        value = crc32c(data)
        return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    entries = b"".join(field(1, field(1, name.encode()) + field(2, field(1, field(1, content)))) for name, content in features.items())
    example = field(1, entries)
    length = struct.pack("<Q", len(example))
    return length + masked(length) + example + masked(example)


def trajectory(generator, fields, num_frames, n=6):
    """Features of a flow that is carried along a channel of triangles: {name: (components, frames, numbers)}."""
    points = [(3 * i / n, j / n) for j in range(n + 1) for i in range(n + 1)]
    corners = [(i + (n + 1) * j, i + 1 + (n + 1) * j, i + (n + 1) * (j + 1), i + 1 + (n + 1) * (j + 1)) for j in range(n) for i in range(n)]
    cells = [p for a, b, c, d in corners for p in (a, b, c, b, d, c)]
    kinds = [6 if y in (0, 1) else 4 if x == 0 else 5 if x == 3 else 0 for x, y in points]
    speed, phase = generator.uniform(1, 2), generator.uniform(0, 6)
    found = {"cells": (3, 1, cells), "mesh_pos": (2, 1, [v for point in points for v in point]), "node_type": (1, 1, kinds)}
    for name, components in fields.items():
        found[name] = (components, num_frames, [speed * math.sin(2 * x - 0.3 * speed * t + phase + c) * y * (1 - y) + 1
                                                for t in range(num_frames) for x, y in points for c in range(components)])
    return found


def _records(root, fields, step, counts, num_frames=9):
    """PART.tfrecord and meta.json, as MeshGraphNets' data sets have them."""
    root.mkdir(parents=True)
    generator = random.Random(11)
    whole = ("cells", "node_type")
    for part, count in counts.items():
        with open(root / f"{part}.tfrecord", "wb") as file:
            for _ in range(count):
                runs = trajectory(generator, fields, num_frames)
                file.write(record({name: struct.pack(f"<{len(numbers)}{'i' if name in whole else 'f'}", *numbers)
                                   for name, (_, _, numbers) in runs.items()}))
    features = {name: {"type": "static" if frames == 1 else "dynamic", "shape": [frames, -1, components], "dtype": "int32" if name in whole else "float32"}
                for name, (components, frames, _) in trajectory(generator, fields, num_frames).items()}
    (root / "meta.json").write_text(json.dumps({"simulator": "twin", "dt": step, "features": features, "field_names": list(features),
                                                "trajectory_length": num_frames}))


def cylinder_flow(root):
    _records(root, {"velocity": 2, "pressure": 1}, 0.01, {"train": 5, "valid": 2, "test": 1})


def airfoil(root):
    _records(root, {"velocity": 2, "density": 1, "pressure": 1}, 0.008, {"train": 4, "valid": 1, "test": 1})
