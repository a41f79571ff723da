// SPDX-License-Identifier: Apache-2.0
#include "apps/program/sibling_program.h"

#include "apps/console/console.h"
#include "apps/program/version.h"
#include "io/bytes/interruption.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

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

/// Makes `meshard-models` in the folder `programs` find LibTorch: the one in the environment variable MESHARD_TORCH if
/// it is set, otherwise the one beside the package if a wheel brought the programs, or the one behind the link
/// ../lib/meshard/torch of an installation. Programs in a build folder have its path built in. This function checks the
/// version, since the dynamic loader's messages do not say what to do.
/// @throws UsageError if there is none, or another version than meshard was compiled with
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

}  // namespace

bool has_models_program()
{
#ifdef MESHARD_WITH_TORCH
    return true;
#else
    return false;
#endif
}

void run_in_sibling_program(const std::string& verb, std::span<const std::string> arguments)
{
    if (!has_models_program()) {
        throw UsageError("this build of meshard has no LibTorch, which {} needs. Configure with "
                         "-DMESHARD_WITH_TORCH=ON and build again.",
                         verb);
    }
#ifdef MESHARD_MODELS_PROGRAM
    const std::string name = "meshard";
#else
    const std::string name = "meshard-models";
#endif
    std::error_code ignored;
    const auto path = std::filesystem::read_symlink("/proc/self/exe", ignored).replace_filename(name);
    if (name == "meshard-models") prepare_torch(verb, path.parent_path());
    // If LibTorch's libraries cannot be mapped, their constructors end the process before main.
    constexpr rlim_t kLeastMapped = rlim_t{580} << 20;
    rlimit limit{};
    if (name == "meshard-models" && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < kLeastMapped) {
        throw UsageError(
            "{} needs LibTorch, which maps {} MiB before anything is read, and ulimit -v allows {} MiB. Raise it.",
            verb, kLeastMapped >> 20, limit.rlim_cur >> 20);
    }
    // Messages begin with the program name that the user called.
    std::vector<char*> argv{const_cast<char*>("meshard"), const_cast<char*>(verb.c_str())};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    delay_interruption();
    ::execv(path.c_str(), argv.data());
    throw Error(
        "{} is in the program {}, which cannot be started: {}. Build or install both programs into the same folder.",
        verb, path.string(), std::strerror(errno));
}

}  // namespace meshard
