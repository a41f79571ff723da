// SPDX-License-Identifier: Apache-2.0
// docs/operators.md says of every aten operator what happens to sharded tensors. It is written from the rule table:
// this test fails when the page is out of date, and writes it when MESHARD_UPDATE_DOCS is set.
#include "sharding/tensor/rule_table.h"
#include "tests/docs/update_docs.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

namespace meshard {
namespace {

/// Of a family, its operators without overloads.
std::map<std::string, std::set<std::string>> operators_by_family()
{
    std::map<std::string, std::set<std::string>> families;
    for (const auto& entry : list_rules()) {
        auto name = entry.op.substr(entry.op.find("::") + 2);
        families[entry.family].insert(name.substr(0, name.find('.')));
    }
    return families;
}

std::string page()
{
    std::ostringstream text;
    text << "# Operators\n\n"
            "What happens when an aten operator is called with a sharded tensor. Generated from the rule table: `"
         << kUpdateCommand
         << "`.\n\n"
            "- Operators with a *rule* compute on this rank's part and send messages only where the result needs them. "
            "For placements that a rule does not\n"
            "  support, it gathers too.\n"
            "- *composite*, not listed: LibTorch composes it of other operators; it needs no rule.\n"
            "- *gathered*: no rule; every rank gathers the cut arguments and computes the whole. Exact, at the cost of "
            "memory; with one warning for each "
            "operator, or refused,\n"
            "  as set by `set_gather_policy`.\n"
            "- Overloads with `out=`, of any operator: the overload that returns a new tensor, then a copy to `out`. A "
            "sharded `out` keeps its layout, a plain\n"
            "  one gets the whole value.\n\n"
            "A tensor that is written to keeps its layout; a plain one gets the whole value. Always refused, with the "
            "operator's name: changing a sharded "
            "tensor's shape in place\n"
            "(`resize_`, `set_`), tensors on different device meshes. `meshard probe` shows the operators that a whole "
            "model uses.\n"
            "\n"
            "## Functions of meshard across ranks\n"
            "\n"
            "Not aten operators: functions on plain and sharded tensors, exact on any partition, with gradients unless "
            "noted "
            "([concepts](concepts.md#ghosts-and-neighbours)).\n"
            "GPU tensors use our own [kernels](gpu.md#what-runs-there), with the CPU's results.\n"
            "\n"
            "| function | header | what is sent |\n"
            "| --- | --- | --- |\n"
            "| `knn`, `radius_search` | ops/neighbors/neighbors.h | bounding boxes, cells of queries near a cut, the "
            "points within reach once each |\n"
            "| `gather_neighbors` | ops/neighbors/neighbors.h | features of ghosts, one message, while this rank's "
            "rows are copied |\n"
            "| `with_ghosts`, `exchange_ghosts`, `begin_ghost_exchange` | ops/rows/ghost_exchange.h | features of "
            "ghosts; several fields, and in a narrower "
            "type, in one message |\n"
            "| `scatter_ghosts` (sum, mean, max, min) | ops/rows/ghost_exchange.h | the same, from ghosts to owners |\n"
            "| `stack_plans` | sharding/exchange/merged_plan.h | nothing |\n"
            "| `segment_reduce` (sum, mean, max, min with the index of the entry), `segment_softmax` | "
            "ops/rows/segment_reduce.h | nothing |\n"
            "| `gather_rows`, `scatter_add` | ops/rows/row_gather.h | each row that another rank reads or adds to, "
            "once |\n";
    auto families = operators_by_family();
    const auto write = [&](const std::string& family) {
        const auto& names = families[family];
        text << "\n## " << family << " (" << names.size() << ")\n\n```\n";
        std::size_t column = 0;
        for (const auto& name : names) {
            const bool fits = column + 1 + name.size() <= 140;
            text << (column == 0 ? "" : fits ? " " : "\n") << name;
            column = fits && column > 0 ? column + 1 + name.size() : name.size();
        }
        text << "\n```\n";
    };
    for (const auto& [family, names] : families) {
        if (family != "composite" && family != "gathered" && family != "given results") write(family);
    }
    write("gathered");
    return text.str();
}

TEST(OperatorsPage, SaysOfEveryOperatorWhatItDoes)
{
    expect_up_to_date(source_path("docs/operators.md"), page());
}

}  // namespace
}  // namespace meshard
