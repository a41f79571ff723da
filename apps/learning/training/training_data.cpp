// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/training_data.h"

#include "apps/learning/steps/augmentation.h"
#include "io/shards/manifest.h"
#include "partition/error.h"

#include <ATen/record_function.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

namespace meshard {
namespace {

/// The numbers of each channel, of all parts one after the other.
template <class NumbersOf>
at::Tensor of_all_parts(const std::deque<CasePart>& parts, const NumbersOf& numbers_of)
{
    if (parts.size() == 1) return numbers_of(parts.front());
    std::vector<at::Tensor> all;
    for (const auto& part : parts) all.push_back(numbers_of(part));
    return torch::cat(all);
}

}  // namespace

RunRanks::RunRanks(const TrainingRunConfig& config, World& world) : world(world)
{
    const auto shape = mesh_shape(config, world.size());
    mesh = DeviceMesh::create(world, {shape[0], shape[1]}, {"data", "domain"});
    domain = mesh->sub_mesh("domain");
    blocks = config.domain.size() > 1 ? mesh->folded(world, "domain", config.domain) : domain;
    num_groups = shape[0];
    group = mesh->coordinate(mesh->axis("data"));
}

TrainingData::TrainingData(const TrainingRunConfig& config, const CaseLists& cases, const TrainingStart& start,
                           const RunRanks& ranks, TrainingLog& log, const volatile std::sig_atomic_t& stop_requested)
    : config_(config), ranks_(ranks), cases_(cases), num_in_epoch_(std::ssize(cases.train)),
      order_(CaseOrder(config.training, config.seed, cases.train, config.data.sets), num_in_epoch_, ranks.num_groups,
             ranks.group, config.training.accumulate)
{
    if (cases_.val.empty() && (config.training.stop_patience > 0 || config.training.scheduler == "plateau")) {
        throw InvalidInput("training.early_stop and the scheduler plateau go by the error of validation cases, and "
                           "there are none. Give data.split some, e.g. "
                           "val: 0.1.");
    }
    const auto num_in_epoch = order_.steps_per_epoch(), num_steps = config.training.max_steps;
    const auto num_epochs = num_steps > 0 ? (num_steps + num_in_epoch - 1) / num_in_epoch : config.training.num_epochs;
    if (config.training.max_minutes == 0 && config.training.stop_patience == 0)  // which may end the run before
        order_.order().require_epoch(std::min(config.training.num_epochs, num_epochs));
    if (start.is_trial()) {
        cases_.train.resize(1);
        cases_.val.clear();
        cases_.test.clear();
    }
    for (std::size_t part = 0; part < config.num_parts(); ++part) {  // before cases are cut for hours
        const auto data = config_.of_part(part).data;
        if (data.is_grid || data.series.is_on) continue;
        for (const auto& source : cases_.of_part(part).all()) {
            constants_of_case(data, source);
            if (!data.time.empty()) source.number(data.time);
        }
    }
    for (std::size_t part = 0; part < config.num_parts(); ++part) prepare_part(part, start, log, stop_requested);
    check_augmentation();
}

void TrainingData::prepare_part(std::size_t index, const TrainingStart& start, TrainingLog& log,
                                const volatile std::sig_atomic_t& stop_requested)
{
    auto& part = parts_.emplace_back();
    const auto config = config_.of_part(index);
    part.data = config.data;
    part.cases = cases_.of_part(index);
    part.stored.emplace(config.data.is_grid
                            ? prepare_grids(config, part.cases, ranks_.blocks, ranks_.device(), log)
                            : prepare_cases(config, part.cases, {.verify_sources = start.verify_sources}, ranks_.mesh,
                                            ranks_.device(), log, stop_requested));
    const auto& train = part.stored->train;
    if (!part.data.categories.names.empty()) find_categories(part);
    if (part.data.series.is_on) {
        auto& series = part.data.series;
        series.told =
            told_names(part.data, train.channels(), train.input_bounds(0).size(-1) - first_channel(part.data, {}));
        for (const auto& source : train.sources())
            series.mean_step += source.step->duration() / static_cast<double>(train.size());
        states_.emplace(part.data, train.channels());
    }
    part.validation.emplace(part.data, train.channels(), config_.forces, part.cases,
                            names_of_coefficients(config_.training.coefficient_weights));
    if (!part.data.is_grid) check_measures(index);
    if (!part.data.is_grid) check_data(start, index);
    for (const auto& source : part.cases.all())
        part.scalings[source.id] = field_scaling(part.data, train.channels(), source);
    const auto statistics = target_statistics(train, config_.training.exact, part.scalings);
    part.normalizer = statistics.normalizer(shared_vectors(part.data, train.channels()));
    part.training_mean = statistics.normalizer().mean;
    part.of_sets = statistics_of_sets(train, part.scalings);
    for (std::int64_t i = 0; i < train.size(); ++i) {
        PointInputs bounds{.embedding = train.input_bounds(i), .positions = {}, .constants = {}, .time = {}};
        add_case_constants(bounds, part.data, train.sources()[i]);
        part.ranges.add(bounds);
        if (!part.data.is_grid && !part.data.series.is_on)
            part.ranges.add_size(read_manifest(part.stored->shards.at(train.sources()[i].id)).bounds);
    }
}

/// Finds the categories of the training cases, which the others must not exceed.
void TrainingData::find_categories(CasePart& part) const
{
    auto& [names, values] = part.data.categories;
    auto& stored = *part.stored;
    for (std::int64_t i = 0; i < stored.train.size(); ++i)
        merge_categories(values, stored.train.stored(i).categories, part.data.categories, "the training cases");
    for (const auto* set : {&stored.val, &stored.test}) {
        for (std::int64_t i = 0; i < set->size(); ++i) {
            for (std::size_t k = 0; k < names.size(); ++k) {
                std::vector<double> unknown;
                std::ranges::set_difference(set->stored(i).categories[k], values[k], std::back_inserter(unknown));
                if (unknown.empty()) continue;
                throw InvalidInput("case {} ({}): the array '{}' has {}, and the training cases have {}. "
                                   "The model would not know this category (data.categories): repair the "
                                   "case, or train with it.",
                                   set->id(i), set->sources()[i].file.string(), names[k], unknown.front(),
                                   fmt::join(values[k], ", "));
            }
        }
    }
    if (!stored.of_inputs) return;
    const auto first = category_channels(part.data, stored.train.channels()).first;
    stored.of_inputs->mean.narrow(0, first, std::ssize(names)).fill_(0);
    stored.of_inputs->std.narrow(0, first, std::ssize(names)).fill_(1);
}

/// Refuses cases without the areas or volumes by which their points are to be drawn or to count.
void TrainingData::check_measures(std::size_t index) const
{
    const auto& stored = *parts_[index].stored;
    const auto& data = parts_[index].data;
    const auto& training = config_.training;
    const auto require = [](const CaseSet& cases, const char* key, bool takes_areas, bool takes_volumes) {
        const char* const wanted = !takes_volumes ? "areas" : takes_areas ? "areas or volumes" : "volumes";
        for (std::int64_t i = 0; i < cases.size(); ++i) {
            const auto& measures = cases.measures(i);
            const bool is_of_kind = (takes_areas && measures.kind == MeasureKind::Areas) ||
                                    (takes_volumes && measures.kind == MeasureKind::Volumes);
            if (is_of_kind && !measures.blocks.empty()) continue;
            const auto found = is_of_kind ? fmt::format("all its {} are 0", wanted)
                               : measures.kind == MeasureKind::None
                                   ? "its cells have neither areas nor volumes"
                                   : fmt::format("its cells have {}", name_of(measures.kind));
            throw InvalidInput("case {}: {} goes by {}, and {}. Set another, or leave the case out.", cases.id(i), key,
                               wanted, found);
        }
    };
    if (config_.weighs_points(index)) {
        const bool takes_areas = training.weighs("areas") && index == 0,
                   takes_volumes = training.weighs("volumes") && (index == 1 || !config_.volume);
        for (const auto* cases : {&stored.train, &stored.val, &stored.test})
            require(*cases, "training.point_weights", takes_areas, takes_volumes);
    }
    if (data.num_sampled > 0 && data.sampling == SamplingKind::Areas)
        require(stored.train, "data.sampling", true, false);
}

/// Compares what the cases say of themselves before anything is learnt from them. A run that goes on passed when it
/// began.
void TrainingData::check_data(const TrainingStart& start, std::size_t index)
{
    if (start.resume && index > 0) return;
    auto& part = parts_[index];
    const JudgedFields layout(part.data.fields, part.stored->train.channels());
    const auto figures = part.stored->figures(part.data, ranks_.all());
    if (!start.resume) {
        part.findings = judge_data(part.cases, figures, part.data, config_.forces, layout);
        std::string wrong;
        for (const auto& contradiction : part.findings.contradictions) wrong += " " + contradiction;
        if (!wrong.empty() && !start.accepts_data)
            throw InvalidInput("the data contradict themselves.{} To train on them as they are: --accept-data.", wrong);
    }
    if (index > 0) return;
    judge_by_shape(figures, layout);
    if (!config_.training.has_coefficients()) return;
    coefficient_targets_.emplace(config_.training.coefficient_weights, layout, config_.forces, part.cases.train,
                                 std::span(figures).first(part.cases.train.size()), ranks_.device());
}

/// Predicts drag and lift of all cases from their shape alone; those of the fields are judged beside them.
void TrainingData::judge_by_shape(std::span<const CaseFigures> figures, const JudgedFields& layout)
{
    auto& part = parts_.front();
    const auto& cases = part.cases;
    shape_coefficients_ =
        ShapeCoefficients::of_cases(cases.train, figures.first(cases.train.size()), part.data, config_.forces, layout);
    if (!shape_coefficients_) return;
    std::map<std::string, ShapeCoefficients::Values> by_shape;
    const auto all = cases.all();
    for (std::size_t i = 0; i < all.size(); ++i) {
        std::string why;
        const auto flow = flow_reference(config_.forces, all[i], layout.pressure_kind, why);
        if (!flow) continue;
        const auto found = shape_coefficients_->of(figures[i].shape, figures[i].forces, figures[i].bounds, *flow,
                                                   constants_of_case(part.data, all[i]));
        if (found) by_shape[all[i].id] = *found;
    }
    part.validation->compare_with(std::move(by_shape));
}

/// Refuses cases and fields that augmentation would falsify.
void TrainingData::check_augmentation() const
{
    const auto& augmentation = config_.training.augmentation;
    if (augmentation.turns()) require_turnable(config_.data, training_cases().channels());
    if (augmentation.mirror_axis < 0 || augmentation.mirrors_half_bodies) return;
    for (const auto& source : cases_.train)
        require_whole_body(source.id, read_manifest(stored().shards.at(source.id)).bounds, augmentation.mirror_axis);
}

CaseFrame TrainingData::frame_of(const CaseSource& source)
{
    if (!states_ || !states_->moves_points()) return {};
    const auto [found, is_new] = frames_.try_emplace(source.step->run.get());
    const auto& part = parts_.front();
    if (is_new)
        found->second =
            case_frame(part.data.frame, frame_bounds(read_manifest(part.stored->shards.at(source.id))), source);
    return found->second;
}

std::int64_t TrainingData::num_unrolled(std::int64_t index, std::int64_t epoch) const
{
    const auto& steps = training_cases().sources();
    const auto most = config_.training.unroll.steps_in_epoch(epoch);
    std::int64_t count = 1;
    while (count < most && index + count < std::ssize(steps) &&
           steps[index + count].step->run == steps[index].step->run)
        ++count;
    return count;
}

void TrainingData::keep(TrainingLog& log)
{
    const auto device = ranks_.device();
    for (auto& part : parts_) {
        keep_cases(*part.stored, part.data, device, ranks_.all(), log);
        if (device.is_cpu()) continue;
        part.normalizer = part.normalizer.on(device);
        part.training_mean = part.training_mean.to(device);
        if (part.data.series.is_on) part.stored->of_inputs = part.stored->of_inputs->on(device);
        for (auto& [id, scaling] : part.scalings) scaling = scaling.on(device);
    }
    make_losses();
}

void TrainingData::share_out(const Shares& shares)
{
    for (auto& part : parts_) {
        for (auto* set : {&part.stored->train, &part.stored->val, &part.stored->test}) set->share_out(shares);
        if (part.validation) part.validation->forget_geometries();
    }
}

void TrainingData::make_losses()
{
    for (auto& part : parts_) {
        auto options = config_.training.loss;
        if (const auto& weights = config_.training.field_weights; !weights.empty()) {
            for (const auto& field : part.data.fields) {
                const auto found = weights.find(field.name);
                options.field_weights.push_back(found == weights.end() ? std::vector<double>{1.0} : found->second);
            }
        }
        part.loss = FieldLoss(options, part.stored->train.channels(), part.normalizer);
    }
}

std::vector<FieldConfig> TrainingData::fields() const
{
    std::vector<FieldConfig> all;
    for (const auto& part : parts_) all.insert(all.end(), part.data.fields.begin(), part.data.fields.end());
    return all;
}

Normalizer TrainingData::normalizer() const
{
    return {of_all_parts(parts_, [](const CasePart& part) { return part.normalizer.mean; }),
            of_all_parts(parts_, [](const CasePart& part) { return part.normalizer.std; })};
}

at::Tensor TrainingData::training_mean() const
{
    return of_all_parts(parts_, [](const CasePart& part) { return part.training_mean; });
}

void TrainingData::set_scales(const Normalizer& normalizer, const at::Tensor& training_mean)
{
    std::int64_t first = 0;
    for (auto& part : parts_) {
        const auto count = part.normalizer.mean.size(0);
        part.normalizer = {normalizer.mean.narrow(0, first, count), normalizer.std.narrow(0, first, count)};
        part.training_mean = training_mean.narrow(0, first, count);
        first += count;
    }
    make_losses();
}

bool TrainingData::is_kept() const
{
    return std::ranges::all_of(parts_, [](const auto& part) { return part.stored->train.is_kept(); });
}

std::int64_t TrainingData::points_in_step(std::int64_t index) const
{
    std::int64_t count = 0;
    for (const auto& part : parts_) {
        const auto limit = part.data.num_sampled, all = part.stored->train.num_points(index);
        count += limit == 0 ? all : std::min(limit, all);
    }
    return count;
}

bool TrainingData::needs_body() const
{
    return find_model(config_.model.name).of_bodies() != nullptr;
}

std::shared_ptr<const CaseBody> TrainingData::body_of(const std::string& id)
{
    return bodies_.of(id, [&] {
        const auto& first = parts_.front();
        const auto all = first.cases.all();
        const auto& source = *std::ranges::find(all, id, &CaseSource::id);
        const auto frame = case_frame(first.data.frame, read_manifest(first.stored->shards.at(id)).bounds, source);
        return case_body(read_wall(source.wall, source.file, first.data.wall_patches, orient_of(first.data)), frame);
    });
}

ExampleSequence::ExampleSequence(TrainingData& data, CaseSet RunCases::* split,
                                 const std::function<std::optional<CaseTurn>()>& turns)
    : data_(data), has_body_(data.needs_body())
{
    for (const auto& part : data.parts()) parts_.emplace_back((*part.stored).*split, turns);
}

Example ExampleSequence::next()
{
    RECORD_USER_SCOPE("data");
    Example example;
    for (auto& part : parts_) example.push_back(part.next());
    if (!has_body_) return example;
    const auto body = data_.body_of(example.front().id);
    for (auto& part : example) part.inputs.body = body;
    return example;
}

double ExampleSequence::seconds_waited() const
{
    double seconds = 0;
    for (const auto& part : parts_) seconds += part.seconds_waited();
    return seconds;
}

std::function<std::optional<CaseTurn>()> turn_of(std::int64_t index)
{
    return [index, is_taken = false]() mutable {
        return std::exchange(is_taken, true) ? std::nullopt : std::optional(CaseTurn{index, 1});
    };
}

}  // namespace meshard
