// Sorting a list of edges that does not fit into memory: the three passes of partition/external/csc.py.
//
// An edge travels as one 64-bit key, destination << 32 | source. Pass 1 counts edges per destination, pass 2 groups a
// piece of the list by ranges of destinations (buckets), pass 3 sorts one bucket: a counting sort by destination, then
// every row on its own. Passes 2 and 3 are stable, so of equal edges the first listed stays first, which is the one
// that counts where duplicates are merged. Undirected lists give every edge to both of its ends, a self-loop once.
// Where positions in the list travel along, they are part of what a row is sorted by, and no stable sort is needed.
#include <omp.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "status.h"

namespace fs {
namespace {

constexpr int64_t kRunEdges = 1 << 15;  // edges of a task of pass 3
constexpr int64_t kTableBits = 16;      // of the table that leads from a destination to its bucket
constexpr int64_t kMaxBuckets = 1 << 15;

FsStatus refuse_end(const char* end, int64_t position, int64_t id, int64_t num_nodes) {
  return fail(FS_INVALID_ARGUMENT, "the %s of edge %lld is %lld; expected 0 to %lld", end,
              static_cast<long long>(position), static_cast<long long>(id), static_cast<long long>(num_nodes - 1));
}

template <typename Id>
FsStatus check_ends(const FsEdgeList& edges) {
  const Id* src = static_cast<const Id*>(edges.src);
  const Id* dst = static_cast<const Id*>(edges.dst);
  const uint64_t limit = static_cast<uint64_t>(edges.num_nodes);
  for (int64_t i = 0; i < edges.num_edges; ++i) {
    if (static_cast<uint64_t>(src[i]) >= limit)
      return refuse_end("source", edges.first_edge + i, src[i], edges.num_nodes);
    if (static_cast<uint64_t>(dst[i]) >= limit)
      return refuse_end("destination", edges.first_edge + i, dst[i], edges.num_nodes);
  }
  return FS_OK;
}

// emit(destination, source, position) for every edge, in listing order.
template <typename Id, typename Emit>
void for_each_edge(const FsEdgeList& edges, Emit&& emit) {
  const Id* src = static_cast<const Id*>(edges.src);
  const Id* dst = static_cast<const Id*>(edges.dst);
  if (!edges.undirected) {
    for (int64_t i = 0; i < edges.num_edges; ++i) {
      emit(static_cast<uint64_t>(dst[i]), static_cast<uint64_t>(src[i]), i);
    }
    return;
  }
  for (int64_t i = 0; i < edges.num_edges; ++i) {
    const uint64_t s = static_cast<uint64_t>(src[i]), d = static_cast<uint64_t>(dst[i]);
    emit(d, s, i);
    if (s != d) emit(s, d, i);
  }
}

// From a destination to its bucket: a table over its high bits gives the first candidate.
class BucketOf {
 public:
  BucketOf(const int64_t* bounds, int64_t num_buckets) : bounds_(bounds) {
    const int64_t num_nodes = bounds[num_buckets];
    while ((num_nodes >> shift_) >= (int64_t{1} << kTableBits)) ++shift_;
    table_.resize(static_cast<size_t>((num_nodes >> shift_) + 1));
    int64_t bucket = 0;
    for (size_t slot = 0; slot < table_.size(); ++slot) {
      const int64_t first = static_cast<int64_t>(slot) << shift_;
      while (bucket + 1 < num_buckets && bounds[bucket + 1] <= first) ++bucket;
      table_[slot] = static_cast<uint16_t>(bucket);
    }
  }
  uint16_t operator()(uint64_t node) const {
    uint16_t bucket = table_[node >> shift_];
    while (static_cast<uint64_t>(bounds_[bucket + 1]) <= node) ++bucket;
    return bucket;
  }

 private:
  const int64_t* bounds_;
  int shift_ = 0;
  std::vector<uint16_t> table_;
};

// Copies what an edge of the list carries to its place in a group; nothing where there is nothing.
template <typename Value>
class Column {
 public:
  Column(void* out, const void* in, int64_t first) : out_(static_cast<Value*>(out)), in_(in), first_(first) {}
  void put(int64_t place, int64_t position) const {
    if (out_ == nullptr) return;
    out_[place] = in_ == nullptr ? static_cast<Value>(first_ + position) : static_cast<const Value*>(in_)[position];
  }

 private:
  Value* out_;
  const void* in_;  // nullptr: the edges' positions, counted from first_
  int64_t first_;
};

template <typename Id, typename Weight, typename Position>
FsStatus group_edges(const FsEdgeList& edges, const int64_t* bounds, int64_t num_buckets, const FsGroupedEdges& out) {
  const FsStatus checked = check_ends<Id>(edges);
  if (checked != FS_OK) return checked;
  const BucketOf bucket_of(bounds, num_buckets);
  const int64_t room = edges.num_edges * (edges.undirected ? 2 : 1);
  const std::unique_ptr<uint16_t[]> buckets(new uint16_t[static_cast<size_t>(room > 0 ? room : 1)]);
  std::fill(out.counts, out.counts + num_buckets, 0);
  int64_t count = 0;
  for_each_edge<Id>(edges, [&](uint64_t dst, uint64_t, int64_t) {
    const uint16_t bucket = bucket_of(dst);
    buckets[count++] = bucket;
    ++out.counts[bucket];
  });
  std::vector<int64_t> cursor(static_cast<size_t>(num_buckets), 0);
  for (int64_t b = 1; b < num_buckets; ++b) cursor[b] = cursor[b - 1] + out.counts[b - 1];
  const Column<Weight> weights(edges.weights == nullptr ? nullptr : out.weights, edges.weights, 0);
  const Column<Position> positions(out.positions, nullptr, edges.first_edge);
  int64_t i = 0;
  for_each_edge<Id>(edges, [&](uint64_t dst, uint64_t src, int64_t position) {
    const int64_t place = cursor[buckets[i++]]++;
    out.keys[place] = dst << 32 | src;
    weights.put(place, position);
    positions.put(place, position);
  });
  return FS_OK;
}

// What an edge carries beside its ends, as parts of an entry: a value, or nothing (Absent), which takes no room.
struct Absent {};

template <typename Value>
struct WeightPart {
  Value weight;
  void take(const FsEdgeBucket& bucket, int64_t i) { weight = static_cast<const Value*>(bucket.weights)[i]; }
  void put(const FsEdgeBucket& bucket, int64_t i) const { static_cast<Value*>(bucket.weights)[i] = weight; }
  bool less(const WeightPart& other) const { return weight < other.weight; }
};
template <>
struct WeightPart<Absent> {
  void take(const FsEdgeBucket&, int64_t) {}
  void put(const FsEdgeBucket&, int64_t) const {}
  bool less(const WeightPart&) const { return false; }
};

template <typename Value>
struct PositionPart {
  static constexpr bool kOrders = true;  // no two entries of a row are equal
  Value position;
  void take(const FsEdgeBucket& bucket, int64_t i) { position = static_cast<const Value*>(bucket.positions)[i]; }
  void put(const FsEdgeBucket& bucket, int64_t i) const { static_cast<Value*>(bucket.positions)[i] = position; }
  bool less(const PositionPart& other) const { return position < other.position; }
};
template <>
struct PositionPart<Absent> {
  static constexpr bool kOrders = false;
  void take(const FsEdgeBucket&, int64_t) {}
  void put(const FsEdgeBucket&, int64_t) const {}
  bool less(const PositionPart&) const { return false; }
};

struct SourcePart {
  uint32_t src;
};

// The source lies between the others, where it fills the gap that the alignment of one of them would leave.
template <typename Weight, typename Position>
struct Entry : WeightPart<Weight>, SourcePart, PositionPart<Position> {
  using W = WeightPart<Weight>;
  using P = PositionPart<Position>;
  static constexpr bool kPlain = std::is_same<Weight, Absent>::value;  // entries that compare equal are the same
};
static_assert(sizeof(Entry<Absent, Absent>) == 4 && sizeof(Entry<Absent, int32_t>) == 8, "as FsEdgeBucket says");
static_assert(sizeof(Entry<float, int64_t>) == 16 && sizeof(Entry<double, int32_t>) == 16, "as FsEdgeBucket says");

// By (source, weight, position); with `merge` by (source, position), as the first listed is to stay.
template <typename E>
bool comes_before(const E& a, const E& b, bool merge) {
  if (a.src != b.src) return a.src < b.src;
  if (!merge) {
    if (a.E::W::less(b)) return true;
    if (b.E::W::less(a)) return false;
  }
  return a.E::P::less(b);
}

// Keeps the first of equal sources, and how many it stands for. Gives the number of entries left.
template <typename E>
int64_t count_runs(E* begin, E* end, int32_t* counts) {
  int64_t left = 0;
  for (const E* entry = begin; entry != end; ++entry) {
    if (left > 0 && begin[left - 1].src == entry->src) {
      ++counts[left - 1];
    } else {
      begin[left] = *entry;
      counts[left++] = 1;
    }
  }
  return left;
}

// Sorts a row in place.
template <typename E>
void sort_row(E* begin, E* end, bool merge) {
  const auto before = [merge](const E& a, const E& b) { return comes_before(a, b, merge); };
  if (E::kPlain || E::P::kOrders) {
    std::sort(begin, end, before);
  } else {
    std::stable_sort(begin, end, before);
  }
}

// Entries of a sorted row, of sources from `least` on, whose weight is not that of the first with their source.
template <typename E>
int64_t count_unlike(const E* begin, const E* end, uint64_t least) {
  int64_t unlike = 0;
  const E* first = begin;
  for (const E* entry = begin; entry != end; ++entry) {
    if (entry->src != first->src) first = entry;
    unlike += entry->src >= least && (first->E::W::less(*entry) || entry->E::W::less(*first));
  }
  return unlike;
}

// Keeps the first of equal sources of a sorted row and, where `counts` is given, counts them. Gives the number of
// entries left.
template <typename E>
int64_t merge_row(E* begin, E* end, int32_t* counts) {
  if (counts != nullptr) return count_runs(begin, end, counts);
  return std::unique(begin, end, [](const E& a, const E& b) { return a.src == b.src; }) - begin;
}

// The keys are no longer needed when ids take their place: 4 or 8 bytes over 8.
template <typename Id, typename E>
int64_t put_rows(const FsEdgeBucket& bucket, const E* entries, const int64_t* offsets, const int64_t* degrees) {
  Id* ids = reinterpret_cast<Id*>(bucket.keys);
  int64_t count = 0;
  for (int64_t row = 0; row < bucket.num_rows; ++row) {
    const E* entry = entries + offsets[row];
    for (int64_t i = 0; i < degrees[row]; ++i, ++count) {
      ids[count] = static_cast<Id>(entry[i].src);
      if (bucket.counts != nullptr) bucket.counts[count] = bucket.counts[offsets[row] + i];  // never behind it
      entry[i].E::W::put(bucket, count);
      entry[i].E::P::put(bucket, count);
    }
  }
  return count;
}

template <typename Weight, typename Position>
FsStatus sort_bucket(const FsEdgeBucket& bucket, int64_t* degrees, int64_t* out_num_edges) {
  using E = Entry<Weight, Position>;
  if (bucket.counts != nullptr && bucket.merge == 0) {
    return fail(FS_INVALID_ARGUMENT, "sort_edges: counts without merge; expected both or merge alone");
  }
  const int64_t num_rows = bucket.num_rows;
  const std::unique_ptr<int64_t[]> offsets(new int64_t[static_cast<size_t>(num_rows) + 2]());
  int64_t* ends = offsets.get() + 1;  // first where a row begins, after scattering where it ends
  for (int64_t i = 0; i < bucket.num_edges; ++i) {
    const uint64_t row = (bucket.keys[i] >> 32) - static_cast<uint64_t>(bucket.first_row);
    if (row >= static_cast<uint64_t>(num_rows)) {
      return fail(FS_INVALID_ARGUMENT, "sort_edges: an edge of node %llu in a bucket of nodes %lld to %lld",
                  static_cast<unsigned long long>(bucket.keys[i] >> 32), static_cast<long long>(bucket.first_row),
                  static_cast<long long>(bucket.first_row + num_rows - 1));
    }
    ++ends[row + 1];
  }
  for (int64_t row = 0; row < num_rows; ++row) ends[row + 1] += ends[row];
  const std::unique_ptr<E[]> entries(new E[static_cast<size_t>(bucket.num_edges) + 1]);
  for (int64_t i = 0; i < bucket.num_edges; ++i) {
    const uint64_t row = (bucket.keys[i] >> 32) - static_cast<uint64_t>(bucket.first_row);
    E& entry = entries[ends[row]++];
    entry.src = static_cast<uint32_t>(bucket.keys[i]);
    entry.E::W::take(bucket, i);
    entry.E::P::take(bucket, i);
  }
  const int64_t num_runs = bucket.num_edges / kRunEdges + 1;
  const int64_t* first = offsets.get();
  bool exhausted = false;
  int64_t unlike = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(bucket.num_threads) reduction(|| : exhausted) \
    reduction(+ : unlike)
  for (int64_t run = 0; run < num_runs; ++run) {
    int64_t row = std::lower_bound(first, first + num_rows, run * kRunEdges) - first;
    for (; row < num_rows && first[row] < (run + 1) * kRunEdges; ++row) {
      E *begin = entries.get() + first[row], *end = entries.get() + first[row + 1];
      try {
        sort_row(begin, end, bucket.merge != 0);
        if (bucket.merge != 0 && bucket.unlike != nullptr) {
          unlike += count_unlike(begin, end, static_cast<uint64_t>(bucket.first_row + row));
        }
        degrees[row] = bucket.merge == 0
                           ? end - begin
                           : merge_row(begin, end, bucket.counts == nullptr ? nullptr : bucket.counts + first[row]);
      } catch (const std::bad_alloc&) {  // nothing may leave a parallel region
        exhausted = true;
      }
    }
  }
  if (exhausted) return out_of_memory("sort_edges");
  if (bucket.unlike != nullptr) *bucket.unlike = unlike;
  *out_num_edges = bucket.id_type == FS_INT32 ? put_rows<int32_t>(bucket, entries.get(), first, degrees)
                                              : put_rows<int64_t>(bucket, entries.get(), first, degrees);
  return FS_OK;
}

template <typename Weight>
FsStatus sort_bucket(const FsEdgeBucket& bucket, int64_t* degrees, int64_t* out_num_edges) {
  if (bucket.positions == nullptr) return sort_bucket<Weight, Absent>(bucket, degrees, out_num_edges);
  return with_id_type("sort_edges", bucket.position_type, [&](auto position) {
    return sort_bucket<Weight, decltype(position)>(bucket, degrees, out_num_edges);
  });
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_edge_degrees(const FsEdgeList* edges, int64_t* degrees) {
  return fs::guarded("edge_degrees", [&] {
    return fs::with_id_type("edge_degrees", edges->id_type, [&](auto id) {
      using Id = decltype(id);
      const FsStatus checked = fs::check_ends<Id>(*edges);
      if (checked == FS_OK) fs::for_each_edge<Id>(*edges, [&](uint64_t dst, uint64_t, int64_t) { ++degrees[dst]; });
      return checked;
    });
  });
}

extern "C" FsStatus fs_group_edges(const FsEdgeList* edges, const int64_t* bounds, int64_t num_buckets,
                                   const FsGroupedEdges* out) {
  return fs::guarded("group_edges", [&] {
    if (num_buckets < 1 || num_buckets > fs::kMaxBuckets || bounds[num_buckets] != edges->num_nodes) {
      return fs::fail(FS_INVALID_ARGUMENT, "group_edges: %lld buckets; expected 1 to %lld that end at num_nodes",
                      static_cast<long long>(num_buckets), static_cast<long long>(fs::kMaxBuckets));
    }
    return fs::with_id_type("group_edges", edges->id_type, [&](auto id) {
      using Id = decltype(id);
      return fs::with_id_type("group_edges", out->position_type, [&](auto position) {
        using Position = decltype(position);
        if (edges->weight_type == FS_FLOAT64) {
          return fs::group_edges<Id, double, Position>(*edges, bounds, num_buckets, *out);
        }
        return fs::group_edges<Id, float, Position>(*edges, bounds, num_buckets, *out);
      });
    });
  });
}

extern "C" FsStatus fs_sort_edges(const FsEdgeBucket* bucket, int64_t* out_degrees, int64_t* out_num_edges) {
  return fs::guarded("sort_edges", [&] {
    if (bucket->weights == nullptr) return fs::sort_bucket<fs::Absent>(*bucket, out_degrees, out_num_edges);
    if (bucket->weight_type == FS_FLOAT64) return fs::sort_bucket<double>(*bucket, out_degrees, out_num_edges);
    return fs::sort_bucket<float>(*bucket, out_degrees, out_num_edges);
  });
}
