// The promises of Group and Work to their users, with real runtimes in threads of this process.
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

#include "unisono/group.h"
#include "unisono/store.h"

namespace unisono {
namespace {

constexpr std::chrono::seconds patience{20};

// In this process's memory.
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

// Until this thread of this process waits for something.
bool sleeps(pid_t thread) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < until) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    const std::string line(std::istreambuf_iterator<char>(file), {});
    const auto name_end = line.rfind(')');
    if (name_end != std::string::npos && line.compare(name_end, 4, ") S ") == 0) return true;
    std::this_thread::yield();
  }
  return false;
}

TEST(GroupHandles, processes_meet_by_a_store) {
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

TEST(GroupHandles, a_store_that_fails_is_named) {
  const auto store = std::make_shared<MemoryStore>();
  const auto late =
      Group::join({.rank = 1, .world_size = 2, .store = store, .job = "nobody", .join_timeout = Milliseconds(20)});
  EXPECT_EQ(late.status().code(), Code::late);
  EXPECT_NE(late.status().message().find("unisono/nobody/rendezvous, which rank 0 writes: nobody has set it"),
            std::string::npos)
      << late.status().to_string();
  store->refusal = Status(Code::unavailable, "no room");
  EXPECT_NE(Group::join({.rank = 0, .world_size = 2, .store = store}).status().message().find("no room"), std::string::npos);
  (void)store->set("unisono/nonsense/rendezvous", "somewhere");
  EXPECT_EQ(Group::join({.rank = 1, .world_size = 2, .store = store, .job = "nonsense"}).status().code(), Code::invalid);
  EXPECT_TRUE(Group::join({.rank = 0, .world_size = 1, .store = store}).ok()) << "one process needs no other";
}

// Nobody waits for these operations.
TEST(GroupHandles, a_notice_comes_once_for_each_operation_whoever_drives) {
  auto all = groups(2, std::make_shared<MemoryStore>());
  ASSERT_EQ(all.size(), 2u);
  constexpr int operations = 50;
  std::vector<std::atomic<int>> told(operations);
  std::vector<std::vector<float>> tensors(2 * operations, std::vector<float>(3000, 1.0F));
  std::promise<void> over;
  std::atomic<int> left = operations;
  std::vector<Work> works;
  for (int i = 0; i < operations; ++i) {
    for (int rank = 0; rank < 2; ++rank) works.push_back(all[rank].all_reduce_async(std::span<float>(tensors[2 * i + rank])));
    works.end()[-2].notify([&, i, work = works.end()[-2]] {
      EXPECT_TRUE(work.done());
      ++told[i];
      if (--left == 0) over.set_value();
    });
  }
  ASSERT_EQ(over.get_future().wait_for(patience), std::future_status::ready);
  for (auto& work : works) EXPECT_TRUE(work.wait().ok());
  for (const auto& count : told) EXPECT_EQ(count, 1);
  for (const auto& tensor : tensors) EXPECT_EQ(tensor, std::vector<float>(3000, 2.0F));
}

// The kernel takes a part of the message at once. The rest is for the thread that drives, which sleeps until the other rank
// sends; that waits for the message.
TEST(GroupHandles, who_sleeps_in_a_call_writes_the_rest_of_what_another_thread_sent) {
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
    EXPECT_TRUE(all[1].recv(std::span<float>(received), 0, 1, {.timeout = patience}).ok()) << transport;
    EXPECT_TRUE(all[1].send(std::span<const float>(received.data(), 1), 0, 2).ok());
    waiting.join();
    EXPECT_TRUE(work.wait().ok());
    EXPECT_EQ(received, sent);
  }
}

// A notice has the last handle, so that the library's own thread lets go of it.
TEST(GroupHandles, who_has_let_go_of_everything_leaves_when_its_last_operation_has_ended) {
  for (const auto* transport : {"tcp", "shm"}) {
    auto all = groups(2, std::make_shared<MemoryStore>(), transport);
    ASSERT_EQ(all.size(), 2u);
    auto other = std::move(all[1]);
    std::vector<float> tensor(1 << 20, 1.0F),
        there(1 << 20, 1.0F);  // so large that rank 0 alone cannot have sent all that it owes
    auto work = all[0].all_reduce_async(std::span<float>(tensor));
    work.notify([work] {});
    work = {};
    all.clear();
    EXPECT_TRUE(other.all_reduce(std::span<float>(there)).ok()) << transport;
    const auto alone = other.barrier({.timeout = patience}).status();
    EXPECT_EQ(alone.code(), Code::peer_lost) << alone.to_string();
    EXPECT_NE(alone.message().find("rank 0"), std::string::npos) << alone.to_string();
  }
}

TEST(GroupHandles, a_notice_about_what_is_done_comes_at_once) {
  auto all = groups(1, std::make_shared<MemoryStore>());
  std::vector<float> tensor(10);
  int told = 0;
  const auto count = [&] { ++told; };
  all[0].all_reduce_async(std::span<float>(tensor)).notify(count);
  all[0].all_reduce_async(ConstTensor(), Tensor(), {.op = ReduceOp::band}).notify(count);  // refused
  Work().notify(count);
  EXPECT_EQ(told, 3);
}

// Each starts the next one; the first is waited for by nobody, the others neither.
TEST(GroupHandles, a_notice_may_start_the_next_operation) {
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
  for (auto& one : over) ASSERT_EQ(one.get_future().wait_for(patience), std::future_status::ready);
  for (const auto& tensor : tensors) EXPECT_EQ(tensor, std::vector<float>(100, 1024.0F));
}

TEST(GroupHandles, messages_from_any_rank_are_received_and_their_senders_named) {
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

TEST(GroupHandles, who_aborts_ends_what_the_others_wait_for) {
  auto all = groups(2, std::make_shared<MemoryStore>());
  ASSERT_EQ(all.size(), 2u);
  std::vector<float> tensor(1 << 20), other(1 << 20),
      message(1);  // so large that rank 0 alone cannot have sent all that it owes
  const auto sum = all[0].all_reduce_async(std::span<float>(tensor));
  auto received = all[0].recv_any_async(std::span<float>(message), 1);
  all[0].abort("enough");
  EXPECT_TRUE(sum.done());
  for (const auto& status : {received.wait().status(), all[0].barrier().status()}) {
    EXPECT_EQ(status.code(), Code::unavailable);
    EXPECT_NE(status.message().find("aborted: enough"), std::string::npos) << status.to_string();
  }
  const auto there = all[1].all_reduce(std::span<float>(other)).status();
  EXPECT_NE(there.message().find("rank 0 gave up"), std::string::npos) << there.to_string();
}

}  // namespace
}  // namespace unisono
