// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace meshard {

/// What the numbers of an array stand for by attributes that netCDF, xarray and h5py users write (CF conventions 1.11,
/// sections 2.5.1 and 8.1): NaN where they are one of `missing`, else scale * number + offset.
struct PackedNumbers {
    double scale = 1, offset = 0;  ///< `scale_factor`, `add_offset`
    std::vector<double> missing;   ///< `_FillValue`, `missing_value`; not NaN

    bool are_values() const { return scale == 1 && offset == 0 && missing.empty(); }
};

}  // namespace meshard
