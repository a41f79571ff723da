// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/causal_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <map>

namespace meshard {
namespace {

constexpr std::int64_t kPieceRows = 1024;  // number of rows of a piece on CPUs

/// What a message carries: inputs or results of a work item.
enum Kind {
    kKeys,
    kValues,
    kQueries,
    kOutputGradient,
    kOutput,
    kLogSumExp,
    kFoundOutput,
    kFoundLogSumExp,
    kQueryGradient,
    kKeyGradient,
    kValueGradient,
    kNumKinds
};

/// Type of a tensor that is sent, and its shape without the rows.
struct TensorForm {
    std::vector<std::int64_t> shape;
    at::ScalarType type = at::kFloat;

    std::vector<std::int64_t> shape_of(std::int64_t rows) const
    {
        auto sizes = shape;
        sizes[2] = rows;
        return sizes;
    }
    std::int64_t bytes(std::int64_t rows) const  // padded, so that the next tensor is aligned
    {
        return (c10::multiply_integers(shape_of(rows)) * static_cast<std::int64_t>(c10::elementSize(type)) + 15) / 16 *
               16;
    }
};
using TensorForms = std::array<TensorForm, kNumKinds>;

struct Item {
    Kind kind = kKeys;
    std::int64_t rows = 0;
};

/// The schedule of work items. In item t a rank computes piece t of the keys that the rank `distance(t)` before it has
/// sent, for the queries that it keeps; and piece t of the queries that the rank `distance(t)` after it has sent, for
/// all its own keys.
class Schedule {
public:
    Schedule(const std::vector<RowRange>& ranges, std::int64_t piece_rows, bool is_backward)
        : ranges_(ranges), is_backward_(is_backward)
    {
        std::int64_t longest = 1;
        for (const auto& range : ranges) longest = std::max(longest, range.length);
        pieces_ = (longest + piece_rows - 1) / piece_rows;
    }

    int num_ranks() const { return static_cast<int>(ranges_.size()); }
    std::int64_t num_works() const { return (num_ranks() - 1) * pieces_; }
    int distance(std::int64_t work) const { return static_cast<int>(1 + work / pieces_); }
    RowRange kept(int rank) const { return {ranges_[rank].start, ranges_[rank].length / 2}; }
    RowRange key_piece(int rank, std::int64_t work) const { return piece(ranges_[rank], work); }
    RowRange lent_piece(int rank, std::int64_t work) const
    {
        return piece({kept(rank).end(), ranges_[rank].length - kept(rank).length}, work);
    }

    /// What exchange e sends from one rank to another: the inputs of work item e, and the results of item e - 2, since
    /// item e - 1 is computed at the same time.
    std::vector<Item> items(std::int64_t exchange, int from, int to) const
    {
        std::vector<Item> items;
        const auto add = [&](std::initializer_list<Kind> kinds, RowRange rows) {
            for (const auto kind : kinds) items.push_back({kind, rows.length});
        };
        if (const auto work = exchange; work < num_works()) {
            if (to == from + distance(work)) add({kKeys, kValues}, key_piece(from, work));
            if (to == from - distance(work)) {
                add({kQueries}, lent_piece(from, work));
                if (is_backward_) add({kOutputGradient, kOutput, kLogSumExp}, lent_piece(from, work));
            }
        }
        if (const auto work = exchange - 2; work >= 0 && work < num_works()) {
            if (to == from + distance(work)) {
                if (is_backward_)
                    add({kQueryGradient}, lent_piece(to, work));
                else
                    add({kFoundOutput, kFoundLogSumExp}, lent_piece(to, work));
            }
            if (is_backward_ && to == from - distance(work)) add({kKeyGradient, kValueGradient}, key_piece(to, work));
        }
        return items;
    }

private:
    RowRange piece(RowRange rows, std::int64_t work) const
    {
        const auto p = work % pieces_;
        const auto begin = rows.length * p / pieces_, end = rows.length * (p + 1) / pieces_;
        return {rows.start + begin, end - begin};
    }

    const std::vector<RowRange>& ranges_;
    std::int64_t pieces_ = 1;
    bool is_backward_;
};

/// One exchange: the tensors for all other ranks in one buffer, and those received from them in another.
class Exchange {
public:
    Exchange(const Schedule& schedule, std::int64_t index, const TensorForms& forms, const at::Tensor& like,
             const RankGroup& group)
        : sent_counts_(group.size()), received_counts_(group.size())
    {
        for (int r = 0; r < group.size(); ++r) {
            sent_items_.push_back(schedule.items(index, group.rank(), r));
            received_items_.push_back(schedule.items(index, r, group.rank()));
        }
        sent_buffer_ = lay_out(sent_items_, forms, like, sent_counts_, sent_);
        received_buffer_ = lay_out(received_items_, forms, like, received_counts_, received_);
    }

    const at::Tensor& to(int rank, Kind kind) { return sent_.at({rank, kind}); }
    const at::Tensor& from(int rank, Kind kind) { return received_.at({rank, kind}); }

    void start(const RankGroup& group)
    {
        pending_ = group.start_exchange(sent_buffer_, sent_counts_, received_buffer_, received_counts_);
    }

    void wait()
    {
        pending_.wait();
        sent_.clear();
        sent_buffer_ = at::Tensor();
    }

private:
    using Tensors = std::map<std::pair<int, Kind>, at::Tensor>;

    static at::Tensor lay_out(const std::vector<std::vector<Item>>& items, const TensorForms& forms,
                              const at::Tensor& like, std::vector<std::int64_t>& counts, Tensors& tensors)
    {
        std::int64_t total = 0;
        for (std::size_t r = 0; r < items.size(); ++r) {
            for (const auto& item : items[r]) counts[r] += forms[item.kind].bytes(item.rows);
            total += counts[r];
        }
        auto buffer = at::empty({total}, like.options().dtype(at::kByte));
        std::int64_t offset = 0;
        for (std::size_t r = 0; r < items.size(); ++r) {
            for (const auto& item : items[r]) {
                const auto& form = forms[item.kind];
                const auto shape = form.shape_of(item.rows);
                const auto bytes =
                    c10::multiply_integers(shape) * static_cast<std::int64_t>(c10::elementSize(form.type));
                tensors[{static_cast<int>(r), item.kind}] = buffer.narrow(0, offset, bytes).view(form.type).view(shape);
                offset += form.bytes(item.rows);
            }
        }
        return buffer;
    }

    std::vector<std::vector<Item>> sent_items_, received_items_;
    std::vector<std::int64_t> sent_counts_, received_counts_;
    at::Tensor sent_buffer_, received_buffer_;
    Tensors sent_, received_;
    PendingCollective pending_;
};

/// Runs the schedule. `meanwhile` runs while the first inputs are received; for every work item the callbacks
/// `fill_inputs(exchange, item)`, `fill_results(exchange, item)`, `work(exchange, item)` and `take_results(exchange,
/// item)` run.
template <class Pass>
void run_schedule(const Schedule& schedule, const TensorForms& forms, const at::Tensor& like, const RankGroup& group,
                  Pass& pass)
{
    const auto works = schedule.num_works();
    Exchange current(schedule, 0, forms, like, group);
    pass.fill_inputs(current, 0);
    current.start(group);
    pass.meanwhile();
    current.wait();
    for (std::int64_t t = 0; t <= works; ++t) {
        Exchange next(schedule, t + 1, forms, like, group);
        if (t + 1 < works) pass.fill_inputs(next, t + 1);
        if (t > 0) pass.fill_results(next, t - 1);
        next.start(group);
        if (t < works) pass.work(current, t);
        next.wait();
        if (t > 0) pass.take_results(next, t - 1);
        current = std::move(next);
    }
}

TensorForms make_forms(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)
{
    const auto type = q.scalar_type(), sum_type = attention_sum_type(type);
    auto output = q.sizes().vec();
    output[3] = v.size(3);
    const std::vector<std::int64_t> log_sum{q.size(0), q.size(1), 0};
    TensorForms forms;
    forms[kQueries] = {q.sizes().vec(), type};
    forms[kKeys] = {k.sizes().vec(), type};
    forms[kValues] = {v.sizes().vec(), type};
    forms[kOutput] = forms[kOutputGradient] = {output, type};
    forms[kLogSumExp] = forms[kFoundLogSumExp] = {log_sum, sum_type};
    forms[kFoundOutput] = {output, sum_type};
    forms[kQueryGradient] = {q.sizes().vec(), sum_type};
    forms[kKeyGradient] = {k.sizes().vec(), sum_type};
    forms[kValueGradient] = {v.sizes().vec(), sum_type};
    return forms;
}

/// State of both passes: the ranks with which this one exchanges messages, and the range of its own rows.
struct PassBase {
    const AttentionSettings& settings;
    const AttentionKeys& keys;
    const Schedule& schedule;
    int me = 0;

    RowRange own() const { return keys.ranges[me]; }
    // The rank whose keys are received; negative: none.
    int before(std::int64_t t) const { return me - schedule.distance(t); }
    int after(std::int64_t t) const
    {
        const auto rank = me + schedule.distance(t);
        return rank < schedule.num_ranks() ? rank : -1;
    }
    at::Tensor rows(const at::Tensor& tensor, RowRange range) const
    {
        return tensor.narrow(2, range.start - own().start, range.length);
    }

    void fill_keys(Exchange& exchange, std::int64_t t) const
    {
        if (after(t) < 0) return;
        exchange.to(after(t), kKeys).copy_(rows(keys.keys, schedule.key_piece(me, t)));
        exchange.to(after(t), kValues).copy_(rows(keys.values, schedule.key_piece(me, t)));
    }
};

struct ForwardPass : PassBase {
    at::Tensor queries;
    AttentionSum sum;
    AttentionOutput found{};  // results for the later rank whose queries were received

    void fill_inputs(Exchange& exchange, std::int64_t t) const
    {
        fill_keys(exchange, t);
        if (before(t) >= 0) exchange.to(before(t), kQueries).copy_(rows(queries, schedule.lent_piece(me, t)));
    }

    void meanwhile() { sum.add(keys.keys, keys.values, own(), at::Tensor(), 0); }

    void fill_results(Exchange& exchange, std::int64_t t) const
    {
        if (after(t) < 0) return;
        exchange.to(after(t), kFoundOutput).copy_(found.output);
        exchange.to(after(t), kFoundLogSumExp).copy_(found.log_sum_exp);
    }

    void work(Exchange& exchange, std::int64_t t)
    {
        if (const auto rank = before(t); rank >= 0 && schedule.kept(me).length > 0) {
            AttentionSum part(settings, rows(queries, schedule.kept(me)), schedule.kept(me));
            part.add(exchange.from(rank, kKeys), exchange.from(rank, kValues), schedule.key_piece(rank, t),
                     at::Tensor(), 0);
            const auto result = part.finish(keys.values.size(3));
            sum.merge(result.output, result.log_sum_exp, 0);
        }
        found = {};
        if (const auto rank = after(t); rank >= 0) {
            AttentionSum visiting(settings, exchange.from(rank, kQueries), schedule.lent_piece(rank, t));
            visiting.add(keys.keys, keys.values, own(), at::Tensor(), 0);
            found = visiting.finish(keys.values.size(3));
        }
    }

    void take_results(Exchange& exchange, std::int64_t t)
    {
        if (before(t) < 0) return;
        const auto piece = schedule.lent_piece(me, t);
        if (piece.length == 0) return;
        sum.merge(exchange.from(before(t), kFoundOutput), exchange.from(before(t), kFoundLogSumExp),
                  piece.start - own().start);
    }
};

struct BackwardPass : PassBase {
    const AttentionQueries& queries;
    AttentionGradients total;
    AttentionGradients found{};  // keys' gradients for the earlier rank, queries' gradients for the later rank

    void fill_inputs(Exchange& exchange, std::int64_t t) const
    {
        fill_keys(exchange, t);
        if (before(t) < 0) return;
        const auto piece = schedule.lent_piece(me, t);
        exchange.to(before(t), kQueries).copy_(rows(queries.queries, piece));
        exchange.to(before(t), kOutputGradient).copy_(rows(queries.output_gradient, piece));
        exchange.to(before(t), kOutput).copy_(rows(queries.output, piece));
        exchange.to(before(t), kLogSumExp).copy_(rows(queries.log_sum_exp, piece));
    }

    void meanwhile()
    {
        add_attention_gradients(settings, queries, keys.keys, keys.values, own(), at::Tensor(), 0, total);
    }

    void fill_results(Exchange& exchange, std::int64_t t) const
    {
        if (after(t) >= 0) exchange.to(after(t), kQueryGradient).copy_(found.queries);
        if (before(t) < 0) return;
        exchange.to(before(t), kKeyGradient).copy_(found.keys);
        exchange.to(before(t), kValueGradient).copy_(found.values);
    }

    void work(Exchange& exchange, std::int64_t t)
    {
        const auto sum_options = total.queries.options();
        found = {};
        if (const auto rank = before(t); rank >= 0) {
            const auto &k = exchange.from(rank, kKeys), &v = exchange.from(rank, kValues);
            found.keys = at::zeros(k.sizes(), sum_options);
            found.values = at::zeros(v.sizes(), sum_options);
            const auto kept = queries.narrow(0, schedule.kept(me).length);
            add_attention_gradients(settings, kept, k, v, schedule.key_piece(rank, t), at::Tensor(), 0,
                                    {rows(total.queries, schedule.kept(me)), found.keys, found.values, at::Tensor()});
        }
        if (const auto rank = after(t); rank >= 0) {
            const AttentionQueries visiting{exchange.from(rank, kQueries), exchange.from(rank, kOutputGradient),
                                            exchange.from(rank, kOutput), exchange.from(rank, kLogSumExp),
                                            schedule.lent_piece(rank, t)};
            found.queries = at::zeros(visiting.queries.sizes(), sum_options);
            add_attention_gradients(settings, visiting, keys.keys, keys.values, own(), at::Tensor(), 0,
                                    {found.queries, total.keys, total.values, at::Tensor()});
        }
    }

    void take_results(Exchange& exchange, std::int64_t t)
    {
        if (before(t) >= 0)
            rows(total.queries, schedule.lent_piece(me, t)).add_(exchange.from(before(t), kQueryGradient));
        if (after(t) < 0) return;
        const auto piece = schedule.key_piece(me, t);
        rows(total.keys, piece).add_(exchange.from(after(t), kKeyGradient));
        rows(total.values, piece).add_(exchange.from(after(t), kValueGradient));
    }
};

}  // namespace

AttentionOutput causal_attention(const AttentionSettings& settings, const at::Tensor& queries,
                                 const AttentionKeys& keys, const RankGroup& group)
{
    const Schedule schedule(keys.ranges, piece_rows(keys.keys, kPieceRows), /*is_backward=*/false);
    const auto me = group.rank();
    ForwardPass pass{{settings, keys, schedule, me}, queries, AttentionSum(settings, queries, keys.ranges[me])};
    run_schedule(schedule, make_forms(queries, keys.keys, keys.values), queries, group, pass);
    return pass.sum.finish(keys.values.size(3));
}

AttentionGradients causal_attention_backward(const AttentionSettings& settings, const AttentionQueries& queries,
                                             const AttentionKeys& keys, const RankGroup& group, WantedGradients wanted)
{
    const Schedule schedule(keys.ranges, piece_rows(keys.keys, kPieceRows), /*is_backward=*/true);
    const auto options = keys.keys.options().dtype(attention_sum_type(keys.keys.scalar_type()));
    const AttentionGradients zero{at::zeros(queries.queries.sizes(), options), at::zeros(keys.keys.sizes(), options),
                                  at::zeros(keys.values.sizes(), options), at::Tensor()};
    BackwardPass pass{{settings, keys, schedule, group.rank()}, queries, zero};
    run_schedule(schedule, make_forms(queries.queries, keys.keys, keys.values), keys.keys, group, pass);
    if (!wanted.queries) pass.total.queries = at::Tensor();
    if (!wanted.keys) pass.total.keys = at::Tensor();
    if (!wanted.values) pass.total.values = at::Tensor();
    return pass.total;
}

}  // namespace meshard
