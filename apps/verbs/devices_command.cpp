// meshard info --devices: lists the GPUs that programs see, and the libraries and kernels for them.
#include "apps/console/json_report.h"
#include "apps/console/text_table.h"
#include "apps/devices/rank_device.h"
#include "apps/program/command_line.h"
#include "apps/program/sibling_program.h"
#include "apps/program/verbs.h"
#include "partition/lists.h"
#include "sharding/memory/gpus.h"
#include "sharding/transport/device_transport.h"

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <c10/util/StringUtil.h>
#include <fmt/core.h>
#include <torch/version.h>

#include <algorithm>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

namespace meshard {
namespace {

/// NVIDIA's driver and the GPUs of this machine, whether or not this build can use them.
struct Driver {
    std::string version;             // empty if no driver is loaded
    std::vector<std::string> names;  // product of each GPU that it manages
};

Driver find_driver()
{
    Driver driver;
    std::ifstream version("/proc/driver/nvidia/version");
    std::getline(version, driver.version);
    std::error_code none;
    for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", none)) {
        std::ifstream information(gpu.path() / "information");
        for (std::string line; std::getline(information, line);) {
            const auto begin = line.find_first_not_of(" \t", 6);
            if (line.starts_with("Model:") && begin != std::string::npos) driver.names.push_back(line.substr(begin));
        }
    }
    return driver;
}

/// Returns whether LibTorch's CUDA libraries lie beside the LibTorch that this program runs with.
bool has_cuda_libraries()
{
    Dl_info found;
    if (dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &found) == 0 || !found.dli_fname) return false;
    std::error_code error;
    const auto library = std::filesystem::canonical(found.dli_fname, error);
    return !error && std::filesystem::exists(library.parent_path() / "libtorch_cuda.so") &&
           std::filesystem::exists(library.parent_path() / "../../nvidia/nccl");
}

/// Returns what the user must do before a GPU can be used; empty if a GPU can be used.
std::string advice(const std::string& why_not, bool has_libraries)
{
    if (why_not.empty()) return {};
    if (!has_libraries)
        return "LibTorch's wheel has no CUDA libraries: run apps/setup.sh --cuda, and configure with "
               "-DMESHARD_WITH_CUDA=ON.";
    if (gpu_library_versions().empty())
        return "This build is for CPUs: configure with -DMESHARD_WITH_CUDA=ON and build again.";
    return "No GPU is seen: is NVIDIA's driver loaded, and does CUDA_VISIBLE_DEVICES leave one?";
}

}  // namespace

int devices_command(std::span<const std::string> arguments)
{
    if (!contains(arguments, "--devices")) run_in_sibling_program("info", arguments);
    bool json = false, devices = false;
    CLI::App app("The GPUs that programs see.", "info");
    app.add_flag("--devices", devices,
                 "the GPUs that programs see, and which libraries and kernels there are for them");
    add_json_option(app, json);
    if (!parse_arguments(app, arguments)) return exit_code::ok;

    const auto gpus = gpus_with_memory();
    const auto versions = gpu_library_versions();
    const auto why_not = why_no_transport(c10::DeviceType::CUDA);
    const bool has_libraries = has_cuda_libraries();
    const auto driver = find_driver();
    const auto memory = static_cast<std::uint64_t>(memory_of(at::kCPU));
    if (json) {
        Json report{{"threads", std::thread::hardware_concurrency()},
                    {"memory_bytes", memory},
                    {"torch", TORCH_VERSION},
                    {"cuda_libraries", has_libraries}};
        report["kernels"] = !versions.empty();
        for (const auto& [name, version] : versions) report["versions"][name] = version;
        report["driver"] = driver.version.empty() ? Json() : Json(driver.version);
        report["gpus"] = Json::array();
        for (const auto& gpu : gpus) {
            report["gpus"].push_back({{"name", gpu.name},
                                      {"capability", gpu.capability},
                                      {"total_bytes", gpu.total_bytes},
                                      {"free_bytes", gpu.free_bytes},
                                      {"peers", gpu.peers}});
        }
        report["advice"] = why_not.empty() ? Json() : Json(advice(why_not, has_libraries));
        print_json(report);
        return exit_code::ok;
    }
    TextTable table("ll");
    table.add_row({"CPU", fmt::format("{} threads, {}", std::thread::hardware_concurrency(), bytes_text(memory))});
    table.add_row({"driver", driver.version.empty() ? "none of NVIDIA's is loaded" : driver.version});
    table.add_row({"LibTorch",
                   TORCH_VERSION + std::string(has_libraries ? ", with CUDA libraries" : ", without CUDA libraries")});
    for (const auto& [name, version] : versions) table.add_row({name, version});
    table.add_row({"kernels", versions.empty() ? "none: this build is for CPUs" : "for GPUs of CUDA"});
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        const auto& gpu = gpus[i];
        table.add_row({"cuda:" + std::to_string(i),
                       fmt::format("{}, capability {}, {}, {} free, peers {}", gpu.name, gpu.capability,
                                   bytes_text(static_cast<std::uint64_t>(gpu.total_bytes)),
                                   bytes_text(static_cast<std::uint64_t>(gpu.free_bytes)),
                                   gpu.peers.empty() ? "none" : c10::Join(" ", gpu.peers))});
    }
    for (std::size_t i = 0; gpus.empty() && i < driver.names.size(); ++i)
        table.add_row({"GPU", driver.names[i] + ", which this build cannot use"});
    std::cout << table;
    if (const auto what = advice(why_not, has_libraries); !what.empty())
        std::cout << "GPUs cannot be used: " << why_not << ". " << what << '\n';
    return exit_code::ok;
}

}  // namespace meshard
