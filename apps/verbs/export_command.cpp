// meshard export: a trained network as a file for programs without meshard. torch.export and the writer of ONNX exist
// in Python only, so this becomes a Python with the package `meshard`.
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/verbs.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

namespace meshard {
namespace {

constexpr const char* kScript = R"(
import importlib.util, sys
def end(text, code):
    print("meshard export:", text, file=sys.stderr)
    sys.exit(code)
if importlib.util.find_spec("meshard") is None:
    end(f"{sys.executable} has no package `meshard`, which writes the file. Install it there (pip install ./apps/python in a checkout, or a wheel), or name "
        "another Python by MESHARD_PYTHON.", 2)
try:
    from meshard.export import main
    sys.exit(main())
except ImportError as error:
    end(f"{sys.executable} cannot import the package `meshard`: {error}", 2)
except KeyboardInterrupt:
    end("interrupted; nothing was written.", 130)
)";

}  // namespace

int export_command(std::span<const std::string> arguments)
{
    std::string run, file;
    CLI::App app("Writes the network of a trained run as a file that needs no meshard: an ONNX model, or a program of "
                 "torch.export.\nRuns `python3`, or what MESHARD_PYTHON names, with the package `meshard`; .onnx needs "
                 "the packages onnx, onnxscript and onnxruntime.",
                 "export");
    add_named(app, "RUN|CHECKPOINT", run, "RUN|CHECKPOINT",
              "folder of a run of `meshard train` (its best checkpoint), or a file of weights")
        ->required();
    add_named(app, "FILE", file, "FILE", "file to write: model.onnx or model.pt2")->required();
    if (!parse_arguments(app, arguments)) return exit_code::ok;

    const char* const named = std::getenv("MESHARD_PYTHON");
    const std::string python = named && *named ? named : "python3";
    const char* const words[] = {python.c_str(), "-c", kScript, run.c_str(), file.c_str(), nullptr};
    setenv("PYTHONSAFEPATH", "1", 1);  // a folder `meshard` where the program was called is not the package
    sigset_t termination;              // which this program takes by a thread of its own
    sigemptyset(&termination);
    sigaddset(&termination, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &termination, nullptr);
    ::execvp(python.c_str(), const_cast<char* const*>(words));
    throw UsageError("{} cannot be started: {}. Name a Python with the package `meshard` by MESHARD_PYTHON.", python,
                     std::strerror(errno));
}

}  // namespace meshard
