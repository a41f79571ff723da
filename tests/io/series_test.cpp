// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/hdf5_file.h"
#include "io/mesh_io.h"
#include "io/series.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/foam_case.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <limits>

namespace meshard {
namespace {

using Times = std::vector<double>;
using Names = std::vector<std::string>;

Times times_of(const std::vector<SeriesState>& states)
{
    Times times;
    for (const SeriesState& state : states) times.push_back(state.time);
    return times;
}

/// Paths of the states' files, relative to the folder.
Names names_of(const std::vector<SeriesState>& states, const TemporaryFolder& folder)
{
    Names names;
    for (const SeriesState& state : states) names.push_back(state.file.lexically_relative(folder.path()).string());
    return names;
}

Names ids_of(const std::vector<Series>& runs)
{
    Names ids;
    for (const Series& run : runs) ids.push_back(run.id);
    return ids;
}

Mesh read_state(const SeriesState& state)
{
    ReadOptions options;
    options.time = state.time_in_file;
    return read_mesh(state.file, options);
}

/// A strip of `n` triangles, by which tests recognise it, with the time as `TimeValue` on request.
void write_strip(const std::filesystem::path& path, int n, std::optional<double> time = {})
{
    std::filesystem::create_directories(path.parent_path());
    Mesh mesh = strip(n);
    mesh.field_data.clear();
    if (time) mesh.field_data.push_back(DataArray::from("TimeValue", std::vector<double>{*time}));
    write_mesh(path, mesh);
}

std::string pvd(const std::string& data_sets)
{
    return "<VTKFile type=\"Collection\"><Collection>" + data_sets + "</Collection></VTKFile>";
}

std::string data_set(const std::string& time, const std::string& file, const std::string& more = "part=\"0\"")
{
    return "<DataSet timestep=\"" + time + "\" " + more + " file=\"" + file + "\"/>";
}

/// A cube at rest with the point array `p`, 10 times the step's number, as ParaView writes it.
void write_steps(const std::filesystem::path& path, const Times& times)
{
    const Mesh mesh = cube(1);
    const auto num_steps = static_cast<std::int64_t>(times.size());
    const auto write = [](const Hdf5Group& group, const std::string& name, const DataArray& array) {
        group.write(name, {&array}, Compression::None);
    };
    const auto integers = [](std::vector<std::int64_t> values) { return DataArray::from("n", std::move(values)); };
    const auto each_step = [&](std::int64_t value) {
        return integers(std::vector<std::int64_t>(static_cast<std::size_t>(num_steps), value));
    };
    Hdf5Group file = Hdf5Group::create_file(path, "test");
    {
        const Hdf5Group root = file.create_group("VTKHDF");
        root.set_attribute("Version", std::vector<std::int64_t>{2, 0});
        root.set_attribute("Type", "UnstructuredGrid");
        write(root, "NumberOfPoints", integers({8}));
        write(root, "NumberOfCells", integers({1}));
        write(root, "NumberOfConnectivityIds", integers({8}));
        write(root, "Points", mesh.points);
        write(root, "Offsets", integers({0, 8}));
        write(root, "Connectivity", integers({mesh.cells.indices.begin(), mesh.cells.indices.end()}));
        write(root, "Types", DataArray::from("t", std::vector<std::uint8_t>{12}));
        std::vector<double> p;
        std::vector<std::int64_t> first_rows;
        for (std::int64_t step = 0; step < num_steps; ++step) {
            first_rows.push_back(8 * step);
            p.insert(p.end(), 8, 10.0 * static_cast<double>(step));
        }
        write(root.create_group("PointData"), "p", DataArray::from("p", std::move(p)));
        const Hdf5Group steps = root.create_group("Steps");
        steps.set_attribute("NSteps", std::vector<std::int64_t>{num_steps});
        write(steps, "Values", DataArray::from("v", std::vector<double>(times)));
        write(steps, "NumberOfParts", each_step(1));
        for (const char* name : {"PartOffsets", "PointOffsets", "CellOffsets", "ConnectivityIdOffsets"})
            write(steps, name, each_step(0));
        write(steps.create_group("PointDataOffsets"), "p", integers(first_rows));
    }
    file.close();
}

TEST(ReadSeries, ListsTheFilesOfIndices)
{
    const TemporaryFolder folder;
    write_strip(folder / "data/a.vtp", 2);
    write_strip(folder / "data/b.vtp", 3);
    write_strip(folder / "data/c.vtp", 4);
    write_bytes(folder / "run.pvd",
                pvd(data_set("1e-3", "data/b.vtp") + data_set("0", "data/a.vtp") + data_set("10", "data/c.vtp")));
    write_bytes(folder / "run.vtp.series", R"({"file-series-version": "1.0", "files": [
        {"name": "data/b.vtp", "time": 0.001}, {"name": "data/c.vtp", "time": 10}, {"name": "data/a.vtp", "time": 0}]})");

    for (const char* name : {"run.pvd", "run.vtp.series"}) {
        const auto states = read_series(folder / name);

        EXPECT_EQ(times_of(states), (Times{0, 0.001, 10})) << name;
        EXPECT_EQ(names_of(states, folder), (Names{"data/a.vtp", "data/b.vtp", "data/c.vtp"})) << name;
        for (const SeriesState& state : states) EXPECT_EQ(state.time_in_file, std::nullopt);
        EXPECT_EQ(read_state(states[1]).num_cells(), 3);
    }
}

TEST(ReadSeries, ReadsTheIndexWhereAStateHasSeveralParts)
{
    const TemporaryFolder folder;
    for (int n = 1; n <= 5; ++n) write_strip(folder / ("s" + std::to_string(n) + ".vtp"), n);
    write_bytes(folder / "run.pvd",
                pvd(data_set("1", "s1.vtp") + data_set("1", "s2.vtp", "part=\"1\"") + data_set("3", "s4.vtp") +
                    data_set("3", "s5.vtp", "part=\"0\" group=\"b\"") + data_set("2", "s3.vtp")));

    const auto states = read_series(folder / "run.pvd");

    EXPECT_EQ(times_of(states), (Times{1, 2, 3}));
    EXPECT_EQ(names_of(states, folder), (Names{"run.pvd", "s3.vtp", "run.pvd"}));
    EXPECT_EQ(read_state(states[0]).num_cells(), 3);
    EXPECT_EQ(read_state(states[1]).num_cells(), 3);
    EXPECT_EQ(read_state(states[2]).num_cells(), 9);
}

TEST(ReadSeries, ListsTheStepsOfVtkHdf)
{
    const TemporaryFolder folder;
    write_steps(folder / "run.vtkhdf", {0.5, 1, 4});

    const auto states = read_series(folder / "run.vtkhdf");

    EXPECT_EQ(times_of(states), (Times{0.5, 1, 4}));
    for (std::size_t step = 0; step < 3; ++step) {
        EXPECT_EQ(states[step].file, folder / "run.vtkhdf");
        EXPECT_EQ(find_array(read_state(states[step]).point_data, "p")->value(7), 10.0 * static_cast<double>(step));
    }
}

TEST(ReadSeries, TellsTimesApartThatAreNear)
{
    const TemporaryFolder folder;
    write_steps(folder / "run.vtkhdf", {1e-10, 2e-10, 3e-10});
    for (int n = 1; n <= 4; ++n) write_strip(folder / ("s" + std::to_string(n) + ".vtp"), n);
    write_bytes(folder / "run.pvd", pvd(data_set("1e-10", "s1.vtp") + data_set("1e-10", "s2.vtp", "part=\"1\"") +
                                        data_set("2e-10", "s3.vtp") + data_set("2e-10", "s4.vtp", "part=\"1\"")));

    EXPECT_EQ(find_array(read_state(read_series(folder / "run.vtkhdf")[1]).point_data, "p")->value(0), 10);
    EXPECT_EQ(read_state(read_series(folder / "run.pvd")[1]).num_cells(), 7);
}

TEST(ReadSeries, ListsTheTimeValuesOfAFile)
{
    const TemporaryFolder folder;
    const auto array = [](int step, const std::string& values) {
        return "<DataArray type=\"Float64\" Name=\"p\" TimeStep=\"" + std::to_string(step) + "\" format=\"ascii\">" +
               values + "</DataArray>";
    };
    write_bytes(folder / "run.vtu",
                "<VTKFile type=\"UnstructuredGrid\"><UnstructuredGrid TimeValues=\"0 0.1 0.4\">"
                "<Piece NumberOfPoints=\"1\" NumberOfCells=\"1\"><PointData>" +
                    array(0, "5") + array(1, "6") + array(2, "7") +
                    "</PointData><Points><DataArray type=\"Float64\" NumberOfComponents=\"3\" format=\"ascii\">0 0 0"
                    "</DataArray></Points><Cells><DataArray type=\"Int64\" Name=\"connectivity\" format=\"ascii\">0"
                    "</DataArray><DataArray type=\"Int64\" Name=\"offsets\" format=\"ascii\">1</DataArray>"
                    "<DataArray type=\"UInt8\" Name=\"types\" format=\"ascii\">1</DataArray></Cells></Piece>"
                    "</UnstructuredGrid></VTKFile>");

    const auto states = read_series(folder / "run.vtu");

    ASSERT_EQ(times_of(states), (Times{0, 0.1, 0.4}));
    EXPECT_EQ(find_array(read_state(states[1]).point_data, "p")->value(0), 6);
    EXPECT_EQ(find_array(read_state(states[2]).point_data, "p")->value(0), 7);
}

TEST(ReadSeries, ListsTheTimesOfOpenFoamCases)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));

    for (const char* name : {"case", "case/case.foam"}) {
        const auto states = read_series(folder / name);

        ASSERT_EQ(times_of(states), (Times{0, 0.5})) << name;
        EXPECT_EQ(find_array(read_state(states[0]).cell_data, "p"), nullptr);
        EXPECT_EQ(find_array(read_state(states[1]).cell_data, "p")->value(3), 13);
    }
}

TEST(ReadSeries, ListsTheTimesOfDecomposedCases)
{
    const TemporaryFolder folder;
    const std::vector<std::int32_t> owners{0, 1, 0, 1, 0, 1, 0, 1};
    write_foam_case(folder / "case", cube(2));
    write_decomposed_foam_case(folder / "case", cube(2), owners, true);
    for (const char* processor : {"case/processor0", "case/processor1"})
        std::filesystem::rename(folder / processor / "0.5", folder / processor / "0.75");

    const auto states = read_series(folder / "case");

    ASSERT_EQ(times_of(states), (Times{0, 0.5, 0.75}));
    for (std::size_t state = 1; state < 3; ++state)
        EXPECT_EQ(find_array(read_state(states[state]).cell_data, "p")->value(3), 13) << state;

    std::filesystem::rename(folder / "case/processor1/0.75", folder / "case/processor1/0.6");
    EXPECT_TRUE(throws_with<IoError>("processor1 has no time 0.75, which processor0 has",
                                     [&] { read_series(folder / "case"); }));
}

TEST(ReadSeries, TakesAllTimesOfAMeshThatWasMadeInParallelFromTheProcessors)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(1));  // the background of the mesher
    std::filesystem::remove_all(folder / "case/0.5");
    write_decomposed_foam_case(folder / "case", cube(2), std::vector<std::int32_t>{0, 1, 0, 1, 0, 1, 0, 1}, false);

    const auto states = read_series(folder / "case");

    ASSERT_EQ(times_of(states), (Times{0, 0.5}));
    EXPECT_EQ(read_state(states[0]).num_cells(), 8);
    EXPECT_EQ(read_state(states[1]).num_cells(), 8);
}

TEST(ReadSeries, IsOneStateOfAnyOtherFile)
{
    const TemporaryFolder folder;
    write_strip(folder / "a.vtp", 2);
    write_strip(folder / "b.vtp", 2, 0.25);
    write_strip(folder / "c.pvtp", 2, 0.75);
    std::filesystem::create_directory(folder / "links");
    std::filesystem::create_symlink(folder / "c.pvtp", folder / "links/c.pvtp");
    write_strip(folder / "d.vtkhdf", 2, 1.25);
    write_bytes(folder / "e.vtk", "# vtk DataFile Version 3.0\ntitle\nASCII\nDATASET POLYDATA\nFIELD FieldData 1\n"
                                  "TimeValue 1 1 double\n2.5\nPOINTS 1 float\n0 0 0\nVERTICES 1 2\n1 0\n");
    write_bytes(folder / "f.vtm", "<VTKFile type=\"vtkMultiBlockDataSet\"><vtkMultiBlockDataSet>"
                                  "<DataSet index=\"0\" file=\"b.vtp\"/></vtkMultiBlockDataSet></VTKFile>");
    write_bytes(folder / "g.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n");

    const std::vector<std::pair<const char*, double>> expected{
        {"a.vtp", 0},       {"b.vtp", 0.25}, {"c.pvtp", 0.75}, {"links/c.pvtp", 0.75},
        {"d.vtkhdf", 1.25}, {"e.vtk", 2.5},  {"f.vtm", 0.25},  {"g.obj", 0}};
    for (const auto& [name, time] : expected) {
        const auto states = read_series(folder / name);
        EXPECT_EQ(times_of(states), Times{time}) << name;
        EXPECT_EQ(states.front().file, folder / name);
        EXPECT_EQ(states.front().time_in_file, std::nullopt) << name;
    }
}

TEST(ReadSeries, RefusesWhatCannotBeInOrder)
{
    const TemporaryFolder folder;
    write_strip(folder / "a.vtp", 2);
    write_strip(folder / "b.vtp", 2);
    const auto refuses = [&](const std::string& content, const char* text, const char* name = "run.pvd") {
        write_bytes(folder / name, content);
        return throws_with<IoError>(text, [&] { read_series(folder / name); });
    };
    EXPECT_TRUE(refuses(pvd(data_set("0", "a.vtp") + data_set("1", "c.vtp")), "c.vtp, does not exist"));
    EXPECT_TRUE(
        refuses(pvd(data_set("2", "a.vtp") + data_set("2", "b.vtp")), "two states have the time 2: a.vtp and b.vtp"));
    EXPECT_TRUE(refuses(pvd(data_set("nan", "a.vtp")), "the time of a.vtp is nan"));
    EXPECT_TRUE(refuses(pvd(""), "it names no files"));
    EXPECT_TRUE(refuses(R"({"files": [{"name": "a.vtp", "time": 1}, {"name": "b.vtp", "time": 1}]})",
                        "two states have the time 1: a.vtp and b.vtp", "run.series"));
    write_steps(folder / "run.vtkhdf", {0, 1, 1});
    EXPECT_TRUE(throws_with<IoError>("two states have the time 1", [&] { read_series(folder / "run.vtkhdf"); }));
    write_steps(folder / "run.vtkhdf", {0, std::numeric_limits<double>::infinity()});
    EXPECT_TRUE(throws_with<IoError>("a finite number is expected", [&] { read_series(folder / "run.vtkhdf"); }));
    EXPECT_TRUE(throws_with<IoError>("does not exist", [&] { read_series(folder / "none.vtu"); }));
    EXPECT_TRUE(throws_with<IoError>("is a folder", [&] { read_series(folder.path()); }));
}

TEST(FindSeries, FindsOneRunForEachIndex)
{
    const TemporaryFolder folder;
    for (const char* run : {"10", "2"}) {
        const std::string name = std::string("run_") + run;
        write_strip(folder / (name + "/a.vtp"), 2);
        write_strip(folder / (name + "/b.vtp"), 3);
        write_bytes(folder / (name + ".pvd"), pvd(data_set("0", name + "/a.vtp") + data_set("5", name + "/b.vtp")));
    }

    const auto runs = find_series(folder.path(), "run_*.pvd");

    EXPECT_EQ(ids_of(runs), (Names{"2", "10"}));
    EXPECT_EQ(runs[0].path, folder / "run_2.pvd");
    EXPECT_EQ(names_of(runs[1].states, folder), (Names{"run_10/a.vtp", "run_10/b.vtp"}));
    EXPECT_EQ(times_of(runs[1].states), (Times{0, 5}));
    EXPECT_EQ(find_series(folder.path(), "run_2.pvd").front().id, "run_2");
    EXPECT_TRUE(
        throws_with<InvalidInput>("has its own times", [&] { find_series(folder.path(), "run_*.pvd", "times.csv"); }));
}

TEST(FindSeries, FindsCasesAndFilesWithSteps)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case_a/foam", cube(1));
    write_foam_case(folder / "case_b/foam", cube(1));
    write_steps(folder / "long_1.vtkhdf", {0, 1, 2});
    write_steps(folder / "long_2.vtkhdf", {0});  // a run that ended early

    EXPECT_EQ(ids_of(find_series(folder.path(), "case_*/foam")), (Names{"a", "b"}));
    const auto cases = find_series(folder.path(), "case_*/foam/case.foam");
    EXPECT_EQ(ids_of(cases), (Names{"a", "b"}));
    EXPECT_EQ(times_of(cases[1].states), (Times{0, 0.5}));
    const auto steps = find_series(folder.path(), "long_*.vtkhdf");
    EXPECT_EQ(ids_of(steps), (Names{"1", "2"}));
    EXPECT_EQ(times_of(steps[0].states), (Times{0, 1, 2}));
    EXPECT_EQ(times_of(steps[1].states), Times{0});
    EXPECT_TRUE(
        throws_with<InvalidInput>("is a folder, but no OpenFOAM case", [&] { find_series(folder.path(), "case_*"); }));
    EXPECT_TRUE(throws_with<InvalidInput>("two runs have the id 'case'",
                                          [&] { find_series(folder.path(), "case_*/foam/*.foam"); }));
}

TEST(FindSeries, TakesTimesFromNames)
{
    const TemporaryFolder folder;
    const auto times_named = [&](const Names& names, const std::string& pattern) {
        std::filesystem::remove_all(folder / "r");
        for (const std::string& name : names) write_strip(folder / ("r/" + name), 1);
        return times_of(find_series(folder.path(), "r/" + pattern).front().states);
    };
    EXPECT_EQ(times_named({"out_0010.vtp", "out_0002.vtp", "out_0001.vtp"}, "out_*.vtp"), (Times{1, 2, 10}));
    EXPECT_EQ(times_named({"out_10.vtp", "out_9.vtp", "out_100.vtp"}, "out_*.vtp"), (Times{9, 10, 100}));
    EXPECT_EQ(times_named({"t=250ms.vtp", "t=1000ms.vtp"}, "t=*.vtp"), (Times{250, 1000}));
    EXPECT_EQ(times_named({"0.25.vtp", "0.5.vtp", "0.vtp"}, "*.vtp"), (Times{0, 0.25, 0.5}));
    EXPECT_EQ(times_named({"t1e-3.vtp", "t2.5e-4.vtp", "t0.vtp"}, "*.vtp"), (Times{0, 0.00025, 0.001}));
    EXPECT_EQ(times_named({"t=-0.5.vtp", "t=0.5.vtp"}, "t=*.vtp"), (Times{-0.5, 0.5}));
    EXPECT_EQ(times_named({"out-1.vtp", "out-3.vtp"}, "out*.vtp"), (Times{1, 3}));
    EXPECT_EQ(times_named({"out.0001.vtp", "out.0003.vtp"}, "out*.vtp"), (Times{1, 3}));
    EXPECT_EQ(times_named({"re100_01.vtp", "re100_12.vtp"}, "re100_??.vtp"), (Times{1, 12}));
    EXPECT_EQ(times_named({"re100_01.vtp", "re100_12.vtp", "re100_wall.vtp"}, "re100_[0-9][0-9].vtp"), (Times{1, 12}));
}

TEST(FindSeries, RefusesNamesThatGiveNoTime)
{
    const TemporaryFolder folder;
    const auto refuses = [&](const Names& names, const std::string& pattern, const char* text) {
        std::filesystem::remove_all(folder / "r");
        for (const std::string& name : names) write_strip(folder / ("r/" + name), 1);
        return throws_with<InvalidInput>(text, [&] { find_series(folder.path(), "r/" + pattern); });
    };
    EXPECT_TRUE(refuses({"out_1.vtp", "out_last.vtp"}, "out_*.vtp", "the state is 'last', which has no number"));
    EXPECT_TRUE(refuses({"re100_1.vtp"}, "*.vtp", "the state is 're100_1', which has 2 numbers"));
    EXPECT_TRUE(refuses({"250ms.vtp", "1s.vtp"}, "*.vtp", "differ in more than the number of the state"));
    EXPECT_TRUE(refuses({"out_1.vtp", "out_01.vtp"}, "out_*.vtp", "two states have the time 1"));
    EXPECT_TRUE(refuses({"out_1e999.vtp"}, "out_*.vtp", "a finite number is expected"));
    EXPECT_TRUE(refuses({"out_1.vtp"}, "in_*.vtp", "r/in_*.vtp matches no file or folder"));
}

TEST(FindSeries, GroupsFilesByRun)
{
    const TemporaryFolder folder;
    for (const char* run : {"run_1", "run_20", "run_3"})
        for (const char* state : {"/out_2.vtp", "/out_10.vtp"}) write_strip(folder / (run + std::string(state)), 1);

    const auto runs = find_series(folder.path(), "run_*/out_*.vtp");

    EXPECT_EQ(ids_of(runs), (Names{"1", "3", "20"}));
    EXPECT_EQ(runs[2].path, folder / "run_20");
    EXPECT_EQ(names_of(runs[2].states, folder), (Names{"run_20/out_2.vtp", "run_20/out_10.vtp"}));
    EXPECT_EQ(times_of(runs[2].states), (Times{2, 10}));
    EXPECT_EQ(find_series(folder / "run_3", (folder / "run_*/out_*.vtp").string()).size(), 3);

    write_strip(folder / "b/run_1/out_2.vtp", 1);
    write_strip(folder / "a/run_1/out_3.vtp", 1);
    EXPECT_TRUE(throws_with<InvalidInput>("two runs have the id '1'",
                                          [&] { find_series(folder.path(), "*/run_*/out_*.vtp"); }));
}

TEST(FindSeries, CallsASingleRunAfterItsFolderOrName)
{
    const TemporaryFolder folder;
    write_strip(folder / "run/out_1.vtp", 1);
    write_strip(folder / "t_1/mesh.vtp", 1);
    const auto id = [&](const char* below, const char* pattern) {
        const auto runs = find_series(folder / below, pattern);
        EXPECT_EQ(runs.size(), 1) << pattern;
        return runs.front().id;
    };

    EXPECT_EQ(id("", "run/out_*.vtp"), "run");
    EXPECT_EQ(id("run", "out_*.vtp"), "out");
    EXPECT_EQ(id("", "t_*/mesh.vtp"), "mesh");
    std::filesystem::rename(folder / "run/out_1.vtp", folder / "run/1.vtp");
    EXPECT_EQ(id("run", "*.vtp"), "run");
}

TEST(FindSeries, TakesTimeValuesOfAllFilesOrNone)
{
    const TemporaryFolder folder;
    write_strip(folder / "out_1.vtp", 1, 0.5);
    write_strip(folder / "out_2.vtp", 2, 0.25);
    write_strip(folder / "out_3.vtp", 3, 7);

    const auto states = find_series(folder.path(), "out_*.vtp").front().states;

    EXPECT_EQ(times_of(states), (Times{0.25, 0.5, 7}));
    EXPECT_EQ(names_of(states, folder), (Names{"out_2.vtp", "out_1.vtp", "out_3.vtp"}));
    write_strip(folder / "out_4.vtp", 4);
    EXPECT_TRUE(throws_with<InvalidInput>("out_4.vtp has not", [&] { find_series(folder.path(), "out_*.vtp"); }));
    write_strip(folder / "out_4.vtp", 4, 7);
    EXPECT_TRUE(
        throws_with<InvalidInput>("two states have the time 7", [&] { find_series(folder.path(), "out_*.vtp"); }));
}

TEST(FindSeries, TakesTimeValuesOfGrids)
{
    const TemporaryFolder folder;
    const auto write_state = [&](const std::string& name, const std::string& kind, const std::string& more,
                                 const std::string& time, const std::string& content) {
        write_bytes(folder / name, "<VTKFile type=\"" + kind + "\" version=\"1.0\"><" + kind +
                                       " WholeExtent=\"0 1 0 1 0 0\"" + more +
                                       "><FieldData><DataArray type=\"Float64\" Name=\"TimeValue\" "
                                       "NumberOfTuples=\"1\" format=\"ascii\">" +
                                       time + "</DataArray></FieldData>" + content + "</" + kind + "></VTKFile>");
    };
    const std::string piece = "<Piece Extent=\"0 1 0 1 0 0\"/>", placed = " Origin=\"0 0 0\" Spacing=\"1 1 1\"",
                      index = "<Piece Extent=\"0 1 0 1 0 0\" Source=\"piece.vti\"/>";
    write_bytes(folder / "piece.vti", "");
    for (const auto& [ending, kind] : std::vector<std::pair<std::string, std::string>>{{".vti", "ImageData"},
                                                                                       {".pvti", "PImageData"},
                                                                                       {".vtr", "RectilinearGrid"},
                                                                                       {".pvtr", "PRectilinearGrid"}}) {
        const bool is_index = kind.front() == 'P', is_image = kind.ends_with("ImageData");
        write_state("s_1" + ending, kind, is_image ? placed : "", "0.25", is_index ? index : piece);
        write_state("s_2" + ending, kind, is_image ? placed : "", "0.5", is_index ? index : piece);
        EXPECT_EQ(times_of(find_series(folder.path(), "s_*" + ending).front().states), (Times{0.25, 0.5})) << ending;
    }
}

TEST(FindSeries, TakesTimesFromTables)
{
    const TemporaryFolder folder;
    for (const char* run : {"run_a", "run_b"})
        for (const char* state : {"/s1.vtp", "/s2.vtp"}) write_strip(folder / (run + std::string(state)), 1, 100);
    write_bytes(folder / "run_a/times.csv", "\xEF\xBB\xBF"
                                            "file,note,time\r\ns1.vtp,\"a, b\",0.5\r\ns2.vtp,,0.125\r\n");
    write_bytes(folder / "run_b/times.csv", "time,file\n3,run_b/s1.vtp\n4,s2.vtp\n5,other.vtp\n");
    write_bytes(folder / "all.csv", "file,time\ns1.vtp,1\ns2.vtp,2\nrun_b/s2.vtp,20\n");

    const auto own = find_series(folder.path(), "run_*/s*.vtp", "run_*/times.csv");
    const auto shared = find_series(folder.path(), "run_*/s*.vtp", "all.csv");

    EXPECT_EQ(times_of(own[0].states), (Times{0.125, 0.5}));
    EXPECT_EQ(names_of(own[0].states, folder), (Names{"run_a/s2.vtp", "run_a/s1.vtp"}));
    EXPECT_EQ(times_of(own[1].states), (Times{3, 4}));
    EXPECT_EQ(times_of(shared[0].states), (Times{1, 2}));
    EXPECT_EQ(times_of(shared[1].states), (Times{1, 20}));
}

TEST(FindSeries, RefusesTablesThatLackATime)
{
    const TemporaryFolder folder;
    write_strip(folder / "s1.vtp", 1);
    write_strip(folder / "s2.vtp", 1);
    const auto refuses = [&](const char* content, const std::string& text) {
        write_bytes(folder / "times.csv", content);
        return throws_with<IoError>(text, [&] { find_series(folder.path(), "s*.vtp", "times.csv"); });
    };
    EXPECT_TRUE(refuses("file,time\ns1.vtp,1\n", "has no line for " + (folder / "s2.vtp").string()));
    EXPECT_TRUE(refuses("name,time\ns1.vtp,1\n", "has no column 'file'"));
    EXPECT_TRUE(refuses("file,time\ns1.vtp,1\ns2.vtp,soon\n", "line 3: the time is 'soon'"));
    EXPECT_TRUE(refuses("file,time\ns1.vtp,1\ns2.vtp,inf\n", "line 3: the time is 'inf'"));
    EXPECT_TRUE(refuses("file,time\ns1.vtp,1\n./s1.vtp,2\n", "line 3: the file ./s1.vtp is there a second time"));
    EXPECT_TRUE(refuses("file,time\ns1.vtp\n", "line 2: 1 values under 2 names"));
    write_bytes(folder / "times.csv", "file,time\ns1.vtp,1\ns2.vtp,1\n");
    EXPECT_TRUE(throws_with<InvalidInput>("two states have the time 1",
                                          [&] { find_series(folder.path(), "s*.vtp", "times.csv"); }));
    EXPECT_TRUE(throws_with<IoError>("cannot be read", [&] { find_series(folder.path(), "s*.vtp", "no.csv"); }));
}

}  // namespace
}  // namespace meshard
