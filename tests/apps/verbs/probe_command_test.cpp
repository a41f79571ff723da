// SPDX-License-Identifier: Apache-2.0
// meshard probe on TorchScript models written here: what it finds, what it writes, how it ends.
#include "apps/learning/checkpoints/tensor_file.h"
#include "tests/apps/program_test.h"
#include "tests/support/expect_tensors.h"

#include <torch/script.h>
#include <torch/types.h>

namespace meshard {
namespace {

class Probe : public ProgramTest {
protected:
    /// A model with the given body of forward, which may use self.weight, 8 x 8, and self.kernel, 4 x 4 x 3 x 3.
    std::string model(const std::string& body)
    {
        torch::manual_seed(1);
        torch::jit::Module module("Model");
        weight_ = torch::randn({8, 8});
        kernel_ = torch::randn({4, 4, 3, 3});
        module.register_parameter("weight", weight_.clone().requires_grad_(), false);
        module.register_parameter("kernel", kernel_.clone().requires_grad_(), false);
        module.register_attribute("training", c10::BoolType::get(), true);
        module.define("def forward(self, x):\n" + body);
        module.save(path("model.pt"));
        return path("model.pt");
    }

    std::string input(const std::map<std::string, at::Tensor>& tensors)
    {
        NamedArrays content;
        for (const auto& [name, tensor] : tensors) content.arrays.push_back(to_named_array(name, tensor));
        write_safetensors(path("input.safetensors"), content);
        return path("input.safetensors");
    }

    at::Tensor written(const std::string& name)
    {
        const auto content = read_safetensors(path("out.safetensors"));
        const auto* array = content.find(name);
        return array ? to_tensor(*array) : at::Tensor();
    }

    at::Tensor weight_, kernel_;
};

TEST_F(Probe, SaysThatAModelShardsAndWritesWhatItGave)
{
    const auto file =
        model("    y = torch.relu(torch.matmul(x, self.weight))\n    return y / (y.mean(dim=1, keepdim=True) + 1.0)\n");
    const auto x = torch::randn({2, 11, 8}), factors = torch::randn({2, 11, 8});

    const auto result =
        meshard({"probe", file, "--input", input({{"input", x}, {"grad_output", factors}}), "--shard", "1", "--nproc",
                 "3", "--uneven", "0.6,0,0.4", "--backward", "--output", path("out.safetensors"), "--json"});

    ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_TRUE(json["equal"]);
    EXPECT_EQ(json["input"], "Shard(1) of 7+0+4 on domain");
    EXPECT_TRUE(json["refused"].is_null());
    EXPECT_EQ(json["differences"][0]["name"], "output");
    // The plain formula, here.
    auto leaf = x.clone().requires_grad_(), weight = weight_.clone().requires_grad_();
    const auto y = torch::relu(torch::matmul(leaf, weight));
    const auto expected = y / (y.mean(1, true) + 1.0);
    (expected * factors).sum().backward();
    EXPECT_TRUE(tensors_near(written("output"), expected, 1e-5));
    EXPECT_TRUE(tensors_near(written("grad_input"), leaf.grad(), 1e-5));
    EXPECT_TRUE(tensors_near(written("grad.weight"), weight.grad(), 1e-5));
}

TEST_F(Probe, CutsTwoDimensionsOverAGrid)
{
    const auto file = model("    return torch.conv2d(x, self.kernel, padding=[1, 1]).abs()\n");
    const auto result = meshard({"probe", file, "--input", input({{"input", torch::randn({1, 4, 9, 7})}}), "--shard",
                                 "2,3", "--nproc", "4", "--backward", "--json"});

    ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_EQ(json["mesh"], nlohmann::json({2, 2}));
    EXPECT_EQ(json["input"], "Shard(2) of 7+2 on rows, Shard(3) of 5+2 on columns");
}

TEST_F(Probe, ShowsWhichOperatorsTalkAndWhichGather)
{
    const auto file = model("    return torch.renorm(x, 2.0, 0, 1.0) + 1\n");
    const auto in = input({{"input", torch::randn({5, 8})}});

    const auto json = meshard_json({"probe", file, "--input", in, "--shard", "0"});

    bool gathered = false;
    for (const auto& op : json["operators"]) {
        if (op["name"] != "aten::renorm") continue;
        gathered = op["gathered"];
        EXPECT_GT(op["bytes"], 0);
        EXPECT_EQ(op["inputs"], "Shard(0) of 4+1 on domain");
    }
    EXPECT_TRUE(gathered);
    const auto text = meshard({"probe", file, "--input", in, "--shard", "0"});
    EXPECT_NE(text.out.find("Equal: this model shards."), std::string::npos) << text.out;
    EXPECT_NE(text.out.find("1 call(s) gathered"), std::string::npos) << text.out;
}

TEST_F(Probe, EndsWithSixWhereAnOperatorIsRefused)
{
    const auto file = model("    y = x * 1\n    y.resize_([8, 5])\n    return y\n");
    const auto result =
        meshard({"probe", file, "--input", input({{"input", torch::randn({5, 8})}}), "--shard", "0", "--json"});

    EXPECT_EQ(result.exit_code, 6) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_EQ(json["refused"]["operator"], "aten::resize_");
}

TEST_F(Probe, TellsWhatIsWrongWithItsArguments)
{
    const auto file = model("    return x + 1\n");
    const auto in = input({{"input", torch::randn({5, 8})}});
    EXPECT_TRUE(fails_with(meshard({"probe", file, "--input", in, "--shard", "2"}), 3, {"--shard 2", "2 dimensions"}));
    EXPECT_TRUE(fails_with(meshard({"probe", file, "--input", in, "--shard", "0,0"}), 2, {"two different ones"}));
    EXPECT_TRUE(fails_with(meshard({"probe", file, "--input", in, "--shard", "0", "--uneven", "0.5,0.3,0.2"}), 2,
                           {"3 shares for 2 ranks"}));
    EXPECT_TRUE(fails_with(meshard({"probe", path("none.pt"), "--input", in, "--shard", "0"}), 3,
                           {"cannot be read as a TorchScript model"}));
    EXPECT_TRUE(fails_with(meshard({"probe", path("car.pt2"), "--input", in, "--shard", "0"}), 3,
                           {"car.pt2 is a program of torch.export", "meshard.probe(torch.export.load("}));
    for (const auto& read : {file, in})
        EXPECT_TRUE(fails_with(meshard({"probe", file, "--input", in, "--shard", "0", "--output", read}), 2,
                               {read, "is read"}));
    EXPECT_TRUE(fails_with(meshard({"probe", file, "--input", input({{"other", torch::randn({5})}}), "--shard", "0"}),
                           3, {"no tensor 'x' or 'input'", "'other'"}));
}

}  // namespace
}  // namespace meshard
