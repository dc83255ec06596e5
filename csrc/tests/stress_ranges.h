// Pieces of a file for the stress test: read by many callers through one descriptor, against the bytes written to it.
#ifndef FS_TESTS_STRESS_RANGES_H_
#define FS_TESTS_STRESS_RANGES_H_

#include <thread>

#include "stress_basics.h"

namespace stress {

// A temporary file of drawn bytes; constant once written.
class Ranges {
 public:
  explicit Ranges(Generator& generator) : file_(tmpfile()) {
    for (int64_t i = 0; i < kBytes; ++i) bytes_.push_back(static_cast<char>(generator()));
    require(file_ != nullptr && fwrite(bytes_.data(), 1, bytes_.size(), file_) == bytes_.size() && fflush(file_) == 0,
            "no room for the temporary file; TMPDIR names its directory");
    draw(generator);
  }
  ~Ranges() { fclose(file_); }
  Ranges(const Ranges&) = delete;
  Ranges& operator=(const Ranges&) = delete;

  void run(Written& written) const {
    std::string expected;
    for (size_t i = 0; i < begins_.size(); ++i) {
      expected.append(bytes_, static_cast<size_t>(begins_[i]), static_cast<size_t>(sizes_[i]));
    }
    std::vector<char> read(expected.size());
    succeed(
        fs_read_ranges(fileno(file_), begins_.data(), sizes_.data(), static_cast<int64_t>(begins_.size()), read.data()),
        "read_ranges");
    require(memcmp(read.data(), expected.data(), expected.size()) == 0, "read_ranges: other bytes");
    written.add("read_ranges", read);
    read_nothing();
    refuse();
    page_out();
  }

 private:
  static constexpr int64_t kBytes = 3 << 20;

  void draw(Generator& generator) {
    const auto up_to = [&generator](int64_t most) {
      return std::uniform_int_distribution<int64_t>(0, most)(generator);
    };
    for (int64_t begin = 0; begin < kBytes - 5000; begin += up_to(40000)) add(begin, up_to(5000));  // near and far
    for (int i = 0; i < 50; ++i) add(up_to(kBytes - 3000), up_to(3000));  // neither ascending nor disjoint
    add(7, (3 << 19) + 1);                                                // longer than what is read at once
    for (int i = 0; i < 3; ++i) add(kBytes - 10 * (3 - i), 10);           // up to the last byte
    add(kBytes, 0);
  }
  void add(int64_t begin, int64_t size) {
    begins_.push_back(begin);
    sizes_.push_back(size);
  }

  void read_nothing() const {
    const int64_t begins[] = {0, 5, kBytes + 1}, sizes[] = {0, 0, 0};
    succeed(fs_read_ranges(fileno(file_), begins, sizes, 3, nullptr), "read_ranges of no bytes");
    succeed(fs_read_ranges(fileno(file_), nullptr, nullptr, 0, nullptr), "read_ranges of no ranges");
  }

  void refuse() const {
    char room[32];
    const std::string words = "the file ends at byte " + std::to_string(kBytes) + "; expected 5 more";
    const int64_t begins[] = {kBytes - 20, kBytes - 5}, sizes[] = {10, 10};
    refused(fs_read_ranges(fileno(file_), begins, sizes, 2, room), words.c_str());
    refused(fs_read_ranges(fileno(file_), begins + 1, sizes, 1, room), words.c_str());
    require(fs_read_ranges(-1, begins, sizes, 1, room) == FS_DEVICE_ERROR, "read_ranges: no descriptor, but accepted");
  }

  // Nothing is mapped under such a name; the thread ends when it is asked to.
  void page_out() const {
    int32_t stop = 0;
    std::thread thread([&stop] { succeed(fs_page_out_file("no file", 1, &stop), "page_out_file"); });
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    thread.join();
  }

  FILE* file_;
  std::string bytes_;
  std::vector<int64_t> begins_, sizes_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_RANGES_H_
