// SPDX-License-Identifier: Apache-2.0
#pragma once

// Includes at::parallel_for, which without -fopenmp silently runs on one thread. Targets that link meshard::sharding
// are compiled with -fopenmp.
#ifndef _OPENMP
#error "This file calls at::parallel_for: compile it with -fopenmp (sharding/CMakeLists.txt)."
#endif

#include <ATen/Parallel.h>
