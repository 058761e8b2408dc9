// The table of a tape's instructions, how a tape is bound to it, and the loop over blocks.
#include "tape_bind.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "cast.h"
#include "tape.h"

namespace tritium::TRITIUM_ISA {
namespace tape {
namespace {

// Nanoseconds per element, on one core of an ordinary machine.
constexpr double kCheap = 0.015, kDear = 0.25, kDearer = 0.8, kSlow = 2, kTouch = 0.03;

// What an instruction of a name and a dtype of lanes is; `reversed` where the accumulator may come second, `around`
// where it may store around the cache.
template <class T>
struct Row {
  const char* name;
  DType dtype;
  Step<T> forward, reversed;
  Step<T> around = nullptr;
  double cost = kCheap;
};

template <class T>
constexpr DType kFloat = sizeof(T) == 8 ? DType::f64 : DType::f32;

#define TRITIUM_UNARY(name, Op) {name, kFloat<T>, unary_step<T, Op>, nullptr}
#define TRITIUM_HOT(name, Op, cost) {name, DType::f32, unary_step<float, Hot<Op>>, nullptr, nullptr, cost}
#define TRITIUM_BINARY(name, Op) {name, kFloat<T>, binary_step<T, Op>, reversed_step<T, Op>}
#define TRITIUM_STORE(type, Kind) {"store", type, store_step<T, Kind, false>, nullptr, store_step<T, Kind, true>}
#define TRITIUM_UNARY_OF(name, type, Op) {name, type, unary_step<T, OnBits<Op>>, nullptr}
#define TRITIUM_BINARY_OF(name, type, Op) {name, type, binary_step<T, OnBits<Op>>, reversed_step<T, OnBits<Op>>}

// For lanes of either width.
template <class T>
constexpr Row<T> kRows[] = {
    TRITIUM_BINARY("add", Add),
    TRITIUM_BINARY("subtract", Subtract),
    TRITIUM_BINARY("multiply", Multiply),
    TRITIUM_BINARY("divide", Divide),
    TRITIUM_BINARY("maximum", Maximum),
    TRITIUM_BINARY("minimum", Minimum),
    TRITIUM_BINARY("copysign", Copysign),
    {"clip", kFloat<T>, ternary_step<T, Clip>, nullptr},
    TRITIUM_UNARY("abs", Abs),
    TRITIUM_UNARY("negative", Negative),
    TRITIUM_UNARY("positive", Positive),
    TRITIUM_UNARY("square", Square),
    TRITIUM_UNARY("reciprocal", Reciprocal),
    TRITIUM_UNARY("sign", Sign),
    TRITIUM_UNARY("relu", Relu),
    TRITIUM_UNARY("relu2", Relu2),
#if defined(TRITIUM_TAPE_ROOTS)
    TRITIUM_UNARY("sqrt", Sqrt),
    TRITIUM_UNARY("rsqrt", Rsqrt),
#endif
#if defined(TRITIUM_TAPE_ROUNDS)
    TRITIUM_UNARY("ceil", Ceil),
    TRITIUM_UNARY("floor", Floor),
    TRITIUM_UNARY("trunc", Trunc),
    TRITIUM_UNARY("round", Round),
#endif
    TRITIUM_BINARY("equal", Equal),
    TRITIUM_BINARY("not_equal", NotEqual),
    TRITIUM_BINARY("less", Less),
    TRITIUM_BINARY("less_equal", LessEqual),
    TRITIUM_BINARY("greater", Greater),
    TRITIUM_BINARY("greater_equal", GreaterEqual),
    TRITIUM_UNARY("isnan", IsNaN),
    TRITIUM_UNARY("isinf", IsInf),
    TRITIUM_UNARY("isfinite", IsFinite),
    TRITIUM_UNARY("signbit", SignBit),
    TRITIUM_UNARY("to_b8", NotZero),
    {"load", kFloat<T>, load_step<T, Raw>, nullptr},
    TRITIUM_STORE(kFloat<T>, Raw),
    // Truths: all bits of a lane or none, so that true is less than false.
    {"load", DType::b8, load_step<T, Truth>, nullptr},
    TRITIUM_STORE(DType::b8, Truth),
    {"where", DType::b8, ternary_step<T, OnBits<Where>>, nullptr},
    {"where_given", DType::b8, masked_step<T, OnBits<Where>, false>, masked_step<T, OnBits<Where>, true>},
    TRITIUM_BINARY_OF("logical_and", DType::b8, And),
    TRITIUM_BINARY_OF("logical_or", DType::b8, Or),
    TRITIUM_BINARY_OF("logical_xor", DType::b8, Xor),
    TRITIUM_BINARY_OF("bitwise_and", DType::b8, And),
    TRITIUM_BINARY_OF("bitwise_or", DType::b8, Or),
    TRITIUM_BINARY_OF("bitwise_xor", DType::b8, Xor),
    TRITIUM_UNARY_OF("logical_not", DType::b8, Invert),
    TRITIUM_UNARY_OF("bitwise_invert", DType::b8, Invert),
    TRITIUM_BINARY_OF("equal", DType::b8, Equal),
    TRITIUM_BINARY_OF("not_equal", DType::b8, NotEqual),
    TRITIUM_BINARY_OF("less", DType::b8, Greater),
    TRITIUM_BINARY_OF("less_equal", DType::b8, GreaterEqual),
    TRITIUM_BINARY_OF("greater", DType::b8, Less),
    TRITIUM_BINARY_OF("greater_equal", DType::b8, LessEqual),
    {"to_float", DType::b8, unary_step<T, TruthToFloat>, nullptr},
};

using T = float;
constexpr Row<float> kNarrowRows[] = {
#if defined(__AVX512F__)
    TRITIUM_HOT("exp", hot::Exp, kDear),
    TRITIUM_HOT("log", hot::Log<hot::kNatural>, kDear),
    TRITIUM_HOT("log2", hot::Log<hot::kBinary>, kDear),
    TRITIUM_HOT("log10", hot::Log<hot::kDecimal>, kDear),
    TRITIUM_HOT("silu", hot::Silu, kDearer),
    TRITIUM_HOT("tanh", hot::Tanh, kDear),
#endif
#if defined(__F16C__)
    {"load", DType::f16, load_step<T, F16>, nullptr},
    TRITIUM_STORE(DType::f16, F16),
    {"to_f16", DType::f32, unary_step<T, F16>, nullptr},
#else
    {"load", DType::f16, load_f16_step<T>, nullptr},
    {"store", DType::f16, store_f16_step<T>, nullptr},
    {"to_f16", DType::f32, round_f16_step<T>, nullptr},
#endif
    {"load", DType::bf16, load_step<T, Bf16>, nullptr},
    TRITIUM_STORE(DType::bf16, Bf16),
    {"to_bf16", DType::f32, unary_step<T, RoundBf16>, nullptr},
    {"to_i32", DType::f32, unary_step<T, FloatToInt>, nullptr},
    {"to_i8", DType::f32, unary_step<T, FloatToByte>, nullptr},
    {"load", DType::i8, load_step<T, Int8>, nullptr},
    TRITIUM_STORE(DType::i8, Int8),
    {"load", DType::i32, load_step<T, Raw>, nullptr},
    TRITIUM_STORE(DType::i32, Raw),
    {"to_float", DType::i32, unary_step<T, IntToFloat>, nullptr},
    {"to_i8", DType::i32, unary_step<T, ByteOfInt>, nullptr},
    {"to_i32", DType::b8, unary_step<T, OnBits<TruthToInt>>, nullptr},
    TRITIUM_UNARY_OF("to_b8", DType::i32, NotZero),
    TRITIUM_BINARY_OF("add", DType::i32, WrapAdd),
    TRITIUM_BINARY_OF("subtract", DType::i32, WrapSubtract),
    TRITIUM_BINARY_OF("multiply", DType::i32, WrapMultiply),
    TRITIUM_BINARY_OF("maximum", DType::i32, IntMaximum),
    TRITIUM_BINARY_OF("minimum", DType::i32, IntMinimum),
    {"clip", DType::i32, ternary_step<T, OnBits<IntClip>>, nullptr},
    TRITIUM_UNARY_OF("abs", DType::i32, WrapAbs),
    TRITIUM_UNARY_OF("negative", DType::i32, WrapNegative),
    TRITIUM_UNARY_OF("positive", DType::i32, Positive),
    TRITIUM_UNARY_OF("ceil", DType::i32, Positive),
    TRITIUM_UNARY_OF("floor", DType::i32, Positive),
    TRITIUM_UNARY_OF("trunc", DType::i32, Positive),
    TRITIUM_UNARY_OF("round", DType::i32, Positive),
    TRITIUM_UNARY_OF("square", DType::i32, WrapSquare),
    TRITIUM_UNARY_OF("sign", DType::i32, IntSign),
    TRITIUM_UNARY_OF("relu", DType::i32, Relu),
    TRITIUM_UNARY_OF("relu2", DType::i32, WrapRelu2),
    TRITIUM_BINARY_OF("equal", DType::i32, Equal),
    TRITIUM_BINARY_OF("not_equal", DType::i32, NotEqual),
    TRITIUM_BINARY_OF("less", DType::i32, Less),
    TRITIUM_BINARY_OF("less_equal", DType::i32, LessEqual),
    TRITIUM_BINARY_OF("greater", DType::i32, Greater),
    TRITIUM_BINARY_OF("greater_equal", DType::i32, GreaterEqual),
    TRITIUM_BINARY_OF("bitwise_and", DType::i32, And),
    TRITIUM_BINARY_OF("bitwise_or", DType::i32, Or),
    TRITIUM_BINARY_OF("bitwise_xor", DType::i32, Xor),
    TRITIUM_UNARY_OF("bitwise_invert", DType::i32, Invert),
};

template <class T, std::size_t n>
const Row<T>* look(const Row<T> (&rows)[n], const TapeInstruction& i) {
  for (const Row<T>& row : rows) {
    if (row.dtype == i.dtype && std::strcmp(row.name, i.name) == 0) return &row;
  }
  return nullptr;
}
const Row<float>* find_row(const TapeInstruction& i, float) {
  const Row<float>* found = look(kNarrowRows, i);
  return found ? found : look(kRows<float>, i);
}
const Row<double>* find_row(const TapeInstruction& i, double) { return look(kRows<double>, i); }

// A row of the eager kernels' tables on blocks; i32 to f32 by rounding to odd is one of the casts.
SpanCall find_loop(const TapeInstruction& i) {
  if (std::strcmp(i.name, "to_odd") == 0) {
    return {find_cast(DType::i32, DType::f16).first, 1, Cost::cheap, DType::i32, DType::f32};
  }
  const SpanCall call = find_span(i.name, i.dtype);
  const bool fits = call.run && call.arity <= 2 && call.in == i.dtype && call.out == i.dtype;
  return fits ? call : SpanCall{};
}

template <class T>
bool bind_step(const TapeInstruction& i, bool around, Instr& to, double& cost) {
  to.x = i.x;
  to.y = i.y;
  to.span = nullptr;
  Step<T> step = nullptr;
  if (const Row<T>* row = find_row(i, T{})) {
    step = i.reversed ? row->reversed : around && row->around ? row->around : row->forward;
    cost += row->cost;
  } else if (const SpanCall call = find_loop(i); call.run) {
    to.span = call.run;
    step = call.arity == 1 ? span_step<T, 1, false> : i.reversed ? span_step<T, 2, true> : span_step<T, 2, false>;
    cost += call.cost == Cost::cheap ? 2 * kCheap : call.cost == Cost::dear ? kDear : kSlow;
  }
  to.fn = reinterpret_cast<void (*)()>(step);
  return step != nullptr;
}

bool bind_one(const Tape& tape, const TapeInstruction& i, bool around, Instr& to, double& cost) {
  return tape.lane == DType::f64 ? bind_step<double>(i, around, to, cost) : bind_step<float>(i, around, to, cost);
}

void stop_at(const Tape& tape, Instr& to) {
  to = {};
  to.fn = tape.lane == DType::f64 ? reinterpret_cast<void (*)()>(stop<double>)
                                  : reinterpret_cast<void (*)()>(stop<float>);
}

// The code of a stretch; `around`: results are stored around the cache. Returns where the next code goes.
Instr* bind_code(const Tape& tape, const TapePart& part, bool around, Instr* to, double& cost) {
  for (int k = part.first; k < part.first + part.count; ++k) {
    const TapeInstruction& i = tape.instruction[k];
    bind_one(tape, i, around && i.x > 0 && tape.operand[i.x].place == Place::output, *to++, cost);
  }
  stop_at(tape, *to++);
  return to;
}

// The streams of a stretch, each once.
int list_streams(const Tape& tape, const TapePart& part, Stream* to) {
  int count = 0;
  Mask seen, read;
  for (int k = part.first; k < part.first + part.count; ++k) {
    const TapeInstruction& i = tape.instruction[k];
    const bool reads = std::strcmp(i.name, "store") != 0;
    for (const int operand : {i.x, i.y}) {
      if (operand <= 0) continue;
      if (reads) read.add(operand);
      const TapeOperand& o = tape.operand[operand];
      const bool streams = o.place == Place::input || o.place == Place::output || o.place == Place::row;
      if (!streams || o.reach != Reach::full || seen.has(operand)) continue;
      seen.add(operand);
      to[count++] = {static_cast<std::int16_t>(operand), false, o.place == Place::output, o.place == Place::row,
                     static_cast<std::int32_t>(item_size(o.dtype))};
    }
  }
  for (int k = 0; k < count; ++k) to[k].read = read.has(to[k].operand);
  return count;
}

std::int64_t constants_of(const Tape& tape) {
  std::int64_t n = 0;
  for (int i = 0; i < tape.operands; ++i) n += tape.operand[i].place == Place::constant;
  return n;
}

Bound* bind(const Tape& tape) {
  const std::int64_t code = whole(2 * (tape.instructions + tape.parts) * static_cast<std::int64_t>(sizeof(Instr)), 64);
  const std::int64_t parts = whole(tape.parts * static_cast<std::int64_t>(sizeof(BoundPart)), 64);
  const std::int64_t streams = whole(tape.parts * kTapeOperands * static_cast<std::int64_t>(sizeof(Stream)), 64);
  const std::int64_t bytes = 64 + code + parts + streams + constants_of(tape) * kBlockBytes + 64;
  char* const block = static_cast<char*>(std::malloc(static_cast<std::size_t>(bytes)));
  if (block == nullptr) std::abort();
  Bound* const made = reinterpret_cast<Bound*>(block);
  Instr* instr = reinterpret_cast<Instr*>(block + 64);
  BoundPart* const part = reinterpret_cast<BoundPart*>(block + 64 + code);
  Stream* stream = reinterpret_cast<Stream*>(block + 64 + code + parts);
  const auto end = reinterpret_cast<std::uintptr_t>(block + 64 + code + parts + streams);
  char* constant = block + 64 + code + parts + streams + (64 - end % 64) % 64;
  *made = {part, constant, kTouch * (tape.inputs + tape.outputs)};
  for (int p = 0; p < tape.parts; ++p) {
    const TapePart& from = tape.part[p];
    part[p] = {instr, instr, stream, 0, nullptr};
    if (from.kind == PartKind::whole) {
      part[p].whole = whole_of(from.name, tape.lane);
      made->cost += 1;
      continue;
    }
    double cost = 0;
    instr = bind_code(tape, from, false, instr, cost);
    if (from.kind == PartKind::each) made->cost += cost;
    part[p].around = instr;
    instr = bind_code(tape, from, true, instr, cost);
    part[p].count = list_streams(tape, from, stream);
    stream += part[p].count;
  }
  const int width = tape.lane == DType::f64 ? 8 : 4;
  for (int i = 0; i < tape.operands; ++i) {
    if (tape.operand[i].place != Place::constant) continue;
    fill_block(constant, reinterpret_cast<const char*>(&tape.operand[i].bits), width, kBlockBytes / width);
    constant += kBlockBytes;
  }
  return made;
}

template <class T>
TRITIUM_INLINE void run_code(const Instr* code, char* const* at) {
  const Vec<T> z{};
  reinterpret_cast<Step<T>>(code->fn)(code, at, z, z, z, z, z, z, z, z);
}

template <class E>
TRITIUM_INLINE void fill(char* to, const char* from, int n) {
  E value;
  __builtin_memcpy(&value, from, sizeof(E));
  for (int i = 0; i < n; ++i) __builtin_memcpy(to + i * sizeof(E), &value, sizeof(E));
}
TRITIUM_INLINE void fill_items(char* to, const char* from, std::int64_t item, int n) {
  switch (item) {
    case 1: return fill<std::uint8_t>(to, from, n);
    case 2: return fill<std::uint16_t>(to, from, n);
    case 4: return fill<std::uint32_t>(to, from, n);
    default: return fill<std::uint64_t>(to, from, n);
  }
}

// The last elements, fewer than a block: what is not our own memory is copied to pads and back.
template <class T>
void run_rest(const BoundPart& part, char** at, const Mask& still, std::int64_t rest, char* pads) {
  char* kept[kTapeOperands];
  for (int k = 0; k < part.count; ++k) {
    const Stream& s = part.streams[k];
    if (s.padded || still.has(s.operand)) continue;
    char* const pad = pads + k * kBlockBytes;
    kept[k] = at[s.operand];
    at[s.operand] = pad;
    if (!s.read) continue;
    // Lanes that nobody looks at repeat the last: they may not send a block to a slower loop.
    fill_items(pad, kept[k] + (rest - 1) * s.item, s.item, kBlock<T>);
    std::memcpy(pad, kept[k], static_cast<std::size_t>(rest * s.item));
  }
  run_code<T>(part.code, at);
  for (int k = 0; k < part.count; ++k) {
    const Stream& s = part.streams[k];
    if (s.padded || still.has(s.operand)) continue;
    if (s.written) std::memcpy(kept[k], pads + k * kBlockBytes, static_cast<std::size_t>(rest * s.item));
    at[s.operand] = kept[k];
  }
}

template <class T>
void run_whole_blocks(const BoundPart& part, const Instr* code, char** at, const Mask& still, std::int64_t blocks) {
  struct Move {
    char** at;
    std::int64_t step;
  } moves[kTapeOperands];
  int count = 0;
  for (int k = 0; k < part.count; ++k) {
    const Stream& s = part.streams[k];
    if (!still.has(s.operand)) moves[count++] = {at + s.operand, s.item * std::int64_t{kBlock<T>}};
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    run_code<T>(code, at);
    for (int k = 0; k < count; ++k) *moves[k].at += moves[k].step;
  }
}

template <class T>
void run_part_as(const BoundPart& part, char** at, const Mask& still, std::int64_t n, char* pads, Stores stores) {
  const Instr* const code = stores == Stores::around ? part.around : part.code;
  if (n >= kBlock<T>) run_whole_blocks<T>(part, code, at, still, n / kBlock<T>);
  if (const std::int64_t rest = n % kBlock<T>) run_rest<T>(part, at, still, rest, pads);
}

}  // namespace

const Bound& bound(const Tape& tape) {
  void** const slot = &tape.bound[static_cast<int>(Isa::TRITIUM_ISA)];
  void* found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  if (found == nullptr) {
    Bound* const made = bind(tape);
    if (__atomic_compare_exchange_n(slot, &found, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      found = made;
    } else {
      std::free(made);  // another thread was first
    }
  }
  return *static_cast<const Bound*>(found);
}

// The compiler does not see what the last instruction leaves in the wide registers: code that uses their lower halves
// would wait for the upper ones.
TRITIUM_INLINE void leave_registers() {
#if defined(__AVX__)
  _mm256_zeroupper();
#endif
}

void run_part(const Tape& tape, const BoundPart& part, char** at, const Mask& still, std::int64_t n, char* pads,
              Stores stores) {
  tape.lane == DType::f64 ? run_part_as<double>(part, at, still, n, pads, stores)
                          : run_part_as<float>(part, at, still, n, pads, stores);
  leave_registers();
}

void run_block(const Tape& tape, const BoundPart& part, char* const* at) {
  tape.lane == DType::f64 ? run_code<double>(part.code, at) : run_code<float>(part.code, at);
  leave_registers();
}

void fill_block(char* to, const char* from, std::int64_t item, int block) { fill_items(to, from, item, block); }

std::int64_t place_own(const Tape& tape, const Bound& bound, char* space, char** at) {
  at[0] = space;
  std::int64_t taken = kScratchBlocks * kBlockBytes;
  const char* constant = bound.constants;
  for (int i = 1; i < tape.operands; ++i) {
    if (tape.operand[i].place == Place::constant) {
      at[i] = const_cast<char*>(constant);
      constant += kBlockBytes;
    } else if (tape.operand[i].place == Place::slot) {
      at[i] = space + taken;
      taken += kBlockBytes;
    }
  }
  return taken;
}

}  // namespace tape

const char* tape_refusal(const Tape& tape) {
  if (tape.operands < 1 || tape.operands > kTapeOperands) return "it has too many operands";
  if (tape.parts < 1 || (!tape.rows && (tape.parts != 1 || tape.part[0].kind != PartKind::each))) {
    return "an elementwise tape is one stretch";
  }
  const auto known = [&](int operand) { return operand >= -1 && operand < tape.operands; };
  for (int p = 0; p < tape.parts; ++p) {
    const TapePart& part = tape.part[p];
    if (part.first < 0 || part.count < 0 || part.first + part.count > tape.instructions) return "a part is cut short";
    for (const int operand : part.operand) {
      if (!known(operand)) return "a part has an operand that does not exist";
    }
    if (part.kind == PartKind::whole) {
      if (!tape::whole_of(part.name, tape.lane)) return part.name;
      if (part.operand[0] < 0 || part.operand[3] < 0) return "a function of rows lacks an operand";
    }
  }
  for (int k = 0; k < tape.instructions; ++k) {
    tape::Instr bound;
    double cost = 0;
    if (!known(tape.instruction[k].x) || !known(tape.instruction[k].y)) return "an operand does not exist";
    if (!tape::bind_one(tape, tape.instruction[k], false, bound, cost)) return tape.instruction[k].name;
  }
  return nullptr;
}

}  // namespace tritium::TRITIUM_ISA
