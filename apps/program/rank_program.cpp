// SPDX-License-Identifier: Apache-2.0
#include "apps/program/rank_program.h"

#include "apps/console/error_text.h"
#include "apps/console/freed_memory.h"
#include "apps/console/text_table.h"
#include "apps/devices/rank_device.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "io/bytes/interruption.h"
#include "partition/lists.h"
#include "partition/run_on_threads.h"
#include "sharding/memory/tensor_memory.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <cstdlib>
#include <iostream>
#include <sys/resource.h>
#include <vector>

namespace meshard {
namespace {

/// Prints LibTorch's warnings, and those of operators, as the program's own.
class WarningsOfVerb : public c10::WarningHandler {
public:
    explicit WarningsOfVerb(std::string verb) : verb_(std::move(verb)) {}
    void process(const c10::Warning& warning) override { warn(verb_, without_function_name(warning.msg())); }

private:
    std::string verb_;
};

int run_as_rank(const LaunchInfo& info, const std::string& verb, const std::function<int(World& world)>& body,
                const std::string& device_name)
{
    if (info.size > 1 && !std::getenv("OMP_NUM_THREADS")) at::set_num_threads(1);
    // The backward pass runs in this thread, with its settings and its device, and not in autograd's thread for the
    // device.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    WarningsOfVerb warnings(verb);
    const c10::WarningUtils::WarningHandlerGuard handler(&warnings);
    at::globalContext().setAllowTF32CuBLAS(false);  // overrides the variable TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
    try {
        const auto device = device_of_rank(device_name, info);
        const c10::DeviceGuard current(device);
        try {
            const auto world = World::connect(info, kTimeoutSeconds, device, facts_of_command());
            const int code = body(*world);
            world->finish();
            return code;
        } catch (const CommunicationError&) {
            throw_if_interrupted();  // the same interruption may have ended another rank first
            throw;
        }
    } catch (const FailedElsewhere&) {
        // mpirun ends all ranks at the first other code, perhaps before the rank that failed has reported its error.
        return exit_code::ok;
    } catch (const std::exception& error) {
        const int code = exit_code_of_current_error();
        if (code == exit_code::interrupted) {  // an interruption reaches every rank, so only one reports it
            show_progress("");
            if (info.rank == 0) std::cerr << "meshard " << verb << ": " << error_text(error) << std::endl;
            return code;
        }
        if (report_failure_to_launcher(fmt::format("meshard {}: {}", verb, without_function_name(error_text(error))),
                                       code == exit_code::ranks))
            return code;
        throw;
    }
}

/// Memory that a process of this program needs before it has read any data, in bytes.
struct RankMemory {
    std::uint64_t own = 0;     // not shared with other processes
    std::uint64_t mapped = 0;  // address space, including that of a few threads
};

RankMemory memory_of_rank()
{
    constexpr std::uint64_t kThreads = 160 << 20, kMessages = 4 << 20;
    const auto kilobytes = [](const char* file, std::string_view key) {
        return 1024 * static_cast<std::uint64_t>(number_in_file(file, key).value_or(0));
    };
    return {kilobytes("/proc/self/smaps_rollup", "Private_Dirty:") + kMessages,
            kilobytes("/proc/self/status", "VmSize:") + kThreads};
}

/// Whether ranks may be forks of this process, which saves each the half second in which LibTorch loads: a driver of a
/// GPU does not survive a fork, nor do threads that compute. `end_well_on_interruption` has one thread beside this one.
bool can_fork(const at::Device& device)
{
    return device.is_cpu() && number_in_file("/proc/self/status", "Threads:").value_or(3) <= 2;
}

constexpr int kRanksOfCore = 4;

/// Warns where OMP_NUM_THREADS gives ranks more threads than there are cores: they wait for each other, and take
/// several times as long.
void warn_of_threads(int num_ranks, const std::string& verb)
{
    const auto* said = std::getenv("OMP_NUM_THREADS");
    if (num_ranks < 2 || !said) return;
    const auto cores = num_cores();
    const int threads = at::get_num_threads();
    if (threads > 1 && num_ranks * threads > cores)
        warn(verb,
             fmt::format("{} ranks of {} threads (OMP_NUM_THREADS={}) share {}, and wait for each other. Unset it "
                         "for one thread a rank.",
                         num_ranks, threads, said, count_text(cores, "core")));
}

}  // namespace

void add_device_option(CLI::App& app, std::string& device)
{
    add_shown(app, "--device", device, "NAME", kDeviceMeaning);
}

void check_local_ranks(const LocalRanks& ranks)
{
    if (ranks.number <= 1) return;
    const auto beginning = fmt::format("--nproc {}: ", ranks.number);
    const auto cores = num_cores();
    if (ranks.number > kRanksOfCore * cores && !ranks.oversubscribes) {
        throw UsageError(
            "{}this process may use {}, which bear {} ranks at most. Start fewer, or insist with --oversubscribe.",
            beginning, count_text(cores, "core"), kRanksOfCore * cores);
    }
    const auto need = memory_of_rank();
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && need.mapped > limit.rlim_cur) {
        throw UsageError(
            "{}each rank maps about {} before it has read any data, and may map {} (ulimit -v). Raise the limit.",
            beginning, bytes_text(need.mapped), bytes_text(std::uint64_t{limit.rlim_cur}));
    }
    const auto free = static_cast<std::uint64_t>(free_memory()), number = static_cast<std::uint64_t>(ranks.number);
    if (need.own * number > free) {
        throw UsageError(
            "{}each rank takes about {} before it has read any data, together {}, and {} are free. Start {} at most.",
            beginning, bytes_text(need.own), bytes_text(need.own * number), bytes_text(free),
            std::max<std::uint64_t>(free / need.own, 1));
    }
}

int run_on_ranks(const LocalRanks& ranks, const std::string& verb, std::span<const std::string> arguments,
                 const std::function<void(int)>& verify, const std::function<int(World& world)>& body,
                 const std::string& device)
{
    const auto info = detect_launch();
    if (info.source != "single") {
        if (ranks.number > 0 && ranks.number != info.size) {
            throw UsageError("--nproc {}, but the launcher ({}) started {} ranks. Leave --nproc out.", ranks.number,
                             info.source, info.size);
        }
        return run_as_rank(info, verb, body, device);
    }
    const auto of_first = device_of_rank(device, info);  // throws before ranks are started
    check_local_ranks(ranks);
    warn_of_threads(ranks.number, verb);
    verify(ranks.number > 0 ? ranks.number : 1);
    if (ranks.number <= 1) return run_as_rank(info, verb, body, device);
    if (can_fork(of_first)) {
        if (const auto code = fork_local_ranks(ranks.number)) return *code;
        const auto forked = detect_launch();
        if (forked.rank > 0) say_on_interruption({}, {});  // the first rank says it for all
        end_well_on_interruption();  // lets signals come, and starts the thread again that waits for SIGTERM
        return run_as_rank(forked, verb, body, device);
    }
    std::vector<std::string> words{verb};
    append(words, arguments);
    return run_local_ranks(ranks.number, words);
}

void cache_freed_memory()
{
    keep_freed_blocks();
    keep_tensor_memory();
}

}  // namespace meshard
