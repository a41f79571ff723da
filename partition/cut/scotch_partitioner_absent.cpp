// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/scotch_partitioner.h"
#include "partition/error.h"

namespace meshard {

bool has_scotch()
{
    return false;
}

Partition partition_with_scotch(const Csr&, const ScotchOptions&)
{
    throw InvalidInput("partition_with_scotch: this build lacks Scotch. Install libscotch-dev and build again, or use "
                       "--method metis.");
}

}  // namespace meshard
