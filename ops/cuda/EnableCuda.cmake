# Turns CUDA on where NVIDIA's compiler is found and works: given by hand, of the wheels that apps/setup.sh --nvcc installs beside LibTorch, or installed.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(MESHARD_NVCC nvcc HINTS ${TORCH_ROOT}/../nvidia/cu13/bin PATHS /usr/local/cuda/bin DOC "NVIDIA's compiler")
  if(MESHARD_NVCC AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${MESHARD_NVCC})
  endif()
  if(DEFINED ENV{CUDACXX})
    unset(CMAKE_CUDA_COMPILER CACHE)   # what was found wanting before may work now
    include(CheckLanguage)
    check_language(CUDA)
  endif()
endif()
if(CMAKE_CUDA_COMPILER)
  # Machine code for the generations since A100 (A100, H100 and H200, B200, RTX 50), and what newer GPUs make their own of. A build for CPUs compiles the kernels
  # only to show that they compile and do not spill: one generation suffices.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90-real)
    if(MESHARD_WITH_CUDA)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 120)
    endif()
  endif()
  enable_language(CUDA)
endif()

# Links a program of a build for CPUs a second time, with the objects for GPUs, as gpu/bin/PROGRAM in the build folder: so all code for GPUs is compiled and linked
# wherever NVIDIA's compiler and a toolkit's headers are found. All other objects are the CPU build's. Call it in the folder where the program was made.
function(meshard_add_gpu_program program)
  if(MESHARD_WITH_CUDA OR NOT TARGET meshard_ops_gpu OR NOT TARGET meshard_sharding_gpu)
    return()
  endif()
  add_executable(gpu_${program} $<TARGET_OBJECTS:${program}> $<TARGET_OBJECTS:meshard_kernels> $<TARGET_OBJECTS:meshard_ops_gpu> $<TARGET_OBJECTS:meshard_sharding_gpu>)
  get_target_property(libraries ${program} LINK_LIBRARIES)
  target_link_libraries(gpu_${program} PRIVATE ${libraries} meshard::kernels TorchWheel::cuda)
  set_target_properties(gpu_${program} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME ${program} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu/bin)
endfunction()
