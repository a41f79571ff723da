// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/transolver/slice_projection.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/fixture_tensors.h"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace meshard::test {

/// A model of a case, ready to run: its module with the stored parameters and buffers, and its forward by names of
/// arguments (`local_embedding.1` is the second of several). The outputs are one, or one a stream.
struct FixtureModel {
    std::shared_ptr<torch::nn::Module> module;
    std::function<std::vector<at::Tensor>(const NamedTensors& inputs)> forward;
    std::function<void(UniformNoise)> set_noise;  ///< empty if the model draws none
};

/// The kinds of cases that `load_fixture_model` makes models of, and those that tests of their own take.
const std::set<std::string>& model_kinds();
const std::set<std::string>& other_kinds();

/// All cases but those of `other_kinds`: those of models that meshard does not have are among them.
std::vector<FixtureCase> model_cases();

/// Why `load_fixture_model` cannot make the model of this case; empty if it can.
std::string reason_to_skip(const FixtureCase& fixture);

/// Fails the test if a stored parameter has no place in the model, or the other way round. Noise that the case holds
/// (`noise.I`) is given to the model, its rows as `order_rows` puts them.
FixtureModel load_fixture_model(const nlohmann::json& description, const NamedTensors& tensors, at::ScalarType type,
                                const std::function<at::Tensor(const at::Tensor&)>& order_rows = {});

/// `name` of the only output, `name.I` of the I-th of several.
std::string output_name(const std::string& name, std::size_t index, std::size_t num_outputs);

/// True for models whose inputs and outputs are (B, C, extents): ranks share out the first extent, in the order of the
/// grid.
bool is_grid_model(const FixtureCase& fixture);

/// True for inputs whose second dimension is points or cells, which ranks share out.
bool has_rows(const std::string& argument);

struct FixtureResult {
    std::vector<at::Tensor> outputs;
    NamedTensors gradients;  ///< `grad.KEY` of parameters and `grad_input.ARGUMENT`, as in the fixture
    std::size_t num_parameters = 0;
};

/// Runs the model forward, and backward from the sum over the outputs of sum(output * grad_output).
FixtureResult run_fixture(const nlohmann::json& description, const NamedTensors& tensors, at::ScalarType type);

/// Checks outputs and gradients in single precision against the fixture within the tolerances of the fixtures' README;
/// those of gradients times `slack`.
void expect_reference_values(const FixtureResult& result, const nlohmann::json& description,
                             const NamedTensors& tensors, double slack = 1);

/// True if the case has results in double precision.
bool has_double_values(const NamedTensors& tensors);

/// Checks outputs and gradients in double precision against those of the fixture, to 1e-11 of their largest value.
void expect_double_values(const FixtureResult& result, const NamedTensors& tensors);

/// Largest absolute difference must not exceed `tolerance`.
void expect_near(const std::string& what, const at::Tensor& value, const at::Tensor& expected, double tolerance);

double largest(const at::Tensor& tensor);  ///< absolute value; 0 for no values

}  // namespace meshard::test
