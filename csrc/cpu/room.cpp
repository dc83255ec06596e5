// Free memory as Linux reports it: /proc/meminfo, and the limits of the control groups (version 2 or 1) that the
// process is in.
#include "room.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <string>

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

// Where a version of control groups states the memory of a group, and what its pages of files are called.
struct GroupVersion {
  const char* controller;
  const char* mount;
  const char* limit;
  const char* used;
  const char* inactive_file;
  const char* active_file;
};

constexpr GroupVersion kGroupVersions[] = {
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ", "active_file "},
    {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
     "total_active_file "},
};

// The path of this process's group, "" for the root: of "4:cpu,memory:/path" in /proc/self/cgroup; version 2 has one
// group for all controllers, "0::/path".
std::string own_group(const char* controller) {
  std::string path;
  FILE* file = fopen("/proc/self/cgroup", "r");
  if (file == nullptr) return path;
  const std::string sought = std::string(",") + controller + ",";
  char line[8192];
  while (fgets(line, sizeof(line), file) != nullptr) {
    const char* names = strchr(line, ':');
    const char* end = names == nullptr ? nullptr : strchr(names + 1, ':');
    if (end == nullptr) continue;
    const std::string controllers = "," + std::string(names + 1, end) + ",";
    if (controllers.find(sought) != std::string::npos) path.assign(end + 1, strcspn(end + 1, "\n"));
  }
  fclose(file);
  return path.size() > 1 && path[0] == '/' ? path : "";
}

// What a group has left. The pages of files that it has read count as used, but are given up when needed.
double group_room(const GroupVersion& version, const std::string& path) {
  const std::string group = version.mount + path + "/";
  const std::string stat = group + "memory.stat";
  const double limit = number_in((group + version.limit).c_str(), "");
  const double used = number_in((group + version.used).c_str(), "");
  if (limit == kUnknown || used == kUnknown) return kUnknown;
  const double cached =
      or_zero(number_in(stat.c_str(), version.inactive_file)) + or_zero(number_in(stat.c_str(), version.active_file));
  return std::max(0.0, limit - std::max(0.0, used - cached));
}

double free_bytes() {
  double room = number_in("/proc/meminfo", "MemAvailable:") * 1024;
  for (const GroupVersion& version : kGroupVersions) {
    std::string path = own_group(version.controller);
    for (; !path.empty(); path.resize(path.rfind('/'))) room = std::min(room, group_room(version, path));
    room = std::min(room, group_room(version, path));  // in a container its own group may be the root
  }
  return room;
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
