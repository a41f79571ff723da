// SPDX-License-Identifier: Apache-2.0
// Nothing is lost: random meshes x methods x parts x ghost layers. Two cuts each of 30 meshes by default; all of 200
// meshes (18,000 cuts, an hour) with the environment variable MESHARD_FULL_SWEEP=1, from seed MESHARD_SWEEP_SEED on:
// one cut of every mesh, then the next of every mesh, so that a part of the sweep says something of all meshes.
#include "io/shards/shard_check.h"
#include "io/shards/subdomain_io.h"
#include "partition/ghosts/subdomain.h"
#include "tests/apps/program_test.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/random_meshes.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace meshard {
namespace {

struct Cut {
    std::string method;
    std::int64_t num_parts = 1;
    int ghost_layers = 0;
};

class RandomMeshesSweep : public ProgramTest {
protected:
    static bool is_full()
    {
        const char* const full = std::getenv("MESHARD_FULL_SWEEP");
        return full != nullptr && std::string(full) == "1";
    }

    static std::uint32_t first_seed()
    {
        const char* const seed = std::getenv("MESHARD_SWEEP_SEED");
        return seed != nullptr ? static_cast<std::uint32_t>(std::atoll(seed)) : 0;
    }

    static std::vector<Cut> all_cuts(const Mesh& mesh)
    {
        std::vector<Cut> cuts;
        for (const char* method : {"metis", "recursive", "scotch", "rcb", "hilbert", "auto"})
            for (const std::int64_t num_parts :
                 {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{7}, mesh.num_rows() + 2})
                for (const int layers : {0, 1, 3}) cuts.push_back({method, num_parts, layers});
        return cuts;
    }

    /// Cuts, checks, merges, and asks VTK; `random` chooses what only varies.
    void test(const std::string& source, const Mesh& mesh, const Cut& cut, std::mt19937& random) const
    {
        const std::string shards = path("shards");
        std::vector<std::string> words{"partition",
                                       source,
                                       "-n",
                                       std::to_string(cut.num_parts),
                                       "--method",
                                       cut.method,
                                       "-o",
                                       shards,
                                       "--ghost-layers",
                                       std::to_string(cut.ghost_layers),
                                       "--allow-empty",
                                       "--seed",
                                       std::to_string(random() % 100)};
        const char* const rules[] = {"face", "face", "edge", "vertex", "nearest:5", "radius:0.7"};
        words.insert(words.end(), {"--ghosts", rules[random() % 6]});
        if (random() % 4 == 0) words.push_back("--contiguous");
        if (random() % 8 == 0) words.push_back("--quality");
        std::string command;
        for (const std::string& word : words) command += word + ' ';
        SCOPED_TRACE(command);

        const ProgramResult result = meshard(words);

        ASSERT_EQ(result.exit_code, 0) << result.err;
        for (const std::string& fault : check_shards(shards)) ADD_FAILURE() << fault;
        EXPECT_EQ(difference(merge_subdomains(load_subdomains(shards)), mesh), "");
        std::vector<std::filesystem::path> pieces;
        for (const ManifestPart& part : read_manifest(shards).parts)
            pieces.push_back(std::filesystem::path(shards) / part.file);
        EXPECT_EQ(vtk_gathered_difference(pieces, source), "");
        const VtkSummary summary = vtk_summary(shards + '/' + index_name(mesh.kind));
        EXPECT_EQ(summary.num_cells - summary.num_ghost_cells, mesh.num_cells());
        EXPECT_EQ(summary.num_points - summary.num_ghost_points, mesh.num_points());
        std::filesystem::remove_all(shards);
    }
};

TEST_F(RandomMeshesSweep, LosesNothing)
{
    const std::uint32_t num_meshes = is_full() ? 200 : 30;
    const std::size_t num_cuts = is_full() ? 90 : 2;
    for (std::size_t i = 0; i < num_cuts; ++i) {
        for (std::uint32_t seed = first_seed(); seed < first_seed() + num_meshes; ++seed) {
            const Mesh mesh = random_mesh(seed);
            SCOPED_TRACE("random_mesh(" + std::to_string(seed) + "): " + to_string(mesh));
            mesh.validate();
            const std::string source = write(std::string("source") + extension_of(mesh.kind), mesh);
            if (i == 0) {
                ASSERT_EQ(difference(read_mesh(source), mesh), "");
            }
            std::vector<Cut> cuts = all_cuts(mesh);
            ASSERT_GE(cuts.size(), num_cuts);
            std::mt19937 random(seed);
            std::shuffle(cuts.begin(), cuts.end(), random);
            random.seed(seed + 1000 * static_cast<std::uint32_t>(i));
            test(source, mesh, cuts[i], random);
            if (HasFatalFailure()) return;
        }
        if (is_full()) std::printf("%zu of %zu cuts of each mesh\n", i + 1, num_cuts);
        std::fflush(stdout);
    }
}

}  // namespace
}  // namespace meshard
