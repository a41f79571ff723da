// SPDX-License-Identifier: Apache-2.0
// meshard check: does a shards folder hold what it promises?
#include <iostream>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/json_report.h"
#include "apps/verbs.h"
#include "io/shard_check.h"

namespace meshard {

int check_command(std::span<const std::string> arguments)
{
    std::string folder;
    bool json = false;
    CLI::App app("Tests every promise that a shards folder makes: files, owners, ghosts, values. Exit code 1 if one fails.", "check");
    app.add_option("dir", folder, "shards folder")->required()->type_name("DIR");
    app.add_flag("--json", json, "one JSON object on stdout");
    if (!parse_arguments(app, arguments)) return exit_code::ok;

    show_progress("checking ...");
    const std::vector<std::string> faults = check_shards(folder);
    show_progress("");
    if (json) print_json({{"folder", folder}, {"ok", faults.empty()}, {"faults", faults}});
    else for (const std::string& fault : faults) std::cout << "FAIL  " << fault << '\n';
    return faults.empty() ? exit_code::ok : exit_code::check_failed;
}

}  // namespace meshard
