// SPDX-License-Identifier: Apache-2.0
// OpenFOAM's own tools take the cut that --dump foam writes. Skipped where they are not installed.
#include "tests/apps/program_test.h"
#include "tests/support/foam_case.h"
#include "tests/support/sample_meshes.h"

#include <cstdlib>

namespace meshard {
namespace {

class OpenFoam : public ProgramTest {
protected:
    static constexpr const char* decompose = "/usr/bin/decomposePar";

    void SetUp() override
    {
        if (!std::filesystem::exists(decompose)) GTEST_SKIP() << "OpenFOAM is not installed";
        ::setenv("WM_PROJECT_DIR", "/usr/share/openfoam", 0);
    }

    void write_settings() const
    {
        const std::string header = "FoamFile { version 2.0; format ascii; class dictionary; object settings; }\n";
        write_text("case/system/fvSchemes", header + "ddtSchemes { default Euler; } gradSchemes { default none; } divSchemes { default none; }\n"
                                                     "laplacianSchemes { default none; } interpolationSchemes { default none; } snGradSchemes { default none; }\n");
        write_text("case/system/fvSolution", header + "solvers { }\n");
    }
};

TEST_F(OpenFoam, DecomposesAsMeshardCut)
{
    write_foam_case(path("case"), cube(4));
    std::filesystem::remove_all(path("case/0.5"));
    write_settings();
    ASSERT_EQ(meshard({"partition", path("case"), "-n", "3", "-o", path("shards"), "--dump", "foam"}).exit_code, 0);
    std::filesystem::copy(path("shards/cellDecomposition"), path("case/constant/cellDecomposition"));
    std::filesystem::copy(path("shards/decomposeParDict"), path("case/system/decomposeParDict"));

    const ProgramResult result = run_program(decompose, {"-case", path("case"), "-constant"});

    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    for (int part = 0; part < 3; ++part) {
        const auto shard = meshard_json({"info", path("shards")});
        const Mesh mesh = read_mesh(path("case/processor" + std::to_string(part)));
        EXPECT_EQ(mesh.num_cells(), shard["parts"][part]["cells"]) << part;
    }
}

}  // namespace
}  // namespace meshard
