// The elements of a sum are sent as codes of a few bits. The program prints the error that this causes.
#include <unisono/unisono.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;
  // --8<-- [start:body]
  std::vector<float> gradient(100'000), sum(gradient.size());
  for (size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = static_cast<float>(group->rank() + 1) * std::sin(static_cast<float>(i));

  for (const char* name : {"plain", "bf16", "int8", "int4", "int8/int4:group=32"}) {
    // If the schedule is given, the codec is used even though it does not pay inside one host. Because of measure_error, the
    // library computes a second, exact sum.
    auto report = group->all_reduce(
        unisono::ConstTensor(std::span<const float>(gradient)), std::span<float>(sum),
        {.schedule = unisono::ScheduleKind::two_step, .codec = unisono::Codec::parse(name).value(), .measure_error = true});
    if (!report) return std::fprintf(stderr, "%s\n", report.status().to_string().c_str()), 1;
    if (group->rank() == 0)
      std::printf("%-18s %5.2f bits per element, encoded %u times, signal to noise %.1f dB\n", name, report->bits_per_element(),
                  report->passes, report->snr_db());
  }
  // Here the library chooses the schedule. If a codec does not pay, the library does not use it, and the report gives the
  // reason.
  auto report = group->all_reduce(std::span<float>(sum), {.codec = unisono::Codec::quantized(8)});
  if (report && group->rank() == 0) std::printf("%s: %s\n", report->codec.to_string().c_str(), report->codec_note.data());
  // --8<-- [end:body]
  return 0;
}
