// SPDX-License-Identifier: Apache-2.0
// `meshard train` with every model, and `meshard predict --model` with the weights of a file.
#include "io/checkpoints/model_checkpoint.h"
#include "io/mesh_io.h"
#include "partition/mesh/surface_geometry.h"
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace meshard {
namespace {

using nlohmann::json;

class ModelChoice : public ProgramTest {
protected:
    ModelChoice()
    {
        for (int id = 0; id < 3; ++id) {
            auto mesh = sphere(5);
            mesh.point_data.clear();
            mesh.cell_data.clear();
            std::vector<float> pressure, shear;
            for (const auto& area : area_vectors(mesh)) {
                const auto size = std::hypot(area[0], area[1], area[2]);
                pressure.push_back(static_cast<float>(50 * area[0] / size + 10 * id));
                for (int c = 0; c < 3; ++c) shear.push_back(static_cast<float>(area[c] / size));
            }
            mesh.cell_data = {DataArray::from("pMean", pressure), DataArray::from("tau", shear, 3)};
            write("body_" + std::to_string(id) + ".vtp", mesh);
        }
        write_text("cases.csv", "id,speed,density\n0,1.0,1.2\n1,1.1,1.2\n2,1.2,1.3\n");
    }

    ProgramResult train(const std::string& model, const std::string& output_dir,
                        std::vector<std::string> more = {}) const
    {
        write_text("car.yaml", "run_id: car\n"
                               "data:\n"
                               "  root: " +
                                   path("") +
                                   "\n"
                                   "  surface: body_*.vtp\n"
                                   "  cases: cases.csv\n"
                                   "  constants: [speed, density]\n"
                                   "  split: {train: ['0', '1'], val: ['2']}\n"
                                   "  fields: {pressure: {from: pMean}, wss: {from: tau}}\n"
                                   "model: " +
                                   model +
                                   "\n"
                                   "training: {num_epochs: 2, optimizer: {lr: 1.0e-3}}\n");
        std::vector<std::string> arguments{"train", path("car.yaml"), "output_dir=" + path(output_dir)};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return meshard(arguments);
    }

    std::vector<double> losses(const std::string& output_dir) const
    {
        std::vector<double> losses;
        std::istringstream file(content_of(path(output_dir + "/car/metrics.jsonl")));
        for (std::string text; std::getline(file, text);) {
            const auto line = json::parse(text);
            if (line["phase"] == "train_step") losses.push_back(line["loss"].get<double>());
        }
        return losses;
    }

    /// The fields' statistics of a checkpoint, as PhysicsNeMo keeps them beside a model.
    void write_statistics(const std::string& checkpoint) const
    {
        const auto norm = read_safetensors(checkpoint);
        const auto* mean = reinterpret_cast<const float*>(norm.find("norm.mean")->data);
        const auto* deviation = reinterpret_cast<const float*>(norm.find("norm.std")->data);
        const auto statistics = [&](const float* values) {
            return json{{"pressure", {values[0]}}, {"shear_stress", {values[1], values[2], values[3]}}};
        };
        write_text("global_stats.json", json{{"mean", statistics(mean)}, {"std_dev", statistics(deviation)}}.dump());
    }

    std::vector<float> field(const std::string& file, const std::string& name) const
    {
        const auto mesh = read_mesh(path(file));
        const auto* array = find_array(mesh.cell_data, name);
        EXPECT_NE(array, nullptr) << file << ' ' << name;
        if (!array) return {};
        const auto values = array->values<float>();
        return {values.begin(), values.end()};
    }
};

const char* const kModels[] = {
    "{name: flare, n_layers: 1, n_hidden: 16, n_head: 2, mlp_ratio: 2, slice_num: 4}",
    "{name: transolver, plus: true, n_layers: 1, n_hidden: 16, n_head: 2, mlp_ratio: 2, slice_num: 4}",
    "{name: geotransolver, include_local_features: true, radii: [0.3, 0.6], neighbors_in_radius: [3, 5], "
    "n_hidden_local: 4, n_layers: 1, n_hidden: 16, n_head: "
    "2, slice_num: 4}",
    "{name: meshgraphnet, processor_size: 2, hidden_dim_processor: 8, num_neighbors: 4}",
};

TEST_F(ModelChoice, TrainsAndPredictsTheSameOnRanks)
{
    for (const std::string model : kModels) {
        SCOPED_TRACE(model);
        const auto name =
            model.substr(7, model.find(',') - 7) + (model.find("plus") != std::string::npos ? "_plus" : "");
        const auto serial = train(model, name);
        ASSERT_EQ(serial.exit_code, 0) << serial.err;
        const auto sharded = train(model, name + "_3", {"--nproc", "3"});
        ASSERT_EQ(sharded.exit_code, 0) << sharded.err;

        const auto a = losses(name), b = losses(name + "_3");
        ASSERT_EQ(a.size(), 4U);
        ASSERT_EQ(b.size(), 4U);
        for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i], 1e-4 * a[i]) << "step " << i;

        for (const char* ranks : {"1", "2"}) {
            const auto result =
                meshard({"predict", path(name + "/car"), path("body_2.vtp"), "-o", path(name + ranks + ".vtp"), "--set",
                         "speed=1.2", "--set", "density=1.3", "--nproc", ranks});
            ASSERT_EQ(result.exit_code, 0) << result.err;
        }
        const auto alone = field(name + "1.vtp", "pressure"), together = field(name + "2.vtp", "pressure");
        ASSERT_EQ(alone.size(), together.size());
        for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(alone[i], together[i], 1e-3) << i;
    }
}

TEST_F(ModelChoice, PredictsWithAFileAsWithItsRun)
{
    ASSERT_EQ(train(kModels[2], "runs").exit_code, 0);
    const std::vector<std::string> given{"--set", "speed=1.2", "--set", "density=1.3"};
    const auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
        words.insert(words.end(), more.begin(), more.end());
        return meshard(words);
    };
    ASSERT_EQ(with({"predict", path("runs/car"), path("body_2.vtp"), "-o", path("run.vtp")}, given).exit_code, 0);

    const auto own = with({"predict", "--model", path("runs/car/checkpoints/best.safetensors"), path("body_2.vtp"),
                           "-o", path("own.vtp")},
                          given);
    ASSERT_EQ(own.exit_code, 0) << own.err;
    EXPECT_EQ(field("own.vtp", "pressure"), field("run.vtp", "pressure"));

    // As a file for PhysicsNeMo, the statistics beside it.
    ASSERT_EQ(meshard({"convert", path("runs/car/checkpoints/best.safetensors"), path("model.mdlus")}).exit_code, 0);
    write_statistics(path("runs/car/checkpoints/best.safetensors"));
    const auto file = meshard({"predict", "--model", path("model.mdlus"), path("body_2.vtp"), "-o", path("file.vtp"),
                               "--constants", "1.2,1.3", "--center", "bounds", "--length", "bounds"});
    ASSERT_EQ(file.exit_code, 0) << file.err;
    EXPECT_EQ(field("file.vtp", "pressure"), field("run.vtp", "pressure"));
    EXPECT_EQ(field("file.vtp", "shear_stress"), field("run.vtp", "wss"));

    // A bare state dict, with the architecture beside it.
    ASSERT_EQ(meshard({"convert", path("model.mdlus"), path("bare.pt")}).exit_code, 0);
    EXPECT_TRUE(std::filesystem::remove(path("bare.json")));
    const std::vector<std::string> predict{"predict",  "--model",        path("bare.pt"), path("body_2.vtp"),
                                           "-o",       path("bare.vtp"), "--constants",   "1.2,1.3",
                                           "--center", "bounds",         "--length",      "bounds"};
    EXPECT_TRUE(fails_with(meshard(predict), 3, {"does not say which model", "bare.json"}));
    write_text("bare.json", json{{"model_class", "GeoTransolver"},
                                 {"model", json::parse(read_checkpoint(path("model.mdlus")).arguments)}}
                                .dump());
    const auto bare = meshard(predict);
    ASSERT_EQ(bare.exit_code, 0) << bare.err;
    EXPECT_EQ(field("bare.vtp", "pressure"), field("run.vtp", "pressure"));

    // Arguments that would take all memory, or never end.
    for (const auto& [name, value] : {std::pair("n_layers", 2147483648.0), std::pair("n_hidden", 1e9),
                                      std::pair("slice_num", 1e9), std::pair("mlp_ratio", 1e12)}) {
        auto arguments = json::parse(read_checkpoint(path("model.mdlus")).arguments);
        arguments[name] = static_cast<std::int64_t>(value);
        write_text("bare.json", json{{"model_class", "GeoTransolver"}, {"model", arguments}}.dump());
        EXPECT_TRUE(fails_with(meshard(predict), 3, {name, "do not fit"})) << name;
    }
}

TEST_F(ModelChoice, TellsAModelTheTimeOfACase)
{
    for (const std::string name : {"transolver", "flare"}) {
        SCOPED_TRACE(name);
        const auto model = "{name: " + name + ", n_layers: 1, n_hidden: 16, n_head: 2, mlp_ratio: 2, slice_num: 4}";
        const std::vector<std::string> timed{"data.constants=[speed]", "data.time=density"};
        auto on_ranks = timed;
        on_ranks.insert(on_ranks.end(), {"--nproc", "3"});
        const auto serial = train(model, name, timed), sharded = train(model, name + "_3", on_ranks);
        ASSERT_EQ(serial.exit_code, 0) << serial.err;
        ASSERT_EQ(sharded.exit_code, 0) << sharded.err;
        const auto a = losses(name), b = losses(name + "_3");
        ASSERT_EQ(a.size(), 4U);
        ASSERT_EQ(b.size(), 4U);
        for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i], 1e-4 * a[i]) << "step " << i;

        const auto predict = [&](const std::string& output, std::vector<std::string> more) {
            more.insert(more.begin(), "predict");
            more.insert(more.end(), {"-o", path(output)});
            return meshard(more);
        };
        const auto run = path(name + "/car"), body = path("body_2.vtp");
        EXPECT_TRUE(fails_with(predict("x.vtp", {run, body, "--set", "speed=1.2"}), 2,
                               {"the model is told 'density'", "--set density="}));
        ASSERT_EQ(predict("early.vtp", {run, body, "--set", "speed=1.2", "--set", "density=1.3"}).exit_code, 0);
        ASSERT_EQ(predict("late.vtp", {run, body, "--set", "speed=1.2", "--set", "density=2.3"}).exit_code, 0);
        EXPECT_NE(field("early.vtp", "pressure"), field("late.vtp", "pressure"));

        const auto weights = path(name + "/car/checkpoints/best.safetensors");
        ASSERT_EQ(meshard({"convert", weights, path(name + ".mdlus")}).exit_code, 0);
        write_statistics(weights);
        const std::vector<std::string> file{
            body, "--model", path(name + ".mdlus"), "--constants", "1.2", "--center", "bounds", "--length", "bounds"};
        EXPECT_TRUE(fails_with(predict("x.vtp", file), 3, {"told the time", "--time"}));
        auto with_time = file;
        with_time.insert(with_time.end(), {"--time", "1.3"});
        const auto result = predict("file.vtp", with_time);
        ASSERT_EQ(result.exit_code, 0) << result.err;
        EXPECT_EQ(field("file.vtp", "pressure"), field("early.vtp", "pressure"));
    }
    EXPECT_TRUE(fails_with(train(kModels[2], "none", {"data.time=density"}), 2,
                           {"data.time is 'density'", "geotransolver is told no time"}));
}

TEST_F(ModelChoice, PredictsWithAGraphNetworksFile)
{
    ASSERT_EQ(train(kModels[3], "runs").exit_code, 0);
    ASSERT_EQ(meshard({"predict", path("runs/car"), path("body_2.vtp"), "-o", path("run.vtp"), "--set", "speed=1.2",
                       "--set", "density=1.3"})
                  .exit_code,
              0);
    write_statistics(path("runs/car/checkpoints/best.safetensors"));
    const auto predict = [&](const std::string& file, std::vector<std::string> more) {
        std::vector<std::string> words{"predict",        "--model",  path(file), path("body_2.vtp"), "-o",
                                       path("file.vtp"), "--center", "bounds",   "--length",         "bounds"};
        words.insert(words.end(), more.begin(), more.end());
        return meshard(words);
    };

    for (const std::string file : {"model.mdlus", "model.pt"}) {  // what the graph is travels along
        ASSERT_EQ(meshard({"convert", path("runs/car/checkpoints/best.safetensors"), path(file)}).exit_code, 0);
        const auto result = predict(file, {"--constants", "1.2,1.3"});
        ASSERT_EQ(result.exit_code, 0) << result.err;
        EXPECT_EQ(field("file.vtp", "pressure"), field("run.vtp", "pressure")) << file;
    }

    // As PhysicsNeMo would write it.
    auto description = json::parse(read_checkpoint(path("model.mdlus")).arguments);
    description.erase("num_neighbors");
    write_text("model.json", json{{"model_class", "MeshGraphNet"}, {"model", description}}.dump());
    const auto by_default = predict("model.pt", {"--constants", "1.2,1.3"});
    ASSERT_EQ(by_default.exit_code, 0) << by_default.err;
    EXPECT_NE(by_default.err.find("does not say its graph: each point hears its 6 nearest"), std::string::npos)
        << by_default.err;
    EXPECT_NE(field("file.vtp", "pressure"), field("run.vtp", "pressure"));
    ASSERT_EQ(predict("model.pt", {"--constants", "1.2,1.3", "--neighbors", "4"}).exit_code, 0);
    EXPECT_EQ(field("file.vtp", "pressure"), field("run.vtp", "pressure"));

    EXPECT_TRUE(fails_with(predict("model.pt", {}), 3, {"numbers of each point besides constants", "--constants"}));
    description["input_dim_edges"] = 3;
    write_text("model.json", json{{"model_class", "MeshGraphNet"}, {"model", description}}.dump());
    EXPECT_NE(predict("model.pt", {"--constants", "1.2,1.3"}).exit_code, 0);
}

TEST_F(ModelChoice, SaysWhatAFileLacks)
{
    ASSERT_EQ(train(kModels[0], "runs").exit_code, 0);
    ASSERT_EQ(meshard({"convert", path("runs/car/checkpoints/last.safetensors"), path("model.mdlus")}).exit_code, 0);
    const auto predict = [&](std::vector<std::string> more) {
        std::vector<std::string> words{"predict",          "--model", path("model.mdlus"),
                                       path("body_0.vtp"), "-o",      path("out.vtp")};
        words.insert(words.end(), more.begin(), more.end());
        return meshard(words);
    };

    EXPECT_TRUE(fails_with(predict({}), 3, {"the model is told 2 constants", "--constants"}));
    EXPECT_TRUE(
        fails_with(predict({"--constants", "1,2", "--neighbors", "5"}), 3, {"--neighbors is for models on graphs"}));
    EXPECT_TRUE(fails_with(predict({"--constants", "1,2", "--time", "5"}), 3, {"told no time", "--time"}));
    EXPECT_TRUE(
        fails_with(predict({"--constants", "1,2", "--fields", "p,tau:2"}), 3, {"gives 4 channels, the fields have 3"}));
    const auto result = predict({"--constants", "1,2", "--fields", "p,tau:3"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.err.find("global_stats.json"), std::string::npos) << result.err;
    EXPECT_EQ(field("out.vtp", "tau_predicted").size(), 3 * field("out.vtp", "p").size());
    EXPECT_TRUE(
        fails_with(meshard({"predict", path("runs/car"), path("body_0.vtp"), "-o", path("x.vtp"), "--constants", "1"}),
                   2, {"--constants belongs to --model"}));
    EXPECT_TRUE(fails_with(meshard({"predict", path("runs/car"), path("body_0.vtp"), "-o", path("x.vtp")}), 2,
                           {"'speed' of a case. Give them with --set density=... --set speed="}));
}

TEST_F(ModelChoice, RefusesKeysOfOtherModels)
{
    EXPECT_TRUE(fails_with(train("{name: meshgraphnet, n_head: 4}", "runs"), 2, {"car.yaml:", "model.n_head"}));
    EXPECT_TRUE(fails_with(
        train("{name: geotransolver, attention_type: GALE_FE}", "runs"), 2,
        {"car.yaml:", "model.attention_type is 'GALE_FE' (did you mean 'GALE_FA'?)", "expected GALE, GALE_FA"}));
    EXPECT_TRUE(fails_with(train("{name: geotransolve}", "runs"), 2, {"did you mean 'geotransolver'"}));
}

}  // namespace
}  // namespace meshard
