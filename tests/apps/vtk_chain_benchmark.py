# SPDX-License-Identifier: Apache-2.0
"""Times `meshard partition` against VTK's chain in one process, alternating. Not a test: figures for docs/benchmarks.md.

    python tests/apps/vtk_chain_benchmark.py build/bin/meshard tets.vtu hybrid.vtu --parts 8 --rounds 3

Both read a raw .vtu, cut it, add one layer of ghosts and write raw pieces. meshard's CPU seconds are those of its whole process; VTK's begin after its modules
are loaded. VTK (the Python's own, 9.2 or later) runs vtkRedistributeDataSetFilter, vtkGhostCellsGenerator and vtkXMLUnstructuredGridWriter. Beside the seconds
stand what the parts are like: imbalance, ghost cells of the part with most, and of all.
"""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def run_vtk(path, num_parts, folder):
    from vtkmodules.vtkCommonCore import vtkVersion
    from vtkmodules.vtkFiltersParallelDIY2 import vtkGhostCellsGenerator, vtkRedistributeDataSetFilter
    from vtkmodules.vtkIOXML import vtkXMLUnstructuredGridReader, vtkXMLUnstructuredGridWriter

    stages = {}
    last = begin = time.process_time()

    def stage(name):
        nonlocal last
        now = time.process_time()
        stages[name] = round(now - last, 3)
        last = now

    reader = vtkXMLUnstructuredGridReader()
    reader.SetFileName(path)
    reader.Update()
    stage("read")
    cut = vtkRedistributeDataSetFilter()
    cut.SetNumberOfPartitions(num_parts)
    cut.PreservePartitionsInOutputOn()
    cut.SetInputConnection(reader.GetOutputPort())
    cut.Update()
    stage("redistribute")
    ghosts = vtkGhostCellsGenerator()
    ghosts.SetNumberOfGhostLayers(1)
    ghosts.BuildIfRequiredOff()
    ghosts.SetInputConnection(cut.GetOutputPort())
    ghosts.Update()
    stage("ghosts")
    parts = ghosts.GetOutputDataObject(0)
    pieces = [parts.GetPartition(i) for i in range(parts.GetNumberOfPartitions())]
    for i, piece in enumerate(pieces):
        writer = vtkXMLUnstructuredGridWriter()
        writer.SetFileName(os.path.join(folder, f"piece_{i}.vtu"))
        writer.SetInputData(piece)
        writer.SetCompressorTypeToNone()
        writer.EncodeAppendedDataOff()
        writer.Write()
    stage("write")
    seconds = time.process_time() - begin
    owned, foreign = [], []
    for piece in pieces:
        flags = memoryview(piece.GetCellGhostArray()) if piece.GetCellGhostArray() else b""
        num_ghosts = sum(1 for flag in flags if flag & 1)
        owned.append(piece.GetNumberOfCells() - num_ghosts)
        foreign.append(num_ghosts)
    return {"version": vtkVersion.GetVTKVersion(), "seconds": seconds, "stages": stages, "owned": owned, "ghosts": foreign}


def run_meshard(program, path, num_parts, folder, options):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    text = subprocess.run([program, "partition", path, "-n", str(num_parts), "-o", os.path.join(folder, "shards"), "--json", *options],
                          check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(text)
    parts = report["parts"]
    return {"seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "wall": wall, "stages": report["seconds"],
            "owned": [part["cells"] for part in parts], "ghosts": [part["ghost_cells"] for part in parts]}


def shown(results):
    best = results[0]
    imbalance = max(best["owned"]) * len(best["owned"]) / sum(best["owned"])
    return (f"{statistics.median(r['seconds'] for r in results):.3f} s ({', '.join('%.2f' % r['seconds'] for r in results)}), imbalance {imbalance:.3f}, "
            f"most ghosts {max(best['ghosts'])}, of all {sum(best['ghosts'])}, cells {sum(best['owned'])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("meshes", nargs="+")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None, help="for what is written")
    parser.add_argument("--meshard-options", default="", help="e.g. '--method hilbert'")
    parser.add_argument("--vtk-alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.vtk_alone:
        print(json.dumps(run_vtk(arguments.meshes[0], arguments.parts, arguments.folder)))
        return
    for mesh in arguments.meshes:
        ours, theirs = [], []
        for _ in range(arguments.rounds):
            for run, results in (("meshard", ours), ("vtk", theirs)):
                folder = tempfile.mkdtemp(dir=arguments.folder)
                try:
                    if run == "meshard":
                        results.append(run_meshard(arguments.program, mesh, arguments.parts, folder, arguments.meshard_options.split()))
                    else:
                        command = [sys.executable, __file__, "-", mesh, "--parts", str(arguments.parts), "--folder", folder, "--vtk-alone"]
                        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "VTK_SMP_MAX_THREADS": "1"}).stdout
                        results.append(json.loads(text.splitlines()[-1]))
                finally:
                    shutil.rmtree(folder)
        ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in zip(ours, theirs))
        print(f"{mesh}\n  meshard {shown(ours)}\n          {ours[-1]['stages']}\n  VTK {theirs[0]['version']} {shown(theirs)}\n          {theirs[-1]['stages']}\n"
              f"  meshard / VTK, median of the rounds: {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
