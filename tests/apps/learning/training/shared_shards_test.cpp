// SPDX-License-Identifier: Apache-2.0
// Runs that share a folder of shards: at once, after one that was killed, on full and read-only disks, waiting for each
// other.
#include "io/bytes/file_lock.h"
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <unistd.h>

namespace meshard {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

class SharedShards : public ProgramTest {
protected:
    static constexpr int kNumCases = 4;

    SharedShards()
    {
        for (int i = 0; i < kNumCases; ++i) write_case(i, 8 + i);  // the last one is the largest
        write_text("body.yaml", "data:\n"
                                "  root: " +
                                    path("") +
                                    "\n"
                                    "  surface: body_*.vtp\n"
                                    "  split: {train: ['0', '1', '2'], val: ['3']}\n"
                                    "  fields: {pressure: pMean}\n"
                                    "  parts: 2\n"
                                    "  shards: " +
                                    shards() +
                                    "\n"
                                    "model: {n_layers: 1, n_hidden: 16, n_head: 2, mlp_ratio: 2, slice_num: 8}\n"
                                    "training: {num_epochs: 2}\n"
                                    "output_dir: " +
                                    path("runs") + "\n");
    }

    std::string shards() const { return path("shards"); }

    void write_case(int id, int num_rings) const
    {
        auto mesh = sphere(num_rings);
        std::vector<float> pressure;
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i) pressure.push_back(static_cast<float>(i % (id + 5)));
        mesh.point_data.clear();
        mesh.cell_data = {DataArray::from("pMean", pressure)};
        write("body_" + std::to_string(id) + ".vtp", mesh);
    }

    std::vector<std::string> words(const std::string& run, const std::vector<std::string>& more) const
    {
        std::vector<std::string> words{"train", path("body.yaml"), "run_id=" + run};
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }
    ProgramResult train(const std::string& run, const std::vector<std::string>& more = {},
                        const ProgramOptions& options = {}) const
    {
        return meshard(words(run, more), options);
    }

    std::vector<json> losses(const std::string& run) const
    {
        std::vector<json> losses;
        std::istringstream file(content_of(path("runs/" + run + "/metrics.jsonl")));
        for (std::string text; std::getline(file, text);) {
            const auto line = json::parse(text);
            if (line["phase"] == "train_step") losses.push_back(line["loss"]);
        }
        return losses;
    }

    /// All that lies beside the locks, what is known of the sources, and the store.
    static std::vector<fs::path> entries_of(const fs::path& folder)
    {
        std::vector<fs::path> found;
        for (const auto& entry : fs::directory_iterator(folder)) {
            const auto name = entry.path().filename();
            if (name != "locks" && name != "sources" && name != "store") found.push_back(entry.path());
        }
        std::ranges::sort(found);
        return found;
    }
    static void expect_whole(const std::vector<fs::path>& entries)
    {
        for (const auto& entry : entries) EXPECT_EQ(meshard({"check", entry}).exit_code, 0) << entry;
    }

    /// The lock of a case that has been cut, whose shards are taken away.
    FileLock lock_of_uncut(const std::string& id) const
    {
        for (const auto& entry : entries_of(shards())) {
            if (!entry.filename().string().starts_with(id + "-")) continue;
            fs::remove_all(entry);
            auto lock = FileLock::try_acquire(fs::path(shards()) / "locks" / entry.filename());
            if (lock) return std::move(*lock);
        }
        throw std::runtime_error("no lock of case " + id);
    }
};

/// As `fails_with`, where lines of progress may come before.
testing::AssertionResult ends_with(ProgramResult result, int exit_code, const std::vector<std::string>& texts)
{
    const auto last_line = result.err.rfind('\n', result.err.empty() ? 0 : result.err.size() - 2);
    if (last_line != std::string::npos) result.err.erase(0, last_line + 1);
    return fails_with(result, exit_code, texts);
}

TEST_F(SharedShards, AreCutOnceByEqualRunsAtOnce)
{
    for (const char* num_ranks : {"1", "2"}) {
        ASSERT_EQ(train(std::string("alone") + num_ranks,
                        {"--nproc", num_ranks, "data.shards=" + path(std::string("own") + num_ranks)})
                      .exit_code,
                  0);
        fs::remove_all(shards());
        std::vector<std::future<ProgramResult>> runs;
        for (const char* run : {"a", "b", "c", "d"}) {
            runs.push_back(std::async(
                std::launch::async, [=, this] { return train(std::string(run) + num_ranks, {"--nproc", num_ranks}); }));
        }
        for (auto& run : runs) {
            const auto result = run.get();
            EXPECT_EQ(result.exit_code, 0) << result.err;
        }
        EXPECT_EQ(entries_of(shards()).size(), kNumCases);
        expect_whole(entries_of(shards()));
        for (const char* run : {"a", "b", "c", "d"})
            EXPECT_EQ(losses(std::string(run) + num_ranks), losses(std::string("alone") + num_ranks)) << run;
    }
}

TEST_F(SharedShards, OfDifferentSeedsAndPartsLiveSideBySide)
{
    const std::vector<std::vector<std::string>> settings{
        {"seed=1"}, {"seed=2"}, {"data.parts=3"}, {"seed=1", "data.parts=5", "--nproc", "2"}};
    std::vector<std::future<ProgramResult>> runs;
    for (std::size_t i = 0; i < settings.size(); ++i) {
        runs.push_back(
            std::async(std::launch::async, [=, this] { return train("run" + std::to_string(i), settings[i]); }));
    }
    for (auto& run : runs) {
        const auto result = run.get();
        EXPECT_EQ(result.exit_code, 0) << result.err;
    }
    const auto entries = entries_of(shards());
    ASSERT_EQ(entries.size(), 4U * kNumCases);
    expect_whole(entries);

    std::vector<fs::file_time_type> times;
    for (const auto& entry : entries) times.push_back(fs::last_write_time(entry / "manifest.json"));
    for (std::size_t i = 0; i < settings.size(); ++i)
        ASSERT_EQ(train("again" + std::to_string(i), settings[i]).exit_code, 0);
    EXPECT_EQ(entries_of(shards()), entries);
    for (std::size_t i = 0; i < entries.size(); ++i)
        EXPECT_EQ(fs::last_write_time(entries[i] / "manifest.json"), times[i]) << "cut again: " << entries[i];
}

TEST_F(SharedShards, SurviveKilledCutters)
{
    write_case(3, 250);  // cutting takes a second
    const std::vector<std::string> settings{"--validate", "data.split.train=['3']", "data.split.val=['0']"};
    struct Moment {
        std::string awaited;  ///< a file in the folder of shards
        std::string delay;    ///< seconds after it is there
    };
    int num_cut_short = 0;
    for (const auto& [awaited, delay] : std::vector<Moment>{{"locks/3-*", "0"},
                                                            {"locks/3-*", "0.1"},
                                                            {"locks/3-*", "0.3"},
                                                            {"locks/3-*", "0.6"},
                                                            {"3-*.cutting-*", "0"},
                                                            {"3-*.cutting-*", "0.01"}}) {
        fs::remove_all(shards());
        const auto num_ranks = num_cut_short % 2 ? "2" : "1";
        const auto result = run_program(
            "/bin/bash",
            {"-c", program_path() + " train " + path("body.yaml") +
                       " run_id=killed --validate \"data.split.train=['3']\" \"data.split.val=['0']\" --nproc " +
                       num_ranks +
                       " & run=$!\n"
                       "until compgen -G '" +
                       shards() + "/" + awaited +
                       "'; do kill -0 $run || exit; done\n"
                       "sleep " +
                       delay + "; kill -9 $(pgrep -P $run) $run; wait $run; echo code $?"});
        EXPECT_NE(result.out.find("code"), std::string::npos) << awaited << " was never seen\n" << result.err;
        const auto left = entries_of(shards());
        num_cut_short += left.empty() || left.front().filename().string().find(".cutting-") != std::string::npos;

        const auto next = train("next", settings);
        ASSERT_EQ(next.exit_code, 0) << next.err;
        ASSERT_EQ(entries_of(shards()).size(), 1U) << "left: " << entries_of(shards())[1];
        expect_whole(entries_of(shards()));
    }
    EXPECT_GE(num_cut_short, 2);
}

TEST_F(SharedShards, AreWaitedForBeyondTheTimeLimitOfRanks)
{
    ASSERT_EQ(train("first").exit_code, 0);
    // Of two ranks the first takes the largest case and the smallest, the second the others.
    std::optional lock(lock_of_uncut("2"));
    setenv("MESHARD_TIMEOUT_SECONDS", "5", 1);
    const auto begin = Clock::now();
    ProgramOptions options;
    options.interrupt_when = [&] {  // asked again and again
        if (Clock::now() > begin + 15s) lock.reset();
        return false;
    };

    const auto result = train("second", {"--nproc", "2"}, options);
    unsetenv("MESHARD_TIMEOUT_SECONDS");

    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_GT(Clock::now() - begin, 15s);
    EXPECT_NE(result.err.find("waiting for rank 1, which waits for another run that cuts body_2.vtp"),
              std::string::npos)
        << result.err;
    EXPECT_EQ(losses("second").size(), 6U);
}

TEST_F(SharedShards, AreNotWaitedForWhenTheirCutterDies)
{
    ASSERT_EQ(train("first").exit_code, 0);
    const auto lock = lock_of_uncut("2");
    for (const char* victim : {"head", "tail"}) {  // rank 0, rank 1
        const std::string script = program_path() + " train " + path("body.yaml") +
                                   " run_id=second --nproc 2 & launcher=$!\n" + "until grep -q waits " + path("err") +
                                   "; do sleep 0.1; done\n"
                                   "kill -9 $(pgrep -P $launcher | " +
                                   victim + " -n 1); SECONDS=0; wait $launcher; echo \"code $? after $SECONDS\"\n";
        const auto result =
            run_program("/usr/bin/timeout", {"120", "/bin/bash", "-c", "{ " + script + "} 2> " + path("err")});

        EXPECT_NE(result.out.find("code 5 after "), std::string::npos) << result.out << content_of(path("err"));
        EXPECT_LT(std::stoi(result.out.substr(result.out.find("after ") + 6)), 30) << result.out;
        EXPECT_NE(
            content_of(path("err"))
                .find(std::string("rank ") + (victim == std::string("head") ? "0" : "1") + " was killed by signal 9"),
            std::string::npos)
            << content_of(path("err"));
        fs::remove(path("err"));
    }
}

TEST_F(SharedShards, AreNotWaitedForAfterCtrlC)
{
    ASSERT_EQ(train("first").exit_code, 0);
    const auto lock = lock_of_uncut("2");
    for (const char* num_ranks : {"1", "2"}) {
        const auto begin = Clock::now();
        ProgramOptions options;
        options.interrupt_when = [&] { return Clock::now() > begin + 5s; };

        const auto result = train("second", {"--nproc", num_ranks}, options);

        EXPECT_EQ(result.exit_code, 130) << result.err;
        EXPECT_LT(Clock::now() - begin, 15s);
    }
}

TEST_F(SharedShards, AreNotWaitedForWhenASourceIsBad)
{
    write_text("body_2.vtp", "no mesh");
    for (const char* num_ranks : {"1", "2"}) {
        EXPECT_TRUE(ends_with(train("run", {"--nproc", num_ranks}), 3, {"body_2.vtp"}));
    }
}

TEST_F(SharedShards, AreNotThereAfterAFullDisk)
{
    write_case(3, 60);
    for (const char* num_ranks : {"1", "2"}) {
        fs::remove_all(shards());
        EXPECT_TRUE(ends_with(
            train("run", {"--nproc", num_ranks, "--validate", "data.split.train=['3']", "data.split.val=['0']"},
                  full_disk()),
            3, {"3-", "cannot write"}));
        EXPECT_TRUE(entries_of(shards()).empty());
        EXPECT_EQ(train("run", {"--nproc", num_ranks, "--validate", "data.split.train=['3']", "data.split.val=['0']"})
                      .exit_code,
                  0);
    }
}

TEST_F(SharedShards, OnAReadOnlyDiskAreUsedWhereTheyAreComplete)
{
    ASSERT_EQ(train("first").exit_code, 0);
    fs::create_directory(path("out"));
    fs::permissions(path("out"), fs::perms::all);
    // For root no file is read-only.
    const auto as_somebody = [&](const std::vector<std::string>& more) {
        auto arguments = words("run", {"output_dir=" + path("out"), "--overwrite"});
        arguments.insert(arguments.end(), more.begin(), more.end());
        if (geteuid() != 0) return meshard(arguments);
        arguments.insert(arguments.begin(), {"--reuid=65534", "--regid=65534", "--clear-groups", program_path()});
        return run_program("/usr/bin/setpriv", arguments);
    };
    for (const auto& entry : fs::recursive_directory_iterator(shards()))
        fs::permissions(entry, fs::perms::owner_write | fs::perms::group_write | fs::perms::others_write,
                        fs::perm_options::remove);
    fs::permissions(shards(), fs::perms::owner_write, fs::perm_options::remove);

    for (const char* num_ranks : {"1", "2"}) {
        const auto result = as_somebody({"--nproc", num_ranks});
        EXPECT_EQ(result.exit_code, 0) << result.err;
        const auto refused = as_somebody({"--nproc", num_ranks, "seed=5"});
        EXPECT_TRUE(ends_with(refused, 3, {"has no shards in " + shards(), "seed 5", "Set data.shards"}));
    }
    fs::permissions(shards(), fs::perms::owner_write, fs::perm_options::add);
    for (const auto& entry : fs::recursive_directory_iterator(shards()))
        fs::permissions(entry, fs::perms::owner_write, fs::perm_options::add);
}

TEST_F(SharedShards, AreCutOnEachHostOfItsOwnDisk)
{
    ASSERT_EQ(train("one_host", {"--nproc", "2"}).exit_code, 0);
    // Two hosts, as far as their disks go.
    const auto as_rank = [&](int rank, const std::string& more) {
        return "RANK=" + std::to_string(rank) + " WORLD_SIZE=2 MESHARD_LAUNCH=env MESHARD_RENDEZVOUS=file://" +
               path("store") + " timeout 120 " + program_path() + " train " + path("body.yaml") +
               " run_id=two_hosts --overwrite data.shards=" + path("host" + std::to_string(rank)) + " " + more;
    };
    const auto both = [&](const std::string& more_of_second) {
        fs::remove(path("store"));
        return run_program("/bin/bash", {"-c", as_rank(0, "") + " & " + as_rank(1, more_of_second) +
                                                   "; echo code $?; wait $!; echo code $?"});
    };

    const auto result = both("");
    EXPECT_EQ(result.out, "code 0\ncode 0\n") << result.err;
    EXPECT_EQ(entries_of(path("host0")).size(), kNumCases);
    EXPECT_EQ(entries_of(path("host1")).size(), kNumCases);
    EXPECT_EQ(losses("two_hosts"), losses("one_host"));

    fs::create_directory(path("other"));
    for (int i = 0; i < kNumCases; ++i) fs::copy(path("body_" + std::to_string(i) + ".vtp"), path("other"));
    fs::copy(path("body_1.vtp"), path("other/body_2.vtp"), fs::copy_options::overwrite_existing);
    const auto refused = both("data.root=" + path("other"));
    EXPECT_EQ(refused.out, "code 2\ncode 2\n") << refused.err;
    EXPECT_NE(refused.err.find("the ranks were started differently: data.root is '"), std::string::npos) << refused.err;
}

TEST_F(SharedShards, AreComparedWithWholeSourcesWhenAsked)
{
    write_case(3, 150);  // larger than its sample
    const auto source = path("body_3.vtp");
    const auto time = fs::file_time_type::clock::now() - 1h;
    fs::last_write_time(source, time);
    ASSERT_EQ(train("first").exit_code, 0);
    ASSERT_EQ(entries_of(shards()).size(), kNumCases);
    auto bytes = content_of(source);
    const float values[] = {3, 4, 5, 6, 7, 0, 1, 2};  // of pMean
    const std::string_view sought(reinterpret_cast<const char*>(values), sizeof values);
    const auto stride = (bytes.size() - 65'536) / 15;
    ASSERT_GT(stride, 100'000U);
    std::size_t place = 0;
    for (std::size_t sample = 0; sample < 15 && place == 0; ++sample) {  // behind each sampled block
        const auto found = bytes.find(sought, sample * stride + 65'536);
        if (found < (sample + 1) * stride - sizeof values) place = found;
    }
    ASSERT_GT(place, 0U);
    bytes[place] ^= 1;
    write_text("body_3.vtp", bytes);
    fs::last_write_time(source, time);

    ASSERT_EQ(train("second").exit_code, 0);
    EXPECT_EQ(entries_of(shards()).size(), kNumCases);
    ASSERT_EQ(train("third", {"--verify-sources"}).exit_code, 0);
    EXPECT_EQ(entries_of(shards()).size(), kNumCases + 1);
}

}  // namespace
}  // namespace meshard
