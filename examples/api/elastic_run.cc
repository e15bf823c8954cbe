// The peers of an elastic run average their models. They have no ranks, and need neither a launcher nor a master. The first
// peer begins the run, and writes its address to a file.
#include <unisono/elastic.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

int main(int count, char** arguments) {
  if (count < 2) return std::fprintf(stderr, "usage: elastic_run FILE\n"), 2;
  const std::string path = arguments[1];
  const int number = std::atoi(std::getenv("RANK"));  // this number only gives each peer different values
  const auto peers = static_cast<uint32_t>(std::atoi(std::getenv("WORLD_SIZE")));
  // --8<-- [start:body]
  auto run = unisono::Elastic::join(
      {.run_id = "demo", .found = number == 0, .seeds = {"file:" + path}, .tensor_elements = {1000}, .min_peers = peers});
  if (!run) return std::fprintf(stderr, "%s\n", run.status().to_string().c_str()), 1;
  if (number == 0) {  // the address of any peer is enough; the other peers read it from the file
    std::ofstream(path + ".new") << run->status().endpoints.front() << '\n';
    if (std::rename((path + ".new").c_str(), path.c_str()) != 0) return 1;
  }
  if (!run->ready(unisono::Milliseconds{30'000})) return 1;  // returns true when min_peers have joined

  std::vector<float> model(1000, 10.0f * static_cast<float>(number + 1));  // a real program would train the model here
  const int samples = number + 1;
  auto step = run->average(std::span<float>(model), samples);  // the mean over all peers, weighted by samples
  if (!step) return std::fprintf(stderr, "%s\n", step.status().to_string().c_str()), 1;
  // --8<-- [end:body]
  std::printf("%s: 1000 times %.3f\n", step->exact ? "exact" : step->to_string().c_str(), model[0]);
  return run->leave().ok() ? 0 : 1;  // tells the other peers; otherwise they would notice after a timeout
}
