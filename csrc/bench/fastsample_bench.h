/* The functions that only benchmarks call: libfastsample_bench.so and libfastsample_bench_cuda.so, which are not part
 * of the ABI of fastsample.h but follow its conventions. Each exports the version and error functions of its kind too.
 */
#ifndef FASTSAMPLE_BENCH_H_
#define FASTSAMPLE_BENCH_H_

#include "fastsample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- libfastsample_bench.so ---- */
FS_API const FsAbiEntry* fs_bench_abi_entries(void);

/* Random reads of two arrays in turns, each requested `ahead` reads before its use: the least that sampling as many
 * edges costs. The positions depend on `seed` and the number of the read alone. */
typedef struct {
  const void* first;  /* [first_count] elements of first_width bytes, 4 or 8 */
  const void* second; /* [second_count] elements of second_width bytes, 4 or 8 */
  int64_t first_count, second_count;
  int64_t num_reads; /* of each array */
  int32_t first_width, second_width;
  int32_t ahead;
  int32_t into_second_level; /* 0: requests go to the first level of cache */
  int32_t num_threads;
  uint64_t seed;
} FsRandomReads;
/* *out_sum = the sum of all elements read, as unsigned integers modulo 2^64; the same for every ahead,
 * into_second_level and num_threads. */
FS_API FsStatus fs_random_reads(const FsRandomReads* spec, uint64_t* out_sum);

/* ---- libfastsample_bench_cuda.so: pointers and streams as in fastsample_cuda.h ---- */
FS_API const FsAbiEntry* fs_cuda_bench_abi_entries(void);

/* One hop of the baseline that DGL's GPU sampling stands for (reservoir.cu). */
typedef struct {
  const int64_t* indptr; /* of the graph */
  const void* indices;   /* id_type */
  const void* rows;      /* [num_rows] id_type, all of them rows of the graph; they may repeat */
  int64_t num_rows;
  int64_t fanout; /* at least 1; without replacement */
  int32_t id_type;
  int32_t hop;
  uint64_t rng_seed;
  uint64_t step;
} FsBenchHop;

/* Destinations and sources that are to get local ids. */
typedef struct {
  const void* rows;    /* [num_rows] id_type, distinct */
  const void* sources; /* [num_edges] id_type */
  int64_t num_rows;
  int64_t num_edges;
  int64_t num_ids; /* ids are 0 .. num_ids - 1 */
  void* table;     /* [fs_cuda_bench_table_bytes] */
  int64_t* slots;  /* [num_rows + num_edges] scratch */
  int32_t id_type;
} FsBenchRelabel;

typedef struct {
  const int32_t* is_first; /* [num_rows + num_edges] from fs_cuda_bench_find_first */
  const int64_t* numbers;  /* [num_rows + num_edges] its inclusive prefix sums */
  void* nodes;             /* [last number] id_type: distinct ids in order of first appearance */
  void* indices;           /* [num_edges] id_type: local ids of the sources */
} FsBenchNumbers;

/* out_counts [num_rows]: min(degree, fanout). */
FS_API FsStatus fs_cuda_bench_count_picks(const FsBenchHop* hop, int64_t* out_counts, void* stream);
/* places [num_rows]: exclusive sums of the counts. out_sources (id_type) and out_edges, positions in the graph's
 * indices: [sum of counts]. */
FS_API FsStatus fs_cuda_bench_reservoir(const FsBenchHop* hop, const int64_t* places, void* out_sources,
                                        int64_t* out_edges, void* stream);
FS_API FsStatus fs_cuda_bench_table_bytes(const FsBenchRelabel* task, int64_t* out_bytes); /* host arithmetic only */
/* out_is_first [num_rows + num_edges]: 1 where an id appears for the first time, destinations before sources. */
FS_API FsStatus fs_cuda_bench_find_first(const FsBenchRelabel* task, int32_t* out_is_first, void* stream);
FS_API FsStatus fs_cuda_bench_number(const FsBenchRelabel* task, const FsBenchNumbers* numbers, void* stream);
/* The sum of the first words of num_reads random 32-byte sectors of an array (aligned to 32 bytes), into device
 * memory. */
FS_API FsStatus fs_cuda_bench_random_sectors(const void* array, int64_t num_sectors, int64_t num_reads, uint64_t seed,
                                             uint64_t* out_sum, void* stream);
/* The sum of all 32-bit words of an array that the device can read, sixteen bytes at a time. */
FS_API FsStatus fs_cuda_bench_read_in_order(const void* array, int64_t num_bytes, uint64_t* out_sum, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_BENCH_H_ */
