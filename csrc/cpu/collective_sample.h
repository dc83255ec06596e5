// Scratch of collective applications, for fs_sampler_scratch_bytes.
#ifndef FS_CPU_COLLECTIVE_SAMPLE_H_
#define FS_CPU_COLLECTIVE_SAMPLE_H_

#include <stddef.h>

namespace fs {

size_t thread_collective_bytes();  // that the calling thread holds

}  // namespace fs

#endif  // FS_CPU_COLLECTIVE_SAMPLE_H_
