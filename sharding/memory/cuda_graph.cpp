// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/cuda_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace meshard {
namespace {

/// Lets each replay advance the device's generator. From torch 2.15 on generators see to that when they draw.
template <class Graph>
void register_generator(Graph& graph, const at::Generator& generator)
{
    if constexpr (requires { graph.register_generator_state(generator); }) graph.register_generator_state(generator);
}

template <class Graph>
class AbandonableGraph : public Graph {
public:
    /// Undoes what `capture_begin` did. Before torch 2.15 LibTorch does so only where CUDA accepts the end of a
    /// capture: else allocators go on to ask this graph whether memory is its own and never give it back, and the
    /// generator refuses to draw. What is undone already is refused, and left alone.
    void abandon()
    {
        if constexpr (!requires { this->capturing_to_pool_; }) {
            if (this->capture_ended_ || this->capture_dev_ == Graph::UNDEFINED_DEVICE) return;
            const auto undo = [](const auto& step) {
                try {
                    step();
                } catch (const c10::Error&) {
                }
            };
            undo([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(this->capture_dev_, this->mempool_id_); });
            undo([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(this->mempool_id_); });
            for (const auto& [state, unused] : this->captured_generator_states_) state->capturing_ = false;
            this->capture_ended_ = true;  // so that `reset` gives the memory back
            undo([&] { this->reset(); });
            this->capture_ended_ = false;
        }
    }
};

class CudaGraphRecorder : public GraphRecorder {
public:
    void begin() override
    {
        register_generator(graph_, at::cuda::detail::getDefaultCUDAGenerator());
        // Only calls of this thread are captured: other threads may load cases meanwhile, and wait for their copies.
        undone_by_errors([&] { graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal); });
    }

    void end() override
    {
        undone_by_errors([&] { graph_.capture_end(); });
    }
    void run() override { graph_.replay(); }

private:
    template <class Step>
    void undone_by_errors(const Step& step)
    {
        try {
            step();
        } catch (...) {
            graph_.abandon();
            throw;
        }
    }

    AbandonableGraph<at::cuda::CUDAGraph> graph_;
};

}  // namespace

MakeGraphRecorder cuda_graph_recorder()
{
    return [] { return std::make_unique<CudaGraphRecorder>(); };
}

}  // namespace meshard
