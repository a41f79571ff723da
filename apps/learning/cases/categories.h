// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/training_config.h"
#include "models/registry/encoded_model.h"
#include "partition/mesh/data_array.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Where the categories of points (`data.categories`) stand among the numbers that a point is told.
/// @param channels   number of channels of each field
CategoryChannels category_channels(const DataConfig& data, std::span<const std::int64_t> channels);

/// Refuses an array that cannot be one of the categories, or has others than the training cases, where those are known.
/// @param index   of the array in `data.categories`   @param where   begins messages   @param place   names a row
/// @param counts   whether a row counts; empty: all do
/// @throws InvalidInput
void require_categories(const DataArray& array, const CategorySettings& categories, std::size_t index,
                        const std::string& where, const std::function<std::string(std::int64_t)>& place,
                        const std::function<bool(std::int64_t)>& counts = {});

/// The most kinds of one array.
inline constexpr std::size_t kMostCategories = 64;

/// Joins what two cases have. @param where   begins messages
/// @throws InvalidInput if there are more than `kMostCategories` of an array
void merge_categories(std::vector<std::vector<double>>& known, const std::vector<std::vector<double>>& more,
                      const CategorySettings& categories, const std::string& where);

/// Adds the kinds that rows have, (rows, numbers of a point), to those that are known of each array.
/// @param first   channel of the first array   @throws InvalidInput as `merge_categories`
void add_categories(std::vector<std::vector<double>>& known, const at::Tensor& told, std::int64_t first,
                    const CategorySettings& categories, const std::string& where);

}  // namespace meshard
