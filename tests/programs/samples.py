# SPDX-License-Identifier: Apache-2.0
"""Small data for the tests of programs: made once for a build, then copied. All sizes are such that a training step takes milliseconds."""
import fcntl
import hashlib
import itertools
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

from runner import PROGRAM, SOURCE

CONFIGURATION = """run_id: car
data:
  root: cases
  surface: run_*/boundary_*.vtp
  cases: cases.json
  split: {column: split}
  fields:
    pressure: {from: pMean, kind: kinematic}
    wss: {from: wallShearStressMean, kind: stress}
model: {name: transolver, n_layers: 1, n_hidden: 16, n_head: 2, mlp_ratio: 1, slice_num: 4}
training: {num_epochs: 2}
"""


def data_array(name, kind, components, values):
    text = " ".join(f"{value:.6g}" for value in values)
    return f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="{components}" format="ascii">{text}</DataArray>'


def write_body(path, lengths=(1.0, 0.4, 0.3), n=4, is_open=False):
    """A surface of 6 n n quadrilaterals, an ellipsoid, closed or with a hole below, with pressure and wall shear stress."""
    index, points, cells = {}, [], []

    def point(axis, side, i, j):
        place = [0.0] * 3
        place[axis] = side
        place[(axis + 1) % 3], place[(axis + 2) % 3] = 2 * i / n - 1, 2 * j / n - 1
        key = tuple(round(n * x) for x in place)
        if key not in index:
            norm = math.sqrt(sum(x * x for x in place))
            index[key] = len(points)
            points.append([length * x / norm for length, x in zip(lengths, place)])
        return index[key]

    for axis in range(3):
        for side in (1,) if is_open and axis == 2 else (-1, 1):
            for i in range(n):
                for j in range(n):
                    corners = [point(axis, side, i + a, j + b) for a, b in ((0, 0), (1, 0), (1, 1), (0, 1))]
                    cells.append(corners if side > 0 else corners[::-1])
    middles = [[sum(points[p][k] for p in cell) / 4 for k in range(3)] for cell in cells]
    pressure = [20 * x - 3 * z for x, y, z in middles]
    shear = [value for x, y, z in middles for value in (0.1 * y - 0.2, 0.05 * x, 0.02 * z)]
    flat = [value for place in points for value in place]
    path.write_text(
        f'<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian"><PolyData>'
        f'<Piece NumberOfPoints="{len(points)}" NumberOfVerts="0" NumberOfLines="0" NumberOfStrips="0" NumberOfPolys="{len(cells)}">'
        f'<CellData>{data_array("pMean", "Float32", 1, pressure)}{data_array("wallShearStressMean", "Float32", 3, shear)}</CellData>'
        f'<Points>{data_array("Points", "Float32", 3, flat)}</Points>'
        f'<Polys>{data_array("connectivity", "Int64", 1, [p for cell in cells for p in cell])}'
        f'{data_array("offsets", "Int64", 1, [4 * (i + 1) for i in range(len(cells))])}</Polys></Piece></PolyData></VTKFile>\n')


def write_image(path, columns=16, rows=12):
    """Image data of one layer with three fields at its points, as conditions of a generated image."""
    places = [(i / columns, j / rows) for j in range(rows) for i in range(columns)]
    fields = {"terrain": lambda x, y: x * y, "background": lambda x, y: math.sin(6 * x) + y, "u": lambda x, y: x - y}
    arrays = "".join(data_array(name, "Float32", 1, [field(x, y) for x, y in places]) for name, field in fields.items())
    extent = f"0 {columns - 1} 0 {rows - 1} 0 0"
    path.write_text(f'<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian"><ImageData WholeExtent="{extent}" Origin="0 0 0" Spacing="1 1 1">'
                    f'<Piece Extent="{extent}"><PointData>{arrays}</PointData></Piece></ImageData></VTKFile>\n')


FLOW = """run_id: flow
data:
  root: flows
  grid: flow_*.vti
  arrays: [permeability, inflow]
  fields:
    pressure: {from: p}
    velocity: {from: U, kind: vector}
  split: {train: 0.5, val: 0.25, test: 0.25}
model: {name: vit, patch_size: 4, n_layers: 1, n_hidden: 16, n_head: 2, mlp_ratio: 1}
training: {num_epochs: 2}
"""


def flow_arrays(number, shape=(8, 24)):
    """A permeability, an inflow, and the pressure and velocity that come of them, all made up, {name: (components, numbers)}, of as many cells (or points) along x, y
    and, if there are three, z."""
    counts = [*shape, 1][:3]
    places = [(i / counts[0], j / counts[1], k / counts[2]) for k in range(counts[2]) for j in range(counts[1]) for i in range(counts[0])]
    permeability = [3 + math.sin(6.3 * (x + 0.1 * number)) * math.cos(6.3 * y) + z for x, y, z in places]
    return {"permeability": (1, permeability), "inflow": (1, [0.2 * number + y for _, y, _ in places]),
            "p": (1, [100 + 8 * value * value - number * x for value, (x, _, _) in zip(permeability, places)]),
            "U": (2, [part for value, (x, _, _) in zip(permeability, places) for part in (0.1 * value, x * value)])}


def write_flow(path, number, shape=(8, 24), where="CellData", change=lambda arrays: arrays):
    """Image data with `flow_arrays` at cells or points, which `change` may alter."""
    counts = [*shape, 1][:3]
    body = "".join(data_array(name, "Float32", components, values) for name, (components, values) in change(flow_arrays(number, shape)).items())
    extent = " ".join(f"0 {count if where == 'CellData' and count > 1 else count - 1}" for count in counts)
    path.write_text(f'<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian"><ImageData WholeExtent="{extent}" Origin="0 0 0" Spacing="1 1 1">'
                    f'<Piece Extent="{extent}"><{where}>{body}</{where}></Piece></ImageData></VTKFile>\n')


def write_zarr(path, arrays):
    """A group of Zarr, not compressed. `arrays`: values, slowest dimension first, names and extents of dimensions, extents of chunks by name."""
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group"}))
    for name, (values, dimensions, chunk) in arrays.items():
        shape = list(dimensions.values())
        (path / name).mkdir()
        (path / name / "zarr.json").write_text(json.dumps({
            "zarr_format": 3, "node_type": "array", "data_type": "float32", "fill_value": 0, "shape": shape, "dimension_names": list(dimensions),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}}, "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}))
        for key in itertools.product(*(range(-(-size // of_chunk)) for size, of_chunk in zip(shape, chunk))):
            numbers = []
            for inner in itertools.product(*map(range, chunk)):
                at = [k * of_chunk + i for k, of_chunk, i in zip(key, chunk, inner)]
                row = 0
                for size, i in zip(shape, at):
                    row = row * size + i
                numbers.append(values[row] if all(i < size for size, i in zip(shape, at)) else 0.0)
            file = (path / name / "c").joinpath(*map(str, key))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(struct.pack(f"<{len(numbers)}f", *numbers))


def write_zarr_flow(path, number, shape=(8, 24), chunk=(7, 5)):
    """`flow_arrays` of an image, in chunks of some rows and columns; components are the last dimension."""
    arrays = {}
    for name, (components, values) in flow_arrays(number, shape).items():
        last = {"component": components} if components > 1 else {}
        values = [float(f"{value:.6g}") for value in values]  # as the text of `data_array`
        arrays[name] = (values, {"y": shape[1], "x": shape[0], **last}, [*chunk, *last.values()])
    write_zarr(path, arrays)


def put_flow(folder, shape=(8, 24), where="CellData", num_cases=4):
    """A configuration `flow.yaml` of a model of grids, with its `flows` beside it."""
    (folder / "flows").mkdir()
    for number in range(num_cases):
        write_flow(folder / f"flows/flow_{number}.vti", number, shape, where)
    (folder / "flow.yaml").write_text(FLOW)


SEA = """run_id: sea
data:
  root: seas
  grid: sea_*.vti
  arrays: [T_*, depth]
  fields:
    temperature: T_3
    current: {from: "u_*", kind: vector}
  mask: nan
  split: {train: 0.5, val: 0.25, test: 0.25}
model: {name: unet2d, num_channels: 8, depth: 2, num_groups: 2}
training: {num_epochs: 2}
"""


def put_sea(folder, shape=(16, 12), num_cases=4):
    """A configuration `sea.yaml` with its `seas`: a warm spot that drifts in a current, at four times, and NaN on land."""
    (folder / "seas").mkdir()
    (folder / "sea.yaml").write_text(SEA)
    for number in range(num_cases):
        speed = 0.05 * (1 + number)
        places = [((i + 0.5) / shape[0], (j + 0.5) / shape[1]) for j in range(shape[1]) for i in range(shape[0])]
        depths = [100 * (y - 0.2 - 0.1 * math.sin(6 * x)) for x, y in places]
        fields = {f"T_{time}": lambda x, y, time=time: 12 + 8 * math.exp(-20 * ((x - 0.2 - speed * time) ** 2 + (y - 0.6) ** 2)) for time in range(4)}
        fields |= {"u_1": lambda x, y: speed, "u_2": lambda x, y: 0.1 * speed * math.sin(6 * x)}
        arrays = data_array("depth", "Float32", 1, depths)
        arrays += "".join(data_array(name, "Float32", 1, [field(*place) if depth > 0 else math.nan for place, depth in zip(places, depths)])
                          for name, field in fields.items())
        extent = f"0 {shape[0]} 0 {shape[1]} 0 0"
        (folder / f"seas/sea_{number}.vti").write_text(
            f'<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian"><ImageData WholeExtent="{extent}" Origin="0 0 0" Spacing="1 1 1">'
            f'<Piece Extent="{extent}"><CellData>{arrays}</CellData></Piece></ImageData></VTKFile>\n')


FRONT = """\
run_id: front
data:
  root: fronts
  series: run_*.pvd
  association: point
  fields: {u: u}
  arrays: [viscosity]
  split: {train: 0.5, val: 0.5}
model: {name: dit, patch_size: 2, hidden_size: 32, depth: 2, num_heads: 2, mlp_ratio: 2}
training: {num_epochs: 1, optimizer: {lr: 1.0e-3}}
"""

VORTEX = """\
run_id: vortex
data:
  root: vortices
  series: run_*.pvd
  association: point
  fields: {vorticity: vorticity, place: points}
  arrays: [circulation, viscosity]
  split: {train: 0.7, val: 0.2, test: 0.1}
model: {name: transolver, n_hidden: 16, n_layers: 1, n_head: 2, slice_num: 4}
training: {num_epochs: 1}
"""


def put_vortices(folder, num_runs=10, num_states=22, num_points=20):
    """A configuration `vortex.yaml` of simulations in time, with its `vortices` beside it."""
    write_simulations(folder / "vortices", "vortex", "--runs", num_runs, "--states", num_states, "--points", num_points)
    (folder / "vortex.yaml").write_text(VORTEX)


def put_fronts(folder, num_runs=4, num_states=6):
    """A configuration `front.yaml` of a denoiser of images in time, with its `fronts` beside it."""
    write_simulations(folder / "fronts", "burgers", "--runs", num_runs, "--states", num_states, "--points", 256)
    (folder / "front.yaml").write_text(FRONT)


def write_simulations(folder, what, *words):
    subprocess.run([sys.executable, SOURCE / "apps/sample/simulations.py", what, folder, *map(str, words)], check=True)


def write_box(path, n=8):
    """The unit cube as n n n hexahedra with a cell field `p`."""
    def at(i, j, k):
        return i + (n + 1) * (j + (n + 1) * k)

    points = [x / n for k in range(n + 1) for j in range(n + 1) for i in range(n + 1) for x in (i, j, k)]
    corners = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1))
    cells = [at(i + a, j + b, k + c) for k in range(n) for j in range(n) for i in range(n) for a, b, c in corners]
    count = n ** 3
    path.write_text(
        f'<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian"><UnstructuredGrid>'
        f'<Piece NumberOfPoints="{(n + 1) ** 3}" NumberOfCells="{count}">'
        f'<CellData>{data_array("p", "Float32", 1, [math.sin(i) for i in range(count)])}</CellData>'
        f'<Points>{data_array("Points", "Float32", 3, points)}</Points>'
        f'<Cells>{data_array("connectivity", "Int64", 1, cells)}{data_array("offsets", "Int64", 1, [8 * (i + 1) for i in range(count)])}'
        f'{data_array("types", "UInt8", 1, [12] * count)}</Cells></Piece></UnstructuredGrid></VTKFile>\n')


def write_stl(path):
    """A tetrahedron, its triangles turned outwards."""
    corners = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    text = "solid body\n"
    for triangle in ((0, 2, 1), (0, 1, 3), (1, 2, 3), (0, 3, 2)):
        text += "facet normal 0 0 0\nouter loop\n" + "".join("vertex {} {} {}\n".format(*corners[p]) for p in triangle) + "endloop\nendfacet\n"
    path.write_text(text + "endsolid body\n")


def write_cases(root, num_cases=4):
    """Bodies of different lengths in run_N/boundary_N.vtp, and their table: the last one tests, the others train."""
    rows = []
    for number in range(1, num_cases + 1):
        folder = root / f"run_{number}"
        folder.mkdir(parents=True)
        write_body(folder / f"boundary_{number}.vtp", (1 + 0.1 * number, 0.4, 0.3))
        rows.append({"id": str(number), "split": "test" if number == num_cases else "train", "rho": 1.2, "speed": 30 + number, "length": 1 + 0.1 * number})
    (root / "cases.json").write_text(json.dumps({"cases": rows}))


def write_foam_case(root):
    """An OpenFOAM case of one cube, whose top is the patch motorBike."""
    def foam(path, kind, body):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"FoamFile {{ version 2.0; format ascii; class {kind}; object {path.name}; }}\n{body}\n")

    mesh = root / "constant/polyMesh"
    foam(mesh / "points", "vectorField", "8((0 0 0)(1 0 0)(1 1 0)(0 1 0)(0 0 1)(1 0 1)(1 1 1)(0 1 1))")
    foam(mesh / "faces", "faceList", "6(4(4 5 6 7) 4(0 3 2 1) 4(0 1 5 4) 4(1 2 6 5) 4(2 3 7 6) 4(3 0 4 7))")
    foam(mesh / "owner", "labelList", "6(0 0 0 0 0 0)")
    foam(mesh / "neighbour", "labelList", "0()")
    foam(mesh / "boundary", "polyBoundaryMesh",
         "2(motorBike { type wall; nFaces 1; startFace 0; } walls { type patch; nFaces 5; startFace 1; })")
    foam(root / "10/p", "volScalarField", "dimensions [0 2 -2 0 0 0 0]; internalField uniform 1; boundaryField { motorBike { type zeroGradient; } walls { type zeroGradient; } }")
    (root / "system").mkdir()
    foam(root / "system/controlDict", "dictionary", "startTime 0;")


def write_tensor(path, name, shape):
    """A safetensors file with one float32 tensor."""
    count = math.prod(shape)
    header = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * count]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack(f"<{count}f", *(math.sin(i) for i in range(count))))


def _meshard(folder, *words):
    done = subprocess.run([str(PROGRAM), *map(str, words)], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "MESHARD_LAUNCH": "single"})   # a test's rank may be the first to need them
    if done.returncode != 0:
        raise RuntimeError(f"the tests' sample data cannot be made: meshard {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")


def _make(folder):
    write_body(folder / "body.vtp")
    write_stl(folder / "body.stl")
    write_box(folder / "ascii.vtu")
    _meshard(folder, "convert", "ascii.vtu", "box.vtu")      # raw, as large meshes must be
    _meshard(folder, "partition", "box.vtu", "-n", 4, "-o", "shards")
    write_cases(folder / "cases")
    (folder / "car.yaml").write_text(CONFIGURATION)
    write_foam_case(folder / "motorBike")
    _meshard(folder, "train", "car.yaml")
    _meshard(folder, "predict", "runs/car", "body.vtp", "-o", "predicted.vtp")
    _meshard(folder, "train", "car.yaml", "~model", "model.name=geotransolver", "model.n_layers=1", "model.n_hidden=16", "model.n_head=2", "model.slice_num=4",
             "data.constants=[rho, speed]", "run_id=geo", "training.max_steps=1")
    _meshard(folder, "convert", "runs/geo/checkpoints/last.safetensors", "geo.mdlus")
    put_vortices(folder / "simulation", num_runs=4, num_states=8)
    _meshard(folder / "simulation", "train", "vortex.yaml", "data.split.train=0.5", "data.split.val=0.5", "~data.split.test")


def sample(name):
    """Where one of the files and folders of `_make` lies; not to be written to."""
    programs = [PROGRAM, PROGRAM.with_name("meshard-models"), pathlib.Path(__file__)]
    state = "".join(f"{path} {path.stat().st_mtime_ns} {path.stat().st_size}\n" for path in programs)
    top = pathlib.Path(os.environ.get("MESHARD_SAMPLES", pathlib.Path(tempfile.gettempdir()) / f"meshard-samples-{os.getuid()}"))
    top.mkdir(parents=True, exist_ok=True)
    folder = top / hashlib.sha256(state.encode()).hexdigest()[:16]
    with open(top / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in top.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)   # of an earlier build
            partial = folder.with_suffix(".partial")
            partial.mkdir()
            _make(partial)
            partial.rename(folder)
    return folder / name


def copy_sample(name, to):
    """A copy that a test may write to."""
    source = sample(name)
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to, dirs_exist_ok=True)
    else:
        shutil.copy(source, to)


def put_training(folder):
    """A configuration `car.yaml` with its `cases` beside it."""
    copy_sample("cases", folder / "cases")
    copy_sample("car.yaml", folder / "car.yaml")
