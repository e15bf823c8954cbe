// The SIMD kernels. Highway's foreach_target compiles this source once per instruction set, and each time makes one
// KernelTable.
//
// A fold keeps a block of several vectors in registers and reads this block of each source. It writes each result once, and
// never reads it back. 16-bit floats stay in fp32 until the single rounding at the end. A block is read from all sources before
// it is written, so the destination may be one of the sources.

#include "base/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must precede highway.h
#include <hwy/highway.h>

#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>

#include "base/runnable_tables.h"
#include "kernels/formats_inl.h"
#include "kernels/kernel_table.h"
#include "kernels/sketch_inl.h"
#include "kernels/weighted_mean_inl.h"

HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

// This is for targets without vectors, on which no code is faster than the reference.
template <DType to, DType from>
void convert_by_reference(void* destination, const void* source, size_t count) {
  convert_reference(to, destination, from, source, count);
}

void plain_copy(void* destination, const void* source, size_t bytes) { std::memcpy(destination, source, bytes); }

constexpr KernelTable make_table() {
  KernelTable table;
  for (int type = 0; type < dtype_count; ++type) {
    const int op_count = is_floating(static_cast<DType>(type)) ? static_cast<int>(ReduceOp::band) : reduce_op_count;
    for (int op = 0; op < op_count; ++op) table.reduce[type][op] = reduce_reference;
  }
  table.f32_from_bf16 = convert_by_reference<DType::f32, DType::bf16>;
  table.bf16_from_f32 = convert_by_reference<DType::bf16, DType::f32>;
  table.f32_from_f16 = convert_by_reference<DType::f32, DType::f16>;
  table.f16_from_f32 = convert_by_reference<DType::f16, DType::f32>;
  table.stream_copy = table.line_copy = plain_copy;
  table.sketch = sketch_reference;
  table.weighted_mean = weighted_mean_reference;
  return table;
}

#else

// ---- operations on lanes

struct Sum {
  template <typename T>
  static HWY_INLINE Vec<T> apply(Vec<T> a, Vec<T> b) {
    return hn::Add(a, b);
  }
};

// Highway cannot multiply 8-bit lanes, and multiplies 64-bit lanes only on some targets.
struct Product {
  template <typename T>
  static HWY_INLINE Vec<T> apply(Vec<T> a, Vec<T> b) {
    if constexpr (sizeof(T) == 1) {
      const Tag<uint16_t> d16;
      const auto a16 = hn::BitCast(d16, a), b16 = hn::BitCast(d16, b);
      const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0x00FF));
      const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
      return hn::BitCast(Tag<T>(), hn::Or(even, odd));
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      const Tag<uint32_t> d32;
      const auto a_low = hn::BitCast(d32, a), b_low = hn::BitCast(d32, b);
      const auto a_high = hn::BitCast(d32, hn::ShiftRight<32>(a)), b_high = hn::BitCast(d32, hn::ShiftRight<32>(b));
      const auto cross = hn::Add(hn::MulEven(a_low, b_high), hn::MulEven(a_high, b_low));
      return hn::Add(hn::MulEven(a_low, b_low), hn::ShiftLeft<32>(cross));
    } else {
      return hn::Mul(a, b);
    }
  }
};

// Highway's Min and Max are not used for floats, because their results for NaN and signed zeros differ between targets.
struct Minimum {
  template <typename T>
  static HWY_INLINE Vec<T> apply(Vec<T> a, Vec<T> b) {
    if constexpr (std::is_floating_point_v<T>) return hn::IfThenElse(hn::Or(hn::IsNaN(b), hn::Lt(b, a)), b, a);
    else return hn::Min(a, b);
  }
};

struct Maximum {
  template <typename T>
  static HWY_INLINE Vec<T> apply(Vec<T> a, Vec<T> b) {
    if constexpr (std::is_floating_point_v<T>) return hn::IfThenElse(hn::Or(hn::IsNaN(b), hn::Gt(b, a)), b, a);
    else return hn::Max(a, b);
  }
};

struct BitAnd {
  template <typename T>
  static HWY_INLINE Vec<T> apply(Vec<T> a, Vec<T> b) {
    return hn::And(a, b);
  }
};
struct BitOr {
  template <typename T>
  static HWY_INLINE Vec<T> apply(Vec<T> a, Vec<T> b) {
    return hn::Or(a, b);
  }
};
struct BitXor {
  template <typename T>
  static HWY_INLINE Vec<T> apply(Vec<T> a, Vec<T> b) {
    return hn::Xor(a, b);
  }
};

// ---- division and NaN, before a folded value is stored

// Divides one lane at a time, because averages of integers are rare. `dtype` says whether the integers are signed.
template <typename T>
HWY_NOINLINE Vec<T> divide_integers(Vec<T> value, DType dtype, uint32_t divisor) {
  alignas(vector_bytes) T lanes[vector_bytes / sizeof(T)];
  hn::Store(value, Tag<T>(), lanes);
  const bool is_signed = dtype < DType::u8;
  for (T& lane : lanes) {
    if (is_signed) lane = static_cast<T>(static_cast<std::make_signed_t<T>>(lane) / static_cast<int64_t>(divisor));
    else lane = static_cast<T>(static_cast<std::make_unsigned_t<T>>(lane) / static_cast<uint64_t>(divisor));
  }
  return hn::Load(Tag<T>(), lanes);
}

template <typename T>
class Division {
 public:
  explicit HWY_INLINE Division(const Reduction& task) : dtype_(task.dtype), divisor_(task.divisor), wanted_(task.divisor > 1) {
    if constexpr (std::is_floating_point_v<T>) {
      // The reciprocal of a power of two is exact, so a multiplication by it gives exactly the quotient.
      scales_ = (divisor_ & (divisor_ - 1)) == 0;
      operand_ = hn::Set(Tag<T>(), scales_ ? T(1) / static_cast<T>(divisor_ | (divisor_ == 0)) : static_cast<T>(divisor_));
    }
  }
  HWY_INLINE bool wanted() const { return wanted_; }
  HWY_INLINE Vec<T> operator()(Vec<T> value) const {
    if constexpr (std::is_floating_point_v<T>) return scales_ ? hn::Mul(value, operand_) : hn::Div(value, operand_);
    else return divide_integers<T>(value, dtype_, divisor_);
  }

 private:
  DType dtype_;
  uint32_t divisor_;
  bool wanted_;
  bool scales_ = false;
  Vec<T> operand_ = hn::Zero(Tag<T>());
};

// Replaces every NaN by the same NaN. Otherwise the bits of a sum of NaNs would depend on the processor and on the compiler.
template <typename Format>
HWY_INLINE typename Format::Packet unify_nan(typename Format::Packet packet) {
  using T = typename Format::Lane;
  if constexpr (!std::is_floating_point_v<T>) return packet;
  else {
    const auto nan = hn::Set(Tag<T>(), std::numeric_limits<T>::quiet_NaN());
    return Format::map(packet, [&](Vec<T> value) HWY_ATTR { return hn::IfThenElse(hn::IsNaN(value), nan, value); });
  }
}

// unify_nan() for four packets. If a lane is NaN in any packet, it is also NaN in the sum of the packets, so one test suffices
// for most blocks. Infinities of both signs also give NaN, which only costs time.
template <typename Format>
HWY_INLINE void unify_nan(typename Format::Packet& x0, typename Format::Packet& x1, typename Format::Packet& x2,
                          typename Format::Packet& x3) {
  using T = typename Format::Lane;
  if constexpr (std::is_floating_point_v<T>) {
    const auto sum = hn::Add(hn::Add(Format::total(x0), Format::total(x1)), hn::Add(Format::total(x2), Format::total(x3)));
    if (hn::AllFalse(Tag<T>(), hn::IsNaN(sum))) [[likely]]
      return;
    x0 = unify_nan<Format>(x0), x1 = unify_nan<Format>(x1), x2 = unify_nan<Format>(x2), x3 = unify_nan<Format>(x3);
  }
}

// ---- folding

template <typename Format>
HWY_INLINE void put(typename Format::Packet packet, size_t at, uint8_t* destination, uint8_t* copy) {
  Format::store(packet, destination + at);
  if (copy != nullptr) Format::store(packet, copy + at);
}

// Returns one vector of results, which are the bytes [at, at + vector_bytes).
template <typename Format, typename Op>
HWY_INLINE typename Format::Packet fold_vector(std::span<const void* const> sources, size_t at,
                                               const Division<typename Format::Lane>& division) {
  auto folded = Format::load(static_cast<const uint8_t*>(sources[0]) + at);
  for (size_t s = 1; s < sources.size(); ++s) {
    folded = Format::template combine<Op>(folded, Format::load(static_cast<const uint8_t*>(sources[s]) + at));
  }
  if (division.wanted()) folded = Format::map(folded, division);
  return unify_nan<Format>(folded);
}

// Loads the first `bytes` bytes of a vector, and reads nothing behind them. If the target has masks for bytes, they are used.
// Otherwise the bytes are copied through the stack.
HWY_INLINE void load_part(const void* source, size_t bytes, uint8_t* vector) {
#if HWY_TARGET == HWY_AVX3
  const Tag<uint8_t> d8;
  hn::Store(hn::MaskedLoad(hn::FirstN(d8, bytes), d8, static_cast<const uint8_t*>(source)), d8, vector);
#else
  std::memset(vector, 0, vector_bytes);
  std::memcpy(vector, source, bytes);
#endif
}

HWY_INLINE void store_part(const uint8_t* vector, size_t bytes, void* destination) {
#if HWY_TARGET == HWY_AVX3
  const Tag<uint8_t> d8;
  hn::BlendedStore(hn::Load(d8, vector), hn::FirstN(d8, bytes), d8, static_cast<uint8_t*>(destination));
#else
  std::memcpy(destination, vector, bytes);
#endif
}

template <typename Format, typename Op>
HWY_NOINLINE void reduce_short(const Reduction& task, size_t bytes) {
  alignas(vector_bytes) uint8_t buffer[vector_bytes];
  const auto load = [&](const void* source) HWY_ATTR {
    load_part(source, bytes, buffer);
    return Format::load(buffer);
  };
  const Division<typename Format::Lane> division(task);
  auto folded = load(task.sources[0]);
  for (const void* source : task.sources.subspan(1)) folded = Format::template combine<Op>(folded, load(source));
  if (division.wanted()) folded = Format::map(folded, division);
  Format::store(unify_nan<Format>(folded), buffer);
  store_part(buffer, bytes, task.destination);
  if (task.copy != nullptr) store_part(buffer, bytes, task.copy);
}

// Folds blocks of four vectors from the front, and returns the offset of their end. Other variants were not faster with 2 to 64
// sources in memory: blocks of 8 and 16 vectors, prefetching, and tiles of 2 to 16 KiB that take several sources at a time.
template <typename Format, typename Op>
HWY_INLINE size_t reduce_blocks(const Reduction& task, size_t bytes, const Division<typename Format::Lane>& division) {
  constexpr size_t step = vector_bytes;
  const void* const* const sources = task.sources.data();
  const size_t source_count = task.sources.size();
  auto* const destination = static_cast<uint8_t*>(task.destination);
  auto* const copy = static_cast<uint8_t*>(task.copy);
  const auto* const first = static_cast<const uint8_t*>(sources[0]);
  const auto* const second = source_count > 1 ? static_cast<const uint8_t*>(sources[1]) : nullptr;
  size_t at = 0;
  for (; at + 4 * step <= bytes; at += 4 * step) {
    auto x0 = Format::load(first + at), x1 = Format::load(first + at + step);
    auto x2 = Format::load(first + at + 2 * step), x3 = Format::load(first + at + 3 * step);
    const auto add = [&](const uint8_t* source) HWY_ATTR {
      x0 = Format::template combine<Op>(x0, Format::load(source));
      x1 = Format::template combine<Op>(x1, Format::load(source + step));
      x2 = Format::template combine<Op>(x2, Format::load(source + 2 * step));
      x3 = Format::template combine<Op>(x3, Format::load(source + 3 * step));
    };
    if (second != nullptr) add(second + at);
    for (size_t s = 2; s < source_count; ++s) add(static_cast<const uint8_t*>(sources[s]) + at);
    if (division.wanted()) {
      x0 = Format::map(x0, division), x1 = Format::map(x1, division);
      x2 = Format::map(x2, division), x3 = Format::map(x3, division);
    }
    unify_nan<Format>(x0, x1, x2, x3);
    put<Format>(x0, at, destination, copy), put<Format>(x1, at + step, destination, copy);
    put<Format>(x2, at + 2 * step, destination, copy), put<Format>(x3, at + 3 * step, destination, copy);
  }
  return at;
}

template <typename Format, typename Op>
void reduce_with(const Reduction& task) {
  const size_t bytes = task.count * Format::element_bytes;
  if (bytes < vector_bytes) return reduce_short<Format, Op>(task, bytes);
  const Division<typename Format::Lane> division(task);
  auto* const destination = static_cast<uint8_t*>(task.destination);
  auto* const copy = static_cast<uint8_t*>(task.copy);
  // The last vector overlaps the previous one, so no masks and no scalar tail are needed. It is folded first, because the
  // destination may be a source, and it is stored last.
  const size_t last_at = bytes - vector_bytes;
  const auto last = fold_vector<Format, Op>(task.sources, last_at, division);
  size_t at = reduce_blocks<Format, Op>(task, bytes, division);
  for (; at < last_at; at += vector_bytes) {
    put<Format>(fold_vector<Format, Op>(task.sources, at, division), at, destination, copy);
  }
  put<Format>(last, last_at, destination, copy);
}

// ---- conversions: each step takes as many elements as a vector has fp32 lanes

constexpr size_t convert_lanes = vector_bytes / sizeof(float);
using LowTag = hn::Rebind<uint16_t, Tag<float>>;

HWY_INLINE Vec<uint32_t> load_low(const uint8_t* at) {
  const hn::Repartition<uint8_t, LowTag> d8;
  return hn::PromoteTo(Tag<uint32_t>(), hn::BitCast(LowTag(), hn::LoadU(d8, at)));
}

// Stores the low 16 bits of each lane. Lanes must be below 2^16.
HWY_INLINE void store_low(Vec<uint32_t> value, uint8_t* at) {
  const hn::Repartition<uint8_t, LowTag> d8;
  hn::StoreU(hn::BitCast(d8, hn::DemoteTo(LowTag(), hn::BitCast(Tag<int32_t>(), value))), d8, at);
}

struct F32FromBf16 {
  static constexpr size_t from_bytes = 2, to_bytes = 4;
  static HWY_INLINE void apply(const uint8_t* from, uint8_t* to) {
    store<uint32_t>(quiet(hn::ShiftLeft<16>(load_low(from))), to);
  }
};

struct Bf16FromF32 {
  static constexpr size_t from_bytes = 4, to_bytes = 2;
  static HWY_INLINE void apply(const uint8_t* from, uint8_t* to) {
    store_low(hn::ShiftRight<16>(high_bf16_from_f32(load<float>(from))), to);
  }
};

struct F32FromF16 {
  static constexpr size_t from_bytes = 2, to_bytes = 4;
  static HWY_INLINE void apply(const uint8_t* from, uint8_t* to) {
#if UNISONO_NATIVE_F16
    store<float>(Halves::load_half(from), to);
#else
    store<float>(f32_from_low_f16(load_low(from)), to);
#endif
  }
};

struct F16FromF32 {
  static constexpr size_t from_bytes = 4, to_bytes = 2;
  static HWY_INLINE void apply(const uint8_t* from, uint8_t* to) {
#if UNISONO_NATIVE_F16
    Halves::store_half(load<float>(from), to);
#else
    store_low(low_f16_from_f32(load<float>(from)), to);
#endif
  }
};

template <typename Conversion>
void convert_with(void* destination, const void* source, size_t count) {
  const auto* const from = static_cast<const uint8_t*>(source);
  auto* const to = static_cast<uint8_t*>(destination);
  size_t i = 0;
  for (; i + convert_lanes <= count; i += convert_lanes) {
    Conversion::apply(from + i * Conversion::from_bytes, to + i * Conversion::to_bytes);
  }
  if (i == count) return;
  alignas(vector_bytes) uint8_t input[vector_bytes] = {};
  alignas(vector_bytes) uint8_t output[vector_bytes];
  std::memcpy(input, from + i * Conversion::from_bytes, (count - i) * Conversion::from_bytes);
  Conversion::apply(input, output);
  std::memcpy(to + i * Conversion::to_bytes, output, (count - i) * Conversion::to_bytes);
}

// Copies whole cache lines of the destination; memcpy copies the bytes before and after them.
template <bool past_caches>
void copy_lines(void* destination, const void* source, size_t bytes) {
  auto* to = static_cast<uint8_t*>(destination);
  const auto* from = static_cast<const uint8_t*>(source);
  const size_t head = (0 - reinterpret_cast<uintptr_t>(to)) % 64;
  if (bytes < head + 64) return static_cast<void>(std::memcpy(to, from, bytes));
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + 64 <= bytes; at += 64) {  // whole lines only: for a part of a line, a streaming store would first read the line
    for (size_t part = 0; part < 64; part += vector_bytes) {
      const auto vector = hn::LoadU(Tag<uint8_t>(), from + at + part);
      if constexpr (past_caches) hn::Stream(vector, Tag<uint8_t>(), to + at + part);
      else hn::Store(vector, Tag<uint8_t>(), to + at + part);
    }
  }
  if constexpr (past_caches) hwy::FlushStream();
  std::memcpy(to + at, from + at, bytes - at);
}

// ---- the kernel table

constexpr int at(DType type) { return static_cast<int>(type); }
constexpr int at(ReduceOp op) { return static_cast<int>(op); }

template <typename Format>
constexpr void set_arithmetic(KernelTable& table, DType type) {
  table.reduce[at(type)][at(ReduceOp::sum)] = reduce_with<Format, Sum>;
  table.reduce[at(type)][at(ReduceOp::avg)] = reduce_with<Format, Sum>;
  table.reduce[at(type)][at(ReduceOp::prod)] = reduce_with<Format, Product>;
}

template <typename Format>
constexpr void set_order(KernelTable& table, DType type) {
  table.reduce[at(type)][at(ReduceOp::min)] = reduce_with<Format, Minimum>;
  table.reduce[at(type)][at(ReduceOp::max)] = reduce_with<Format, Maximum>;
}

template <typename Format>
constexpr void set_floats(KernelTable& table, DType type) {
  set_arithmetic<Format>(table, type);
  set_order<Format>(table, type);
}

// Wrapping arithmetic and bit operations are the same for signed and unsigned types, but min and max are not.
template <typename T>
constexpr void set_integers(KernelTable& table, DType signed_type, DType unsigned_type) {
  using Format = Native<T>;
  for (const DType type : {signed_type, unsigned_type}) {
    set_arithmetic<Format>(table, type);
    table.reduce[at(type)][at(ReduceOp::band)] = reduce_with<Format, BitAnd>;
    table.reduce[at(type)][at(ReduceOp::bor)] = reduce_with<Format, BitOr>;
    table.reduce[at(type)][at(ReduceOp::bxor)] = reduce_with<Format, BitXor>;
  }
  set_order<Format>(table, unsigned_type);
  set_order<Native<std::make_signed_t<T>>>(table, signed_type);
}

constexpr KernelTable make_table() {
  KernelTable table;
  set_floats<Native<float>>(table, DType::f32);
#if HWY_HAVE_FLOAT64
  set_floats<Native<double>>(table, DType::f64);
#else
  for (int op = 0; op < at(ReduceOp::band); ++op) table.reduce[at(DType::f64)][op] = reduce_reference;
#endif
  set_floats<Halves>(table, DType::f16);
  set_floats<BrainFloats>(table, DType::bf16);
  set_integers<uint8_t>(table, DType::i8, DType::u8);
  set_integers<uint16_t>(table, DType::i16, DType::u16);
  set_integers<uint32_t>(table, DType::i32, DType::u32);
  set_integers<uint64_t>(table, DType::i64, DType::u64);
  table.f32_from_bf16 = convert_with<F32FromBf16>;
  table.bf16_from_f32 = convert_with<Bf16FromF32>;
  table.f32_from_f16 = convert_with<F32FromF16>;
  table.f16_from_f32 = convert_with<F16FromF32>;
  table.stream_copy = copy_lines<true>;
  table.line_copy = copy_lines<false>;
  table.sketch = sketch_rows;
#if HWY_HAVE_FLOAT64
  table.weighted_mean = weighted_mean_simd;
#else
  table.weighted_mean = weighted_mean_reference;
#endif
  return table;
}

#endif  // HWY_TARGET

}  // namespace

const KernelTable& kernel_table() {
  static constexpr KernelTable table = [] {
    KernelTable made = make_table();
    made.target = HWY_TARGET;
    return made;
  }();
  return table;
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace unisono::kernels {
namespace {

constexpr RunnableTables<KernelTable, 1>::Function compiled[] = {HWY_CHOOSE_TARGET_LIST(kernel_table),
                                                                 HWY_CHOOSE_FALLBACK(kernel_table)};

}  // namespace

std::span<const KernelTable* const> runnable_tables() {
  static const RunnableTables<KernelTable, std::size(compiled)> runnable(compiled,
                                                                         // The processor is queried only once.
                                                                         HWY_SUPPORTED_TARGETS);
  return runnable.all();
}

std::span<const char* const> runnable_names() {
  static const auto names = [] {
    std::array<const char*, std::size(compiled)> all{};
    for (size_t i = 0; i < runnable_tables().size(); ++i) all[i] = hwy::TargetName(runnable_tables()[i]->target);
    return all;
  }();
  return std::span(names).first(runnable_tables().size());
}

}  // namespace unisono::kernels
#endif  // HWY_ONCE
