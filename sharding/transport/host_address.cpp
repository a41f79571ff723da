// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/host_address.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace meshard {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Looks up the addresses of a host; none, and why, if it has none.
Addresses addresses_of(const std::string& host, const std::string& port, int type, std::string& why)
{
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = type;
    const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (error != 0) why = host + ": " + (error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
    return {error == 0 ? found : nullptr, &freeaddrinfo};
}

struct Socket {
    explicit Socket(const addrinfo& address)
        : number(socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol))
    {
    }
    ~Socket()
    {
        if (number >= 0) close(number);
    }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;

    int number;
};

/// Connects to an address and closes the connection. Returns the error's number, 0 if there was none.
int try_address(const addrinfo& address, std::chrono::milliseconds most)
{
    const Socket made(address);
    if (made.number < 0 || connect(made.number, address.ai_addr, address.ai_addrlen) == 0)
        return made.number < 0 ? errno : 0;
    if (errno != EINPROGRESS) return errno;
    pollfd waits{made.number, POLLOUT, 0};
    if (poll(&waits, 1, static_cast<int>(most.count())) != 1) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(made.number, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
}

}  // namespace

std::string wait_for_listener(const std::string& host, std::uint16_t port,
                              std::chrono::steady_clock::time_point deadline)
{
    std::string why;
    for (auto pause = std::chrono::milliseconds(2);; pause = std::min(2 * pause, std::chrono::milliseconds(100))) {
        const auto addresses = addresses_of(host, std::to_string(port), SOCK_STREAM, why);
        for (const auto* address = addresses.get(); address; address = address->ai_next) {
            const auto left =
                std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
            const int error =
                try_address(*address, std::clamp(left, std::chrono::milliseconds(1), std::chrono::milliseconds(5000)));
            if (error == 0) return {};
            why = std::strerror(error);
        }
        if (std::chrono::steady_clock::now() + pause > deadline) return why;
        usleep(static_cast<useconds_t>(1000 * pause.count()));
    }
}

std::string address_towards(const std::string& host)
{
    std::string why;
    const auto addresses = addresses_of(host, "9", SOCK_DGRAM, why);
    for (const auto* address = addresses.get(); address; address = address->ai_next) {
        const Socket made(*address);
        sockaddr_storage own{};
        socklen_t size = sizeof own;
        std::array<char, NI_MAXHOST> text{};
        // A datagram socket that is connected has the address of the way, and has sent nothing.
        if (made.number >= 0 && connect(made.number, address->ai_addr, address->ai_addrlen) == 0 &&
            getsockname(made.number, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
            getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0,
                        NI_NUMERICHOST) == 0)
            return text.data();
    }
    return {};
}

bool is_loopback(const std::string& address)
{
    return address.starts_with("127.") || address == "::1";
}

}  // namespace meshard
