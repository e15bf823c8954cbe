// Groups with and without a key: who may join, at which addresses the ports are, and when rank 0 warns.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "rendezvous/rendezvous_socket_test_support.h"
#include "tls/secret_key.h"
#include "unisono/group.h"

namespace unisono {
namespace {

// The events of one process.
class Events {
 public:
  EventHandler handler() {
    return [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      all_.push_back(event);
    };
  }
  std::vector<Event> of(EventKind kind) {
    const std::lock_guard lock(mutex_);
    std::vector<Event> chosen;
    std::ranges::copy_if(all_, std::back_inserter(chosen), [&](const Event& event) { return event.kind == kind; });
    return chosen;
  }

 private:
  std::mutex mutex_;
  std::vector<Event> all_;
};

struct GroupSecurity : testing::Test {
  // Both ranks join with these options; `change` may change those of one rank.
  std::vector<Result<Group>> join(const Options& options, const std::function<void(Options&)>& change = {}) {
    std::vector<std::future<Result<Group>>> joining;
    for (int32_t rank = 0; rank < 2; ++rank) {
      auto own = options;
      own.rank = rank;
      own.world_size = 2;
      own.on_event = events[static_cast<size_t>(rank)].handler();
      if (change) change(own);
      joining.push_back(std::async(std::launch::async, [own] { return Group::join(own); }));
    }
    std::vector<Result<Group>> all;
    for (auto& one : joining) all.push_back(one.get());
    return all;
  }
  // Leaves the groups first, which delivers their last events.
  size_t warnings(const Options& options) {
    {
      const auto all = join(options);
      for (const auto& group : all) EXPECT_TRUE(group.ok()) << group.status().to_string();
    }
    EXPECT_TRUE(events[1].of(EventKind::unprotected).empty());
    return events[0].of(EventKind::unprotected).size();
  }
  static std::string new_key() { return SecretKey::draw()->hex(); }

  // An address with hosts that need not be this one. Connections to 0.0.0.0 reach this host.
  std::string far_address() { return "tcp://[127.0.0.1,0.0.0.0]:" + port.number(); }
  std::string near_address() { return "tcp://127.0.0.1:" + port.number(); }

  test::Folder folder;
  test::ReservedPort port;
  Events events[2];
};

TEST_F(GroupSecurity, a_group_without_a_key_that_reaches_beyond_this_host_warns_once) {
  EXPECT_EQ(warnings({.rendezvous = far_address()}), 1u);
  const auto event = events[0].of(EventKind::unprotected).at(0);
  EXPECT_EQ(event.level(), EventLevel::warning);
  for (const auto* part : {"no key", "unisono launch", "unisono key > job.key; chmod 600 job.key", "UNISONO_KEY_FILE=job.key"})
    EXPECT_NE(event.text.find(part), std::string::npos) << event.text;
}

TEST_F(GroupSecurity, nobody_warns_on_one_host_or_with_a_key_or_if_security_is_off) {
  EXPECT_EQ(warnings({.rendezvous = near_address()}), 0u);
  EXPECT_EQ(warnings({.rendezvous = "file://" + folder.path("meet")}), 0u);
  EXPECT_EQ(warnings({.rendezvous = far_address(), .security = Security::off}), 0u);
  EXPECT_EQ(warnings({.rendezvous = far_address(), .key = new_key()}), 0u);
}

TEST_F(GroupSecurity, a_rank_with_another_key_and_one_without_are_refused) {
  const auto key = new_key();
  for (const auto& others : {new_key(), std::string()}) {
    const auto all = join({.rendezvous = near_address(), .key = key, .join_timeout = Milliseconds(500)}, [&](Options& options) {
      if (options.rank == 1) options.key = others;
      if (options.rank == 1) options.join_timeout = Milliseconds(20'000);
    });
    EXPECT_EQ(all[0].status().code(), Code::late) << all[0].status().to_string();
    EXPECT_NE(all[0].status().message().find("authentication failed"), std::string::npos) << all[0].status().message();
    EXPECT_EQ(all[1].status().code(), Code::invalid) << all[1].status().to_string();
    EXPECT_FALSE(events[0].of(EventKind::refused).empty()) << "rank 0 has reported it while it waited";
  }
}

TEST_F(GroupSecurity, data_ports_are_at_loopback_if_the_rendezvous_is) {
  for (const auto& address : {near_address(), "file://" + folder.path("meet"), "tcp://localhost:" + port.number()}) {
    for (const std::string transport : {"tcp", "udp"}) {
      const auto all = join({.rendezvous = address, .key = new_key(), .transport = transport},
                            [key = new_key()](Options& options) { options.key = key; });
      for (const auto& group : all) {
        ASSERT_TRUE(group.ok()) << group.status().to_string();
        const auto link = group->members()[1 - group->rank()].link;
        EXPECT_NE(link.find("127.0.0.1"), std::string::npos) << address << ": " << link;
      }
    }
  }
}

TEST_F(GroupSecurity, a_chosen_interface_wins_over_loopback) {
  const auto all = join({.rendezvous = near_address(), .interface = "127.0.0.3", .transport = "tcp"});
  for (const auto& group : all) {
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    EXPECT_NE(group->members()[1 - group->rank()].link.find("127.0.0.3"), std::string::npos);
  }
}

}  // namespace
}  // namespace unisono
