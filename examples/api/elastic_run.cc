// Peers of an elastic run average what they have: no rank, no launcher, no master. The first one begins the run and writes down
// where it can be found.
#include <unisono/elastic.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

int main(int count, char** arguments) {
  if (count < 2) return std::fprintf(stderr, "usage: elastic_run FILE\n"), 2;
  const std::string path = arguments[1];
  const int place = std::atoi(std::getenv("RANK"));  // only to give each peer other values
  const auto peers = static_cast<uint32_t>(std::atoi(std::getenv("WORLD_SIZE")));
  // --8<-- [start:body]
  auto run = unisono::Elastic::join(
      {.run_id = "demo", .found = place == 0, .seeds = {"file:" + path}, .tensor_elements = {1000}, .min_peers = peers});
  if (!run) return std::fprintf(stderr, "%s\n", run.status().to_string().c_str()), 1;
  if (place == 0) {  // any one address is enough, and any peer's: the others read it from the file as soon as it is there
    std::ofstream(path + ".new") << run->status().endpoints.front() << '\n';
    if (std::rename((path + ".new").c_str(), path.c_str()) != 0) return 1;
  }
  if (!run->ready(unisono::Milliseconds{30'000})) return 1;  // min_peers are there

  std::vector<float> model(1000, 10.0f * static_cast<float>(place + 1));  // a real program trains here
  const int samples = place + 1;
  auto step = run->average(std::span<float>(model), samples);  // the mean over all peers, weighted by samples
  if (!step) return std::fprintf(stderr, "%s\n", step.status().to_string().c_str()), 1;
  // --8<-- [end:body]
  std::printf("%s: 1000 times %.3f\n", step->exact ? "exact" : step->to_string().c_str(), model[0]);
  return run->leave().ok() ? 0 : 1;  // says goodbye; the others would notice anyway
}
