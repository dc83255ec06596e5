// How a stress test runs: one caller with one thread writes the oracle, then many callers at once must write the same.
#ifndef FS_TESTS_STRESS_CALLERS_H_
#define FS_TESTS_STRESS_CALLERS_H_

#include <thread>
#include <vector>

#include "stress_basics.h"

namespace stress {

struct Load {
  int callers, team, rounds, id_bits;
};

inline Load read_load(int argc, char** argv) {
  const auto given = [&](int place) { return argc == 5 ? atoi(argv[place]) : 0; };
  const Load load = {given(1), given(2), given(3), given(4)};
  if (load.callers < 1 || load.team < 1 || load.rounds < 1 || (load.id_bits != 32 && load.id_bits != 64)) {
    fprintf(stderr, "usage: %s CALLERS TEAM ROUNDS 32|64   (three numbers of 1 or more, bits of an id)\n", argv[0]);
    exit(2);
  }
  return load;
}

inline void say_done(const char* program, const Load& load) {
  printf("%s: %d callers, %d threads a call, %d rounds, ids of %d bits: every result as with one thread\n", program,
         load.callers, load.team, load.rounds, load.id_bits);
}

// run(num_threads, written) calls everything there is to test. The instruction set changes under the callers.
template <typename Run>
void run_at_once(const Load& load, const Run& run) {
  static const char* const kSets[] = {"baseline", "avx2", "avx512"};
  Written oracle;
  run(1, oracle);
  {
    succeed(fs_set_isa("scalar"), "set_isa");  // sampling by its definition
    Written written(&oracle);
    run(1, written);
    require(written.size() == oracle.size(), "fewer results by the definition");
    succeed(fs_set_isa("baseline"), "set_isa");
  }
  std::vector<std::thread> callers;
  for (int caller = 0; caller < load.callers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < load.rounds; ++round) {
        const FsStatus status = fs_set_isa(kSets[(caller + round) % 3]);
        require(status == FS_OK || status == FS_INVALID_ARGUMENT, "set_isa");  // the machine may lack the set
        Written written(&oracle);
        run(load.team, written);
        require(written.size() == oracle.size(), "fewer results than with one caller and one thread");
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace stress

#endif  // FS_TESTS_STRESS_CALLERS_H_
