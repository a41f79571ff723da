# SPDX-License-Identifier: Apache-2.0
"""Moves a car body down the gradient of its predicted drag, at a fixed volume:

    python design_loop.py body.vtp runs/seed1 runs/seed2 runs/seed3 -o better.vtp --set area=0.053

A lattice around the body, nine points along it (x) and two above each other (z), is moved up and down by four numbers, and the surface follows smoothly: free-form
deformation (Sederberg and Parry 1986), written in torch, which then knows its derivatives. Each run predicts the drag, and how it changes with each point. The loop
ends before a shape about whose drag the runs disagree, or which lies far from those of training: there they guess. What the new body is worth, a simulation tells."""
import argparse
import math

import meshard
import torch

NUMBERS = ("slant", "nose below", "nose above", "ride height")
LATTICE = torch.zeros(4, 9, 2, dtype=torch.float64)   # how far each number moves each point up
LATTICE[0, -1, 1] = LATTICE[1, 0, 0] = LATTICE[2, 0, 1] = 1
LATTICE[3] = 1


def bernstein(x, degree):
    """(N) from 0 to 1 as (N, degree + 1) weights, which add up to 1."""
    return torch.stack([math.comb(degree, k) * x**k * (1 - x) ** (degree - k) for k in range(degree + 1)], 1)


def deformed(points, numbers):
    """Points (N, 3) of the body with other numbers; zeros leave it as it is."""
    along, up = ((points[:, c] - points[:, c].min()) / (points[:, c].max() - points[:, c].min()) for c in (0, 2))
    rise = torch.einsum("ni,nk,mik,m->n", bernstein(along, 8), bernstein(up, 1), LATTICE, numbers)
    return points + rise.unsqueeze(1) * torch.tensor([0.0, 0.0, 1.0], dtype=points.dtype)


def volume(points, triangles):
    """Enclosed by triangles (T, 3); of half a body with its open side in y = 0, too."""
    a, b, c = points[triangles].unbind(1)
    return (a * torch.linalg.cross(b, c)).sum() / 6


class Body:
    def __init__(self, mesh, models, told):
        self.points = torch.tensor(mesh.points, dtype=torch.float64)
        self.polygons, self.models, self.told = (mesh.offsets, mesh.connectivity), models, told
        rows = [mesh.connectivity[first:last] for first, last in zip(mesh.offsets[:-1], mesh.offsets[1:])]
        self.triangles = torch.tensor([[row[0], row[k], row[k + 1]] for row in rows for k in range(1, len(row) - 1)])

    def surface(self, numbers):
        """As points and polygons, without the fields and normals of the shape that was."""
        return deformed(self.points, numbers).numpy(), self.polygons

    def drag(self, numbers):
        """Cd of each model, (models), the derivatives of their mean by the numbers, and whether the shape lies far from those of training."""
        found = [model.sensitivity(self.surface(numbers), "Cd", values=self.told) for model in self.models]
        by_points = sum(torch.from_numpy(one.gradient) for one in found) / len(found)
        numbers = numbers.clone().requires_grad_()
        by_numbers, = torch.autograd.grad(deformed(self.points, numbers), numbers, by_points)
        return torch.tensor([one.forces["Cd"] for one in found], dtype=torch.float64), by_numbers, any(one.forces.is_far for one in found)

    def volume(self, numbers):
        """The volume, and its derivatives by the numbers."""
        numbers = numbers.clone().requires_grad_()
        found = volume(deformed(self.points, numbers), self.triangles)
        return found.item(), torch.autograd.grad(found, numbers)[0]

    def with_volume(self, wanted, numbers):
        for _ in range(10):   # Newton's method
            found, growth = self.volume(numbers)
            numbers = numbers - (found - wanted) / growth.square().sum() * growth
        return numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("surface")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="what the models are told, as of `meshard predict`")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--largest", type=float, default=0.0025, help="change of a number in a step, in lengths of the body")
    parser.add_argument("--farthest", type=float, default=0.03, help="change of a number in all")
    options = parser.parse_args()

    told = {name: float(value) for name, value in (word.split("=") for word in options.set)}
    body = Body(meshard.read(options.surface), [meshard.load(run) for run in options.runs], told)
    length = (body.points[:, 0].max() - body.points[:, 0].min()).item()
    numbers, step = torch.zeros(4, dtype=torch.float64), options.largest * length
    wanted, _ = body.volume(numbers)
    first, gradient, was_far = body.drag(numbers)
    drag = first
    print(f"Cd {first.mean():.5f}, of {len(first)} models from {first.min():.5f} to {first.max():.5f}; volume {wanted:.9g}")
    for _ in range(options.steps):
        growth = body.volume(numbers)[1]
        down = (gradient @ growth) / (growth @ growth) * growth - gradient   # along shapes of one volume
        tried = (numbers + step * down / down.abs().max()).clamp(-options.farthest * length, options.farthest * length)
        tried = body.with_volume(wanted, tried)
        new_drag, new_gradient, is_far = body.drag(tried)
        fall = first - new_drag
        doubt = fall.std() if len(fall) > 1 else torch.zeros(())
        print(f"Cd {new_drag.mean():.5f}, fallen by {fall.mean():.5f} ± {doubt:.5f}; volume {body.volume(tried)[0]:.9g}")
        if is_far and not was_far:
            print("This shape lies far from those of training; the one before is taken.")
            break
        if new_drag.mean() >= drag.mean():   # too far a step
            step /= 2
            continue
        if doubt > fall.mean():
            print("The models disagree about how far it fell; the shape before is taken.")
            break
        numbers, drag, gradient = tried, new_drag, new_gradient
    forces = meshard.load(options.runs).forces(body.surface(numbers), values=told)
    meshard.write(options.output, forces.prediction.mesh)
    print(f"{options.output}: Cd {forces['Cd']:.5f} ± {forces.spread.get('Cd', 0):.2g}, volume {body.volume(numbers)[0]:.9g}; "
          + ", ".join(f"{name} {value:+.4f}" for name, value in zip(NUMBERS, numbers)))


if __name__ == "__main__":
    main()
