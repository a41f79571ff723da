// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace meshard {

/// An argument of a verb, as `--help` shows it and docs/commands.md lists it.
struct ArgumentHelp {
    std::vector<std::string> names;  ///< `-n`, `--num-parts`; empty if it has no name
    std::string value;               ///< placeholder of its value, e.g. `N`; empty: it takes none
    std::string fallback;            ///< its default; empty: none, or described in `meaning`
    std::string meaning;             ///< one line, without a full stop
    std::string group;               ///< its heading; empty: the general one
    bool is_positional = false;      ///< may be given without a name
    bool is_required = false;
};

/// Returns all arguments but `--help`, in the order of their declaration.
std::vector<ArgumentHelp> arguments_of(const CLI::App& app);

/// Returns the text of `meshard VERB --help`.
std::string help_text(CLI::App& app);

/// Returns the JSON of `meshard VERB --help-json`: `verb`, `purpose`, and `arguments` with the members of ArgumentHelp.
std::string help_json(const CLI::App& app);

}  // namespace meshard
