// SPDX-License-Identifier: Apache-2.0
// The damaged files that once reached code of the readers which whole files do not reach: each is read or refused by an
// Error.
#include "tests/fuzz/damaged_samples.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

TEST(DamageSeeds, WholeFilesAreRead)
{
    const TemporaryFolder folder;
    for (const DamageSample& sample : make_damage_samples(folder.path()))
        EXPECT_TRUE(survives_reading(sample)) << sample.name;
}

TEST(DamageSeeds, AreReadOrRefused)
{
    const TemporaryFolder folder;
    int num_seeds = 0, num_refused = 0;
    for (const DamageSample& sample : make_damage_samples(folder.path())) {
        const std::filesystem::path seeds = source_path("tests/data/fuzz/" + sample.name);
        if (!std::filesystem::is_directory(seeds)) continue;
        for (const auto& seed : std::filesystem::directory_iterator(seeds)) {
            SCOPED_TRACE(seed.path());
            std::filesystem::remove(sample.damaged);
            write_bytes(sample.damaged, read_bytes(seed.path()));
            EXPECT_NO_THROW(num_refused += !survives_reading(sample));
            ++num_seeds;
        }
        std::filesystem::remove(sample.damaged);
        write_bytes(sample.damaged, sample.bytes);
    }
    EXPECT_GE(num_seeds, 100);
    EXPECT_GT(num_refused, num_seeds / 2);
}

}  // namespace
}  // namespace meshard
