// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace meshard {

/// Waits until a process listens at `host` and `port`.
/// @return empty, or at the deadline what was wrong last: the name has no address, or the connection was refused
std::string wait_for_listener(const std::string& host, std::uint16_t port,
                              std::chrono::steady_clock::time_point deadline);

/// The address, in numbers, from which this host sends to `host`: one by which others on the way there can reach it.
/// Empty if `host` has no address or there is no way to it. Sends nothing.
std::string address_towards(const std::string& host);

/// Whether an address of `address_towards` is reached from this host alone.
bool is_loopback(const std::string& address);

}  // namespace meshard
