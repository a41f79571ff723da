// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/field_scaling.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace meshard {
namespace {

DataConfig data_of(std::vector<FieldConfig> fields)
{
    DataConfig data;
    data.fields = std::move(fields);
    data.nondimensional = true;
    return data;
}

FieldScaling scaling(const DataConfig& data, std::vector<std::int64_t> channels,
                     std::map<std::string, double> quantities)
{
    return field_scaling(data, channels, "here", [&](const std::string& name) { return quantities.at(name); });
}

TEST(FieldScaling, DividesEachKindByItsQuantities)
{
    const auto data = data_of({{"p", "p", "static"},
                               {"tau", "tau", "stress"},
                               {"u", "u", "velocity"},
                               {"T", "T", "temperature"},
                               {"rho", "rho", "density"},
                               {"nut", "nut", "viscosity"},
                               {"k", "k", "scalar"}});
    const auto found = scaling(data, {1, 3, 3, 1, 1, 1, 1},
                               {{"U_inf", 50}, {"rho", 1.2}, {"p_inf", 101325}, {"T_inf", 288}, {"L", 2.5}});

    const auto q = 0.5F * 1.2F * 50 * 50;
    EXPECT_TRUE(
        tensors_near(found.scale, at::tensor({q, q, q, q, 50.0F, 50.0F, 50.0F, 288.0F, 1.2F, 125.0F, 1.0F}), 1e-6));
    EXPECT_TRUE(tensors_near(found.shift,
                             at::tensor({101325.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F}), 0));

    const auto physical = at::rand({1, 5, 11}) * 100 + 50;
    EXPECT_TRUE(tensors_near(found.physical(found.without_unit(physical)), physical, 1e-4));
    const auto one = found.without_unit(
        at::tensor({101325 + 300.0F, 0.0F, 0.0F, 3.0F, 25.0F, 0.0F, 0.0F, 144.0F, 1.2F, 250.0F, 7.0F}));
    EXPECT_TRUE(
        tensors_near(one, at::tensor({300 / q, 0.0F, 0.0F, 3 / q, 0.5F, 0.0F, 0.0F, 0.5F, 1.0F, 2.0F, 7.0F}), 1e-6));
}

TEST(FieldScaling, OfKinematicFieldsNeedsNoDensity)
{
    auto data = data_of({{"tau", "tau", "stress"}, {"p", "p", "kinematic"}});
    EXPECT_EQ(reference_quantities(data), std::vector<std::string>{"U_inf"});
    EXPECT_TRUE(tensors_near(scaling(data, {3, 1}, {{"U_inf", 40}}).scale, at::full({4}, 800.0F), 0));
    EXPECT_TRUE(tensors_near(scaling(data, {3, 1}, {{"U_inf", 40}}).shift, at::zeros({4}), 0));

    data.reference["p_inf"] = 7;
    EXPECT_TRUE(tensors_near(scaling(data, {3, 1}, {{"U_inf", 40}, {"p_inf", 7}}).shift,
                             at::tensor({0.0F, 0.0F, 0.0F, 7.0F}), 0));
    data.fields[1].kind = "cp";
    EXPECT_EQ(reference_quantities(data), std::vector<std::string>());
    EXPECT_TRUE(tensors_near(scaling(data, {3, 1}, {}).scale, at::ones({4}), 0));
}

TEST(FieldScaling, IsNothingWherePhysicalFieldsAreLearnt)
{
    auto data = data_of({{"p", "p", "static"}});
    data.nondimensional = false;
    EXPECT_EQ(reference_quantities(data), std::vector<std::string>());
    const auto found = scaling(data, {1}, {});
    const auto values = at::rand({1, 3, 1});
    EXPECT_TRUE(found.physical(values).is_same(values));
    EXPECT_TRUE(found.without_unit(values).is_same(values));
}

TEST(FieldScaling, TakesQuantitiesOfTheConfigurationAndThenOfTheTable)
{
    auto data = data_of({{"p", "p", "kinematic"}, {"u", "u", "velocity"}});
    const std::vector<std::int64_t> channels{1, 3};
    CaseSource source{"7", {}, {{"U_inf", "20"}}};
    EXPECT_TRUE(
        tensors_near(field_scaling(data, channels, source).scale, at::tensor({200.0F, 20.0F, 20.0F, 20.0F}), 0));
    data.reference["U_inf"] = 10;
    EXPECT_TRUE(tensors_near(field_scaling(data, channels, source).scale, at::tensor({50.0F, 10.0F, 10.0F, 10.0F}), 0));

    data.reference.clear();
    source.columns.clear();
    EXPECT_TRUE(throws_with<InvalidInput>("case 7: data.targets is nondimensional, and U_inf is not said",
                                          [&] { field_scaling(data, channels, source); }));
    source.columns["U_inf"] = "0";
    EXPECT_TRUE(throws_with<InvalidInput>("case 7: U_inf is 0", [&] { field_scaling(data, channels, source); }));
    source.columns["U_inf"] = "fast";
    EXPECT_TRUE(throws_with<InvalidInput>("column 'U_inf' of the case table is 'fast'; expected a number",
                                          [&] { field_scaling(data, channels, source); }));
}

TEST(FieldScaling, TakesQuantitiesOfColumnsThatTheConfigurationNames)
{
    auto data = data_of({{"p", "p", "static"}, {"u", "u", "velocity"}});
    data.reference_columns = {{"U_inf", {"Ux", "0", "Uz"}}, {"rho", {"density"}}, {"p_inf", {"p0"}}};
    const std::vector<std::int64_t> channels{1, 3};
    CaseSource source{"7", {}, {{"U_inf", "1"}, {"Ux", "-3"}, {"Uz", "4"}, {"density", "1.2"}, {"p0", "100"}}};
    const auto found = field_scaling(data, channels, source);
    EXPECT_TRUE(tensors_near(found.scale, at::tensor({15.0F, 5.0F, 5.0F, 5.0F}), 1e-6));
    EXPECT_TRUE(tensors_near(found.shift, at::tensor({100.0F, 0.0F, 0.0F, 0.0F}), 0));

    source.columns.erase("Uz");
    EXPECT_TRUE(throws_with<InvalidInput>("'Uz'", [&] { field_scaling(data, channels, source); }));
}

TEST(FieldScaling, KnowsTheVectorsThatShareADeviation)
{
    auto data = data_of({{"p", "p", "static"},
                         {"tau", "tau", "stress"},
                         {"x", "x", "scalar"},
                         {"u", "u", "velocity"},
                         {"u_x", "u_x", "velocity"}});
    const std::vector<std::int64_t> channels{1, 3, 2, 3, 1};
    EXPECT_TRUE(shared_vectors(data, channels).empty());
    data.shares_deviation = true;
    EXPECT_EQ(shared_vectors(data, channels), (std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 3}, {6, 3}}));
}

}  // namespace
}  // namespace meshard
