// SPDX-License-Identifier: Apache-2.0
#include "io/foam/patch_condition.h"

#include "io/foam/foam_field.h"
#include "partition/lists.h"
#include "partition/mesh/vector_algebra.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {

namespace {

using Matrix3 = std::array<Vector3, 3>;

Matrix3 identity_minus(double scale, const Vector3& n)
{
    Matrix3 m{};
    for (int i = 0; i < 3; ++i)
        for (int k = 0; k < 3; ++k) m[i][k] = (i == k ? 1 : 0) - scale * n[i] * n[k];
    return m;
}

/// The rotation that maps one unit vector to another, about the axis that is normal to both.
Matrix3 rotation(const Vector3& from, const Vector3& to)
{
    const double cosine = dot(from, to);
    const Vector3 axis = cross(from, to);
    Matrix3 m{};
    for (int i = 0; i < 3; ++i)
        for (int k = 0; k < 3; ++k) m[i][k] = (i == k ? cosine : 0) + axis[i] * axis[k] / (1 + cosine);
    m[0][1] -= axis[2], m[1][0] += axis[2];
    m[0][2] += axis[1], m[2][0] -= axis[1];
    m[1][2] -= axis[0], m[2][1] += axis[0];
    return m;
}

/// Computes M v for vectors, M T transposed(M) for tensors (six numbers: XX XY XZ YY YZ ZZ); scalars are not changed.
void transform(const Matrix3& m, std::span<double> row)
{
    if (row.size() == 3) {
        const Vector3 v{row[0], row[1], row[2]};
        for (int i = 0; i < 3; ++i) row[i] = dot(m[i], v);
        return;
    }
    constexpr std::array<std::size_t, 9> of_symmetric{0, 1, 2, 1, 3, 4, 2, 4, 5};
    if (row.size() != 6 && row.size() != 9) return;
    std::array<double, 9> t{};
    for (std::size_t i = 0; i < 9; ++i) t[i] = row[row.size() == 6 ? of_symmetric[i] : i];
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t k = 0; k < 3; ++k) {
            double sum = 0;
            for (std::size_t a = 0; a < 3; ++a)
                for (std::size_t b = 0; b < 3; ++b) sum += m[i][a] * t[3 * a + b] * m[k][b];
            if (row.size() == 9 || i <= k) row[row.size() == 6 ? of_symmetric[3 * i + k] : 3 * i + k] = sum;
        }
}

class Evaluation {
public:
    Evaluation(const FoamFile& file, PatchCondition& condition, PatchGeometry& geometry,
               const std::function<std::optional<DataArray>(const std::string&)>& flux)
        : file_(file), condition_(condition), geometry_(geometry), flux_(flux), num_faces_(condition.behind.num_rows()),
          width_(static_cast<std::size_t>(condition.behind.num_components()))
    {
    }

    DataArray values()
    {
        if (num_faces_ == 0 || is_any({"zeroGradient", "empty", "extrapolatedCalculated", "kqRWallFunction"}))
            return condition_.behind;
        if (is_any({"noSlip"})) return result(std::vector<double>(static_cast<std::size_t>(num_faces_) * width_, 0));
        if (is_any({"slip", "symmetry", "symmetryPlane", "basicSymmetry"})) return slip();
        if (is_any({"wedge"})) return wedge();
        const auto value = list("value");
        // A list was written by a run, one number by the user: in the latter case OpenFOAM uses the gradient only.
        const bool is_list = value && condition_.entry->find("value")->list;
        if (!is_list && is_any({"fixedGradient", "fixedFluxPressure"}))
            if (const auto gradient = list("gradient")) return with_gradient(*gradient);
        if (value) return result(*value);
        if (const auto computed = computed_value()) return *computed;
        condition_.note = why_not();
        return condition_.behind;
    }

private:
    bool is_any(std::initializer_list<std::string_view> types) const { return contains(types, condition_.type); }

    /// The entry of that key, one row for each face; none if it is missing or not a list of numbers.
    std::optional<std::vector<double>> list(const char* key, std::optional<int> num_components = {}) const
    {
        const FoamEntry* entry = condition_.entry == nullptr ? nullptr : condition_.entry->find(key);
        if (entry == nullptr) return std::nullopt;
        FoamEntry plain = *entry;
        std::erase(plain.words, "constant");  // in `uniformValue constant (1 0 0)`
        const auto values =
            foam_field_values(file_, plain, num_faces_, num_components.value_or(condition_.behind.num_components()));
        return values ? std::optional(values->to_doubles()) : std::nullopt;
    }

    DataArray result(std::vector<double> values) const
    {
        const int width = condition_.behind.num_components();
        if (condition_.behind.type() == ScalarType::Float64) return DataArray::from("", std::move(values), width);
        return DataArray::from("", std::vector<float>(values.begin(), values.end()), width);
    }

    /// Calls `f(face, row)` for each face with the values behind it, which `f` replaces by those on the face.
    template <class F>
    DataArray changed(F&& f) const
    {
        std::vector<double> values = condition_.behind.to_doubles();
        for (std::int64_t face = 0; face < num_faces_; ++face)
            f(face, std::span(values).subspan(static_cast<std::size_t>(face) * width_, width_));
        return result(std::move(values));
    }

    // The mean of the value behind and its mirror image.
    DataArray slip() const
    {
        const auto normals = geometry_.normals();
        return changed([&](std::int64_t face, std::span<double> row) {
            const std::vector<double> own(row.begin(), row.end());
            transform(identity_minus(2, normals[face]), row);
            for (std::size_t c = 0; c < width_; ++c) row[c] = (row[c] + own[c]) / 2;
        });
    }

    // The values of the plane between the two sides of a wedge, a coordinate plane, rotated onto this side.
    DataArray wedge() const
    {
        Vector3 normal{}, central{};
        for (const Vector3& n : geometry_.normals()) add_scaled(normal, n, 1.0 / static_cast<double>(num_faces_));
        normal = unit(normal);
        for (int d = 0; d < 3; ++d) central[d] = std::copysign(std::max(std::abs(normal[d]), 0.5) - 0.5, normal[d]);
        const Matrix3 turn = rotation(unit(central), normal);
        return changed([&](std::int64_t, std::span<double> row) { transform(turn, row); });
    }

    DataArray with_gradient(std::span<const double> gradient) const
    {
        const auto distances = geometry_.distances();
        return changed([&](std::int64_t face, std::span<double> row) {
            for (std::size_t c = 0; c < width_; ++c)
                row[c] += gradient[static_cast<std::size_t>(face) * width_ + c] * distances[face];
        });
    }

    /// Computes the values of known conditions that store none; none if the condition is unknown, or lacks data.
    std::optional<DataArray> computed_value() const
    {
        if (is_any({"fixedGradient"})) return condition_.behind;  // no gradient is none
        if (is_any({"inletOutlet"})) return by_flux("inletValue", true);
        if (is_any({"freestream"})) return by_flux("freestreamValue", true);
        if (is_any({"outletInlet"})) return by_flux("outletValue", false);
        if (is_any({"uniformFixedValue"})) {
            auto value = list("uniformValue");
            return value ? std::optional(result(std::move(*value))) : std::nullopt;
        }
        if (is_any({"partialSlip"}) && width_ <= 3) return partial_slip();
        return mixture();
    }

    std::optional<DataArray> by_flux(const char* key, bool inwards) const
    {
        const auto value = list(key);
        const std::string name = condition_.entry->word("phi");
        const auto flux = flux_(name.empty() ? "phi" : name);
        if (!value || !flux) return std::nullopt;
        return changed([&](std::int64_t face, std::span<double> row) {
            if ((flux->value(face) < 0) == inwards)
                for (std::size_t c = 0; c < width_; ++c) row[c] = (*value)[static_cast<std::size_t>(face) * width_ + c];
        });
    }

    std::optional<DataArray> partial_slip() const
    {
        const auto fraction = list("valueFraction", 1);
        if (!fraction) return std::nullopt;
        const auto reference = list("refValue");
        const auto normals = geometry_.normals();
        return changed([&](std::int64_t face, std::span<double> row) {
            transform(identity_minus(1, normals[face]), row);
            const double f = (*fraction)[face];
            for (std::size_t c = 0; c < width_; ++c)
                row[c] =
                    (1 - f) * row[c] + (reference ? f * (*reference)[static_cast<std::size_t>(face) * width_ + c] : 0);
        });
    }

    // `mixed` and conditions derived from it: a fraction of a given value, and the rest of what the gradient gives from
    // the values behind.
    std::optional<DataArray> mixture() const
    {
        const auto value = list("refValue"), gradient = list("refGradient"), fraction = list("valueFraction", 1);
        if (!value || !gradient || !fraction) return std::nullopt;
        const auto distances = geometry_.distances();
        return changed([&](std::int64_t face, std::span<double> row) {
            const double f = (*fraction)[face];
            for (std::size_t c = 0; c < width_; ++c) {
                const std::size_t at = static_cast<std::size_t>(face) * width_ + c;
                row[c] = f * (*value)[at] + (1 - f) * (row[c] + (*gradient)[at] * distances[face]);
            }
        });
    }

    std::string why_not() const
    {
        if (condition_.entry == nullptr) return "the field has no condition there";
        if (condition_.type.find("WallFunction") != std::string::npos)
            return condition_.type + " is a wall function without a value, which only a solver computes";
        if (is_any({"inletOutlet", "freestream", "outletInlet"}))
            return condition_.type + " has no value, and there is no flux (phi) that would decide";
        return "only OpenFOAM computes the value of " + condition_.type + ", and none is written";
    }

    const FoamFile& file_;
    PatchCondition& condition_;
    PatchGeometry& geometry_;
    const std::function<std::optional<DataArray>(const std::string&)>& flux_;
    std::int64_t num_faces_;
    std::size_t width_;
};

}  // namespace

DataArray patch_values(const FoamFile& file, PatchCondition& condition, PatchGeometry& geometry,
                       const std::function<std::optional<DataArray>(const std::string& name)>& flux)
{
    return Evaluation(file, condition, geometry, flux).values();
}

}  // namespace meshard
