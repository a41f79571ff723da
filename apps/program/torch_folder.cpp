// SPDX-License-Identifier: Apache-2.0
#include "apps/program/torch_folder.h"

#include "apps/console/console.h"
#include "apps/program/version.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace meshard {
namespace {

const std::string kTorchLibrary = "lib/libtorch_cpu.so";

/// The version of LibTorch with which meshard was built, e.g. `2.11.0`.
std::string expected_torch()
{
    for (const auto& [name, version] : library_versions()) {
        if (name == "LibTorch") return version;
    }
    return {};
}

/// The version of the wheel with the folder `torch`, e.g. `2.11.0+cpu`; empty if unknown.
std::string version_of(const std::filesystem::path& torch)
{
    std::ifstream file(torch / "version.py");
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("__version__")) continue;
        const auto begin = line.find_first_of("'\"") + 1;
        return line.substr(begin, line.find_first_of("'\"", begin) - begin);
    }
    return {};
}

/// Throws unless the folder has LibTorch of the major and minor version with which meshard was compiled.
void check_torch(const std::filesystem::path& torch, const std::string& described)
{
    const auto expected = expected_torch();
    const auto series = expected.substr(0, expected.rfind('.') + 1);
    const auto found = version_of(torch);
    if (!found.starts_with(series)) {
        throw UsageError("{} is LibTorch {}; this meshard needs {}. `pip install torch=={}` into a virtual "
                         "environment, and set MESHARD_TORCH to "
                         "its folder site-packages/torch.",
                         described, found.empty() ? "of unknown version" : found, expected, expected);
    }
}

bool is_on_library_path()
{
    const char* const variable = std::getenv("LD_LIBRARY_PATH");
    const std::string folders = variable ? variable : "";
    for (std::size_t begin = 0, end; begin < folders.size(); begin = end + 1) {
        end = std::min(folders.find(':', begin), folders.size());
        if (std::filesystem::exists(std::filesystem::path(folders.substr(begin, end - begin)) / "libtorch_cpu.so"))
            return true;
    }
    return false;
}

}  // namespace

void prepare_torch(const std::string& verb, const std::filesystem::path& programs)
{
    const char* const chosen = std::getenv("MESHARD_TORCH");
    if (chosen && *chosen) {
        const std::filesystem::path torch = chosen;
        if (!std::filesystem::exists(torch / kTorchLibrary)) {
            throw UsageError(
                "MESHARD_TORCH is '{}', where there is no {}. Set it to the folder `torch` of LibTorch's wheel, e.g. "
                "~/venv/lib/python3.11/site-packages/torch.",
                torch.string(), kTorchLibrary);
        }
        check_torch(torch, fmt::format("MESHARD_TORCH, '{}',", torch.string()));
        const char* const others = std::getenv("LD_LIBRARY_PATH");
        const auto own = std::filesystem::absolute(torch / "lib").string();
        setenv("LD_LIBRARY_PATH", (others && *others ? own + ":" + others : own).c_str(), 1);
        return;
    }
    // A wheel has its programs in meshard/programs, and pip puts torch beside meshard.
    const auto prefix = programs.parent_path();
    const bool is_wheel = programs.filename() == "programs";
    const auto torch = is_wheel ? prefix.parent_path() / "torch" : prefix / "lib/meshard/torch";
    if (!std::filesystem::is_directory(torch.parent_path()) || is_on_library_path()) return;
    if (std::filesystem::exists(torch / kTorchLibrary))
        return check_torch(torch, is_wheel ? torch.string() : "the target of " + torch.string());
    const auto expected = expected_torch();
    const auto installs = is_wheel ? fmt::format("pip install torch=={}", expected)
                                   : fmt::format("bash '{}' --torch {}", (prefix / "share/meshard/setup.sh").string(),
                                                 expected.substr(0, expected.rfind('.')));
    throw UsageError("{} needs LibTorch {}, which is not in {}. `{}` installs it; or set MESHARD_TORCH to the folder "
                     "`torch` of its wheel.",
                     verb, expected, torch.string(), installs);
}

}  // namespace meshard
