// SPDX-License-Identifier: Apache-2.0
#include "tests/support/run_program.h"

#include <array>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace meshard {

namespace {

[[noreturn]] void become(const std::string& program, const std::vector<std::string>& arguments,
                         const ProgramOptions& options, int out, int err)
{
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    if (options.max_file_bytes) {
        const rlimit limit{*options.max_file_bytes, *options.max_file_bytes};
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (!options.stdout_to.empty()) out = open(options.stdout_to.c_str(), O_WRONLY);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(127);
}

}  // namespace

ProgramResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          const ProgramOptions& options)
{
    std::array<int, 2> out{}, err{};
    if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0)
        throw std::runtime_error("run_program: no pipe");
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("run_program: no process");
    if (child == 0) become(program, arguments, options, out[1], err[1]);
    close(out[1]);
    close(err[1]);

    ProgramResult result;
    std::array<pollfd, 2> sources{pollfd{out[0], POLLIN, 0}, pollfd{err[0], POLLIN, 0}};
    const std::array<std::string*, 2> texts{&result.out, &result.err};
    bool may_interrupt = static_cast<bool>(options.interrupt_when);
    for (int open_sources = 2; open_sources > 0;) {
        poll(sources.data(), sources.size(), may_interrupt ? 1 : -1);
        if (may_interrupt && options.interrupt_when()) {
            kill(child, SIGINT);
            may_interrupt = false;
        }
        for (std::size_t i = 0; i < sources.size(); ++i) {
            if (sources[i].fd < 0 || sources[i].revents == 0) continue;
            std::array<char, 4096> buffer{};
            const ssize_t count = read(sources[i].fd, buffer.data(), buffer.size());
            if (count > 0) {
                texts[i]->append(buffer.data(), static_cast<std::size_t>(count));
                continue;
            }
            close(sources[i].fd);
            sources[i].fd = -1;
            --open_sources;
        }
    }
    int status = 0;
    waitpid(child, &status, 0);
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

}  // namespace meshard
