// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/plan/step_rates.h"

#include <cstdint>
#include <string_view>

namespace meshard {

/// Precision of a GPU's products. Tensors are bfloat16 with BFloat16, else float32.
enum class GpuPrecision : std::uint8_t { Float32, Tf32, BFloat16 };

/// Published figures of a GPU. Each has its source in gpu_rates.cpp and in docs/benchmarks.md.
struct GpuFigures {
    std::string_view name, title;
    double float32_flops = 0, tf32_flops = 0, bfloat16_flops = 0;  ///< per second, dense
    double memory_bytes = 0, memory_rate = 0;                      ///< bytes, bytes per second
    double exponentials = 0;                                       ///< per second
    double nvlink_rate = 0;                                        ///< bytes per second, one way
};

/// @throws InvalidInput with the names and the nearest one
const GpuFigures& find_gpu(std::string_view name);

/// What joins GPUs of one host, and hosts.
struct Link {
    std::string_view name, title;
    double rate = 0;     ///< bytes per second of a GPU, one way; 0: the GPU's own NVLink
    double latency = 0;  ///< seconds of an all-reduce of a few bytes among two
};

/// @throws InvalidInput with the names and the nearest one
const Link& find_link(std::string_view name);

/// Hosts that so many GPUs fill.
std::int64_t num_hosts(std::int64_t num_gpus, std::int64_t gpus_per_host);

/// Rates of GPUs in hosts.
class GpuRates : public StepRates {
public:
    GpuRates(const GpuFigures& gpu, GpuPrecision precision, const Link& inside, const Link& beyond, std::int64_t gpus_per_host)
        : gpu_(gpu), precision_(precision), inside_(inside), beyond_(beyond), gpus_per_host_(gpus_per_host)
    {
    }

    /// The longest of its arithmetic, its exponentials and its memory, as shares of what is published, and the start of its kernels.
    double seconds(const Operation& operation) const override;
    double seconds_of_small_calls(double count) const override;

    /// Rings inside a host, then among hosts, where every GPU has a part of the message.
    double seconds(const StepMessage& message, std::int64_t num_ranks) const override;
    double memory_bytes() const override;
    WorkForm form() const override { return WorkForm::Gpu; }

private:
    double product_flops() const;  // per second, as published

    GpuFigures gpu_;
    GpuPrecision precision_;
    Link inside_, beyond_;
    std::int64_t gpus_per_host_;
};

}  // namespace meshard
