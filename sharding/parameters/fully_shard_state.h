// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/gather_order.h"
#include "sharding/ranks/device_mesh.h"
#include "sharding/tensor/gradient_origin.h"
#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// The parts of a module's parameters, as `fully_shard` has cut them: gathers a unit when a parameter of it is read,
/// and sends its gradients to the ranks of the parts.
struct FullyShardedModule::State : std::enable_shared_from_this<FullyShardedModule::State> {
    /// A parameter, and this rank's part of it.
    struct Entry {
        std::string name = {};
        std::vector<std::int64_t> shape = {};
        std::int64_t begin = 0;  // offset in the row of its group
        std::int64_t count = 0;
        Extents extents = {};   // number of its values on each rank
        at::Tensor local = {};  // this rank's part, a leaf
        bool trains = false;
        // Dimension that is sharded, for a kept part; -1 for parameters that are flattened into a row.
        std::int64_t cut_dim = -1;
    };

    /// Gradients of a group that are being sent to the ranks that store them.
    struct SentGradients {
        std::vector<char> has_gradient;       // for each entry, on this rank
        std::vector<PlainGradientSum> plain;  // for each entry
        at::Tensor sent, received;
        PendingCollective message;
        // This rank's part for each entry after the exchange; undefined if no rank has a gradient.
        std::vector<at::Tensor> local;
    };

    /// Parameters of one type, flattened and concatenated to one row, which is gathered in one message.
    struct Group {
        std::vector<Entry> entries;
        Extents extents;            // length of each rank's part of the row
        at::Tensor part;            // this rank's part of the row, which contains every `local`
        at::Tensor whole;           // the gathered row
        PendingCollective pending;  // the all-gather that fills `whole`
        std::int64_t version = 0;   // version counter of `part` when the gather started
        bool is_used = false;       // whether the group has been used since its unit became `resident`
        // By graph task: the backward of a reentrant checkpoint is a task of its own, within the one that goes on.
        std::map<int, SentGradients> sent_gradients;

        at::Tensor gathered_value(const Entry& entry) const
        {
            return whole.narrow(0, entry.begin, entry.count).view(entry.shape);
        }
    };

    /// Sums by which ranks check that plain gradients are equal on all of them.
    struct PlainGradients {
        at::Tensor num_ranks;  // number of ranks that have plain gradients
        std::vector<PlainGradientSum> sums;
        const Group* group = nullptr;
    };

    std::shared_ptr<const DeviceMesh> mesh;
    // Parameters are sharded over its axis `cut_axis`: `mesh`, or a mesh of one axis with all ranks.
    std::shared_ptr<const DeviceMesh> cut_mesh;
    std::int64_t cut_axis = 0;
    std::int64_t num_data = 1;
    bool overlaps = true;
    std::vector<std::vector<Group>> units;
    std::vector<Entry> kept;  // parts that the module uses as its own parameters
    std::vector<at::Tensor> local_parameters;
    std::vector<const Entry*> trained;  // entry of each local parameter

    const RankGroup& ranks() const { return cut_mesh->group(cut_axis); }
    std::int64_t me() const { return cut_mesh->coordinate(cut_axis); }
    bool has_other_axes() const { return cut_mesh == mesh && mesh->num_ranks() > ranks().size(); }

    SpecPtr spec_of_part(const Entry& entry) const;

    /// Lets a module's parameters, given in the order of the group's entries, be functions of the local parts.
    void store(std::size_t unit, std::size_t group, std::span<const at::Tensor> parameters);

    std::optional<std::size_t> resident;  // the unit in use
    std::optional<std::size_t> ahead;     // the next unit, which is being gathered
    std::int64_t writes_before_ahead = 0;
    GatherOrder forward_order, backward_order;
    bool is_backward = false;  // phase of the last use of a parameter
    std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, std::int64_t>> gathered;
    std::int64_t peak = 0;

    at::Tensor value(std::size_t unit, std::size_t group, std::size_t entry);

    /// Forward and backward use units in different orders. The unit in use stays gathered at the transition.
    void begin_phase();
    void begin_unit(std::size_t unit);
    GatherOrder& order() { return is_backward ? backward_order : forward_order; }
    void start_next_unit();
    std::int64_t num_writes() const;  ///< to the parts of all units
    void start(Group& group);
    void bring(Group& group);
    static void let_go(Group& group);
    void let_go(std::optional<std::size_t>& unit);
    void drop();
    std::int64_t gathered_bytes();  ///< of all gathered rows that are still in memory, whoever holds them

    /// Takes values that were assigned to local parameters (`.data = ...`) into this rank's part of the row. The part
    /// gets new memory: what was assigned, or lay there before, may be kept elsewhere.
    void take_assigned(Group& group);
    void take_assigned();

    bool has_end_callback = false;      // whether a callback at the end of the running backward is queued
    Group* reducing_group = nullptr;    // the group whose gradients are being sent
    int reducing_task = -1;             // by this graph task
    std::vector<PlainGradients> plain;  // collected in this backward

    /// Queues a callback at the end of backward that drops all gathered units, before the optimiser changes the parts.
    void await_end_of_backward();
    void end_backward();
    void abandon_backward();  ///< called when backward has thrown

    /// Starts to send each rank its part of the group's gradients.
    void start_reduction(Group& group, const std::vector<at::Tensor>& gradients,
                         const std::vector<GradientOrigin>& origins);

    /// Waits for the last message and adds the parts that ranks have sent.
    void finish_reduction();
    void abandon_reductions();
    void check_plain();  ///< called once in a backward, since the host waits for the device here
};

}  // namespace meshard
