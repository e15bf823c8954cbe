#include "cli/bench/bench_options.h"

#include <fmt/format.h>

#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/text.h"
#include "cli/launch/launch_links.h"

namespace unisono::cli {

const CommandLineText bench_text{.name = "unisono bench",
                                 .usage = "unisono bench COLLECTIVE... -n COUNT [OPTIONS]",
                                 .description =
                                     "Measures collectives over a range of sizes, and checks every result.\n\n"
                                     "Collectives: all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, "
                                     "all-to-all, send-recv, barrier.",
                                 .footer = R"(Examples:
  unisono bench all-reduce -n 4                                   1 KiB to 64 MiB, on this machine
  unisono bench all-reduce -n 2 -b 8 -e 1G -f 2 --transport tcp   sizes as nccl-tests takes them
  unisono bench all-gather broadcast -n 4 --sizes 64K,1M -d bf16
  unisono bench all-reduce --hosts a:2,b:2 --output result.json --plot result.svg
  unisono bench --compare old.json new.json --fail-above 1.05
  unisono bench all-reduce -n 4 --rate 100M --delay 5ms --loss 1%
  unisono bench all-reduce -n 4 --transport udp --loss 1% --delivery lossy:loss_budget=0.2
  unisono bench all-reduce -n 4 --kill-rank 1@2s --stop-rank 2@3s
  torchrun --nproc-per-node 4 --no-python unisono bench all-reduce   ranks from the environment
  mpirun -np 4 unisono bench all-reduce                              likewise, Open MPI on one host

Columns are those of nccl-tests, with p50 and p99 over the iterations: time in microseconds, algbw = size / time,
busbw = algbw * 2(n-1)/n for all-reduce, (n-1)/n for reduce-scatter, all-gather, all-to-all, gather and scatter, 1 for
the others. #wrong counts elements of all ranks that differ from the scalar reference in any bit. wire: bytes that a
rank sent in one call, mean over ranks; contrib: ranks whose data is in the result. With --delivery lossy or
automatic, missing: share of all contributions that were not in the sums of the timed calls; calls that are checked
repair everything.

Letters of nccl-tests mean the same here: -b -e -f -i sizes, -w warm-up calls, -c calls that are checked, -o
operation, -d type, -r root, -a how ranks are combined, -J file for JSON, -T timeout (in seconds), -z 1 a barrier
before each call and 0 none. Two differ: -n is the number of ranks, as for mpirun, and --iters that of the timed calls; the
collective is a word, not a program.

With -n or --hosts the command starts its ranks itself, unless RANK is set; then it is one rank of the group that the
environment describes (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; Slurm's, Open MPI's and MPICH's variables
likewise). MPICH's mpirun, and Open MPI's on several hosts, give no rendezvous address: add --rendezvous.

--compare takes what --output wrote, one or several runs in each file, and compares medians. A change counts only if the
middle halves of the times (25th to 75th percentile) do not overlap. --fail-above 1.05: exit code 1 if a row is slower
by more than that, beyond its spread.

--rate, --loss and --delay give each rank a network of its own, with a cable to a switch that this command emulates:
packets of 1500 bytes wait for the sender's cable and the receiver's, cross them at the rate, and are lost or late as
asked. This needs /dev/net/tun, and root or user name spaces; without them it is refused. It leaves nothing behind.

--kill-rank, --stop-rank and --resume-rank (RANK@TIME, since the group formed; each may be given several times) run
one collective of one size [1M] repeatedly, and continue for --row-time after the last fault. Each failure is
reported: after how long, with which error, and how long the re-forming took. A stopped rank is missed when an
operation's time is over [-T 5s then].

Exit code: 0 if all went well, also if ranks died on request and the others continued; 1 if a value was wrong, an
operation failed or a row was slower than allowed; 2 for a wrong command line; else as for 'unisono launch'.)"};

namespace {

constexpr uint64_t fault_run_bytes = 1u << 20;  // default size for a fault run
constexpr const char* fault_run_timeout = "5s";

void add_fault_options(CLI::App& app, BenchOptions& options) {
  app.add_option("--kill-rank", options.kill, "kill this rank then; the others re-form and continue")
      ->type_name("RANK@TIME")
      ->allow_extra_args(false);
  app.add_option("--stop-rank", options.stop, "stop this rank then: it stays alive but silent")
      ->type_name("RANK@TIME")
      ->allow_extra_args(false);
  app.add_option("--resume-rank", options.resume, "resume a stopped rank then")
      ->type_name("RANK@TIME")
      ->allow_extra_args(false);
  app.add_flag("--no-reform", options.no_reform, "end at the first failure, instead of re-forming");
  add_link_options(app, options.launch.links);
}

void add_subject_options(CLI::App& app, BenchOptions& options) {
  set_choices(*app.add_option("collective", options.collectives, "what to measure; default all-reduce")->type_name(""),
              collective_names());
  auto* list = app.add_option("--collective", options.collective, "the same as an option: one or several between commas")
                   ->type_name("LIST");
  set_choices(*list, collective_names());
  app.add_option("-b,--begin", options.sizes.begin, "smallest size [1K]")->type_name("SIZE");
  app.add_option("-e,--end", options.sizes.end, "largest size [64M]")->type_name("SIZE");
  app.add_option("-f,--factor", options.sizes.factor, "factor from one size to the next [4]")->type_name("N");
  app.add_option("-i,--step", options.sizes.step, "bytes from one size to the next, instead of -f")->type_name("SIZE");
  app.add_option("--sizes", options.sizes.list, "these sizes instead: 1K,64K,1M")->type_name("LIST");
  add_choice(app, options.dtype,
             {.names = "-d,--dtype", .value = "TYPE", .meaning = "element type", .words = dtype_names(), .fallback = "f32"});
  add_choice(app, options.op,
             {.names = "-o,--op", .value = "OP", .meaning = "operation", .words = reduce_op_names(), .fallback = "sum"});
  app.add_option("-r,--root", options.root, "root of rooted collectives [0]")->type_name("RANK");
}

void add_timing_options(CLI::App& app, BenchOptions& options) {
  app.add_option("--iters", options.iterations, "timed calls per row [as many as fit in --row-time, 10 to 2000]")
      ->type_name("N");
  app.add_option("--row-time", options.row_time, "time per row, without --iters [500ms]")->type_name("TIME");
  app.add_option("-w,--warmup", options.warmup, "calls before the clock starts [2]")->type_name("N");
  app.add_option("-c,--check", options.checks, "calls per row that are checked against the reference; 0: none [1]")
      ->type_name("N");
  auto* across =
      app.add_option("-a,--across", options.across, "time of an iteration: 0 rank 0, 1 mean, 2 min, 3 max of the ranks [1]")
          ->type_name("0-3");
  set_choices(*across, {"0", "1", "2", "3"});
  auto* blocking =
      app.add_option("-z,--blocking", options.blocking, "1: a barrier before each timed call; 0: none [1]")->type_name("0-1");
  set_choices(*blocking, {"0", "1"});
}

void add_call_options(CLI::App& app, BenchOptions& options) {
  add_choice(app, options.order,
             {.names = "--order",
              .value = "ORDER",
              .meaning = "order of additions; strict: rank order",
              .words = order_names(),
              .fallback = "auto"});
  add_choice(app, options.schedule,
             {.names = "--schedule",
              .value = "NAME",
              .meaning = "schedule, which decides which rank adds what",
              .words = schedule_names(),
              .fallback = "auto"});
  app.add_option(
         "--codec", options.codec,
         "how elements are encoded: int2 to int8, f16, bf16, int8/int4:group=64, … [plain]; also measures without, to compare")
      ->type_name("CODEC");
  app.add_option(
         "--delivery", options.delivery,
         "reliable, or lossy or automatic with or without options: lossy:loss_budget=0.2; needs --transport udp [reliable]")
      ->type_name("DELIVERY");
  app.add_option("--slice", options.slice, "bytes of one slice [automatic]")->type_name("SIZE");
  app.add_option("--streams", options.streams, "TCP connections per pair of hosts [automatic]")->type_name("N");
  app.add_option("-T,--timeout", options.timeout, "deadline of each operation [60s; with --stop-rank 5s]")->type_name("TIME");
}

void add_result_options(CLI::App& app, BenchOptions& options) {
  add_output_options(app, options.results, "-J,--output");
  app.add_option("--plot", options.plot, "plot time and bus bandwidth by size to FILE, as SVG")->type_name("FILE");
  app.add_option("--compare", options.compare, "two files that --output wrote, the old one first: compare instead of measuring")
      ->type_name("FILE")
      ->expected(2);
  app.add_option("--fail-above", options.fail_above, "with --compare: exit code 1 if new / old is above this in a row")
      ->type_name("RATIO");
  add_choice(
      app, options.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
}

void add_short_forms(CLI::App& app, BenchOptions& options) {
  app.add_flag_callback(
      "--no-check", [&options] { options.checks = 0; }, "the same as -c 0");
  app.add_flag_callback(
      "--no-barrier", [&options] { options.blocking = 0; }, "the same as -z 0");
  app.add_flag("--in-place", options.only_in_place, "measure in place only, where the collective can work in place");
}

Status set_collectives(const BenchOptions& options, BenchPlan& plan) {
  for (const auto& name : options.collectives) {
    const auto collective = parse_collective(name);
    if (!collective.ok()) return collective.status();
    plan.collectives.push_back(*collective);
  }
  for (const auto& name : options.collective.empty() ? std::vector<std::string>() : split_list(options.collective)) {
    const auto collective = of_option("--collective", parse_collective(name));
    if (!collective.ok()) return collective.status();
    plan.collectives.push_back(*collective);
  }
  if (plan.collectives.empty()) plan.collectives.push_back(Collective::all_reduce);
  return {};
}

Status set_faults(const BenchOptions& options, BenchPlan& plan) {
  const std::pair<FaultKind, const std::vector<std::string>&> all[] = {
      {FaultKind::kill, options.kill}, {FaultKind::stop, options.stop}, {FaultKind::resume, options.resume}};
  for (const auto& [kind, texts] : all) {
    for (const auto& text : texts) {
      const auto fault = parse_fault(kind, text);
      if (!fault.ok()) return fault.status();
      plan.faults.push_back(*fault);
    }
  }
  if (plan.faults.empty())
    return options.no_reform ? Status(Code::invalid, "--no-reform needs a --kill-rank or --stop-rank") : Status();
  const auto& sizes = options.sizes;
  const bool asked = !sizes.list.empty() || sizes.begin != SizeRange{}.begin || sizes.end != SizeRange{}.end;
  if (!asked) plan.sizes = {fault_run_bytes};
  const auto& collective = facts_of(plan.collectives.front());
  if (plan.collectives.size() > 1 || plan.sizes.size() > 1)
    return Status(Code::invalid, "faults are injected into one collective of one size: give --sizes 1M");
  const bool fits =
      !collective.has_root && collective.collective != Collective::barrier && collective.collective != Collective::send_recv;
  if (!fits)
    return Status(Code::invalid,
                  fmt::format("faults are injected into all-reduce, reduce-scatter, all-gather or all-to-all, not into {}",
                              collective.name));
  if (options.iterations > 0)
    return Status(Code::invalid,
                  "--iters has no effect with faults, which are injected by time: --row-time says how long the run continues "
                  "after the last");
  if (!options.launch.hosts.empty()) return Status(Code::invalid, "faults are for ranks on this host alone, not for --hosts");
  if (!options.plot.empty()) return Status(Code::invalid, "--plot draws times by size; with faults there is one size");
  return {};
}

// Parses the options whose values are times or sizes.
Status set_measures(const BenchOptions& options, BenchPlan& plan) {
  const bool waits_for_stopped = !options.stop.empty() && options.timeout == BenchOptions{}.timeout;
  auto sizes = parse_sizes(options.sizes);
  const auto timeout = of_option("--timeout", parse_duration(waits_for_stopped ? fault_run_timeout : options.timeout));
  const auto row_time = of_option("--row-time", parse_duration(options.row_time));
  const auto slice = of_option("--slice", parse_bytes(options.slice.empty() ? "0" : options.slice));
  for (const auto& status : {sizes.status(), timeout.status(), row_time.status(), slice.status()}) {
    if (!status.ok()) return status;
  }
  if (*timeout < millisecond)
    return Status(Code::invalid, fmt::format("-T {}: an operation needs a millisecond at least", options.timeout));
  plan.sizes = *std::move(sizes);
  plan.run.call.timeout = Milliseconds(*timeout / millisecond);
  plan.run.call.slice_bytes = *slice;
  plan.run.row_time = *row_time;
  plan.group.timeout = plan.run.call.timeout;
  return {};
}

Status check_codec(const Codec& codec, DType dtype, ReduceOp op, const std::vector<Collective>& collectives) {
  if (codec.is_plain()) return {};
  const auto refuse = [&](std::string_view why) {
    return Status(Code::invalid, fmt::format("--codec {}: {}", codec.to_string(), why));
  };
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16)
    return refuse("only f32, f16 and bf16 elements are encoded");
  if (op != ReduceOp::sum && op != ReduceOp::avg) return refuse("only sums and averages are encoded");
  for (const auto collective : collectives) {
    const bool takes_it = collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
                          collective == Collective::all_gather || collective == Collective::all_to_all;
    if (!takes_it)
      return refuse(fmt::format("{} takes no codec; all-reduce, reduce-scatter, all-gather and all-to-all do",
                                facts_of(collective).name));
  }
  return {};
}

Status set_call(const BenchOptions& options, BenchPlan& plan) {
  const auto dtype = of_option("--dtype", parse_dtype(options.dtype));
  const auto op = of_option("--op", parse_reduce_op(options.op));
  const auto order = of_option("--order", parse_order(options.order));
  const auto schedule = of_option("--schedule", parse_schedule(options.schedule));
  for (const auto& status : {dtype.status(), op.status(), order.status(), schedule.status()}) {
    if (!status.ok()) return status;
  }
  const bool bits = *op == ReduceOp::band || *op == ReduceOp::bor || *op == ReduceOp::bxor;
  if (bits && is_floating(*dtype))
    return Status(Code::invalid, fmt::format("-o {} takes whole numbers, not {}", options.op, options.dtype));
  if (options.across < 0 || options.across > 3)
    return Status(Code::invalid, fmt::format("-a {}: expected 0 to 3", options.across));
  if (options.blocking < 0 || options.blocking > 1)
    return Status(Code::invalid, fmt::format("-z {}: expected 0 or 1", options.blocking));
  const auto codec = Codec::parse(options.codec);
  if (!codec.ok()) return Status(Code::invalid, fmt::format("--codec {}: {}", options.codec, codec.status().message()));
  plan.run.data.codec = plan.run.call.codec.emplace(*codec);
  if (auto status = check_codec(*codec, *dtype, *op, plan.collectives); !status.ok()) return status;
  plan.run.data.dtype = *dtype;
  plan.run.data.op = *op;
  plan.run.data.root = options.root;
  plan.run.call.op = *op;
  plan.run.call.order = *order;
  plan.run.call.schedule = *schedule;
  return {};
}

// Parses the value of --delivery, such as "reliable", "automatic" or "lossy:loss_budget=0.2,deadline=20ms".
Status set_delivery(const BenchOptions& options, BenchPlan& plan) {
  const auto& text = options.delivery;
  const auto refuse = [&](std::string_view why) { return Status(Code::invalid, fmt::format("--delivery {}: {}", text, why)); };
  const auto end = text.find(':');
  const auto word = text.substr(0, end);
  auto& call = plan.run.call;
  if (word == "reliable" && end == std::string::npos) return {};
  if (word == "lossy") call.delivery = Delivery::lossy;
  else if (word == "automatic") call.delivery = Delivery::automatic;
  else return refuse("expected reliable, lossy or automatic, the last two perhaps with options: lossy:loss_budget=0.2");
  const auto parsed =
      DeliveryOptions::parse(end == std::string::npos ? std::string_view() : std::string_view(text).substr(end + 1));
  if (!parsed.ok()) return refuse(parsed.status().message());
  call.lossy = *parsed;
  if (plan.collectives != std::vector{Collective::all_reduce}) return refuse("only all-reduce can be lossy");
  if (!options.kill.empty() || !options.stop.empty() || !options.resume.empty())
    return refuse("faults can be injected into reliable calls only");
  return {};
}

}  // namespace

void add_bench_options(CLI::App& app, BenchOptions& options) {
  add_subject_options(app, options);
  add_timing_options(app, options);
  add_call_options(app, options);
  add_result_options(app, options);
  add_short_forms(app, options);
  add_fault_options(app, options);
  add_launch_options(app, options.launch);
}

Result<BenchPlan> make_bench_plan(const BenchOptions& options) {
  BenchPlan plan;
  for (const auto set : {set_collectives, set_measures, set_call, set_delivery, set_faults}) {
    if (auto status = set(options, plan); !status.ok()) return status;
  }
  if (auto status = check_progress(options.progress); !status.ok()) return status;
  const auto limits = make_limits(options.launch);
  if (!limits.ok()) return limits.status();
  plan.limits = *limits;
  plan.run.iterations = options.iterations;
  plan.run.warmup = options.warmup;
  plan.run.checks = options.checks;
  plan.run.barrier = options.blocking == 1;
  plan.run.across = static_cast<Across>(options.across);
  plan.group.streams_per_link = options.streams;
  return plan;
}

}  // namespace unisono::cli
