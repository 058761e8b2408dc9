// Tapes of rows: stretches of instructions and functions of whole rows take turns while a row is in the cache.
#include "tape_rows.h"

#include <cstring>

#include "../early.h"
#include "../threads.h"
#include "../workspace.h"
#include "half.h"
#include "iterate.h"
#include "reduce.h"
#include "rows.h"
#include "tape.h"
#include "tape_bind.h"

namespace tritium::TRITIUM_ISA {
namespace tape {
namespace {

using std::int64_t;

constexpr int kViews = kMaxInputs + kMaxOutputs;
constexpr double kWorthWaking = 4000;  // nanoseconds of work for another thread

int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// ---- functions of whole rows

// C is the type of the lanes: float or double.
template <class C>
struct WholeCall {
  const TapePart& part;
  char* const* at;
  int64_t n;

  const C* read(int k) const {
    return part.operand[k] < 0 ? nullptr : reinterpret_cast<const C*>(at[part.operand[k]]);
  }
  char* write(int k) const { return at[part.operand[3 + k]]; }
};

template <class C>
void put_one(C value, char* block) {
  fill_block(block, reinterpret_cast<const char*>(&value), sizeof(value), static_cast<int>(kBlockBytes / sizeof(C)));
}

void round_to(DType type, float* x, int64_t n) {
  constexpr int64_t kPiece = 512;
  alignas(64) std::uint16_t narrowed[kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = n - i < kPiece ? n - i : kPiece;
    narrow(type, x + i, narrowed, m);
    widen(type, narrowed, x + i, m);
  }
}
void round_to(DType, double*, int64_t) {}
bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }

template <class C, Reduction (*op)(DType)>
void reduced(const WholeCall<C>& c) {
  constexpr DType lane = sizeof(C) == 8 ? DType::f64 : DType::f32;
  static const Reduction reduction = op(lane);
  C value;
  reduce_row(reduction, c.read(0), c.n, lane, reinterpret_cast<char*>(&value));
  if (is_half(c.part.dtype)) round_to(c.part.dtype, &value, 1);
  put_one(value, c.write(0));
}

template <class C>
void finish_row(const WholeCall<C>& c, C* y) {
  if (is_half(c.part.dtype)) round_to(c.part.dtype, y, c.n);
}

template <class C, void (*row)(const C*, C*, int64_t)>
void plain_row(const WholeCall<C>& c) {
  C* const y = reinterpret_cast<C*>(c.write(0));
  row(c.read(0), y, c.n);
  finish_row(c, y);
}
template <class C>
void centred_row(const WholeCall<C>& c) {
  C* const y = reinterpret_cast<C*>(c.write(0));
  layer_norm_row<C>(c.read(0), y, c.n, c.read(1), c.read(2), c.part.eps);
  finish_row(c, y);
}
template <class C>
void scaled_row(const WholeCall<C>& c) {
  C* const y = reinterpret_cast<C*>(c.write(0));
  rms_norm_row<C>(c.read(0), y, c.n, c.read(1), c.part.eps);
  finish_row(c, y);
}
template <class C>
void quantized_row(const WholeCall<C>& c) {
  if constexpr (sizeof(C) == 4) {
    std::int32_t sum;
    const float scale = quantize_row(c.read(0), c.n, reinterpret_cast<std::int8_t*>(c.write(0)), &sum);
    put_one(scale, c.write(1));
    put_one(sum, c.write(2));
  }
}

template <class C>
struct Whole {
  const char* name;
  void (*run)(const WholeCall<C>&);
};
template <class C>
constexpr Whole<C> kWholes[] = {
    {"sum", reduced<C, sum_of>},
    {"mean", reduced<C, mean_of>},
    {"max", reduced<C, max_of>},
    {"min", reduced<C, min_of>},
    {"softmax", plain_row<C, softmax_row<C>>},
    {"log_softmax", plain_row<C, log_softmax_row<C>>},
    {"layer_norm", centred_row<C>},
    {"rms_norm", scaled_row<C>},
    {"quantize_activations", quantized_row<C>},
};

template <class C>
const Whole<C>* find_whole(const char* name) {
  for (const Whole<C>& w : kWholes<C>) {
    if (std::strcmp(w.name, name) == 0) return &w;
  }
  return nullptr;
}

template <class C>
void run_whole(const BoundPart& bound, const TapePart& part, char* const* at, int64_t n) {
  static_cast<const Whole<C>*>(bound.whole)->run({part, at, n});
}

// ---- one row

// The memory of one thread. An input or output that is one element of a row is a block of it here.
struct Machine {
  const Tape& tape;
  const Bound& b;
  const int64_t n;
  const Workspace space;
  char *at[kTapeOperands], *base[kTapeOperands], *pads, *copies;
  const char* held[kTapeOperands] = {};

  static int64_t row_bytes(const Tape& tape, int64_t n, int64_t item) {
    return whole(whole(n, block_of(tape)) * item, kAlignment);
  }
  static int64_t bytes(const Tape& tape, int64_t n) {
    int64_t sum = (kScratchBlocks + 3 * tape.operands) * int64_t{kBlockBytes};
    for (int i = 1; i < tape.operands; ++i) {
      if (tape.operand[i].place == Place::row) sum += row_bytes(tape, n, item_size(tape.operand[i].dtype));
    }
    return sum;
  }

  Machine(const Tape& t, int64_t length, int64_t copy_bytes)
      : tape(t), b(bound(t)), n(length), space(bytes(t, length) + copy_bytes, Need::must) {
    char* free = space.data() + place_own(tape, b, space.data(), base);
    for (int i = 1; i < tape.operands; ++i) {
      const TapeOperand& o = tape.operand[i];
      if (o.place == Place::row) {
        base[i] = free;
        free += row_bytes(tape, n, item_size(o.dtype));
      } else if (o.reach != Reach::full) {
        base[i] = free;
        free += kBlockBytes;
      }
    }
    pads = free;
    copies = free + tape.operands * kBlockBytes;
    std::memcpy(at, base, sizeof(char*) * static_cast<std::size_t>(tape.operands));
  }

  // Operand i of the next row: a row of its own, or one element.
  void give(int i, char* from) {
    if (tape.operand[i].reach == Reach::full) {
      base[i] = at[i] = from;
    } else if (tape.operand[i].place == Place::input && held[i] != from) {
      held[i] = from;
      fill_block(base[i], from, item_size(tape.operand[i].dtype), block_of(tape));
    }
  }
  void take(int i, char* to) const {
    if (tape.operand[i].reach == Reach::full) return;
    std::memcpy(to, base[i], static_cast<std::size_t>(item_size(tape.operand[i].dtype)));
  }

  void run() {
    constexpr int64_t kLong = int64_t{1} << 20;
    for (int p = 0; p < tape.parts; ++p) {
      if (n >= kLong && ends_early()) return;
      const BoundPart& part = b.part[p];
      switch (tape.part[p].kind) {
        case PartKind::each:
          run_part(tape, part, at, {}, n, pads);
          for (int k = 0; k < part.count; ++k) at[part.streams[k].operand] = base[part.streams[k].operand];
          break;
        case PartKind::once: run_block(tape, part, at); break;
        case PartKind::whole:
          tape.lane == DType::f64 ? run_whole<double>(part, tape.part[p], at, n)
                                  : run_whole<float>(part, tape.part[p], at, n);
          pad_row(tape.part[p].operand[3]);
      }
    }
  }

  // The lanes behind the end of a row kept here repeat its last element.
  void pad_row(int i) {
    if (tape.operand[i].place != Place::row) return;
    const int64_t item = item_size(tape.operand[i].dtype), end = whole(n, block_of(tape));
    if (end > n) fill_block(base[i] + n * item, base[i] + (n - 1) * item, item, static_cast<int>(end - n));
  }
};

// ---- all rows

// The leading dimensions that all operands share; strides are in bytes, 0 where an operand repeats.
struct Leads {
  int ndim = 0, views;
  int64_t count = 1, n = 1;
  int64_t shape[kMaxDims], strides[kViews][kMaxDims], step[kViews], item[kViews];
  char* data[kViews];

  Leads(const Tape& tape, const Call& call) : views(tape.inputs + tape.outputs) {
    const View& first = call.out[0];
    const Reach reach = tape.operand[1 + tape.inputs].reach;
    const int leads = reach == Reach::lead ? first.ndim : first.ndim - 1;
    for (int d = 0; d < leads; ++d) count *= first.shape[d];
    for (int i = 0; i < views; ++i) {
      const View& v = i < tape.inputs ? call.in[i] : call.out[i - tape.inputs];
      if (tape.operand[i + 1].reach == Reach::full) n = v.shape[v.ndim - 1];
    }
    for (int d = 0; d < leads; ++d) {
      if (first.shape[d] != 1) shape[ndim++] = first.shape[d];
    }
    for (int i = 0; i < views; ++i) {
      const View& v = i < tape.inputs ? call.in[i] : call.out[i - tape.inputs];
      const int own = tape.operand[i + 1].reach == Reach::lead ? v.ndim : v.ndim - 1;  // its leading dimensions
      data[i] = v.data;
      item[i] = item_size(v.dtype);
      step[i] = tape.operand[i + 1].reach == Reach::full ? v.strides[v.ndim - 1] : 0;
      int k = 0;
      for (int d = 0; d < leads; ++d) {
        if (first.shape[d] == 1) continue;
        const int at = d - (leads - own);
        strides[i][k++] = at >= 0 && v.shape[at] != 1 ? v.strides[at] : 0;
      }
    }
    merge();
  }

  void merge() {
    int last = 0;
    for (int d = 1; d < ndim; ++d) {
      bool joins = true;
      for (int i = 0; i < views; ++i) joins = joins && strides[i][last] == strides[i][d] * shape[d];
      if (joins) {
        shape[last] *= shape[d];
      } else {
        shape[++last] = shape[d];
      }
      for (int i = 0; i < views; ++i) strides[i][last] = strides[i][d];
    }
    if (ndim > 0) ndim = last + 1;
  }

  int64_t place(int i, int64_t row) const {
    if (ndim <= 1) return ndim == 0 ? 0 : row * strides[i][0];
    int64_t sum = 0;
    for (int d = ndim - 1; d >= 0; --d) {
      sum += row % shape[d] * strides[i][d];
      row /= shape[d];
    }
    return sum;
  }
};

// A full operand whose elements are apart is copied; a copy that is still right stays.
void run_range(const Tape& tape, const Leads& leads, int64_t begin, int64_t end) {
  int64_t copy_bytes = 0;
  const auto apart = [&](int i) {
    return tape.operand[i + 1].reach == Reach::full && leads.step[i] != leads.item[i] && leads.n > 1;
  };
  for (int i = 0; i < leads.views; ++i) copy_bytes += apart(i) ? whole(leads.n * leads.item[i], kAlignment) : 0;
  Machine machine(tape, leads.n, copy_bytes);
  char* copy[kViews];
  const char* held[kViews] = {};
  char* free = machine.copies;
  for (int i = 0; i < leads.views; ++i) {
    copy[i] = apart(i) ? free : nullptr;
    free += apart(i) ? whole(leads.n * leads.item[i], kAlignment) : 0;
  }
  for (int64_t r = begin; r < end; ++r) {
    for (int i = 0; i < leads.views; ++i) {
      char* const from = leads.data[i] + leads.place(i, r);
      if (copy[i] && i < tape.inputs && held[i] != from) {
        held[i] = from;
        gather_block(copy[i], 0, from, 0, leads.step[i], 1, leads.n, leads.item[i]);
      }
      machine.give(i + 1, copy[i] ? copy[i] : from);
    }
    machine.run();
    for (int i = tape.inputs; i < leads.views; ++i) {
      char* const to = leads.data[i] + leads.place(i, r);
      machine.take(i + 1, to);
      if (copy[i]) scatter_block(to, 0, leads.step[i], copy[i], 1, leads.n, leads.item[i]);
    }
  }
}

}  // namespace

const void* whole_of(const char* name, DType lane) {
  if (lane == DType::f64) return find_whole<double>(name);
  return find_whole<float>(name);
}

void run_rows(const Tape& tape, const Call& call) {
  const Leads leads(tape, call);
  if (leads.count == 0 || leads.n == 0) return;
  const double work = bound(tape).cost * static_cast<double>(leads.n) + 50;
  parallel_for(leads.count, most(1, static_cast<int64_t>(kWorthWaking / work)),
               [&](int64_t begin, int64_t end) { run_range(tape, leads, begin, end); });
}

}  // namespace tape

void run_row(const Tape& tape, const char* const* in, char* const* out, std::int64_t n) {
  tape::Machine machine(tape, n, 0);
  for (int i = 0; i < tape.inputs; ++i) machine.give(i + 1, const_cast<char*>(in[i]));
  for (int i = 0; i < tape.outputs; ++i) machine.give(tape.inputs + i + 1, out[i]);
  machine.run();
  for (int i = 0; i < tape.outputs; ++i) machine.take(tape.inputs + i + 1, out[i]);
}

}  // namespace tritium::TRITIUM_ISA
