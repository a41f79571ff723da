// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/store/case_rows.h"
#include "tests/support/stored_case.h"

namespace meshard {

/// A case as training has it, stored beside its shards.
inline CaseTensors stored_tensors(const CaseSource& source, const std::filesystem::path& shards, const DataConfig& data,
                                  const std::shared_ptr<const DeviceMesh>& domain, RowOrder order = RowOrder::Parts)
{
    const auto stored = store_case({shards.parent_path() / "store", {}, data}, source, shards);
    const auto axis = domain->axis("domain");
    const RankOfCase rank{domain->coordinate(axis), Shares(domain->size(axis), 1), order};
    return case_tensors(read_rows(stored, rank), stored, source, data, rank.shares, order, domain);
}

}  // namespace meshard
