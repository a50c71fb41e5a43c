// Threads for a call from outside XLA.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "solve.h"

namespace tropical {

// They begin with the first step that is worth it, and end with the call.
class OwnPool : public Pool {
 public:
  ~OwnPool() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    more_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  int64_t threads() const override { return count_; }
  void schedule(std::function<void()> task) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    more_.notify_one();
    if (static_cast<int64_t>(threads_.size()) + 1 >= count_) return;
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // no thread to be had: the caller does the work
    }
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      more_.wait(lock, [this] { return is_over_ || !tasks_.empty(); });
      if (is_over_) return;  // what is left has been done by the caller
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }
  const int64_t count_ = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  bool is_over_ = false;
};

}  // namespace tropical
