// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {
TEST(AtomicFile, Placeholder) {}
}  // namespace
}  // namespace meshard
