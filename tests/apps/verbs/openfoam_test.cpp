// SPDX-License-Identifier: Apache-2.0
// OpenFOAM's own tools take the cut that --dump foam writes, and what they make of it is read. Skipped where they are
// not installed.
#include "tests/apps/program_test.h"
#include "tests/support/foam_case.h"
#include "tests/support/sample_meshes.h"

#include <cstdlib>

namespace meshard {
namespace {

class OpenFoam : public ProgramTest {
protected:
    static constexpr const char* decompose_par = "/usr/bin/decomposePar";

    void SetUp() override
    {
        if (!std::filesystem::exists(decompose_par)) GTEST_SKIP() << "OpenFOAM is not installed";
        ::setenv("WM_PROJECT_DIR", "/usr/share/openfoam", 0);
        ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);  // noise in containers
    }

    /// The mesh as a case without times, cut by meshard and decomposed by OpenFOAM.
    void decompose(const Mesh& mesh, int num_parts) const
    {
        write_foam_case(path("case"), mesh);
        for (const char* time : {"case/0", "case/0.5"}) std::filesystem::remove_all(path(time));
        write_settings();
        ASSERT_EQ(meshard({"partition", path("case"), "-n", std::to_string(num_parts), "-o", path("shards"), "--dump",
                           "foam"})
                      .exit_code,
                  0);
        std::filesystem::copy(path("shards/cellDecomposition"), path("case/constant/cellDecomposition"));
        std::filesystem::copy(path("shards/decomposeParDict"), path("case/system/decomposeParDict"));
        const ProgramResult result = run_program(decompose_par, {"-case", path("case"), "-constant"});
        ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    }

    void write_settings() const
    {
        const std::string header = "FoamFile { version 2.0; format ascii; class dictionary; object settings; }\n";
        write_text("case/system/fvSchemes",
                   header + "ddtSchemes { default Euler; } gradSchemes { default none; } divSchemes { default none; }\n"
                            "laplacianSchemes { default none; } interpolationSchemes { default none; } snGradSchemes { "
                            "default none; }\n");
        write_text("case/system/fvSolution", header + "solvers { }\n");
    }
};

TEST_F(OpenFoam, DecomposesAsMeshardCut)
{
    decompose(cube(4), 3);
    for (int part = 0; part < 3; ++part) {
        const auto shard = meshard_json({"info", path("shards")});
        const Mesh mesh = read_mesh(path("case/processor" + std::to_string(part)));
        EXPECT_EQ(mesh.num_cells(), shard["parts"][part]["cells"]) << part;
    }
}

TEST_F(OpenFoam, FindsItsDecompositionSoundAndPutsItTogether)
{
    const Mesh mesh = polyhedral_cube(4);
    decompose(mesh, 3);

    const ProgramResult check =
        run_program("/usr/bin/mpirun", {"--allow-run-as-root", "--oversubscribe", "-np", "3", "checkMesh", "-parallel",
                                        "-constant", "-case", path("case")});
    std::filesystem::remove_all(path("case/constant/polyMesh"));
    const ProgramResult reconstruct = run_program("/usr/bin/reconstructParMesh", {"-case", path("case"), "-constant"});

    EXPECT_EQ(check.exit_code, 0) << check.err;
    EXPECT_NE(check.out.find("Mesh OK."), std::string::npos) << check.out;
    ASSERT_EQ(reconstruct.exit_code, 0) << reconstruct.out << reconstruct.err;
    std::filesystem::rename(path("case/constant"), path("whole_constant"));
    std::filesystem::create_directories(path("whole"));
    std::filesystem::rename(path("whole_constant"), path("whole/constant"));
    const Mesh whole = read_mesh(path("whole"));
    EXPECT_EQ(whole.num_cells(), mesh.num_cells());
    EXPECT_EQ(whole.num_points(), mesh.num_points());
}

TEST_F(OpenFoam, LeavesFoldersThatAreReadAsOneMesh)
{
    for (const Mesh& mesh : {cube(4), tet_cube(3), mixed_cells()}) {
        decompose(mesh, 3);
        std::filesystem::rename(path("case/constant/polyMesh"), path("case/constant/before"));

        const Mesh decomposed = read_mesh(path("case"));

        std::filesystem::rename(path("case/constant/before"), path("case/constant/polyMesh"));
        const Mesh whole = read_mesh(path("case"));
        EXPECT_TRUE(decomposed.points.same_bits(whole.points));
        EXPECT_EQ(decomposed.cell_types, whole.cell_types);
        for (std::int64_t cell = 0; cell < whole.num_cells(); ++cell) {
            std::vector<std::int32_t> found(decomposed.cells.row(cell).begin(), decomposed.cells.row(cell).end());
            std::vector<std::int32_t> expected(whole.cells.row(cell).begin(), whole.cells.row(cell).end());
            std::ranges::sort(found);
            std::ranges::sort(expected);
            EXPECT_EQ(found, expected) << cell;
        }
        EXPECT_TRUE(require_array(decomposed.cell_data, "CellZoneId", "", "cell")
                        .same_bits(require_array(whole.cell_data, "CellZoneId", "", "cell")));
        EXPECT_TRUE(require_array(decomposed.field_data, "PatchNumFaces", "", "field")
                        .same_bits(require_array(whole.field_data, "PatchNumFaces", "", "field")));
        for (const char* name : {"case", "shards"}) std::filesystem::remove_all(path(name));
    }
}

TEST_F(OpenFoam, WritesBinaryCellDecompositionsThatAreTaken)
{
    decompose(cube(4), 3);
    std::string control = content_of(path("case/system/controlDict"));
    control.replace(control.find("writeFormat ascii"), 17, "writeFormat binary");
    write_text("case/system/controlDict", control);
    std::filesystem::remove(path("case/constant/cellDecomposition"));
    write_text("case/system/decomposeParDict", "FoamFile { version 2.0; format ascii; class dictionary; object "
                                               "decomposeParDict; }\nnumberOfSubdomains 3; method simple;\n"
                                               "simpleCoeffs { n (3 1 1); delta 0.001; }\n");
    ASSERT_EQ(run_program(decompose_par, {"-case", path("case"), "-constant", "-force", "-cellDist"}).exit_code, 0);
    ASSERT_NE(content_of(path("case/constant/cellDecomposition")).find("binary"), std::string::npos);

    const auto report =
        meshard_json({"partition", path("case"), "--method", "file:" + path("case/constant/cellDecomposition"), "-o",
                      path("again"), "--ghost-layers", "0"});

    EXPECT_EQ(report["num_parts"], 3);
    for (int part = 0; part < 3; ++part)
        EXPECT_EQ(report["parts"][part]["cells"], read_mesh(path("case/processor" + std::to_string(part))).num_cells())
            << part;
}

}  // namespace
}  // namespace meshard
