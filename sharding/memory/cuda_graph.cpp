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
        // LibTorch's own draws advance the generator in each run.
        graph_.register_generator_state(at::cuda::detail::getDefaultCUDAGenerator());
        // Of this thread alone: others may read cases ahead, and wait for them.
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
