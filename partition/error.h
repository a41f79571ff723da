// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace meshard {

/// Base of all errors that meshard throws on purpose. `what()` says where, what was expected, what was found, what to do.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The caller can fix it: an argument, an option, a tensor of the wrong shape, a field that is not there.
class InvalidInput : public Error {
public:
    using Error::Error;
};

/// A file or folder: absent, unreadable, truncated, of the wrong kind, or not writable.
class IoError : public Error {
public:
    using Error::Error;
};

/// Another rank: missing, dead, too late, or stopped by an error of its own.
class CommunicationError : public Error {
public:
    using Error::Error;
};

}  // namespace meshard
