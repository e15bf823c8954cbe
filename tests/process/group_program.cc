// The program that runs as a rank: `group_program [COMMAND]...`. A command is `name` or `name:key=value,key=value`. The command
// `listen` reads further commands from the pipe named by GROUP_COMMANDS, one per line, until end-of-file.
//
// The answer to a command is one line: `at=<ns of CLOCK_MONOTONIC> event=<name> code=<code> key=value... message=<text>
// end=<number of the command>`. Long loops print `going seq=<number>` when they have begun. The program exits with 0, or with 3
// if `strict` was given and a command failed.
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "base/concat.h"
#include "group_call.h"
#include "group_command.h"
#include "group_drop.h"
#include "group_elastic.h"
#include "group_sharded.h"
#include "group_training.h"

namespace unisono::testing {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CallPlan plan_of(const Command& command) {
  CallPlan plan;
  plan.collective = command.text("collective", command.name);
  plan.count = command.number("count", 1);
  const auto dtype = dtype_from(command.text("dtype", "f32"));
  const auto op = op_from(command.text("op", "sum"));
  if (!dtype || !op) misuse("dtype or op of " + command.name);
  plan.dtype = *dtype;
  plan.options.op = *op;
  plan.root = static_cast<uint32_t>(command.number("root", command.number("peer", 0)));
  plan.tag = static_cast<uint32_t>(command.number("tag", 0));
  plan.in_place = command.number("in_place", 0) != 0;
  plan.uneven = command.number("uneven", 0) != 0, plan.more_from = command.number("more_from", 0);
  plan.offset = command.number("offset", 0);
  plan.seed = command.number("seed", 1);
  plan.options.timeout = Milliseconds(command.number("timeout", 0));
  plan.options.id = command.number("id", 0);
  plan.options.schedule = static_cast<ScheduleKind>(command.number("schedule", 0));
  plan.options.order = static_cast<Order>(command.number("order", 0));
  plan.options.slice_bytes = command.number("slice", 0);
  const bool automatic = !command.text("automatic", "").empty();
  if (const auto text = command.text(automatic ? "automatic" : "lossy", ""); !text.empty()) {
    // Commas separate the arguments of the command, so option texts have ";" instead of "," and "~" instead of "=".
    auto options = text == "1" ? std::string() : text;
    std::replace(options.begin(), options.end(), ';', ',');
    std::replace(options.begin(), options.end(), '~', '=');
    plan.options.delivery = automatic ? Delivery::automatic : Delivery::lossy;
    plan.options.lossy = DeliveryOptions::parse(options).value();
  }
  if (const auto text = command.text("codec", ""); !text.empty()) plan.options.codec = Codec::parse(text).value();
  plan.tolerance = static_cast<double>(command.number("tolerance", 0));
  plan.feedback = command.number("feedback", 0) != 0;
  return plan;
}

// Returns the schedules that a caller may request for this collective. Automatic is one of them.
std::vector<ScheduleKind> schedules_of(const std::string& collective) {
  constexpr std::pair<const char*, Collective> with_known_sizes[] = {{"all_reduce", Collective::all_reduce},
                                                                     {"reduce_scatter", Collective::reduce_scatter},
                                                                     {"all_gather", Collective::all_gather},
                                                                     {"reduce", Collective::reduce},
                                                                     {"broadcast", Collective::broadcast}};
  std::vector<ScheduleKind> kinds{ScheduleKind::automatic};
  for (const auto& [name, number] : with_known_sizes) {
    if (collective != name) continue;
    for (const auto& facts : schedule_table) {
      if (facts.serves(number) && !facts.needs_host_groups) kinds.push_back(facts.kind);
    }
    return kinds;
  }
  kinds.push_back(ScheduleKind::direct);
  return kinds;
}

bool takes(DType dtype, ReduceOp op) { return !is_floating(dtype) || static_cast<int>(op) < static_cast<int>(ReduceOp::band); }

class Program {
 public:
  // Runs one command. Returns false when the program must end.
  bool run(const std::string& text) {
    const auto command = Command::parse(text);
    if (command.name == "exit") return false;
    if (command.name == "strict") return strict_ = true;
    if (command.name == "listen") return listen();
    const auto number = next_++;
    current_ = number;
    const auto answer = answer_to(command);
    failed_ |= !answer.status.ok();
    std::string message = answer.status.message();
    for (auto& c : message) c = c == '\n' ? ' ' : c;
    put(concat("at=", now_ns(), " event=", command.name, " code=", name(answer.status.code()), answer.details,
               " message=", message, " end=", number, "\n"));
    return true;
  }
  int exit_code() const { return strict_ && failed_ ? 3 : 0; }

 private:
  bool listen() {
    const char* path = std::getenv("GROUP_COMMANDS");
    if (path == nullptr) misuse("listen without GROUP_COMMANDS");
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      if (!run(line)) return false;
    }
    return false;
  }

  Answer answer_to(const Command& command) {
    static const std::map<std::string, Answer (Program::*)(const Command&)> own = {
        {"join", &Program::join},       {"leave", &Program::leave},     {"members", &Program::members},
        {"reform", &Program::reform},   {"split", &Program::split},     {"start", &Program::start},
        {"wait", &Program::wait},       {"report", &Program::report},   {"matrix", &Program::matrix},
        {"flights", &Program::flights}, {"threads", &Program::threads}, {"usage", &Program::usage},
        {"pin", &Program::pin},         {"signal", &Program::signal},   {"messages", &Program::messages},
        {"big", &Program::big},         {"links", &Program::links},     {"counters", &Program::counters},
        {"dump", &Program::dump}};
    const auto found = own.find(command.name);
    if (found != own.end()) return (this->*found->second)(command);
    const auto begun = [&] { put(concat("going seq=", current_, "\n")); };
    if (command.name.starts_with("train")) return training_.run(group(command), command, begun);
    if (command.name.starts_with("sharded_")) return sharded_training_.run(group(command), command, begun);
    if (command.name.starts_with("elastic_")) return elastic_.run(command);
    if (command.name.starts_with("drop_")) return drop_training_.run(group(command), command, begun);
    return collective(command);
  }

  Group& group(const Command& command) {
    const auto found = groups_.find(command.text("group", "world"));
    if (found == groups_.end()) misuse(command.name + " before join");
    return found->second;
  }

  Answer join(const Command& command) {
    Options options;
    options.join_running = command.number("running", 0) != 0;
    options.join_timeout = Milliseconds(command.number("timeout", 60'000));
    options.rendezvous = command.text("rendezvous");
    auto joined = Group::join(options);
    if (!joined) return {joined.status(), {}};
    const auto name = command.text("name", "world");
    groups_.insert_or_assign(name, std::move(*joined));
    return membership(groups_.at(name));
  }
  Answer leave(const Command&) {
    groups_.clear();
    pending_.clear();
    return {};
  }
  Answer membership(const Group& group) {
    return Answer()
        .add("rank", group.rank())
        .add("world", group.world_size())
        .add("epoch", group.epoch())
        .add("pid", ::getpid())
        .add("datagram_bytes", group.datagram_bytes());
  }
  // Returns the link speeds in full precision.
  Answer links(const Command& command) {
    const auto speeds = group(command).link_speeds();
    Answer answer;
    for (const auto& [name, kind] : {std::pair("inside", speeds.inside_hosts), std::pair("between", speeds.between_hosts)}) {
      char numbers[96];
      std::snprintf(numbers, sizeof(numbers), "%a/%a/%s", kind.latency_us, kind.bytes_per_us,
                    kind.measured ? "measured" : "starting");
      answer.add(name, std::string(numbers));
    }
    return answer;
  }
  Answer members(const Command& command) {
    Answer answer = membership(group(command));
    std::string list;
    for (const auto& m : group(command).members()) {
      auto link = m.link;
      for (auto& c : link) c = c == ' ' ? '_' : c;
      list += concat(m.rank, "/", m.host, "/", m.pid, "/", link, ";");
    }
    return answer.add("members", list);
  }
  Answer split(const Command& command) {
    std::vector<uint32_t> ranks;
    for (const auto rank : command.numbers("ranks", "0")) ranks.push_back(static_cast<uint32_t>(rank));
    auto made = group(command).split(ranks);
    if (!made) return {made.status(), {}};
    groups_.insert_or_assign(command.text("name", "part"), *made);
    return membership(*made);
  }
  Answer reform(const Command& command) {
    const auto began = now_ns();
    auto outcome = group(command).reform();
    const auto took_us = (now_ns() - began) / 1000;
    if (!outcome) return Answer{outcome.status(), {}}.add("us", took_us);
    const auto pids = [](const std::vector<Member>& members) {
      std::string list;
      for (const auto& m : members) list += concat(list.empty() ? "" : "/", m.rank, ":", m.pid);
      return list;
    };
    return Answer()
        .add("rank", outcome->rank)
        .add("world", outcome->world_size)
        .add("epoch", outcome->epoch)
        .add("us", took_us)
        .add("lost", pids(outcome->lost))
        .add("joined", pids(outcome->joined));
  }

  static Answer checked(Call& call, const Result<Report>& outcome) {
    if (!outcome) return {outcome.status(), {}};
    const auto wrong = call.check();
    if (!wrong.empty()) return {Status(Code::internal, "WRONG RESULT: " + std::string(outcome->operation) + ": " + wrong), {}};
    return {};
  }

  // Runs a call once. With iters=, repeats it up to that many times, until one fails.
  Answer collective(const Command& command) {
    Call call(group(command), plan_of(command));
    const auto iterations = command.number("iters", 1);
    const bool check_all = command.number("check", iterations == 1) != 0;
    const auto began = now_ns();
    Answer answer;
    uint64_t done = 0, noted = 0;
    Report last;
    for (; done < iterations; ++done) {
      call.start();
      const auto outcome = call.work().wait();
      if (!outcome || check_all || done == 0 || done + 1 == iterations) answer = checked(call, outcome);
      if (!answer.status.ok()) break;
      last = *outcome;
      noted += last.link_note.empty() ? 0 : 1;
      if (done == 0 && iterations > 1) put(concat("going seq=", current_, "\n"));
    }
    answer.add("us", (now_ns() - began) / 1000).add("done", done).add("noted", noted);
    if (answer.status.ok())
      answer.add("schedule", last.schedule).add("contributors", last.contributors).add("sent", last.sent_bytes);
    if (command.number("hash", 0) != 0) answer.add("hash", call.hash());
    if (answer.status.ok()) answer.add("passes", last.passes);
    if (last.delivery != nullptr) add_delivery(answer, *last.delivery);
    return answer;
  }
  // Adds the delivery counts of this rank's last operation to the answer.
  static void add_delivery(Answer& answer, const DeliveryReport& delivery) {
    uint64_t expected = 0, missing = 0, repaired = 0, cut = 0;
    for (const auto& stream : delivery.contribute.streams) {
      expected += stream.expected;
      missing += stream.missing;
      repaired += stream.repaired;
      cut += stream.end == DeliveryReport::End::soft || stream.end == DeliveryReport::End::hard;
    }
    answer.add("expected", expected)
        .add("missing", missing)
        .add("repaired", repaired)
        .add("cut", cut)
        .add("full", delivery.full_ranges)
        .add("short", delivery.short_ranges);
    answer.add("learning", delivery.contribute.learning).add("effective", delivery.effective_contributors);
  }

  Answer start(const Command& command) {
    auto call = std::make_unique<Call>(group(command), plan_of(command));
    call->start();
    pending_[command.text("name", "call")] = std::move(call);
    return {};
  }
  // Waits for the operation that `start` has begun. `ms` is the time limit; with 0, it only checks.
  Answer wait(const Command& command) {
    auto& call = *pending_.at(command.text("name", "call"));
    const auto began = now_ns();
    const auto outcome =
        command.arguments.contains("ms") ? call.work().wait_for(Milliseconds(command.number("ms", 0))) : call.work().wait();
    const bool done = call.work().done();
    return checked(call, outcome).add("done", done).add("us", (now_ns() - began) / 1000);
  }
  Answer report(const Command& command) {
    auto& call = *pending_.at(command.text("name", "call"));
    const auto r = call.work().report();
    return Answer()
        .add("contributors", r.contributors)
        .add("world", r.world_size)
        .add("sent", r.sent_bytes)
        .add("received", r.received_bytes)
        .add("total_us", r.total_us)
        .add("last", r.last_rank)
        .add("schedule", r.schedule);
  }

  // Runs every collective with every type, operation and given size: in place and not in place, aligned and not aligned.
  Answer matrix(const Command& command) {
    const auto counts = command.numbers("counts", "0/1/2/7/33/1000");
    const auto world = group(command).world_size();
    uint64_t seed = command.number("seed", 1);
    uint64_t cases = 0;
    Status bad;
    const auto try_one = [&](CallPlan plan) {
      if (!bad.ok()) return;
      plan.seed = ++seed;
      plan.offset = seed % 2 == 0 ? 0 : seed % 8;
      const auto schedules = schedules_of(plan.collective);
      plan.options.schedule = schedules[seed / 2 % schedules.size()];
      if (plan.options.schedule != ScheduleKind::automatic) plan.options.order = Order::any;
      Call call(group(command), plan);
      call.start();
      auto status = checked(call, call.work().wait()).status;
      ++cases;
      if (status.ok()) return;
      bad = Status(status.code(),
                   concat(plan.collective, " ", name(plan.dtype), " ", name(plan.options.op), " count ", plan.count, " root ",
                          plan.root, " schedule ", static_cast<int>(plan.options.schedule), plan.in_place ? " in place" : "",
                          plan.uneven ? " uneven" : "", " seed ", plan.seed, ": ", status.message()));
    };
    for (int type = 0; type < dtype_count; ++type) {
      for (const auto count : counts) {
        CallPlan plan{.count = count, .dtype = static_cast<DType>(type), .root = static_cast<uint32_t>((seed + count) % world)};
        for (int op = 0; op < reduce_op_count; ++op) {
          plan.options.op = static_cast<ReduceOp>(op);
          if (!takes(plan.dtype, plan.options.op)) continue;
          plan.in_place = (op + type) % 2 == 0;
          plan.uneven = op % 2 == 0;
          for (const auto* collective : {"all_reduce", "reduce_scatter", "reduce"}) plan.collective = collective, try_one(plan);
        }
        plan.options.op = ReduceOp::sum;
        for (const bool flag : {false, true}) {
          plan.uneven = flag;
          plan.in_place = flag;
          plan.collective = "all_gather", try_one(plan);
          plan.in_place = false;
          for (const auto* collective : {"gather", "scatter", "all_to_all", "broadcast"})
            plan.collective = collective, try_one(plan);
        }
        plan.uneven = false;
        plan.in_place = true;
        plan.collective = "all_to_all", try_one(plan);
      }
    }
    return Answer{bad, {}}.add("cases", cases);
  }

  // Runs several calls at once, and waits for them in reverse order. With ids=1, each rank starts them in an order of its own.
  Answer flights(const Command& command) {
    const auto n = command.number("n", 8);
    const bool ids = command.number("ids", 0) != 0;
    const char* kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"};
    std::map<uint64_t, std::unique_ptr<Call>> calls;
    for (uint64_t i = 0; i < n; ++i) {
      const auto which = ids ? (i + group(command).rank() * 3) % n : i;
      CallPlan plan{.collective = kinds[which % 6],
                    .count = 1 + which * which * command.number("step", 997),
                    .seed = which + command.number("seed", 1)};
      if (ids) plan.options.id = 1 + which;
      calls[which] = std::make_unique<Call>(group(command), plan);
      calls[which]->start();
    }
    for (auto it = calls.rbegin(); it != calls.rend(); ++it) {
      const auto answer = checked(*it->second, it->second->work().wait());
      if (!answer.status.ok()) return answer;
    }
    return Answer().add("cases", n);
  }

  // Runs collectives in two threads at once. Either both threads use one group, with ids; or they use two sub-groups of all
  // ranks, one in ascending and one in descending order.
  Answer threads(const Command& command) {
    const auto world = group(command).world_size();
    std::vector<uint32_t> up, down;
    for (uint32_t rank = 0; rank < world; ++rank) up.push_back(rank), down.push_back(world - 1 - rank);
    auto first = group(command).split(up), second = group(command).split(down);
    if (!first || !second) return {first ? second.status() : first.status(), {}};
    const bool ids = command.number("ids", 0) != 0;
    const auto iterations = command.number("iters", 100);
    Status outcome[2];
    const auto work = [&](int which) {
      Group mine = ids ? group(command) : which == 0 ? *first : *second;
      for (uint64_t i = 0; i < iterations && outcome[which].ok(); ++i) {
        CallPlan plan{.collective = (i + static_cast<uint64_t>(which)) % 3 == 0 ? "all_gather" : "all_reduce",
                      .count = 1 + i * command.number("step", 37),
                      .seed = 2 * i + static_cast<uint64_t>(which)};
        if (ids) plan.options.id = 100 + 2 * i + static_cast<uint64_t>(which);
        Call call(mine, plan);
        call.start();
        outcome[which] = checked(call, call.work().wait()).status;
      }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    return {outcome[0].ok() ? outcome[1] : outcome[0], {}};
  }

  // Every rank sends to the next rank and receives from the previous one. It uses several tags, and each tag several times.
  Answer messages(const Command& command) {
    const auto world = group(command).world_size(), rank = group(command).rank();
    std::vector<std::unique_ptr<Call>> calls;
    for (uint32_t i = 0; i < 6; ++i) {
      CallPlan plan{.count = command.number("count", 1000) * (i + 1), .tag = i / 2, .seed = i};
      plan.collective = "recv", plan.root = (rank + world - 1) % world;
      calls.push_back(std::make_unique<Call>(group(command), plan));
      calls.back()->start();
      plan.collective = "send", plan.root = (rank + 1) % world;
      calls.push_back(std::make_unique<Call>(group(command), plan));
      calls.back()->start();
    }
    for (auto& call : calls) {
      const auto answer = checked(*call, call->work().wait());
      if (!answer.status.ok()) return answer;
    }
    return {};
  }

  // Reduces a tensor that has more than 2^32 bytes. Works in place, so it needs no second tensor of that size.
  Answer big(const Command& command) {
    const auto count = command.number("count", 0);
    const auto world = group(command).world_size(), rank = group(command).rank();
    const std::unique_ptr<std::byte[]> bytes(new std::byte[count]);
    fill(DType::u8, bytes.get(), count, rank, 1);
    const auto began = now_ns();
    const auto outcome = group(command).all_reduce(Tensor(bytes.get(), count, DType::u8));
    const auto took_us = (now_ns() - began) / 1000;
    if (!outcome) return {outcome.status(), {}};
    const auto wanted = reduced(DType::u8, ReduceOp::sum, value_period, world, 1);
    for (size_t at = 0; at < count; at += value_period) {
      const auto wrong = difference(DType::u8, bytes.get() + at, wanted.data(), std::min(value_period, count - at));
      if (!wrong.empty()) return {Status(Code::internal, concat("WRONG RESULT: from ", at, " on, ", wrong)), {}};
    }
    return Answer().add("us", took_us).add("schedule", outcome->schedule).add("sent", outcome->sent_bytes);
  }

  Answer counters(const Command& command) {
    const auto c = group(command).counters();
    Answer answer = Answer()
                        .add("begun", c.begun)
                        .add("ended", c.ended)
                        .add("noted", c.note.empty() ? 0 : 1)
                        .add("kinds", c.collectives.size());
    for (const auto& l : c.links) {
      const auto rank = std::to_string(l.rank);
      answer.add(("link" + rank).c_str(), l.transport)
          .add(("sent" + rank).c_str(), l.sent_bytes)
          .add(("got" + rank).c_str(), l.received_bytes);
    }
    return answer;
  }
  Answer dump(const Command& command) { return {group(command).dump_record(command.text("path", "")), {}}; }

  Answer usage(const Command&) {
    rusage use{};
    ::getrusage(RUSAGE_SELF, &use);
    const auto us = [](const timeval& t) { return int64_t{t.tv_sec} * 1'000'000 + t.tv_usec; };
    return Answer()
        .add("cpu_us", us(use.ru_utime) + us(use.ru_stime))
        .add("voluntary", use.ru_nvcsw)
        .add("involuntary", use.ru_nivcsw);
  }
  Answer pin(const Command& command) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(command.number("cpu", 0), &set);
    if (::sched_setaffinity(0, sizeof(set), &set) != 0) return {Status(Code::unavailable, "sched_setaffinity"), {}};
    return {};
  }
  Answer signal(const Command& command) {
    ::raise(static_cast<int>(command.number("number", SIGSTOP)));
    return {};
  }

  std::map<std::string, Group> groups_;
  std::map<std::string, std::unique_ptr<Call>> pending_;
  Training training_;
  DropTraining drop_training_;
  ShardedTraining sharded_training_;
  ElasticRunner elastic_;
  uint64_t next_ = 0, current_ = 0;
  bool strict_ = false, failed_ = false;
};

}  // namespace
}  // namespace unisono::testing

int main(int argc, char** argv) {
  unisono::testing::Program program;
  for (int i = 1; i < argc; ++i) {
    if (!program.run(argv[i])) break;
  }
  return program.exit_code();
}
