#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cli/bench_table.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/monotonic.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "cli/verdict.h"

namespace unisono::cli {
namespace {

const CommandLineText help_text{
    .name = "unisono bench",
    .usage = "unisono bench COLLECTIVE... -n COUNT [OPTIONS]",
    .description = "Measures collectives over a range of sizes, and checks every result.\n\n"
                   "Collectives: all-reduce, reduce-scatter, all-gather, broadcast, reduce, gather, scatter, all-to-all, send-recv, barrier.",
    .footer = R"(Examples:
  unisono bench all-reduce -n 4                                   1 KiB to 64 MiB, on this machine
  unisono bench all-reduce -n 2 -b 8 -e 1G -f 2 --transport tcp   as nccl-tests would
  unisono bench all-gather broadcast -n 4 --sizes 64K,1M -d bf16
  unisono bench all-reduce --hosts a:2,b:2 --json result.json
  torchrun --nproc-per-node 4 --no-python unisono bench all-reduce   ranks from the environment

Columns are those of nccl-tests, with p50 and p99 over the iterations: time in microseconds, algbw = size / time,
busbw = algbw * 2(n-1)/n for all-reduce, (n-1)/n for reduce-scatter, all-gather, all-to-all, gather and scatter, 1 for the others.
#wrong counts elements of all ranks that differ from the scalar reference in any bit.

With -n or --hosts the command starts its ranks itself, unless RANK is set; then it is one rank of the group that the
environment describes (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; Slurm's and Open MPI's variables likewise).

Exit code: 0 if all went well, 1 if a value was wrong or an operation failed, 2 for a wrong command line, else as for
'unisono launch'.)"};

struct BenchOptions {
  std::vector<std::string> collectives;
  std::string collective;      // -c
  SizeRange sizes;
  std::string dtype = "f32";
  std::string op = "sum";
  std::string order = "auto";
  std::string schedule = "auto";
  std::string timeout = "60s";
  std::string row_time = "500ms";
  std::string json;
  std::string progress = "auto";
  std::string slice;
  uint32_t root = 0;
  uint32_t iterations = 0;
  uint32_t warmup = 2;
  uint32_t streams = 0;
  int across = 1;
  bool no_check = false;
  bool no_barrier = false;
  bool only_in_place = false;
  LaunchOptions launch;
};

void add_bench_options(CLI::App& app, BenchOptions& options) {
  set_choices(*app.add_option("collective", options.collectives, "what to measure; default all-reduce")->type_name(""), collective_names());
  auto* list = app.add_option("-c,--collective", options.collective, "the same as an option: one or several between commas")->type_name("LIST");
  set_choices(*list, collective_names());
  app.add_option("-b,--begin", options.sizes.begin, "smallest size [1K]")->type_name("SIZE");
  app.add_option("-e,--end", options.sizes.end, "largest size [64M]")->type_name("SIZE");
  app.add_option("-f,--factor", options.sizes.factor, "from one size to the next [4]")->type_name("N");
  app.add_option("-i,--step", options.sizes.step, "bytes from one size to the next, instead of -f")->type_name("SIZE");
  app.add_option("--sizes", options.sizes.list, "these sizes instead: 1K,64K,1M")->type_name("LIST");
  add_choice(app, options.dtype, {.names = "-d,--dtype", .value = "TYPE", .meaning = "element type", .words = dtype_names(), .fallback = "f32"});
  add_choice(app, options.op, {.names = "-o,--op", .value = "OP", .meaning = "operation", .words = reduce_op_names(), .fallback = "sum"});
  app.add_option("-r,--root", options.root, "root of rooted collectives [0]")->type_name("RANK");
  app.add_option("--iters", options.iterations, "timed calls per row [as many as fit in --row-time, 10 to 2000]")->type_name("N");
  app.add_option("--row-time", options.row_time, "time per row, if --iters does not say [500ms]")->type_name("TIME");
  app.add_option("-w,--warmup", options.warmup, "calls before the clock starts [2]")->type_name("N");
  auto* across = app.add_option("-a,--across", options.across, "time of an iteration: 0 rank 0, 1 mean, 2 min, 3 max of the ranks [1]")->type_name("0-3");
  set_choices(*across, {"0", "1", "2", "3"});
  add_choice(app, options.order, {.names = "--order", .value = "ORDER", .meaning = "of additions, strict is rank order", .words = order_names(), .fallback = "auto"});
  add_choice(app, options.schedule, {.names = "--schedule", .value = "NAME", .meaning = "which rank adds what", .words = schedule_names(), .fallback = "auto"});
  app.add_option("--slice", options.slice, "bytes of one slice [automatic]")->type_name("SIZE");
  app.add_option("--streams", options.streams, "TCP connections per pair of hosts [automatic]")->type_name("N");
  app.add_option("--timeout", options.timeout, "deadline of each operation [60s]")->type_name("TIME");
  app.add_option("--json", options.json, "write JSON lines there; - writes them instead of the table")->type_name("FILE");
  add_choice(app, options.progress, {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
  app.add_flag("--no-check", options.no_check, "do not check every result against the reference");
  app.add_flag_callback("--check", [&options] { options.no_check = false; }, "check them, which is the default");
  app.add_flag("--no-barrier", options.no_barrier, "no barrier before each timed call");
  app.add_flag("--in-place", options.only_in_place, "measure in place only, where the collective can");
  add_launch_options(app, options.launch);
}

// Everything that is parsed, on every rank alike.
struct Plan {
  std::vector<Collective> collectives;
  std::vector<uint64_t> sizes;
  RunOptions run;
  Options group;
};

Result<Plan> make_plan(BenchOptions& options) {
  Plan plan;
  for (size_t at = 0; !options.collective.empty() && at <= options.collective.size();) {
    const auto end = std::min(options.collective.find(',', at), options.collective.size());
    options.collectives.push_back(options.collective.substr(at, end - at));
    at = end + 1;
  }
  if (options.collectives.empty()) options.collectives.emplace_back("all-reduce");
  for (const auto& text : options.collectives) {
    const auto collective = parse_collective(text);
    if (!collective.ok()) return collective.status();
    plan.collectives.push_back(*collective);
  }
  auto sizes = parse_sizes(options.sizes);
  const auto dtype = parse_dtype(options.dtype);
  const auto op = parse_reduce_op(options.op);
  const auto order = parse_order(options.order);
  const auto schedule = parse_schedule(options.schedule);
  const auto timeout = parse_duration(options.timeout);
  const auto row_time = parse_duration(options.row_time);
  const auto slice = options.slice.empty() ? Result<uint64_t>(uint64_t{0}) : parse_bytes(options.slice);
  for (const auto& status : {sizes.status(), dtype.status(), op.status(), order.status(), schedule.status(), timeout.status(), row_time.status(), slice.status()}) {
    if (!status.ok()) return status;
  }
  const bool bits = *op == ReduceOp::band || *op == ReduceOp::bor || *op == ReduceOp::bxor;
  if (bits && is_floating(*dtype)) return Status(Code::invalid, fmt::format("-o {} takes whole numbers, not {}", options.op, options.dtype));
  if (options.across < 0 || options.across > 3) return Status(Code::invalid, fmt::format("-a {}: expected 0 to 3", options.across));
  plan.sizes = *std::move(sizes);
  plan.run.data.dtype = *dtype;
  plan.run.data.op = *op;
  plan.run.data.root = options.root;
  plan.run.call = {.op = *op, .order = *order, .schedule = *schedule, .timeout = Milliseconds(*timeout / millisecond), .id = 0, .slice_bytes = *slice};
  plan.run.iterations = options.iterations;
  plan.run.warmup = options.warmup;
  plan.run.row_time = *row_time;
  plan.run.check = !options.no_check;
  plan.run.barrier = !options.no_barrier;
  plan.run.across = static_cast<Across>(options.across);
  plan.group.timeout = plan.run.call.timeout;
  plan.group.streams_per_link = options.streams;
  return plan;
}

int failed(const Group& group, const std::string& what, const Status& status) {
  fmt::print(stderr, "unisono bench: rank {}: {}: {}\n", group.rank(), what, status.to_string());
  return 1;
}

ProgressOptions progress_options(const BenchOptions& options, uint32_t rank, size_t rows) {
  ProgressOptions out{.label = "bench", .total = rows, .style = progress_style_of(stderr), .width = 80, .stream = stderr};
  if (options.progress == "bar") out.style = ProgressStyle::bar;
  if (options.progress == "lines") out.style = ProgressStyle::lines;
  if (options.progress == "off" || rank != 0) out.style = ProgressStyle::off;
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20) out.width = size.ws_col;
  return out;
}

// Where rank 0 writes; the others write nowhere.
class Sink {
 public:
  Status open(const BenchOptions& options, bool is_first) {
    table_ = is_first && options.json != "-";
    if (!is_first || options.json.empty()) return {};
    json_ = options.json == "-" ? stdout : std::fopen(options.json.c_str(), "we");
    if (json_ == nullptr) return Status(Code::invalid, fmt::format("cannot write {}: {}", options.json, strerrordesc_np(errno)));
    return {};
  }
  ~Sink() {
    if (json_ != nullptr && json_ != stdout) std::fclose(json_);
  }
  void table(const std::string& text) const { if (table_) write(stdout, text); }
  void json(const std::string& text) const { if (json_ != nullptr) write(json_, text); }

 private:
  static void write(std::FILE* file, const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), file);
    std::fflush(file);
  }
  bool table_ = false;
  std::FILE* json_ = nullptr;
};

BenchFacts gather_facts(const Group& group, const Plan& plan, Collective collective) {
  BenchFacts facts{.host = read_host_facts(),
                   .data = plan.run.data,
                   .call = plan.run.call,
                   .barrier = plan.run.barrier,
                   .across = plan.run.across,
                   .links = {},
                   .speeds = group.link_speeds()};
  facts.data.collective = collective;
  facts.data.world_size = group.world_size();
  for (const auto& member : group.members()) {
    if (member.rank != group.rank()) facts.links.push_back(member.link);
  }
  return facts;
}

struct Session {
  Group& group;
  const Plan& plan;
  const BenchOptions& options;
  Sink& sink;
  Progress& progress;
  size_t rows_done = 0;
};

Result<Row> measure_row(Session& session, const BenchFacts& facts, uint64_t bytes) {
  Row row;
  const auto& collective = facts_of(facts.data.collective);
  auto run = session.plan.run;
  run.data = facts.data;
  const auto label = fmt::format("{} {}", collective.name, format_bytes(bytes));
  run.on_progress = [&](uint32_t, uint32_t, Nanos now) { session.progress.update(session.rows_done, label, now); };
  for (const bool in_place : {false, true}) {
    if (!(in_place ? collective.in_place : collective.out_of_place)) continue;
    if (!in_place && session.options.only_in_place && collective.in_place) continue;
    auto measured = measure(session.group, run, bytes, in_place);
    if (!measured.ok()) return Status(measured.status().code(), fmt::format("{}: {}", label, measured.status().message()));
    session.sink.json(json_row(facts, *measured, in_place));
    (in_place ? row.in_place : row.out_of_place) = *std::move(measured);
  }
  return row;
}

int run_collective(Session& session, Collective collective) {
  const auto facts = gather_facts(session.group, session.plan, collective);
  session.sink.table(table_head(facts));
  session.sink.json(json_facts(facts));
  std::vector<Row> rows;
  auto sizes = session.plan.sizes;
  if (collective == Collective::barrier) sizes = {0};
  for (const auto bytes : sizes) {
    auto row = measure_row(session, facts, bytes);
    session.progress.clear();
    if (!row.ok()) return failed(session.group, std::string(facts_of(collective).name), row.status());
    session.sink.table(table_row(facts, *row));
    rows.push_back(*std::move(row));
    ++session.rows_done;
  }
  session.sink.table(table_foot(facts, rows));
  return wrong_values(rows) == 0 ? 0 : 1;
}

int run_rank(const BenchOptions& options, const Plan& plan) {
  auto group = Group::join(plan.group);
  if (!group.ok()) {
    fmt::print(stderr, "unisono bench: cannot join: {}\n", group.status().to_string());
    return 1;
  }
  if (options.root >= group->world_size()) return usage_error(help_text.name, fmt::format("-r {}: there are {} ranks", options.root, group->world_size()));
  Sink sink;
  if (auto status = sink.open(options, group->rank() == 0); !status.ok()) return failed(*group, "--json", status);
  Progress progress(progress_options(options, group->rank(), plan.collectives.size() * plan.sizes.size()), monotonic_now());
  Session session{*group, plan, options, sink, progress};
  for (const auto collective : plan.collectives) {
    if (const int code = run_collective(session, collective); code != 0) return code;
  }
  // Nobody leaves while others still talk.
  if (auto met = group->barrier(); !met.ok()) return failed(*group, "last barrier", met.status());
  return 0;
}

bool is_rank_already() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  return set("RANK") || set("OMPI_COMM_WORLD_RANK") || set("PMI_RANK") || set("SLURM_PROCID");
}

// The same command once per rank: each finds its place in the environment.
int run_as_launcher(const BenchOptions& options, const Arguments& arguments) {
  std::string self(PATH_MAX, '\0');
  const auto size = ::readlink("/proc/self/exe", self.data(), self.size());
  self.resize(size > 0 ? static_cast<size_t>(size) : 0);
  Arguments program{self, "bench"};
  program.insert(program.end(), arguments.begin(), arguments.end());
  // The ranks write into pipes; whether a person watches is known here.
  if (options.progress == "auto" && ::isatty(STDERR_FILENO) == 1) program.insert(program.end(), {"--progress", "bar"});
  auto launch = options.launch;
  launch.no_prefix = true;
  auto job = make_job(launch, std::move(program));
  if (!job.ok()) return usage_error(help_text.name, job.status().message());
  return run_job(*job);
}

}  // namespace

CommandSyntax bench_syntax() { return syntax_of(help_text, add_bench_options); }

int run_bench(const Arguments& arguments) {
  BenchOptions options;
  const auto app = make_app(help_text);
  add_bench_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  auto plan = make_plan(options);
  if (!plan.ok()) return usage_error(help_text.name, plan.status().message());
  const bool asked = !options.launch.count.empty() || !options.launch.hosts.empty();
  const char* world = std::getenv("WORLD_SIZE");
  const bool is_rank = std::getenv("RANK") != nullptr;
  if (is_rank && !options.launch.count.empty() && world != nullptr && options.launch.count != world) {
    return usage_error(help_text.name, fmt::format("-n {} contradicts WORLD_SIZE={} of the environment", options.launch.count, world));
  }
  if (asked && !is_rank) return run_as_launcher(options, arguments);
  if (!is_rank_already()) return usage_error(help_text.name, "how many ranks? Give -n 4, or start it with a launcher that sets RANK");
  return run_rank(options, *plan);
}

}  // namespace unisono::cli
