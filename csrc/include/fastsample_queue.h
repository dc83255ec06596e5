/* fastsample: a bounded queue of tasks in memory that the ranks of one machine share, for factored sampling and
 * training (Yang et al., "GNNLab", EuroSys 2022, sections 5.2 and 5.3). Part of the C ABI; conventions as in
 * fastsample.h.
 *
 * A segment of an epoch is the tasks first_task .. first_task + num_tasks - 1; task n belongs to group n / group_size.
 * Samplers claim tasks in order, make them, and put them; trainers take the made task of the lowest number among the
 * groups up to current + staleness, train it, and call it done; rank 0 updates once all of a group are done, and
 * advances, which makes the next group the current one. So a task that is made slowly holds up nobody who could train
 * another one of these groups, and no task is trained twice or left out.
 *
 * Ranks 0 .. num_trainers - 1 are trainers, the others samplers. Bytes of tasks lie in an arena of the caller's, of
 * which the queue only knows offsets: a claim reserves as much as the largest task so far took, fs_queue_room changes
 * that to what the task needs.
 *
 * The lock is robust: a rank that dies with it ends the run, not the others' waiting. No call waits longer than
 * `slice_s`, for the lock or for a change; it then says FS_QUEUE_WAITED, and the caller looks at its deadline, its
 * signals and the other processes before it calls again. Several threads and processes may call at the same time.
 * Nothing is allocated: all state is in the memory that the caller maps. */
#ifndef FASTSAMPLE_QUEUE_H_
#define FASTSAMPLE_QUEUE_H_

#include "fastsample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct FsQueue FsQueue; /* at an address that 64 divides; starts with the lock */

/* When a sampler may take a task: never; when all tasks of the epoch are made and it pays (fs_queue_take_standby); or
 * whenever one is there, so that tests see switching at every step. */
typedef enum { FS_SWITCH_NEVER = 0, FS_SWITCH_BY_PROFIT = 1, FS_SWITCH_ALWAYS = 2 } FsQueueSwitching;

typedef struct {
  int64_t capacity;    /* tasks between claim and done, at least 1; below 2^31, as the next two */
  int64_t group_size;  /* tasks of a group, at least 1 */
  int64_t staleness;   /* groups beyond the current one that may be trained */
  int64_t most_bytes;  /* of all tasks between claim and done; a claim waits for room */
  int64_t arena_bytes; /* where tasks that are larger than all before may lie as well; at least most_bytes */
  int64_t task_bytes;  /* estimate of the largest task, reserved by a claim until a larger one was seen */
  int32_t num_ranks;
  int32_t num_trainers; /* 1 .. num_ranks */
  int32_t switching;    /* FsQueueSwitching */
} FsQueueSpec;

/* What a call has come to. */
typedef enum {
  FS_QUEUE_DID = 0,
  FS_QUEUE_WAITED = 1, /* the slice has passed; call again */
  FS_QUEUE_ENDED = 2,  /* nothing of the kind will come in this segment */
  FS_QUEUE_FAILED = 3, /* fs_queue_failure has the line */
  FS_QUEUE_UPDATE = 4  /* rank 0 has to update the current group */
} FsQueueOutcome;

typedef enum {
  FS_SLOT_FREE = 0,
  FS_SLOT_CLAIMED = 1, /* `rank` makes the task */
  FS_SLOT_READY = 2,
  FS_SLOT_TAKEN = 3 /* `rank` trains the task */
} FsSlotState;

typedef struct {
  int64_t task;     /* its number in the epoch */
  int64_t version;  /* of the parameters to train it at: max(first group of the segment, group - staleness) */
  int64_t offset;   /* of its bytes in the arena; a multiple of 4096 */
  int64_t bytes;    /* claimed: reserved; afterwards: written */
  int64_t since_ns; /* CLOCK_MONOTONIC when it got into this state */
  int32_t state;    /* FsSlotState */
  int32_t rank;     /* that made it, or trains it */
  int32_t pid;      /* its process */
} FsQueueSlot;

typedef struct {
  int64_t epoch;
  int64_t first_task;
  int64_t num_tasks;  /* 0: a segment without tasks; both are multiples of group_size */
  int64_t first_step; /* number of the first group's step, for messages */
  int32_t ends_epoch; /* not 0: no task of the epoch comes after this segment */
} FsQueueSegment;

typedef struct {
  FsQueueSegment segment;
  int64_t next_task;     /* tasks below it are claimed */
  int64_t end_task;      /* of the segment; less after a stop */
  int64_t current_group; /* groups below it are done and updated */
  int64_t num_taken;     /* tasks of the segment, done ones included */
  int64_t num_done;
  int64_t bytes_in_use;
  int64_t task_bytes; /* that a claim reserves now */
  int64_t changed_ns; /* CLOCK_MONOTONIC of the last change */
  int64_t num_slots;  /* in use */
  int32_t stopped;
} FsQueueState;

/* Who calls, and what it has come to. */
typedef struct {
  FsQueue* queue;
  double slice_s;  /* longest wait of this call, 0 to 0.05 */
  int32_t rank;    /* of the caller */
  int32_t outcome; /* out: FsQueueOutcome */
} FsQueueCall;

/* Bytes of memory that a queue takes. Refuses a spec out of range. */
FS_API FsStatus fs_queue_bytes(const FsQueueSpec* spec, int64_t* num_bytes);
/* Make the queue in zeroed memory of that size, once; the other processes use it when this has returned. */
FS_API FsStatus fs_queue_make(const FsQueueSpec* spec, FsQueue* queue);
/* Give ranks the numbers [num_ranks] by which messages name them; they are 0, 1, ... without. Call it before the other
 * processes use the queue. */
FS_API FsStatus fs_queue_number_ranks(FsQueue* queue, const int64_t* numbers);

/* Begin a segment. Refused while tasks of the one before are claimed, made or trained. */
FS_API FsStatus fs_queue_begin(FsQueueCall* call, const FsQueueSegment* segment);
/* The next task to make, once there are a slot and room for it. ENDED: all are claimed, or a stop was asked for. */
FS_API FsStatus fs_queue_claim(FsQueueCall* call, FsQueueSlot* claimed);
/* Give a claimed task `bytes` of the arena, more or fewer than were reserved, from *offset on. Memory of the arena from
 * *unused_from on has not been given to any task before. WAITED: there is no room now. ENDED: the task is not wanted
 * any more, since a stop was asked for; its slot is free. What the task has there so far is lost. Refuses more than
 * most_bytes. */
FS_API FsStatus fs_queue_room(FsQueueCall* call, int64_t task, int64_t bytes, int64_t* offset, int64_t* unused_from);
/* A claimed task is made. ENDED: as above. */
FS_API FsStatus fs_queue_put(FsQueueCall* call, int64_t task);
/* The made task of the lowest number that may be trained. ENDED: every task is taken, and none will come. To rank 0,
 * which updates, UPDATE, before any task: all tasks of the current group are done; and ENDED when all are updated. */
FS_API FsStatus fs_queue_take(FsQueueCall* call, FsQueueSlot* taken);
/* The same for a sampler, in one critical section with the decision. By profit: only if the segment ends the epoch and
 * all of its tasks are made, and P = M / sum(1 / T_i) - standby_s > 0. M: tasks of the groups up to current + staleness
 * that are not done. T_i: the median of the last times of a trainer, or of a sampler that trains now; who has no time
 * yet counts with the mean of the others', or with standby_s where none has. standby_s below 0: not known, so the
 * median of this rank's last times, or that mean, or the same as the others'. WAITED also where it does not pay.
 * *profit is P, or 0 where it was not looked at. */
FS_API FsStatus fs_queue_take_standby(FsQueueCall* call, double standby_s, FsQueueSlot* taken, double* profit);
/* A task that this rank has taken is trained; its slot is free. train_s: what it took, for the profit; below 0: the
 * time since it was taken or since this rank's task before was done, whichever is less. */
FS_API FsStatus fs_queue_done(FsQueueCall* call, int64_t task, double train_s);
/* The current group, all of whose tasks are done, is updated: the next one is current. */
FS_API FsStatus fs_queue_advance(FsQueueCall* call, int64_t group);
/* Until every group of the segment is updated; *group is the first one that was not done. */
FS_API FsStatus fs_queue_wait_end(FsQueueCall* call, int64_t* group);
/* End the segment after the last group of which a task is trained or done; made tasks of later groups are dropped. */
FS_API FsStatus fs_queue_stop(FsQueueCall* call);
/* The same, but after this group: queues of several machines, whose groups are updated together, end after the same
 * one. Refused where a task of a later group is trained or done. */
FS_API FsStatus fs_queue_end_after(FsQueueCall* call, int64_t group);
/* The run has failed: every later call says FS_QUEUE_FAILED. Only the first line is kept. */
FS_API FsStatus fs_queue_fail(FsQueueCall* call, const char* line);
/* The line of the failure, ended by 0, cut to `size` bytes; "" for none. */
FS_API FsStatus fs_queue_failure(FsQueueCall* call, char* line, int64_t size);
/* State, and the slots in use, `slots` [capacity] or NULL. Also after a failure. */
FS_API FsStatus fs_queue_state(FsQueueCall* call, FsQueueState* state, FsQueueSlot* slots);
/* Without the lock, which a stopped process may hold: the rank that has it, -1: nobody, or unknown. */
FS_API FsStatus fs_queue_holder(const FsQueue* queue, int32_t* rank);

#ifdef __cplusplus
}
#endif
#endif /* FASTSAMPLE_QUEUE_H_ */
