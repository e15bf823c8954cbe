// `unisono codec` encodes the user's own tensors with the codecs that the collectives use. For each codec, it reports how long
// the messages are and how large the error is.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <optional>

#include "cli/codec/codec_report.h"
#include "cli/codec/codec_trial.h"
#include "cli/common/byte_stream.h"
#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/job_outcome.h"
#include "cli/common/monotonic.h"
#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/result_writer.h"
#include "cli/common/text.h"

namespace unisono::cli {
namespace {

const CommandLineText codec_text{
    .name = "unisono codec",
    .usage = "unisono codec roundtrip|encode|decode|compare [FILE] [OPTIONS]",
    .description =
        "Passes elements of your own through the codecs of all-reduce, and says how small they become and what is lost.\n\n"
        "roundtrip writes them as a receiver gets them, encode as messages, decode elements from messages; compare tries all "
        "widths "
        "and prints a table.",
    .footer = R"(Examples:
  unisono codec roundtrip layer.f32 -o received.f32               8 bits, groups of 128
  unisono codec roundtrip -c int4 --group 64 < layer.f32 > received.f32
  unisono codec roundtrip -c int2:spikes=on --json layer.f32      numbers only
  unisono codec encode -c int4 layer.f32 | ssh a 'unisono codec decode > layer.f32'
  unisono codec compare layer.f32 --output layer.json --plot layer.svg

Input and output are elements one after the other, little-endian, as numpy's tofile() writes them. They are read in
pieces of 2^20, so files may be larger than memory. Without FILE standard input is read, without -o standard output is
written; on a terminal roundtrip shows the summary alone. compare prints a table; with -o it also writes the numbers to
a file, as JSON.

CODEC is what Unisono's API reads: plain, f16, bf16, int2 to int8, auto (int8), or
quantize:bits=4,group=64,metadata=f16,spikes=on. If its steps differ (int8/int4), the reduce step's codec is used.
--group, --metadata and --spikes override what it says. f16 and bf16 are for f32 elements; 16-bit elements are
sent unchanged.

decode reads from the messages how they were made, and refuses files that are damaged, cut off or of another format.
They carry no checksum: a changed code of an element is not noticed. Elements that were sent plain, as f16 or bf16
have no headers: decode them with that -c. Any other -c is compared with what the messages say.

SNR = 10 log10(sum x^2 / sum (x - x')^2), over the elements that are finite before and after; a NaN makes its whole
group NaN. bits an element: without headers, which are 8 bytes per 2^20 elements; ratio and sizes: with them. --json:
null stands for what is infinite.

Exit code: 0; 1 if the input cannot be read, has a wrong size or is damaged, or the output cannot be written; 2 for a
wrong command line; 141, quietly, if the reader of the output has gone.)"};

struct CodecOptions {
  std::string action, file;
  std::string codec, group, metadata, spikes;
  std::string dtype = "f32";
  std::string input, output, plot;
  std::string progress = "auto";
  bool json = false;
};

void add_codec_options(CLI::App& app, CodecOptions& options) {
  set_choices(*app.add_option("action", options.action, "what to do")->type_name(""),
              {"roundtrip", "encode", "decode", "compare"});
  app.add_option("file", options.file, "the same as --input")->type_name("FILE");
  app.add_option("-c,--codec", options.codec,
                 "codec of the messages: plain, f16, bf16, int2 to int8, quantize:bits=4,group=64 [auto: int8]")
      ->type_name("CODEC");
  add_choice(app, options.group,
             {.names = "-g,--group",
              .value = "COUNT",
              .meaning = "elements that share a scale",
              .words = {"32", "64", "128", "256"},
              .fallback = "128"});
  add_choice(app, options.metadata,
             {.names = "-m,--metadata",
              .value = "TYPE",
              .meaning = "type of the scales",
              .words = {"f16", "bf16", "f32", "auto"},
              .fallback = "auto: bf16, for f16 elements f16"});
  add_choice(app, options.spikes,
             {.names = "-s,--spikes",
              .value = "WHEN",
              .meaning = "send the smallest and the largest element of a group apart",
              .words = {"on", "off", "auto"},
              .fallback = "auto: with 2 and 3 bits"});
  add_choice(app, options.dtype,
             {.names = "-d,--dtype",
              .value = "TYPE",
              .meaning = "type of the elements",
              .words = {"f32", "f16", "bf16"},
              .fallback = "f32"});
  app.add_option("-i,--input", options.input, "file to read; -: standard input")->type_name("FILE");
  app.add_option("-o,--output", options.output, "write elements, messages or compare's numbers to FILE; -: to standard output")
      ->type_name("FILE");
  app.add_flag("--json", options.json,
               "numbers as one line of JSON on standard output; elements and messages only to an --output");
  app.add_option("--plot", options.plot, "compare: draw quality and size against width as an SVG")->type_name("FILE");
  add_choice(
      app, options.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
}

enum class Action : uint8_t { roundtrip, encode, decode, compare };

// The parsed command line.
struct Task {
  Action action = Action::roundtrip;
  Codec codec = Codec::quantized(8);
  bool codec_asked = false;
  DType dtype = DType::f32;
  std::string input, output, plot, progress;
  bool input_is_option = false;  // the input was named by --input
  bool json = false;

  const StepCodec& step() const { return codec.reduce; }
  WireCodec wire() const { return codec_for(step(), codec.poison, dtype); }
};

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Returns the first option that the user gave but the action does not use. Returns an empty text if there is none.
std::string unused_option(const CodecOptions& options) {
  const bool compares = options.action == "compare", decodes = options.action == "decode";
  const std::pair<const char*, bool> all[] = {{"--codec", compares && !options.codec.empty()},
                                              {"--spikes", (compares || decodes) && !options.spikes.empty()},
                                              {"--group", decodes && !options.group.empty()},
                                              {"--metadata", decodes && !options.metadata.empty()},
                                              {"--plot", !compares && !options.plot.empty()}};
  for (const auto& [name, is_unused] : all) {
    if (is_unused) return name;
  }
  return {};
}

// Returns the names of the options from which the codec is made, such as "--codec, --group".
std::string codec_options_of(const CodecOptions& options) {
  std::string names;
  for (const auto& [name, value] : {std::pair{"--codec", options.codec},
                                    {"--group", options.group},
                                    {"--metadata", options.metadata},
                                    {"--spikes", options.spikes}}) {
    if (!value.empty()) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

Status set_codec(const CodecOptions& options, Task& task) {
  auto text = options.codec.empty() ? std::string("auto") : options.codec;
  for (const auto& [key, value] :
       {std::pair{"group", options.group}, {"metadata", options.metadata}, {"spikes", options.spikes}}) {
    // If a key is given twice, the last value counts.
    if (!value.empty()) text += fmt::format("{}{}={}", text.find(':') == std::string::npos ? ":" : ",", key, value);
  }
  const auto codec = Codec::parse(text);
  if (!codec.ok()) return of_option(codec_options_of(options), codec.status());
  task.codec = *codec;
  task.codec_asked = !options.codec.empty();
  const bool overridden = !options.group.empty() || !options.metadata.empty() || !options.spikes.empty();
  if (overridden && !facts_of(task.step().kind).has_options)
    return invalid(fmt::format("--group, --metadata and --spikes are for quantised elements, not for {}", options.codec));
  return {};
}

Result<Task> task_of(const CodecOptions& options) {
  Task task;
  if (options.action.empty()) return invalid("the action is missing: roundtrip, encode, decode or compare");
  const std::pair<const char*, Action> actions[] = {
      {"roundtrip", Action::roundtrip}, {"encode", Action::encode}, {"decode", Action::decode}, {"compare", Action::compare}};
  const auto* const action =
      std::find_if(std::begin(actions), std::end(actions), [&](const auto& entry) { return options.action == entry.first; });
  if (action == std::end(actions))
    return invalid(fmt::format("'{}' is none of roundtrip, encode, decode, compare", options.action));
  task.action = action->second;
  if (const auto option = unused_option(options); !option.empty()) {
    return invalid(fmt::format("{} has no effect on {}{}", option, options.action,
                               option == "--plot"            ? ""
                               : options.action == "compare" ? ", which tries them all and writes a table"
                                                             : ": the messages say how they were made"));
  }
  if (auto status = set_codec(options, task); !status.ok()) return status;
  if (!is_one_of(options.dtype, {"f32", "f16", "bf16"}))
    return invalid(fmt::format("--dtype '{}' is none of f32, f16, bf16", options.dtype));
  task.dtype = options.dtype == "f32" ? DType::f32 : options.dtype == "f16" ? DType::f16 : DType::bf16;
  if (!options.file.empty() && !options.input.empty())
    return invalid(fmt::format("two inputs, {} and --input {}", options.file, options.input));
  task.input = options.file.empty() ? options.input : options.file;
  task.input_is_option = options.file.empty();
  task.output = options.output;
  task.json = options.json;
  if (task.action == Action::compare && task.output == "-") {
    // Only the numbers are asked for, and they go to standard output.
    task.json = true;
    task.output.clear();
  }
  if (task.json && task.output == "-") return invalid("--json and --output - would both write to standard output");
  if (auto status = check_progress(options.progress); !status.ok()) return status;
  task.progress = options.progress;
  task.plot = options.plot;
  return task;
}

// A task, together with its input and its outputs, which are open.
struct Run {
  const Task& task;
  ByteSource source;
  ByteSink numbers;              // the standard output; JSON and tables are written to it
  std::optional<ByteSink> sink;  // where elements or messages are written; nullopt: the user does not want them
  Progress progress;
};

// Returns the exit code after a write has failed. If the reader has closed the pipe, no message is printed; other programs do
// the same.
int not_written(const ByteSink& sink, const Status& status) {
  if (sink.has_lost_its_reader()) return 128 + SIGPIPE;
  return failed(codec_text, sink.name() == "standard output" ? status : of_option("--output", status));
}

// Closes the output, prints the JSON or the summary, and returns the exit code.
int finish(Run& run, const std::string& json, const std::string& summary) {
  run.progress.clear();
  if (run.sink) {
    if (auto status = run.sink->close(); !status.ok()) return not_written(*run.sink, status);
  }
  if (!run.task.json) {
    fmt::print(stderr, "{}", summary);
    return 0;
  }
  const auto status = run.numbers.write(json);
  return status.ok() ? 0 : not_written(run.numbers, status);
}

// Reads the next chunk of elements. It has file_message_elements elements, or fewer at the end of the input. Returns
// Code::corrupt if the input ends inside an element.
Result<std::span<const std::byte>> next_elements(Run& run, std::vector<std::byte>& memory) {
  const auto bytes_each = element_bytes(run.task.dtype);
  memory.resize(file_message_elements * bytes_each);
  const auto got = run.source.read(memory);
  if (!got.ok()) return got.status();
  if (*got % bytes_each != 0) {
    return Status(Code::corrupt, fmt::format("{} has {} bytes, no multiple of the {} bytes of an element of {}",
                                             run.source.name(), run.source.taken(), bytes_each, name(run.task.dtype)));
  }
  run.progress.update(run.source.taken() / memory.size(), decimal_bytes(run.source.taken()), monotonic_now());
  return std::span<const std::byte>(memory).first(*got);
}

int run_trial(Run& run) {
  CodecTrial trial(run.task.wire(), run.task.dtype);
  TrialMemory memory;
  std::vector<std::byte> chunk;
  const bool encodes = run.task.action == Action::encode;
  const auto write = [&](std::span<const std::byte> bytes) { return run.sink ? run.sink->write(bytes) : Status(); };
  for (bool goes_on = true; goes_on;) {
    const auto elements = next_elements(run, chunk);
    if (!elements.ok()) return run.progress.clear(), failed(codec_text, elements.status());
    goes_on = elements->size() == chunk.size();
    trial.add(*elements, memory);
    auto written = write(encodes ? memory.message : memory.decoded);
    if (written.ok() && encodes && !goes_on) written = write(end_mark(trial.codec(), trial.tally().elements));
    if (!written.ok()) return run.progress.clear(), not_written(*run.sink, written);
  }
  return finish(run, json_of(trial), summary_of(trial));
}

// Returns Code::corrupt if the user asked for a certain codec and the messages in the file have another one. If the user did
// not choose a type for the metadata, every type is accepted.
Status compare_codecs(const Task& task, const WireCodec& found, const std::string& file) {
  if (!task.codec_asked) return {};
  auto step = task.step();
  if (step.metadata == StepCodec::Metadata::automatic) step.metadata = static_cast<StepCodec::Metadata>(found.block.metadata);
  const auto wanted = codec_for(step, task.codec.poison, task.dtype);
  if (wanted.kind == found.kind && wanted.block == found.block) return {};
  return {Code::corrupt, fmt::format("{} holds {}, not {}", file, canonical_text(found), canonical_text(wanted))};
}

int run_decode(Run& run) {
  const auto wire = run.task.wire();
  const bool is_raw = run.task.codec_asked && !wire.quantizes();
  MessageReader reader(run.source, is_raw ? std::optional(wire) : std::nullopt, run.task.dtype, run.task.codec.poison);
  DecodeOutcome outcome{.codec = wire, .dtype = run.task.dtype, .tally = {}, .counts = {}};
  const auto bytes_each = element_bytes(outcome.dtype);
  std::vector<std::byte> elements(file_message_elements * bytes_each);
  std::vector<float> values(file_message_elements);
  for (bool goes_on = true; goes_on;) {
    const auto count = reader.next(elements, outcome.counts);
    if (!count.ok()) return run.progress.clear(), failed(codec_text, count.status());
    if (auto status = is_raw ? Status() : compare_codecs(run.task, reader.codec(), run.source.name()); !status.ok())
      return run.progress.clear(), failed(codec_text, status);
    goes_on = *count > 0;
    const auto decoded = std::span<const std::byte>(elements).first(*count * bytes_each);
    widen(outcome.dtype, decoded, std::span(values).first(*count));
    outcome.nonfinite += count_nonfinite(std::span(values).first(*count));
    if (auto written = run.sink ? run.sink->write(decoded) : Status(); !written.ok())
      return run.progress.clear(), not_written(*run.sink, written);
    run.progress.update(run.source.taken() / elements.size(), decimal_bytes(run.source.taken()), monotonic_now());
  }
  outcome.codec = reader.codec();
  outcome.tally = reader.tally();
  return finish(run, json_of(outcome), summary_of(outcome));
}

CodecComparison comparison_for(const Task& task, const std::string& file) {
  // if there is no '/', npos + 1 is 0
  CodecComparison comparison{.name = file.substr(file.find_last_of('/') + 1), .trials = {}};
  for (const auto& facts : codec_table) {
    if (facts.kind == StepCodec::Kind::plain || facts.has_options || (facts.only_f32 && task.dtype != DType::f32)) continue;
    comparison.trials.emplace_back(codec_for({.kind = facts.kind}, task.codec.poison, task.dtype), task.dtype);
  }
  for (uint8_t bits = 8; bits >= 2; --bits) {
    for (const auto spikes : {StepCodec::Spikes::off, StepCodec::Spikes::on}) {
      auto step = task.step();
      step.bits = bits;
      step.spikes = spikes;
      comparison.trials.emplace_back(codec_for(step, task.codec.poison, task.dtype), task.dtype);
    }
  }
  return comparison;
}

int run_compare(Run& run) {
  auto comparison = comparison_for(run.task, run.source.name());
  TrialMemory memory;
  std::vector<std::byte> chunk;
  for (bool goes_on = true; goes_on;) {
    const auto elements = next_elements(run, chunk);
    if (!elements.ok()) return run.progress.clear(), failed(codec_text, elements.status());
    goes_on = elements->size() == chunk.size();
    for (auto& trial : comparison.trials) trial.add(*elements, memory);
  }
  run.progress.clear();
  const auto json = json_of(comparison);
  if (auto status = run.numbers.write(run.task.json ? json : table_of(comparison)); !status.ok())
    return not_written(run.numbers, status);
  if (run.sink) {
    const auto written = first_wrong({run.sink->write(json), run.sink->close()});
    if (!written.ok()) return not_written(*run.sink, written);
  }
  const auto drawn = run.task.plot.empty() ? Status() : of_option("--plot", write_svg(run.task.plot, panels_of(comparison)));
  return drawn.ok() ? 0 : failed(codec_text, drawn);
}

// Opens the output to which elements, messages or the numbers of `compare` are written. Returns nullopt if the user does not
// want them.
Result<std::optional<ByteSink>> sink_of(const Task& task, const ByteSource& source) {
  const bool asked = !task.output.empty();
  if (!asked && (task.json || task.action == Action::compare)) return std::optional<ByteSink>();
  auto sink = asked ? of_option("--output", ByteSink::open(task.output, source)) : ByteSink::open(task.output, source);
  if (!sink.ok()) return sink.status();
  if (asked || !sink->is_terminal()) return std::optional<ByteSink>(*std::move(sink));
  if (task.action == Action::roundtrip) return std::optional<ByteSink>();
  return invalid(fmt::format("{} are no text for a terminal: give --output FILE, or redirect standard output",
                             task.action == Action::encode ? "messages" : "elements"));
}

int run_task(const Task& task) {
  if (auto status = check_writable({"--plot", task.plot}); !status.ok()) return failed(codec_text, status);
  auto source = task.input_is_option ? of_option("--input", ByteSource::open(task.input)) : ByteSource::open(task.input);
  if (!source.ok()) return failed(codec_text, source.status());
  if (task.input.empty() && source->is_terminal()) {
    return usage_error(
        codec_text.name,
        fmt::format(
            "{} are read from standard input, which is a terminal: name a FILE, or redirect one into this command",
            task.action == Action::decode ? "messages" : fmt::format("elements of {}, little-endian,", name(task.dtype))));
  }
  const auto bytes_each = element_bytes(task.dtype);
  const auto total = source->bytes_left();
  // This is checked before an output file is overwritten.
  if (task.action != Action::decode && total.value_or(0) % bytes_each != 0) {
    return failed(codec_text,
                  Status(Code::corrupt, fmt::format("{} has {} bytes, no multiple of the {} bytes of an element of {}",
                                                    source->name(), *total, bytes_each, name(task.dtype))));
  }
  auto numbers = ByteSink::open("", *source);
  auto sink = sink_of(task, *source);
  if (!sink.ok())
    return sink.status().code() == Code::invalid ? usage_error(codec_text.name, sink.status().message())
                                                 : failed(codec_text, sink.status());
  const auto steps = total.value_or(0) / (file_message_elements * bytes_each);
  Run run{task, *std::move(source), *std::move(numbers), *std::move(sink),
          Progress(progress_options("codec", steps, task.progress), monotonic_now())};
  switch (task.action) {
    case Action::roundtrip:
    case Action::encode: return run_trial(run);
    case Action::decode: return run_decode(run);
    case Action::compare: return run_compare(run);
  }
  return 1;
}

}  // namespace

CommandSyntax codec_syntax() { return syntax_of(codec_text, add_codec_options); }

int run_codec(const Arguments& arguments) {
  CodecOptions options;
  const auto app = make_app(codec_text);
  add_codec_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto task = task_of(options);
  if (!task.ok()) return usage_error(codec_text.name, task.status().message());
  ::signal(SIGPIPE, SIG_IGN);  // if a pipe is closed, write() then returns EPIPE instead of ending the process
  const auto& codec = task->codec;
  if (codec.across != codec.reduce || codec.gather != codec.reduce) {
    fmt::print(stderr, "unisono codec: of {}, the reduce step's codec is used: {}\n", codec.to_string(),
               canonical_text(task->wire()));
  }
  if (task->wire().is_plain() && task->step().kind != StepCodec::Kind::plain) {
    fmt::print(stderr, "unisono codec: elements of {} are sent unchanged, not as {}\n", name(task->dtype),
               Codec::of(task->step()).to_string());
  }
  return run_task(*task);
}

}  // namespace unisono::cli
