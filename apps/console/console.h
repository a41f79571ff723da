// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"

#include <fmt/core.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {

/// Exit codes of the program (docs/commands.md).
namespace exit_code {
inline constexpr int ok = 0;
inline constexpr int check_failed = 1;   ///< a check or comparison failed
inline constexpr int usage = 2;          ///< wrong command line or configuration
inline constexpr int input = 3;          ///< a wrong or unreadable input file; an output that cannot be written
inline constexpr int run_time = 4;       ///< any other error: out of memory, a bug in meshard
inline constexpr int ranks = 5;          ///< another rank is missing, has ended, or did not answer in time
inline constexpr int refused = 6;        ///< an operator has no exact rule for sharded tensors
inline constexpr int interrupted = 130;  ///< Ctrl-C, SIGTERM, or the terminal was closed
}  // namespace exit_code

/// The command line or a configuration is wrong; the program ends with exit code 2.
class UsageError : public Error {
public:
    using Error::Error;
};

/// Returns the exit code for the exception that is being handled.
int exit_code_of_current_error();

/// Parses numbers separated by commas, e.g. `1,0,0`.
/// @throws UsageError, beginning with `option`, unless `text` has `count` finite numbers (or any count if 0).
std::vector<double> parse_numbers(std::string_view text, std::string_view option, std::size_t count = 0);

/// Removes the function's name with which messages of the library begin; the program prints the verb instead.
std::string without_function_name(std::string text);

/// Returns `text` with its control characters, but line ends and tabs, as `\x1b`: a name in a damaged or hostile file
/// neither moves the terminal's cursor nor changes its title.
std::string without_control_characters(std::string_view text);

/// Prints one line to stderr: `meshard VERB: warning: ...`.
void warn(std::string_view verb, std::string_view text);
template <class First, class... Others>
void warn(std::string_view verb, fmt::format_string<First, Others...> text, First&& first, Others&&... others)
{
    warn(verb, fmt::format(text, std::forward<First>(first), std::forward<Others>(others)...));
}

/// After this call an interruption that ends `verb` at once prints one line: what is `left`, and how to go on. Only the
/// first of several ranks prints it.
void say_on_interruption_of(std::string_view verb, const std::string& left);

/// Prints a line to stderr that the next one overwrites, only if stderr is a terminal; an empty text clears it. With
/// `done`, the finished fraction from 0 to 1, a bar and a percentage stand before the text.
void show_progress(std::string_view text, std::optional<double> done = std::nullopt);

}  // namespace meshard
