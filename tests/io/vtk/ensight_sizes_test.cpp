// SPDX-License-Identifier: Apache-2.0
// Cases of EnSight Gold whose files are cut short or do not fit each other.
#include "io/mesh_io.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <initializer_list>

namespace meshard {
namespace {

enum class Form { Text, C, BigC, Fortran, BigFortran };
constexpr Form kForms[] = {Form::Text, Form::C, Form::BigC, Form::Fortran, Form::BigFortran};

/// Writes lines and numbers as EnSight does.
class EnSightText {
public:
    explicit EnSightText(Form form) : form_(form) {}

    EnSightText& line(std::string text)
    {
        if (form_ == Form::Text) return bytes += text + '\n', *this;
        text.resize(80, ' ');
        return record(text);
    }
    /// In a text `in_line` on a line.
    EnSightText& integers(std::initializer_list<int> values, int in_line = 1)
    {
        std::string packed;
        for (int i = 0; const int value : values) {
            if (form_ == Form::Text) bytes += fmt::format("{:10}{}", value, ++i % in_line == 0 ? "\n" : "");
            packed += packed_number(static_cast<std::uint32_t>(value));
        }
        return form_ == Form::Text ? *this : record(packed);
    }
    EnSightText& values(int count, float first)
    {
        std::string packed;
        for (int i = 0; i < count; ++i) {
            const float value = first + 0.625F * static_cast<float>(i);
            if (form_ == Form::Text) bytes += fmt::format("{:12.5e}\n", value);
            packed += packed_number(std::bit_cast<std::uint32_t>(value));
        }
        return form_ == Form::Text ? *this : record(packed);
    }
    EnSightText& part(int number) { return line("part").integers({number}); }

    std::string bytes;

private:
    std::string packed_number(std::uint32_t number) const
    {
        std::string packed(4, '\0');
        for (char& c : packed) c = static_cast<char>(std::exchange(number, number >> 8) & 255);
        if (form_ == Form::BigC || form_ == Form::BigFortran) std::ranges::reverse(packed);
        return packed;
    }
    EnSightText& record(const std::string& packed)
    {
        const bool is_framed = form_ == Form::Fortran || form_ == Form::BigFortran;
        const auto length = is_framed ? packed_number(static_cast<std::uint32_t>(packed.size())) : "";
        bytes += length + packed + length;
        return *this;
    }

    Form form_;
};

/// Two states: a part of two triangles, two polygons (4 and 3 corners) and a ghost, then a grid of 2 x 2 x 1 points.
/// `p` at the points, the vector `q` in the elements, each state in a file.
class EnSightSizes : public testing::Test {
protected:
    void write(Form form)
    {
        write_bytes(folder / "run.case",
                    "FORMAT\ntype: ensight gold\nGEOMETRY\nmodel: run.geo\nVARIABLE\nscalar per node: 1 p run.p*\n"
                    "vector per element: 1 q run.q*\nTIME\ntime set: 1\nnumber of steps: 2\nfilename start number: 0\n"
                    "filename increment: 1\ntime values: 0 1\n");
        EnSightText geometry(form);
        if (form != Form::Text) geometry.line(form == Form::C || form == Form::BigC ? "C Binary" : "Fortran Binary");
        geometry.line("made").line("for a test").line("node id given").line("element id off");
        geometry.part(1).line("body").line("coordinates").integers({5}).integers({1, 2, 3, 4, 5});
        geometry.values(5, 0).values(5, 1).values(5, 2);
        geometry.line("tria3").integers({2}).integers({1, 2, 3, 2, 3, 4}, 3);
        geometry.line("g_tria3").integers({1}).integers({1, 2, 5}, 3);
        geometry.line("nsided").integers({2}).integers({4, 3});
        if (form == Form::Text)
            geometry.line("  1  2  3  4").line("  3  4  5");
        else
            geometry.integers({1, 2, 3, 4, 3, 4, 5});
        geometry.part(2).line("grid").line("block").integers({2, 2, 1}, 3).values(4, 0).values(4, 1).values(4, 2);
        write_bytes(folder / "run.geo", geometry.bytes);
        for (const char state : {'0', '1'}) {
            EnSightText p(form), q(form);
            p.line("p").part(1).line("coordinates").values(5, state).part(2).line("block").values(4, state);
            q.line("q").part(1).line("tria3").values(2, 1).values(2, 2).values(2, 3);
            q.line("nsided").values(2, 4).values(2, 5).values(2, 6);
            // VTK reads no vectors of the elements of a grid in a text.
            if (form != Form::Text) q.part(2).line("block").values(1, 7).values(1, 8).values(1, 9);
            write_bytes(folder / fmt::format("run.p{}", state), p.bytes);
            write_bytes(folder / fmt::format("run.q{}", state), q.bytes);
        }
    }

    Mesh read(ReadOptions options = {}) { return read_mesh(folder / "run.case", options); }

    /// Replaces text in a file of the case, reads it, and puts it back.
    testing::AssertionResult refuses(const std::string& name, std::string_view old, std::string_view now,
                                     std::string_view message)
    {
        const auto whole = read_bytes(folder / name);
        auto changed = whole;
        changed.replace(changed.find(old), old.size(), now);
        write_bytes(folder / name, changed);
        const auto result = throws_with<IoError>(message, [&] { read(); });
        write_bytes(folder / name, whole);
        return result;
    }

    TemporaryFolder folder;
};

TEST_F(EnSightSizes, OfFilesThatAreCutAnywhereAreRefused)
{
    for (const Form form : kForms) {
        write(form);
        ASSERT_EQ(read().num_cells(), 5) << static_cast<int>(form);
        for (const char* name : {"run.geo", "run.p1", "run.q1"}) {
            const auto whole = read_bytes(folder / name);
            for (std::size_t size = 0; size < whole.size(); size += 7) {
                // Nothing tells whether more parts were to come; then they get NaN, with a warning.
                const auto next = whole.find("part", size);
                if (next == size || (next == size + 4 && form >= Form::Fortran)) continue;
                write_bytes(folder / name, whole.substr(0, size));
                EXPECT_THROW(read(), IoError) << static_cast<int>(form) << ": " << name << " of " << size << " bytes";
            }
            write_bytes(folder / name, whole);
        }
        write_bytes(folder / "run.p0", "");
        EXPECT_EQ(read().num_cells(), 5) << "the state before is not read";
    }
}

TEST_F(EnSightSizes, AreToldWithFileAndLine)
{
    write(Form::Text);
    EXPECT_TRUE(
        refuses("run.geo", "coordinates\n         5", "coordinates\n         6",
                "run.geo, line 30: expected 6 lines of numbers after 'coordinates', found 2 before 'tria3'. The "
                "file is cut short, or not of one run with the case's other files."));
    EXPECT_TRUE(
        refuses("run.geo", "coordinates\n         5", "coordinates\n        -5", "numbers from 0 to 2147483647"));
    EXPECT_TRUE(refuses("run.geo", "         2         2         1", "     60000     60000         1",
                        "at most 2147483647 points, as VTK counts them, found 60000 x 60000 x 1"));
    EXPECT_TRUE(refuses("run.p1", "part\n         2", "part\n         3",
                        "run.p1, line 11: expected a part of the geometry, found part 3"));
    EXPECT_TRUE(refuses("run.p1", "part\n         2", "more\n         2",
                        "expected 'part' or the end of the file after 'coordinates', found 'more'"));
    EXPECT_TRUE(refuses("run.p1", "coordinates", "tria3", "expected values of part 1, found 'tria3'"));
    EXPECT_TRUE(refuses("run.q1", "nsided", "quad4", "expected a type of part 1's elements, found 'quad4'"));
    auto q = read_bytes(folder / "run.q1");
    write_bytes(folder / "run.q1", q.substr(0, q.find("nsided")));
    EXPECT_TRUE(
        throws_with<IoError>("expected values of part 1's 2 nsided, found the end of the file", [&] { read(); }));
    q.pop_back();
    write_bytes(folder / "run.q1", q);
    EXPECT_TRUE(throws_with<IoError>("whose last line has no end (if it is whole, add one)", [&] { read(); }));
    write_bytes(folder / "run.q1", "q\n");
    EXPECT_TRUE(throws_with<IoError>("expected values of some part, found none", [&] { read(); }));
}

TEST_F(EnSightSizes, OfPartsWithoutValuesAreWarnedOf)
{
    write(Form::C);
    const auto p = read_bytes(folder / "run.p1");
    write_bytes(folder / "run.p1", p.substr(0, p.rfind("part")));
    std::vector<std::string> warnings;
    ReadOptions options;
    options.warnings = &warnings;

    const Mesh mesh = read(options);

    EXPECT_TRUE(std::isnan(find_array(mesh.point_data, "p")->value(8)));
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_NE(warnings[0].find("run.p1 has no values of part 2"), std::string::npos);

    const auto q = read_bytes(folder / "run.q1");
    write_bytes(folder / "run.q1", q.substr(0, q.rfind("block")));
    EXPECT_TRUE(throws_with<IoError>("run.q1, byte", [&] { read(); })) << "the part is announced";
}

TEST_F(EnSightSizes, OfStepsInOneFileAreThoseOfTheWantedOne)
{
    for (const Form form : {Form::Text, Form::C}) {
        write(form);
        write_bytes(folder / "run.case",
                    "FORMAT\ntype: ensight gold\nGEOMETRY\nmodel: 1 1 run.geo\nVARIABLE\nscalar per node: 1 1 p run.p\n"
                    "TIME\ntime set: 1\nnumber of steps: 2\ntime values: 0 1\nFILE\nfile set: 1\nnumber of steps: 2\n");
        for (const std::string name : {"run.geo", "run.p"}) {
            const std::string head =
                name == "run.geo" && form == Form::C ? EnSightText(form).line("C Binary").bytes : "";
            std::string all = head;
            for (const char* state : {"0", "1"}) {
                const auto one = read_bytes(folder / (name == "run.geo" ? name : name + state));
                all += EnSightText(form).line("BEGIN TIME STEP").bytes + one.substr(head.size()) +
                       EnSightText(form).line("END TIME STEP").bytes;
            }
            write_bytes(folder / name, all);
        }

        const Mesh mesh = read();

        EXPECT_EQ(find_array(mesh.point_data, "p")->value(1), '1' + 0.625F);
        for (const char* name : {"run.geo", "run.p"}) {
            const auto whole = read_bytes(folder / name);
            write_bytes(folder / name, whole.substr(0, whole.rfind("END TIME STEP")));
            EXPECT_TRUE(throws_with<IoError>("expected 'part' or END TIME STEP", [&] { read(); }));
            write_bytes(folder / name, whole.substr(0, whole.rfind("BEGIN TIME STEP")));
            EXPECT_TRUE(throws_with<IoError>("found the end of the file", [&] { read(); }));
            write_bytes(folder / name, whole);
        }
    }
}

TEST_F(EnSightSizes, OfWhatVtkMisreadsAreNotTaken)
{
    write(Form::Fortran);
    EXPECT_TRUE(refuses("run.case", "values: 0 1\n", "values: 0 1\nFILE\nfile set: 1\nnumber of steps: 2\n",
                        "no time steps in one file, which VTK misreads where Fortran wrote them"));
    EXPECT_TRUE(refuses("run.case", "run.geo\n", "run.geo\nmeasured: run.geo\n",
                        "no measured points, which VTK misreads where Fortran wrote them"));
}

}  // namespace
}  // namespace meshard
