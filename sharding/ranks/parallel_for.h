// SPDX-License-Identifier: Apache-2.0
#pragma once

// at::parallel_for, for files that CMakeLists.txt compiles with -fopenmp: in others it runs on one thread without a warning.
#ifndef _OPENMP
#error "This file calls at::parallel_for: name it in its folder's CMakeLists.txt among those compiled with -fopenmp."
#endif

#include <ATen/Parallel.h>
