// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/option_checks.h"

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <array>
#include <string>

namespace meshard {

/// Corners of a box in the coordinates of the points, lowest then highest, from a model's argument.
struct ModelBox {
    std::array<float, 3> lowest{}, highest{};

    /// @param of_model, name   name of the model and of the argument, for messages
    /// @throws InvalidInput unless there are six numbers, each of the last three above its counterpart
    ModelBox(const nlohmann::json& numbers, const char* of_model, const char* name)
    {
        bool fits = numbers.is_array() && numbers.size() == 6;
        for (const auto& number : numbers) fits = fits && number.is_number();
        for (std::size_t c = 0; fits && c < 3; ++c) {
            lowest[c] = numbers[c].get<float>();
            highest[c] = numbers[3 + c].get<float>();
            fits = highest[c] > lowest[c];
        }
        if (!fits)
            OptionChecks(of_model).refuse(std::string(name) +
                                          " must be the lowest x, y, z and then the highest, each above the lowest, "
                                          "e.g. [-1, -1, -1, 1, 1, 1]; it is " +
                                          numbers.dump() + ".");
    }

    at::Tensor least(const at::TensorOptions& options) const
    {
        return at::tensor(lowest, at::kFloat).to(options.device());
    }
    at::Tensor most(const at::TensorOptions& options) const
    {
        return at::tensor(highest, at::kFloat).to(options.device());
    }
};

}  // namespace meshard
