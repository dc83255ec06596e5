# Sets CMAKE_CUDA_ARCHITECTURES by FS_CUDA_TARGETS; -DCMAKE_CUDA_ARCHITECTURES=... takes its place.
#
#   all    sm_75, the oldest target of CUDA 13, sm_80 and sm_90; the highest one also as PTX, for GPUs that come later
#   here   the GPUs that nvidia-smi lists. Where it lists none, or one that this nvcc does not know, PTX of sm_75 alone:
#          one compilation, and every driver translates it for the GPU that it finds when the library is first used
set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90)
if(FS_CUDA_TARGETS STREQUAL "here")
  set(FS_GPUS "")
  set(FS_KNOWN_TARGETS "")
  find_program(FS_NVIDIA_SMI nvidia-smi)
  if(FS_NVIDIA_SMI)
    execute_process(COMMAND ${FS_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE FS_GPUS ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE FS_KNOWN_TARGETS ERROR_QUIET)
  endif()
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" FS_GPUS "${FS_GPUS}")
  list(REMOVE_DUPLICATES FS_GPUS)
  set(CMAKE_CUDA_ARCHITECTURES "")
  foreach(gpu IN LISTS FS_GPUS)
    string(REPLACE "." "" gpu ${gpu})
    if(FS_KNOWN_TARGETS MATCHES "compute_${gpu}[^0-9]")
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${gpu}-real)
    else()
      list(APPEND CMAKE_CUDA_ARCHITECTURES 75-virtual)
    endif()
  endforeach()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 75-virtual)
  endif()
  list(REMOVE_DUPLICATES CMAKE_CUDA_ARCHITECTURES)
elseif(NOT FS_CUDA_TARGETS STREQUAL "all")
  message(FATAL_ERROR "fastsample: FS_CUDA_TARGETS is ${FS_CUDA_TARGETS}; expected all or here")
endif()
