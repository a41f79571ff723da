// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/launch.h"

#include "partition/error.h"
#include "sharding/transport/device_transport.h"
#include "sharding/transport/host_address.h"
#include "sharding/transport/mpi_backend.h"
#include "sharding/transport/shared_memory_backend.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <future>
#include <limits>
#include <optional>
#include <thread>
#include <unistd.h>

namespace meshard {
namespace {

std::string environment(const char* name)
{
    const char* value = std::getenv(name);
    return value ? value : "";
}

int number(const char* variable)
{
    const auto text = environment(variable);
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
        throw LaunchError("launch: the environment variable {} is {}, expected a number up to {}. Start with torchrun, "
                          "srun, mpirun or --nproc, or set MESHARD_LAUNCH=single for one rank.",
                          variable, text.empty() ? "not set" : "'" + text + "'", std::numeric_limits<int>::max());
    }
    return value;
}

/// The value of MESHARD_TIMEOUT_SECONDS, if set.
std::optional<double> wanted_timeout()
{
    constexpr int kMost = 1'000'000;
    const auto text = environment("MESHARD_TIMEOUT_SECONDS");
    if (text.empty()) return std::nullopt;
    int seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error == std::errc() && end == text.data() + text.size() && seconds >= 1 && seconds <= kMost) return seconds;
    throw LaunchError("launch: the environment variable MESHARD_TIMEOUT_SECONDS is '{}', expected a whole "
                      "number of seconds from 1 to {}.",
                      text, kMost);
}

int number_or(const char* variable, int otherwise)
{
    return environment(variable).empty() ? otherwise : number(variable);
}

/// The script of a batch job also has SLURM_PROCID and the job's SLURM_NTASKS, but is one process; only srun sets the
/// variables of a step with several tasks.
bool is_started_by_srun()
{
    return !environment("SLURM_STEP_ID").empty() && number_or("SLURM_STEP_NUM_TASKS", number_or("SLURM_NTASKS", 1)) > 1;
}

/// First host of a SLURM node list such as `node[03-05,9],gpu1`.
std::string first_host(const std::string& list)
{
    const auto bracket = list.find('['), comma = list.find(',');
    if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
    const auto end = list.find_first_of(",-]", bracket);
    return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

/// A port outside the system's ephemeral range, the same for all ranks of a job.
std::string port_from(const std::string& job)
{
    std::uint32_t hash = 2166136261u;
    for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
    return std::to_string(20000 + hash % 10000);
}

std::string hostname()
{
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    return host;
}

LaunchError no_rendezvous(const LaunchInfo& info)
{
    return LaunchError(
        fmt::format("launch: {} ranks (from {}) need a rendezvous to find each other. Set MASTER_ADDR and MASTER_PORT "
                    "to the host of rank 0 and a free port, or MESHARD_RENDEZVOUS=file:///path/on/a/shared/disk.",
                    info.size, info.source));
}

}  // namespace

LaunchInfo detect_launch()
{
    const auto pinned = environment("MESHARD_LAUNCH");
    const auto wanted = [&](const char* kind, const char* variable) {
        return pinned == kind || (pinned.empty() && std::getenv(variable));
    };
    wanted_timeout();  // an invalid value must be reported before ranks are started
    LaunchInfo info;
    std::string host = environment("MASTER_ADDR"), port = environment("MASTER_PORT");

    if (!pinned.empty() && pinned != "env" && pinned != "slurm" && pinned != "ompi" && pinned != "pmi" &&
        pinned != "single") {
        throw LaunchError("launch: MESHARD_LAUNCH is '{}', expected env, slurm, ompi, pmi or single.", pinned);
    }
    if (wanted("env", "RANK") && (pinned == "env" || std::getenv("WORLD_SIZE"))) {
        info.source = "environment";
        info.rank = number("RANK");
        info.size = number("WORLD_SIZE");
        info.local_rank = number_or("LOCAL_RANK", info.rank);
    } else if (wanted("slurm", "SLURM_PROCID") && (pinned == "slurm" || is_started_by_srun())) {
        info.source = "slurm";
        info.rank = number("SLURM_PROCID");
        info.size = number_or("SLURM_STEP_NUM_TASKS", number_or("SLURM_NTASKS", 1));
        info.local_rank = number_or("SLURM_LOCALID", 0);
        if (host.empty()) host = first_host(environment("SLURM_JOB_NODELIST"));
        if (port.empty()) port = port_from(environment("SLURM_JOB_ID") + "." + environment("SLURM_STEP_ID"));
    } else if (wanted("ompi", "OMPI_COMM_WORLD_RANK")) {
        info.source = "openmpi";
        info.rank = number("OMPI_COMM_WORLD_RANK");
        info.size = number("OMPI_COMM_WORLD_SIZE");
        info.local_rank = number_or("OMPI_COMM_WORLD_LOCAL_RANK", 0);
        const bool one_host = number_or("OMPI_COMM_WORLD_LOCAL_SIZE", 0) == info.size;
        if (host.empty() && one_host) host = "127.0.0.1";
        if (port.empty())
            port = port_from(environment("PMIX_NAMESPACE") + environment("OMPI_MCA_ess_base_jobid") +
                             environment("OMPI_MCA_orte_hnp_uri"));
    } else if (wanted("pmi", "PMI_RANK")) {
        info.source = "pmi";
        info.rank = number("PMI_RANK");
        info.size = number("PMI_SIZE");
        info.local_rank = number_or("MPI_LOCALRANKID", 0);
        if (host.empty() && number_or("MPI_LOCALNRANKS", 0) == info.size) host = "127.0.0.1";
        if (port.empty()) port = port_from(environment("PMI_JOBID"));
    }

    if (info.source == "single" && pinned.empty() && environment("RANK").empty() != environment("WORLD_SIZE").empty()) {
        const bool has_rank = !environment("RANK").empty();
        throw LaunchError(
            "launch: the environment variable {} is '{}', and {} is not set, so that each process would be "
            "alone. Set both or neither, or MESHARD_LAUNCH=single for one rank.",
            has_rank ? "RANK" : "WORLD_SIZE", environment(has_rank ? "RANK" : "WORLD_SIZE"),
            has_rank ? "WORLD_SIZE" : "RANK");
    }
    if (info.size < 1 || info.rank < 0 || info.rank >= info.size) {
        throw LaunchError("launch: rank {} of {} (from {}) makes no sense; expected 0 <= rank < size.", info.rank,
                          info.size, info.source);
    }
    if (info.size > 1) {
        info.rendezvous = environment("MESHARD_RENDEZVOUS");
        if (info.rendezvous.empty()) {
            if (host.empty() || port.empty()) {
                if (info.source != "environment") return info;  // MPI may connect them without a rendezvous
                throw no_rendezvous(info);
            }
            info.rendezvous = "tcp://" + host + ":" + port;
        }
    }
    return info;
}

namespace {

bool has_met = false;     // whether the other ranks know this process, and will notice its end
bool is_cut_off = false;  // whether there was no way to the rendezvous

/// Ranks that meet in a store. They exchange messages through shared memory if all are on one host, otherwise over
/// Gloo; between GPUs over NCCL.
class StoreWorld : public World {
public:
    StoreWorld(const LaunchInfo& info, double timeout_seconds, const std::string& backend, c10::DeviceType device,
               const Facts& facts)
        : rank_(info.rank), size_(info.size), wanted_(backend), device_type_(device)
    {
        const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_seconds * 1000));
        timeout_ = timeout;
        connect_store(info, timeout);
        find_each_other(timeout_seconds, facts);
        shared_memory_ = wanted_ == "shm" || (wanted_ != "gloo" && on_one_host());
    }

    /// Writes the failure to the key under which other ranks look for this rank; not if another process with this RANK
    /// has written there, since the run goes on with that one.
    static void tell_failure(const LaunchInfo& info, const std::string& message)
    {
        StoreWorld world(info);
        world.connect_store(info, kLastWait);
        const auto failure = kFailed + message;
        if (world.store_->compareSet(fmt::format("rank.{}", info.rank), "", failure) == failure)
            world.wait_for_others_to_read();
    }

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    std::string backend_name() const override { return shared_memory_ ? "shm" : "gloo"; }

    Carrier carrier(const at::Device& device) override
    {
        return backends_.empty() ? World::carrier(device) : carrier_of(*backends_.front(), device);
    }

    RankGroup make_group(const std::vector<int>& ranks, const std::string& axis,
                         std::shared_ptr<CommCounter> counter) override
    {
        if (ranks.size() == 1) return RankGroup(nullptr, axis, std::move(counter));
        const auto index = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
        // The counter keeps groups of the same ranks apart.
        const auto prefix = fmt::format("{}#{}", fmt::join(ranks, ","), num_groups_[ranks]++);
        std::vector<std::string> names;
        for (const int r : ranks) names.push_back(names_[r]);
        try {
            const auto own_store = c10::make_intrusive<c10d::PrefixStore>(prefix, store_);
            const auto host = connect(own_store, index, names);
            auto backend = with_device_transports(host, own_store, timeout_, wanted_ == "nccl" ? wanted_ : "");
            if (backend == host && device_type_ != c10::DeviceType::CPU) backend = by_way_of_host(host);
            backends_.push_back(backend);
            return RankGroup(backend, axis, std::move(counter), std::move(names));
        } catch (const Error&) {
            throw;
        } catch (const std::exception& error) {
            throw CommunicationError("launch: rank {} could not connect to the other ranks of '{}' within {} s: {}",
                                     rank_, axis, timeout_.count() / 1000, first_line(error.what()));
        }
    }

    void finish() override
    {
        try {
            for (const auto& backend : backends_) backend->barrier({})->wait();
        } catch (const std::exception& error) {
            throw CommunicationError(
                "launch: rank {} waits for the others to end their work: {}. See the other ranks' messages.", rank_,
                first_line(error.what()));
        }
    }

private:
    explicit StoreWorld(const LaunchInfo& info) : rank_(info.rank), size_(info.size), device_type_(c10::DeviceType::CPU)
    {
    }

    static constexpr const char* kFailed = "failed ";  // written instead of a rank's hash
    static constexpr auto kLastWait = std::chrono::seconds(5);

    static std::string first_line(const std::string& text)
    {
        return text.substr(0, std::min<std::size_t>(text.find('\n'), 200));
    }

    /// LibTorch's own attempts to find a listener write stack traces, and take several times the limit; and it waits
    /// without end for an answer of a listener that is no store, here in a thread that is left behind then.
    static c10::intrusive_ptr<c10d::Store> client_store(const std::string& host, const c10d::TCPStoreOptions& options)
    {
        const auto end = std::chrono::steady_clock::now() + options.timeout;
        const auto why = wait_for_listener(host, options.port, end);
        if (!why.empty()) throw std::runtime_error(why);
        std::packaged_task<c10::intrusive_ptr<c10d::Store>()> connect(
            [host, options] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
        auto store = connect.get_future();
        std::thread(std::move(connect)).detach();
        if (store.wait_until(end) != std::future_status::ready) {
            throw std::runtime_error("what listens there does not answer as rank 0 does");
        }
        return store.get();
    }

    void connect_store(const LaunchInfo& info, std::chrono::milliseconds timeout)
    {
        const std::string& place = info.rendezvous;
        if (place.empty()) throw no_rendezvous(info);
        try {
            if (place.starts_with("file://")) {
                store_ = c10::make_intrusive<c10d::FileStore>(place.substr(7), size_);
                store_->setTimeout(timeout);
                return;
            }
            const auto colon = place.rfind(':');
            if (!place.starts_with("tcp://") || colon <= 5) {
                throw LaunchError("launch: the rendezvous is '{}', expected tcp://host:port or file:///path.", place);
            }
            c10d::TCPStoreOptions options;
            std::uint16_t port = 0;
            const auto [end, error] = std::from_chars(place.data() + colon + 1, place.data() + place.size(), port);
            if (error != std::errc() || end != place.data() + place.size() || port == 0) {
                throw LaunchError("launch: the port of the rendezvous {} must be a number from 1 to 65535.", place);
            }
            options.port = port;
            // torchrun's agent may serve the port itself; then rank 0 is a client like the others.
            options.isServer = rank_ == 0 && environment("TORCHELASTIC_USE_AGENT_STORE") != "True";
            options.waitWorkers = false;
            options.timeout = timeout;
            auto host = place.substr(6, colon - 6);
            address_ = address_towards(host);
            if (options.isServer)
                store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
            else
                store_ = client_store(host, options);
            if (!environment("TORCHELASTIC_RUN_ID").empty()) {
                store_ = c10::make_intrusive<c10d::PrefixStore>("meshard/" + environment("TORCHELASTIC_RUN_ID") + "/" +
                                                                    environment("TORCHELASTIC_RESTART_COUNT"),
                                                                store_);
            }
        } catch (const Error&) {
            throw;
        } catch (const std::exception& error) {
            is_cut_off = true;
            throw CommunicationError("launch: rank {} could not reach the rendezvous {} within {} s: {}. "
                                     "Is rank 0 running there, and is the port free?",
                                     rank_, place, timeout.count() / 1000, first_line(error.what()));
        }
    }

    /// Every rank writes a hash of its facts, its host and its process id to the store. The error names ranks that do
    /// not within the time limit; if a rank has other facts, all ranks throw RanksDisagree.
    void find_each_other(double timeout_seconds, const Facts& facts)
    {
        const bool is_of_agent = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
        const auto hash = std::to_string(hash_of(facts));
        const auto own = fmt::format("{}:{}", hostname(), getpid());
        const auto first = store_->compareSet(fmt::format("process.{}", rank_), "", own);
        if (first != own && !has_ended(first)) {
            throw LaunchError("launch: rank {} of {} is process {} already, and this one, {}, too. Give "
                              "each its own RANK, or the run a rendezvous of its own.",
                              rank_, size_, first, own);
        }
        if (const auto* file = dynamic_cast<c10d::FileStore*>(store_.get()); file && first != own) {
            throw LaunchError("launch: the rendezvous {} is that of an earlier run, whose rank {} was process "
                              "{}, which has ended. Remove the file, or name a new one.",
                              file->getPath(), rank_, first);
        }
        if (first != own) store_->set(fmt::format("process.{}", rank_), own);  // replaces the entry of an earlier run
        if (!address_.empty()) store_->set(fmt::format("address.{}", rank_), address_);
        store_->set(fmt::format("rank.{}", rank_), hash + " " + own);
        has_met = true;
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds);
        names_.resize(size_);
        std::string missing;
        do {
            if (!missing.empty()) usleep(2000);
            missing.clear();
            for (int r = 0; r < size_; ++r) {
                if (!names_[r].empty()) continue;
                auto text = read(fmt::format("rank.{}", r));
                const auto space = text.find(' ');
                // torchrun's store outlives a command, and a script may start several: entries of processes that have
                // ended are ignored.
                if (is_of_agent && space != std::string::npos && has_ended(text.substr(space + 1))) text.clear();
                if (text.starts_with(kFailed)) {
                    wait_for_others_to_read();
                    throw CommunicationError("launch: rank {} has failed: {}", r, text.substr(std::strlen(kFailed)));
                }
                if (text.empty())
                    missing += (missing.empty() ? "" : ", ") + std::to_string(r);
                else if (text.substr(0, space) == hash)
                    names_[r] = text.substr(space + 1);
                else
                    throw disagreement(facts);
            }
        } while (!missing.empty() && std::chrono::steady_clock::now() < deadline);
        if (missing.empty()) return;
        throw CommunicationError(
            "launch: rank {} of {} did not connect within {} s. See that rank's own messages, and whether "
            "its verb, RANK, MASTER_ADDR and MASTER_PORT are right.",
            missing, size_, static_cast<int>(timeout_seconds));
    }

    /// Called on every rank if facts differ: writes this rank's facts, and reads the others' that arrive within some
    /// seconds.
    RanksDisagree disagreement(const Facts& facts)
    {
        store_->set(fmt::format("facts.{}", rank_), pack(facts));
        std::vector<std::string> packed(size_);
        // Less than rank 0, which may serve the store, waits in the end for those that read.
        const auto deadline = std::chrono::steady_clock::now() + kLastWait / 2;
        for (int r = 0; r < size_; ++r) {
            while ((packed[r] = read(fmt::format("facts.{}", r))).empty() &&
                   std::chrono::steady_clock::now() < deadline)
                usleep(2000);
        }
        wait_for_others_to_read();
        return RanksDisagree(packed);
    }

    /// The text that a rank has written under `key`; empty if none.
    std::string read(const std::string& key) { return store_->check({key}) ? store_->get_to_str(key) : std::string(); }

    /// Rank 0, which may serve the store and is about to end, waits until all ranks have read the others' facts, or
    /// some seconds.
    void wait_for_others_to_read()
    {
        store_->set(fmt::format("read.{}", rank_), "1");
        if (rank_ != 0) return;
        const auto deadline = std::chrono::steady_clock::now() + kLastWait;
        for (int r = 0; r < size_; ++r) {
            while (!store_->check({fmt::format("read.{}", r)}) && std::chrono::steady_clock::now() < deadline)
                usleep(2000);
        }
    }

    c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int index,
                                              const std::vector<std::string>& names)
    {
        const auto size = static_cast<int>(names.size());
        if (shared_memory_) {
            if (auto backend = connect_shared_memory(store, index, size, timeout_,
                                                     [names](int rank) { return has_ended(names[rank]); }))
                return backend;
            if (wanted_ == "shm") {
                throw CommunicationError("launch: MESHARD_BACKEND=shm, but the ranks cannot see each other's memory; "
                                         "are they in different containers? "
                                         "Leave MESHARD_BACKEND unset for Gloo.");
            }
            shared_memory_ = false;
        }
        auto options = c10d::ProcessGroupGloo::Options::create_default(timeout_);
        options->devices = {device()};
        return c10::make_intrusive<c10d::ProcessGroupGloo>(store, index, size, options);
    }

    bool on_one_host() const
    {
        const auto host = hostname() + ":";
        return std::ranges::all_of(names_, [&](const std::string& name) { return name.starts_with(host); });
    }

    /// Finds the address by which the other ranks reach this one: that of its way to the rendezvous, and if that leads
    /// nowhere else, as on a host whose name stands for itself alone, that of its way to a rank elsewhere. Empty if no
    /// rank knows one.
    std::string address_for_others()
    {
        for (int r = 0; r < size_ && (address_.empty() || is_loopback(address_)); ++r) {
            const auto other = read(fmt::format("address.{}", r));
            if (!other.empty() && !is_loopback(other)) address_ = address_towards(other);
        }
        return address_;
    }

    std::shared_ptr<::gloo::transport::Device> device()
    {
        if (device_) return device_;
        const auto interface = environment("GLOO_SOCKET_IFNAME");
        if (!interface.empty())
            device_ = c10d::ProcessGroupGloo::createDeviceForInterface(interface, false);
        else if (const auto address = address_for_others(); !address.empty())
            device_ = c10d::ProcessGroupGloo::createDeviceForHostname(address, false);
        else if (on_one_host())
            device_ = c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1", false);
        else
            device_ = c10d::ProcessGroupGloo::createDefaultDevice(false);
        return device_;
    }

    int rank_;
    int size_;
    std::string wanted_;
    c10::DeviceType device_type_;  // type of the devices on which ranks compute
    bool shared_memory_ = false;
    std::chrono::milliseconds timeout_{};
    c10::intrusive_ptr<c10d::Store> store_;
    std::vector<std::string> names_;  // host:pid of each rank
    std::string address_;             // of this host on the way to the rendezvous
    std::shared_ptr<::gloo::transport::Device> device_;
    std::map<std::vector<int>, int> num_groups_;
    std::vector<c10::intrusive_ptr<c10d::Backend>> backends_;
};

class SingleWorld : public World {
public:
    int rank() const override { return 0; }
    int size() const override { return 1; }
    std::string backend_name() const override { return "none"; }
    void finish() override {}
    RankGroup make_group(const std::vector<int>&, const std::string& axis,
                         std::shared_ptr<CommCounter> counter) override
    {
        return RankGroup(nullptr, axis, std::move(counter));
    }
};

std::unique_ptr<World> connected_world(const LaunchInfo& info, double timeout_seconds, c10::DeviceType device,
                                       Facts facts)
{
    const auto backend = environment("MESHARD_BACKEND");
    if (!backend.empty() && backend != "shm" && backend != "gloo" && backend != "mpi" && backend != "nccl" &&
        backend != "auto") {
        throw LaunchError("launch: MESHARD_BACKEND is '{}', expected auto, shm, gloo, mpi or nccl.", backend);
    }
    if (info.size == 1) return std::make_unique<SingleWorld>();
    timeout_seconds = wanted_timeout().value_or(timeout_seconds);
    facts.emplace_back("the number of ranks", std::to_string(info.size));
    facts.emplace_back("the type of device (--device)", c10::DeviceTypeName(device, /*lower_case=*/true));
    for (auto& variable : own_environment()) facts.push_back(std::move(variable));

    const bool by_mpirun = info.source == "openmpi" || info.source == "pmi";
    const bool any = backend.empty() || backend == "auto";
    const bool over_mpi = backend == "mpi" || ((by_mpirun || info.source == "slurm") && any &&
                                               (device == c10::DeviceType::CPU || !why_no_transport(device).empty()));
    // Ranks of mpirun meet over MPI, whatever backend carries their messages: MESHARD_BACKEND is among the facts to
    // compare.
    if (over_mpi || by_mpirun) {
        if (auto world = connect_mpi(info, timeout_seconds, device, facts)) {
            has_met = true;
            if (over_mpi) return world;
            world->finish();
        } else if (backend == "mpi") {
            throw LaunchError("launch: messages are to go over MPI (parallel.backend or MESHARD_BACKEND), but MPI does "
                              "not see the {} ranks that {} started, or this build has no MPI. Start with mpirun, or "
                              "leave it to shared memory or Gloo.",
                              info.size,
                              info.source == "environment" ? "--nproc, torchrun or RANK and WORLD_SIZE" : info.source);
        }
    }
    return std::make_unique<StoreWorld>(info, timeout_seconds, backend, device, facts);
}

}  // namespace

void report_failure_to_ranks(const std::string& message)
{
    try {
        const auto info = has_met || is_cut_off ? LaunchInfo() : detect_launch();
        const bool has_own_store =
            info.rendezvous.starts_with("tcp://") && environment("TORCHELASTIC_USE_AGENT_STORE") != "True";
        if (has_own_store && (info.source == "environment" || info.source == "slurm"))
            StoreWorld::tell_failure(info, message);
    } catch (const std::exception&) {
        // No other rank can be reached.
    }
}

Carrier World::carrier(const at::Device& device)
{
    return {backend_name(), !device.is_cpu() && size() > 1};
}

std::unique_ptr<World> World::connect(const LaunchInfo& info, double timeout_seconds, at::Device device, Facts facts)
{
    auto world = connected_world(info, timeout_seconds, device.type(), std::move(facts));
    world->device_ = device;
    return world;
}

}  // namespace meshard
