// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/setting_table.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Arrays of whole numbers that stand for kinds of points, such as types of nodes. For each kind the model is told a
/// number, 1 where a point is of it, and else 0.
struct CategorySettings {
    std::vector<std::string> names;

    /// What each array has in the training cases, ascending. Follows from the cases; empty until they are read.
    std::vector<std::vector<double>> values;

    void add_keys(SettingTable& keys)
    {
        keys.add("data.categories", names, {},
                 "arrays of whole numbers that the model is told as kinds, one number 0 or 1 for each, e.g. node_type");
    }
};

/// What a model learns of the next state of a simulation.
enum class LearntState : std::uint8_t {
    Next,        ///< the state itself
    Difference,  ///< the next state less the last one
    Rate         ///< the difference over the time between them
};

inline const std::vector<std::pair<std::string, LearntState>> kLearntStates{
    {"state", LearntState::Next}, {"difference", LearntState::Difference}, {"rate", LearntState::Rate}};

/// The array of a step's mesh that holds a field's next state, difference or rate is called after this and the field.
inline constexpr const char* kNextPrefix = "meshard:next ";

/// The name in `data.fields` of the points' coordinates, which change where it is a field.
inline constexpr const char* kCoordinates = "points";

/// Cases that are steps of simulations (`data.series`): each is told one or several states of a run, and the fields of
/// the next state are learnt.
struct SeriesSettings {
    bool is_on = false;
    std::string times;
    LearntState learnt = LearntState::Difference;
    std::int64_t history = 1;
    std::vector<std::string> given;  ///< the coordinates last

    // These follow from the cases.
    std::vector<std::string> told;  ///< names of a point's numbers besides `data.inputs`: states, arrays, and the step
    double mean_step = 0;           ///< mean time between two states of the training cases

    /// Whether differences of states, or rates, are learnt.
    bool learns_changes() const { return is_on && learnt != LearntState::Next; }

    /// Whether the points move, and as is known beforehand.
    bool moves_as_given() const { return !given.empty() && given.back() == kCoordinates; }

    void add_keys(SettingTable& keys)
    {
        keys.add("data.times", times, {},
                 "of data.series: table of the states' times below the root, .csv with columns file and time; a * is "
                 "the run's id");
        keys.add_choice("data.next", learnt, kLearntStates,
                        "of data.series: what is learnt of the next state: the state, its difference to the last one, "
                        "or that over the time between them");
        keys.add("data.history", history, {1, 64}, "of data.series: states that the model is told, the last ones");
        keys.add(
            "data.given", given, {},
            "of data.series: arrays known beforehand (forcing, motion of walls), told as they are at the next state");
    }
};

/// How training goes through the steps of a simulation: keys of `training`.
struct UnrollSettings {
    std::int64_t num_steps = 1;
    std::int64_t interval = 0;
    bool through_all = true;
    double noise = 0;

    /// Returns how many steps are unrolled in an epoch, from 1.
    std::int64_t steps_in_epoch(std::int64_t epoch) const
    {
        if (interval == 0) return num_steps;
        const auto grown = 1 + (epoch - 1) / interval;
        return grown < num_steps ? grown : num_steps;
    }

    void add_keys(SettingTable& keys)
    {
        keys.add("training.unroll", num_steps, {1, 1000},
                 "of data.series: steps that a training step goes through, each from the state that the one before it "
                 "predicted");
        keys.add("training.unroll_interval", interval, {},
                 "epochs after which one step more is unrolled, from 1 to training.unroll; 0: all from the start")
            .only_with = {"training.unroll"};
        keys.add_choice("training.unroll_gradient", through_all, {{"all", true}, {"step", false}},
                        "gradients through all unrolled steps, or through each step alone, whose start counts as given")
            .only_with = {"training.unroll"};
        keys.add("training.noise", noise, {0, 100},
                 "of data.series: deviation of noise on told states, in units of each channel's deviation; what is "
                 "learnt makes up for it");
    }
};

}  // namespace meshard
