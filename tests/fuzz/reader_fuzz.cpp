// SPDX-License-Identifier: Apache-2.0
// Reads damaged files until the time is over: each must be read or refused with an Error. A file that crashes a reader,
// takes more than 20 seconds or throws anything else stays where the message says.
//
//   reader_fuzz [--seconds 10] [--seed 0] [--only .vtu] [--keep DIR]
//   reader_fuzz --replay DIR             reads what --keep kept
//
// Where the readers are compiled with -fsanitize-coverage=trace-pc, files that reach new code are damaged further, and
// --keep keeps them.
#include "tests/fuzz/damaged_samples.h"
#include "tests/support/temporary_folder.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

// Places of the readers' code, by a hash: whether they were ever reached, and how many were so now.
std::uint8_t was_reached[1 << 20];
std::size_t num_new_places = 0;

}  // namespace

// Called by instrumented code at each of its branches.
extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc()
{
    auto& seen =
        was_reached[(reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) * 0x9e3779b97f4a7c15u) >> 44];
    num_new_places += seen == 0;
    seen = 1;
}

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace meshard {
namespace {

class Fuzzer {
public:
    Fuzzer(const std::filesystem::path& folder, std::uint32_t seed, std::filesystem::path kept)
        : random_(seed), kept_(std::move(kept))
    {
        for (auto& sample : make_damage_samples(folder)) {
            survives_reading(sample);  // what whole files reach is nothing new
            auto bytes = sample.bytes;
            corpus_.push_back({std::move(sample), {std::move(bytes)}});
        }
    }

    /// One damaged file more of those whose name contains `only`.
    void step(const std::string& only)
    {
        Entry* entry = nullptr;
        do entry = &corpus_[random_() % corpus_.size()];
        while (entry->sample.name.find(only) == std::string::npos);
        std::string bytes = entry->versions[random_() % 2 == 0 ? 0 : random_() % entry->versions.size()];
        for (std::uint32_t i = random_() % 6; i < 6; ++i) damage(bytes);
        num_new_places = 0;
        read(entry->sample, bytes);
        if (num_new_places > 0 && bytes.size() < 3 * entry->sample.bytes.size() + 1000) {
            entry->versions.push_back(bytes);
            if (!kept_.empty()) keep(entry->sample.name, bytes);
        }
    }

    void replay(const std::filesystem::path& folder)
    {
        for (const auto& entry : corpus_) {
            if (!std::filesystem::is_directory(folder / entry.sample.name)) continue;
            for (const auto& file : std::filesystem::directory_iterator(folder / entry.sample.name))
                read(entry.sample, read_bytes(file.path()));
        }
    }

    static inline char last_name[2000] = "";

private:
    struct Entry {
        DamageSample sample;
        std::vector<std::string> versions;  ///< the whole file, then damaged ones that reached new code
    };

    void read(const DamageSample& sample, const std::string& bytes)
    {
        std::filesystem::remove(sample.damaged);  // arrays of the last one may still be mapped
        write_bytes(sample.damaged, bytes);
        describe(sample, bytes);
        ::alarm(20);
        survives_reading(sample);
        ::alarm(0);
        std::filesystem::remove(sample.damaged);
        write_bytes(sample.damaged, sample.bytes);
    }

    void keep(const std::string& name, const std::string& bytes) const
    {
        std::filesystem::create_directories(kept_ / name);
        char file[20];
        std::snprintf(file, sizeof file, "%016zx", std::hash<std::string>{}(bytes));
        write_bytes(kept_ / name / file, bytes);
    }

    void damage(std::string& bytes)
    {
        static const char* const numbers[] = {"-1",
                                              "0",
                                              "1",
                                              "2147483647",
                                              "2147483648",
                                              "4294967295",
                                              "-9223372036854775808",
                                              "18446744073709551615",
                                              "1e400",
                                              "nan",
                                              "99999999999999999999"};
        if (bytes.empty()) return;
        const std::size_t at = random_() % bytes.size();
        const std::size_t length = std::min<std::size_t>(bytes.size() - at, 1 + random_() % 40);
        switch (random_() % 8) {
        case 0:
            bytes[at] = static_cast<char>(random_());
            break;
        case 1:
            bytes[at] ^= static_cast<char>(1 << random_() % 8);
            break;
        case 2:
            bytes.erase(at, length);
            break;
        case 3:
            bytes.insert(at, bytes.substr(at, length));
            break;
        case 4:
            bytes.resize(at);
            break;
        case 5: {  // another number where there is one
            const std::size_t digit = bytes.find_first_of("0123456789", at);
            if (digit == std::string::npos) break;
            const std::size_t end = bytes.find_first_not_of("0123456789.", digit);
            bytes.replace(digit, (end == std::string::npos ? bytes.size() : end) - digit,
                          numbers[random_() % std::size(numbers)]);
            break;
        }
        case 6:
            bytes.insert(at, 1, "<>\"/(){}[];#$ \n&'"[random_() % 17]);
            break;
        default: {  // a binary word of a value that is often wrong
            const std::uint64_t values[] = {
                0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 62, 255};
            const std::uint64_t value = values[random_() % std::size(values)];
            std::memcpy(bytes.data() + at, &value,
                        std::min<std::size_t>(bytes.size() - at, random_() % 2 == 0 ? 4 : 8));
        }
        }
    }

    /// For whoever finds the crash: the input, under a fixed name.
    void describe(const DamageSample& sample, const std::string& bytes)
    {
        const auto copy = std::filesystem::temp_directory_path() / ("reader_fuzz_last_" + sample.name);
        if (copy != last_) std::filesystem::remove(last_);
        write_bytes(copy, bytes);
        last_ = copy;
        std::snprintf(last_name, sizeof last_name, "%s (as %s)", copy.c_str(), sample.name.c_str());
    }

    std::mt19937 random_;
    std::filesystem::path kept_;
    std::vector<Entry> corpus_;
    std::filesystem::path last_;
};

void say_which()
{
    const char text[] = "\nreader_fuzz: this file stopped a reader: ";
    [[maybe_unused]] auto written = ::write(2, text, sizeof text - 1);
    written = ::write(2, Fuzzer::last_name, std::strlen(Fuzzer::last_name));
    written = ::write(2, "\n", 1);
}

void end_by_signal(int)
{
    say_which();
    ::_exit(1);
}

}  // namespace
}  // namespace meshard

int main(int argc, char** argv)
{
    using namespace meshard;
    std::map<std::string, std::string> options{
        {"--seconds", "10"}, {"--seed", "0"}, {"--only", ""}, {"--keep", ""}, {"--replay", ""}};
    for (int i = 1; i < argc; i += 2) {
        if (!options.contains(argv[i]) || i + 1 == argc) {
            std::fprintf(stderr,
                         "usage: reader_fuzz [--seconds S] [--seed N] [--only NAME] [--keep DIR] [--replay DIR]\n");
            return 2;
        }
        options[argv[i]] = argv[i + 1];
    }
    ::signal(SIGALRM, end_by_signal);
    if (__sanitizer_set_death_callback != nullptr)
        __sanitizer_set_death_callback(say_which);
    else
        for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) ::signal(number, end_by_signal);
    const TemporaryFolder folder;
    long long count = 0;
    try {
        Fuzzer fuzzer(folder.path(), static_cast<std::uint32_t>(std::atoll(options["--seed"].c_str())),
                      options["--keep"]);
        if (!options["--replay"].empty()) {
            fuzzer.replay(options["--replay"]);
            return 0;
        }
        const auto end =
            std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(options["--seconds"].c_str()));
        for (; std::chrono::steady_clock::now() < end; ++count) fuzzer.step(options["--only"]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "reader_fuzz: %s\nreader_fuzz: thrown for this file: %s\n", error.what(),
                     Fuzzer::last_name);
        return 1;
    }
    std::printf("%lld damaged files were read or refused\n", count);
    return 0;
}
