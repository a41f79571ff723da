// SPDX-License-Identifier: Apache-2.0
#include "apps/program/sibling_program.h"

#include "apps/console/console.h"
#include "apps/program/torch_folder.h"
#include "io/bytes/interruption.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace meshard {

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
