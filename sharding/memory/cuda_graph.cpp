// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/cuda_graph.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>

namespace meshard {
namespace {

/// Lets each replay advance the device's generator. From torch 2.15 on generators see to that when they draw.
template <class Graph>
void register_generator(Graph& graph, const at::Generator& generator)
{
    if constexpr (requires { graph.register_generator_state(generator); }) graph.register_generator_state(generator);
}

class CudaGraphRecorder : public GraphRecorder {
public:
    void begin() override
    {
        register_generator(graph_, at::cuda::detail::getDefaultCUDAGenerator());
        // Only calls of this thread are captured: other threads may load cases meanwhile, and wait for their copies.
        graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    }

    void end() override { graph_.capture_end(); }
    void run() override { graph_.replay(); }

private:
    at::cuda::CUDAGraph graph_;
};

}  // namespace

MakeGraphRecorder cuda_graph_recorder()
{
    return [] { return std::make_unique<CudaGraphRecorder>(); };
}

}  // namespace meshard
