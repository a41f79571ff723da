# Finds LibTorch inside the Python wheel torch (2.11 or 2.15) and makes the target TorchWheel::cpu (torch_cpu and c10), and
# TorchWheel::cuda (torch_cuda and c10_cuda on top) where the headers that go with them are found, of the wheels or of a CUDA toolkit;
# TorchWheel::cuda_headers has their folders, TorchWheel_CUDA_MISSING is what was not found.
#
# Searched, in this order: -DTORCH_ROOT=<folder `torch` of the wheel>; the environment variable MESHARD_TORCH, which is the same folder; where an installed
# meshard has its link to it; the virtual environment that apps/setup.sh makes (build/venv, or the environment variable MESHARD_VENV); the Python of an
# active virtual environment.
#
# Why not the wheel's own TorchConfig.cmake: it demands a CUDA toolkit even for CPU targets and links every CUDA library.
set(TORCH_ROOT "" CACHE PATH "Folder `torch` of the wheel, 2.11 or 2.15")
set(TorchWheel_TESTED_VERSIONS 2.11 2.15)

if(NOT TORCH_ROOT)
  file(GLOB candidates
    "$ENV{MESHARD_VENV}/lib/python3*/site-packages/torch"
    "${PROJECT_SOURCE_DIR}/build/venv/lib/python3*/site-packages/torch"
    "$ENV{VIRTUAL_ENV}/lib/python3*/site-packages/torch")
  if(NOT "$ENV{MESHARD_TORCH}" STREQUAL "")
    set(candidates "$ENV{MESHARD_TORCH}")
  elseif(TorchWheel_INSTALLED)
    list(PREPEND candidates "${TorchWheel_INSTALLED}")
  endif()
  foreach(candidate IN LISTS candidates)
    if(EXISTS "${candidate}/lib/libtorch_cpu.so")
      file(REAL_PATH "${candidate}" candidate)   # what lies beside the folder lies beside no link to it
      set(TORCH_ROOT "${candidate}" CACHE PATH "" FORCE)
      break()
    endif()
  endforeach()
endif()

if(TORCH_ROOT AND EXISTS "${TORCH_ROOT}/version.py")
  file(STRINGS "${TORCH_ROOT}/version.py" version_line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" TorchWheel_VERSION "${version_line}")
endif()

set(where "${TORCH_ROOT}")
if(where STREQUAL "")
  set(where "$ENV{MESHARD_TORCH}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel REQUIRED_VARS TORCH_ROOT TorchWheel_VERSION VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE "There is no LibTorch in '${where}'. Run apps/setup.sh, pass -DTORCH_ROOT=<the wheel's folder `torch`>, or set MESHARD_TORCH to it.")

if(TorchWheel_FOUND AND NOT TARGET TorchWheel::cpu)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${TorchWheel_VERSION}")
  if(NOT minor IN_LIST TorchWheel_TESTED_VERSIONS)
    list(JOIN TorchWheel_TESTED_VERSIONS " and " tested)
    message(FATAL_ERROR "LibTorch in ${TORCH_ROOT} is ${TorchWheel_VERSION}; meshard is made for ${tested} "
                        "(its C++ interface changes between minor versions). Run apps/setup.sh or set TORCH_ROOT.")
  endif()
  set(site_packages "${TORCH_ROOT}/..")
  set(cuda_runtime "${site_packages}/nvidia/cu13/lib")

  set(definitions USE_DISTRIBUTED USE_C10D_GLOO)
  if(TorchWheel_VERSION VERSION_GREATER_EQUAL 2.15)
    list(APPEND definitions FMT_DEPRECATED_HEAVY_CORE)   # its <fmt/core.h>, version 12, has fmt::format as all before only when asked
  endif()
  add_library(TorchWheel::cpu INTERFACE IMPORTED)
  set_target_properties(TorchWheel::cpu PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_ROOT}/include;${TORCH_ROOT}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "${definitions}"
    INTERFACE_LINK_LIBRARIES "${TORCH_ROOT}/lib/libtorch_cpu.so;${TORCH_ROOT}/lib/libc10.so"
    # libtorch_cpu needs the CUDA runtime's libraries even on a CPU. When a program runs it finds them beside the wheel by itself.
    INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${cuda_runtime}")

  # The OpenMP library that LibTorch's threads come from, for sources compiled with -fopenmp: there at::parallel_for uses these threads.
  if(NOT TARGET TorchWheel::openmp)
    add_library(TorchWheel::openmp INTERFACE IMPORTED GLOBAL)
  endif()
  set_target_properties(TorchWheel::openmp PROPERTIES INTERFACE_LINK_LIBRARIES "${TORCH_ROOT}/lib/libgomp.so.1")

  # The headers that LibTorch's own for CUDA include: of the wheels that `apps/setup.sh --cuda` brings, else of a CUDA toolkit. Only the few sources that
  # include them get their folders; all others are the same with CUDA and without.
  set(cuda_folders "")
  set(TorchWheel_CUDA_MISSING "")
  foreach(header cuda_runtime_api.h cublas_v2.h cusparse.h cusolverDn.h nccl.h)
    find_path(TorchWheel_${header} ${header} NO_DEFAULT_PATH
      HINTS "${site_packages}/nvidia/cu13/include" "${site_packages}/nvidia/nccl/include" "$ENV{CUDA_HOME}/include" "$ENV{CUDA_PATH}/include"
      PATHS /usr/local/cuda/include /usr/include)
    mark_as_advanced(TorchWheel_${header})
    if(TorchWheel_${header})
      list(APPEND cuda_folders "${TorchWheel_${header}}")
    else()
      list(APPEND TorchWheel_CUDA_MISSING ${header})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES cuda_folders)
  if(NOT EXISTS "${TORCH_ROOT}/lib/libtorch_cuda.so")
    list(APPEND TorchWheel_CUDA_MISSING "libtorch_cuda.so")
  endif()
  if(NOT TorchWheel_CUDA_MISSING AND NOT TARGET TorchWheel::cuda)
    add_library(TorchWheel::cuda_headers INTERFACE IMPORTED GLOBAL)
    set_target_properties(TorchWheel::cuda_headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${cuda_folders}")
    add_library(TorchWheel::cuda INTERFACE IMPORTED GLOBAL)
    # --no-as-needed: nothing refers to these libraries by symbol; they register their kernels when loaded. What they need themselves (cuBLAS, cuDNN, ...) may be
    # missing where a program is linked; where it runs on a GPU it must be there.
    set_target_properties(TorchWheel::cuda PROPERTIES
      INTERFACE_LINK_LIBRARIES "${TORCH_ROOT}/lib/libtorch_cpu.so;${TORCH_ROOT}/lib/libc10.so"
      INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined;LINKER:--no-as-needed,${TORCH_ROOT}/lib/libtorch_cuda.so,${TORCH_ROOT}/lib/libc10_cuda.so,--as-needed")
  endif()
endif()
