// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/cuda_graph.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>

namespace meshard {
namespace {

class CudaGraphRecorder : public GraphRecorder {
public:
    void begin() override
    {
        // The generator is registered, so that each replay advances it.
        graph_.register_generator_state(at::cuda::detail::getDefaultCUDAGenerator());
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
