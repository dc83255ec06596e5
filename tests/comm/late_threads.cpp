// Preloaded into a rank: gloo's threads sleep after they have reported a collective as done, as if the machine were too
// busy to run them. What they do next, releasing its tensors, then comes while the interpreter ends.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cstring>

namespace {

constexpr unsigned kSleepSeconds = 8;  // longer than a rank takes to end

using Notify = int (*)(pthread_cond_t*);

Notify next_one(const char* name) {
#ifdef __x86_64__  // glibc has an older pthread_cond_t there
  return reinterpret_cast<Notify>(dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2"));
#else
  return reinterpret_cast<Notify>(dlsym(RTLD_NEXT, name));
#endif
}

int notify_then_sleep(Notify notify, pthread_cond_t* condition) {
  const int status = notify(condition);
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  if (std::strstr(name, "gloo_runloop") != nullptr) {
    sleep(kSleepSeconds);
  }
  return status;
}

}  // namespace

extern "C" int pthread_cond_signal(pthread_cond_t* condition) {
  static const Notify notify = next_one("pthread_cond_signal");
  return notify_then_sleep(notify, condition);
}

extern "C" int pthread_cond_broadcast(pthread_cond_t* condition) {
  static const Notify notify = next_one("pthread_cond_broadcast");
  return notify_then_sleep(notify, condition);
}
