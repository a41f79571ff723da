// SPDX-License-Identifier: Apache-2.0
// meshard forces: computes forces and coefficients from surfaces with pressure and wall shear stress.
#include "apps/console/json_report.h"
#include "apps/console/text_table.h"
#include "apps/fields/force_fields.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/verbs.h"
#include "io/mesh_io.h"
#include "partition/mesh/cell_rings.h"
#include "partition/mesh/surface_forces.h"
#include "partition/mesh/vector_algebra.h"

#include <fmt/ranges.h>

#include <cmath>
#include <iostream>
#include <optional>

namespace meshard {

namespace {

/// How the fields are scaled: divided by the density (`kinematic`), not divided (`static`), or divided by the dynamic
/// pressure (`cp`).
enum class FieldKind { Kinematic, Static, Coefficient };

struct ForcesOptions {
    std::vector<std::string> files;
    std::string pressure;
    std::string shear;
    FieldKind kind = FieldKind::Kinematic;
    bool shear_is_traction = false;
    bool flip_normals = false;
    std::optional<Orient> orient;
    bool json = false;
    double rho = 1;
    double ambient = 0;  ///< pressure of the free stream, in the units of the field
    std::optional<double> speed;
    std::optional<double> area;
    std::optional<double> length;
    Vector3 center{};
    Vector3 drag_direction{1, 0, 0};
    Vector3 lift_direction{0, 0, 1};
    Vector3 side_direction{0, 1, 0};  ///< at right angles to the other two
    bool has_coefficients() const { return speed && area; }
    double dynamic_pressure() const { return 0.5 * rho * *speed * *speed; }

    /// Returns the factor that turns a field's value into a stress.
    double scale() const
    {
        return kind == FieldKind::Kinematic ? rho : kind == FieldKind::Static ? 1 : dynamic_pressure();
    }
};

/// A number as the sum of a pressure part and a viscous part.
struct Split {
    double pressure = 0;
    double viscous = 0;
    double total() const { return pressure + viscous; }
};

struct ForcesReport {
    std::string file;
    CellField pressure_field;  ///< without its values, which are freed after use
    CellField shear_field;     ///< empty name: no viscous part
    std::int64_t num_polygons = 0;
    SurfaceEdges edges;
    double agreement = -1;  ///< result of `normals_agreement`
    bool is_flipped = false;
    SurfaceForces forces;
    Split drag, side, lift;
};

Vector3 unit(const Vector3& a, const std::string& option)
{
    const double length = std::hypot(a[0], a[1], a[2]);
    if (!(length > 0)) throw UsageError("{} has no length; expected a direction, e.g. 1,0,0.", option);
    return {a[0] / length, a[1] / length, a[2] / length};
}

Vector3 parse_vector(const std::string& text, const std::string& option)
{
    const std::vector<double> numbers = parse_numbers(text, option, 3);
    return {numbers[0], numbers[1], numbers[2]};
}

std::optional<double> parse_positive(const std::string& text, const std::string& option)
{
    if (text.empty()) return std::nullopt;
    const double number = parse_numbers(text, option, 1)[0];
    if (!(number > 0)) throw UsageError("{} is {}; expected a number above 0.", option, text);
    return number;
}

/// Returns the lift direction: upwards (z), without its part along the drag (for flows at an angle of attack).
Vector3 upright(const Vector3& drag)
{
    const Vector3 up{0, 0, 1};
    const double along = dot(up, drag);
    const Vector3 rest{up[0] - along * drag[0], up[1] - along * drag[1], up[2] - along * drag[2]};
    if (std::hypot(rest[0], rest[1], rest[2]) < 1e-6)
        throw UsageError("the drag direction is vertical; give the lift direction with --lift-dir.");
    return unit(rest, "--lift-dir");
}

void set_flow(const std::string& u_inf, const std::string& drag, const std::string& lift, ForcesOptions& options)
{
    if (!u_inf.empty()) {
        const std::vector<double> u = parse_numbers(u_inf, "--u-inf");
        if (u.size() != 1 && u.size() != 3)
            throw UsageError("--u-inf is '{}'; expected a speed, e.g. 40, or a vector, e.g. 40,0,0.", u_inf);
        options.speed = u.size() == 1 ? u[0] : std::hypot(u[0], u[1], u[2]);
        if (!(*options.speed > 0)) throw UsageError("--u-inf is {}; expected a speed above 0.", u_inf);
        if (u.size() == 3) options.drag_direction = unit({u[0], u[1], u[2]}, "--u-inf");
    }
    if (!drag.empty()) options.drag_direction = unit(parse_vector(drag, "--drag-dir"), "--drag-dir");
    options.lift_direction =
        lift.empty() ? upright(options.drag_direction) : unit(parse_vector(lift, "--lift-dir"), "--lift-dir");
    const auto side = cross(options.lift_direction, options.drag_direction);
    if (norm(side) < 1e-9) throw UsageError("--lift-dir {} is the direction of drag; expected another one.", lift);
    options.side_direction = unit(side, "--lift-dir");
    if (options.kind == FieldKind::Coefficient && !options.speed) {
        throw UsageError("--pressure-kind cp needs --u-inf (and --rho): the fields are divided by 0.5 rho U^2.");
    }
}

bool parse(std::span<const std::string> arguments, ForcesOptions& options)
{
    std::string rho = "1", p_inf = "0", u_inf, area, length, center, drag, lift;
    std::string shear_sign = "openfoam";
    std::string kind = "kinematic";
    CLI::App app("Sums pressure and wall shear stress over surfaces: force, drag, side force, lift, and with --u-inf\n"
                 "and --area their coefficients. The order of each polygon's points must be such that its normal "
                 "points out of the body into the "
                 "fluid;\n"
                 "an array `Normals` is compared with it.",
                 "forces");
    add_named(app, "file", options.files, "FILE", "surfaces with the two fields (.vtp .pvtp .vtk, or .vtu of polygons)")
        ->required();
    add_named(app, "--pressure", options.pressure, "NAME", "pressure field")
        ->default_str("the first of p, pMean, pMeanTrim, pressure, Pressure");
    add_named(app, "--shear", options.shear, "NAME", "wall shear stress field, or none")
        ->default_str("the one with the pressure's suffix, otherwise the first of wallShearStress, "
                      "wallShearStressMean, wallShearStressMeanTrim, wss, WallShearStress");
    add_shown(
        app, "--pressure-kind", kind, "KIND",
        "scaling of pressure and shear: kinematic (divided by rho), static (in Pa) or cp (divided by 0.5 rho U^2)")
        ->check(CLI::IsMember({"kinematic", "static", "cp"}));
    add_shown(app, "--shear-sign", shear_sign, "SIGN",
              "sign of the shear field: openfoam (minus the stress on the body) or traction (the stress on the body)")
        ->check(CLI::IsMember({"openfoam", "traction"}));
    app.add_flag("--flip-normals", options.flip_normals,
                 "reverse the polygons' normals, because they point into the body");
    add_orient_option(app, options.orient, "as-is");
    add_shown(app, "--rho", rho, "RHO", "density");
    add_shown(app, "--p-inf", p_inf, "P",
              "pressure of the free stream, which is subtracted from the field, in its units; needed where a "
              "surface is open");
    add_named(app, "--u-inf", u_inf, "U|X,Y,Z",
              "speed of the flow, or its velocity vector, which then also is the direction of drag");
    add_named(app, "--area", area, "A", "reference area; together with --u-inf gives coefficients");
    add_named(app, "--length", length, "L", "reference length for the moment coefficients");
    add_named(app, "--center", center, "X,Y,Z", "point about which moments are computed")->default_str("0,0,0");
    add_named(app, "--drag-dir", drag, "X,Y,Z", "direction of drag")->default_str("the flow's, otherwise 1,0,0");
    add_named(app, "--lift-dir", lift, "X,Y,Z", "direction of lift")
        ->default_str("up (z) without its part along the drag");
    app.add_flag("--json", options.json,
                 "one JSON object on stdout instead of the report; an array of them for several files");
    if (!parse_arguments(app, arguments)) return false;

    if (options.orient == Orient::Outward && options.flip_normals)
        throw UsageError("--flip-normals and --orient outward cannot be used together.");
    options.kind = kind == "kinematic" ? FieldKind::Kinematic
                   : kind == "static"  ? FieldKind::Static
                                       : FieldKind::Coefficient;
    options.shear_is_traction = shear_sign == "traction";
    options.rho = *parse_positive(rho, "--rho");
    options.ambient = parse_numbers(p_inf, "--p-inf", 1)[0];
    if (options.ambient != 0 && options.kind == FieldKind::Coefficient)
        throw UsageError("--p-inf {}: a cp is relative to the free stream already. Leave it out.", p_inf);
    options.area = parse_positive(area, "--area");
    options.length = parse_positive(length, "--length");
    if (!center.empty()) options.center = parse_vector(center, "--center");
    set_flow(u_inf, drag, lift, options);
    return true;
}

/// Reads the polygons of a surface file, without ghost cells, lines and vertices.
Mesh read_surface(const std::string& file)
{
    Mesh mesh = read_mesh(file);
    const DataArray* ghosts = find_array(mesh.cell_data, "vtkGhostType");
    std::vector<std::int32_t> cells, points;
    bool has_polygon = false;
    for (std::int32_t i = 0; i < mesh.num_cells(); ++i) {
        const auto dimension = cell_dimension(mesh.cell_types[i]);
        if (dimension == 3) {
            throw InvalidInput("{} has solid cells, but forces are computed on a surface. Give the body's surface "
                               "(.vtp) with its fields.",
                               file);
        }
        has_polygon = has_polygon || dimension == 2;
        if (dimension == 2 && !(ghosts && ghosts->value(i) != 0)) cells.push_back(i);
    }
    if (!has_polygon) throw InvalidInput("{} has no polygons, but forces are computed on a surface.", file);
    require_single_polygons(mesh, file);
    if (std::ssize(cells) == mesh.num_cells()) return mesh;
    for (std::int32_t i = 0; i < mesh.num_points(); ++i) points.push_back(i);
    return extract_mesh(mesh, cells, points);
}

void orient(const Mesh& mesh, const ForcesOptions& options, std::vector<Vector3>& areas, ForcesReport& report)
{
    report.agreement = normals_agreement(mesh, areas);
    if (options.flip_normals)
        report.is_flipped = true;
    else if (report.agreement >= 0 && report.agreement < 0.001)
        report.is_flipped = true;
    else if (report.agreement >= 0 && report.agreement <= 0.999) {
        warn("forces",
             "{}: the array 'Normals' agrees with the order of the polygons' points on {} % of "
             "the area only. The order of the points is used.",
             report.file, number_text(100 * report.agreement));
    }
    if (report.is_flipped) {
        for (Vector3& area : areas) area = {-area[0], -area[1], -area[2]};
    }
    auto facing = surface_facing(mesh);
    if (report.is_flipped) std::swap(facing.outward, facing.inward);
    if (facing.facing() == Facing::Inward || facing.facing() == Facing::Mixed)
        warn("forces",
             fmt::format("{}: {}, so the pressure force has the wrong sign there unless the fluid is inside. {}",
                         report.file, describe(facing),
                         facing.facing() == Facing::Inward
                             ? "--flip-normals reverses them, --orient outward turns them."
                             : "--orient outward turns them."));
    if (report.edges.is_closed() && facing.facing() != Facing::Mixed && !areas_cancel(areas))
        warn("forces", report.file + ": the surface is closed, but its areas do not cancel, so that a constant "
                                     "pressure pushes it: polygons are there twice or "
                                     "within the body (`meshard info` counts some of them). Leave these out.");
}

ForcesReport compute(const std::string& file, const ForcesOptions& options)
{
    Mesh mesh = read_surface(file);
    if (options.orient == Orient::Outward) orient_surface(mesh, Orient::Outward, "Normals");
    ForcesReport report;
    report.file = file;
    report.num_polygons = mesh.num_cells();
    report.edges = surface_edges(mesh);

    std::int64_t num_curved = 0;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        const auto num_points = mesh.cells.row(i).size();
        num_curved += num_corners(cell_type_of(mesh.cell_types[i]).shape, num_points) < num_points;
    }
    if (num_curved > 0)
        warn("forces",
             "{}: {} of higher order, whose areas are those between their corners. Subdivide "
             "them for more.",
             file, count_text(num_curved, "polygon"));
    std::vector<Vector3> areas = area_vectors(mesh);
    orient(mesh, options, areas, report);

    report.pressure_field = pressure_field(mesh, options.pressure, file);
    const double scale = options.scale();
    std::vector<double> pressures = std::move(report.pressure_field.values);
    for (double& p : pressures) p = (p - options.ambient) * scale;

    std::vector<Vector3> tractions;
    if (options.shear != "none") {
        report.shear_field = shear_field(mesh, options.shear, report.pressure_field.name, file);
        const double sign = options.shear_is_traction ? scale : -scale;
        const std::vector<double> shear = std::move(report.shear_field.values);
        tractions.resize(areas.size());
        for (std::size_t i = 0; i < areas.size(); ++i)
            tractions[i] = {sign * shear[3 * i], sign * shear[3 * i + 1], sign * shear[3 * i + 2]};
    }

    report.forces = integrate_forces(areas, surface_centroids(mesh), pressures, tractions, options.center);
    const auto along = [&](const Vector3& direction) {
        return Split{dot(report.forces.pressure_force, direction), dot(report.forces.viscous_force, direction)};
    };
    report.drag = along(options.drag_direction);
    report.side = along(options.side_direction);
    report.lift = along(options.lift_direction);
    return report;
}

Json to_json(const ForcesReport& report, const ForcesOptions& options)
{
    const SurfaceForces& forces = report.forces;
    const auto split = [](const Vector3& pressure, const Vector3& viscous) {
        return Json{{"pressure", pressure}, {"viscous", viscous}, {"total", pressure + viscous}};
    };
    Json json{{"file", report.file},
              {"pressure_field", report.pressure_field.name},
              {"shear_field", report.shear_field.name.empty() ? Json(nullptr) : Json(report.shear_field.name)},
              {"num_cells", report.num_polygons},
              {"surface_area", forces.area},
              {"closed", report.edges.is_closed()},
              {"normals_flipped", report.is_flipped},
              {"normals_agreement", report.agreement < 0 ? Json(nullptr) : Json(report.agreement)},
              {"force", split(forces.pressure_force, forces.viscous_force)},
              {"moment", split(forces.pressure_moment, forces.viscous_moment)}};
    const auto coefficient = [&](double force) {
        return options.has_coefficients() ? Json(force / (options.dynamic_pressure() * *options.area)) : Json(nullptr);
    };
    const auto add = [&](const std::string& force, const std::string& name, const Split& split) {
        for (const auto& [part, value] : {std::pair("", split.total()), std::pair("_pressure", split.pressure),
                                          std::pair("_viscous", split.viscous)}) {
            json[force + part] = value;
            json[name + part] = coefficient(value);
        }
    };
    add("drag", "Cd", report.drag);
    add("side", "Cs", report.side);
    add("lift", "Cl", report.lift);
    json["Cm"] = nullptr;
    if (options.has_coefficients() && options.length) {
        json["Cm"] = Json::array();
        for (const double m : forces.pressure_moment + forces.viscous_moment)
            json["Cm"].push_back(coefficient(m / *options.length));
    }
    const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
    json["reference"] = {{"rho", options.rho},
                         {"p_inf", options.ambient},
                         {"u_inf", or_null(options.speed)},
                         {"area", or_null(options.area)},
                         {"length", or_null(options.length)},
                         {"center", options.center},
                         {"drag_direction", options.drag_direction},
                         {"side_direction", options.side_direction},
                         {"lift_direction", options.lift_direction}};
    return json;
}

std::string field_text(const CellField& field)
{
    std::string text = field.name;
    if (field.averaged) text += " (mean of each polygon's points)";
    for (std::size_t i = 0; i < field.also_there.size(); ++i)
        text += (i == 0 ? " (also there: " : ", ") + field.also_there[i];
    return field.also_there.empty() ? text : text + ")";
}

std::string vector_text(const Vector3& a)
{
    return fmt::format("({} {} {})", number_text(a[0]), number_text(a[1]), number_text(a[2]));
}

void print_basis(const ForcesReport& report)
{
    std::cout << report.file << ": " << count_text(report.num_polygons, "polygon") << ", area "
              << number_text(report.forces.area) << ", "
              << (report.edges.is_closed()
                      ? std::string("closed")
                      : fmt::format("open ({})", count_text(report.edges.num_boundary, "boundary edge")))
              << "\n  pressure    " << field_text(report.pressure_field) << "\n  shear       "
              << (report.shear_field.name.empty() ? "none" : field_text(report.shear_field)) << "\n  normals     "
              << (report.is_flipped ? "reversed, against the order of the points" : "from the order of the points");
    if (report.agreement >= 0) {
        const double agreement = report.is_flipped ? 1 - report.agreement : report.agreement;
        std::cout << "; the array 'Normals' agrees on " << number_text(100 * agreement) << " % of the area";
    }
    std::cout << '\n';
}

void print_reference(const ForcesOptions& options)
{
    std::cout << "  reference   rho " << number_text(options.rho);
    if (options.ambient != 0) std::cout << ", p_inf " << number_text(options.ambient);
    if (options.speed) std::cout << ", U " << number_text(*options.speed);
    if (options.area) std::cout << ", area " << number_text(*options.area);
    std::cout << ", drag along " << vector_text(options.drag_direction) << ", lift along "
              << vector_text(options.lift_direction) << '\n';
    if (!options.has_coefficients()) std::cout << "              no coefficients: they need --u-inf and --area\n";
}

void print_forces(const ForcesReport& report, const ForcesOptions& options)
{
    TextTable table("lrrr");
    const auto add = [&](const std::string& name, double pressure, double viscous) {
        table.add_row({name, number_text(pressure), number_text(viscous), number_text(pressure + viscous)});
    };
    table.add_row({"", "pressure", "viscous", "total"});
    const SurfaceForces& forces = report.forces;
    for (int d = 0; d < 3; ++d)
        add(std::string("force ") + "xyz"[d], forces.pressure_force[d], forces.viscous_force[d]);
    for (int d = 0; d < 3; ++d)
        add(std::string("moment ") + "xyz"[d], forces.pressure_moment[d], forces.viscous_moment[d]);
    add("drag", report.drag.pressure, report.drag.viscous);
    add("side", report.side.pressure, report.side.viscous);
    add("lift", report.lift.pressure, report.lift.viscous);
    if (options.has_coefficients()) {
        const double unit_force = options.dynamic_pressure() * *options.area;
        add("Cd", report.drag.pressure / unit_force, report.drag.viscous / unit_force);
        add("Cs", report.side.pressure / unit_force, report.side.viscous / unit_force);
        add("Cl", report.lift.pressure / unit_force, report.lift.viscous / unit_force);
        for (int d = 0; d < 3 && options.length; ++d) {
            add(std::string("Cm ") + "xyz"[d], forces.pressure_moment[d] / (unit_force * *options.length),
                forces.viscous_moment[d] / (unit_force * *options.length));
        }
    }
    std::cout << '\n' << table;
}

/// Prints one line for each file: coefficients if there are reference values, otherwise forces.
void print_table(const std::vector<ForcesReport>& reports, const ForcesOptions& options)
{
    const bool coefficients = options.has_coefficients();
    const double unit_force = coefficients ? options.dynamic_pressure() * *options.area : 1;
    const std::string drag = coefficients ? "Cd" : "drag";
    const std::string lift = coefficients ? "Cl" : "lift";
    TextTable table("lrrrrrr");
    table.add_row({"file", drag, "pressure", "viscous", lift, "pressure", "viscous"});
    for (const ForcesReport& report : reports) {
        std::vector<std::string> row{report.file};
        for (const Split& split : {report.drag, report.lift}) {
            for (const double force : {split.total(), split.pressure, split.viscous})
                row.push_back(number_text(force / unit_force));
        }
        table.add_row(std::move(row));
    }
    std::cout << '\n' << table;
}

}  // namespace

int forces_command(std::span<const std::string> arguments)
{
    ForcesOptions options;
    if (!parse(arguments, options)) return exit_code::ok;
    std::vector<ForcesReport> reports;
    std::vector<std::string> left_out;
    for (const std::string& file : options.files) {
        try {
            reports.push_back(compute(file, options));
        } catch (const UsageError&) {
            throw;
        } catch (const Error& error) {
            if (options.files.size() == 1) throw;
            warn("forces", "{} {} is left out.", without_function_name(error.what()), file);
            left_out.push_back(file);
        }
    }

    if (options.json) {
        Json json = Json::array();
        for (const ForcesReport& report : reports) json.push_back(to_json(report, options));
        print_json(options.files.size() == 1 ? json.front() : json);
    } else if (!reports.empty()) {
        for (const ForcesReport& report : reports) print_basis(report);
        print_reference(options);
        if (reports.size() == 1)
            print_forces(reports.front(), options);
        else
            print_table(reports, options);
    }
    if (!left_out.empty())
        throw IoError("{} of {} files could not be used: {}.", left_out.size(), options.files.size(),
                      fmt::join(left_out, ", "));
    return exit_code::ok;
}

}  // namespace meshard
