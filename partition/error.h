// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#if __has_include(<fmt/core.h>)  // programs of others may do without
#include <fmt/core.h>
#define MESHARD_ERRORS_FORMAT 1
#endif

namespace meshard {

/// Base of all errors that meshard throws. `what()` states where it happened, what was expected, what was found, and
/// what to do.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
#ifdef MESHARD_ERRORS_FORMAT
    /// Makes the text as `fmt::format`.
    template <class First, class... Others>
    explicit Error(fmt::format_string<First, Others...> text, First&& first, Others&&... others)
        : std::runtime_error(fmt::format(text, std::forward<First>(first), std::forward<Others>(others)...))
    {
    }
#endif
};

/// An error that the caller can fix: a wrong argument or option, a tensor of the wrong shape, a field that does not
/// exist.
class InvalidInput : public Error {
public:
    using Error::Error;
};

/// An error of a file or folder: absent, unreadable, truncated, of the wrong kind, or not writable.
class IoError : public Error {
public:
    using Error::Error;
};

/// An error of another rank: missing, ended, too late, or stopped by an error of its own.
class CommunicationError : public Error {
public:
    using Error::Error;
};

}  // namespace meshard
