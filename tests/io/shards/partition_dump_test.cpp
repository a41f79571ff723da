// SPDX-License-Identifier: Apache-2.0
#include "io/foam/foam_file.h"
#include "io/shards/partition_dump.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <sstream>

namespace meshard {
namespace {

TEST(PartitionDump, WritesMetisGraphAndParts)
{
    const TemporaryFolder folder;
    const Csr graph = mesh_graph(strip(3));
    const std::vector<std::int32_t> owners{0, 1, 1};
    const auto kinds = parse_dump_kinds("metis");

    dump_partition(folder.path(), kinds, graph, owners, 2);

    EXPECT_EQ(read_bytes(folder / "mesh.graph"), "3 2\n2\n1 3\n2\n");
    EXPECT_EQ(read_bytes(folder / "mesh.graph.part.2"), "0\n1\n1\n");
}

TEST(PartitionDump, WritesAVertexWithoutNeighboursAsAnEmptyLine)
{
    const TemporaryFolder folder;
    dump_partition(folder.path(), parse_dump_kinds("metis"), mesh_graph(islands(2, 1)), std::vector<std::int32_t>{0, 1},
                   2);
    EXPECT_EQ(read_bytes(folder / "mesh.graph"), "2 0\n\n\n");
}

TEST(PartitionDump, WritesTheSameRowByRow)
{
    const TemporaryFolder whole, rows;
    const Csr graph = mesh_graph(tet_cube(2));
    std::vector<std::int32_t> owners(graph.num_rows());
    for (std::size_t i = 0; i < owners.size(); ++i) owners[i] = static_cast<std::int32_t>(i % 3);
    const auto kinds = parse_dump_kinds("foam,metis");
    const auto written = dump_partition(whole.path(), kinds, graph, owners, 3);

    PartitionDump dump(rows.path(), kinds, graph.num_rows(), graph.num_entries(), 3);
    for (std::int64_t i = 0; i < graph.num_rows(); ++i) {
        Csr row;
        row.push_row(graph.row(i));
        dump.add(row, std::span(owners).subspan(i, 1));
    }
    dump.commit();

    for (const auto& path : written) EXPECT_EQ(read_bytes(rows / path.filename().string()), read_bytes(path)) << path;
}

TEST(PartitionDump, WritesWhatDecomposeParReads)
{
    const TemporaryFolder folder;
    const std::vector<std::int32_t> owners{2, 0, 1, 1};
    const auto kinds = parse_dump_kinds("metis,foam");

    const auto written = dump_partition(folder.path(), kinds, mesh_graph(strip(4)), owners, 3);

    EXPECT_EQ(written.size(), 4);
    FoamFile file(folder / "cellDecomposition");
    EXPECT_EQ(file.class_name(), "labelList");
    EXPECT_EQ(file.read_labels(), owners);
    const FoamEntry dictionary = FoamFile(folder / "decomposeParDict").read_dictionary(0);
    EXPECT_EQ(dictionary.word("method"), "manual");
    EXPECT_EQ(dictionary.word("numberOfSubdomains"), "3");
    EXPECT_EQ(dictionary.find("manualCoeffs")->word("dataFile"), "cellDecomposition");
}

TEST(PartitionDump, NamesUnknownKinds)
{
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'foam'?", [] { parse_dump_kinds("metis,fom"); }));
}

}  // namespace
}  // namespace meshard
