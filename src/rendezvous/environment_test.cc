#include "rendezvous/environment.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

const Environment torchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
const Environment slurm_step = {{"SLURM_PROCID", "5"},
                                {"SLURM_NTASKS", "16"},
                                {"SLURM_JOB_ID", "4711"},
                                {"SLURM_STEP_ID", "0"},
                                {"SLURM_STEP_NODELIST", "node[07-09,12],gpu1"}};
const Environment mpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "1378353153"}};

Environment with(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

void expect_refused(const Options& options, const Environment& environment, std::initializer_list<const char*> parts) {
  const auto resolved = resolve_options(options, environment);
  ASSERT_FALSE(resolved.ok());
  EXPECT_EQ(resolved.status().code(), Code::invalid);
  for (const char* part : parts)
    EXPECT_NE(resolved.status().message().find(part), std::string::npos)
        << "'" << part << "' is not in: " << resolved.status().message();
}

ResolvedOptions resolve(const Options& options, const Environment& environment) {
  auto resolved = resolve_options(options, environment);
  EXPECT_TRUE(resolved.ok()) << resolved.status().to_string();
  return resolved.ok() ? *resolved : ResolvedOptions{};
}

TEST(Environment, torchrun_variables_are_understood) {
  const auto resolved = resolve({}, torchrun);
  EXPECT_EQ(resolved.rank, 3u);
  EXPECT_EQ(resolved.world_size, 8u);
  EXPECT_EQ(resolved.rendezvous.to_string(), "tcp://node0:29500");
  EXPECT_EQ(resolved.job, "default");
  EXPECT_EQ(resolved.transport, "auto");
  EXPECT_NE(resolved.source.find("RANK and WORLD_SIZE, rendezvous from MASTER_ADDR"), std::string::npos) << resolved.source;
}

TEST(Environment, torchrun_with_its_own_store_selects_the_next_port) {
  EXPECT_EQ(
      resolve({}, with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "run7"}})).rendezvous.port,
      29501);
  EXPECT_EQ(resolve({}, with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "run7"}})).job,
            "run7");
  EXPECT_EQ(resolve({}, with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).rendezvous.port, 29500);
  expect_refused({}, with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"MASTER_PORT", "65535"}}),
                 {"65535", "UNISONO_RENDEZVOUS"});
}

TEST(Environment, own_variables_override_the_launcher) {
  const auto resolved = resolve({}, with(torchrun, {{"UNISONO_RENDEZVOUS", "tcp://[fe80::1]:1234"},
                                                    {"UNISONO_JOB", "mine"},
                                                    {"UNISONO_TRANSPORT", "tcp"},
                                                    {"UNISONO_INTERFACE", "eth1"},
                                                    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                    {"UNISONO_RANK", "1"},
                                                    {"UNISONO_WORLD_SIZE", "2"}}));
  EXPECT_EQ(resolved.rendezvous.to_string(), "tcp://[fe80::1]:1234");
  EXPECT_EQ(resolved.job, "mine");
  EXPECT_EQ(resolved.transport, "tcp");
  EXPECT_EQ(resolved.interface, "eth1");
  EXPECT_EQ(resolved.rank, 1u);
  EXPECT_EQ(resolved.world_size, 2u);
}

TEST(Environment, explicit_options_override_everything) {
  Options options;
  options.rank = 0;
  options.world_size = 2;
  options.rendezvous = "file:///tmp/meet";
  options.job = "explicit";
  options.transport = "shm";
  options.join_timeout = Milliseconds(5000);
  const auto resolved = resolve(options, with(torchrun, {{"UNISONO_RENDEZVOUS", "tcp://x:1"},
                                                         {"UNISONO_JOB", "mine"},
                                                         {"UNISONO_TRANSPORT", "tcp"},
                                                         {"UNISONO_JOIN_TIMEOUT_MS", "7"}}));
  EXPECT_EQ(resolved.rank, 0u);
  EXPECT_EQ(resolved.world_size, 2u);
  EXPECT_EQ(resolved.rendezvous.to_string(), "file:///tmp/meet");
  EXPECT_EQ(resolved.job, "explicit");
  EXPECT_EQ(resolved.transport, "shm");
  EXPECT_EQ(resolved.join_timeout, Milliseconds(5000));
}

TEST(Environment, slurm_variables_give_the_first_host_and_the_same_port_for_all_tasks) {
  const auto resolved = resolve({}, slurm_step);
  EXPECT_EQ(resolved.rank, 5u);
  EXPECT_EQ(resolved.world_size, 16u);
  EXPECT_EQ(resolved.rendezvous.host, "node07");
  EXPECT_GE(resolved.rendezvous.port, 20000);
  EXPECT_LT(resolved.rendezvous.port, 32000);
  EXPECT_EQ(resolved.job, "4711.0");
  EXPECT_EQ(resolve({}, with(slurm_step, {{"SLURM_PROCID", "6"}})).rendezvous, resolved.rendezvous);
  EXPECT_NE(resolve({}, with(slurm_step, {{"SLURM_STEP_ID", "1"}})).rendezvous.port, resolved.rendezvous.port);
}

TEST(Environment, slurm_without_a_node_list_is_refused_with_a_remedy) {
  Environment environment = slurm_step;
  environment.erase("SLURM_STEP_NODELIST");
  expect_refused({}, environment, {"SLURM_STEP_NODELIST", "MASTER_ADDR"});
}

TEST(Environment, master_address_overrides_slurms_first_host) {
  EXPECT_EQ(resolve({}, with(slurm_step, {{"MASTER_ADDR", "10.1.2.3"}, {"MASTER_PORT", "1111"}})).rendezvous.to_string(),
            "tcp://10.1.2.3:1111");
}

TEST(Environment, open_mpi_on_one_host_needs_no_address) {
  const auto resolved = resolve({}, mpirun);
  EXPECT_EQ(resolved.rank, 1u);
  EXPECT_EQ(resolved.world_size, 4u);
  EXPECT_EQ(resolved.rendezvous.to_string(), "file:///tmp/unisono-1378353153");
  EXPECT_EQ(resolved.job, "1378353153");
  EXPECT_EQ(resolve({}, with(mpirun, {{"TMPDIR", "/scratch"}})).rendezvous.path, "/scratch/unisono-1378353153");
  EXPECT_EQ(resolve({}, with(mpirun, {{"PMIX_NAMESPACE", "../x y"}})).rendezvous.path, "/tmp/unisono-.._x y");
}

TEST(Environment, open_mpi_on_several_hosts_needs_an_address) {
  expect_refused({}, with(mpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), {"several hosts", "MASTER_ADDR"});
}

TEST(Environment, mpich_variables_are_understood_but_need_an_address) {
  const Environment mpiexec = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  expect_refused({}, mpiexec, {"no rendezvous address", "UNISONO_RENDEZVOUS"});
  EXPECT_EQ(resolve({}, with(mpiexec, {{"UNISONO_RENDEZVOUS", "file:///tmp/x"}})).rank, 1u);
}

TEST(Environment, the_innermost_launcher_is_used) {
  EXPECT_EQ(resolve({}, with(slurm_step, torchrun)).rank, 3u);
  EXPECT_EQ(resolve({}, with(slurm_step, mpirun)).world_size, 4u);
  EXPECT_EQ(resolve({}, with(mpirun, torchrun)).world_size, 8u);
}

TEST(Environment, empty_environment_is_refused_with_a_remedy) {
  expect_refused({}, {}, {"world_size is not known", "unisono launch", "torchrun"});
}

TEST(Environment, half_of_a_pair_is_refused_with_the_missing_half) {
  expect_refused({}, {{"RANK", "1"}}, {"WORLD_SIZE", "RANK and WORLD_SIZE must be set together"});
  expect_refused({}, {{"WORLD_SIZE", "2"}}, {"neither is RANK"});
  expect_refused({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}}, {"MASTER_PORT is not"});
  expect_refused({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}, {"MASTER_ADDR is not"});
  expect_refused({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {"no rendezvous address"});
}

TEST(Environment, an_option_and_a_variable_complete_each_other) {
  Options options;
  options.rank = 1;
  EXPECT_EQ(resolve(options, torchrun).rank, 1u);
  EXPECT_EQ(resolve(options, torchrun).world_size, 8u);
}

TEST(Environment, empty_variables_count_as_not_set) {
  EXPECT_EQ(
      resolve({}, with(torchrun, {{"UNISONO_RENDEZVOUS", ""}, {"UNISONO_JOB", ""}, {"UNISONO_RANK", ""}})).rendezvous.host,
      "node0");
}

TEST(Environment, malformed_numbers_are_named) {
  for (const char* bad : {"x", "-1", "3 ", " 3", "3.0", "99999999999999999999", "0x3"}) {
    expect_refused({}, with(torchrun, {{"RANK", bad}}), {"RANK is '", bad});
  }
  for (const char* bad : {"0", "65536", "http"})
    expect_refused({}, with(torchrun, {{"MASTER_PORT", bad}}), {"MASTER_PORT is '", bad});
  expect_refused({}, with(torchrun, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE is '0'"});
  expect_refused({}, with(torchrun, {{"WORLD_SIZE", "5000"}}), {"from 1 to 4096"});
}

TEST(Environment, a_rank_outside_the_world_is_refused) {
  expect_refused({}, with(torchrun, {{"RANK", "8"}}), {"rank 8 of a world of 8", "ranks start at 0"});
}

TEST(Environment, a_world_of_one_needs_no_rendezvous) {
  Options options;
  options.world_size = 1;
  EXPECT_EQ(resolve(options, {}).rendezvous.kind, RendezvousAddress::Kind::none);
  EXPECT_EQ(resolve(options, torchrun).rendezvous.kind, RendezvousAddress::Kind::none);
  EXPECT_EQ(resolve(options, torchrun).rank, 0u);
  EXPECT_EQ(resolve({}, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}).rendezvous.kind, RendezvousAddress::Kind::none);
  options.rendezvous = "file:///tmp/x";
  EXPECT_EQ(resolve(options, {}).rendezvous.kind, RendezvousAddress::Kind::file);
}

TEST(Environment, a_joiner_needs_an_address_and_nothing_else) {
  Options options;
  options.join_running = true;
  expect_refused(options, {}, {"no rendezvous address"});
  options.rendezvous = "tcp://a:1";
  EXPECT_TRUE(resolve(options, {}).join_running);
  EXPECT_TRUE(resolve({}, with(torchrun, {{"UNISONO_JOIN_RUNNING", "1"}, {"RANK", "99"}})).join_running);
}

TEST(Environment, times_and_switches_are_checked) {
  const auto resolved = resolve({}, with(torchrun, {{"UNISONO_JOIN_TIMEOUT_MS", "1500"},
                                                    {"UNISONO_TIMEOUT_MS", "2500"},
                                                    {"UNISONO_REFORM_TIMEOUT_MS", "50"},
                                                    {"UNISONO_PAYLOAD_CHECKSUM", "true"},
                                                    {"UNISONO_STREAMS_PER_LINK", "4"},
                                                    {"UNISONO_TUNING", "/shared/job.tuning"},
                                                    {"UNISONO_CODEC", "int4:group=64"},
                                                    {"UNISONO_COMPUTE_THREADS", "3"},
                                                    {"UNISONO_LISTEN_FD", "7"}}));
  EXPECT_EQ(resolved.join_timeout, Milliseconds(1500));
  EXPECT_EQ(resolved.timeout, Milliseconds(2500));
  EXPECT_EQ(resolved.reform_timeout, Milliseconds(50));
  EXPECT_TRUE(resolved.payload_checksum);
  EXPECT_EQ(resolved.streams_per_link, 4u);
  EXPECT_EQ(resolved.tuning_file, "/shared/job.tuning");
  EXPECT_EQ(resolved.codec, Codec::quantized(4, 64));
  EXPECT_EQ(resolved.compute_threads, 3u);
  EXPECT_EQ(resolved.listen_fd, 7);
  expect_refused({}, with(torchrun, {{"UNISONO_JOIN_TIMEOUT_MS", "0"}}), {"UNISONO_JOIN_TIMEOUT_MS is '0'"});
  expect_refused({}, with(torchrun, {{"UNISONO_PAYLOAD_CHECKSUM", "maybe"}}), {"UNISONO_PAYLOAD_CHECKSUM is 'maybe'"});
  expect_refused({}, with(torchrun, {{"UNISONO_STREAMS_PER_LINK", "65"}}), {"UNISONO_STREAMS_PER_LINK"});
  expect_refused({}, with(torchrun, {{"UNISONO_COMPUTE_THREADS", "65"}}), {"UNISONO_COMPUTE_THREADS"});
  expect_refused({}, with(torchrun, {{"UNISONO_CODEC", "int9"}}), {"UNISONO_CODEC is 'int9'", "int2 … int8"});
  expect_refused({}, with(torchrun, {{"UNISONO_TRANSPORT", "rdma"}}), {"transport 'rdma'", "auto, shm, tcp or udp"});
  expect_refused({}, with(torchrun, {{"UNISONO_JOB", std::string(256, 'j')}}), {"256 bytes"});
  Options options;
  options.join_timeout = Milliseconds(-1);
  expect_refused(options, torchrun, {"Options::join_timeout is -1 ms"});
}

TEST(Environment, the_options_of_reconnecting_are_read_and_checked) {
  EXPECT_EQ(resolve({}, torchrun).link_timeout, Milliseconds(10'000));
  EXPECT_EQ(resolve({}, torchrun).resend_memory_per_link, 16u << 20);
  EXPECT_EQ(resolve({}, torchrun).resend_memory, 256u << 20);
  const auto variables = with(
      torchrun,
      {{"UNISONO_LINK_TIMEOUT_MS", "3000"}, {"UNISONO_RESEND_MEMORY_PER_LINK", "0"}, {"UNISONO_RESEND_MEMORY", "1048576"}});
  EXPECT_EQ(resolve({}, variables).link_timeout, Milliseconds(3000));
  EXPECT_EQ(resolve({}, variables).resend_memory_per_link, 0u);
  EXPECT_EQ(resolve({}, variables).resend_memory, 1u << 20);
  Options options;
  options.link_timeout = Milliseconds(700);
  options.resend_memory = 4096;
  EXPECT_EQ(resolve(options, variables).link_timeout, Milliseconds(700));
  EXPECT_EQ(resolve(options, variables).resend_memory, 4096u);
  expect_refused({}, with(torchrun, {{"UNISONO_LINK_TIMEOUT_MS", "0"}}), {"UNISONO_LINK_TIMEOUT_MS is '0'"});
  expect_refused({}, with(torchrun, {{"UNISONO_RESEND_MEMORY", "all"}}), {"UNISONO_RESEND_MEMORY is 'all'"});
  options.resend_memory_per_link = UINT64_MAX;
  expect_refused(options, torchrun, {"Options::resend_memory_per_link is 18446744073709551615"});
}

TEST(Environment, min_world_and_require_majority_are_read_and_checked) {
  EXPECT_EQ(resolve({}, torchrun).min_world, 1u);
  EXPECT_TRUE(resolve({}, torchrun).require_majority);
  const auto limits = with(torchrun, {{"UNISONO_MIN_WORLD", "2"}, {"UNISONO_REQUIRE_MAJORITY", "0"}});
  EXPECT_EQ(resolve({}, limits).min_world, 2u);
  EXPECT_FALSE(resolve({}, limits).require_majority);
  Options options;
  options.min_world = 3;
  options.require_majority = false;
  EXPECT_EQ(resolve(options, limits).min_world, 3u);
  EXPECT_FALSE(resolve(options, torchrun).require_majority);
  EXPECT_FALSE(resolve(options, with(torchrun, {{"UNISONO_REQUIRE_MAJORITY", "1"}})).require_majority);
  expect_refused({}, with(torchrun, {{"UNISONO_MIN_WORLD", "0"}}), {"UNISONO_MIN_WORLD is '0'"});
  expect_refused({}, with(torchrun, {{"UNISONO_REQUIRE_MAJORITY", "some"}}), {"UNISONO_REQUIRE_MAJORITY is 'some'"});
  options.min_world = 0;
  expect_refused(options, torchrun, {"min_world", "is 0"});
  options.min_world = 4097;
  expect_refused(options, torchrun, {"min_world", "is 4097", "world size"});
}

TEST(Environment, record_size_and_folder_are_read_and_checked) {
  EXPECT_EQ(resolve({}, torchrun).record_operations, 256u);
  EXPECT_EQ(resolve({}, torchrun).record_folder, "");
  EXPECT_EQ(resolve({}, with(torchrun, {{"UNISONO_RECORD", "0"}})).record_operations, 0u);
  EXPECT_EQ(resolve({}, with(torchrun, {{"UNISONO_RECORD", "10000"}, {"UNISONO_RECORD_DIR", "/x"}})).record_folder, "/x");
  for (const char* wrong : {"many", "-1", "1048577", "1.5"})
    expect_refused({}, with(torchrun, {{"UNISONO_RECORD", wrong}}), {"UNISONO_RECORD is '", wrong});
}

TEST(RendezvousAddress, is_parsed_and_printed) {
  for (const char* text : {"tcp://host:29500", "tcp://10.0.0.1:1", "tcp://[::1]:65535", "file:///tmp/a b"}) {
    const auto address = parse_rendezvous(text);
    ASSERT_TRUE(address.ok()) << address.status().to_string();
    EXPECT_EQ(address->to_string(), text);
  }
  EXPECT_EQ(parse_rendezvous("file:///tmp/dir/")->path, "/tmp/dir");
}

TEST(RendezvousAddress, malformed_address_is_refused_with_the_reason) {
  for (const char* text :
       {"", "host:1", "tcp://host", "tcp://host:", "tcp://:1", "tcp://host:0", "tcp://host:65536", "tcp://::1:80",
        "tcp://[::1]", "tcp://[::1:80", "tcp://[]:80", "file://tmp/x", "file://", "file:///", "http://host:80"}) {
    EXPECT_EQ(parse_rendezvous(text).status().code(), Code::invalid) << text;
  }
  EXPECT_FALSE(parse_rendezvous(std::string_view("tcp://a\0b:1", 11)).ok());
}

TEST(RendezvousAddress, address_for_listening_may_omit_host_and_port) {
  EXPECT_EQ(parse_rendezvous("tcp://:0", true)->to_string(), "tcp://:0");
  EXPECT_EQ(parse_rendezvous("tcp://[::]:29500", true)->host, "::");
}

TEST(SlurmNodeList, first_host_is_found_in_every_form) {
  EXPECT_EQ(first_slurm_host("node1"), "node1");
  EXPECT_EQ(first_slurm_host("node1,node2"), "node1");
  EXPECT_EQ(first_slurm_host("node[07-09,12],gpu1"), "node07");
  EXPECT_EQ(first_slurm_host("a[3,5]"), "a3");
  EXPECT_EQ(first_slurm_host("rack[1-2]n[001-004].local"), "rack1n001.local");
  EXPECT_EQ(first_slurm_host("n[1"), "");
  EXPECT_EQ(first_slurm_host("n1]"), "");
  EXPECT_EQ(first_slurm_host("n[]"), "");
  EXPECT_EQ(first_slurm_host(""), "");
}

TEST(Environment, datagram_rate_limit_and_checksum_are_read) {
  EXPECT_EQ(resolve({}, torchrun).rate_limit_mbps, 0u);
  EXPECT_EQ(resolve({}, torchrun).datagram_auth, DatagramAuth::mac);
  const auto asked = resolve({}, with(torchrun, {{"UNISONO_RATE_LIMIT_MBPS", "50"}, {"UNISONO_DATAGRAM_CHECKSUM", "1"}}));
  EXPECT_EQ(asked.rate_limit_mbps, 50u);
  EXPECT_EQ(asked.datagram_auth, DatagramAuth::checksum);
  Options options;
  options.rate_limit_mbps = 7;
  options.datagram_checksum = true;
  const auto given = resolve(options, with(torchrun, {{"UNISONO_RATE_LIMIT_MBPS", "50"}}));
  EXPECT_EQ(given.rate_limit_mbps, 7u);
  EXPECT_EQ(given.datagram_auth, DatagramAuth::checksum);
  expect_refused({}, with(torchrun, {{"UNISONO_RATE_LIMIT_MBPS", "10G"}}),
                 {"UNISONO_RATE_LIMIT_MBPS is '10G'", "needed: a number from 0 to 1000000"});
  expect_refused({}, with(torchrun, {{"UNISONO_DATAGRAM_CHECKSUM", "crc"}}),
                 {"UNISONO_DATAGRAM_CHECKSUM is 'crc'", "needed: 1 or 0"});
}

TEST(Environment, induced_loss_requires_udp_and_a_share_below_1) {
  const auto losing = [](const char* transport, const char* share) {
    return with(torchrun, {{"UNISONO_TRANSPORT", transport}, {"UNISONO_LOSE_PER_MILLE", share}});
  };
  EXPECT_EQ(resolve({}, with(torchrun, {{"UNISONO_TRANSPORT", "udp"}})).lose_per_mille, 0u);
  EXPECT_EQ(resolve({}, losing("udp", "999")).lose_per_mille, 999u);
  Options udp;
  udp.transport = "udp";
  EXPECT_EQ(resolve(udp, with(torchrun, {{"UNISONO_LOSE_PER_MILLE", "1"}})).lose_per_mille, 1u);
  EXPECT_EQ(resolve({}, losing("tcp", "0")).lose_per_mille, 0u);
  for (const char* share : {"1000", "-1", "10%", "0.1", "x"}) {
    expect_refused({}, losing("udp", share), {"UNISONO_LOSE_PER_MILLE is '", share, "needed: a number from 0 to 999"});
  }
  for (const char* transport : {"tcp", "auto", "shm"})
    expect_refused({}, losing(transport, "10"), {"UNISONO_LOSE_PER_MILLE is 10", "only the transport udp", transport});
}

}  // namespace
}  // namespace unisono
