// Measures how long it takes to compress and to average the gradients of a language model, step by step. Three ways take turns
// in the same processes: without compression; with the gradient reducer, for each setting; and with two blocking collectives
// for each parameter. The authors of ARC-Top-K use the third way.
//
//   unisono launch -n 4 --rate 1G -- gradients_bench [--layers N] [--hidden N] [--bucket-mb N] [--steps N] [--only NAME,…]
// The layout of the parameters is that of LLaMA (docs/design/methods/arc_top_k.md, check 21). The gradients are random
// numbers, so there is no computation that overlaps the communication. Rank 0 prints lines of JSON with the median time of a
// step on the slowest rank. bench/gradients runs this program over slow links and makes a table.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "compressors/arc_top_k.h"
#include "training/reducer/error_feedback.h"
#include "unisono/unisono.h"

namespace {

using namespace unisono;
using Clock = std::chrono::steady_clock;

struct Settings {
  uint64_t layers = 8, hidden = 512, feed_forward = 1376, bucket_mb = 25;
  size_t steps = 5;
  std::string only;
};

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "gradients_bench: %s\n", why.c_str());
  std::exit(1);
}

template <typename Value>
Value checked(Result<Value> result) {
  if (!result.ok()) fail(result.status().to_string());
  return std::move(*result);
}

void check(const Status& status) {
  if (!status.ok()) fail(status.to_string());
}

std::vector<Parameter> llama(const Settings& s) {
  std::vector<Parameter> all{{"embedding", {32000, s.hidden}}};
  for (uint64_t layer = 0; layer < s.layers; ++layer) {
    const auto add = [&](const char* name, std::vector<uint64_t> shape) {
      all.push_back({concat(layer, ".", name), std::move(shape)});
    };
    for (const char* name : {"q", "k", "v", "o"}) add(name, {s.hidden, s.hidden});
    for (const char* name : {"gate", "up"}) add(name, {s.feed_forward, s.hidden});
    add("down", {s.hidden, s.feed_forward});
    for (const char* name : {"norm1", "norm2"}) add(name, {s.hidden});
  }
  all.push_back({"norm", {s.hidden}});
  all.push_back({"head", {32000, s.hidden}});
  return all;
}

struct Model {
  std::vector<Parameter> parameters;
  std::vector<float> gradients;
  std::vector<std::vector<Gradient>> buckets;  // The last parameters come first, as in a backward pass.
  std::vector<std::span<float>> whole;         // the whole memory of each bucket
};

void add_bucket(Model& model, std::vector<Gradient>& bucket, float* begin, float* end) {
  if (bucket.empty()) return;
  std::reverse(bucket.begin(), bucket.end());
  model.buckets.push_back(std::move(bucket));
  model.whole.emplace_back(begin, end);
  bucket.clear();
}

std::unique_ptr<Model> make_model(const Settings& settings, uint32_t rank) {
  auto model = std::make_unique<Model>();
  model->parameters = llama(settings);
  size_t all = 0;
  for (const auto& parameter : model->parameters) all += matrix_of(parameter.shape).elements();
  model->gradients.resize(all);
  Random random(rank);
  for (auto& value : model->gradients) value = static_cast<float>(random.unit() - 0.5);
  std::vector<Gradient> bucket;
  float *end = model->gradients.data() + all, *at = end;
  for (size_t i = model->parameters.size(); i-- > 0;) {
    const size_t elements = matrix_of(model->parameters[i].shape).elements();
    if (static_cast<size_t>(end - at + static_cast<std::ptrdiff_t>(elements)) * sizeof(float) > settings.bucket_mb << 20)
      add_bucket(*model, bucket, at, end), end = at;
    at -= elements;
    bucket.push_back({.name = model->parameters[i].name, .values = at});
  }
  add_bucket(*model, bucket, at, end);
  return model;
}

// One of the ways to average all gradients. `step` averages them once.
struct Way {
  std::string name;
  std::function<void()> step;
  std::optional<GradientReducer> reducer{};
  std::vector<double> ms{};
};

void step_whole(Group& group, Model& model, ScheduleKind schedule) {
  std::vector<Work> works;
  for (auto bucket : model.whole)
    works.push_back(group.all_reduce_async(
        bucket,
        {.op = ReduceOp::avg, .order = schedule == ScheduleKind::ring ? Order::any : Order::automatic, .schedule = schedule}));
  for (auto& work : works) checked(work.wait());
}

// Makes two blocking collectives for each parameter. The parameters are not packed together, and nothing overlaps.
void step_each(Group& group, Model& model, std::vector<std::unique_ptr<ErrorFeedback>>& each, uint64_t& step) {
  size_t at = 0;
  for (auto& bucket : model.buckets) {
    for (auto& gradient : bucket) {
      auto& feedback = *each[at++];
      float* const values[] = {gradient.values};
      if (const auto first = feedback.begin(step, values); !first.empty())
        checked(group.all_reduce(first, {.op = ReduceOp::avg}));
      check(feedback.choose());
      if (const auto second = feedback.pack(); !second.empty()) checked(group.all_reduce(second, {.op = ReduceOp::avg}));
      check(feedback.finish());
    }
  }
  ++step;
}

double slowest_ms(Group& group, const std::function<void()>& step) {
  checked(group.barrier());
  const auto begin = Clock::now();
  step();
  double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  checked(group.all_reduce(std::span<double>(&ms, 1), {.op = ReduceOp::max}));
  return ms;
}

Settings parse(int count, char** words) {
  Settings settings;
  for (int i = 1; i < count; i += 2) {
    const std::string key = words[i];
    if (i + 1 == count) fail(key + " has no value");
    if (key == "--only") settings.only = std::string(",") + words[i + 1] + ",";
    else if (const auto value = std::strtoull(words[i + 1], nullptr, 10); value == 0) fail(key + " " + words[i + 1]);
    else if (key == "--layers") settings.layers = value;
    else if (key == "--hidden") settings.hidden = value;
    else if (key == "--bucket-mb") settings.bucket_mb = value;
    else if (key == "--steps") settings.steps = value;
    else fail(key + " is no option");
  }
  return settings;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Prints a line of JSON for each way.
void print_json(const std::vector<std::unique_ptr<Way>>& ways) {
  for (const auto& way : ways) {
    const auto [least, most] = std::minmax_element(way->ms.begin(), way->ms.end());
    std::printf("{\"way\": \"%s\", \"median_ms\": %.3f, \"least_ms\": %.3f, \"most_ms\": %.3f", way->name.c_str(),
                median(way->ms), *least, *most);
    if (way->reducer) {
      const auto& total = way->reducer->total();
      const auto& c = total.costs;
      const std::pair<const char*, int64_t> phases[] = {
          {"sketch", c.sketch_us}, {"sketch_reduce", c.sketch_reduce_us}, {"select", c.select_us},
          {"pack", c.pack_us},     {"value_reduce", c.value_reduce_us},   {"unpack", c.unpack_us}};
      for (const auto& [name, us] : phases)
        std::printf(", \"%s_ms\": %.3f", name, static_cast<double>(us) / 1000 / static_cast<double>(total.step));
      std::printf(", \"payload\": %.6f, \"state_bytes\": %llu, \"off\": \"%s\"", total.payload_ratio(),
                  static_cast<unsigned long long>(total.state_bytes), total.off.c_str());
    }
    std::printf("}\n");
  }
}

}  // namespace

int main(int count, char** words) {
  const auto settings = parse(count, words);
  auto group = checked(Group::join());
  const auto model = make_model(settings, group.rank());
  std::vector<std::unique_ptr<Way>> ways;
  const auto wanted = [&](const std::string& name) {
    return ways.empty() || settings.only.empty() || settings.only.find("," + name + ",") != std::string::npos;
  };
  const auto add = [&](const std::string& name, std::function<void()> step) {
    ways.push_back(std::make_unique<Way>());
    ways.back()->name = name;
    ways.back()->step = std::move(step);
  };
  add("ring", [&] { step_whole(group, *model, ScheduleKind::ring); });
  if (wanted("whole")) add("whole", [&] { step_whole(group, *model, ScheduleKind::automatic); });
  const std::pair<const char*, const char*> settings_of[] = {{"arc", "arc:start=0,auto_off=off"},
                                                             {"arc-bf16", "arc:start=0,auto_off=off,values=bf16"},
                                                             {"arc-int8", "arc:start=0,auto_off=off,values=int8"},
                                                             {"random-k", "random-k:start=0,auto_off=off"},
                                                             {"reducer-dense", "dense"},
                                                             {"arc-auto", "arc:start=0"}};
  for (const auto& [name, text] : settings_of) {
    if (!wanted(name)) continue;
    add(name, {});
    auto& way = *ways.back();
    way.reducer = checked(GradientReducer::make(group, model->parameters, checked(Compression::parse(text))));
    way.step = [&model, &way] {
      for (const auto& bucket : model->buckets) check(way.reducer->reduce(bucket));
      checked(way.reducer->finish());
    };
  }
  FeedbackStore store;
  std::vector<std::unique_ptr<ErrorFeedback>> each;
  uint64_t step = 0;
  if (wanted("each-parameter")) {
    for (const auto& bucket : model->buckets) {
      for (const auto& gradient : bucket) {
        const auto found = std::find_if(model->parameters.begin(), model->parameters.end(),
                                        [&](const Parameter& p) { return p.name == gradient.name; });
        auto compressor =
            checked(make_arc_top_k({}, 0, {{.number = static_cast<uint32_t>(each.size()), .shape = found->shape}}));
        each.push_back(checked(ErrorFeedback::make({}, std::move(compressor), {found->name}, store)));
      }
    }
    add("each-parameter", [&] { step_each(group, *model, each, step); });
  }
  for (size_t i = 0; i <= settings.steps; ++i) {  // The first step is not timed.
    for (auto& way : ways) {
      const double ms = slowest_ms(group, way->step);
      if (i > 0) way->ms.push_back(ms);
    }
  }
  if (group.rank() == 0) print_json(ways);
}
