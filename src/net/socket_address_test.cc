#include "net/socket_address.h"

#include <gtest/gtest.h>

#include <net/if.h>

#include "base/concat.h"

namespace unisono {
namespace {

InterfaceAddress entry(const char* interface, const char* address, uint32_t scope = 0) {
  InterfaceAddress result{interface, *parse_tcp_address(address), is_virtual_interface(interface)};
  if (scope != 0) result.address.set_scope(scope);
  return result;
}

TEST(TcpEndpoint, is_read_as_it_is_written) {
  for (const char* text : {"tcp://10.1.2.3:45001", "tcp://[::1]:1", "tcp://[2001:db8::7]:65535"}) {
    const auto address = parse_tcp_endpoint(text);
    ASSERT_TRUE(address.ok()) << address.status().to_string();
    EXPECT_EQ(address->endpoint(), text);
  }
}

TEST(TcpEndpoint, keeps_the_scope_of_a_link_local_address) {
  const auto address = parse_tcp_endpoint("tcp://[fe80::1%lo]:7");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->scope(), ::if_nametoindex("lo"));
  EXPECT_EQ(address->endpoint(), "tcp://[fe80::1%lo]:7");
  EXPECT_TRUE(address->is_link_local());
}

TEST(TcpEndpoint, malformed_endpoints_are_refused) {
  for (const char* text :
       {"", "tcp://", "10.0.0.1:5", "tcp://10.0.0.1", "tcp://10.0.0.1:", "tcp://10.0.0.1:0", "tcp://10.0.0.1:65536",
        "tcp://10.0.0.1:5x", "tcp://10.0.0.1:-5", "tcp://10.0.0.256:5", "tcp://host:5", "tcp://::1:5", "tcp://[10.0.0.1]:5",
        "tcp://[::1:5", "tcp://[]:5", "udp://10.0.0.1:5", "tcp://[::g]:5"}) {
    EXPECT_EQ(parse_tcp_endpoint(text).status().code(), Code::invalid) << text;
  }
}

TEST(TcpEndpoint, shows_a_mapped_address_as_what_it_is) {
  const auto mapped = parse_tcp_address("::ffff:127.0.0.1");
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(mapped->to_string(), "127.0.0.1:0");
  EXPECT_TRUE(mapped->is_loopback());
  EXPECT_TRUE(mapped->same_host(*parse_tcp_address("127.0.0.1")));
}

TEST(TcpEndpoint, prefers_addresses_that_others_can_reach) {
  std::vector<InterfaceAddress> all = {entry("lo", "127.0.0.1"),     entry("docker0", "172.17.0.1"),
                                       entry("eth0", "fe80::5", 2),  entry("veth12ab", "fe80::9", 3),
                                       entry("eth0", "2001:db8::1"), entry("lo", "::1"),
                                       entry("eth0", "10.0.0.5")};
  sort_by_preference(all);
  std::vector<std::string> order;
  for (const auto& each : all) order.push_back(each.address.to_string().substr(0, each.address.to_string().find('%')));
  EXPECT_EQ(order, (std::vector<std::string>{"10.0.0.5:0", "[2001:db8::1]:0", "[fe80::5", "172.17.0.1:0", "[fe80::9",
                                             "127.0.0.1:0", "[::1]:0"}));
}

std::vector<std::string> names_of(const std::vector<InterfaceAddress>& addresses) {
  std::vector<std::string> names;
  for (const auto& each : addresses) {
    const auto text = each.address.to_string();
    names.push_back(text.substr(0, text.find_first_of("%")).substr(0, text.rfind(':')));
  }
  return names;
}

// A host that runs `containers` containers. Each of them adds an interface with a link-local address.
std::vector<InterfaceAddress> container_host(uint32_t containers) {
  std::vector<InterfaceAddress> all = {entry("lo", "127.0.0.1"), entry("docker0", "172.17.0.1")};
  for (uint32_t i = 0; i < containers; ++i)
    all.push_back(entry(concat("veth", i).c_str(), concat("fe80::1:", i + 1).c_str(), 10 + i));
  all.push_back(entry("eth0", "fe80::5", 2));
  all.push_back(entry("eth0", "10.0.0.5"));
  return all;
}

TEST(BestAddresses, a_list_that_fits_keeps_all_addresses_in_the_order_of_dialling) {
  auto all = container_host(11);
  ASSERT_EQ(all.size(), offered_addresses_max);
  const auto best = best_addresses(all, offered_addresses_max);
  sort_by_preference(all);
  EXPECT_EQ(names_of(best), names_of(all));
}

TEST(BestAddresses, virtual_addresses_are_left_out_first_and_link_local_ones_next) {
  EXPECT_EQ(names_of(best_addresses(container_host(300), 3)), (std::vector<std::string>{"10.0.0.5", "[fe80::5", "127.0.0.1"}));
  EXPECT_EQ(names_of(best_addresses(container_host(300), 2)), (std::vector<std::string>{"10.0.0.5", "127.0.0.1"}));
  EXPECT_EQ(names_of(best_addresses(container_host(300), 4)),
            (std::vector<std::string>{"10.0.0.5", "[fe80::5", "172.17.0.1", "127.0.0.1"}));
  EXPECT_EQ(best_addresses(container_host(300), offered_addresses_max).size(), offered_addresses_max);
}

TEST(BestAddresses, every_interface_keeps_an_address_before_any_keeps_two) {
  std::vector<InterfaceAddress> all;
  for (int i = 1; i <= 100; ++i) all.push_back(entry("eth0", concat("10.0.0.", i).c_str()));
  all.push_back(entry("eth1", "10.0.1.1"));
  all.push_back(entry("eth1", "2001:db8::1"));
  all.push_back(entry("lo", "127.0.0.1"));
  EXPECT_EQ(names_of(best_addresses(all, 5)),
            (std::vector<std::string>{"10.0.0.1", "10.0.0.2", "10.0.1.1", "[2001:db8::1]", "127.0.0.1"}));
}

TEST(TcpEndpoint, selects_by_name_and_by_address) {
  const std::vector<InterfaceAddress> all = {entry("lo", "127.0.0.1"), entry("eth0", "10.0.0.5"), entry("eth0", "2001:db8::1")};
  EXPECT_EQ(select_interface(all, "")->size(), 3u);
  EXPECT_EQ(select_interface(all, "eth0")->size(), 2u);
  EXPECT_EQ(select_interface(all, "2001:db8::1")->size(), 1u);
  EXPECT_EQ(select_interface(all, "127.0.0.9")->size(), 1u) << "all of 127/8 is this host";
}

TEST(TcpEndpoint, an_unmatched_interface_error_lists_the_interfaces) {
  const std::vector<InterfaceAddress> all = {entry("lo", "127.0.0.1"), entry("eth0", "10.0.0.5")};
  for (const char* wanted : {"eth7", "10.0.0.6", "2001:db8::9"}) {
    const auto result = select_interface(all, wanted);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::invalid);
    EXPECT_NE(result.status().message().find(wanted), std::string::npos);
    EXPECT_NE(result.status().message().find("eth0 10.0.0.5"), std::string::npos) << result.status().message();
  }
}

TEST(TcpEndpoint, a_link_local_address_is_dialled_on_own_interfaces_the_same_name_first) {
  const std::vector<InterfaceAddress> own = {entry("eth0", "10.0.0.5"), entry("eth0", "fe80::1", 2),
                                             entry("eth1", "fe80::2", 3)};
  auto peer = *parse_tcp_endpoint("tcp://[fe80::77]:9");
  peer.set_scope(3);
  const auto targets = dial_addresses(peer, own);
  ASSERT_EQ(targets.size(), 2u);
  EXPECT_EQ(targets[0].scope(), 3u);
  EXPECT_EQ(targets[1].scope(), 2u);
  EXPECT_EQ(dial_addresses(*parse_tcp_endpoint("tcp://10.0.0.9:9"), own).size(), 1u);
}

}  // namespace
}  // namespace unisono
