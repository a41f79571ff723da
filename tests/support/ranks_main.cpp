// SPDX-License-Identifier: Apache-2.0
// The main function of test programs whose tests call run_ranks. `ops_tests --ranks=3` starts the program as three
// processes that are ranks (over shared memory, or MESHARD_BACKEND=gloo); mpirun and torchrun start them too. The
// program fails if no test has run on as many ranks as there are processes.
#include "sharding/transport/launch.h"
#include "tests/support/run_ranks.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

/// Ranks draw the same numbers in a test, whatever each has drawn in those before.
struct SameNumbers : testing::EmptyTestEventListener {
    void OnTestStart(const testing::TestInfo&) override
    {
        auto generator = at::globalContext().defaultGenerator(at::kCPU);
        generator.set_current_seed(1);
    }
};

}  // namespace

int main(int argc, char** argv)
{
    using namespace meshard;
    const std::string flag = "--ranks=";
    if (argc > 1 && std::string(argv[1]).starts_with(flag)) {
        if (const auto code = fork_local_ranks(std::atoi(argv[1] + flag.size()))) return *code;
        std::copy(argv + 2, argv + argc + 1, argv + 1);
        --argc;
    }
    const auto info = detect_launch();
    GTEST_FLAG_SET(brief, info.rank > 0);
    testing::InitGoogleTest(&argc, argv);
    if (info.size == 1) {
        const int code = RUN_ALL_TESTS();
        std::fflush(nullptr);
        std::_Exit(code);  // as the programs end, without LibTorch's global destructors
    }

    GTEST_FLAG_SET(catch_exceptions, false);  // an error on one rank ends it, and with it the others
    testing::UnitTest::GetInstance()->listeners().Append(new SameNumbers);
    int code = RUN_ALL_TESTS();
    if (num_runs_of_processes() == 0) {
        std::fprintf(stderr, "%s: no test ran on %d ranks\n", argv[0], info.size);
        code = 1;
    }
    try {
        finish_processes();
    } catch (const std::exception& error) {  // of a group that a test has ended
        std::fprintf(stderr, "rank %d: %s\n", info.rank, error.what());
    }
    std::fflush(nullptr);
    std::_Exit(code);  // connections that a test has ended are not taken down in order
}
