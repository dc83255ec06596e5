// The vertices that a sample has in a step, for picks that must be distinct. Emptied in constant time.
#ifndef FS_CPU_VERTEX_SET_H_
#define FS_CPU_VERTEX_SET_H_

#include <stdint.h>

#include <vector>

namespace fs {

class VertexSet {
 public:
  // Empties it and makes room for so many.
  void start(int64_t count) {
    size_t size = 16;
    while (size < static_cast<size_t>(count) * 2) size *= 2;
    if (size > places_.size()) {
      places_.assign(size, {0, 0});
      round_ = 0;
    }
    ++round_;
  }

  // Whether the vertex was not there yet; it is then.
  bool insert(int64_t vertex) {
    const size_t mask = places_.size() - 1;
    size_t at = static_cast<size_t>(static_cast<uint64_t>(vertex) * 0x9E3779B97F4A7C15ull >> 20) & mask;
    for (; places_[at].round == round_; at = (at + 1) & mask) {
      if (places_[at].vertex == vertex) return false;
    }
    places_[at] = {vertex, round_};
    return true;
  }

 private:
  struct Place {
    int64_t vertex;
    uint64_t round;  // of which it holds a vertex
  };
  std::vector<Place> places_;
  uint64_t round_ = 0;
};

}  // namespace fs

#endif  // FS_CPU_VERTEX_SET_H_
