// contract_links: the graph between the labels of a graph's nodes, as far as a table of given size holds it.
//
// Every link between two labels is in the rows of both of its ends; the one whose label is smaller counts it. Linear
// probing from a hash of the pair, scaled to the table's size, so that any size will do.
#include <algorithm>
#include <utility>
#include <vector>

#include "mix64.h"
#include "neighbour_rows.h"

namespace fs {
namespace {

constexpr uint64_t kEmpty = ~uint64_t{0};
constexpr int64_t kLeastSlots = 8;
constexpr int64_t kMostCounted = 1 << 16;  // weights from here on are not told apart when pairs are left out

class Pairs {
 public:
  explicit Pairs(FsPairTable& table) : table_(table) {}

  void add(uint64_t key, int64_t weight) {
    int64_t slot = home(key);
    while (table_.keys[slot] != key) {
      if (table_.keys[slot] == kEmpty) {
        table_.keys[slot] = key;
        table_.weights[slot] = 0;
        ++table_.num_used;
        break;
      }
      if (++slot == table_.num_slots) slot = 0;
    }
    table_.weights[slot] = static_cast<int32_t>(std::min<int64_t>(table_.weights[slot] + weight, INT32_MAX));
    if (4 * table_.num_used > 3 * table_.num_slots) leave_out_lightest();
  }

 private:
  int64_t home(uint64_t key) const {
    const unsigned __int128 wide = static_cast<unsigned __int128>(mix64(key)) * static_cast<uint64_t>(table_.num_slots);
    return static_cast<int64_t>(wide >> 64);
  }

  void leave_out_lightest() {
    std::vector<int64_t> counts(kMostCounted, 0);
    for (int64_t slot = 0; slot < table_.num_slots; ++slot) {
      if (table_.keys[slot] != kEmpty) ++counts[counted(table_.weights[slot])];
    }
    size_t lightest = 0;
    for (int64_t below = counts[0]; 2 * below < table_.num_used; below += counts[lightest]) ++lightest;
    std::vector<std::pair<uint64_t, int32_t>> kept;
    for (int64_t slot = 0; slot < table_.num_slots; ++slot) {
      if (table_.keys[slot] == kEmpty) continue;
      const int32_t weight = table_.weights[slot];
      if (counted(weight) > lightest) {
        kept.emplace_back(table_.keys[slot], weight);
      } else {
        table_.left_out = std::max(table_.left_out, weight);
      }
      table_.keys[slot] = kEmpty;
    }
    table_.num_used = 0;
    for (const auto& [key, weight] : kept) add(key, weight);
  }

  static size_t counted(int32_t weight) { return static_cast<size_t>(std::min<int64_t>(weight, kMostCounted - 1)); }

  FsPairTable& table_;
};

template <typename Id>
FsStatus contract(const FsNeighbours& graph, int64_t first_turn, int64_t last_turn, const int32_t* labels,
                  FsPairTable& table) {
  if (table.num_slots < kLeastSlots || table.num_used < 0 || table.num_used > table.num_slots) {
    return fail(FS_INVALID_ARGUMENT, "contract_links: %lld of %lld slots are used; expected 8 slots or more",
                static_cast<long long>(table.num_used), static_cast<long long>(table.num_slots));
  }
  const NeighbourRows<Id> rows("contract_links", graph, labels);
  const FsStatus status = rows.check_turns(first_turn, last_turn);
  if (status != FS_OK) return status;
  Pairs pairs(table);
  return rows.each(first_turn, last_turn, [&](int64_t node) {
    const int32_t own = labels[node];
    if (own < 0) return rows.refuse_label(node, "label", INT32_MAX);
    return rows.links(node, [&](int64_t neighbour, int64_t weight) {
      const int32_t other = labels[neighbour];
      if (other > own) pairs.add(static_cast<uint64_t>(own) << 32 | static_cast<uint32_t>(other), weight);
    });
  });
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_contract_links(const FsNeighbours* graph, int64_t first_turn, int64_t last_turn,
                                      const int32_t* labels, FsPairTable* table) {
  return fs::guarded("contract_links", [&] {
    return fs::with_id_type("contract_links", graph->id_type, [&](auto zero) {
      return fs::contract<decltype(zero)>(*graph, first_turn, last_turn, labels, *table);
    });
  });
}
