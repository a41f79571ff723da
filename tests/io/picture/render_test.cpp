// SPDX-License-Identifier: Apache-2.0
#include "io/picture/bitmap_font.h"
#include "io/picture/lettering.h"
#include "io/picture/outer_surface.h"
#include "io/picture/render.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <zlib.h>

namespace meshard {
namespace {

struct Picture {
    std::int32_t width = 0, height = 0;
    std::vector<std::uint8_t> pixels;

    std::array<int, 3> at(std::int32_t x, std::int32_t y) const
    {
        const std::uint8_t* pixel = pixels.data() + 3 * (y * width + x);
        return {pixel[0], pixel[1], pixel[2]};
    }
    std::int64_t count_colored() const  // neither white nor grey
    {
        std::int64_t count = 0;
        for (std::int32_t i = 0; i < width * height; ++i)
            count += std::abs(pixels[3 * i] - pixels[3 * i + 1]) + std::abs(pixels[3 * i + 1] - pixels[3 * i + 2]) > 40;
        return count;
    }
};

/// Reads what the PNG specification says that a reader must, with its checksums.
Picture decode_png(const std::filesystem::path& path)
{
    const std::string bytes = read_bytes(path);
    EXPECT_EQ(bytes.substr(0, 8), "\x89PNG\r\n\x1a\n");
    const auto number = [&](std::size_t at) {
        std::uint32_t value = 0;
        for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
        return value;
    };
    Picture picture;
    std::string data, types;
    for (std::size_t at = 8; at < bytes.size(); at += 12 + number(at)) {
        const std::string type = bytes.substr(at + 4, 4);
        types += type + " ";
        EXPECT_EQ(number(at + 8 + number(at)),
                  ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data() + at + 4), number(at) + 4));
        if (type == "IHDR") {
            picture.width = static_cast<std::int32_t>(number(at + 8));
            picture.height = static_cast<std::int32_t>(number(at + 12));
            EXPECT_EQ(bytes.substr(at + 16, 5), std::string("\x08\x02\0\0\0", 5));
        }
        if (type == "IDAT") data = bytes.substr(at + 8, number(at));
    }
    EXPECT_EQ(types, "IHDR IDAT IEND ");
    const std::size_t row = 3 * static_cast<std::size_t>(picture.width) + 1;
    std::vector<std::uint8_t> rows(row * static_cast<std::size_t>(picture.height));
    uLongf size = rows.size();
    EXPECT_EQ(::uncompress(rows.data(), &size, reinterpret_cast<const Bytef*>(data.data()), data.size()), Z_OK);
    EXPECT_EQ(size, rows.size());
    for (std::int32_t y = 0; y < picture.height; ++y)
        picture.pixels.insert(picture.pixels.end(), rows.begin() + y * row + 1, rows.begin() + (y + 1) * row);
    return picture;
}

TEST(OuterSurface, OfACubeIsItsSkin)
{
    for (const Mesh& mesh : {cube(3), polyhedral_cube(3)}) EXPECT_EQ(outer_surface(mesh).size(), 6U * 9 * 2);
    EXPECT_EQ(outer_surface(tet_cube(3)).size(), 6U * 9 * 2);
    EXPECT_EQ(outer_surface(strip(4)).size(), 8U);
    EXPECT_TRUE(outer_surface(random_cloud(5, 1)).empty());
}

TEST(OuterSurface, LeavesTheNotchOfAConcavePolygonFree)
{
    constexpr std::array<std::array<double, 2>, 6> corners{{{0, 0}, {2, 0}, {2, 1}, {1, 1}, {1, 2}, {0, 2}}};
    for (std::size_t first = 0; first < corners.size(); ++first) {
        Mesh mesh;
        std::vector<double> coordinates;
        for (std::size_t k = 0; k < corners.size(); ++k) {
            const auto& [x, y] = corners[(first + k) % corners.size()];
            coordinates.insert(coordinates.end(), {x, y, 0});
        }
        mesh.points = DataArray::from("Points", coordinates, 3);
        mesh.cells.push_row(std::array{0, 1, 2, 3, 4, 5});
        mesh.cell_types.push_back(7);

        const auto triangles = outer_surface(mesh);

        double sum = 0;
        for (const auto& [points, cell] : triangles) {
            const auto at = [&](int k, int d) { return coordinates[3 * points[k] + d]; };
            const double area =
                ((at(1, 0) - at(0, 0)) * (at(2, 1) - at(0, 1)) - (at(2, 0) - at(0, 0)) * (at(1, 1) - at(0, 1))) / 2;
            EXPECT_GT(area, 0) << first;
            sum += area;
        }
        EXPECT_NEAR(sum, 3, 1e-12) << first;
    }
}

TEST(OuterSurface, LeavesGhostsOut)
{
    Mesh mesh = strip(4);
    mesh.cell_data.push_back(DataArray::from("vtkGhostType", std::vector<std::uint8_t>{0, 1, 0, 1}));

    const auto triangles = outer_surface(mesh);

    EXPECT_EQ(triangles.size(), 4U);
    for (const auto& triangle : triangles) EXPECT_EQ(triangle.cell % 2, 0);
}

TEST(Render, DrawsEverySampleFromEverySide)
{
    const TemporaryFolder folder;
    for (const auto& [name, mesh] : sample_meshes())
        for (const char* view : {"iso", "side", "front", "top"}) {
            render_mesh(mesh, folder / "a.png", {.view = view_from_name(view), .width = 320, .height = 200});
            const Picture picture = decode_png(folder / "a.png");
            EXPECT_EQ(picture.width, 320) << name;
            EXPECT_EQ(picture.height, 200) << name;
        }
}

TEST(Render, ColorsPointsOfLinesByTheirCells)
{
    const TemporaryFolder folder;
    Mesh mesh;
    mesh.points = DataArray::from("Points", std::vector<double>{0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0}, 3);
    mesh.cells.push_row(std::array{0, 1});
    mesh.cells.push_row(std::array{2, 3});
    mesh.cell_types = {3, 3};
    mesh.cell_data.push_back(DataArray::from("p", std::vector<double>{500, 599}));
    mesh.point_data.push_back(DataArray::from("same", std::vector<double>{500, 500, 599, 599}));
    for (const char* name : {"p", "same"})
        render_mesh(mesh, folder / (std::string(name) + ".png"),
                    {.color_by = name, .view = View::Top, .width = 320, .height = 200, .title = "one"});

    EXPECT_EQ(decode_png(folder / "p.png").pixels, decode_png(folder / "same.png").pixels);
}

TEST(Render, ColorsFollowTheValues)
{
    const TemporaryFolder folder;
    Mesh mesh = strip(2);  // two squares side by side in the plane z = 0
    mesh.cell_data = {DataArray::from("p", std::vector<float>{-1, 1})};

    render_mesh(mesh, folder / "a.png", {.color_by = "p", .view = View::Top, .width = 600, .height = 400});
    const Picture picture = decode_png(folder / "a.png");

    const auto left = picture.at(150, 230), right = picture.at(330, 230);  // seen from above x runs to the right
    EXPECT_GT(left[2], left[1]);                                           // dark blue
    EXPECT_GT(right[1], right[2]);                                         // yellow
    EXPECT_EQ(picture.at(2, 2), (std::array<int, 3>{255, 255, 255}));
}

TEST(Render, OutliersDoNotTakeTheColors)
{
    const TemporaryFolder folder;
    Mesh mesh = strip(600);
    std::vector<float> values;
    for (int i = 0; i < 600; ++i) values.push_back(static_cast<float>(i % 2));
    mesh.cell_data = {DataArray::from("p", values)};
    render_mesh(mesh, folder / "without.png", {.color_by = "p"});
    values[300] = 1e6F;
    mesh.cell_data = {DataArray::from("p", values)};

    render_mesh(mesh, folder / "with.png", {.color_by = "p"});

    const Picture with = decode_png(folder / "with.png"), without = decode_png(folder / "without.png");
    std::int64_t different = 0;
    for (std::size_t i = 0; i < with.pixels.size(); ++i) different += with.pixels[i] != without.pixels[i];
    EXPECT_GT(different, 0) << "the labels say that values are clipped";
    EXPECT_LT(different, 2000);
}

TEST(Render, NearerSurfacesHideOthers)
{
    const TemporaryFolder folder;
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    for (const std::int32_t first : {4, 0})
        mesh.cells.push_row(std::vector<std::int32_t>{first, first + 1, first + 2, first + 3});
    mesh.cell_types = {9, 9};
    mesh.cell_data = {DataArray::from("p", std::vector<double>{1, 0})};
    for (const double z : {0.0, 5e6}) {
        mesh.points = DataArray::from("Points", std::vector<double>{0, 0,        z, 1, 0,        z, 1,        1,
                                                                    z, 0,        1, z, 0,        0, z + 0.05, 1,
                                                                    0, z + 0.05, 1, 1, z + 0.05, 0, 1,        z + 0.05},
                                      3);

        render_mesh(mesh, folder / "a.png", {.color_by = "p", .view = View::Top, .width = 400, .height = 400});

        const auto seen = decode_png(folder / "a.png").at(130, 200);
        EXPECT_GT(seen[1], 2 * seen[2]) << "the upper square, of value 1, is yellow";
    }
}

TEST(Render, ShowsPointsOnOneLineOfSight)
{
    const TemporaryFolder folder;
    Mesh mesh;
    mesh.kind = MeshKind::Unstructured;
    for (const auto& points : {std::vector<double>{1, 2, 3}, {0, 0, 0, 0, 0, 1, 0, 0, 2}}) {
        mesh.points = DataArray::from("Points", points, 3);
        render_mesh(mesh, folder / "a.png", {.view = View::Top, .width = 400, .height = 400});
        EXPECT_LT(decode_png(folder / "a.png").at(200, 216)[0], 250);
    }
}

TEST(Render, InfiniteValuesHaveTheColorsOfTheEnds)
{
    const TemporaryFolder folder;
    constexpr double inf = std::numeric_limits<double>::infinity();
    Mesh mesh = strip(2);
    const auto colors_of = [&](double left, double right) {
        mesh.cell_data = {DataArray::from("p", std::vector<double>{left, right})};
        render_mesh(mesh, folder / "a.png", {.color_by = "p", .view = View::Top, .width = 600, .height = 400});
        const auto picture = decode_png(folder / "a.png");
        return std::array{picture.at(150, 230), picture.at(330, 230)};
    };
    const auto ends = colors_of(0, 1);

    EXPECT_EQ(colors_of(-1e308, 1e308), ends);
    EXPECT_EQ(colors_of(1, inf)[1], ends[1]);
    EXPECT_EQ(colors_of(-inf, 1)[0], ends[0]);
}

TEST(Render, DifferencesAreBlueAndRedAndPaleAtZero)
{
    const TemporaryFolder folder;
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    mesh.points = DataArray::from("Points", std::vector<float>{0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0}, 3);
    mesh.cells.push_row(std::vector<std::int32_t>{0, 1, 2, 3});
    mesh.cell_types = {9};
    const auto color_of = [&](double value) {
        mesh.cell_data = {DataArray::from("p", std::vector<double>{value})};
        render_mesh(mesh, folder / "a.png",
                    {.color_by = "p",
                     .range = std::array{-2.0, 2.0},
                     .is_diverging = true,
                     .view = View::Top,
                     .width = 400,
                     .height = 400});
        return decode_png(folder / "a.png").at(130, 200);
    };
    const auto low = color_of(-1.9), middle = color_of(0), high = color_of(1.9);
    EXPECT_GT(low[2], 2 * low[0]);
    EXPECT_GT(high[0], 2 * high[2]);
    EXPECT_LT(std::abs(middle[0] - middle[1]) + std::abs(middle[1] - middle[2]), 20);
    EXPECT_GT(middle[1], 2 * std::max(low[1], high[1]));
}

TEST(Render, TakesPartsMagnitudesComponentsAndNaN)
{
    const TemporaryFolder folder;
    Mesh mesh = sphere(8);
    mesh.point_data.push_back(
        DataArray::from("odd", std::vector<float>(mesh.num_points(), std::numeric_limits<float>::quiet_NaN())));
    std::set<std::string> pictures;
    for (const RenderOptions& options : {RenderOptions{.color_by = "patch"},
                                         {.color_by = "velocity"},
                                         {.color_by = "velocity", .component = "y"},
                                         {.color_by = "velocity", .component = "0"},
                                         {.color_by = "odd"},
                                         {.color_by = "pressure", .range = std::array{-1.0, 1.0}},
                                         {.color_by = "pressure", .title = "a title"}}) {
        render_mesh(mesh, folder / "a.png", options);
        pictures.insert(read_bytes(folder / "a.png"));
        EXPECT_GT(decode_png(folder / "a.png").count_colored(), 20'000) << options.color_by;
    }
    EXPECT_EQ(pictures.size(), 7U);
}

TEST(Render, RefusesWhatIsNotThere)
{
    const TemporaryFolder folder;
    const Mesh mesh = sphere(3);
    const auto render = [&](RenderOptions options) {
        return [&folder, &mesh, options] { render_mesh(mesh, folder / "a.png", options); };
    };

    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'pressure'?", render({.color_by = "presure"})));
    EXPECT_TRUE(throws_with<InvalidInput>("has no component 'w'", render({.color_by = "velocity", .component = "w"})));
    EXPECT_TRUE(throws_with<InvalidInput>("64 to 16384", render({.width = 0})));
    EXPECT_TRUE(throws_with<InvalidInput>("is empty", render({.color_by = "pressure", .range = std::array{1.0, 1.0}})));
    EXPECT_TRUE(throws_with<InvalidInput>("known are iso, side, front and top", [] { view_from_name("back"); }));
    EXPECT_TRUE(throws_with<IoError>("there is no folder", [&] { render_mesh(mesh, folder / "no/a.png"); }));
    EXPECT_EQ(folder.size(), 0);
}

TEST(PicturePainter, SavesTheSameMeshOnALightAndADarkGround)
{
    const TemporaryFolder folder;
    PicturePainter painter({.color_by = "pressure", .width = 400, .height = 300, .title = "pressure"});

    painter.paint_whole(sphere(8));
    painter.save(folder / "light.png");
    painter.save(folder / "dark.png", Theme::Dark);

    const Picture light = decode_png(folder / "light.png"), dark = decode_png(folder / "dark.png");
    const auto sum = [](const std::array<int, 3>& pixel) { return pixel[0] + pixel[1] + pixel[2]; };
    EXPECT_EQ(sum(light.at(1, 1)), 3 * 255);
    EXPECT_LT(sum(dark.at(1, 1)), 3 * 40);
    EXPECT_EQ(light.at(125, 166), dark.at(125, 166)) << "the middle of the mesh";
    int darkest = 3 * 255, brightest = 0;  // of the title's letters
    for (int y = 24; y < 45; ++y)
        for (int x = 24; x < 150; ++x) {
            darkest = std::min(darkest, sum(light.at(x, y)));
            brightest = std::max(brightest, sum(dark.at(x, y)));
        }
    EXPECT_LT(darkest, 3 * 60);
    EXPECT_GT(brightest, 3 * 190);
}

TEST(Lettering, HasCapitalsWhereTheyBelongAndCountsCharactersNotBytes)
{
    Image image{60, 60, std::vector<std::uint8_t>(60 * 60 * 3, 255)};

    draw_text(image, 10, 20, "H", 28, {0, 0, 0});

    std::array<int, 4> box{60, 60, 0, 0};  // of what is darker than half
    for (int y = 0; y < 60; ++y)
        for (int x = 0; x < 60; ++x)
            if (*image.at(x, y) < 128)
                box = {std::min(box[0], x), std::min(box[1], y), std::max(box[2], x), std::max(box[3], y)};
    EXPECT_NEAR(box[0], 12, 2);
    EXPECT_NEAR(box[1], 20, 1);
    EXPECT_NEAR(box[3], 20 + 0.73 * 28, 2);
    EXPECT_GT(box[2] - box[0], 8);
    EXPECT_EQ(text_width("", 20), 0);
    EXPECT_NEAR(text_width("\u00e9\u00e9", 20), text_width("ee", 20), 2);
    EXPECT_GT(text_width("\xff", 20), 0) << "no UTF-8";
    EXPECT_NEAR(text_width("HHHHHHHH", 40), 2 * text_width("HHHHHHHH", 20), 24);
    draw_text(image, -500, -3, "beyond every edge of the picture", 40, {0, 0, 0});
}

TEST(Lettering, HasSmoothLettersWhereThereIsAFont)
{
    if (font_file().empty()) GTEST_SKIP() << "no font, or built without FreeType";
    Image image{200, 40, std::vector<std::uint8_t>(200 * 40 * 3, 255)};

    draw_text(image, 5, 10, "smooth S", 22, {0, 0, 0});

    std::set<std::uint8_t> greys(image.pixels.begin(), image.pixels.end());
    EXPECT_GT(greys.size(), 10U);
}

TEST(BitmapFont, HasALetterForEveryPrintableCharacter)
{
    const auto picture = [](char32_t letter) {
        std::vector<bool> dots;
        for (int row = 0; row < bitmap_font::height; ++row)
            for (int column = 0; column < bitmap_font::width; ++column)
                dots.push_back(bitmap_font::has_dot(letter, column, row));
        return dots;
    };
    std::set<std::vector<bool>> seen;
    for (char32_t letter = U' '; letter <= U'~'; ++letter) seen.insert(picture(letter));

    EXPECT_EQ(seen.size(), 95U);
    EXPECT_EQ(picture(U'\u00e9'), picture(U'?'));
}

TEST(PicturePainter, DrawsPiecesAsTheWholeInAnyOrder)
{
    const TemporaryFolder folder;
    for (const auto& [name, whole] :
         {NamedMesh{"tets", tet_cube(5)}, NamedMesh{"strip", strip(30)}, NamedMesh{"cloud", random_cloud(400, 3)}}) {
        SCOPED_TRACE(name);
        for (const bool is_categorical : {true, false}) {
            Mesh mesh = whole;
            std::vector<std::int32_t> values(mesh.num_rows());
            for (std::size_t i = 0; i < values.size(); ++i)
                values[i] = static_cast<std::int32_t>(is_categorical ? i % 4 : i * i % 1000);
            auto& arrays = mesh.is_point_cloud() ? mesh.point_data : mesh.cell_data;
            arrays = {DataArray::from("value", values)};
            const RenderOptions options{.color_by = "value", .width = 300, .height = 200};
            render_mesh(mesh, folder / "whole.png", options);

            // Each piece is a triangle of the whole's surface, or a point; of two painters the one has the even pieces,
            // the other the odd ones.
            std::vector<Mesh> pieces;
            const auto triangles = outer_surface(mesh);
            for (const auto& triangle : triangles) {
                Mesh piece;
                piece.kind = MeshKind::Surface;
                piece.points = mesh.points.gather(triangle.points);
                piece.cells.push_row(std::vector<std::int32_t>{0, 1, 2});
                piece.cell_types = {5};
                piece.cell_data = {DataArray::from("value", std::vector{values[triangle.cell]})};
                pieces.push_back(std::move(piece));
            }
            for (std::int32_t i = 0; i < mesh.num_points() && triangles.empty(); ++i)
                pieces.push_back(extract_mesh(mesh, {}, std::vector{i}));
            std::ranges::reverse(pieces);
            PicturePainter even(options), odd(options);
            PictureGlance glance;
            for (const auto& piece : pieces) {
                const auto found = even.look(piece);
                glance.join(found.numbers);
                glance.join(found.seen);
            }
            even.begin(glance);
            odd.begin(glance);
            for (std::size_t i = 0; i < pieces.size(); ++i) (i % 2 == 0 ? even : odd).draw(pieces[i]);
            even.add_layer(odd.layer());
            even.save(folder / "pieces.png");

            EXPECT_EQ(read_bytes(folder / "pieces.png"), read_bytes(folder / "whole.png")) << is_categorical;
            odd.save(folder / "odd.png");
            EXPECT_NE(read_bytes(folder / "odd.png"), read_bytes(folder / "whole.png"));  // else this shows nothing
        }
    }
}

}  // namespace
}  // namespace meshard
