// Whether memory is left for what is about to be allocated. The system promises more than it has and kills the process
// that believes it, so large requests are compared with what is free.
#ifndef FS_CPU_ROOM_H_
#define FS_CPU_ROOM_H_

#include <stddef.h>
#include <stdint.h>

namespace fs {

// Throws NoRoom (status.h) when `count` entries of so many bytes each, at least kLargeBytes together, are more than
// what is free. What the system does not report counts as free. Edges of a hop, and vertices of samples:
void require_room(int64_t num_edges, size_t bytes_per_edge);
void require_sample_room(int64_t num_vertices);

constexpr double kLargeBytes = 1 << 30;  // less is not looked up: it would cost a small batch more than it is worth

}  // namespace fs

#endif  // FS_CPU_ROOM_H_
