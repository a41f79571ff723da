// SPDX-License-Identifier: Apache-2.0
// Cases that stay in memory or are read in their turn: the same ones; damaged files stop an epoch before its first
// case.
#include "apps/learning/cases/shard_cache.h"
#include "apps/learning/steps/case_set.h"
#include "io/mesh_io.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/stored_case.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

namespace fs = std::filesystem;

class CaseSets : public testing::Test {
protected:
    CaseSets()
    {
        data_.fields = {{"pressure", "p", ""}};
        data_.normals = "Normals";
        data_.frame = {"bounds", "bounds"};
        for (int i = 0; i < 4; ++i) {
            auto mesh = sphere(5 + i);
            mesh.point_data.clear();
            mesh.cell_data = {DataArray::from("p", std::vector<float>(mesh.num_cells(), static_cast<float>(i)))};
            sources_.push_back({std::to_string(i), folder_ / ("body_" + std::to_string(i) + ".vtp"), {}});
            write_mesh(sources_.back().file, mesh);
            stored_.push_back(store_case({folder_ / "store", {}, data_}, sources_.back(),
                                         prepare_shards(sources_.back(), {.folder = folder_ / "shards"})));
        }
    }

    CaseSet set() const
    {
        return {sources_, stored_, {data_, 3, RowOrder::Parts, DeviceMesh::single(), {1}, at::kCPU}, nullptr};
    }

    /// These turns one after the other.
    static std::function<std::optional<CaseTurn>()> in_turn(std::vector<CaseTurn> turns)
    {
        return [turns, i = std::size_t{0}]() mutable {
            return i < turns.size() ? std::optional(turns[i++]) : std::nullopt;
        };
    }

    const TemporaryFolder folder_;
    DataConfig data_;
    std::vector<CaseSource> sources_;
    std::vector<StoredCase> stored_;
};

TEST_F(CaseSets, GiveTheSameCasesFromMemoryAndFromTheDisk)
{
    for (const std::int64_t num_sampled : {0, 20}) {
        for (const auto sampling : {SamplingKind::Uniform, SamplingKind::Blocks, SamplingKind::Areas}) {
            data_.has_measures = sampling == SamplingKind::Areas;
            data_.num_sampled = num_sampled;
            data_.sampling = sampling;
            const std::vector<CaseTurn> turns{{2, 1, 1}, {0, 1, 1}, {3, 1, 1}, {1, 1, 1}, {0, 2, 2}, {0}, {3}};
            const auto read = set();
            auto kept = set();
            kept.keep(true);
            CaseSequence from_disk(read, in_turn(turns)), from_memory(kept, in_turn(turns));
            for (const auto& turn : turns) {
                const auto a = from_disk.next(), b = from_memory.next();
                EXPECT_EQ(a.id, std::to_string(turn.index));
                EXPECT_EQ(a.id, b.id);
                EXPECT_EQ(a.num_points, turn.time == 0 || num_sampled == 0 ? read.num_points(turn.index) : num_sampled);
                EXPECT_EQ(a.num_points, b.num_points);
                EXPECT_TRUE(torch::equal(to_local(a.target), to_local(b.target)));
                ASSERT_EQ(a.measures.defined(), data_.has_measures);
                if (data_.has_measures) {
                    EXPECT_TRUE(torch::equal(to_local(a.measures), to_local(b.measures)));
                }
                EXPECT_TRUE(torch::equal(to_local(a.inputs.embedding), to_local(b.inputs.embedding)));
                EXPECT_EQ(spec_of(a.target)->index_map->global_ids, spec_of(b.target)->index_map->global_ids);
            }
            EXPECT_THROW(from_disk.next(), Error);
            EXPECT_THROW(from_memory.next(), Error);
        }
    }
}

TEST_F(CaseSets, NameADamagedFileBeforeTheFirstCaseOfItsEpoch)
{
    const auto cases = set();
    const auto file = stored_[3].folder / stored_[3].parts[0].file;
    std::vector<CaseTurn> turns{{0, 1, 1}, {1, 1, 1}, {2, 1, 1}, {3, 1, 1}};
    {
        CaseSequence whole(cases, in_turn(turns));
        for (std::size_t i = 0; i < turns.size(); ++i) EXPECT_EQ(whole.next().id, sources_[i].id);
    }
    fs::resize_file(file, fs::file_size(file) - 4);

    CaseSequence damaged(cases, in_turn(turns));  // the damaged one comes last
    EXPECT_TRUE(throws_with<IoError>(file.string() + " is damaged", [&] { damaged.next(); }));
}

TEST_F(CaseSets, RefuseFieldsOfOtherSizes)
{
    stored_[2].channels = {3};
    EXPECT_TRUE(
        throws_with<InvalidInput>("case 2: a field has another number of components than in case 0", [&] { set(); }));
}

}  // namespace
}  // namespace meshard
