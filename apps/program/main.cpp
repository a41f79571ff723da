// The programs `meshard` and `meshard-models` pick the verb and turn exceptions into one sentence on stderr and an exit
// code.
#include "apps/console/error_text.h"
#include "apps/program/command_line.h"
#include "apps/program/sibling_program.h"
#include "apps/program/version.h"
#include "io/bytes/interruption.h"
#include "io/bytes/read_warnings.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace meshard {
namespace {

void print_help()
{
    std::cout
        << "meshard cuts CFD meshes into shards, trains attention models on them over many ranks, and predicts.\n\n"
           "Usage: meshard VERB [arguments]\n\nVerbs:\n";
    for (const Verb& verb : verbs()) {
        std::cout << "  " << verb.name << std::string(12 - verb.name.size(), ' ') << verb.purpose
                  << (verb.run || has_models_program() ? "" : " (not in this build: needs LibTorch)") << '\n';
    }
    std::cout << "\nOptions:\n"
                 "  -h,--help   this text; `meshard VERB --help` explains a verb, `meshard VERB --help-json` the same "
                 "for programs\n"
                 "  --version   versions of meshard and of the libraries in it\n\n"
                 "Exit codes: 0 success, 1 a check failed, 2 usage or configuration, 3 input, 4 run time, 5 ranks,\n"
                 "6 an operator was refused (probe), 130 interrupted.\n";
}

void print_version()
{
    std::cout << "meshard " << program_version() << '\n';
    for (const auto& [name, version] : library_versions()) std::cout << name << ' ' << version << '\n';
}

const Verb& find_verb(const std::string& name)
{
    std::vector<std::string> names;
    for (const Verb& verb : verbs()) {
        if (verb.name == name) return verb;
        names.emplace_back(verb.name);
    }
    if (name == "serve")
        throw UsageError(
            "trained runs are served by the Python package: python3 -m meshard.serve RUN (docs/python.md).");
    const std::string nearest = nearest_name(name, names);
    throw UsageError("unknown {} '{}'. {}", name.starts_with('-') ? "option" : "verb", name,
                     nearest.empty() ? "`meshard --help` lists the verbs."
                                     : fmt::format("Did you mean '{}'?", nearest));
}

/// Throws if a launcher started several ranks of a verb that runs on one: each would do all the work and write the same
/// file.
void refuse_ranks(std::string_view verb)
{
    constexpr std::string_view kOnOneRank[] = {"info",  "repartition", "check",  "merge", "convert",
                                               "sweep", "forces",      "render", "export"};
    const char* const launch = std::getenv("MESHARD_LAUNCH");
    if (launch && std::string_view(launch) == "single") return;
    const auto number = [](const char* variable) {
        const char* const text = std::getenv(variable);
        return text ? std::atoi(text) : 0;
    };
    const int of_mpi = std::max({number("OMPI_COMM_WORLD_SIZE"), number("PMI_SIZE"), number("PMIX_SIZE")});
    const int of_all =
        std::max({of_mpi, std::getenv("RANK") ? number("WORLD_SIZE") : 0, number("SLURM_STEP_NUM_TASKS")});
    const auto alone = " where each process shall do it for itself, with MESHARD_LAUNCH=single.";
    if (of_all > 1 && contains(kOnOneRank, verb)) {
        throw UsageError("{} runs on one rank, and {} were started. Start it without mpirun, srun or torchrun;{}", verb,
                         of_all, alone);
    }
    if (of_all > 1 && of_mpi < 2 && verb == "partition")
        throw UsageError(
            "the ranks of partition meet over MPI, and {} were started without it. Start them with mpirun;{}", of_all,
            alone);
}

int run(const std::vector<std::string>& arguments)
{
    if (arguments.empty()) {
        print_help();
        throw UsageError("the verb is missing.");
    }
    const std::string& first = arguments.front();
    if (first == "-h" || first == "--help" || first == "help") {
        print_help();
        return exit_code::ok;
    }
    if (first == "--version") {
        print_version();
        return exit_code::ok;
    }
    const Verb& verb = find_verb(first);
    refuse_ranks(verb.name);
    const auto rest = std::span(arguments).subspan(1);
    // Some verbs read a file twice; this handler prints each of its warnings once.
    set_read_warning_handler([first](const std::string& text) {
        static std::mutex one_at_a_time;
        static std::set<std::string> said;
        const std::lock_guard lock(one_at_a_time);
        if (said.insert(text).second) warn(first, text + ".");
    });
    if (!verb.run) run_in_sibling_program(first, rest);
    add_facts({{"the version of meshard", program_version()}});
    for (const auto& [name, version] : library_versions()) add_facts({{"the version of " + name, version}});
    return verb.run(rest);
}

int fail(const std::string& verb, const std::string& message, int code)
{
    show_progress("");
    std::cout.flush();
    const auto text = fmt::format("meshard{}: {}", verb.empty() ? "" : " " + verb, without_function_name(message));
    std::cerr << without_control_characters(text) << std::endl;
    if (code != exit_code::interrupted) tell_other_ranks(text);
    return code;
}

int run_and_report(const std::vector<std::string>& arguments)
{
    // A message begins with the first argument only if that is a verb.
    std::string verb;
    const auto is_first = [&](const Verb& v) { return !arguments.empty() && v.name == arguments.front(); };
    if (std::any_of(verbs().begin(), verbs().end(), is_first)) verb = arguments.front();
    try {
        const int code = run(arguments);
        if (!std::cout.flush())
            return fail(verb, "could not write to standard output. Is it closed, or the disk full?", exit_code::input);
        return code;
    } catch (const std::bad_alloc&) {
        return fail(
            verb,
            "out of memory. Use a machine with more, or a smaller mesh (`meshard info` estimates its size in memory).",
            exit_code::run_time);
    } catch (const std::filesystem::filesystem_error& error) {
        return fail(verb, fmt::format("'{}': {}.", error.path1().string(), error.code().message()),
                    exit_code_of_current_error());
    } catch (const std::system_error& error) {
        const bool is_short = error.code() == std::errc::resource_unavailable_try_again;  // a thread cannot be started
        return fail(
            verb,
            error_text(error) +
                (is_short ? ": the system has no more threads, or no memory for them. See `ulimit -u` and `ulimit -v`."
                          : ""),
            exit_code_of_current_error());
    } catch (const std::exception& error) {
        return fail(verb, error_text(error), exit_code_of_current_error());
    } catch (...) {
        return fail(verb, "stopped by an error of unknown kind.", exit_code::run_time);
    }
}

/// Opens standard streams that were closed at the start: otherwise the next opened files would get their numbers, and
/// messages would be written to them. Writing to a closed standard output still fails, so that no result is lost in
/// silence.
void open_closed_streams()
{
    for (int stream = 0; stream <= 2; ++stream) {
        // `open` takes the lowest free number, which is `stream`.
        if (fcntl(stream, F_GETFD) == -1 && errno == EBADF) open("/dev/null", stream == 1 ? O_RDONLY : O_RDWR);
    }
}

}  // namespace
}  // namespace meshard

int main(int argc, char** argv)
{
    meshard::open_closed_streams();
    // A write beyond the allowed file size must fail, as on a full disk, and not end the process.
    std::signal(SIGXFSZ, SIG_IGN);
    if (argc > 1) meshard::say_on_interruption_of(argv[1], "Nothing was begun; the same command starts again.");
    meshard::end_well_on_interruption();
    const int code = meshard::run_and_report({argv + 1, argv + argc});
    meshard::ignore_interruption();
    // Without the destructors of LibTorch's global objects: they take back the registration of each operator, a fifth
    // of a second.
    std::fflush(nullptr);
    std::quick_exit(code);
}
