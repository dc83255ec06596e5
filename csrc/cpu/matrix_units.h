// Whether products of bfloat16 rows run on the processor's matrix units (Intel AMX).
#ifndef FS_CPU_MATRIX_UNITS_H_
#define FS_CPU_MATRIX_UNITS_H_

namespace fs {

// The processor has them, this build knows them and the system lets the process use them; asked once.
bool has_matrix_units();

}  // namespace fs

#endif  // FS_CPU_MATRIX_UNITS_H_
