// A queue that allocates no more memory once it has reached its working size. A std::deque would allocate and free blocks for
// ever.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace unisono::shm {

template <typename T>
class Fifo {
 public:
  bool empty() const { return front_ == items_.size(); }
  size_t size() const { return items_.size() - front_; }
  T& front() { return items_[front_]; }
  T* begin() { return items_.data() + front_; }
  T* end() { return items_.data() + items_.size(); }
  void push(T item) {
    if (front_ >= 32 && front_ * 2 >= items_.size()) compact();
    items_.push_back(std::move(item));
  }
  void pop() {
    if (++front_ == items_.size()) clear();
  }
  // Removes the item at `index` and returns it. This is fast for index 0 and for items near the back.
  T take(size_t index) {
    T item = std::move(begin()[index]);
    if (index == 0) pop();
    else items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(front_ + index));
    return item;
  }
  void pop_back() {
    items_.pop_back();
    if (front_ == items_.size()) clear();
  }
  void clear() {
    items_.clear();
    front_ = 0;
  }
  // Removes the items for which gone(item) is true; the others keep their order.
  template <typename Gone>
  void remove_if(Gone gone) {
    compact();
    std::erase_if(items_, gone);
  }

 private:
  void compact() {
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(front_));
    front_ = 0;
  }
  std::vector<T> items_;
  size_t front_ = 0;
};

}  // namespace unisono::shm
