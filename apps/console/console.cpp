// SPDX-License-Identifier: Apache-2.0
#include "apps/console/console.h"

#include "apps/console/kept_warnings.h"
#include "io/bytes/interruption.h"
#include "sharding/messages/agreement.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <unistd.h>

namespace meshard {

int exit_code_of_current_error()
{
    try {
        throw;
    } catch (const UsageError&) {
        return exit_code::usage;
    } catch (const RanksDisagree&) {
        return exit_code::usage;
    } catch (const LaunchError&) {
        return exit_code::usage;
    } catch (const InvalidInput&) {
        return exit_code::input;
    } catch (const IoError&) {
        return exit_code::input;
    } catch (const std::filesystem::filesystem_error&) {
        return exit_code::input;
    } catch (const CommunicationError&) {
        return exit_code::ranks;
    } catch (const Interrupted&) {
        return exit_code::interrupted;
    } catch (...) {
        return exit_code::run_time;
    }
}

std::vector<double> parse_numbers(std::string_view text, std::string_view option, std::size_t count)
{
    std::vector<double> numbers;
    const char* at = text.data();
    const char* const end = at + text.size();
    bool good = at != end;
    const auto skip_blanks = [&] {
        while (at != end && *at == ' ') ++at;
    };
    while (good) {
        double number = 0;
        skip_blanks();
        if (at != end && *at == '+') ++at;
        const auto [next, error] = std::from_chars(at, end, number);
        good = error == std::errc() && std::isfinite(number);
        numbers.push_back(number);
        at = next;
        skip_blanks();
        if (!good || at == end) break;
        good = *at++ == ',';
    }
    if (!good || (count != 0 && numbers.size() != count)) {
        const std::string wanted = count == 0   ? "numbers separated by commas"
                                   : count == 1 ? "a number"
                                                : std::to_string(count) + " numbers separated by commas";
        throw UsageError("{} is '{}'; expected {}, e.g. {}.", option, text, wanted,
                         count == 1   ? "40"
                         : count == 2 ? "-1,1"
                                      : "1,0,0");
    }
    return numbers;
}

std::string without_function_name(std::string text)
{
    std::size_t end = 0;
    while (end < text.size() && (std::islower(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    return end > 0 && text.compare(end, 2, ": ") == 0 ? text.substr(end + 2) : text;
}

std::string without_control_characters(std::string_view text)
{
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (std::iscntrl(byte) && c != '\n' && c != '\t')
            out += fmt::format("\\x{:02x}", byte);
        else
            out += c;
    }
    return out;
}

namespace {
thread_local KeptWarnings* keeper = nullptr;
}  // namespace

KeptWarnings::KeptWarnings(bool also_prints) : also_prints_(also_prints), before_(keeper)
{
    keeper = this;
}

KeptWarnings::~KeptWarnings()
{
    keeper = before_;
}

void warn(std::string_view verb, std::string_view text)
{
    if (keeper) {
        keeper->texts_.emplace_back(text);
        if (!keeper->also_prints_) return;
    }
    std::cout.flush();
    std::cerr << "meshard " << verb << ": warning: " << without_control_characters(text) << std::endl;
}

void say_on_interruption_of(std::string_view verb, const std::string& left)
{
    for (const char* rank : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
        const char* const number = std::getenv(rank);
        if (number && std::string_view(number) != "0") return;
    }
    // At a terminal the current line may show a progress bar or ^C, so the message begins on a new one.
    const std::string line = isatty(STDERR_FILENO) == 1 ? "\n" : "";
    say_on_interruption(fmt::format("{}meshard {}: interrupted.{}{}\n", line, verb, left.empty() ? "" : " ", left),
                        left);
}

void show_progress(std::string_view text, std::optional<double> done)
{
    static const bool on_terminal = isatty(STDERR_FILENO) == 1;
    if (!on_terminal) return;
    std::cerr << "\r\033[K";
    if (done && !text.empty()) {
        constexpr std::size_t width = 30;
        const double share = std::clamp(*done, 0.0, 1.0);
        const auto full = static_cast<std::size_t>(share * width);
        std::cerr << '[' << std::string(full, '#') << std::string(width - full, '.') << "] "
                  << static_cast<int>(share * 100) << "% ";
    }
    std::cerr << text << std::flush;
}

}  // namespace meshard
