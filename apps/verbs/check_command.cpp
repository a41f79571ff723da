// SPDX-License-Identifier: Apache-2.0
// meshard check: tests that a shards folder is complete and consistent.
#include "apps/console/json_report.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/verbs.h"
#include "io/shards/shard_check.h"

#include <algorithm>
#include <iostream>

namespace meshard {

namespace {

Json to_json(const std::string& folder, const std::vector<ShardPromise>& promises)
{
    Json json{
        {"folder", folder}, {"ok", std::ranges::all_of(promises, &ShardPromise::holds)}, {"checks", Json::array()}};
    for (const ShardPromise& promise : promises) {
        json["checks"].push_back({{"name", promise.text},
                                  {"ok", promise.holds()},
                                  {"tested", promise.was_tested},
                                  {"faults", promise.faults}});
    }
    return json;
}

void print(const std::vector<ShardPromise>& promises)
{
    for (const ShardPromise& promise : promises) {
        std::cout << (promise.holds()      ? "OK    "
                      : promise.was_tested ? "FAIL  "
                                           : "-     ")
                  << promise.text << (promise.was_tested ? "" : " (not tested: it depends on a check that failed)")
                  << '\n';
        for (const std::string& fault : promise.faults) std::cout << "        " << fault << '\n';
    }
}

}  // namespace

int check_command(std::span<const std::string> arguments)
{
    std::string folder;
    bool json = false;
    CLI::App app("Checks that a shards folder is complete and consistent: files, owners, ghosts, values. Exit code 1 "
                 "if a check fails.",
                 "check");
    add_named(app, "dir", folder, "DIR", "shards folder to test")->required();
    add_json_option(app, json);
    if (!parse_arguments(app, arguments)) return exit_code::ok;

    show_progress("checking ...");
    const std::vector<ShardPromise> promises = test_shards(folder);
    show_progress("");
    const bool all_hold = std::ranges::all_of(promises, &ShardPromise::holds);
    if (json)
        print_json(to_json(folder, promises));
    else
        print(promises);
    return all_hold ? exit_code::ok : exit_code::check_failed;
}

}  // namespace meshard
