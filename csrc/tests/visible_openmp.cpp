// OpenMP over std::thread, for the thread sanitizer: the entry points that gcc calls for the pragmas of this library.
//
// The sanitizer cannot see into libgomp and would report every region as a race. Here it sees what OpenMP promises, and
// no more: a region's threads start after what came before it and end before what comes after it; a critical section is
// a lock; the iterations of a loop are handed out without any order between them. What the library does not use is
// missing here, and linking fails (csrc/CMakeLists.txt).
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int kMaxLoops = 8;  // of one region

struct Team {
  int size;
  std::atomic<long> handed_out[kMaxLoops] = {};  // by loop: what its threads have taken, in units of its variable
};

// What the calling thread does in its innermost region.
struct Worker {
  Team* team = nullptr;
  int number = 0;
  int num_loops = 0;                  // that it began
  long start = 0, end = 0, step = 0;  // of the last one; step: a chunk
};
thread_local Worker worker;

void require(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "visible_openmp: %s\n", what);
  abort();
}

void run_as(int number, Team* team, void (*body)(void*), void* data) {
  const Worker outer = worker;
  worker = Worker();
  worker.team = team;
  worker.number = number;
  body(data);
  worker = outer;
}

// The lock behind a critical section; `place` is the null pointer that the compiler keeps for its name.
std::mutex& lock_of(void** place) {
  auto* lock = reinterpret_cast<std::atomic<std::mutex*>*>(place);
  std::mutex* found = lock->load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  std::mutex* made = new std::mutex;
  if (lock->compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
  delete made;
  return *found;
}

std::mutex& atomic_lock() {
  static std::mutex lock;
  return lock;
}

}  // namespace

extern "C" {

int omp_get_thread_num(void) noexcept { return worker.number; }
int omp_get_num_threads(void) noexcept { return worker.team == nullptr ? 1 : worker.team->size; }

void GOMP_parallel(void (*body)(void*), void* data, unsigned num_threads, unsigned /*flags*/) {
  require(num_threads > 0, "a region without a number of threads");
  Team team{static_cast<int>(num_threads)};
  std::vector<std::thread> others;
  for (int number = 1; number < team.size; ++number) others.emplace_back(run_as, number, &team, body, data);
  run_as(0, &team, body, data);
  for (std::thread& other : others) other.join();
}

bool GOMP_loop_nonmonotonic_dynamic_next(long* begin, long* end) {
  const long taken = worker.team->handed_out[worker.num_loops - 1].fetch_add(worker.step, std::memory_order_relaxed);
  *begin = worker.start + taken;
  *end = *begin + worker.step < worker.end ? *begin + worker.step : worker.end;
  return *begin < worker.end;
}

bool GOMP_loop_nonmonotonic_dynamic_start(long start, long last, long increment, long chunk, long* begin, long* end) {
  require(worker.team != nullptr && increment > 0, "a loop outside a region, or one that counts down");
  require(worker.num_loops < kMaxLoops, "too many loops in a region");
  ++worker.num_loops;
  worker.start = start;
  worker.end = last;
  worker.step = increment * chunk;
  return GOMP_loop_nonmonotonic_dynamic_next(begin, end);
}

void GOMP_loop_end_nowait(void) {}

void GOMP_critical_name_start(void** name) { lock_of(name).lock(); }
void GOMP_critical_name_end(void** name) { lock_of(name).unlock(); }
void GOMP_atomic_start(void) { atomic_lock().lock(); }
void GOMP_atomic_end(void) { atomic_lock().unlock(); }

}  // extern "C"
