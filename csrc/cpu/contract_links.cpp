// contract_links: the graph between the labels of a graph's nodes, as far as a table of given size holds it.
//
// Every link between two labels is in the rows of both of its ends; the one whose label is smaller counts it. What a
// row adds is summed first, by several threads (turns.h), and put into the table in the order of the turns. Linear
// probing from a hash of the pair, scaled to the table's size, so that any size will do.
#include <algorithm>
#include <utility>
#include <vector>

#include "label_sums.h"
#include "mix64.h"
#include "turns.h"

namespace fs {
namespace {

constexpr uint64_t kEmpty = ~uint64_t{0};
constexpr int64_t kLeastSlots = 8;

struct Link {
  uint64_t key;
  int64_t weight;
};

class Pairs {
 public:
  explicit Pairs(FsPairTable& table) : table_(table) {}

  void soon(uint64_t key) const {
    const int64_t slot = home(key);
    __builtin_prefetch(table_.keys + slot);
    __builtin_prefetch(table_.weights + slot);
  }

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
    const int32_t most = median_weight();
    std::vector<std::pair<uint64_t, int32_t>> kept;
    for (int64_t slot = 0; slot < table_.num_slots; ++slot) {
      if (table_.keys[slot] == kEmpty) continue;
      const int32_t weight = table_.weights[slot];
      if (weight > most) {
        kept.emplace_back(table_.keys[slot], weight);
      } else {
        table_.left_out = std::max(table_.left_out, weight);
      }
      table_.keys[slot] = kEmpty;
    }
    table_.num_used = 0;
    for (const auto& [key, weight] : kept) add(key, weight);
  }

  // The least weight that at least half of the pairs do not exceed.
  int32_t median_weight() const {
    std::vector<int32_t> weights;
    weights.reserve(static_cast<size_t>(table_.num_used));
    for (int64_t slot = 0; slot < table_.num_slots; ++slot) {
      if (table_.keys[slot] != kEmpty) weights.push_back(table_.weights[slot]);
    }
    const auto middle = weights.begin() + (table_.num_used - 1) / 2;
    std::nth_element(weights.begin(), middle, weights.end());
    return *middle;
  }

  FsPairTable& table_;
};

template <typename Id>
class Contraction {
 public:
  Contraction(const FsNeighbours& graph, const int32_t* labels, FsPairTable& table)
      : rows_("contract_links", graph, labels), labels_(labels), table_(table), pairs_(table), alone_(*this) {}

  FsStatus run(int64_t first_turn, int64_t last_turn, int32_t num_threads) {
    if (table_.num_slots < kLeastSlots || table_.num_used < 0 || table_.num_used > table_.num_slots) {
      return fail(FS_INVALID_ARGUMENT, "contract_links: %lld of %lld slots are used; expected 8 slots or more",
                  static_cast<long long>(table_.num_used), static_cast<long long>(table_.num_slots));
    }
    const FsStatus status = check_threads("contract_links", num_threads);
    return status != FS_OK ? status : Turns<Id, Contraction>(rows_, *this, num_threads).run(first_turn, last_turn);
  }

  // Of each row the links to larger labels, those to the same label added up.
  class Reader {
   public:
    explicit Reader(const Contraction& law) : law_(law) {}

    bool read(const NeighbourRow& row, NearTurns&) { return law_.sum_links(row, sums_, links_) == FS_OK; }
    size_t size() const { return links_.size(); }
    void clear() { links_.clear(); }
    void soon(size_t at) const { law_.pairs_.soon(links_[at].key); }

   private:
    friend class Contraction;
    const Contraction& law_;
    LabelSums sums_;
    std::vector<Link> links_;
  };

  FsStatus turn(const NeighbourRow& row) {
    alone_.clear();
    const FsStatus status = sum_links(row, alone_.sums_, alone_.links_);
    return status != FS_OK ? status : turn(row, alone_, 0, alone_.size());
  }

  FsStatus turn(const NeighbourRow&, const Reader& reader, size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) pairs_.add(reader.links_[i].key, reader.links_[i].weight);
    return FS_OK;
  }

  static int64_t moved() { return 0; }

 private:
  FsStatus sum_links(const NeighbourRow& row, LabelSums& sums, std::vector<Link>& links) const {
    const int32_t own = labels_[row.node];
    if (own < 0) return rows_.refuse_label(row.node, "label", INT32_MAX);
    const auto empty = [&] {
      for (const LabelSums::Sum& sum : sums.sums()) {
        links.push_back({static_cast<uint64_t>(own) << 32 | static_cast<uint32_t>(sum.label), sum.weight});
      }
      sums.clear();
    };
    sums.begin(row.degree());
    const FsStatus status = rows_.links(row, [&](int64_t neighbour, int64_t weight) {
      const int32_t other = labels_[neighbour];
      if (other <= own || sums.add(other, weight)) return;
      empty();
      sums.add(other, weight);
    });
    empty();
    return status;
  }

  NeighbourRows<Id> rows_;
  const int32_t* labels_;
  FsPairTable& table_;
  Pairs pairs_;
  Reader alone_;
};

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_contract_links(const FsNeighbours* graph, int64_t first_turn, int64_t last_turn,
                                      int32_t num_threads, const int32_t* labels, FsPairTable* table) {
  return fs::guarded("contract_links", [&] {
    return fs::with_id_type("contract_links", graph->id_type, [&](auto zero) {
      return fs::Contraction<decltype(zero)>(*graph, labels, *table).run(first_turn, last_turn, num_threads);
    });
  });
}
