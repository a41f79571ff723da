// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/shard_cache.h"
#include "apps/learning/cases/source_hash.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/file_lock.h"
#include "io/mesh_io.h"
#include "io/shards/subdomain_io.h"
#include "partition/error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/stored_case.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <unistd.h>
#include <vector>

namespace meshard {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// A file whose time lies so far back that a later change shows in it.
void write_old(const fs::path& path, const std::string& bytes)
{
    write_bytes(path, bytes);
    fs::last_write_time(path, fs::file_time_type::clock::now() - 1h);
}

void flip_byte(const fs::path& path, std::streamoff position)
{
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(position);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(position);
    file.put(byte);
}

class SourceHash : public testing::Test {
protected:
    static constexpr std::size_t kSize = 5'000'000,
                                 kUnsampled =
                                     100'000;  // the first samples are of bytes 0 to 65,536 and from 328,000 on
    SourceHash() { write_old(source_, std::string(kSize, 'x')); }
    std::uint64_t hash(bool verify = false) const { return source_hash(source_, note_, verify); }

    const TemporaryFolder folder_;
    const fs::path source_ = folder_ / "body.vtp", note_ = folder_ / "sources" / "body.json";
};

TEST_F(SourceHash, IsThatOfTheBytes)
{
    EXPECT_EQ(hash_text(hash()), hash_file(source_));
    EXPECT_EQ(hash(), hash(true));
    EXPECT_TRUE(fs::exists(note_));
}

TEST_F(SourceHash, ReadsOnlyASampleOfWhatLooksUnchanged)
{
    const auto first = hash();
    const auto time = fs::last_write_time(source_);
    flip_byte(source_, kUnsampled);
    fs::last_write_time(source_, time);

    EXPECT_EQ(hash(), first);
    EXPECT_EQ(hash_text(hash(true)), hash_file(source_));
    EXPECT_EQ(hash_text(hash()), hash_file(source_)) << "what was verified is noted";
}

TEST_F(SourceHash, FollowsEveryChangeOfTimeSizeOrSample)
{
    const auto time = fs::last_write_time(source_);
    hash();
    flip_byte(source_, kUnsampled);
    fs::last_write_time(source_, time + 1s);
    EXPECT_EQ(hash_text(hash()), hash_file(source_));

    for (const std::size_t position : {std::size_t{0}, std::size_t{65'535}, kSize - 65'536, kSize - 1}) {
        flip_byte(source_, static_cast<std::streamoff>(position));
        fs::last_write_time(source_, time + 1s);
        EXPECT_EQ(hash_text(hash()), hash_file(source_)) << position;
    }
    fs::resize_file(source_, kSize - 1);
    fs::last_write_time(source_, time + 1s);
    EXPECT_EQ(hash_text(hash()), hash_file(source_));
}

TEST_F(SourceHash, StaysWhereAFileIsOnlyTouched)
{
    const auto first = hash();
    fs::last_write_time(source_, fs::file_time_type::clock::now() - 30min);

    EXPECT_EQ(hash(), first);
}

TEST_F(SourceHash, TrustsNoFileOfTheLastSeconds)
{
    write_bytes(source_, std::string(kSize, 'y'));  // a second change within one tick of the clock keeps the time
    const auto time = fs::last_write_time(source_);
    hash();
    flip_byte(source_, kUnsampled);
    fs::last_write_time(source_, time);

    EXPECT_EQ(hash_text(hash()), hash_file(source_));
}

TEST_F(SourceHash, DoesWithoutANote)
{
    const auto first = hash();
    write_bytes(note_, "{\"state\": 3");
    EXPECT_EQ(hash(), first);
    write_bytes(note_, "[]");
    EXPECT_EQ(hash(), first);
    EXPECT_EQ(source_hash(source_, "/proc/no/such/note", false), first);
}

TEST_F(SourceHash, CoversThePiecesOfAnIndex)
{
    write_mesh(folder_ / "wing.pvtp", sphere(6));
    fs::path piece;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
        if (entry.path().extension() == ".vtp" && entry.path() != source_) piece = entry.path();
    ASSERT_FALSE(piece.empty());
    const auto first = source_hash(folder_ / "wing.pvtp", note_, false);

    flip_byte(piece, static_cast<std::streamoff>(fs::file_size(piece) / 2));

    EXPECT_NE(source_hash(folder_ / "wing.pvtp", note_, false), first);
}

class Shards : public testing::Test {
protected:
    Shards() { write_mesh(source_.file, strip(12)); }

    std::int64_t num_entries() const
    {
        std::int64_t count = 0;
        for (const auto& entry : fs::directory_iterator(cache_.folder)) count += is_shards_folder(entry.path());
        return count;
    }
    bool has_unfinished() const
    {
        for (const auto& entry : fs::directory_iterator(cache_.folder))
            if (entry.path().filename().string().find(".cutting-") != std::string::npos) return true;
        return false;
    }

    const TemporaryFolder folder_;
    const CaseSource source_{"1", folder_ / "boundary_1.vtp", {}};
    const ShardCache cache_{.folder = folder_ / "shards", .num_parts = 3};
};

TEST_F(Shards, AreCutOnce)
{
    const auto dir = prepare_shards(source_, cache_);
    const auto first = fs::last_write_time(dir / "manifest.json");

    EXPECT_EQ(prepare_shards(source_, cache_), dir);
    EXPECT_EQ(fs::last_write_time(dir / "manifest.json"), first);
    const auto manifest = read_manifest(dir);
    EXPECT_EQ(manifest.num_parts(), 3);
    EXPECT_EQ(manifest.num_cells, 12);
    EXPECT_EQ(manifest.info.source_hash, hash_file(source_.file));
    EXPECT_EQ(load_subdomains(dir).size(), 3U);
}

TEST_F(Shards, OfAnotherContentLieBesideTheOld)
{
    const auto dir = prepare_shards(source_, cache_);

    write_mesh(source_.file, strip(20));
    const auto next = prepare_shards(source_, cache_);

    EXPECT_EQ(read_manifest(next).num_cells, 20);
    EXPECT_EQ(read_manifest(dir).num_cells, 12);  // for who still reads it
}

TEST_F(Shards, OfOtherSettingsLieBesideEachOther)
{
    auto other = cache_;
    other.seed = 7;
    auto more = cache_;
    more.num_parts = 4;

    const auto a = prepare_shards(source_, cache_), b = prepare_shards(source_, other),
               c = prepare_shards(source_, more);

    EXPECT_EQ(num_entries(), 3);
    EXPECT_EQ(prepare_shards(source_, cache_), a);
    EXPECT_EQ(read_manifest(a).info.seed, 0);
    EXPECT_EQ(read_manifest(b).info.seed, 7);
    EXPECT_EQ(read_manifest(c).num_parts(), 4);
}

TEST_F(Shards, AreMadeAnewWhereTheyAreDamaged)
{
    const auto dir = prepare_shards(source_, cache_);
    const auto piece = dir / read_manifest(dir).parts[1].file;

    fs::remove(piece);
    EXPECT_EQ(prepare_shards(source_, cache_), dir);
    EXPECT_EQ(load_subdomains(dir).size(), 3U);
    fs::resize_file(piece, 100);
    prepare_shards(source_, cache_);
    EXPECT_EQ(load_subdomains(dir).size(), 3U);
    write_bytes(dir / "manifest.json", "{");
    prepare_shards(source_, cache_);
    EXPECT_EQ(load_subdomains(dir).size(), 3U);
}

TEST_F(Shards, OfAnEarlierVersionAreTakenOver)
{
    const auto dir = prepare_shards(source_, cache_);
    const auto piece = read_manifest(dir).parts[0].file;
    fs::rename(dir, cache_.folder / "1_in_3");
    const auto first = fs::last_write_time(cache_.folder / "1_in_3" / piece);

    EXPECT_EQ(prepare_shards(source_, cache_), dir);
    EXPECT_EQ(fs::last_write_time(dir / piece), first);
    EXPECT_FALSE(fs::exists(cache_.folder / "1_in_3"));

    // Of another content they stay, and are not used.
    fs::rename(dir, cache_.folder / "1_in_3");
    write_mesh(source_.file, strip(20));
    EXPECT_EQ(read_manifest(prepare_shards(source_, cache_)).num_cells, 20);
    EXPECT_TRUE(fs::exists(cache_.folder / "1_in_3"));
}

TEST_F(Shards, AreCutByWhoHoldsTheLock)
{
    const auto hash = hash_of(source_, cache_);
    const auto dir = shards_path(source_, hash, cache_);
    fs::create_directories(cache_.folder / "locks");
    auto lock = FileLock::try_acquire(cache_.folder / "locks" / dir.filename());
    ASSERT_TRUE(lock);

    EXPECT_FALSE(try_prepare_shards(source_, hash, cache_, [] { FAIL(); }));
    EXPECT_FALSE(fs::exists(dir));

    lock.reset();
    bool cuts = false;
    EXPECT_TRUE(try_prepare_shards(source_, hash, cache_, [&] { cuts = true; }));
    EXPECT_TRUE(cuts);
    const auto held = FileLock::try_acquire(cache_.folder / "locks" / dir.filename());
    EXPECT_TRUE(try_prepare_shards(source_, hash, cache_, [] { FAIL(); })) << "readers need no lock";
}

TEST_F(Shards, LeaveNothingOfADeadProcess)
{
    const auto dir = shards_path(source_, hash_of(source_, cache_), cache_);
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    const auto dead = dir.string() + ".cutting-" + host + "-99999.partial-99999";
    const auto elsewhere = dir.string() + ".cutting-of-another-host-1";  // its process may live
    fs::create_directories(dead + "/pieces");
    fs::create_directories(elsewhere);
    fs::create_directories(dir / "pieces");

    prepare_shards(source_, cache_);

    EXPECT_FALSE(fs::exists(dead));
    EXPECT_TRUE(fs::exists(elsewhere));
    EXPECT_EQ(load_subdomains(dir).size(), 3U);
}

TEST_F(Shards, OfABadSourceAreNotThere)
{
    write_bytes(source_.file, "no mesh");

    EXPECT_THROW(prepare_shards(source_, cache_), IoError);
    EXPECT_EQ(num_entries(), 0);
    EXPECT_FALSE(has_unfinished());
}

TEST_F(Shards, AreCutOnceByManyAtATime)
{
    std::vector<std::thread> threads;
    std::atomic<int> num_cuts = 0, num_done = 0;
    const auto hash = hash_of(source_, cache_);
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
            while (!try_prepare_shards(source_, hash, cache_, [&] { ++num_cuts; })) std::this_thread::sleep_for(1ms);
            ++num_done;
        });
    }
    for (auto& thread : threads) thread.join();

    EXPECT_EQ(num_cuts, 1);
    EXPECT_EQ(num_done, 8);
}

}  // namespace
}  // namespace meshard
