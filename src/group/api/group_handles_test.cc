// Tests what Group and Work promise their users. Each rank is a real runtime in this process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/concat.h"
#include "unisono/group.h"
#include "unisono/store.h"

namespace unisono {
namespace {

constexpr std::chrono::seconds test_timeout{20};

// A key-value store in this process's memory.
class MemoryStore final : public KeyValueStore {
 public:
  Status set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return refusal;
  }
  Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); }))
      return Status(Code::late, "nobody has set it");
    return values_[key];
  }
  std::map<std::string, std::string> values() {
    const std::lock_guard lock(mutex_);
    return values_;
  }
  Status refusal;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

std::vector<Group> groups(int32_t world, const std::shared_ptr<MemoryStore>& store, const std::string& transport = "auto") {
  std::vector<std::future<Result<Group>>> joining;
  for (int32_t rank = 0; rank < world; ++rank) {
    joining.push_back(std::async(std::launch::async, [=] {
      return Group::join({.rank = rank, .world_size = world, .store = store, .job = "handles", .transport = transport});
    }));
  }
  std::vector<Group> all;
  for (auto& one : joining) {
    auto group = one.get();
    EXPECT_TRUE(group.ok()) << group.status().to_string();
    if (group.ok()) all.push_back(std::move(*group));
  }
  return all;
}

// Waits until the given thread of this process sleeps in the kernel. Returns false if the thread does not sleep in time.
bool sleeps(pid_t thread) {
  const auto until = std::chrono::steady_clock::now() + test_timeout;
  while (std::chrono::steady_clock::now() < until) {
    std::ifstream file(concat("/proc/self/task/", thread, "/stat"));
    const std::string line(std::istreambuf_iterator<char>(file), {});
    const auto name_end = line.rfind(')');
    if (name_end != std::string::npos && line.compare(name_end, 4, ") S ") == 0) return true;
    std::this_thread::yield();
  }
  return false;
}

TEST(GroupHandles, processes_form_a_group_through_a_store) {
  for (const auto* transport : {"auto", "tcp"}) {
    const auto store = std::make_shared<MemoryStore>();
    auto all = groups(3, store, transport);
    ASSERT_EQ(all.size(), 3u);
    const auto values = store->values();
    ASSERT_EQ(values.size(), 1u);
    EXPECT_EQ(values.begin()->first, "unisono/handles/rendezvous");
    EXPECT_TRUE(values.begin()->second.starts_with("tcp://[")) << values.begin()->second;
    std::vector<std::thread> threads;
    for (auto& group : all) {
      threads.emplace_back([&group] {
        std::vector<float> tensor(100, static_cast<float>(group.rank() + 1));
        EXPECT_TRUE(group.all_reduce(std::span<float>(tensor)).ok());
        EXPECT_EQ(tensor, std::vector<float>(100, 6.0F));
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST(GroupHandles, a_store_error_names_the_key) {
  const auto store = std::make_shared<MemoryStore>();
  const auto late =
      Group::join({.rank = 1, .world_size = 2, .store = store, .job = "nobody", .join_timeout = Milliseconds(20)});
  EXPECT_EQ(late.status().code(), Code::late);
  EXPECT_NE(late.status().message().find(
                "unisono/nobody/rendezvous, which rank 0 of these 2 processes writes when it joins: nobody has set it"),
            std::string::npos)
      << late.status().to_string();
  store->refusal = Status(Code::unavailable, "no room");
  EXPECT_NE(Group::join({.rank = 0, .world_size = 2, .store = store}).status().message().find("no room"), std::string::npos);
  (void)store->set("unisono/nonsense/rendezvous", "somewhere");
  EXPECT_EQ(Group::join({.rank = 1, .world_size = 2, .store = store, .job = "nonsense"}).status().code(), Code::invalid);
  EXPECT_TRUE(Group::join({.rank = 0, .world_size = 1, .store = store}).ok()) << "one process needs no other";
}

// No thread waits for these operations. So the background threads must run the callbacks.
TEST(GroupHandles, the_callback_runs_once_for_each_operation_whichever_thread_drives) {
  auto all = groups(2, std::make_shared<MemoryStore>());
  ASSERT_EQ(all.size(), 2u);
  constexpr int operations = 50;
  std::vector<std::atomic<int>> callback_counts(operations);
  std::vector<std::vector<float>> tensors(2 * operations, std::vector<float>(3000, 1.0F));
  std::promise<void> over;
  std::atomic<int> left = operations;
  std::vector<Work> works;
  for (int i = 0; i < operations; ++i) {
    for (int rank = 0; rank < 2; ++rank) works.push_back(all[rank].all_reduce_async(std::span<float>(tensors[2 * i + rank])));
    works.end()[-2].notify([&, i, work = works.end()[-2]] {
      EXPECT_TRUE(work.done());
      ++callback_counts[i];
      if (--left == 0) over.set_value();
    });
  }
  ASSERT_EQ(over.get_future().wait_for(test_timeout), std::future_status::ready);
  for (auto& work : works) EXPECT_TRUE(work.wait().ok());
  for (const auto& count : callback_counts) EXPECT_EQ(count, 1);
  for (const auto& tensor : tensors) EXPECT_EQ(tensor, std::vector<float>(3000, 2.0F));
}

// The kernel cannot take the whole message at once. So the driving thread must write the rest. It sleeps in recv() until rank 1
// answers, and rank 1 answers only after it has the whole message.
TEST(GroupHandles, a_thread_that_sleeps_in_a_call_writes_the_pending_bytes_of_another_thread) {
  for (const auto* transport : {"tcp", "shm"}) {
    auto all = groups(2, std::make_shared<MemoryStore>(), transport);
    ASSERT_EQ(all.size(), 2u);
    std::vector<float> sent(16 << 20, 1.0F), received(16 << 20), answer(1);
    std::promise<pid_t> sleeper;
    std::thread waiting([&] {
      sleeper.set_value(::gettid());
      EXPECT_TRUE(all[0].recv(std::span<float>(answer), 1, 2).ok()) << transport;
    });
    ASSERT_TRUE(sleeps(sleeper.get_future().get()));
    auto work = all[0].send_async(std::span<const float>(sent), 1, 1);
    EXPECT_TRUE(all[1].recv(std::span<float>(received), 0, 1, {.timeout = test_timeout}).ok()) << transport;
    EXPECT_TRUE(all[1].send(std::span<const float>(received.data(), 1), 0, 2).ok());
    waiting.join();
    EXPECT_TRUE(work.wait().ok());
    EXPECT_EQ(received, sent);
  }
}

// The callback holds the last handle of rank 0, so the background thread itself releases the runtime.
TEST(GroupHandles, a_process_without_handles_leaves_when_its_last_operation_has_ended) {
  for (const auto* transport : {"tcp", "shm"}) {
    auto all = groups(2, std::make_shared<MemoryStore>(), transport);
    ASSERT_EQ(all.size(), 2u);
    auto other = std::move(all[1]);
    // The tensor is so large that rank 0 cannot have sent its part by the end of the asynchronous call.
    std::vector<float> tensor(1 << 20, 1.0F), there(1 << 20, 1.0F);
    auto work = all[0].all_reduce_async(std::span<float>(tensor));
    work.notify([work] {});
    work = {};
    all.clear();
    EXPECT_TRUE(other.all_reduce(std::span<float>(there)).ok()) << transport;
    const auto alone = other.barrier({.timeout = test_timeout}).status();
    EXPECT_EQ(alone.code(), Code::peer_lost) << alone.to_string();
    EXPECT_NE(alone.message().find("rank 0"), std::string::npos) << alone.to_string();
  }
}

// The message is so large that rank 0 cannot have sent it before rank 1 receives.
TEST(GroupHandles, the_last_handle_waits_until_a_dropped_message_has_arrived) {
  for (const auto* transport : {"tcp", "shm", "udp"}) {
    auto all = groups(2, std::make_shared<MemoryStore>(), transport);
    ASSERT_EQ(all.size(), 2u);
    auto other = std::move(all[1]);
    const std::vector<float> sent(1 << 20, 1.0F);
    std::vector<float> received(sent.size());
    all[0].send_async(std::span<const float>(sent), 1, 1);
    std::promise<pid_t> sleeper;
    std::thread leaving([&] {
      sleeper.set_value(::gettid());
      all.clear();
    });
    EXPECT_TRUE(sleeps(sleeper.get_future().get())) << transport << ": the handle did not wait";
    const auto there = other.recv(std::span<float>(received), 0, 1, {.timeout = test_timeout});
    EXPECT_TRUE(there.ok()) << transport << ": " << there.status().to_string();
    leaving.join();
    EXPECT_EQ(received, sent) << transport;
  }
}

TEST(GroupHandles, the_last_handle_does_not_wait_for_a_receive) {
  auto all = groups(2, std::make_shared<MemoryStore>());
  ASSERT_EQ(all.size(), 2u);
  std::vector<float> one(1), any(1);
  all[0].recv_async(std::span<float>(one), 1, 1, {.timeout = 2 * test_timeout});
  all[0].recv_any_async(std::span<float>(any), 2, {.timeout = 2 * test_timeout});
  const auto begun = std::chrono::steady_clock::now();
  all.erase(all.begin());
  EXPECT_LT(std::chrono::steady_clock::now() - begun, test_timeout);
}

TEST(GroupHandles, the_last_handle_waits_at_most_until_the_deadline) {
  auto all = groups(2, std::make_shared<MemoryStore>());
  ASSERT_EQ(all.size(), 2u);
  std::vector<float> tensor(1 << 20);
  const auto begun = std::chrono::steady_clock::now();
  all[0].all_reduce_async(std::span<float>(tensor), {.timeout = Milliseconds(50)});
  all.erase(all.begin());
  EXPECT_GE(std::chrono::steady_clock::now() - begun, Milliseconds(50)) << "the other rank might still have come";
}

TEST(GroupHandles, calls_of_a_polling_handle_may_be_waited_for_in_pieces) {
  for (const auto* transport : {"tcp", "shm"}) {
    auto all = groups(2, std::make_shared<MemoryStore>(), transport);
    ASSERT_EQ(all.size(), 2u);
    std::vector<std::thread> threads;
    for (auto& group : all) {
      threads.emplace_back([&group] {
        auto polling = group.polling();
        for (const size_t count : {1u, 1000u, 1u << 18}) {
          for (int turn = 0; turn < 5; ++turn) {
            std::vector<float> tensor(count, 1.0F);
            auto work = polling.all_reduce_async(std::span<float>(tensor));
            while (!work.done()) (void)work.wait_for(Milliseconds(1));
            EXPECT_TRUE(work.wait().ok());
            EXPECT_EQ(tensor, std::vector<float>(count, 2.0F));
          }
        }
      });
    }
    for (auto& thread : threads) thread.join();
    const auto refused = all[0].polling().all_reduce_async(ConstTensor(), Tensor(), {.op = ReduceOp::band}).wait();
    EXPECT_EQ(refused.status().code(), Code::invalid);
  }
}

// After the first piece of time, nobody waits for the operation any more.
TEST(GroupHandles, an_operation_of_a_polling_handle_goes_on_after_the_wait_has_been_given_up) {
  auto all = groups(2, std::make_shared<MemoryStore>());
  ASSERT_EQ(all.size(), 2u);
  std::vector<float> here(1 << 20, 1.0F), there(1 << 20, 1.0F);
  auto work = all[0].polling().all_reduce_async(std::span<float>(here), {.timeout = test_timeout});
  EXPECT_EQ(work.wait_for(Milliseconds(1)).status().code(), Code::late);
  EXPECT_TRUE(all[1].all_reduce(std::span<float>(there), {.timeout = test_timeout}).ok());
  EXPECT_TRUE(work.wait().ok());
  EXPECT_EQ(here, there);
}

TEST(GroupHandles, notify_after_the_end_calls_back_at_once) {
  auto all = groups(1, std::make_shared<MemoryStore>());
  std::vector<float> tensor(10);
  int callback_count = 0;
  const auto count = [&] { ++callback_count; };
  all[0].all_reduce_async(std::span<float>(tensor)).notify(count);
  // the call is refused: band needs integers
  all[0].all_reduce_async(ConstTensor(), Tensor(), {.op = ReduceOp::band}).notify(count);
  Work().notify(count);
  EXPECT_EQ(callback_count, 3);
}

// Each callback starts the next operation, ten times. No thread waits for any of these operations.
TEST(GroupHandles, a_callback_may_start_the_next_operation) {
  auto all = groups(2, std::make_shared<MemoryStore>());
  ASSERT_EQ(all.size(), 2u);
  std::vector<std::vector<float>> tensors(2, std::vector<float>(100, 1.0F));
  std::vector<std::promise<void>> over(2);
  std::vector<int> rounds(2, 0);
  std::vector<std::function<void()>> next(2);
  for (int rank = 0; rank < 2; ++rank) {
    next[rank] = [&, rank] {
      if (rounds[rank]++ == 10) return over[rank].set_value();
      all[rank].all_reduce_async(std::span<float>(tensors[rank])).notify(next[rank]);
    };
  }
  next[0]();
  next[1]();
  for (auto& one : over) ASSERT_EQ(one.get_future().wait_for(test_timeout), std::future_status::ready);
  for (const auto& tensor : tensors) EXPECT_EQ(tensor, std::vector<float>(100, 1024.0F));
}

TEST(GroupHandles, recv_any_reports_the_sender) {
  auto all = groups(3, std::make_shared<MemoryStore>());
  ASSERT_EQ(all.size(), 3u);
  constexpr int messages = 50;
  std::vector<std::thread> senders;
  for (const int rank : {1, 2}) {
    senders.emplace_back([&, rank] {
      for (int i = 0; i < messages; ++i) {
        const std::vector<int32_t> values(100'000, rank * 1000 + i);
        EXPECT_TRUE(all[rank].send(std::span<const int32_t>(values), 0, 5).ok());
      }
    });
  }
  std::vector<int> next(3, 0);
  std::vector<int32_t> values(100'000);
  for (int i = 0; i < 2 * messages; ++i) {
    const auto report = all[0].recv_any(std::span<int32_t>(values), 5);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    const auto from = report->last_rank;
    ASSERT_TRUE(from == 1 || from == 2) << from;
    EXPECT_EQ(values, std::vector<int32_t>(values.size(), from * 1000 + next[from]++));
  }
  for (auto& sender : senders) sender.join();
}

TEST(GroupHandles, abort_ends_the_calls_in_which_the_other_ranks_wait) {
  auto all = groups(2, std::make_shared<MemoryStore>());
  ASSERT_EQ(all.size(), 2u);
  // With 1 << 20 elements, rank 0 cannot have sent its part by the end of the asynchronous call.
  std::vector<float> tensor(1 << 20), other(1 << 20), message(1);
  const auto sum = all[0].all_reduce_async(std::span<float>(tensor));
  auto received = all[0].recv_any_async(std::span<float>(message), 1);
  all[0].abort("enough");
  EXPECT_TRUE(sum.done());
  for (const auto& status : {received.wait().status(), all[0].barrier().status()}) {
    EXPECT_EQ(status.code(), Code::unavailable);
    EXPECT_NE(status.message().find("aborted: enough"), std::string::npos) << status.to_string();
  }
  const auto there = all[1].all_reduce(std::span<float>(other)).status();
  EXPECT_NE(there.message().find("rank 0 aborted the operation"), std::string::npos) << there.to_string();
}

}  // namespace
}  // namespace unisono
