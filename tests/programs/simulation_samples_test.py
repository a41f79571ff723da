# SPDX-License-Identifier: Apache-2.0
"""The samples of simulations in time solve their equations, which are checked here by differences and quadrature, and lie on disk as VTK reads them."""
import importlib.util
import json
import math
import random
import re
import subprocess
import sys

from evaluation_test import arrays_of
from runner import SOURCE, Case
from simulation_test import python_with_vtk

SCRIPT = SOURCE / "apps/sample/simulations.py"

READ_BY_VTK = """\
import json, sys
from vtkmodules.vtkIOXML import vtkXMLGenericDataObjectReader
for file in sys.argv[1:]:
    reader = vtkXMLGenericDataObjectReader()
    reader.SetFileName(file)
    reader.Update()
    mesh, points = reader.GetOutput(), reader.GetOutput().GetPointData()
    time = mesh.GetFieldData().GetArray("TimeValue")
    arrays = {points.GetArrayName(k): [points.GetArray(k).GetComponent(i, c) for i in range(mesh.GetNumberOfPoints()) for c in range(points.GetArray(k).GetNumberOfComponents())]
              for k in range(points.GetNumberOfArrays())}
    print(json.dumps([mesh.GetNumberOfPoints(), mesh.GetNumberOfCells(), time and time.GetValue(0), arrays]))
"""


def simulations():
    spec = importlib.util.spec_from_file_location("simulations", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def states(what, times, num_points=20, seed=3):
    """(points, cells, arrays) at each time, in seconds."""
    return list(getattr(simulations(), what)(random.Random(seed), num_points, times))


def simpson(function, begin, end, count=200):
    width = (end - begin) / count
    return width / 3 * math.fsum((1 if i in (0, count) else 4 if i % 2 else 2) * function(begin + i * width) for i in range(count + 1))


class SimulationSamples(Case):
    def test_of_a_vortex_diffuse_and_carry_tracers(self):
        """Vorticity follows the diffusion equation; the speed round a circle is that of the vorticity in it (Stokes), and tracers go with it (Runge and Kutta)."""
        times = [0.0, 0.06, 0.35]
        found = states("vortex", times)
        arrays = found[0][2]
        circulation, viscosity = arrays["circulation"][0], arrays["viscosity"][0]

        def vorticity(radius, age):
            return circulation / (4 * math.pi * viscosity * age) * math.exp(-radius ** 2 / (4 * viscosity * age))

        for (points, _, arrays), time in zip(found, times):
            for (x, y, _), value in zip(points, arrays["vorticity"]):
                self.assertAlmostEqual(value, vorticity(math.hypot(x, y), 1 + time), delta=1e-9)
        for radius in (0.1, 0.4, 0.8):
            h, k = 1e-3, 1e-4
            rate = (vorticity(radius, 1.2 + k) - vorticity(radius, 1.2 - k)) / (2 * k)
            outer, here, inner = (vorticity(radius + side * h, 1.2) for side in (1, 0, -1))
            laplacian = (outer - 2 * here + inner) / h ** 2 + (outer - inner) / (2 * h * radius)
            self.assertAlmostEqual(rate, viscosity * laplacian, delta=1e-4 * circulation)

        def velocity(x, y, age):
            radius = math.hypot(x, y)
            turn = simpson(lambda r: r * vorticity(r, age), 0, radius) / radius ** 2
            return -y * turn, x * turn

        for i in range(5):
            x, y, height = found[0][0][i]
            count = 40
            for j in range(count):
                age, step = 1 + times[-1] * j / count, times[-1] / count
                a = velocity(x, y, age)
                b = velocity(x + step / 2 * a[0], y + step / 2 * a[1], age + step / 2)
                c = velocity(x + step / 2 * b[0], y + step / 2 * b[1], age + step / 2)
                d = velocity(x + step * c[0], y + step * c[1], age + step)
                x, y = (one + step / 6 * (a[k] + 2 * b[k] + 2 * c[k] + d[k]) for k, one in enumerate((x, y)))
            for expected, value in zip((x, y, height), found[-1][0][i]):
                self.assertAlmostEqual(value, expected, delta=1e-6)

    def test_of_a_rotor_are_rigid_and_move_with_their_velocity(self):
        h = 1e-4
        before, now, after, late = (points for points, _, _ in states("rotor", [0.3 - h, 0.3, 0.3 + h, 2.0], 60))
        _, triangles, arrays = states("rotor", [0.3], 60)[0]
        for one, other, velocity in zip(before, after, arrays["velocity"]):
            for k in range(3):
                self.assertAlmostEqual((other[k] - one[k]) / (2 * h), velocity[k], delta=1e-7)
        for a, b, c in triangles:
            self.assertEqual(len({a, b, c}), 3)
            for i, j in ((a, b), (b, c), (c, a)):
                self.assertAlmostEqual(math.dist(now[i], now[j]), math.dist(late[i], late[j]), delta=1e-12)
        self.assertGreater(max(math.dist(one, other) for one, other in zip(now, late)), 0.5)

    def test_of_a_front_solve_the_equation_of_burgers(self):
        time, k = 0.25, 1e-4
        before, now, after = states("burgers", [time - k, time, time + k], 200 ** 2)
        (side, _), arrays = now[0], now[2]
        h, viscosity = 1 / (side - 1), arrays["viscosity"][0]
        largest, worst = 0, 0
        for row in range(1, side - 1, 3):
            for column in range(1, side - 1, 3):
                i = row * side + column
                value = arrays["u"]
                rate = (after[2]["u"][i] - before[2]["u"][i]) / (2 * k)
                slopes = (value[i + 1] - value[i - 1] + value[i + side] - value[i - side]) / (2 * h)
                laplacian = (value[i + 1] + value[i - 1] + value[i + side] + value[i - side] - 4 * value[i]) / h ** 2
                largest = max(largest, abs(rate))
                worst = max(worst, abs(rate + value[i] * slopes - viscosity * laplacian))
        self.assertLess(worst, 0.01 * largest)
        self.assertGreater(largest, 1)

    def test_are_read_by_vtk(self):
        program = python_with_vtk()
        if program is None:
            self.skipTest("no Python has VTK's modules")
        for what, num_points in (("vortex", 20), ("rotor", 24), ("burgers", 64)):
            for layout in ("pvd", "numbered"):
                self.write(what, f"{what}_{layout}", "--runs", 2, "--states", 3, "--points", 20, "--layout", layout)
                files = sorted((self.folder / f"{what}_{layout}").glob("run_*/*.vt?"))
                self.assertEqual(len(files), 6)
                read = subprocess.run([program, "-c", READ_BY_VTK, *files], capture_output=True, text=True, check=True)
                self.assertEqual(read.stderr, "")
                for file, line in zip(files, read.stdout.splitlines(), strict=True):
                    count, num_cells, time, arrays = json.loads(line)
                    ours = arrays_of(file)
                    self.assertEqual((count, num_cells > 0), (num_points, what != "vortex"))
                    self.assertEqual(time is None, layout == "pvd")
                    for name, values in arrays.items():
                        for value, other in zip(values, ours[name], strict=True):
                            self.assertAlmostEqual(value, other, delta=1e-6 * max(1, abs(other)))

    def contents(self, folder):
        return {file.relative_to(self.folder / folder): file.read_bytes() for file in (self.folder / folder).rglob("*.*")}

    def write(self, what, folder, *words):
        subprocess.run([sys.executable, SCRIPT, what, self.folder / folder, *map(str, words)], check=True)

    def test_are_the_same_of_one_seed(self):
        for what in ("vortex", "rotor", "burgers"):
            for folder, seed in (("one", 5), ("again", 5), ("other", 6)):
                self.write(what, folder, "--runs", 2, "--states", 3, "--points", 20, "--seed", seed)
            one, again, other = (self.contents(folder) for folder in ("one", "again", "other"))
            self.assertEqual(one, again)
            self.assertEqual([name for name in one if one[name] == other[name]], [])

    def test_have_ascending_times_in_milliseconds_at_uneven_steps(self):
        self.write("vortex", "data", "--runs", 2, "--states", 12, "--points", 4)
        for run in ("run_000", "run_001"):
            index = (self.folder / f"data/{run}.pvd").read_text()
            times = [float(time) for time in re.findall(r'timestep="([^"]*)"', index)]
            steps = [b - a for a, b in zip(times, times[1:])]
            self.assertEqual((len(times), times[0]), (12, 0))
            self.assertTrue(40 <= min(steps) < max(steps) - 1 < max(steps) <= 60, steps)
        first, second = (arrays_of(self.folder / f"data/run_000/state_{i:04}.vtp") for i in (0, 1))
        radius = math.hypot(*first["Points"][:2])
        seconds = float(re.findall(r'timestep="([^"]*)"', (self.folder / "data/run_000.pvd").read_text())[1]) / 1000
        turn = math.atan2(second["Points"][1], second["Points"][0]) - math.atan2(first["Points"][1], first["Points"][0])
        circulation, viscosity = first["circulation"][0], first["viscosity"][0]
        speed = circulation / (2 * math.pi * radius ** 2) * (1 - math.exp(-radius ** 2 / (4 * viscosity)))   # at first; it falls
        self.assertAlmostEqual(turn % (2 * math.pi), speed * seconds, delta=0.1 * speed * seconds)
