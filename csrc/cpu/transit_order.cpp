// Grouping by transit: a radix sort from the lowest digit, which keeps the order of equals.
#include "transit_order.h"

#include <stddef.h>

#include <array>

namespace fs {
namespace {

constexpr int kDigitBits = 11;
constexpr size_t kDigits = size_t{1} << kDigitBits;

}  // namespace

void group_by_transit(std::vector<TransitPlace>& places, std::vector<TransitPlace>& spare, int64_t num_rows) {
  spare.resize(places.size());
  for (int shift = 0; shift < 63 && (num_rows - 1) >> shift > 0; shift += kDigitBits) {
    std::array<size_t, kDigits> begins{};
    const auto digit_of = [shift](const TransitPlace& place) {
      return static_cast<size_t>(place.transit >> shift) & (kDigits - 1);
    };
    for (const TransitPlace& place : places) ++begins[digit_of(place)];
    size_t sum = 0;
    for (size_t& begin : begins) {
      const size_t count = begin;
      begin = sum;
      sum += count;
    }
    for (const TransitPlace& place : places) spare[begins[digit_of(place)]++] = place;
    places.swap(spare);
  }
}

}  // namespace fs
