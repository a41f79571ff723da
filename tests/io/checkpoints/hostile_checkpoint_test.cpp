// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are damaged or made to harm: refused with a sentence, nothing executed, no crash.
#include "io/bytes/zip_archive.h"
#include "io/checkpoints/model_checkpoint.h"
#include "io/checkpoints/pickle.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_program.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace meshard {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

const fs::path kData = source_path("tests/data/checkpoints");

std::string joined(const std::vector<std::span<const std::byte>>& pieces)
{
    std::string bytes;
    for (const auto& piece : pieces) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return bytes;
}

/// A file of torch.save with this pickle and one storage '0' of 16 bytes.
std::string torch_file_of(const std::string& pickle)
{
    ZipLayout layout;
    layout.add("a/data.pkl", pickle);
    layout.add("a/data/0", std::string(16, '\0'));
    return joined(layout.finish());
}

std::string text(const std::string& value)
{
    return "\x8c"s + static_cast<char>(value.size()) + value;
}

/// A dict with one tensor 'w', of these extents and strides, in a storage of `count` values.
std::string pickle_of(const std::string& shape, const std::string& strides, char count = 4,
                      const std::string& offset = "K\0"s, const std::string& type = "FloatStorage",
                      const std::string& key = "0", const std::string& marks = "")
{
    return "\x80\x02}"s + text("w") + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + type +
           "\n" + text(key) + text("cpu") + "K"s + count + "tQ" + offset + "(" + shape + "t(" + strides + "t\x89}" +
           marks + "tRs.";
}

class HostileCheckpoint : public testing::Test {
protected:
    void expect_refused(const std::string& bytes, const char* message, const char* name = "a.pt")
    {
        write_bytes(folder_ / name, bytes);
        EXPECT_TRUE(throws_with<IoError>(message, [&] { read_checkpoint(folder_ / name); }));
    }

    TemporaryFolder folder_;
};

TEST_F(HostileCheckpoint, NeverRunsWhatAPickleNames)
{
    const auto mark = (folder_ / "executed").string();
    const std::string command = "touch " + mark;
    for (const char* global :
         {"os\nsystem", "posix\nsystem", "builtins\neval", "subprocess\nPopen", "torch.hub\nload", "torch\nload"}) {
        expect_refused(torch_file_of("\x80\x02"s + "c" + global + "\n" + text(command) + "\x85R."),
                       "nothing was executed");
    }
    expect_refused(torch_file_of("\x80\x04"s + text("os") + text("system") + "\x93" + text(command) + "\x85R."),
                   "names 'os.system'");
    expect_refused(torch_file_of("\x80\x02"s + "cos\x1b[31m\nsystem\n."), "names 'os?[31m.system'");
    // Named functions that are allowed, called in ways that are not.
    expect_refused(torch_file_of("\x80\x02"s + "ctorch\nFloatStorage\n)R."), "makes no tensor");
    expect_refused(torch_file_of("\x80\x02"s + "ctorch._utils\n_rebuild_tensor_v2\n)R."),
                   "has 0 arguments, expected 4");
    expect_refused(torch_file_of("\x80\x02"s + "ccollections\nOrderedDict\n}\x81."), "opcode 0x81");
    expect_refused(torch_file_of("\x80\x02"s + "(ios\nsystem\n."), "opcode 0x69");
    EXPECT_FALSE(fs::exists(mark));
}

TEST_F(HostileCheckpoint, IsRefusedForTensorsThatDoNotFit)
{
    write_bytes(folder_ / "good.pt", torch_file_of(pickle_of("K\x04", "K\x01")));
    EXPECT_EQ(read_checkpoint(folder_ / "good.pt").weights.arrays.at(0).shape, std::vector<std::int64_t>{4});

    write_bytes(folder_ / "unmarked.pt",
                torch_file_of(pickle_of("K\x04", "K\x01", 4, "K\0"s, "FloatStorage", "0", "}")));
    EXPECT_NO_THROW(read_checkpoint(folder_ / "unmarked.pt"));
    expect_refused(
        torch_file_of(pickle_of("K\x04", "K\x01", 4, "K\0"s, "FloatStorage", "0", "}" + text("neg") + "\x88s")),
        "before it was negated");

    const std::string huge = "\x8a\x08\0\0\0\0\0\0\0\x40"s;  // 2^62
    expect_refused(torch_file_of(pickle_of("K\x05", "K\x01")), "reaches beyond the 4 values");
    expect_refused(torch_file_of(pickle_of("K\x04", "K\x01", 4, "K\x01")), "reaches beyond the 4 values");
    expect_refused(torch_file_of(pickle_of("K\x02", "K\x04")), "reaches beyond the 4 values");
    expect_refused(torch_file_of(pickle_of("K\x04", "K\x01", 5)), "of 16 bytes, expected 5 values of 4 bytes");
    expect_refused(torch_file_of(pickle_of("K\x04", "K\x01", 4, "K\0"s, "FloatStorage", "1")), "no storage '1'");
    expect_refused(torch_file_of(pickle_of("K\x04", "K\x01", 4, "K\0"s, "ComplexFloatStorage")),
                   "torch.ComplexFloatStorage");
    expect_refused(torch_file_of(pickle_of("K\x04K\x04", "K\x01")), "has 2 extents and 1 strides");
    expect_refused(torch_file_of(pickle_of(huge + huge, huge + "K\x01")), "negative or overflow");
    expect_refused(torch_file_of(pickle_of(huge, "K\0"s)), "in a storage of 4");
    expect_refused(torch_file_of(pickle_of("J\xff\xff\xff\xff", "K\x01")), "negative or overflow");
    expect_refused(torch_file_of(pickle_of("K\x04", "J\xff\xff\xff\xff")), "negative or overflow");
    expect_refused(torch_file_of(pickle_of("K\x04", "K\x01", 4, "J\xff\xff\xff\xff")), "reaches beyond");
    expect_refused(torch_file_of(pickle_of("K\x04", "K\x01", 4, huge)), "reaches beyond");
    expect_refused(torch_file_of(pickle_of("N", "K\x01")), "the shape of a tensor is expected");
}

TEST_F(HostileCheckpoint, IsRefusedForPicklesThatDoNotHold)
{
    expect_refused(torch_file_of(""), "ends. It is truncated");
    expect_refused(torch_file_of("\x80\x07."), "protocol 7");
    expect_refused(torch_file_of("\x80\x02."), "a value is missing");
    expect_refused(torch_file_of("\x80\x02}h\x05."), "used before it was set");
    expect_refused(torch_file_of("\x80\x02}}."), "values left over");
    expect_refused(torch_file_of("\x80\x02X\xff\xff\xff\xff"), "truncated");
    expect_refused(torch_file_of("\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff"), "truncated");
    expect_refused(torch_file_of("\x80\x02\x8a\x09"
                                 "123456789."),
                   "9 bytes, expected at most 8");
    expect_refused(torch_file_of("\x80\x02t."), "a mark is missing");
    expect_refused(torch_file_of("\x80\x02]K\x01s."), "a value is missing");
    expect_refused(torch_file_of("\x80\x02]K\x01K\x02s."), "do not belong to a dict");
    expect_refused(torch_file_of("\x80\x02)K\x01"
                                 "a."),
                   "do not belong to a list");
    expect_refused(torch_file_of("\x80\x02K\x01K\x02"
                                 "b."),
                   "no dict");
    expect_refused(torch_file_of("\x80\x02K\x01Q."), "the tuple of a storage is expected");
    expect_refused(torch_file_of("\x80\x02K\x01."), "holds no dict of tensors");
    expect_refused(torch_file_of("\x80\x02}q\x01" + text("a") + "h\x01s."), "contains itself");
    expect_refused(torch_file_of("\x80\x02}" + text("\xff\xfe") + "K\x01s."), "not valid UTF-8");
    expect_refused(torch_file_of("\x80\x02}NK\x01s."), "neither a text nor an integer");

    // Each list holds the one before twice: 2^40 values on paper.
    std::string doubling = "\x80\x02]q\x01";
    for (int i = 0; i < 40; ++i) doubling += "0(h\x01h\x01lq\x01";
    expect_refused(torch_file_of("\x80\x02}" + text("a") + doubling.substr(2) + "s."), "more than 1000000 entries");
    // As deep as the pickle is long: neither reading nor forgetting it may recurse.
    expect_refused(torch_file_of("\x80\x02}" + text("a") + ")" + std::string(300'000, '\x85') + "s."),
                   "nested deeper than 64");
    // One long list, copied again and again.
    std::string copies = "\x80\x02(" + std::string(1000, 'N') + "tq\x01";
    for (int i = 0; i < 2000; ++i) copies += "ctorch\nSize\nh\x01\x85R";
    expect_refused(torch_file_of(copies + "."), "repeats lists beyond its own size");
}

TEST_F(HostileCheckpoint, IsRefusedForDamagedArchives)
{
    const auto good = torch_file_of(pickle_of("K\x04", "K\x01"));
    const auto with = [&](std::size_t at, const std::string& bytes) {
        auto damaged = good;
        return damaged.replace(at, bytes.size(), bytes);
    };
    const auto end = good.size() - 22, directory = good.find("PK\x01\x02"s),
               data = good.rfind(std::string(16, '\0'), directory);
    expect_refused("", "is empty");
    expect_refused("no checkpoint", "begins neither as a zip archive nor");
    expect_refused(with(data, "x"), "does not match its checksum");
    expect_refused(with(end + 10, "\x09"), "entry 2 is missing");
    expect_refused(with(end + 16, "\xff\xff\xff\x7f"), "does not end before");
    expect_refused(with(end + 16, "\xff\xff\xff\xff"), "zip64 locator is missing");
    expect_refused(with(directory + 8, "\x01"), "encrypted");
    expect_refused(with(directory + 10, "\x0c"), "packed by method 12");
    expect_refused(with(directory + 10, "\x08"), "does not unpack");
    auto bomb = with(directory + 10, "\x08");
    expect_refused(bomb.replace(directory + 24, 4, "\x01\0\0\x04"s), "claims to unpack to 67108865");
    expect_refused(with(directory + 42, "\xff\xff\xff\x7f"), "beyond the end");
    expect_refused(with(directory + 20, "\xff\xff\xff\x7f"), "beyond the end");
    expect_refused(with(directory + 24, "\x01\0\0\0"s), "two sizes");
    for (std::size_t size = 1; size < good.size(); ++size) {
        write_bytes(folder_ / "cut.pt", std::string_view(good).substr(0, size));
        EXPECT_THROW(read_checkpoint(folder_ / "cut.pt"), IoError) << size;
    }
    ZipLayout twice;
    twice.add("a/data.pkl", "x");
    twice.add("a/data.pkl", "y");
    expect_refused(joined(twice.finish()), "two entries 'a/data.pkl'");
    ZipLayout other;
    other.add("hello.txt", "x");
    expect_refused(joined(other.finish()), "without a 'data.pkl'");
    ZipLayout script;
    script.add("a/data.pkl", "x");
    script.add("a/constants.pkl", "x");
    expect_refused(joined(script.finish()), "TorchScript");
    ZipLayout big;
    big.add("a/data.pkl", "x");
    big.add("a/byteorder", "big");
    expect_refused(joined(big.finish()), "little-endian");
}

TEST_F(HostileCheckpoint, IsRefusedForDamagedMdlusFiles)
{
    const auto model = torch_file_of(pickle_of("K\x04", "K\x01"));
    const auto file = [&](const std::string& args, const std::string& metadata) {
        ZipLayout layout;
        layout.add("model.pt", model);
        layout.add("args.json", args);
        layout.add("metadata.json", metadata);
        return joined(layout.finish());
    };
    const std::string args = R"({"__name__":"Transolver","__module__":"m","__args__":{}})",
                      metadata = R"({"mdlus_file_version":"0.1.0"})";
    write_bytes(folder_ / "good.mdlus", file(args, metadata));
    EXPECT_EQ(read_checkpoint(folder_ / "good.mdlus").architecture, "Transolver");

    expect_refused(file(args, R"({"mdlus_file_version":"9.0.0"})"), "mdlus_file_version \"9.0.0\", expected \"0.1.0\"",
                   "a.mdlus");
    expect_refused(file(args, "[]"), "mdlus_file_version null", "a.mdlus");
    expect_refused(file(args, R"({"mdlus_file_version":"0.2.0"})"), "mdlus_file_version \"0.2.0\", expected \"0.1.0\"",
                   "a.mdlus");
    const std::string dit = R"({"__name__":"DiT","__module__":"m","__args__":{}})";
    write_bytes(folder_ / "dit.mdlus", file(dit, R"({"mdlus_file_version":"0.2.0"})"));
    EXPECT_EQ(read_checkpoint(folder_ / "dit.mdlus").architecture, "DiT");
    expect_refused(file(dit, R"({"mdlus_file_version":"0.3.0"})"), "expected \"0.1.0\" or \"0.2.0\"", "a.mdlus");
    const std::string outer =
        R"({"__name__":"EDMPreconditioner","__module__":"m","__args__":{"model":"__physicsnemo.Module__.model"})";
    expect_refused(file(outer + "}", metadata), "without the nested model '__physicsnemo.Module__.model'", "a.mdlus");
    expect_refused(file(outer + R"(,"__physicsnemo.Module__.model":{"__name__":"DiT","__args__":{}}})", metadata),
                   "__physicsnemo.Module__.model.mdlus_file_version null", "a.mdlus");
    expect_refused(file("{}", metadata), "without the class's __name__", "a.mdlus");
    expect_refused(file("{", metadata), "not valid JSON", "a.mdlus");
    expect_refused(file(std::string(100'000, '['), metadata), "nested deeper", "a.mdlus");
    ZipLayout incomplete;
    incomplete.add("model.pt", model);
    expect_refused(joined(incomplete.finish()), "has no entry 'metadata.json'", "a.mdlus");
}

TEST_F(HostileCheckpoint, IsRefusedForDamagedTarFiles)
{
    const fs::path reference = source_path("tests/data/fixtures/checkpoints/transolver_a/model_tar.mdlus");
    const auto good = read_bytes(reference);
    for (std::size_t size = 600; size < good.size() - 10240; size += 997)
        expect_refused(good.substr(0, size), "truncated", "a.mdlus");
    auto damaged = good;
    damaged.replace(good.find("args.json"), 4, "junk");
    expect_refused(damaged, "does not match its checksum", "a.mdlus");
}

TEST_F(HostileCheckpoint, IsRefusedForEverySeedOfTheFuzzer)
{
    std::size_t num_seeds = 0;
    for (const auto& entry : fs::directory_iterator(kData / "hostile")) {
        EXPECT_THROW(read_checkpoint(entry.path()), IoError) << entry.path();
        ++num_seeds;
    }
    EXPECT_GT(num_seeds, 0U);
    EXPECT_EQ(read_checkpoint(kData / "deflated.pt").weights.arrays.at(0).num_values(), 4);
}

// The seeds and their like: bytes changed, cut out.
TEST_F(HostileCheckpoint, NeverCrashesTheReader)
{
    std::mt19937 random(5);
    std::vector<std::string> seeds{torch_file_of(pickle_of("K\x04", "K\x01")), read_bytes(kData / "kinds.pt"),
                                   read_bytes(kData / "kinds_legacy.pt")};
    for (const auto& entry : fs::directory_iterator(kData / "hostile")) seeds.push_back(read_bytes(entry.path()));
    for (const auto& seed : seeds) {
        for (int trial = 0; trial < 400; ++trial) {
            auto bytes = seed;
            for (int change = 0; trial > 0 && change < 1 + trial % 3 && !bytes.empty(); ++change) {
                const std::size_t at = random() % bytes.size();
                if (trial % 5 == 4)
                    bytes.erase(at, 1 + random() % 8);
                else
                    bytes[at] = static_cast<char>(random());
            }
            write_bytes(folder_ / "a.pt", bytes);
            try {
                for (const auto& array : read_checkpoint(folder_ / "a.pt").weights.arrays) {
                    // What is read can be touched to its last byte.
                    std::byte sum{};
                    for (const std::byte byte : array.bytes()) sum ^= byte;
                    static_cast<void>(sum);
                }
            } catch (const Error&) {
            }
        }
    }
}

// The oracle is Python's zipfile.
TEST(ZipArchive, ReadsWhatPythonWrites)
{
    const TemporaryFolder folder;
    write_bytes(folder / "write.py", R"(
import sys, zipfile
for name, method in (('stored', zipfile.ZIP_STORED), ('deflated', zipfile.ZIP_DEFLATED)):
    with zipfile.ZipFile(sys.argv[1] + '/' + name + '.zip', 'w', method) as archive:
        archive.comment = b'a comment of ours'
        archive.writestr('text', 'hello ' * 1000)
        archive.writestr('nothing', '')
        with archive.open('large', 'w', force_zip64=True) as entry: entry.write(bytes(range(256)) * 100)
print('done')
)");
    const auto result =
        run_program("/usr/bin/env", {"python3", (folder / "write.py").string(), folder.path().string()});
    if (result.out != "done\n") GTEST_SKIP() << "python3 is absent";
    std::string text, large;
    for (int i = 0; i < 1000; ++i) text += "hello ";
    for (int i = 0; i < 25600; ++i) large += static_cast<char>(i);
    for (const char* name : {"stored.zip", "deflated.zip"}) {
        const auto bytes = read_bytes(folder / name);
        const ZipArchive archive({std::as_bytes(std::span(bytes)), nullptr}, name);

        EXPECT_EQ(archive.read("text").text(), text);
        EXPECT_EQ(archive.read("nothing").text(), "");
        EXPECT_EQ(archive.read("large").text(), large);
        EXPECT_EQ(archive.names(), (std::vector<std::string>{"large", "nothing", "text"}));
        EXPECT_FALSE(archive.contains("absent"));
        EXPECT_TRUE(throws_with<IoError>("has no entry 'absent'", [&] { archive.read("absent"); }));
    }
}

}  // namespace
}  // namespace meshard
