// What was made for the last calls, by the integers that it depends on.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tropical {

template <class Value>
class Last {
 public:
  using Key = std::vector<int64_t>;

  Last(size_t most, int64_t most_bytes) : most_(most), most_bytes_(most_bytes) {}

  // make() returns a shared pointer, and bytes(value) about how large it is.
  template <class Make, class Bytes>
  std::shared_ptr<const Value> find(Key key, const Make& make, const Bytes& bytes) {
    if (auto known = at(key)) return known;
    std::shared_ptr<const Value> made = make();
    if (const int64_t size = bytes(*made); size <= most_bytes_) keep({std::move(key), made, size});
    return made;
  }

 private:
  struct Kept {
    Key key;
    std::shared_ptr<const Value> value;
    int64_t bytes;
  };

  std::shared_ptr<const Value> at(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& each) { return each.key == key; });
    if (known == kept_.end()) return nullptr;
    std::rotate(kept_.begin(), known, known + 1);  // the last one used comes first
    return kept_.front().value;
  }

  void keep(Kept made) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_ += made.bytes;
    kept_.insert(kept_.begin(), std::move(made));
    while (bytes_ > most_bytes_ || kept_.size() > most_) bytes_ -= kept_.back().bytes, kept_.pop_back();
  }

  const size_t most_;
  const int64_t most_bytes_;
  std::mutex mutex_;
  std::vector<Kept> kept_;
  int64_t bytes_ = 0;
};

}  // namespace tropical
