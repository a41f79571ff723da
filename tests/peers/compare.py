#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""meshard beside other libraries: exactness of sharded tensors, times, cuts, neighbours and files, as one table.

    python tests/peers/compare.py                    measures all and prints the table
    python tests/peers/compare.py --write            and writes it into docs/comparison.md (below ten minutes on two cores)
    python tests/peers/compare.py --only exactness   some parts: exactness, operators, transformer, transolver, cuts, neighbors, files
    python tests/peers/compare.py --with VENV        also takes libraries of that virtual environment, of the same Python

Needs `import meshard`, as the tests of tests/python do (PYTHONPATH=build/release/apps/python, run by build/venv/bin/python3). PhysicsNeMo comes by
`bash apps/setup.sh --peers`; the others by `python3 -m venv VENV && VENV/bin/pip install scipy pymetis kahip pynanoflann vtk meshio`. What is absent is
said to be so; scipy is needed."""
import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "comparison.md"
BEGIN, END = "<!-- written by tests/peers/compare.py -->", "<!-- until here -->"
NAMES = ["meshard", "DTensor", "ShardTensor"]
EXACTNESS, STEPS, MESHES = ["exactness"], ["operators", "transformer", "transolver"], ["cuts", "neighbors", "files"]


def lines_of(program, *arguments, venv=None, seconds=400):
    """The lines of JSON that one of the programs beside this one prints."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTORCH_NVML_BASED_CUDA_CHECK="1")
        if venv:
            packages = next(pathlib.Path(venv).glob("lib/python*/site-packages"))
            (pathlib.Path(folder) / "sitecustomize.py").write_text(f"import sys\nsys.path.append({str(packages)!r})\n")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), folder]))
        done = subprocess.run([sys.executable, str(HERE / program), *arguments], env=environment, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        print(f"compare.py: {program} {' '.join(arguments)} has failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        sys.exit(1)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def row(what, *cells):
    return "| " + " | ".join([what, *cells]) + " |"


def head(what):
    return row(f"**{what}**", "", "", "", "")


def shown(verdict, what):
    """A cell: a wrong number is said where, a refusal whether it comes only in backward."""
    if verdict == "wrong":
        return f"**wrong**: {what}"
    if verdict == "refuses" and what.startswith("in backward"):
        return "refuses in backward"
    return verdict


def exactness(versions, said, libraries=NAMES, only=()):
    sys.path.insert(0, str(HERE))
    import cases
    found = {name: {} for name in NAMES}
    for name in libraries:
        for line in lines_of("exactness.py", name, *only):
            if "version" in line:
                versions[name] = line["version"]
            elif "case" in line:
                found[name][line["case"]] = line["verdict"], line["what"]
                if line["verdict"] in ("refuses", "needs CUDA"):
                    said[name].update([line["what"].removeprefix("in backward, ")])
    rows, group = [], ""
    counts = {name: collections.Counter(verdict for verdict, _ in found[name].values()) for name in NAMES}
    rows.append(head(f"Exactness: {len(cases.CASES)} cases, of which"))
    for verdict in ("exact", "gathers", "wrong", "refuses", "hangs", "needs CUDA"):
        rows.append(row(verdict, *(str(counts[name][verdict]) if found[name] else "absent" for name in NAMES), ""))
    for case in cases.CASES:
        if case.group != group:
            group = case.group
            rows.append(head(group))
        ranks = "" if case.mesh == (2,) else f", {' x '.join(map(str, case.mesh))} ranks" if "rank" not in case.name else ""
        rows.append(row(case.name + ranks + (f" ({case.report.replace(' ', ' #')})" if case.report else ""),
                        *(shown(*found[name].get(case.name, ("absent", ""))) for name in NAMES), ""))
    return rows


def steps(part):
    titles = {"operators": "Microseconds of an operator, gradients recorded, 8 x 16 numbers a rank",
              "transformer": "Milliseconds of forward and backward on two ranks (others: the whole on one)",
              "transolver": "Milliseconds of forward and backward on two ranks (others: the whole on one)"}
    names = {"transformer": "transformer, attention written out, 2 layers, 64 channels, 1,024 tokens",
             "transolver": "PhysicsNeMo's Transolver, 2 layers, 64 channels, 10,000 points"}
    figures = {}
    for line in lines_of("steps.py", part):
        figures[line["kind"]] = line["figure"] if "figure" in line else shown(line["verdict"], line["what"])
    rows = [] if part == "transolver" else [head(titles[part])]

    def cell(kind, name=None):
        found = figures.get(kind, "absent")
        if isinstance(found, str):
            return found
        return f"{found[name]:.1f}" if name else f"{found * 1e3:.0f}"

    for name in figures["plain"] if part == "operators" else [None]:
        rows.append(row(name or names[part], *(cell(kind, name) for kind in NAMES), f"plain {cell('plain', name)}"))
    return rows


def meshes(part, versions, venv):
    titles = {"cuts": "Cuts: facets between parts, most ghosts of a part, CPU seconds; imbalance at most 1.03 unless said",
              "neighbors": "Nearest neighbours, CPU milliseconds", "files": "Files, CPU milliseconds"}
    rows = [head(titles[part])]
    for line in lines_of("meshes.py", part, venv=venv):
        if "versions" in line:
            versions.update(line["versions"])
            continue
        cells = {}
        for name, figure in line["figures"].items():
            if part == "cuts":
                imbalance = f", imbalance {figure['imbalance']:.2f}" if figure["imbalance"] > 1.031 else ""
                cells[name] = f"{figure['cut']:,.0f}, {figure['ghosts']:,.0f}, {figure['seconds']:.2f}{imbalance}"
            else:
                size = f", {line['megabytes'][name]:.1f} MB" if "megabytes" in line else ""
                cells[name] = f"{figure * 1e3:.1f}{size}"
        ours = [name for name in cells if name.startswith("meshard, ")]
        own = [cells.pop("meshard")] + [f"{name.split(', ')[1]}: {cells.pop(name)}" for name in ours]
        rows.append(row(line["what"], "; ".join(own), "", "", "; ".join(f"{name} {cell}" for name, cell in cells.items())))
    return rows


def reasons(name, said):
    """What a library said, in how many cases; the operators without a strategy in one line."""
    missing, others = [], []
    for what, count in said.most_common():
        operator = re.search(r"Operator aten.(\w+)\S* does not have a sharding strategy", what)
        times = f" ({count})" if count > 1 else ""
        if operator:
            missing.append(f"{operator[1]}{times}")
        else:
            others.append(f"`{what[:150].replace('`', chr(39))}`{times}")
    lines = [f"no sharding strategy registered for {', '.join(missing)}"] if missing else []
    return [f"- {name}: {line}" for line in lines + others]


def processor():
    name = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores, {name[1].strip() if name else 'unknown processor'}, no GPU, one thread a rank; load at the start {os.getloadavg()[0]:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/comparison.md")
    parser.add_argument("--only", nargs="+", choices=EXACTNESS + STEPS + MESHES, default=EXACTNESS + STEPS + MESHES)
    parser.add_argument("--with", dest="venv", metavar="VENV", help="a virtual environment with further libraries")
    given = parser.parse_args()
    if given.write and set(given.only) != set(EXACTNESS + STEPS + MESHES):
        parser.error("--write wants all parts, so leave out --only: a page with half of the figures of another day misleads.")
    versions, said = {}, {name: collections.Counter() for name in NAMES}
    machine, rows = processor(), []
    for part in given.only:
        print(f"compare.py: {part} ...", file=sys.stderr, flush=True)
        if part in EXACTNESS:
            rows += exactness(versions, said)
        elif part in STEPS:
            rows += steps(part)
        else:
            rows += meshes(part, versions, given.venv)
    libraries = {"meshard": "meshard", "DTensor": "DTensor of torch", "ShardTensor": "ShardTensor of PhysicsNeMo"}
    own = ", ".join(f"{libraries[name]} {versions[name]}" for name in NAMES if name in versions)
    others = ", ".join(f"{name} {version or 'absent'}" for name, version in versions.items() if name not in NAMES)
    text = [f"{datetime.date.today()}; {'; '.join(filter(None, [own, others]))}.", f"Machine: {machine}.", "",
            row("", *NAMES, "others"), row(*["---"] * 5), *rows, "", "What refusals said, and in how many cases:", ""]
    for name in NAMES:
        text += reasons(name, said[name])
    print("\n".join(text))
    if given.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, mark, after = rest.partition(END)
        assert mark, f"{PAGE} has no lines '{BEGIN}' and '{END}'."
        PAGE.write_text(before + BEGIN + "\n" + "\n".join(text) + "\n" + END + after)


if __name__ == "__main__":
    main()
