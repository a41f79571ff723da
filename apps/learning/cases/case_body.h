// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/computed_inputs.h"
#include "models/registry/registry.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace meshard {

/// Returns the wall's surface in the coordinates of a case's points.
std::shared_ptr<const CaseBody> case_body(const Wall& wall, const CaseFrame& frame);

/// Keeps the last bodies in memory, by their cases' ids, up to a gigabyte.
class CaseBodies {
public:
    /// @param read   makes a body that is not in memory
    std::shared_ptr<const CaseBody> of(const std::string& id,
                                       const std::function<std::shared_ptr<const CaseBody>()>& read);

private:
    std::deque<std::pair<std::string, std::shared_ptr<const CaseBody>>> kept_;  // in the order in which they were read
    std::int64_t bytes_ = 0;
};

}  // namespace meshard
