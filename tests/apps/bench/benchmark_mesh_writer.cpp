// SPDX-License-Identifier: Apache-2.0
// Writes a mesh of the kinds that `meshard bench partition` makes, for benchmarks of whole commands:
//     benchmark_mesh_writer tets 1000000 tets.vtu
#include "apps/bench/benchmark_meshes.h"
#include "io/mesh_io.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

int main(int argc, char** argv)
{
    if (argc != 4) {
        std::fprintf(stderr, "usage: benchmark_mesh_writer KIND CELLS FILE\n");
        return 2;
    }
    try {
        meshard::write_mesh(argv[3], meshard::benchmark_mesh(argv[1], std::atoll(argv[2])));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "benchmark_mesh_writer: %s\n", error.what());
        return 3;
    }
}
