// SPDX-License-Identifier: Apache-2.0
// Arrays in time of .zarr and .h5 (array_grid.h), as files and as series.
#include "io/bytes/time_choice.h"
#include "io/mesh_io.h"
#include "io/series.h"
#include "io/vtk/grid_file.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/stored_arrays.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace meshard {
namespace {

const std::vector<double> kHours{0, 6, 12, 24, 30};

TEST(ArrayTimes, AreReadAsXarrayAndH5pyWriteThem)
{
    const TemporaryFolder folder;
    unpack_arrays("times.zip", folder.path());
    for (const std::string name : {"xarray.zarr", "xarray.h5", "plain.h5", "labels.h5"}) {
        SCOPED_TRACE(name);
        const std::string group = name == "labels.h5" ? "air/" : "";
        const auto states = read_series(folder / name);
        ASSERT_EQ(states.size(), kHours.size());
        for (std::size_t step = 0; step < states.size(); ++step) {
            EXPECT_EQ(states[step].time, kHours[step]);
            const auto file = GridFile::open(states[step].file, states[step].time_in_file);
            const auto& grid = file->grid();
            EXPECT_EQ(grid.num_points, (std::array<std::int64_t, 3>{5, 4, 1}));
            EXPECT_EQ(find_array(grid.field_data, "TimeValue")->value(0), kHours[step]);
            const GridBox box{{1, 1, 0}, {3, 2, 1}};
            std::vector<double> places, steps, winds;
            for (const double place : {5, 6, 7, 9, 10, 11}) {
                places.push_back(place);
                steps.push_back(place + 100 * static_cast<double>(step));
                winds.insert(winds.end(), {steps.back(), steps.back() + 1000});
            }
            EXPECT_EQ(file->read(group + "u", true, box).to_doubles(), steps);
            EXPECT_EQ(file->read(group + "wind", true, box).to_doubles(), winds);
            if (group.empty()) {
                EXPECT_EQ(file->read("land", true, box).to_doubles(), places);
            }
        }
        EXPECT_EQ(find_array(read_mesh(folder / name).cell_data, group + "u")->value(0), 400);  // the last step
        EXPECT_TRUE(throws_with<IoError>("it has no step at that time; its times are 0 to ",
                                         [&] { GridFile::open(folder / name, 13); }));
    }
    EXPECT_EQ(find_array(GridFile::open(folder / "xarray.h5")->grid().field_data, "TimeValue")->unit,
              "hours since 2020-01-01");
    EXPECT_EQ(GridFile::open(folder / "xarray.zarr")->grid().spacing[0], 0.5);
}

TEST(ArrayTimes, OfSinglePrecisionAreFoundByWhatTheyWereRoundedFrom)
{
    std::vector<double> times;
    for (const float time : {0.0F, 0.1F, 0.7F, 1e6F + 0.7F}) times.push_back(time);
    for (const auto& [wanted, index] :
         std::vector<std::pair<double, std::size_t>>{{0, 0}, {0.1, 1}, {0.7, 2}, {1000000.7, 3}}) {
        EXPECT_EQ(index_of_time(times, wanted), index) << wanted;
        EXPECT_EQ(index_of_time(times, times[index]), index) << wanted;
    }
    for (const double wanted : {0.11, 0.6999, -0.1, 1e300, std::numeric_limits<double>::infinity()})
        EXPECT_FALSE(index_of_time(times, wanted)) << wanted;
}

TEST(ArrayTimes, MayBeBesidePackedNumbersAndMissingOnes)
{
    const TemporaryFolder folder;
    unpack_arrays("times.zip", folder.path());
    std::filesystem::copy(folder / "packed.h5", folder / "packed.nc");
    std::filesystem::copy(folder / "xarray.h5", folder / "xarray.nc");
    for (const char* name : {"xarray.zarr", "xarray.nc"}) EXPECT_EQ(read_series(folder / name).size(), kHours.size());
    for (const char* name : {"xarray.zarr", "packed.h5", "packed.nc"}) {
        const auto file = GridFile::open(folder / name);
        for (const auto& [array, type] :
             {std::pair("packed", ScalarType::Float32), std::pair("salt", ScalarType::Float32),
              std::pair("kind", ScalarType::Float64)}) {
            SCOPED_TRACE(std::string(name) + " " + array);
            EXPECT_EQ(find_array(file->grid().cell_data, array)->type(), type);
            const auto values = file->read(array, true, {{1, 1, 0}, {3, 2, 1}}).to_doubles();
            const std::vector<double> places{5, 6, 7, 9, 10, 11};
            for (std::size_t i = 0; i < places.size(); ++i)
                EXPECT_TRUE(i < 2 ? std::isnan(values[i]) : values[i] == places[i]) << places[i] << " is " << values[i];
        }
    }
    const auto head = folder / "xarray.zarr/kind/zarr.json";
    const auto text = read_bytes(head);
    const auto with = [&](const std::string& from, const std::string& to) {
        auto changed = text;
        write_bytes(head, changed.replace(changed.find(from), from.size(), to));
        return GridFile::open(folder / "xarray.zarr");
    };
    EXPECT_TRUE(std::isnan(with(R"("missing_value": -1)", R"("missing_value": [-1, 7])")
                               ->read("kind", true, {{3, 1, 0}, {1, 1, 1}})
                               .value(0)));
    EXPECT_EQ(
        with(R"("missing_value": -1)", R"("scale_factor": [0.5])")->read("kind", true, {{3, 1, 0}, {1, 1, 1}}).value(0),
        3.5);
    EXPECT_NE(
        with(R"("missing_value": -1)", R"("scale_factor": "0.5")")->grid().left_out.at("kind").find("is no number"),
        std::string::npos);

    const auto labels = GridFile::open(folder / "labels.h5");
    EXPECT_EQ(labels->read("packed", true, {{3, 2, 0}, {1, 1, 1}}).value(0), 5.5);
    EXPECT_NE(labels->grid().left_out.at("bytes").find("has the attribute _Unsigned"), std::string::npos);
    write_bytes(folder / "classic.nc", "CDF\x01");
    EXPECT_TRUE(throws_with<IoError>("is a file of classic netCDF", [&] { GridFile::open(folder / "classic.nc"); }));
}

TEST(ArrayTimes, AreThoseOfRuns)
{
    const TemporaryFolder folder;
    unpack_arrays("times.zip", folder.path());
    for (const char* run : {"run_2.zarr", "run_10.zarr"})
        std::filesystem::copy(folder / "xarray.zarr", folder / run, std::filesystem::copy_options::recursive);
    const auto runs = find_series(folder.path(), "run_*.zarr");
    ASSERT_EQ(runs.size(), 2U);
    EXPECT_EQ(runs[0].id, "2");
    EXPECT_EQ(runs[1].path, folder / "run_10.zarr");
    EXPECT_EQ(runs[1].states.size(), kHours.size());
    EXPECT_EQ(find_series(folder.path(), "run_2.zarr").front().id, "run_2");

    for (const char* state : {"out/0.zarr", "out/20.zarr"}) {  // without a dimension of time
        std::filesystem::create_directories(folder / state);
        std::filesystem::copy(folder / "xarray.zarr/land", folder / state / "land",
                              std::filesystem::copy_options::recursive);
        std::filesystem::copy(folder / "xarray.zarr/zarr.json", folder / state / "zarr.json");
    }
    const auto run = find_series(folder.path(), "out/*.zarr").front();
    EXPECT_EQ(run.id, "out");
    EXPECT_EQ(run.states.back().time, 20);
}

TEST(ArrayTimes, ThatAreNoneAreNamed)
{
    const TemporaryFolder folder;
    const auto group = folder / "xarray.zarr";
    const auto refusal = [&](const std::string& file, const std::string& from, const std::string& to,
                             const std::string& text) {
        unpack_arrays("times.zip", folder.path());
        auto content = read_bytes(group / file);
        ASSERT_NE(content.find(from), std::string::npos) << from;
        write_bytes(group / file, content.replace(content.find(from), from.size(), to));
        EXPECT_TRUE(throws_with<IoError>(text, [&] { read_series(group); }));
        EXPECT_TRUE(throws_with<IoError>("xarray.zarr: the array '", [&] { read_series(group); }));
    };
    refusal("time/zarr.json", "\"shape\": [\n    5", "\"shape\": [\n    4",
            "has 5 steps along 'time', and the array 'time' has 4 times. Write both for each step.");
    refusal("time/zarr.json", "\"int64\"", "\"complex64\"",
            "has the dimension 'time', and there is no array 'time' of numbers with the times. Write one");
    const auto times = [](std::vector<std::int64_t> values) {
        return std::string(reinterpret_cast<const char*>(values.data()), sizeof(std::int64_t) * values.size());
    };
    const auto set_times = [&](const std::string& values, const std::string& text) {
        unpack_arrays("times.zip", folder.path());
        auto content = read_bytes(group / "time/zarr.json");
        const auto codecs = content.find("\"codecs\"");
        const auto next = content.find("\"attributes\"");
        write_bytes(group / "time/zarr.json",
                    content.replace(codecs, next - codecs, "\"codecs\": [{\"name\": \"bytes\"}],\n  "));
        write_bytes(group / "time/c/0", values);
        EXPECT_TRUE(throws_with<IoError>(text, [&] { read_series(group); }));
    };
    set_times(times({0, 6, 6, 12, 18}), "the array 'time' has the time 6 at step 2, counted from 0, and 6 before it. "
                                        "Sort the steps by finite times");
    set_times(times({4, 3, 2, 1, 0}), "has the time 3 at step 1, counted from 0, and 4 before it");
    set_times(times({0, 6}), "chunk c/0 is damaged or cut short");

    auto content = read_bytes(group / "u/zarr.json");
    write_bytes(group / "u/zarr.json", content.replace(content.find("\"y\""), 3, "\"step\""));
    unpack_arrays("times.zip", folder / "whole");
    std::filesystem::copy(folder / "whole/xarray.zarr/time", group / "time",
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    EXPECT_NE(GridFile::open(group)->grid().left_out.at("u").find("has several dimensions of time (time, step)"),
              std::string::npos);
}

}  // namespace
}  // namespace meshard
