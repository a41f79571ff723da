// SPDX-License-Identifier: Apache-2.0
// The programs `meshard train` and `meshard predict` from outside, on ellipsoids with fields in closed form.
#include "io/checkpoints/safetensors.h"
#include "partition/mesh/surface_geometry.h"
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace meshard {
namespace {

using nlohmann::json;

/// An ellipsoid with half axes 1, a and b; pressure and shear depend on the normal.
Mesh ellipsoid(float a, float b)
{
    Mesh mesh = sphere(7);
    DataArray points("Points", ScalarType::Float32, mesh.num_points(), 3);
    auto values = points.mutable_values<float>();
    const float axes[] = {1, a, b};
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) {
        for (int c = 0; c < 3; ++c) values[3 * i + c] = static_cast<float>(mesh.points.value(i, c)) * axes[c];
    }
    mesh.points = points;
    mesh.point_data.clear();
    mesh.cell_data.clear();
    std::vector<float> pressure, shear;
    for (const auto& area : area_vectors(mesh)) {
        const auto size = std::hypot(area[0], area[1], area[2]);
        const auto nx = static_cast<float>(area[0] / size);
        pressure.push_back(100 * (1 - 2.25F * (1 - nx * nx)) - 40);
        for (int c = 0; c < 3; ++c)
            shear.push_back((c == 0 ? 1.0F : 0.0F) - nx * static_cast<float>(area[c] / size) + 0.5F * a * b);
    }
    mesh.cell_data = {DataArray::from("pMean", pressure), DataArray::from("tau", shear, 3)};
    return mesh;
}

class TrainCommand : public ProgramTest {
protected:
    TrainCommand()
    {
        int id = 0;
        for (const float a : {0.5F, 0.7F, 0.9F}) {
            for (const float b : {0.4F, 0.8F}) write("body_" + std::to_string(id++) + ".vtp", ellipsoid(a, b));
        }
        write_text("car.yaml",
                   "run_id: car\n"
                   "data:\n"
                   "  root: " +
                       path("") +
                       "\n"
                       "  surface: body_*.vtp\n"
                       "  split: {train: ['0', '1', '3', '4'], val: ['2'], test: ['5']}\n"
                       "  fields: {pressure: {from: pMean, kind: kinematic}, wss: {from: tau, kind: stress}}\n"
                       "model: {n_layers: 2, n_hidden: 16, n_head: 2, mlp_ratio: 2, slice_num: 8}\n"
                       "training: {num_epochs: 5, optimizer: {lr: 5.0e-3}}\n");
    }

    ProgramResult train(const std::string& output_dir, std::vector<std::string> more = {}) const
    {
        std::vector<std::string> arguments{"train", path("car.yaml"), "output_dir=" + path(output_dir)};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return meshard(arguments);
    }

    std::vector<json> lines(const std::string& output_dir, const std::string& phase) const
    {
        std::vector<json> lines;
        std::istringstream file(content_of(path(output_dir + "/car/metrics.jsonl")));
        for (std::string text; std::getline(file, text);) {
            const auto line = json::parse(text);
            if (line["phase"] == phase) lines.push_back(line);
        }
        return lines;
    }
};

TEST_F(TrainCommand, GivesTheSameLossesOnAnyNumberOfRanks)
{
    ASSERT_EQ(train("one").exit_code, 0);
    const auto expected = lines("one", "train_step");
    ASSERT_EQ(expected.size(), 20U);
    const auto epochs = lines("one", "train");
    EXPECT_LT(epochs.back()["loss"].get<double>(), epochs.front()["loss"].get<double>());

    for (const char* num_ranks : {"2", "3"}) {
        const auto result = train(num_ranks, {"--nproc", num_ranks});
        ASSERT_EQ(result.exit_code, 0) << result.err;
        const auto steps = lines(num_ranks, "train_step");
        ASSERT_EQ(steps.size(), expected.size());
        for (std::size_t i = 0; i < steps.size(); ++i) {
            const auto loss = expected[i]["loss"].get<double>();
            EXPECT_NEAR(steps[i]["loss"].get<double>(), loss, 1e-5 * loss) << num_ranks << " ranks, step " << i;
            EXPECT_EQ(steps[i]["case"], expected[i]["case"]);
        }
        EXPECT_NEAR(lines(num_ranks, "test")[0]["metrics"]["pressure"]["rel_l2"].get<double>(),
                    lines("one", "test")[0]["metrics"]["pressure"]["rel_l2"].get<double>(), 1e-4);
    }
}

TEST_F(TrainCommand, RecordsStepsValidationAndTest)
{
    const auto result = train("runs", {"training.val_interval=2"});

    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto steps = lines("runs", "train_step");
    EXPECT_EQ(steps[0]["step"], 1);
    EXPECT_EQ(steps[0]["epoch"], 1);
    EXPECT_EQ(steps[4]["epoch"], 2);
    const auto validations = lines("runs", "val");
    ASSERT_EQ(validations.size(), 3U);  // epochs 2, 4 and the last
    EXPECT_EQ(validations[0]["epoch"], 2);
    EXPECT_GT(validations[0]["metrics"]["wss"]["rel_l2"].get<double>(), 0);
    EXPECT_EQ(lines("runs", "test").size(), 1U);
    const auto weights = read_safetensors(path("runs/car/checkpoints/last.safetensors"));
    EXPECT_NE(weights.find("blocks.1.ln_mlp2.1.weight"), nullptr);
    EXPECT_NE(weights.find("norm.std"), nullptr);
    EXPECT_EQ(json::parse(content_of(path("runs/car/checkpoints/last.json")))["step"], 20);
    EXPECT_NE(content_of(path("runs/car/resolved_config.yaml")).find("val_interval: 2   # command line"),
              std::string::npos);
}

TEST_F(TrainCommand, GoesOnAsIfItHadNotStopped)
{
    ASSERT_EQ(train("whole").exit_code, 0);
    ASSERT_EQ(train("parts", {"training.max_steps=7"}).exit_code, 0);

    const auto result = meshard({"train", "--resume", path("parts/car"), "training.max_steps=0"});

    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto whole = read_safetensors(path("whole/car/checkpoints/last.safetensors"));
    const auto parts = read_safetensors(path("parts/car/checkpoints/last.safetensors"));
    for (const auto& array : whole.arrays) {
        const auto* other = parts.find(array.name);
        ASSERT_NE(other, nullptr) << array.name;
        EXPECT_TRUE(std::ranges::equal(array.bytes(), other->bytes())) << array.name;
    }
    EXPECT_EQ(lines("parts", "train_step").size(), 20U);
}

TEST_F(TrainCommand, AveragesOverDataGroups)
{
    ASSERT_EQ(
        train("runs", {"--nproc", "2", "parallel.domain=1", "training.max_steps=1", "training.order=fixed"}).exit_code,
        0);
    ASSERT_EQ(train("first", {"training.max_steps=1", "training.order=fixed"}).exit_code, 0);
    write_text("order.jsonl", R"({"epoch": 1, "order": ["1", "0", "3", "4"]})");
    ASSERT_EQ(train("second", {"training.max_steps=1", "training.order_file=" + path("order.jsonl")}).exit_code, 0);

    const auto both = lines("runs", "train_step")[0]["loss"].get<double>();
    const auto first = lines("first", "train_step")[0]["loss"].get<double>();
    const auto second = lines("second", "train_step")[0]["loss"].get<double>();

    EXPECT_NEAR(both, 0.5 * (first + second), 1e-6 * both);
    EXPECT_EQ(lines("runs", "train")[0]["steps"], 1);
}

TEST_F(TrainCommand, PredictsTheSameOnAnyNumberOfRanks)
{
    ASSERT_EQ(train("runs").exit_code, 0);
    auto unseen = ellipsoid(0.6F, 0.5F);
    unseen.cell_data = {DataArray::from("wss", std::vector<float>(unseen.num_cells(), 1.0F))};
    write("unseen.vtp", unseen);

    for (const char* num_ranks : {"1", "3"}) {
        const auto result = meshard({"predict", path("runs/car"), path("unseen.vtp"), "-o",
                                     path(std::string("out") + num_ranks + ".vtp"), "--nproc", num_ranks});
        ASSERT_EQ(result.exit_code, 0) << result.err;
    }
    ASSERT_EQ(
        meshard({"predict", path("runs/car"), path("unseen.vtp"), "-o", path("pieces.pvtp"), "--nproc", "3"}).exit_code,
        0);

    for (const char* memory : {"stored", "recomputed", "streamed"}) {
        const auto file = std::string(memory) + ".vtp";
        ASSERT_EQ(
            meshard({"predict", path("runs/car"), path("unseen.vtp"), "-o", path(file), "--memory", memory}).exit_code,
            0)
            << memory;
        const auto expected = find_array(read_mesh(path("out1.vtp")).cell_data, "pressure")->to_doubles(),
                   found = find_array(read_mesh(path(file)).cell_data, "pressure")->to_doubles();
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i)
            ASSERT_NEAR(found[i], expected[i], 2e-3) << memory << " " << i;
    }
    EXPECT_TRUE(
        fails_with(meshard({"predict", path("runs/car"), path("unseen.vtp"), "-o", path("x.vtp"), "--memory", "small"}),
                   2, {"--memory"}));

    const auto serial = read_mesh(path("out1.vtp"));
    ASSERT_NE(find_array(serial.cell_data, "pressure"), nullptr);
    EXPECT_EQ(find_array(serial.cell_data, "wss")->num_components(), 1);  // the mesh's own
    EXPECT_EQ(find_array(serial.cell_data, "wss_predicted")->num_components(), 3);
    for (const char* file : {"out3.vtp", "pieces.pvtp"}) {
        const auto sharded = read_mesh(path(file));
        ASSERT_EQ(sharded.num_cells(), serial.num_cells()) << file;
        for (const char* name : {"pressure", "wss_predicted"}) {
            const auto expected = find_array(serial.cell_data, name)->to_doubles();
            const auto found = find_array(sharded.cell_data, name)->to_doubles();
            for (std::size_t i = 0; i < expected.size(); ++i)
                ASSERT_NEAR(found[i], expected[i], 2e-3) << file << " " << name << " " << i;
        }
    }
    EXPECT_EQ(
        std::ranges::count_if(entries(), [](const auto& name) { return name.find(".parts") != std::string::npos; }), 0);
}

TEST_F(TrainCommand, PredictsOnTrianglesFromStl)
{
    ASSERT_EQ(train("runs", {"training.num_epochs=1"}).exit_code, 0);
    write_text("body.stl",
               "solid tetra\n"
               "facet normal 0 0 -1\nouter loop\nvertex 0 0 0\nvertex 0 1 0\nvertex 1 0 0\nendloop\nendfacet\n"
               "facet normal 0 -1 0\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 0 1\nendloop\nendfacet\n"
               "facet normal -1 0 0\nouter loop\nvertex 0 0 0\nvertex 0 0 1\nvertex 0 1 0\nendloop\nendfacet\n"
               "facet normal 1 1 1\nouter loop\nvertex 1 0 0\nvertex 0 1 0\nvertex 0 0 1\nendloop\nendfacet\n"
               "endsolid tetra\n");

    const auto result = meshard({"predict", path("runs/car"), path("body.stl"), "-o", path("body.vtu")});

    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto mesh = read_mesh(path("body.vtu"));
    EXPECT_EQ(mesh.num_cells(), 4);
    EXPECT_EQ(find_array(mesh.cell_data, "wss")->num_components(), 3);
}

TEST_F(TrainCommand, SaysWhatIsWrongWithTheConfiguration)
{
    EXPECT_TRUE(fails_with(train("runs", {"training.num_epoch=3"}), 2,
                           {"training.num_epoch", "Did you mean 'training.num_epochs'?"}));
    EXPECT_TRUE(fails_with(train("runs", {"data.root=???"}), 2, {"data.root must be set"}));
    EXPECT_TRUE(fails_with(train("runs", {"--nproc", "2", "parallel.domain=3"}), 2, {"make 3 ranks, and there are 2"}));
    EXPECT_TRUE(fails_with(meshard({"train"}), 2, {"the configuration is missing"}));
    EXPECT_TRUE(fails_with(train("runs", {"data.root=" + path("absent")}), 3, {"there is no folder"}));
    EXPECT_TRUE(fails_with(meshard({"train", path("absent.yaml")}), 3, {"cannot be read"}));
    EXPECT_FALSE(std::filesystem::exists(path("runs")));
}

TEST_F(TrainCommand, SaysWhatIsWrongWithTheData)
{
    const auto misspelt = train("a", {"~data.fields", "data.fields.p=pMeen"});
    EXPECT_EQ(misspelt.exit_code, 3);
    EXPECT_NE(misspelt.err.find("case 0 has no cell field 'pMeen'"), std::string::npos) << misspelt.err;
    auto broken = ellipsoid(0.5F, 0.5F);
    auto pressure = broken.cell_data[0];
    pressure.mutable_values<float>()[17] = std::numeric_limits<float>::quiet_NaN();
    broken.cell_data[0] = pressure;
    write("body_3.vtp", broken);
    for (const char* num_ranks : {"1", "2"}) {
        const auto result = train("b", {"--nproc", num_ranks});
        EXPECT_EQ(result.exit_code, 3) << result.err;
        EXPECT_NE(result.err.find("case 3: the array 'pMean' is NaN in row 17"), std::string::npos) << result.err;
    }
}

TEST_F(TrainCommand, StopsWhenTheLossIsNoNumber)
{
    const auto result =
        train("runs", {"training.optimizer.lr=100", "training.optimizer.weight_decay=100", "training.num_epochs=200"});

    EXPECT_EQ(result.exit_code, 4);
    EXPECT_NE(result.err.find("the loss became"), std::string::npos) << result.err;
}

TEST_F(TrainCommand, DoesNotMixRuns)
{
    ASSERT_EQ(train("runs", {"training.max_steps=1"}).exit_code, 0);

    EXPECT_TRUE(fails_with(train("runs"), 3, {"exists", "--resume", "--overwrite"}));
    EXPECT_EQ(train("runs", {"training.max_steps=2", "--overwrite"}).exit_code, 0);
    EXPECT_EQ(lines("runs", "train_step").size(), 2U);
}

TEST_F(TrainCommand, ValidatesWithoutTraining)
{
    const auto result = train("runs", {"--validate"});

    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.err.find("parameters"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("runs/car/metrics.jsonl")));
}

TEST_F(TrainCommand, LeavesAnEarlierRunAloneWhenValidating)
{
    ASSERT_EQ(train("runs", {"training.max_steps=1"}).exit_code, 0);

    EXPECT_EQ(train("runs", {"--validate"}).exit_code, 0);

    EXPECT_TRUE(std::filesystem::exists(path("runs/car/checkpoints/last.safetensors")));
    EXPECT_EQ(lines("runs", "train_step").size(), 1U);
}

TEST_F(TrainCommand, PrintsEverySettingWithItsSource)
{
    const auto result = train("runs", {"--print-config"});

    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out.find("run_id: car   # car.yaml:1:9"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("# default"), std::string::npos);
    EXPECT_NE(meshard({"train", "--list-keys"}).out.find("training.num_epochs"), std::string::npos);
}

TEST_F(TrainCommand, EndsAllRanksWhenOneIsKilled)
{
    const std::string script =
        program_path() + " train " + path("car.yaml") + " output_dir=" + path("runs") +
        " training.num_epochs=1000000 --nproc 3 & launcher=$!\n"
        "for i in $(seq 600); do [ -s " +
        path("runs/car/checkpoints/last.json") +
        " ] && break; sleep 0.1; done\n"
        "kill -9 $(pgrep -P $launcher | tail -n 1); SECONDS=0; wait $launcher; echo \"code $? after $SECONDS\"\n";

    const auto result = run_program("/bin/bash", {"-c", script});

    EXPECT_NE(result.out.find("code 5 after "), std::string::npos) << result.out << result.err;
    EXPECT_LT(std::stoi(result.out.substr(result.out.find("after ") + 6)), 30) << result.out;
    EXPECT_NE(result.err.find("rank 2"), std::string::npos) << result.err;
}

TEST_F(TrainCommand, PredictRefusesWhatItCannotUse)
{
    EXPECT_TRUE(fails_with(meshard({"predict", path("absent"), path("body_0.vtp"), "-o", path("x.vtp")}), 3,
                           {"has no checkpoints"}));
    EXPECT_TRUE(fails_with(meshard({"predict", path("absent"), path("absent.vtp"), "-o", path("x.vtp")}), 3,
                           {"absent.vtp does not exist"}));
    EXPECT_TRUE(fails_with(meshard({"predict", path("absent"), path("body_0.vtp"), "-o", path("x.obj")}), 2,
                           {"must end in .vtp"}));
    EXPECT_TRUE(
        fails_with(meshard({"predict", path("absent"), path("body_0.vtp"), path("body_1.vtp"), "-o", path("x.vtp")}), 2,
                   {"name a folder"}));
    EXPECT_TRUE(
        fails_with(meshard({"predict", path("absent"), path("body_0.vtp"), "-o", path("x.vtp"), "--set", "length"}), 2,
                   {"expected NAME=VALUE"}));
}

}  // namespace
}  // namespace meshard
