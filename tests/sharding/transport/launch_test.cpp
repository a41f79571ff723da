// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/transport/host_address.h"
#include "sharding/transport/launch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace meshard {
namespace {

/// Exactly these launch variables are set while the object lives, none of them after.
class Environment {
public:
    explicit Environment(const std::map<std::string, std::string>& variables)
    {
        clear();
        for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    }
    ~Environment() { clear(); }

private:
    static void clear()
    {
        for (const char* name : {"RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "MESHARD_LAUNCH",
                                 "MESHARD_RENDEZVOUS",
                                 "SLURM_PROCID",
                                 "SLURM_NTASKS",
                                 "SLURM_LOCALID",
                                 "SLURM_JOB_NODELIST",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEP_NUM_TASKS",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "PMI_RANK",
                                 "PMI_SIZE"}) {
            unsetenv(name);
        }
    }
};

TEST(Launch, IsOneRankWithoutALauncher)
{
    const Environment environment({});
    const auto info = detect_launch();

    EXPECT_EQ(info.size, 1);
    EXPECT_EQ(info.source, "single");
}

TEST(Launch, ReadsWhatTorchrunSets)
{
    const Environment environment(
        {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29501"}});
    const auto info = detect_launch();

    EXPECT_EQ(info.rank, 3);
    EXPECT_EQ(info.size, 8);
    EXPECT_EQ(info.local_rank, 1);
    EXPECT_EQ(info.rendezvous, "tcp://node7:29501");
}

TEST(Launch, FindsTheMasterInASlurmNodeList)
{
    for (const auto& [list, first] : std::map<std::string, std::string>{
             {"node[03-05,9],gpu1", "node03"}, {"gpu1,gpu2", "gpu1"}, {"n[7,8]", "n7"}, {"solo", "solo"}}) {
        const Environment environment({{"SLURM_PROCID", "1"},
                                       {"SLURM_NTASKS", "4"},
                                       {"SLURM_LOCALID", "1"},
                                       {"SLURM_JOB_NODELIST", list},
                                       {"SLURM_JOB_ID", "77"},
                                       {"SLURM_STEP_ID", "0"}});
        const auto info = detect_launch();

        EXPECT_EQ(info.source, "slurm");
        EXPECT_EQ(info.rendezvous.substr(0, 6 + first.size() + 1), "tcp://" + first + ":");
    }
}

/// A batch job's script has most of what srun gives to the ranks that it starts.
TEST(Launch, TakesTheScriptOfABatchJobForOneProcess)
{
    std::vector<std::pair<const char*, std::string>> variables{{"SLURM_PROCID", "0"},
                                                               {"SLURM_NTASKS", "4"},
                                                               {"SLURM_LOCALID", "0"},
                                                               {"SLURM_JOB_NODELIST", "node[1-4]"},
                                                               {"SLURM_JOB_ID", "77"}};
    {
        const Environment environment({variables.begin(), variables.end()});
        EXPECT_EQ(detect_launch().size, 1);
    }
    variables.insert(variables.end(), {{"SLURM_STEP_ID", "2"}, {"SLURM_STEP_NUM_TASKS", "3"}});
    const Environment environment({variables.begin(), variables.end()});
    EXPECT_EQ(detect_launch().size, 3);
}

TEST(Launch, ReadsWhatMpirunSets)
{
    const Environment environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
    const auto info = detect_launch();

    EXPECT_EQ(info.source, "openmpi");
    EXPECT_EQ(info.rank, 1);
    EXPECT_EQ(info.rendezvous.substr(0, 16), "tcp://127.0.0.1:");
}

TEST(Launch, NamesTheVariableThatIsNoNumber)
{
    const Environment environment({{"RANK", "two"}, {"WORLD_SIZE", "4"}});
    try {
        detect_launch();
        ADD_FAILURE() << "read 'two' as a number";
    } catch (const InvalidInput& error) {
        EXPECT_NE(std::string(error.what()).find("RANK is 'two', expected a number"), std::string::npos)
            << error.what();
    }
}

TEST(Launch, SaysThatRanksNeedAPlaceToMeet)
{
    const Environment environment({{"RANK", "0"}, {"WORLD_SIZE", "4"}});
    try {
        detect_launch();
        ADD_FAILURE() << "accepted ranks without a rendezvous";
    } catch (const InvalidInput& error) {
        EXPECT_NE(std::string(error.what()).find("MASTER_ADDR and MASTER_PORT"), std::string::npos) << error.what();
    }
}

TEST(Launch, RefusesHalfOfWhatTorchrunSets)
{
    for (const char* variable : {"RANK", "WORLD_SIZE"}) {
        {
            const Environment environment(std::map<std::string, std::string>{{variable, "1"}});
            EXPECT_THROW(detect_launch(), LaunchError);
        }
        const Environment environment(
            std::map<std::string, std::string>{{variable, "1"}, {"MESHARD_LAUNCH", "single"}});
        EXPECT_EQ(detect_launch().size, 1);
    }
}

TEST(HostAddress, IsThatOfTheWay)
{
    EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
    EXPECT_TRUE(is_loopback(address_towards("localhost")));
    EXPECT_FALSE(is_loopback("10.0.0.1"));
    EXPECT_EQ(address_towards("no-such-host.invalid"), "");
}

TEST(HostAddress, IsWaitedForUntilAProcessListens)
{
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof place;
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&place), size), 0);
    ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&place), &size), 0);
    const auto wait = [&](std::chrono::milliseconds most) {
        return wait_for_listener("127.0.0.1", ntohs(place.sin_port), std::chrono::steady_clock::now() + most);
    };
    EXPECT_EQ(wait(std::chrono::milliseconds(100)), "Connection refused");
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        listen(listener, 1);
    });
    EXPECT_EQ(wait(std::chrono::seconds(60)), "");
    later.join();
    close(listener);
}

TEST(World, ConnectsOverGloo)
{
    auto pattern = (std::filesystem::temp_directory_path() / "meshard-launch-XXXXXX").string();
    ASSERT_TRUE(mkdtemp(pattern.data()));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&, rank] {
            const auto world = World::connect({rank, 3, rank, "environment", "file://" + pattern + "/store"}, 30);
            {
                const auto mesh = DeviceMesh::create(*world, {3}, {"domain"});
                auto sum = at::full({4}, rank + 1.0);
                mesh->group(0).all_reduce(sum);
                EXPECT_EQ(sum[3].item<float>(), 6);

                const std::vector<std::int64_t> send{1, 0, 2};  // to rank 0, 1, 2; the same on every rank
                const std::vector<std::int64_t> receive(3, send[rank]);
                const auto received = mesh->group(0).all_to_all_rows(at::full({3, 2}, rank, at::kLong), send, receive);
                EXPECT_EQ(received.size(0), 3 * send[rank]);
                if (send[rank] > 0) {
                    EXPECT_EQ(received[-1][0].item<std::int64_t>(), 2);
                }
                const auto rows = mesh->group(0).all_gather_rows(at::full({rank, 1}, rank, at::kDouble),
                                                                 std::vector<std::int64_t>{0, 1, 2});
                EXPECT_EQ(rows.size(0), 3);
            }
            world->finish();
        });
    }
    for (auto& rank : ranks) rank.join();
    std::filesystem::remove_all(pattern);
}

TEST(World, RefusesAnUnknownBackendOnOneRank)
{
    setenv("MESHARD_BACKEND", "glue", 1);
    EXPECT_THROW(World::connect(LaunchInfo()), LaunchError);
    unsetenv("MESHARD_BACKEND");
}

TEST(World, SaysAtItsEndThatARankLeftWithoutOne)
{
    for (const char* backend : {"shm", "gloo"}) {
        setenv("MESHARD_BACKEND", backend, 1);
        auto pattern = (std::filesystem::temp_directory_path() / "meshard-launch-XXXXXX").string();
        ASSERT_TRUE(mkdtemp(pattern.data()));
        std::vector<std::thread> ranks;
        for (int rank = 0; rank < 2; ++rank) {
            ranks.emplace_back([&, rank] {
                const auto world = World::connect({rank, 2, rank, "environment", "file://" + pattern + "/store"}, 30);
                const auto mesh = DeviceMesh::create(*world, {2}, {"domain"});
                if (rank == 0) {
                    EXPECT_THROW(world->finish(), CommunicationError) << backend;
                }
            });
        }
        for (auto& rank : ranks) rank.join();
        std::filesystem::remove_all(pattern);
    }
    unsetenv("MESHARD_BACKEND");
}

TEST(World, NamesWhatRanksDoNotHaveInCommon)
{
    auto pattern = (std::filesystem::temp_directory_path() / "meshard-launch-XXXXXX").string();
    ASSERT_TRUE(mkdtemp(pattern.data()));
    const auto told = [&](int rank, const Facts& facts) -> std::string {
        try {
            World::connect({rank, 3, rank, "environment", "file://" + pattern + "/store"}, 30, at::kCPU, facts);
            return "";
        } catch (const RanksDisagree& error) {
            return error.what();
        }
    };
    const std::vector<Facts> facts{{{"a", "1"}, {"lr", "1e-3"}, {"b", "x"}},
                                   {{"b", "y"}, {"lr", "1e-4"}, {"a", "1"}},
                                   {{"a", "1"}, {"lr", "1e-3"}}};
    std::vector<std::string> texts(3);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) ranks.emplace_back([&, rank] { texts[rank] = told(rank, facts[rank]); });
    for (auto& rank : ranks) rank.join();

    for (const auto& text : texts)
        EXPECT_NE(text.find(": lr is '1e-3' on ranks 0, 2 and '1e-4' on rank 1. "), std::string::npos) << text;
    std::filesystem::remove_all(pattern);
}

TEST(World, NamesAValueThatOnlySomeRanksHave)
{
    const std::vector<std::string> packed{pack({{"a", "1"}}), "", pack({{"a", "1"}, {"b", ""}}), pack({{"a", "1"}})};
    EXPECT_EQ(std::string(RanksDisagree(packed).what()).substr(0, 84),
              "the ranks were started differently: b is not set on ranks 0, 3 and '' on rank 2. Sta");
    EXPECT_EQ(hash_of({{"a", "1"}, {"b", "2"}}), hash_of({{"b", "2"}, {"a", "1"}}));
    EXPECT_NE(hash_of({{"a", "1"}, {"b", "2"}}), hash_of({{"a", "2"}, {"b", "1"}}));
}

TEST(World, NamesTheRankThatDoesNotCome)
{
    auto pattern = (std::filesystem::temp_directory_path() / "meshard-launch-XXXXXX").string();
    ASSERT_TRUE(mkdtemp(pattern.data()));
    try {
        World::connect({0, 2, 0, "environment", "file://" + pattern + "/store"}, 0.3);
        ADD_FAILURE() << "connected to nobody";
    } catch (const CommunicationError& error) {
        EXPECT_NE(std::string(error.what()).find("rank 1 of 2 did not connect"), std::string::npos) << error.what();
    }
    std::filesystem::remove_all(pattern);
}

}  // namespace
}  // namespace meshard
