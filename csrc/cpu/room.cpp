// Free memory as Linux reports it: /proc/meminfo, and the limit of the control group (version 2 or 1) if there is one.
#include "room.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <limits>

#include "status.h"

namespace fs {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

// The number that a file holds after `label`, or kUnknown.
double number_in(const char* path, const char* label) {
  FILE* file = fopen(path, "r");
  if (file == nullptr) return kUnknown;
  double number = kUnknown;
  char line[256];
  while (number == kUnknown && fgets(line, sizeof(line), file) != nullptr) {
    double found;
    const size_t length = strlen(label);
    if (strncmp(line, label, length) == 0 && sscanf(line + length, "%lf", &found) == 1) number = found;
  }
  fclose(file);
  return number;
}

double or_zero(double number) { return number == kUnknown ? 0 : number; }

// What a control group has left. The pages of files that it has read count as used, but are given up when needed.
double group_room(const char* limit_path, const char* used_path, const char* stat_path) {
  const double limit = number_in(limit_path, ""), used = number_in(used_path, "");
  if (limit == kUnknown || used == kUnknown) return kUnknown;
  const double cached = or_zero(number_in(stat_path, "inactive_file ")) + or_zero(number_in(stat_path, "active_file "));
  return std::max(0.0, limit - std::max(0.0, used - cached));
}

double free_bytes() {
  const double version_2 =
      group_room("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat");
  const double version_1 =
      group_room("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                 "/sys/fs/cgroup/memory/memory.stat");
  return std::min({number_in("/proc/meminfo", "MemAvailable:") * 1024, version_2, version_1});
}

void require(const char* line, int64_t count, size_t bytes_each) {
  const double needed = static_cast<double>(count) * static_cast<double>(bytes_each);
  if (needed < kLargeBytes) return;
  const double left = free_bytes();
  if (needed > left) throw NoRoom{line, count, needed / 1e9, left / 1e9};
}

}  // namespace

void require_room(int64_t num_edges, size_t bytes_per_edge) {
  require(
      "%s: a hop has %lld edges, which take %.1f GB, but %.1f GB of memory are free; pass smaller fanouts or batches",
      num_edges, bytes_per_edge);
}

void require_sample_room(int64_t num_vertices) {
  require(
      "%s: samples have %lld vertices, which take %.1f GB, but %.1f GB of memory are free; make them in several calls, "
      "with their sample_ids, or take fewer steps or roots",
      num_vertices, sizeof(int64_t));
}

}  // namespace fs
