// SPDX-License-Identifier: Apache-2.0
#include "apps/console/console.h"
#include "apps/learning/settings/described_keys.h"
#include "apps/learning/settings/training_config.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace meshard {
namespace {

DataConfig data_config(const nlohmann::json& description)
{
    DataConfig data;
    DescribedKeys keys(description, "data");
    describe(keys, data);
    return data;
}

constexpr const char* kSmall = R"(
data:
  root: cases
  surface: "boundary_*.vtp"
  fields: {pressure: {from: pMean, kind: kinematic}, wss: {from: tau, kind: stress}}
)";

class TrainingConfigTest : public testing::Test {
protected:
    TrainingRunConfig read(const std::vector<std::string>& overrides = {}, const std::string& yaml = kSmall) const
    {
        write_bytes(folder_ / "car.yaml", yaml);
        return training_config(read_training_settings(folder_ / "car.yaml", overrides));
    }

    testing::AssertionResult refuses(const std::string& setting, std::string_view text) const
    {
        return throws_with<UsageError>(text, [&] { read({setting}); });
    }

    TemporaryFolder folder_;
};

TEST_F(TrainingConfigTest, FillsInWhatIsNotSaid)
{
    const auto config = read();

    EXPECT_EQ(config.run_dir(), "runs/run");
    EXPECT_EQ(config.data.shards, "runs/run/shards");
    EXPECT_EQ(config.data.fields.size(), 2U);
    EXPECT_EQ(config.data.fields[1].name, "wss");
    EXPECT_EQ(config.data.fields[1].from, "tau");
    EXPECT_EQ(config.model.name, "transolver");
    EXPECT_EQ(model_arguments(config.model, config.data, 4).at("embedding_dim"), 6);
    EXPECT_EQ(model_arguments(config.model, config.data, 4).at("functional_dim"), 1);
    EXPECT_EQ(config.data.split.shares.at("train"), 1.0);
    EXPECT_TRUE(config.data.on_cells);
}

TEST_F(TrainingConfigTest, ChangesToAnotherModel)
{
    const auto sample = source_path("apps/sample/ahmed.yaml");

    for (const std::string name : {"meshgraphnet", "flare", "geotransolver"}) {
        const std::vector<std::string> words{"~model", "model.name=" + name,
                                             "data.sampling_resolution=0"};  // graphs take whole cases
        EXPECT_EQ(training_config(read_training_settings(sample, words)).model.name, name);
    }
    const std::vector<std::string> words{"model.name=meshgraphnet", "model.hidden_dim_processor=24",
                                         "data.sampling_resolution=0"};
    std::vector<std::string> dropped;
    const auto settings = read_training_settings(sample, words, &dropped);
    const auto config = training_config(settings);
    EXPECT_EQ(config.model.arguments.at("hidden_dim_processor"), 24);
    EXPECT_FALSE(config.model.arguments.contains("slice_num"));
    EXPECT_TRUE(std::find(dropped.begin(), dropped.end(), "model.slice_num") != dropped.end());
    dropped.clear();
    EXPECT_EQ(training_config(read_training_settings(
                                  sample, std::vector<std::string>{"model.name=flare", "model.n_hidden=24"}, &dropped))
                  .model.arguments.at("n_hidden"),
              24);
    EXPECT_TRUE(throws_with<UsageError>("model.slice_num", [&] {
        read_training_settings(sample, std::vector<std::string>{"model.name=meshgraphnet", "model.slice_num=8"});
    }));
}

TEST_F(TrainingConfigTest, ReadsTheSampleConfiguration)
{
    const auto settings = read_training_settings(source_path("apps/sample/ahmed.yaml"), {});

    const auto config = training_config(settings);

    EXPECT_EQ(config.data.split.column, "split");
    EXPECT_EQ(config.model.arguments.at("n_hidden"), 64);
}

TEST_F(TrainingConfigTest, TakesEveryModelWithItsOwnKeysAndDefaults)
{
    const auto geotransolver = read({"model.name=geotransolver", "model.include_local_features=true",
                                     "model.radii=[.1]", "model.neighbors_in_radius=[+7]"});
    const auto arguments = model_arguments(geotransolver.model, geotransolver.data, 4);
    EXPECT_EQ(arguments.at("functional_dim"), 6);
    EXPECT_EQ(arguments.at("out_dim"), 4);
    EXPECT_EQ(arguments.at("geometry_dim"), 3);
    EXPECT_TRUE(arguments.at("global_dim").is_null());
    EXPECT_EQ(arguments.at("radii"), nlohmann::json::array({0.1}));
    EXPECT_EQ(arguments.at("n_layers"), 4);

    const auto graph = read({"model.name=meshgraphnet", "model.processor_size=3"});
    EXPECT_EQ(model_arguments(graph.model, graph.data, 4).at("hidden_dim_processor"), 128);
    EXPECT_TRUE(throws_with<UsageError>("model.n_head", [&] { read({"model.name=meshgraphnet", "model.n_head=4"}); }));

    const auto grids = read({"model.name=figconvunet", "data.center=bounds", "data.length=bounds"});
    const auto box = model_arguments(grids.model, grids.data, 4);
    EXPECT_EQ(box.at("aabb_min"), nlohmann::json::array({-0.5, -0.5, -0.5}));
    EXPECT_EQ(box.at("aabb_max"), nlohmann::json::array({0.5, 0.5, 0.5}));
    EXPECT_TRUE(throws_with<UsageError>("model.aabb_min and model.aabb_max",
                                        [&] { read({"model.name=figconvunet", "data.length=2.5"}); }));
    const auto given =
        read({"model.name=figconvunet", "data.length=2.5", "model.aabb_min=[0, 0, 0]", "model.aabb_max=[2, 1, 1]"});
    EXPECT_EQ(model_arguments(given.model, given.data, 4).at("aabb_max"), nlohmann::json::array({2, 1, 1}));
    EXPECT_TRUE(throws_with<InvalidInput>("model.out_dim is 3, but data.inputs has 6 channels, data.constants 0, "
                                          "data.time is not given, and the fields have 4 channels",
                                          [&] {
                                              const auto stated = read({"model.out_dim=3"});
                                              model_arguments(stated.model, stated.data, 4);
                                          }));
}

TEST_F(TrainingConfigTest, LetsTheTimeFollowFromTheData)
{
    const auto steady = read({}), timed = read({"data.cases=cases.csv", "data.time=t"});
    EXPECT_EQ(model_arguments(steady.model, steady.data, 4).at("time_input"), false);
    EXPECT_EQ(model_arguments(timed.model, timed.data, 4).at("time_input"), true);
    EXPECT_EQ(data_config(to_json(timed.data)).time, "t");
    EXPECT_TRUE(refuses("model.time_input=true", "data.time is not given"));
    EXPECT_TRUE(refuses("data.time=t", "needs data.cases"));
}

TEST_F(TrainingConfigTest, KnowsWhatThePointsAreTold)
{
    const std::vector<std::string> words{"data.inputs=[points, sdf, normals, areas]", "data.wall=body_*.stl"};
    const auto data = read(words).data;

    EXPECT_EQ(num_point_channels(data), 8);
    EXPECT_EQ(model_arguments(read(words).model, data, 4).at("embedding_dim"), 8);
    EXPECT_EQ(data.wall, "body_*.stl");
    const auto kept = data_config(to_json(data));
    EXPECT_EQ(kept.inputs, data.inputs);
    const auto patches = read({"data.inputs=[points, sdf]", "data.wall_patches=[boundary/car, boundary/wheels]"}).data;
    EXPECT_EQ(data_config(to_json(patches)).wall_patches,
              (std::vector<std::string>{"boundary/car", "boundary/wheels"}));
    EXPECT_TRUE(throws_with<UsageError>("exclude each other", [&] {
        read({"data.inputs=[points, sdf]", "data.wall=a.stl", "data.wall_patches=[b]"});
    }));
}

TEST_F(TrainingConfigTest, RefusesWhatExactModeDoesNotServe)
{
    const auto refuses_exactly = [&](std::vector<std::string> words, std::string_view text) {
        words.push_back("training.exact=true");
        return throws_with<UsageError>(text, [&] { read(words); });
    };

    EXPECT_TRUE(read({"training.exact=true"}).training.exact);
    EXPECT_FALSE(read().training.exact);
    EXPECT_TRUE(refuses_exactly({"training.memory=streamed"},
                                "training.memory is streamed, which training.exact does not go with"));
    EXPECT_TRUE(refuses_exactly({"training.precision=bfloat16"}, "training.precision is bfloat16"));
    EXPECT_TRUE(refuses_exactly({"parallel.data=3"}, "parallel.data is 3"));
    EXPECT_TRUE(refuses_exactly({"model.name=meshgraphnet"}, "model.name is meshgraphnet"));
    EXPECT_TRUE(refuses_exactly({"model.name=figconvunet"}, "model.name is figconvunet"));
    EXPECT_TRUE(refuses_exactly({"model.name=geotransolver", "model.include_local_features=true"},
                                "model.include_local_features is true"));
}

TEST_F(TrainingConfigTest, RefusesByNameWhatIsNotImplemented)
{
    EXPECT_TRUE(
        refuses("training.precision=float64", "float64 is not implemented. Available: float32, tf32, bfloat16, bf16"));
    EXPECT_TRUE(refuses("training.optimizer.name=soap", "soap is not implemented. Available: adamw, lion, muon"));
    EXPECT_TRUE(refuses("model.name=geotransolvr", "did you mean 'geotransolver'?"));
    EXPECT_TRUE(refuses("parallel.backend=ucc", "parallel.backend is 'ucc'"));
    EXPECT_EQ(read({"parallel.backend=nccl"}).backend, "nccl");
    EXPECT_EQ(read().device, "auto");
    EXPECT_EQ(read({"device=cuda"}).device, "cuda");
    EXPECT_EQ(read().data.num_sampled, 0);
    EXPECT_EQ(read({"data.sampling_resolution=1000"}).data.num_sampled, 1000);
    EXPECT_TRUE(refuses("data.sampling_resolution=-1", "data.sampling_resolution"));
    EXPECT_TRUE(throws_with<UsageError>("MeshGraphNet's messages go along edges",
                                        [&] { read({"data.sampling_resolution=1000", "model.name=meshgraphnet"}); }));
    EXPECT_TRUE(read({"data.sampling=areas"}).data.sampling == SamplingKind::Areas);
    EXPECT_EQ(read({"data.forces.center=[axle, 0, 0]"}).forces.center, (std::vector<std::string>{"axle", "0", "0"}));
    EXPECT_TRUE(refuses("data.forces.center=[1, 0]", "must be three numbers"));
    EXPECT_TRUE(refuses("data.forces.length=0", "must be above 0"));
    EXPECT_TRUE(
        refuses("data.inputs=[points, sdf_normals]",
                "sdf_normals is not implemented. Available: points, normals, sdf, wall_direction, areas, height"));
}

TEST_F(TrainingConfigTest, KeepsInCheckpointsWhatPredictionsNeed)
{
    const std::vector<std::string> words{
        "data.targets=nondimensional", "data.vector_deviation=shared", "data.reference={U_inf: [3, 0, 4], rho: 1.2}",
        "data.forces.up=[0, 1, 0]",    "data.inputs=[points, height]", "data.ground=-0.3",
        "data.encoding=fourier",       "data.encoding_frequencies=5",  "data.encoding_scales=[1, 2]"};
    const auto config = read(words);
    const auto kept = data_config(nlohmann::json::parse(to_json(config.data).dump()));
    for (const auto* data : {&config.data, &kept}) {
        EXPECT_TRUE(data->nondimensional);
        EXPECT_TRUE(data->shares_deviation);
        EXPECT_EQ(data->reference, (std::map<std::string, double>{{"U_inf", 5}, {"rho", 1.2}}));
        EXPECT_EQ(data->frame.up, (std::array<double, 3>{0, 1, 0}));
        EXPECT_EQ(data->frame.ground, "-0.3");
        EXPECT_EQ(data->encoding.kind, "fourier");
        EXPECT_EQ(data->encoding.num_channels(), 20);
        EXPECT_EQ(num_point_channels(*data), 4);
        EXPECT_EQ(model_arguments(config.model, *data, 4).at("embedding_dim"), 24);
    }
    // What does not matter may change between a run and its resumption.
    EXPECT_EQ(to_json(read().data), to_json(read({"data.reference={U_inf: 7}", "data.forces.up=[1, 0, 0]",
                                                  "data.encoding_frequencies=9", "data.ground=2"})
                                                .data));
    EXPECT_NE(to_json(read(words).data), to_json(read().data));
    EXPECT_EQ(to_json(data_config(to_json(read().data))), to_json(read().data));
}

TEST_F(TrainingConfigTest, ReadsAugmentation)
{
    EXPECT_FALSE(read().training.augmentation.is_any());
    const auto varied = read({"training.augment.mirror=y", "training.augment.translation=[1, 0, 2]",
                              "training.augment.rotation=90", "data.cases=cases.csv", "data.constants=[a, b, c, yaw]",
                              "training.augment.free_stream=[a, b, c]", "training.augment.sided_constants=[yaw]"})
                            .training.augmentation;
    EXPECT_EQ(varied.mirror_axis, 1);
    EXPECT_NEAR(varied.rotation, M_PI / 2, 1e-12);
    EXPECT_EQ(varied.translation, (std::array<double, 3>{1, 0, 2}));
    for (const std::string one : {"data.inputs=[points, height]", "training.coefficient_weights=[0, 1]"}) {
        EXPECT_TRUE(throws_with<UsageError>("training.augment.mirror turns cases upside down",
                                            [&] { read({"training.augment.mirror=z", one, "data.cases=cases.csv"}); }));
        read({"training.augment.mirror=y", one, "data.cases=cases.csv"});
    }
    EXPECT_TRUE(refuses("training.augment.rotation=5", "training.augment.rotation turns the free stream"));
    EXPECT_TRUE(refuses("training.augment.mirror=x", "training.augment.mirror turns the free stream"));
    EXPECT_TRUE(throws_with<UsageError>(
        "turns the free stream", [&] { read({"training.augment.mirror=y", "data.reference.U_inf=[3, 4, 0]"}); }));
    EXPECT_TRUE(throws_with<UsageError>("needs one data.length", [&] {
        read({"training.augment.rotation=5", "data.cases=cases.csv", "data.constants=[a, b, c]",
              "training.augment.free_stream=[a, b, c]", "data.length='1,2,3'"});
    }));
    EXPECT_TRUE(throws_with<UsageError>("boxes do not turn along", [&] {
        read({"training.augment.rotation=5", "data.cases=cases.csv", "data.constants=[a, b, c]",
              "training.augment.free_stream=[a, b, c]", "data.inputs=[points, box]"});
    }));
    EXPECT_TRUE(refuses("training.augment.sided_constants=[yaw]", "names 'yaw', which is none of data.constants"));
    EXPECT_TRUE(throws_with<UsageError>("names 'a' as training.augment.free_stream does", [&] {
        read({"data.cases=cases.csv", "data.constants=[a, b, c]", "training.augment.mirror=y",
              "training.augment.free_stream=[a, b, c]", "training.augment.sided_constants=[a]"});
    }));
    EXPECT_TRUE(throws_with<UsageError>("names 'a' twice", [&] {
        read({"data.cases=cases.csv", "data.constants=[a]", "training.augment.mirror=y",
              "training.augment.sided_constants=[a, a]"});
    }));
}

TEST_F(TrainingConfigTest, ReadsLosses)
{
    const auto plain = read().training;
    ASSERT_EQ(plain.loss.terms.size(), 1U);
    EXPECT_EQ(plain.loss.terms[0].kind, LossKind::MeanSquare);
    EXPECT_TRUE(plain.field_weights.empty());

    const auto mixed = read({"training.loss=[mse, relative_l2]", "training.loss_weights=[1, 0.05]",
                             "training.field_weights={pressure: 3, wss: [1, 2, 3]}",
                             "data.inputs=[points, normals, areas]", "training.point_weights=areas"});
    ASSERT_EQ(mixed.training.loss.terms.size(), 2U);
    EXPECT_EQ(mixed.training.loss.terms[1].kind, LossKind::RelativeL2);
    EXPECT_EQ(mixed.training.loss.terms[1].weight, 0.05);
    EXPECT_EQ(mixed.training.field_weights.at("wss"), (std::vector<double>{1, 2, 3}));
    EXPECT_TRUE(mixed.training.weighs("areas") && !mixed.training.weighs("volumes"));
    EXPECT_TRUE(mixed.data.has_measures);
    EXPECT_EQ(first_channel(mixed.data, "areas"), 6);
    EXPECT_FALSE(read().data.has_measures);
    EXPECT_TRUE(read({"training.point_weights=volumes"}).training.weighs("volumes"));
}

TEST_F(TrainingConfigTest, ReadsGroupsOfParameters)
{
    EXPECT_FALSE(read().training.betas.has_value());
    EXPECT_EQ(read({"training.optimizer.betas=[0.8, 0.9]"}).training.betas, (std::array{0.8, 0.9}));

    const auto groups = read({"training.optimizer.groups={head: {match: ['*.mlp2.*', b], lr: 0, name: lion}, rest: "
                              "{match: x, weight_decay: 0.5}}"})
                            .training.parameter_groups;
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups[0].match, (std::vector<std::string>{"*.mlp2.*", "b"}));
    EXPECT_EQ(groups[0].learning_rate, 0.0);
    EXPECT_FALSE(groups[0].weight_decay.has_value());
    EXPECT_EQ(groups[0].optimizer, "lion");
    EXPECT_EQ(groups[1].weight_decay, 0.5);
}

TEST_F(TrainingConfigTest, NamesKeysThatDoNothingBesideTheOthers)
{
    write_bytes(folder_ / "car.yaml", kSmall);
    const auto found = [&](const std::vector<std::string>& words) {
        const auto settings = read_training_settings(folder_ / "car.yaml", words);
        return keys_without_effect(settings, training_rules(settings.text("model.name")));
    };
    using Texts = std::vector<std::string>;
    EXPECT_EQ(found({"training.huber_delta=0.5"}), Texts{"training.huber_delta (only with training.loss=huber)"});
    EXPECT_EQ(found({"training.huber_delta=1.0"}), Texts{});  // the default, as the settings of a run state it
    EXPECT_EQ(found({"training.huber_delta=0.5", "training.loss=[mse, huber]"}), Texts{});
    EXPECT_EQ(found({"training.optimizer.momentum=0.9", "training.part_weights=[2, 1]"}),
              (Texts{"training.optimizer.momentum (only with training.optimizer.name=muon or "
                     "training.optimizer.groups.*.name=muon)",
                     "training.part_weights (only with data.volume.files)"}));
    EXPECT_EQ(found({"training.optimizer.momentum=0.9", "training.optimizer.groups.a={match: x, name: muon}"}),
              Texts{});
    EXPECT_EQ(found({"data.sampling=areas", "data.sampling_resolution=0"}).size(), 1U);
    EXPECT_EQ(found({"data.sampling=areas", "data.sampling_resolution=10"}), Texts{});
    EXPECT_EQ(found({"training.scheduler.gamma=0.5"}),
              Texts{"training.scheduler.gamma (only with training.scheduler.name=step|exponential|plateau)"});
    EXPECT_EQ(found({"training.scheduler.gamma=0.5", "training.scheduler.name=plateau"}), Texts{});
    EXPECT_EQ(found({"model.name=geotransolver", "model.n_hidden_local=8"}),
              Texts{"model.n_hidden_local (only with model.include_local_features=true)"});
    EXPECT_EQ(found({"model.name=domino", "model.self_attention=true", "model.processor_type=conv"}),
              Texts{"model.self_attention (only with model.processor_type=unet)"});
    EXPECT_EQ(found({"model.name=domino", "model.self_attention=true"}), Texts{});
    EXPECT_EQ(found({"model.name=figconvunet", "model.knn_k=8", "model.use_rel_pos=false"}),
              (Texts{"model.knn_k (only with model.neighbor_search_type=knn)",
                     "model.use_rel_pos (only with model.use_rel_pos_embed=false)"}));
    EXPECT_EQ(found({"model.name=figconvunet", "model.neighbor_search_type=knn", "model.knn_k=8",
                     "model.use_rel_pos=false", "model.use_rel_pos_embed=false"}),
              Texts{});
    EXPECT_EQ(found({"model.name=unet", "model.attn_intermediate_channels=8"}),
              Texts{"model.attn_intermediate_channels (only with model.use_attn_gate=true)"});
    EXPECT_EQ(found({"model.name=dit", "model.attn_kernel=5"}),
              Texts{"model.attn_kernel (only with model.attention_backend=natten2d|natten2d_rope)"});
    EXPECT_EQ(found({"model.name=dit", "model.attn_kernel=5", "model.attention_backend=natten2d"}), Texts{});

    const auto rules = training_rules();
    for (const auto& rule : rules) {  // what a key needs can be said
        for (const auto& condition : rule.only_with) {
            const auto equals = condition.find('=');
            const auto* other = rule_of(rules, condition.substr(0, equals));
            ASSERT_NE(other, nullptr) << rule.path;
            std::istringstream words(equals == std::string::npos ? "" : condition.substr(equals + 1));
            for (std::string word; std::getline(words, word, '|') && !other->bounds.words.empty();)
                EXPECT_TRUE(contains(other->bounds.words, word)) << rule.path << " " << word;
        }
    }
    for (const char* folder : {"apps/sample", "apps/recipes"}) {
        for (const auto& file : std::filesystem::directory_iterator(source_path(folder))) {
            if (file.path().extension() != ".yaml") continue;
            auto text = read_bytes(file.path());
            for (std::size_t at; (at = text.find("???")) != text.npos;) text.replace(at, 3, "1");
            write_bytes(folder_ / "car.yaml", text);
            EXPECT_EQ(found({}), Texts{}) << file;
        }
    }
}

TEST_F(TrainingConfigTest, RefusesWhatDoesNotFitTogether)
{
    EXPECT_TRUE(refuses("model.n_head=7", "is not one of 7"));
    EXPECT_TRUE(refuses("model.radii=[0.1]", "model.radii"));
    EXPECT_TRUE(refuses("model.embedding_dim=3", "data.inputs has 6 channels"));
    EXPECT_TRUE(refuses("data.inputs=[normals]", "must begin with points and name each input once"));
    EXPECT_TRUE(refuses("data.inputs=[points, areas, areas]", "must begin with points and name each input once"));
    EXPECT_TRUE(refuses("data.inputs=[points, sdf]", "has sdf, the distance to a surface, and there is none"));
    EXPECT_TRUE(refuses("data.wall=body_*.stl", "names a surface whose distance nobody asks for"));
    EXPECT_TRUE(refuses("data.surface=boundary.vtp", "needs a * where the case's id stands"));
    EXPECT_TRUE(refuses("data.volume=volume_*.vtu", "exclude each other"));
    EXPECT_TRUE(refuses("data.split.column=split", "needs data.cases"));
    EXPECT_TRUE(refuses("data.split={train: 0.8, val: 0.3}", "add up to 1.1"));
    EXPECT_TRUE(refuses("data.split={manifest: m.json, train: 0.8}", "must name lists of data.split.manifest"));
    EXPECT_TRUE(refuses("data.split={manifest: m.json, name: full, train: [full_train]}",
                        "data.split.name exclude each other"));
    EXPECT_TRUE(
        refuses("data.split={manifest: '*_ids.txt', train: [full_train]}", "is a file a part: leave one of them out"));
    EXPECT_TRUE(refuses("data.split={manifest: '*_ids.txt', name: full}", "is a file a part: leave one of them out"));
    EXPECT_TRUE(refuses("data.split={name: full}", "give data.split.manifest"));
    EXPECT_TRUE(refuses("data.split={manifest: m.json, column: split}", "exclude each other"));
    EXPECT_TRUE(refuses("data.split={train: 0.8, val: [a]}", "not both"));
    EXPECT_TRUE(refuses("run_id=a/b", "without slashes"));
    EXPECT_TRUE(refuses("run_id=..", "a folder of the run's own"));
    EXPECT_TRUE(refuses("run_id=.", "a folder of the run's own"));
    EXPECT_TRUE(refuses("run_id=", "'run_id=' has no value"));
    EXPECT_TRUE(refuses("training.optimizer.betas=[0.9]",
                        "training.optimizer.betas is [0.9]; expected 2 numbers from 0 to 0.999999999, or auto"));
    EXPECT_TRUE(refuses("training.optimizer.groups.head.lr=1e-3",
                        "training.optimizer.groups.head.match must say which parameters"));
    EXPECT_TRUE(refuses("training.optimizer.groups={head: {match: a, lrr: 1}}", "lrr"));
    EXPECT_TRUE(throws_with<UsageError>("needs a training.optimizer.lr above 0", [&] {
        read({"training.optimizer.groups={head: {match: a, lr: 1}}", "training.optimizer.lr=0"});
    }));
    EXPECT_TRUE(throws_with<UsageError>("one_cycle has a warm-up of its own", [&] {
        read({"training.scheduler.name=one_cycle", "training.scheduler.warmup_steps=3"});
    }));
    EXPECT_TRUE(refuses("training.ema=1", "training.ema is '1'"));
    EXPECT_TRUE(refuses("training.scheduler.gamma=1.5", "training.scheduler.gamma is '1.5'"));
    EXPECT_TRUE(refuses("training.early_stop.patience=-1", "training.early_stop.patience is '-1'"));
    EXPECT_TRUE(refuses("training.max_minutes=-1", "training.max_minutes is '-1'"));
    EXPECT_TRUE(refuses("training.keep_last=1.5", "training.keep_last is '1.5'"));
    EXPECT_TRUE(refuses("training.loss=[]", "expected one for each of training.loss"));
    EXPECT_TRUE(refuses("training.loss=[mse, hubr]", "did you mean 'huber'?"));
    EXPECT_TRUE(refuses("training.loss_weights=[1, 2]",
                        "has 2 numbers; expected one for each of training.loss, of which there are 1"));
    EXPECT_TRUE(refuses("training.loss_weights=[0]", "are all 0"));
    EXPECT_TRUE(refuses("training.loss_weights=[-1]", "training.loss_weights"));
    EXPECT_TRUE(refuses("training.field_weights.cp=2", "a field that data.fields has not; it has pressure, wss"));
    EXPECT_TRUE(refuses("training.point_weights=[none, areas]", "must be none, areas, volumes"));
    EXPECT_TRUE(refuses("data.fields.extra.kind=cp", "data.fields.extra must say which array it is"));
    EXPECT_TRUE(refuses("training.field_weights={pressure: 0, wss: 0}", "are 0 for all fields"));
    EXPECT_TRUE(refuses("training.field_weights.pressure=[]", "is empty; expected a number"));
    EXPECT_TRUE(refuses("training.optimizer.groups={frozen: {}}", "training.optimizer.groups.frozen says nothing"));
    EXPECT_TRUE(refuses("data.fields={pressure: , wss: {from: wss}}", "data.fields.pressure says nothing"));
    EXPECT_TRUE(
        refuses("data.reference.Rho=2", "data.reference.Rho is no quantity that is used; known are U_inf, rho"));
    EXPECT_TRUE(refuses("data.fields.wss_predicted.from=x", "the name that predictions of another field have"));
    for (const char* nothing : {"null", "~", "#5"})
        EXPECT_TRUE(refuses(std::string("training.num_epochs=") + nothing, "gives no value (null)"));
    for (const char* length : {"0", "-1", "'1, 0, 2'"})
        EXPECT_TRUE(refuses(std::string("data.length=") + length, "places are divided by it"));
}

TEST_F(TrainingConfigTest, SpreadsRanksOverDataAndDomain)
{
    using Shape = std::array<std::int64_t, 2>;

    EXPECT_EQ(mesh_shape(read(), 4), (Shape{1, 4}));
    EXPECT_EQ(mesh_shape(read({"parallel.domain=1"}), 4), (Shape{4, 1}));
    EXPECT_EQ(mesh_shape(read({"parallel.data=2"}), 6), (Shape{2, 3}));
    EXPECT_EQ(mesh_shape(read({"parallel.data=2", "parallel.domain=3"}), 6), (Shape{2, 3}));
    EXPECT_TRUE(throws_with<UsageError>("make 6 ranks, and there are 4",
                                        [&] { mesh_shape(read({"parallel.data=2", "parallel.domain=3"}), 4); }));
    EXPECT_TRUE(
        throws_with<UsageError>("make 3 ranks, and there are 4", [&] { mesh_shape(read({"parallel.domain=3"}), 4); }));
    auto blocks = read();
    blocks.domain = {2, 3};
    EXPECT_EQ(mesh_shape(blocks, 12), (Shape{2, 6}));
    EXPECT_TRUE(throws_with<UsageError>("make 6 ranks, and there are 4", [&] { mesh_shape(blocks, 4); }));

    EXPECT_TRUE(throws_with<UsageError>("training.exact does not go with 3 data groups",
                                        [&] { mesh_shape(read({"training.exact=true", "parallel.domain=1"}), 3); }));
    auto unrolled = read({"parallel.parameters=sharded", "parallel.domain=1"});
    unrolled.training.unroll.num_steps = 3;
    EXPECT_TRUE(throws_with<UsageError>("training.unroll=3 in 4 data groups", [&] { mesh_shape(unrolled, 4); }));
    unrolled.training.unroll.num_steps = 1;
    unrolled.model.name = "abupt";
    EXPECT_TRUE(throws_with<UsageError>("does not go with abupt in 4 data groups", [&] { mesh_shape(unrolled, 4); }));
    EXPECT_NO_THROW(mesh_shape(unrolled, 1));
    EXPECT_TRUE(throws_with<UsageError>("the cases are no grids", [&] { read({"parallel.domain=[2, 3]"}); }));
    EXPECT_TRUE(throws_with<UsageError>("parallel.domain is an empty list", [&] { read({"parallel.domain=[]"}); }));
    EXPECT_TRUE(throws_with<UsageError>("expected a whole number, or a list of such, from 1 to 1000000, or auto",
                                        [&] { read({"parallel.domain=[2, 0.5]"}); }));
}

}  // namespace
}  // namespace meshard
