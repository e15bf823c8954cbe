// Measures what protects a datagram: to encrypt it, to decrypt it, and to make its SipHash tag, as links without a key do it.
// Beside it, `openssl speed -evp aes-128-gcm -bytes 1408` shows the limit.
#include <benchmark/benchmark.h>

#include <vector>

#include "tls/datagram_seal.h"
#include "wire/datagram.h"

namespace {

using namespace unisono;
using Bytes = std::vector<std::byte>;

constexpr size_t batch = 64;

void set_rate(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(batch));
  state.SetBytesProcessed(state.items_processed() * state.range(0));
}

struct Datagrams {
  explicit Datagrams(size_t bytes) : head(datagram_tagged_bytes), payloads(batch, Bytes(bytes)), out(payloads), tags(batch) {}
  void seal(DatagramSealer& sealer, uint64_t& number) {
    for (size_t i = 0; i < batch; ++i) sealer.seal(++number, head, payloads[i], out[i].data(), tags[i]);
  }
  Bytes head;
  std::vector<Bytes> payloads, out;
  std::vector<SealTag> tags;
};

void seal(benchmark::State& state, SealCipher cipher) {
  Datagrams datagrams(static_cast<size_t>(state.range(0)));
  DatagramSealer sealer(cipher, {});
  uint64_t number = 0;
  for (auto _ : state) datagrams.seal(sealer, number);
  set_rate(state);
}

void seal_and_open(benchmark::State& state, SealCipher cipher) {
  Datagrams datagrams(static_cast<size_t>(state.range(0)));
  DatagramSealer sealer(cipher, {});
  DatagramOpener opener(cipher, {});
  uint64_t number = 0;
  for (auto _ : state) {
    auto low = static_cast<uint32_t>(number);
    datagrams.seal(sealer, number);
    for (size_t i = 0; i < batch; ++i) {
      if (!opener.open(++low, datagrams.head, datagrams.out[i], datagrams.tags[i])) state.SkipWithError("it does not open");
    }
  }
  set_rate(state);
}

void siphash(benchmark::State& state) {
  const Datagrams datagrams(static_cast<size_t>(state.range(0)));
  std::vector<DatagramTagged> tagged_datagrams;
  for (const auto& payload : datagrams.payloads) tagged_datagrams.push_back(tagged(datagrams.head, payload, DatagramSeal{}));
  std::vector<uint64_t> tags(batch);
  for (auto _ : state) {
    make_tags(tagged_datagrams, tags);
    benchmark::DoNotOptimize(tags.data());
  }
  set_rate(state);
}

void sizes(benchmark::internal::Benchmark* with) { with->Arg(64)->Arg(1408)->Arg(8908); }

BENCHMARK_CAPTURE(seal, aes_128_gcm, SealCipher::aes_128_gcm)->Apply(sizes);
BENCHMARK_CAPTURE(seal_and_open, aes_128_gcm, SealCipher::aes_128_gcm)->Apply(sizes);
BENCHMARK_CAPTURE(seal, chacha20_poly1305, SealCipher::chacha20_poly1305)->Apply(sizes);
BENCHMARK(siphash)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
