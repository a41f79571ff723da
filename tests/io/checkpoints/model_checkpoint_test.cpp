// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/mapped_file.h"
#include "io/bytes/zip_archive.h"
#include "io/checkpoints/model_checkpoint.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/run_program.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace meshard {
namespace {

namespace fs = std::filesystem;

const fs::path kCheckpoints = source_path("tests/data/checkpoints");

nlohmann::json json_of(const fs::path& path)
{
    return nlohmann::json::parse(read_bytes(path));
}

float float_at(const NamedArray& array)
{
    float value = 0;
    std::memcpy(&value, array.data, sizeof value);
    return value;
}

void expect_same(const NamedArray& found, const NamedArray& expected)
{
    EXPECT_EQ(found.type, expected.type) << found.name;
    EXPECT_EQ(found.shape, expected.shape) << found.name;
    ASSERT_EQ(found.bytes().size(), expected.bytes().size()) << found.name;
    EXPECT_TRUE(std::ranges::equal(found.bytes(), expected.bytes())) << found.name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found.data) % size_of(found.type), 0U) << found.name;
}

void expect_same(const NamedArrays& found, const NamedArrays& expected)
{
    EXPECT_EQ(found.arrays.size(), expected.arrays.size());
    for (const auto& array : found.arrays) {
        const auto* same = expected.find(array.name);
        ASSERT_NE(same, nullptr) << array.name;
        expect_same(array, *same);
    }
}

ProgramResult run_python(const fs::path& script, const std::vector<std::string>& arguments)
{
    const char* named = std::getenv("MESHARD_PYTHON");
    std::vector<std::string> all{named ? named : "python3", script.string()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return run_program("/usr/bin/env", all);
}

bool has_python()
{
    const TemporaryFolder folder;
    write_bytes(folder / "a.py", "print('yes')");
    return run_python(folder / "a.py", {}).out == "yes\n";
}

class ReferenceCheckpoints : public testing::TestWithParam<test::CheckpointFixture> {};

TEST_P(ReferenceCheckpoints, AreReadInEveryFormat)
{
    const auto info = GetParam().info();
    const auto expected = read_safetensors(GetParam().folder / "weights.safetensors");
    const auto files = GetParam().model_files();
    ASSERT_FALSE(files.empty());
    for (const auto& file : files) {
        SCOPED_TRACE(file.string());

        const auto checkpoint = read_checkpoint(file);

        expect_same(checkpoint.weights, expected);
        if (file.extension() == ".mdlus") {
            EXPECT_EQ(checkpoint.architecture, test::kind_of(info));
            const auto arguments = nlohmann::json::parse(checkpoint.arguments);
            for (const auto& [key, value] : info["constructor"].items()) {
                if (value.is_object() && !arguments.contains(key))
                    continue;  // the arguments of a model within the model
                EXPECT_EQ(arguments.at(key), value) << key;
            }
        } else if (file.filename() == "state_dict_nested.pt") {
            EXPECT_EQ(nlohmann::json::parse(checkpoint.others).at("epoch"), info["epoch"]);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceCheckpoints, testing::ValuesIn(test::checkpoint_fixtures()),
                         test::NameOfFixture());

TEST(ModelCheckpoint, ReadsTheOptimizerOfTheReference)
{
    std::size_t num_files = 0;
    for (const auto& fixture : test::checkpoint_fixtures()) {
        const auto info = fixture.info();
        const auto values = read_safetensors(fixture.folder / "values.safetensors");
        for (const auto& file : fixture.optimizer_files()) {
            SCOPED_TRACE(file.string());
            ++num_files;

            const auto checkpoint = read_checkpoint(file);

            const auto others = nlohmann::json::parse(checkpoint.others);
            EXPECT_EQ(others.at("epoch"), info["epoch"]);
            EXPECT_EQ(others.at("optimizer_state_dict").at("param_groups").at(0).at("lr"),
                      info["optimizer"]["lr_of_next_step"]);
            std::size_t num_compared = 0;
            for (std::size_t i = 0; i < info["parameter_order"].size(); ++i) {
                for (const char* what : {"exp_avg", "exp_avg_sq", "step"}) {
                    const auto* expected = values.find(std::string("optimizer.") + what + "." +
                                                       info["parameter_order"][i].get<std::string>());
                    const auto* found =
                        checkpoint.weights.find("optimizer_state_dict.state." + std::to_string(i) + "." + what);
                    ASSERT_EQ(expected == nullptr, found == nullptr) << i << what;
                    if (!found) continue;
                    // The values stored beside it are those after one more step, which
                    // apps/reference_checkpoint_test.cpp takes.
                    EXPECT_EQ(found->shape, expected->shape) << i << what;
                    EXPECT_EQ(found->type, ArrayType::F32) << i << what;
                    if (std::string_view(what) == "step") {
                        EXPECT_EQ(float_at(*found), float_at(*expected) - 1) << i;
                    }
                    ++num_compared;
                }
            }
            EXPECT_EQ(num_compared, checkpoint.weights.arrays.size());
        }
    }
    EXPECT_GT(num_files, 0U);
}

TEST(ModelCheckpoint, ReadsEveryTypeAndLayoutOfTensors)
{
    const auto expected = read_safetensors(kCheckpoints / "kinds.safetensors");
    for (const char* name : {"kinds.pt", "kinds_legacy.pt"}) {
        SCOPED_TRACE(name);
        const auto checkpoint = read_checkpoint(kCheckpoints / name);
        expect_same(checkpoint.weights, expected);
        EXPECT_EQ(checkpoint.weights.arrays.front().name, "plain");
    }
}

TEST(ModelCheckpoint, BringsNamesToTodays)
{
    const TemporaryFolder folder;
    const float value = 2.5F;
    ModelCheckpoint old;
    for (const char* name :
         {"module._orig_mod.preprocess.linear_pre.weight", "module._orig_mod.blocks.0.ln_mlp1.1.linear_post.bias",
          "module._orig_mod.preprocess.linear_pre.0.bias", "module._orig_mod.device_buffer",
          "module._orig_mod.blocks.0.ln_1.bias"}) {
        old.weights.arrays.push_back({name, ArrayType::F32, {1}, reinterpret_cast<const std::byte*>(&value), nullptr});
    }
    for (const auto format : {CheckpointFormat::Pt, CheckpointFormat::Safetensors}) {
        const auto path = folder / ("old." + std::string(to_string(format)));
        write_checkpoint(path, old, format);

        const auto checkpoint = read_checkpoint(path);

        std::vector<std::string> names;
        for (const auto& array : checkpoint.weights.arrays) names.push_back(array.name);
        EXPECT_EQ(names, (std::vector<std::string>{"preprocess.layers.0.weight", "blocks.0.ln_mlp1.1.layers.2.bias",
                                                   "preprocess.layers.0.bias", "blocks.0.ln_1.bias"}));
        EXPECT_EQ(checkpoint.notes.size(), 4U);
    }
}

ModelCheckpoint small_checkpoint()
{
    ModelCheckpoint checkpoint = read_checkpoint(kCheckpoints / "kinds.pt");
    checkpoint.architecture = "Transolver";
    checkpoint.arguments = R"({"functional_dim":2,"structured_shape":null,"act":"gelu"})";
    return checkpoint;
}

TEST(ModelCheckpoint, GivesBackWhatWasWrittenInEveryFormat)
{
    const TemporaryFolder folder;
    const auto checkpoint = small_checkpoint();
    for (const auto format : {CheckpointFormat::Mdlus, CheckpointFormat::Pt, CheckpointFormat::Safetensors}) {
        SCOPED_TRACE(to_string(format));
        const auto path = folder / ("a." + std::string(to_string(format)));

        write_checkpoint(path, checkpoint, format);
        const auto read = read_checkpoint(path);

        expect_same(read.weights, checkpoint.weights);
        EXPECT_EQ(read.architecture, "Transolver");
        EXPECT_EQ(read.arguments, checkpoint.arguments);
    }
    EXPECT_EQ(json_of(folder / "a.json")["model"]["functional_dim"], 2);
}

TEST(ModelCheckpoint, GoesRoundThroughAllFormatsForEveryModel)
{
    const TemporaryFolder folder;
    for (const char* architecture : {"Transolver", "GeoTransolver", "FLARE", "MeshGraphNet"}) {
        for (const auto first : {CheckpointFormat::Mdlus, CheckpointFormat::Pt, CheckpointFormat::Safetensors}) {
            for (const auto second : {CheckpointFormat::Mdlus, CheckpointFormat::Pt, CheckpointFormat::Safetensors}) {
                SCOPED_TRACE(std::string(architecture) + " " + std::string(to_string(first)) + " " +
                             std::string(to_string(second)));
                auto checkpoint = small_checkpoint();
                checkpoint.architecture = architecture;
                const auto a = folder / ("a." + std::string(to_string(first))),
                           b = folder / ("b." + std::string(to_string(second)));

                write_checkpoint(a, checkpoint, first);
                write_checkpoint(b, read_checkpoint(a), second);
                const auto read = read_checkpoint(b);

                expect_same(read.weights, checkpoint.weights);
                EXPECT_EQ(read.architecture, architecture);
                EXPECT_EQ(read.arguments, checkpoint.arguments);
            }
        }
    }
}

TEST(ModelCheckpoint, KeepsWhatPhysicsNemoDoesNotKnowOutOfArguments)
{
    const TemporaryFolder folder;
    auto checkpoint = small_checkpoint();
    checkpoint.architecture = "MeshGraphNet";
    checkpoint.arguments = R"({"input_dim_nodes":6,"num_neighbors":9})";
    write_checkpoint(folder / "a.mdlus", checkpoint, CheckpointFormat::Mdlus);
    EXPECT_EQ(read_checkpoint(folder / "a.mdlus").arguments, checkpoint.arguments);
    const auto bytes = read_bytes(folder / "a.mdlus");
    EXPECT_NE(bytes.find(R"("__args__":{"input_dim_nodes":6}})"), std::string::npos);

    checkpoint.architecture = "Transolver";
    checkpoint.arguments = R"({"authors_constants":true})";
    EXPECT_TRUE(throws_with<InvalidInput>("cannot say 'authors_constants'", [&] {
        write_checkpoint(folder / "b.mdlus", checkpoint, CheckpointFormat::Mdlus);
    }));
}

TEST(ModelCheckpoint, PassesOverWhatLiesBesideByChance)
{
    const TemporaryFolder folder;
    auto checkpoint = small_checkpoint();
    checkpoint.architecture.clear();
    write_checkpoint(folder / "a.pt", checkpoint, CheckpointFormat::Pt);
    EXPECT_FALSE(fs::exists(folder / "a.json"));

    for (const std::string text :
         {"", "{", "[1]", R"({"model": {}})", R"({"model_class": 3, "model": 4})", "\xff\xfe"}) {
        std::ofstream(folder / "a.json", std::ios::binary) << text;
        EXPECT_EQ(read_checkpoint(folder / "a.pt").architecture, "") << text;
    }
}

TEST(ModelCheckpoint, RefusesWhatNoFileCanHold)
{
    const TemporaryFolder folder;
    const std::vector<float> values{1, 2};
    const auto bytes = reinterpret_cast<const std::byte*>(values.data());
    ModelCheckpoint twice, negative;
    for (int i = 0; i < 2; ++i) twice.weights.arrays.push_back({"a", ArrayType::F32, {2}, bytes, {}});
    negative.weights.arrays.push_back({"a", ArrayType::F32, {-4}, bytes, {}});
    for (const auto format : {CheckpointFormat::Pt, CheckpointFormat::Safetensors}) {
        EXPECT_TRUE(
            throws_with<InvalidInput>("'a' occurs twice", [&] { write_checkpoint(folder / "m", twice, format); }));
        EXPECT_TRUE(
            throws_with<InvalidInput>("negative extent", [&] { write_checkpoint(folder / "m", negative, format); }));
    }
}

TEST(ModelCheckpoint, ReplacesDescriptionsOnly)
{
    const TemporaryFolder folder;
    const std::vector<float> values{1, 2};
    ModelCheckpoint weights;
    weights.weights.arrays.push_back({"a", ArrayType::F32, {2}, reinterpret_cast<const std::byte*>(values.data()), {}});
    auto model = weights;
    model.architecture = "Transolver";
    model.arguments = "{}";

    write_bytes(folder / "m.json", R"({"my": "notes"})");
    for (const auto format : {CheckpointFormat::Pt, CheckpointFormat::Safetensors})
        EXPECT_TRUE(throws_with<InvalidInput>("m.json is not the description of a checkpoint",
                                              [&] { write_checkpoint(folder / "m.pt", model, format); }));
    EXPECT_EQ(read_bytes(folder / "m.json"), R"({"my": "notes"})");
    EXPECT_FALSE(std::filesystem::exists(folder / "m.pt"));

    write_checkpoint(folder / "x.pt", model, CheckpointFormat::Pt);
    EXPECT_EQ(read_checkpoint(folder / "x.pt").architecture, "Transolver");
    write_checkpoint(folder / "x.pt", weights, CheckpointFormat::Pt);
    EXPECT_EQ(read_checkpoint(folder / "x.pt").architecture, "");
}

TEST(ModelCheckpoint, LeavesWhatTrainingKeepsOutOfModelFiles)
{
    const TemporaryFolder folder;
    const float value = 1;
    ModelCheckpoint checkpoint;
    for (const char* name : {"blocks.0.ln_1.bias", "norm.mean", "optimizer.exp_avg.blocks.0.ln_1.bias"}) {
        checkpoint.weights.arrays.push_back(
            {name, ArrayType::F32, {1}, reinterpret_cast<const std::byte*>(&value), nullptr});
    }

    write_checkpoint(folder / "a.pt", checkpoint, CheckpointFormat::Pt);

    const auto read = read_checkpoint(folder / "a.pt");
    ASSERT_EQ(read.weights.arrays.size(), 1U);
    EXPECT_EQ(read.weights.arrays[0].name, "blocks.0.ln_1.bias");
}

TEST(ModelCheckpoint, NeedsTheModelsNameForMdlus)
{
    const TemporaryFolder folder;
    auto checkpoint = small_checkpoint();
    checkpoint.architecture.clear();
    EXPECT_TRUE(throws_with<InvalidInput>("the input does not have them. Write .pt or .safetensors", [&] {
        write_checkpoint(folder / "a.mdlus", checkpoint, CheckpointFormat::Mdlus);
    }));
    checkpoint.architecture = "AFNO";
    EXPECT_TRUE(throws_with<InvalidInput>("'AFNO' is not a known class", [&] {
        write_checkpoint(folder / "a.mdlus", checkpoint, CheckpointFormat::Mdlus);
    }));
    EXPECT_TRUE(throws_with<InvalidInput>("extension '.h5', expected .mdlus, .pt, .pth or .safetensors",
                                          [&] { checkpoint_format("a.h5"); }));
}

/// A member of a .mdlus file.
nlohmann::json json_member(const fs::path& path, const char* name)
{
    const auto file = MappedFile::open(path, "test");
    return nlohmann::json::parse(ZipArchive({file->bytes(), file}, "test").read(name).text());
}

TEST(ModelCheckpoint, KeepsTheModelsWithinAModel)
{
    const auto original = source_path("tests/data/fixtures/checkpoints/stormscope_a/model.mdlus");
    const TemporaryFolder folder;
    const auto checkpoint = read_checkpoint(original);
    const auto dit = nlohmann::json::parse(checkpoint.arguments).at("model").at("__args__").at("model");
    EXPECT_EQ(dit.at("__name__"), "DiT");
    EXPECT_EQ(dit.at("__args__").at("hidden_size"), 16);

    write_checkpoint(folder / "a.safetensors", checkpoint, CheckpointFormat::Safetensors);
    write_checkpoint(folder / "a.mdlus", read_checkpoint(folder / "a.safetensors"), CheckpointFormat::Mdlus);

    for (const char* member : {"args.json", "metadata.json"})
        EXPECT_EQ(json_member(folder / "a.mdlus", member), json_member(original, member));
    expect_same(read_checkpoint(folder / "a.mdlus").weights, checkpoint.weights);
}

NamedArray number(const std::string& name, const float& value)
{
    return {name, ArrayType::F32, {1}, reinterpret_cast<const std::byte*>(&value), nullptr};
}

std::vector<std::string> names_of(const NamedArrays& arrays)
{
    std::vector<std::string> names;
    for (const auto& array : arrays.arrays) names.push_back(array.name);
    return names;
}

TEST(ModelCheckpoint, MovesTheTimeEmbedderOfOlderFiles)
{
    const TemporaryFolder folder;
    const float one = 1;
    ModelCheckpoint old;
    old.architecture = "DiT";
    old.arguments = "{}";
    for (const char* name : {"t_embedder.freqs", "t_embedder.mlp.0.weight", "blocks.0.attention.qkv.weight"})
        old.weights.arrays.push_back(number(name, one));
    write_checkpoint(folder / "old.mdlus", old, CheckpointFormat::Mdlus);

    const auto found = read_checkpoint(folder / "old.mdlus");

    EXPECT_EQ(names_of(found.weights), (std::vector<std::string>{"conditioning_embedder.t_embedder.mlp.0.weight",
                                                                 "blocks.0.attention.qkv.weight"}));
    EXPECT_EQ(found.notes.size(), 1U);
}

TEST(ModelCheckpoint, WritesDominosWeightsUnderBothNames)
{
    const TemporaryFolder folder;
    const float one = 1, two = 2, three = 3;
    ModelCheckpoint checkpoint;
    checkpoint.architecture = "DoMINO";
    checkpoint.arguments = "{}";
    checkpoint.weights.arrays = {number("parameter_model.mlp.layers.0.bias", one), number("nn_basis_surf.0.freqs", two),
                                 number("agg_model_surf.0.layers.0.bias", three)};
    for (const char* name : {"a.mdlus", "a.pt"}) {
        write_checkpoint(folder / name, checkpoint, checkpoint_format(name));

        const auto found = read_checkpoint(folder / name).weights;

        EXPECT_EQ(found.arrays.size(), 6U) << name;
        EXPECT_EQ(float_at(*found.find("solution_calculator_surf.parameter_model.mlp.layers.0.bias")), 1);
        EXPECT_EQ(float_at(*found.find("solution_calculator_surf.nn_basis.0.freqs")), 2);
        EXPECT_EQ(float_at(*found.find("solution_calculator_surf.aggregation_model.0.layers.0.bias")), 3);
    }
}

// The oracle: Python's own zipfile and pickle read what was written, with stand-ins for the functions that make a
// tensor.
constexpr const char* kReadWithPython = R"(
import io, json, pickle, struct, sys, zipfile
class Tensor:
    def __init__(self, storage, offset, shape, strides, *rest): self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides
class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ('collections', 'OrderedDict'): import collections; return collections.OrderedDict
        if (module, name) == ('torch._utils', '_rebuild_tensor_v2'): return Tensor
        assert module == 'torch' and name.endswith('Storage'), (module, name)
        return name
    def persistent_load(self, pid): return pid
path = sys.argv[1]
archive = zipfile.ZipFile(path)
assert archive.testzip() is None
if path.endswith('.mdlus'):
    args = json.loads(archive.read('args.json'))
    assert args['__name__'] == 'Transolver' and args['__args__']['functional_dim'] == 2 and json.loads(archive.read('metadata.json'))['mdlus_file_version'] == '0.1.0'
    archive = zipfile.ZipFile(io.BytesIO(archive.read('model.pt')))
    assert archive.testzip() is None
state = Unpickler(io.BytesIO(archive.read('archive/data.pkl'))).load()
raw = open(sys.argv[2], 'rb').read()
size = struct.unpack('<Q', raw[:8])[0]
header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
assert list(state) == [name for name in header if name != '__metadata__'], list(state)
kinds = dict(F64='Double', F32='Float', F16='Half', BF16='BFloat16', I64='Long', I32='Int', I16='Short', I8='Char', U8='Byte', BOOL='Bool')
for name, tensor in state.items():
    begin, end = header[name]['data_offsets']
    assert list(tensor.shape) == header[name]['shape'], name
    assert tensor.storage[1] == kinds[header[name]['dtype']] + 'Storage', name
    assert archive.read('archive/data/' + tensor.storage[2]) == data[begin:end], name
    stride = 1
    for extent, given in reversed(list(zip(tensor.shape, tensor.strides))):
        assert given == stride, name
        stride *= max(1, extent)
try:
    import torch
except ImportError:
    print('read'); sys.exit()
state = torch.load(path if path.endswith('.pt') else io.BytesIO(zipfile.ZipFile(path).read('model.pt')), weights_only=True)
for name, tensor in state.items():
    begin, end = header[name]['data_offsets']
    assert list(tensor.shape) == header[name]['shape'], name
    assert tensor.numel() * tensor.element_size() == end - begin
    if header[name]['dtype'] == 'F32': assert tensor.flatten().tolist() == list(struct.unpack('<%df' % tensor.numel(), data[begin:end])), name
print('read by torch')
)";

TEST(ModelCheckpoint, IsReadByPython)
{
    if (!has_python()) GTEST_SKIP() << "python3 is absent";
    const TemporaryFolder folder;
    write_bytes(folder / "read.py", kReadWithPython);
    for (const auto format : {CheckpointFormat::Mdlus, CheckpointFormat::Pt}) {
        const auto path = folder / ("a." + std::string(to_string(format)));
        write_checkpoint(path, small_checkpoint(), format);

        const auto result =
            run_python(folder / "read.py", {path.string(), (kCheckpoints / "kinds.safetensors").string()});

        EXPECT_EQ(result.exit_code, 0) << result.err;
        EXPECT_TRUE(result.out.starts_with("read")) << result.out;
        RecordProperty("python", result.out);
    }
}

}  // namespace
}  // namespace meshard
