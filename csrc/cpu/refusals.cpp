// The lines that refuse values, one per FsRefusal. The CPU's operators write them through refuse(); the callers of the
// CUDA library, whose kernels only report values, through fs_refuse.
#include <stddef.h>

#include "status.h"

namespace fs {
namespace {

struct Line {
  FsRefusal refusal;
  const char* format;  // the operation, then as many values as it shows
};

constexpr Line kLines[] = {
    {FS_REFUSED_ROW, "%s: node id %lld is outside 0 to %lld"},
    {FS_REFUSED_OFFSETS, "%s: indptr of node %lld runs from %lld to %lld; expected non-decreasing offsets up to %lld"},
    {FS_REFUSED_NEGATIVE_SOURCE, "%s: the graph holds the negative source id %lld"},
    {FS_REFUSED_SOURCE, "%s: the graph holds the source id %lld; expected 0 to %lld"},
    {FS_REFUSED_NEGATIVE_SEED, "%s: seed %lld at position %lld is negative"},
    {FS_REFUSED_REPEATED_SEED, "%s: seeds holds node %lld at positions %lld and %lld; expected each seed once"},
    {FS_REFUSED_NEGATIVE_DST, "%s: dst_nodes holds the negative id %lld"},
    {FS_REFUSED_REPEATED_DST, "%s: dst_nodes holds node %lld at positions %lld and %lld; expected each node once"},
    {FS_REFUSED_NEGATIVE_NEIGHBOR, "%s: neighbors holds the negative id %lld at position %lld"},
    {FS_REFUSED_ID, "%s: id %lld at position %lld; expected %lld to %lld"},
    {FS_REFUSED_PLACE, "%s: place %lld at position %lld; expected %lld to %lld"},
    {FS_REFUSED_OWNER, "%s: node id %lld at position %lld; expected %lld to %lld"},
};
constexpr size_t kNumLines = sizeof(kLines) / sizeof(kLines[0]);

constexpr bool in_order() {
  for (size_t i = 0; i < kNumLines; ++i) {
    if (static_cast<size_t>(kLines[i].refusal) != i) return false;
  }
  return true;
}
static_assert(in_order() && kNumLines == FS_REFUSED_OWNER + 1, "one line per FsRefusal, in its order");

}  // namespace

FsStatus refuse(FsRefusal refusal, const char* operation, const RefusedValues& values) {
  const long long* v = values.at;
  return fail(FS_INVALID_ARGUMENT, kLines[refusal].format, operation, v[0], v[1], v[2], v[3]);
}

}  // namespace fs

extern "C" FsStatus fs_refuse(int32_t refusal, const char* operation, const int64_t* values) {
  if (refusal < 0 || static_cast<size_t>(refusal) >= fs::kNumLines) {
    return fs::fail(FS_INVALID_ARGUMENT, "%s: refusal %d is unknown; expected one of FsRefusal", operation, refusal);
  }
  fs::RefusedValues found = {};
  for (int i = 0; i < FS_REFUSAL_VALUES; ++i) found.at[i] = values[i];
  return fs::refuse(static_cast<FsRefusal>(refusal), operation, found);
}

extern "C" FsStatus fs_check_sample_spec(const char* operation, const FsSampleSpec* spec) {
  const FsStatus status = fs::check_threads(operation, spec->num_threads);
  return status != FS_OK ? status : fs::check_sample_spec(operation, *spec);
}
