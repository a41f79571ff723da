// SPDX-License-Identifier: Apache-2.0
#pragma once

// at::parallel_for, which without -fopenmp runs on one thread without a warning. What is linked to meshard::sharding is compiled with it.
#ifndef _OPENMP
#error "This file calls at::parallel_for: compile it with -fopenmp (sharding/CMakeLists.txt)."
#endif

#include <ATen/Parallel.h>
