// SPDX-License-Identifier: Apache-2.0
#include "apps/program/rank_program.h"

#include "apps/program/command_line.h"
#include "apps/program/error_text.h"
#include "apps/program/freed_memory.h"
#include "apps/program/rank_device.h"
#include "sharding/memory/tensor_memory.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>

#include <cstdlib>
#include <iostream>
#include <new>
#include <vector>

namespace meshard {
namespace {

int run_as_rank(const LaunchInfo& info, const std::string& verb, const std::function<int(World& world)>& body, const std::string& device_name)
{
    if (info.size > 1 && !std::getenv("OMP_NUM_THREADS")) at::set_num_threads(1);
    // Backward runs in this thread, with its settings and its device, and not in a thread of the device's.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    at::globalContext().setAllowTF32CuBLAS(false);  // whatever TORCH_ALLOW_TF32_CUBLAS_OVERRIDE says
    try {
        const auto device = device_of_rank(device_name, info);
        const c10::DeviceGuard current(device);
        const auto world = World::connect(info, kTimeoutSeconds, device);
        const int code = body(*world);
        world->finish();
        return code;
    } catch (const std::exception& error) {
        const int code = exit_code_of_current_error();
        if (code == exit_code::interrupted) {  // the wish of the user, which reaches every rank: one speaks
            show_progress("");
            if (info.rank == 0) std::cerr << "meshard " << verb << ": " << error_text(error) << std::endl;
            return code;
        }
        if (report_failure_to_launcher("meshard " + verb + ": " + error_text(error), code == exit_code::ranks)) return code;
        throw;
    }
}

}  // namespace

int run_on_ranks(int num_local_ranks, const std::string& verb, std::span<const std::string> arguments, const std::function<void(int)>& verify,
                 const std::function<int(World& world)>& body, const std::string& device)
{
    const auto info = detect_launch();
    if (info.source != "single") {
        if (num_local_ranks > 0 && num_local_ranks != info.size) {
            throw UsageError("--nproc " + std::to_string(num_local_ranks) + ", but the launcher (" + info.source + ") started " + std::to_string(info.size) +
                             " ranks. Leave --nproc out.");
        }
        return run_as_rank(info, verb, body, device);
    }
    device_of_rank(device, info);  // throws before ranks are started
    verify(num_local_ranks > 0 ? num_local_ranks : 1);
    if (num_local_ranks <= 1) return run_as_rank(info, verb, body, device);
    std::vector<std::string> words{verb};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_local_ranks(num_local_ranks, words);
}

void keep_freed_memory()
{
    keep_freed_blocks();
    keep_tensor_memory();
}

}  // namespace meshard
