// SPDX-License-Identifier: Apache-2.0
// A program of one's own that cuts a mesh, without LibTorch: cut_mesh IN PARTS OUT
#include "io/mesh_io.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/partitioner.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/mesh_graph.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

int main(int argc, char** argv)
try {
    using namespace meshard;
    if (argc != 4) throw InvalidInput("usage: cut_mesh IN PARTS OUT");
    const auto mesh = read_mesh(argv[1]);
    const auto graph = mesh_graph(mesh);
    const auto cut = cut_rows({.graph = &graph, .num_parts = std::atoi(argv[2])}, {.method = "metis"});
    const auto subdomains = extract_subdomains(mesh, graph, cut.partition, 1);
    for (const auto& subdomain : subdomains) std::puts(to_string(subdomain).c_str());
    ShardsInfo info;
    info.source = argv[1];
    info.method = cut.method;
    save_subdomains(argv[3], subdomains, info);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "cut_mesh: %s\n", error.what());
    return 1;
}
