#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the kernels of GPUs take: registers, and bytes that they spill to memory because there are too few of those.

    register_table.py nvcc -Xptxas -v ... -o kernels.o      runs the compiler, prints the table, keeps it as kernels.o.registers
    register_table.py --check kernels.o.registers ...       fails if a kernel there spills

The compiler's lines about registers are taken out of its output; all others are passed on."""
import re
import subprocess
import sys

COMPILING = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
OTHER_NOTES = re.compile(r"ptxas info +: (\d+ bytes gmem|Function properties|Compile time)|^ *\d+ bytes stack frame")


def demangled(names):
    try:
        return subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return names


def short(name):
    """The body's name, without what is the same for all: `void meshard::run_body<meshard::PackWord<unsigned char> >(long, ...)`,
    `void meshard::tiles::run_slices<meshard::tiles::Tile<(meshard::TileMath)0>, meshard::tiles::LogSums<...>, 3, 1>(...)`."""
    name = re.sub(r"\(meshard::\w+\)", "", name)
    if slices := re.match(r"void meshard::tiles::run_slices<.*?Tile<(\d)>, meshard::tiles::(\w+)<meshard::tiles::Tile<\d>, ([^>]*)>, (\d), (\d)>", name):
        return "{1}<math {0}, {2}> blocks {3}, team {4}".format(*slices.groups())
    body = re.match(r"void meshard::run_body<(.*)>\(long, ", name)
    return re.sub(r" >", ">", (body.group(1).strip() if body else name.partition("(")[0].removeprefix("void ")).replace("meshard::", ""))


def parse(text):
    """Rows [kernel, architecture, registers, stack, spilled], and the lines that say something else."""
    rows, others, kernel, frame = [], [], None, None
    for line in text.splitlines():
        if found := COMPILING.search(line):
            kernel = found.groups()
        elif found := FRAME.search(line):
            frame = [int(number) for number in found.groups()]
        elif (found := REGISTERS.search(line)) and kernel and frame:
            rows.append([*kernel, int(found.group(1)), frame[0], frame[1] + frame[2]])
            kernel = None
        elif not OTHER_NOTES.search(line):
            others.append(line)
    for row, name in zip(rows, demangled([row[0] for row in rows])):
        row[0] = short(name)
    return rows, others


def table(rows):
    architectures = sorted({row[1] for row in rows}, key=lambda name: int(re.sub(r"\D", "", name)))
    cells = {}
    for kernel, architecture, registers, stack, spilled in rows:
        cells[kernel, architecture] = f"{registers}/{stack}/{spilled}"
    kernels = sorted({row[0] for row in rows})
    width = max(len(kernel) for kernel in kernels)
    lines = ["registers / bytes of stack / bytes spilled, of each thread of a kernel",
             " ".join(["kernel".ljust(width), *(name.rjust(9) for name in architectures)])]
    lines += [" ".join([kernel.ljust(width), *(cells.get((kernel, name), "").rjust(9) for name in architectures)]) for kernel in kernels]
    return "\n".join(lines) + "\n"


def spilling(lines):
    """Those of a table that have a kernel which spills."""
    return [line for line in lines if any(not entry.endswith("/0") for entry in re.findall(r"\d+/\d+/\d+", line))]


def check(paths):
    faults, count = [], 0
    for path in paths:
        with open(path) as stream:
            lines = stream.read().splitlines()
        count += len(lines) - 2
        faults += [f"{path}: {line}" for line in spilling(lines)]
    print("\n".join(faults) if faults else f"{count} kernels, none spills")
    return 1 if faults or count < 1 else 0


def compile_and_tell(command):
    result = subprocess.run(command, capture_output=True, text=True)
    rows, others = parse(result.stdout + result.stderr)
    if others:
        print("\n".join(others), file=sys.stderr)
    if result.returncode != 0 or not rows:
        return result.returncode
    text = table(rows)
    print(text, end="")
    faults = spilling(text.splitlines())
    if faults:
        print("warning: these kernels spill registers to memory:\n  " + "\n  ".join(faults), file=sys.stderr)
    with open(command[command.index("-o") + 1] + ".registers", "w") as stream:
        stream.write(text)
    return 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if arguments else 2)
    sys.exit(check(arguments[1:]) if arguments[0] == "--check" else compile_and_tell(arguments))
