// SPDX-License-Identifier: Apache-2.0
// Weights that models draw when they are made, against those of the reference package for the same seed, to the last
// bit.
#include "io/checkpoints/safetensors.h"
#include "models/geotransolver/geotransolver.h"
#include "models/graph/mesh_graph_net.h"
#include "models/grids/figconv_unet.h"
#include "models/grids/fno.h"
#include "models/grids/unet_3d.h"
#include "models/transolver/flare.h"
#include "models/transolver/transolver.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include <fstream>

namespace meshard {
namespace {

const nlohmann::json& description()
{
    static const auto text = [] {
        std::ifstream file(source_path("tests/data/initial_values/initial_values.json"));
        return nlohmann::json::parse(file);
    }();
    return text;
}

std::shared_ptr<torch::nn::Module> make(const std::string& kind, const nlohmann::json& arguments)
{
    if (kind == "Transolver") return Transolver(transolver_options(arguments)).ptr();
    if (kind == "FLARE") return Flare(transolver_options(arguments)).ptr();
    if (kind == "GeoTransolver") return GeoTransolver(geotransolver_options(arguments)).ptr();
    if (kind == "FIGConvUNet") return FigConvUNet(figconv_unet_options(arguments)).ptr();
    if (kind == "FNO") return Fno(fno_options(arguments)).ptr();
    if (kind == "UNet") return UNet3d(unet_3d_options(arguments)).ptr();
    return MeshGraphNet(mesh_graph_net_options(arguments)).ptr();
}

std::vector<std::string> case_names()
{
    std::vector<std::string> names;
    for (const auto& [name, unused] : description()["cases"].items()) names.push_back(name);
    return names;
}

class InitialValues : public testing::TestWithParam<std::string> {};

TEST_P(InitialValues, AreTheReferencesForTheSameSeed)
{
    const auto file = read_safetensors(source_path("tests/data/initial_values/initial_values.safetensors"));
    const auto& model_case = description()["cases"][GetParam()];

    torch::manual_seed(description()["seed"].get<std::uint64_t>());
    const auto model = make(model_case["class"], model_case["constructor"]);

    auto values = model->named_parameters();
    for (const auto& buffer : model->named_buffers()) values.insert(buffer.key(), buffer.value());
    std::size_t num_expected = 0;
    for (const auto& array : file.arrays) {
        if (array.name.rfind(GetParam() + "/", 0) != 0) continue;
        ++num_expected;
        const auto name = array.name.substr(GetParam().size() + 1);
        ASSERT_TRUE(values.contains(name)) << name;
        const auto expected = torch::from_blob(const_cast<std::byte*>(array.data), array.shape,
                                               array.type == ArrayType::I64 ? torch::kLong : torch::kFloat);
        // Orthogonal matrices come from a factorisation in the processor's own math library, which rounds as it likes;
        // all else is the same bits everywhere.
        const bool is_orthogonal = name.ends_with("in_project_slice.weight");
        const auto& drawn = values[name];
        EXPECT_TRUE(is_orthogonal ? torch::allclose(drawn.detach(), expected, 1e-6, 1e-6)
                                  : torch::equal(drawn.detach(), expected))
            << name << ": drawn " << values[name] << ", the reference's " << expected;
    }
    EXPECT_EQ(num_expected, values.size());
}

INSTANTIATE_TEST_SUITE_P(All, InitialValues, testing::ValuesIn(case_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace meshard
