// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace meshard {

/// Succeeds if `action` throws an `ErrorType` whose message contains `text`.
template <class ErrorType, class Action>
testing::AssertionResult throws_with(std::string_view text, Action&& action)
{
    try {
        action();
    } catch (const ErrorType& error) {
        const std::string message = error.what();
        if (message.find(text) != std::string::npos) return testing::AssertionSuccess();
        return testing::AssertionFailure() << "the message is \"" << message << "\", expected \"" << text << "\" in it";
    }
    return testing::AssertionFailure() << "nothing was thrown, expected an error with \"" << text << "\"";
}

}  // namespace meshard
