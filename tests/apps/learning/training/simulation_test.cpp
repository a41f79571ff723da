// SPDX-License-Identifier: Apache-2.0
// Simulations in time: losses and gradients of unrolled steps on any ranks, against roll-outs of `predict` and against
// differences of losses; roll-outs and resumed runs to the bit.
#include "io/checkpoints/safetensors.h"
#include "io/mesh_io.h"
#include "tests/apps/program_test.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <random>

namespace meshard {
namespace {

using nlohmann::json;

constexpr int kNumPoints = 61, kNumStates = 7;

/// A cloud that turns and stretches, with a field that travels over it, at uneven times in milliseconds.
class Simulation : public ProgramTest {
protected:
    Simulation()
    {
        std::mt19937 generator(7);
        std::uniform_real_distribution<double> draw(-1, 1);
        for (int run = 0; run < 3; ++run) {
            const double speed = 1 + 0.3 * run;
            std::vector<std::array<double, 3>> start(kNumPoints);
            for (auto& place : start)
                for (auto& x : place) x = draw(generator);
            std::string index = "<VTKFile type=\"Collection\" version=\"0.1\"><Collection>\n";
            std::filesystem::create_directories(path("run_" + std::to_string(run)));
            for (int i = 0; i < kNumStates; ++i) {
                const double time = time_of(i), angle = speed * time * 1e-3;
                std::vector<float> places, heat, strength;
                for (const auto& [x, y, z] : start) {
                    places.push_back(static_cast<float>(x * std::cos(angle) - y * std::sin(angle)));
                    places.push_back(static_cast<float>(x * std::sin(angle) + y * std::cos(angle)));
                    places.push_back(static_cast<float>(z * (1 + 0.2 * angle)));
                    heat.push_back(static_cast<float>(300 + 20 * std::sin(3 * x - 4 * angle)));
                    strength.push_back(static_cast<float>(speed));
                }
                Mesh mesh;
                mesh.kind = MeshKind::Surface;
                mesh.points = DataArray::from("Points", places, 3);
                mesh.point_data = {DataArray::from("T", heat), DataArray::from("strength", strength)};
                const auto name = "run_" + std::to_string(run) + "/s_" + std::to_string(i) + ".vtp";
                write(name, mesh);
                index += "<DataSet timestep=\"" + std::to_string(time) + "\" file=\"" + name + "\"/>\n";
            }
            write_text("run_" + std::to_string(run) + ".pvd", index + "</Collection></VTKFile>\n");
        }
        write_text("sim.yaml", "run_id: sim\n"
                               "data:\n"
                               "  root: " +
                                   path("") +
                                   "\n"
                                   "  series: run_*.pvd\n"
                                   "  association: point\n"
                                   "  fields: {heat: T, place: points}\n"
                                   "  arrays: [strength]\n"
                                   "  split: {train: ['0', '1'], val: ['2']}\n"
                                   "model: {n_layers: 2, n_hidden: 16, n_head: 2, mlp_ratio: 1, slice_num: 4}\n"
                                   "training: {num_epochs: 2, order: fixed}\n");
    }

    /// Mean time between the states of the steps that train with two told states.
    static double mean_step() { return (time_of(kNumStates - 1) - time_of(1)) / (kNumStates - 2); }
    static double time_of(int state) { return 100.0 * state + (state % 2 == 1 ? 30 : 0); }

    ProgramResult train(const std::string& output_dir, std::vector<std::string> more) const
    {
        more.insert(more.begin(), {"train", path("sim.yaml"), "output_dir=" + path(output_dir)});
        return meshard(more);
    }
    std::string run(const std::string& output_dir) const { return path(output_dir + "/sim"); }
    NamedArrays checkpoint(const std::string& output_dir) const
    {
        return read_safetensors(run(output_dir) + "/checkpoints/last.safetensors");
    }
    std::vector<double> losses(const std::string& output_dir) const
    {
        std::vector<double> found;
        std::istringstream file(content_of(run(output_dir) + "/metrics.jsonl"));
        for (std::string text; std::getline(file, text);) {
            const auto line = json::parse(text);
            if (line.at("phase") == "train_step") found.push_back(line.at("loss"));
        }
        return found;
    }

    static std::vector<float> values_of(const NamedArray& array)
    {
        const auto* begin = reinterpret_cast<const float*>(array.data);
        return {begin, begin + array.num_values()};
    }

    /// The gradients of the first step, by parameter: a tenth of them is the optimiser's first mean.
    std::map<std::string, std::vector<float>> gradients(const std::string& output_dir) const
    {
        const std::string prefix = "optimizer.exp_avg.";
        std::map<std::string, std::vector<float>> found;
        for (const auto& array : checkpoint(output_dir).arrays) {
            if (!array.name.starts_with(prefix)) continue;
            auto& values = found[array.name.substr(prefix.size())] = values_of(array);
            for (auto& value : values) value *= 10;
        }
        return found;
    }
};

double norm(const std::vector<float>& values)
{
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
}

struct Learning {
    const char* name;
    std::vector<std::string> settings;
};

class Unrolled : public Simulation, public testing::WithParamInterface<Learning> {};

TEST_P(Unrolled, LosesAndLearnsAsMuchOnRanksAsAlone)
{
    auto settings = GetParam().settings;
    settings.emplace_back("training.max_steps=1");
    ASSERT_EQ(train("alone", settings).exit_code, 0);
    const auto loss = losses("alone").at(0);
    const auto expected = gradients("alone");
    ASSERT_GT(expected.size(), 20U);
    for (const char* ranks : {"2", "3"}) {
        SCOPED_TRACE(ranks);
        auto more = settings;
        more.insert(more.end(), {"--nproc", ranks});
        const auto result = train(std::string("on") + ranks, more);
        ASSERT_EQ(result.exit_code, 0) << result.err;

        EXPECT_NEAR(losses(std::string("on") + ranks).at(0), loss, 2e-6 * loss);
        const auto found = gradients(std::string("on") + ranks);
        ASSERT_EQ(found.size(), expected.size());
        double largest = 0;
        for (const auto& [name, gradient] : expected) largest = std::max(largest, norm(gradient));
        for (const auto& [name, gradient] : expected) {
            auto difference = found.at(name);
            for (std::size_t i = 0; i < gradient.size(); ++i) difference[i] -= gradient[i];
            // Gradients that cancel to nearly nothing have the rounding of what cancels.
            EXPECT_LE(norm(difference), 2e-4 * norm(gradient) + 1e-6 * largest) << name;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    All, Unrolled,
    testing::Values(Learning{"OneStep", {}}, Learning{"ThreeSteps", {"training.unroll=3"}},
                    Learning{"ThreeStepsEachAlone", {"training.unroll=3", "training.unroll_gradient=step"}},
                    Learning{"NoisyRates", {"training.unroll=2", "training.noise=0.1", "data.next=rate"}},
                    Learning{"StatesOfAHistory", {"training.unroll=2", "data.next=state", "data.history=2"}},
                    Learning{"OfAGraph",
                             {"training.unroll=2", "training.noise=0.05", "model.name=meshgraphnet", "~model.n_layers",
                              "~model.n_hidden", "~model.n_head", "~model.mlp_ratio", "~model.slice_num",
                              "model.processor_size=1", "model.hidden_dim_processor=8", "model.num_neighbors=4"}}),
    [](const auto& info) { return info.param.name; });

/// The loss of the first training step, which goes through three states of run 0, from states that `predict` writes
/// with the same weights.
TEST_F(Simulation, LossOfUnrolledStepsIsThatOfTheStatesThatPredictWrites)
{
    ASSERT_EQ(train("still", {"training.unroll=3", "training.optimizer.lr=0", "training.max_steps=1"}).exit_code, 0);
    const auto result = meshard({"predict", run("still"), path("run_0.pvd"), "--steps", "3", "-o", path("out.pvd")});
    ASSERT_EQ(result.exit_code, 0) << result.err;

    const auto deviations = values_of(*checkpoint("still").find("norm.std"));  // of the changes: T, x, y, z
    double sum = 0;
    for (int i = 1; i <= 3; ++i) {
        const auto predicted = read_mesh(path("out/out_000" + std::to_string(i) + ".vtp")),
                   truth = read_mesh(path("run_0/s_" + std::to_string(i) + ".vtp"));
        for (int row = 0; row < kNumPoints; ++row) {
            for (int c = 0; c < 4; ++c) {
                const auto of = [&](const Mesh& mesh) {
                    return c == 0 ? require_array(mesh.point_data, "T", "", "point").value(row)
                                  : mesh.points.value(row, c - 1);
                };
                const double error = (of(predicted) - of(truth)) / deviations[static_cast<std::size_t>(c)];
                sum += error * error / (3 * 4 * kNumPoints);
            }
        }
    }
    EXPECT_NEAR(losses("still").at(0), sum, 1e-4 * sum);
}

/// A small step along the gradient changes the loss by the gradient's square.
TEST_F(Simulation, GradientThroughAllUnrolledStepsIsThatOfTheLoss)
{
    const std::vector<std::string> settings{"training.unroll=4", "training.optimizer.lr=0", "training.max_steps=1",
                                            "training.optimizer.weight_decay=0"};
    ASSERT_EQ(train("start", settings).exit_code, 0);
    const auto gradient = gradients("start");
    double square = 0;
    for (const auto& [name, values] : gradient) square += norm(values) * norm(values);

    const double length = 5e-4 / std::sqrt(square);
    std::array<double, 2> moved{};
    for (int side = 0; side < 2; ++side) {
        const auto file = checkpoint("start");
        NamedArrays weights;
        std::vector<std::vector<float>> memory;
        memory.reserve(file.arrays.size());
        for (const auto& array : file.arrays) {
            const auto found = gradient.find(array.name);
            if (found == gradient.end()) continue;
            auto& values = memory.emplace_back(values_of(array));
            for (std::size_t i = 0; i < values.size(); ++i)
                values[i] += static_cast<float>((side == 0 ? -length : length) * found->second[i]);
            weights.arrays.push_back(
                {array.name, ArrayType::F32, array.shape, reinterpret_cast<const std::byte*>(values.data()), nullptr});
        }
        ASSERT_EQ(weights.arrays.size(), gradient.size());
        write_safetensors(path("moved.safetensors"), weights);
        auto more = settings;
        more.insert(more.end(), {"training.init=" + path("moved.safetensors"), "--overwrite"});
        const auto result = train("moved", more);
        ASSERT_EQ(result.exit_code, 0) << result.err;
        moved[static_cast<std::size_t>(side)] = losses("moved").at(0);
    }
    EXPECT_NEAR((moved[1] - moved[0]) / (2 * length), square, 0.01 * square);
}

TEST_F(Simulation, TablesOfRollOutsCompareWithTheFirstStateAndTheMean)
{
    ASSERT_EQ(train("once", {"training.max_steps=1"}).exit_code, 0);
    std::istringstream table(content_of(run("once") + "/val_rollout.csv"));
    std::string line;
    std::getline(table, line);
    EXPECT_EQ(line, "run,step,time,field,rel_l2,persistence,mean");
    std::map<std::pair<int, std::string>, double> persistence;
    while (std::getline(table, line)) {
        std::array<std::string, 7> words;
        std::istringstream text(line);
        for (auto& word : words) std::getline(text, word, ',');
        EXPECT_EQ(words[0], "2");
        EXPECT_EQ(std::stod(words[2]), time_of(std::stoi(words[1])));
        persistence[{std::stoi(words[1]), words[3]}] = std::stod(words[5]);
    }
    ASSERT_EQ(persistence.size(), 2U * (kNumStates - 1));
    const auto first = read_mesh(path("run_2/s_0.vtp"));
    for (int i = 1; i < kNumStates; ++i) {
        const auto truth = read_mesh(path("run_2/s_" + std::to_string(i) + ".vtp"));
        double heat = 0, heat_size = 0, place = 0, place_size = 0;
        for (int row = 0; row < kNumPoints; ++row) {
            const auto of = [&](const Mesh& mesh) {
                return require_array(mesh.point_data, "T", "", "point").value(row);
            };
            heat += std::pow(of(first) - of(truth), 2);
            heat_size += std::pow(of(truth), 2);
            for (int c = 0; c < 3; ++c) {
                place += std::pow(first.points.value(row, c) - truth.points.value(row, c), 2);
                place_size += std::pow(truth.points.value(row, c), 2);
            }
        }
        EXPECT_NEAR((persistence[{i, "heat"}]), std::sqrt(heat / heat_size), 1e-5);
        EXPECT_NEAR((persistence[{i, "place"}]), std::sqrt(place / place_size), 1e-5);
    }
}

TEST_F(Simulation, RunThatStopsInAnUnrolledEpochGoesOnToTheSameBits)
{
    const std::vector<std::string> settings{"training.unroll=3", "training.unroll_interval=1", "training.noise=0.05",
                                            "training.order=shuffled"};
    ASSERT_EQ(train("whole", settings).exit_code, 0);
    auto more = settings;
    more.emplace_back("training.max_steps=17");  // an epoch has twelve
    ASSERT_EQ(train("parts", more).exit_code, 0);
    const auto resumed = meshard({"train", "--resume", run("parts"), "training.max_steps=0"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;

    EXPECT_EQ(losses("parts"), losses("whole"));
    const auto found = checkpoint("parts"), expected = checkpoint("whole");
    ASSERT_EQ(found.arrays.size(), expected.arrays.size());
    for (const auto& array : expected.arrays)
        EXPECT_TRUE(std::ranges::equal(array.bytes(), found.find(array.name)->bytes())) << array.name;
}

TEST_F(Simulation, PredictionsGoOnToTheSameBitsAndAreThoseOfRanks)
{
    ASSERT_EQ(train("run", {"data.history=2"}).exit_code, 0);
    const auto predict = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {"predict", run("run"), path("run_2.pvd")});
        const auto result = meshard(more);
        ASSERT_EQ(result.exit_code, 0) << result.err;
    };
    predict({"--steps", "9", "-o", path("whole.pvd")});
    predict({"--steps", "4", "-o", path("parts.pvd")});
    predict({"--steps", "9", "-o", path("parts.pvd"), "--resume"});
    predict({"--steps", "9", "-o", path("ranks.pvd"), "--nproc", "3"});

    const auto last = read_mesh(path("whole.pvd"));
    EXPECT_NEAR(require_array(last.field_data, "TimeValue", "", "field").value(0), time_of(6) + 4 * mean_step(), 1e-9)
        << "after the series that is followed the training's mean step is taken";
    EXPECT_EQ(difference(read_mesh(path("parts.pvd")), last), "");
    EXPECT_EQ(require_array(last.point_data, "strength", "", "point").value(5), 1.6F);
    const auto of_ranks = read_mesh(path("ranks.pvd"));
    for (int row = 0; row < kNumPoints; ++row) {
        EXPECT_NEAR(of_ranks.points.value(row, 0), last.points.value(row, 0), 1e-3);
        EXPECT_NEAR(require_array(of_ranks.point_data, "T", "", "point").value(row),
                    require_array(last.point_data, "T", "", "point").value(row), 0.05);
    }
}

}  // namespace
}  // namespace meshard
