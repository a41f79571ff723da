#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes simulations in time of which the exact solution is known, as series that `meshard train` learns from.

    python3 apps/sample/simulations.py vortex FOLDER     tracers in a decaying vortex, a cloud of moving points
    python3 apps/sample/simulations.py rotor FOLDER      a rotor that turns and warms up, a surface of triangles
    python3 apps/sample/simulations.py burgers FOLDER    a front that travels over an image, for models of grids

FOLDER gets a run_NUMBER.pvd a run, and its states beside it. `--layout numbered` writes no .pvd, but the times into the states.
The vortex is that of Lamb and Oseen (Saffman, Vortex Dynamics, 1992, section 13.1): vorticity G / (4 pi n t) exp(-s), s = r^2 / (4 n t), and
the angular velocity G / (2 pi r^2) (1 - exp(-s)) for circulation G, viscosity n and the time t since it was a line. The front solves Burgers'
equation u_t + u u_x + u u_y = n (u_xx + u_yy): u = a / (1 + exp(a (x + y - a t - c) / (2 n))).
"""
import argparse
import math
import pathlib
import random

VORTEX_AGE = 1.0   # of the vortex at its first state


def vortex_angle(radius, circulation, viscosity, start, end):
    """By how much a tracer turns: the angular velocity over time, by Simpson's rule."""
    def speed(time):
        return circulation / (2 * math.pi * radius ** 2) * -math.expm1(-radius ** 2 / (4 * viscosity * time))
    count = 64
    width = (end - start) / count
    inner = sum(speed(start + i * width) * (4 if i % 2 else 2) for i in range(1, count))
    return (speed(start) + inner + speed(end)) * width / 3


def vortex(draw, num_points, times):
    """Yields points and arrays of each time."""
    circulation, viscosity = draw.uniform(2.0, 4.0), draw.uniform(0.01, 0.04)
    places = [(math.sqrt(draw.uniform(0.02, 1.0)), draw.uniform(0, 2 * math.pi), draw.uniform(-0.1, 0.1)) for _ in range(num_points)]
    angles = [angle for _, angle, _ in places]
    before = times[0]
    for time in times:
        age = VORTEX_AGE + time
        angles = [angle + vortex_angle(radius, circulation, viscosity, VORTEX_AGE + before, age) for angle, (radius, _, _) in zip(angles, places)]
        before = time
        spread = 4 * viscosity * age
        yield ([(radius * math.cos(angle), radius * math.sin(angle), height) for angle, (radius, _, height) in zip(angles, places)], [],
               {"vorticity": [circulation / (math.pi * spread) * math.exp(-radius ** 2 / spread) for radius, _, _ in places],
                "circulation": [circulation] * num_points, "viscosity": [viscosity] * num_points})


def rotor(draw, num_points, times):
    """Yields points, triangles and arrays of each time: a strip of triangles, twisted and bent into a ring of blades."""
    speed, warming = draw.uniform(0.5, 1.5), draw.uniform(0.5, 2.0)
    num_across = max(3, round(math.sqrt(num_points / 8)))
    num_around = max(8, num_points // num_across)
    places = []
    for i in range(num_around):
        around = 2 * math.pi * i / num_around
        for j in range(num_across):
            out = 0.4 + 0.6 * j / (num_across - 1)
            places.append((out * math.cos(around), out * math.sin(around), 0.15 * out * math.sin(4 * around)))
    triangles = []
    for i in range(num_around):
        for j in range(num_across - 1):
            a, b = i * num_across + j, (i + 1) % num_around * num_across + j
            triangles += [(a, a + 1, b), (a + 1, b + 1, b)]
    for time in times:
        cosine, sine = math.cos(speed * time), math.sin(speed * time)
        points = [(x * cosine - y * sine, x * sine + y * cosine, z) for x, y, z in places]
        yield (points, triangles,
               {"velocity": [(-speed * y, speed * x, 0.0) for x, y, _ in points],
                "temperature": [300 + 20 * math.hypot(x, y) * -math.expm1(-warming * time) for x, y, _ in points],
                "speed": [speed] * len(points), "warming": [warming] * len(points)})


def burgers(draw, num_points, times):
    """Yields the number of points along x and y, no cells, and arrays of each time."""
    height, viscosity, start = draw.uniform(0.6, 1.4), draw.uniform(0.02, 0.06), draw.uniform(0.2, 0.6)
    side = max(8, 8 * round(math.sqrt(num_points) / 8))

    def value(x, y, time):
        exponent = height * (x + y - height * time - start) / (2 * viscosity)
        return height / (1 + math.exp(min(exponent, 700.0)))
    for time in times:
        yield ((side, side), None,
               {"u": [value(i / (side - 1), j / (side - 1), time) for j in range(side) for i in range(side)],
                "viscosity": [viscosity] * side ** 2})


def write_state(path, points, triangles, arrays, time):
    def array(name, rows, kind="Float32"):
        width = len(rows[0]) if rows and isinstance(rows[0], tuple) else 1
        numbers = [number for row in rows for number in row] if width > 1 else rows
        text = " ".join(f"{number:.9g}" if kind == "Float32" else str(number) for number in numbers)
        return f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="{width}" format="ascii">{text}</DataArray>\n'
    saved = "" if time is None else f'<FieldData><DataArray type="Float64" Name="TimeValue" NumberOfTuples="1" format="ascii">{time!r}</DataArray></FieldData>\n'
    if triangles is None:
        width, height = points
        path.write_text('<?xml version="1.0"?>\n<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" header_type="UInt64">\n'
                        + f'<ImageData WholeExtent="0 {width - 1} 0 {height - 1} 0 0" Origin="0 0 0" Spacing="{1 / (width - 1)!r} {1 / (height - 1)!r} 1">\n' + saved
                        + f'<Piece Extent="0 {width - 1} 0 {height - 1} 0 0">\n<PointData>\n' + "".join(array(name, rows) for name, rows in arrays.items())
                        + "</PointData>\n</Piece>\n</ImageData>\n</VTKFile>\n")
        return
    corners = [corner for triangle in triangles for corner in triangle]
    ends = [3 * (i + 1) for i in range(len(triangles))]
    path.write_text('<?xml version="1.0"?>\n<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian" header_type="UInt64">\n<PolyData>\n' + saved
                    + f'<Piece NumberOfPoints="{len(points)}" NumberOfVerts="0" NumberOfLines="0" NumberOfStrips="0" NumberOfPolys="{len(triangles)}">\n'
                    + "<PointData>\n" + "".join(array(name, rows) for name, rows in arrays.items()) + "</PointData>\n"
                    + "<Points>\n" + array("Points", points) + "</Points>\n"
                    + "<Polys>\n" + array("connectivity", corners, "Int64") + array("offsets", ends, "Int64") + "</Polys>\n"
                    + "</Piece>\n</PolyData>\n</VTKFile>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["vortex", "rotor", "burgers"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--states", type=int, default=25)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--step", type=float, default=50.0, help="mean time between two states, in ms; they differ by up to a fifth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", choices=["pvd", "numbered"], default="pvd")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    for run in range(options.runs):
        times = [0.0]
        for _ in range(options.states - 1):
            times.append(round(times[-1] + options.step * draw.uniform(0.8, 1.2), 1))
        name = f"run_{run:03}"
        (options.folder / name).mkdir(parents=True, exist_ok=True)
        simulate = {"vortex": vortex, "rotor": rotor, "burgers": burgers}[options.what]
        lines = []
        for i, (points, triangles, arrays) in enumerate(simulate(draw, options.points, [time / 1000 for time in times])):
            state = f"{name}/state_{i:04}.{'vti' if triangles is None else 'vtp'}"
            write_state(options.folder / state, points, triangles, arrays, times[i] if options.layout == "numbered" else None)
            lines.append(f'    <DataSet timestep="{times[i]}" part="0" file="{state}"/>\n')
        if options.layout == "pvd":
            (options.folder / f"{name}.pvd").write_text('<?xml version="1.0"?>\n<VTKFile type="Collection" version="0.1">\n  <Collection>\n'
                                                        + "".join(lines) + "  </Collection>\n</VTKFile>\n")


if __name__ == "__main__":
    main()
