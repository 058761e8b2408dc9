// fused_product: a product whose left operand is computed row by row and whose results go on through a tape, both while
// they are in the cache.
// Knows nothing of how the product is computed; hooks.h is all it shares with it.
#include "../fused_product.h"

#include <cstring>

#include "../hooks.h"
#include "../integer/product.h"
#include "../workspace.h"
#include "half.h"
#include "iterate.h"
#include "tape.h"
#include "tape_bind.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kStage = 4096;                      // bytes of an operand that are brought together for a tape
constexpr int64_t kLongRow = 512;                     // elements that are worth a run of their own
constexpr int64_t kTapeBlock = 128;                   // elements that a tape likes to have
constexpr int kStages = kMaxInputs + kMaxOutputs + 1;

// The view repeated to a shape.
View spread(const View& v, int ndim, const int64_t* shape) {
  View wide;
  wide.data = v.data;
  wide.dtype = v.dtype;
  wide.ndim = ndim;
  for (int d = 0; d < ndim; ++d) {
    const int own = d - (ndim - v.ndim);
    wide.shape[d] = shape[d];
    wide.strides[d] = own >= 0 && v.shape[own] != 1 ? v.strides[own] : 0;
  }
  return wide;
}

// An operand of a tape as the rows of the result, or of the product's left operand.
struct Side {
  RowList rows;
  int64_t item;
  bool even;         // rows are the same number of bytes apart
  int64_t row_step;  // that number

  explicit Side(const View& v = {}) : rows(v), item(item_size(v.dtype)), even(rows.ndim <= 1) {
    row_step = rows.ndim == 1 ? rows.strides[0] : 0;
  }
  // One element serves all of so many rows.
  bool repeats(int64_t count) const { return rows.step == 0 && (count == 1 || (even && row_step == 0)); }
  // A tape can read its rows where they lie.
  bool is_plain() const { return even && (rows.step == item || rows.step == 0); }
  char* at(int64_t row, int64_t column) const { return rows.row(row) + column * rows.step; }
};

// A block of results that one run of a tape takes.
struct Piece {
  int64_t row, rows, column, columns;
  int64_t size() const { return rows * columns; }
};

// A tape on stretches of elements, one after another: what they share is set up once.
class Runner {
 public:
  explicit Runner(const Tape& tape) : tape_(tape), bound_(tape::bound(tape)) {
    tape::place_own(tape_, bound_, space_, at_);
  }
  Runner(const Runner&) = delete;

  // Operands as run_tape takes them.
  void run(const char* const* in, char* const* out, int64_t n, std::uint32_t repeated) {
    tape::Mask still;
    for (int i = 0; i < tape_.inputs; ++i) {
      at_[i + 1] = const_cast<char*>(in[i]);
      if (repeated >> i & 1) {
        at_[i + 1] = ones_ + i * tape::kBlockBytes;
        tape::fill_block(at_[i + 1], in[i], item_size(tape_.operand[i + 1].dtype), tape::block_of(tape_));
        still.add(i + 1);
      }
    }
    for (int i = 0; i < tape_.outputs; ++i) at_[tape_.inputs + i + 1] = out[i];
    tape::run_part(tape_, bound_.part[0], at_, still, n, pads_);
  }

  // Operands as the machine of the tape sees them: inputs, then outputs, each so many bytes further from row to row.
  struct Line {
    char* at;
    int64_t step;
    bool one;  // an element for the whole row
  };
  void run_rows(const Line* lines, int64_t rows, int64_t n) {
    const int count = tape_.inputs + tape_.outputs;
    tape::Mask still;
    for (int i = 0; i < count; ++i) {
      if (lines[i].one) still.add(i + 1);
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (int i = 0; i < count; ++i) {
        char* const from = lines[i].at + row * lines[i].step;
        at_[i + 1] = lines[i].one ? ones_ + i * tape::kBlockBytes : from;
        if (!lines[i].one || (row > 0 && lines[i].step == 0)) continue;
        tape::fill_block(at_[i + 1], from, item_size(tape_.operand[i + 1].dtype), tape::block_of(tape_));
      }
      tape::run_part(tape_, bound_.part[0], at_, still, n, pads_);
    }
  }

 private:
  const Tape& tape_;
  const tape::Bound& bound_;
  char* at_[kTapeOperands];
  alignas(64) char space_[(tape::kScratchBlocks + kTapeOperands) * tape::kBlockBytes];
  alignas(64) char pads_[kTapeOperands * tape::kBlockBytes];
  alignas(64) char ones_[(kMaxInputs + 1) * tape::kBlockBytes];
};

class After {
 public:
  After(const FusedProduct& f, const Call& call) : tape_(*f.after.tape), result_(f.dtype), count_(f.after.count) {
    const View& shape = call.out[0];
    for (int i = 0; i < count_; ++i) in_[i] = Side(spread(call.in[f.after.input[i]], shape.ndim, shape.shape));
    for (int i = 0; i < tape_.outputs; ++i) out_[i] = Side(call.out[i]);
    int64_t widest = 4;
    for (int i = 0; i < count_; ++i) widest = most(widest, in_[i].item);
    for (int i = 0; i < tape_.outputs; ++i) widest = most(widest, out_[i].item);
    at_once_ = kStage / widest;
    plain_ = result_ == DType::f32;
    for (int i = 0; i < count_; ++i) plain_ = plain_ && in_[i].is_plain();
    for (int i = 0; i < tape_.outputs; ++i) plain_ = plain_ && out_[i].is_plain() && out_[i].rows.step != 0;
    sum_ = plain_ && adds() && in_[0].rows.step == in_[0].item;
  }

  static void run(const void* context, const Results& r) {
    const After& a = *static_cast<const After*>(context);
    if (a.sum_) return a.add_rows(r);
    const int64_t columns = least(r.columns, a.at_once_), rows = a.rows_at_once(r.columns);
    Runner runner(a.tape_);
    if (rows == 1 && a.plain_) return a.run_rows(r, runner);
    for (int64_t i = 0; i < r.rows; i += rows) {
      for (int64_t j = 0; j < r.columns; j += columns) {
        a.run_piece({r.row + i, least(rows, r.rows - i), r.column + j, least(columns, r.columns - j)},
                    r.values + i * r.stride + j, r.stride, runner);
      }
    }
  }

 private:
  // Whether the tape adds an input to the product: a residual sum, which needs no machine.
  bool adds() const {
    const TapeInstruction* const code = tape_.instruction;
    const auto is = [&](int i, const char* name) { return code[i].dtype == DType::f32 && !std::strcmp(code[i].name, name); };
    return tape_.lane == DType::f32 && tape_.inputs == 2 && tape_.outputs == 1 && tape_.instructions == 3 && is(0, "load") &&
           is(1, "add") && is(2, "store") && !code[1].reversed && code[0].x + code[1].x == 3 && code[2].x == 3;
  }

  void add_rows(const Results& r) const {
    const bool first = tape_.instruction[0].x == 1;  // the product is the first of the two
    for (int64_t i = 0; i < r.rows; ++i) {
      const float *const y = r.values + i * r.stride, *const x = reinterpret_cast<float*>(in_[0].at(r.row + i, r.column));
      float* const to = reinterpret_cast<float*>(out_[0].at(r.row + i, r.column));
      first ? add(y, x, to, r.columns) : add(x, y, to, r.columns);
    }
  }
  // `to` may be one of the others.
  static void add(const float* x, const float* y, float* to, int64_t n) {
    TRITIUM_LOOP
    for (int64_t i = 0; i < n; ++i) to[i] = x[i] + y[i];
  }

  // Rows that fill a piece: one if it is long enough not to be copied together with others, and if possible so many
  // that no vector of the tape is left half empty.
  int64_t rows_at_once(int64_t columns) const {
    if (columns >= kLongRow || columns % kTapeBlock == 0) return 1;
    int64_t rows = most(1, at_once_ / columns), odd = columns;
    int64_t even = kTapeBlock;
    for (; even > 1 && odd % 2 == 0; odd /= 2) even /= 2;
    return rows < even ? rows : rows / even * even;
  }

  void run_rows(const Results& r, Runner& runner) const {
    Runner::Line lines[1 + kMaxInputs + kMaxOutputs];
    char* const values = reinterpret_cast<char*>(const_cast<float*>(r.values));
    lines[0] = {values, r.stride * 4, false};
    for (int i = 0; i < count_; ++i) lines[1 + i] = line(in_[i], r);
    for (int i = 0; i < tape_.outputs; ++i) lines[1 + count_ + i] = line(out_[i], r);
    runner.run_rows(lines, r.rows, r.columns);
  }

  static Runner::Line line(const Side& s, const Results& r) {
    return {s.at(r.row, r.column), s.row_step, s.rows.step == 0};
  }

  void run_piece(const Piece& p, const float* values, int64_t stride, Runner& runner) const {
    alignas(64) char stage[kStages][kStage];
    const char* in[kMaxInputs + 1];
    char* out[kMaxOutputs];
    in[0] = product(p, values, stride, stage[kStages - 1]);
    std::uint32_t repeated = 0;
    for (int i = 0; i < count_; ++i) {
      in[i + 1] = input(in_[i], p, stage[i]);
      if (in_[i].repeats(p.rows)) repeated |= 2u << i;
    }
    for (int i = 0; i < tape_.outputs; ++i) {
      out[i] = adjacent(out_[i], p) ? out_[i].at(p.row, p.column) : stage[kMaxInputs + i];
    }
    runner.run(in, out, p.size(), repeated);
    for (int i = 0; i < tape_.outputs; ++i) {
      if (!adjacent(out_[i], p)) put(out_[i], p, out[i]);
    }
  }

  static bool adjacent(const Side& s, const Piece& p) {
    return (s.rows.step == s.item || p.columns == 1) &&
           (p.rows == 1 || (s.even && s.row_step == p.columns * s.item));
  }

  // The product's results in its own dtype.
  const char* product(const Piece& p, const float* values, int64_t stride, char* to) const {
    const bool plain = result_ == DType::f32;
    if (plain && (p.rows == 1 || stride == p.columns)) return reinterpret_cast<const char*>(values);
    for (int64_t i = 0; i < p.rows; ++i) {
      const float* const from = values + i * stride;
      char* const line = to + i * p.columns * item_size(result_);
      plain ? void(__builtin_memcpy(line, from, static_cast<std::size_t>(p.columns * 4)))
            : narrow(result_, from, line, p.columns);
    }
    return to;
  }

  static const char* input(const Side& s, const Piece& p, char* to) {
    const char* const from = s.at(p.row, p.column);
    if (s.repeats(p.rows) || adjacent(s, p)) return from;
    const int64_t line = p.columns * s.item;
    if (s.even) {
      gather_block(to, line, from, s.row_step, s.rows.step, p.rows, p.columns, s.item);
      return to;
    }
    for (int64_t i = 0; i < p.rows; ++i) {
      gather_block(to + i * line, line, s.at(p.row + i, p.column), 0, s.rows.step, 1, p.columns, s.item);
    }
    return to;
  }

  static void put(const Side& s, const Piece& p, const char* from) {
    const int64_t line = p.columns * s.item;
    if (s.even) return scatter_block(s.at(p.row, p.column), s.row_step, s.rows.step, from, p.rows, p.columns, s.item);
    for (int64_t i = 0; i < p.rows; ++i) {
      scatter_block(s.at(p.row + i, p.column), 0, s.rows.step, from + i * line, 1, p.columns, s.item);
    }
  }

  const Tape& tape_;
  DType result_;
  int count_;
  int64_t at_once_;  // elements of a piece
  bool plain_;       // rows can be read and written where they lie
  bool sum_;         // the tape adds an input to the product, and does no more
  Side in_[kMaxInputs], out_[kMaxOutputs];
};

// A view of the rows that lacks their last axis, or has one element there.
View numbers(const View& v, bool lacks, int ndim, const int64_t* shape) {
  View wide = v;
  if (lacks) {
    wide.shape[wide.ndim] = 1;
    wide.strides[wide.ndim++] = 0;
  }
  int64_t lead[kMaxDims];
  for (int d = 0; d + 1 < ndim; ++d) lead[d] = shape[d];
  lead[ndim - 1] = 1;
  return spread(wide, ndim, lead);
}

// The shape of the left operand that `before` makes: that of the result but for the last size.
void left_shape(const FusedProduct& f, const View& result, int64_t* shape) {
  for (int d = 0; d < f.x_ndim - 1; ++d) shape[d] = result.shape[d];
  if (f.x_ndim) shape[f.x_ndim - 1] = f.x_width;
}

class Before {
 public:
  Before(const FusedProduct& f, const Call& call)
      : tape_(*f.before.tape), result_(f.x_dtype), count_(f.before.count), n_(f.x_width) {
    int64_t shape[kMaxDims];
    left_shape(f, *call.out, shape);
    for (int i = 0; i < count_; ++i) {
      const View& v = call.in[f.before.input[i]];
      const Reach reach = tape_.operand[1 + i].reach;
      in_[i] = Side(tape_.rows && reach != Reach::full ? numbers(v, reach == Reach::lead, f.x_ndim, shape)
                                                       : spread(v, f.x_ndim, shape));
      const bool staged = in_[i].rows.length > 1 && in_[i].rows.step != in_[i].item && (tape_.rows || in_[i].rows.step);
      place_[i] = staged ? stage_ : -1;
      if (staged) stage_ += whole(n_ * in_[i].item, kAlignment);
    }
    narrow_ = stage_;
    if (result_ != DType::f32) stage_ += n_ * item_size(result_);
  }

  static void run(const void* context, int64_t row, float* to) {
    const Before& b = *static_cast<const Before*>(context);
    const Workspace space(b.stage_, Need::must);
    const char* in[kMaxInputs];
    std::uint32_t repeated = 0;
    for (int i = 0; i < b.count_; ++i) {
      const Side& s = b.in_[i];
      in[i] = s.at(row, 0);
      if (b.place_[i] >= 0) {
        char* const line = space.data() + b.place_[i];
        gather_block(line, b.n_ * s.item, in[i], 0, s.rows.step, 1, b.n_, s.item);
        in[i] = line;
      } else if (s.rows.step == 0 && b.n_ > 1) {
        repeated |= 1u << i;
      }
    }
    const bool plain = b.result_ == DType::f32;
    char* out[1] = {plain ? reinterpret_cast<char*>(to) : space.data() + b.narrow_};
    b.tape_.rows ? run_row(b.tape_, in, out, b.n_) : run_tape(b.tape_, in, out, b.n_, repeated);
    if (!plain) widen(b.result_, out[0], to, b.n_);
  }

 private:
  const Tape& tape_;
  DType result_;
  int count_;
  int64_t n_;
  int64_t stage_ = 0, narrow_ = 0;  // bytes of scratch memory for a row; where in it the narrow result lies
  int64_t place_[kMaxInputs];       // where an operand is gathered; -1: it is read where it lies
  Side in_[kMaxInputs];
};

View left_operand(const FusedProduct& f, const View& result) {
  View x;
  x.data = result.data;  // never read, but not "not given"
  x.dtype = f.x_dtype;
  x.ndim = f.x_ndim;
  left_shape(f, result, x.shape);
  for (int d = 0; d < f.x_ndim; ++d) x.strides[d] = 0;
  return x;
}

// Contiguous memory of another dtype in the shape of `v`.
View reshaped(const View& v, DType dtype, char* data) {
  View out = v;
  out.dtype = dtype;
  out.data = data;
  int64_t step = item_size(dtype);
  for (int d = v.ndim - 1; d >= 0; step *= v.shape[d--]) out.strides[d] = step;
  return out;
}

bool holds_sums(const View& v) {
  const View flat = reshaped(v, DType::f32, v.data);
  bool same = v.dtype == DType::f32;
  for (int d = 0; d < v.ndim; ++d) same = same && (v.shape[d] == 1 || v.strides[d] == flat.strides[d]);
  return same;
}

void run(const FusedProduct& f, const Call& call, Attrs& attrs) {
  View in[kProductOperands];
  for (int i = 0; i < f.operands; ++i) {
    if (f.operand[i] >= 0) in[i] = call.in[f.operand[i]];
  }
  if (f.before.tape) in[0] = left_operand(f, *call.out);
  const bool own = f.after.tape && f.sums && (f.apart || !holds_sums(*call.out));
  const Workspace space(own ? call.out->size() * item_size(f.dtype) : 0, Need::must);
  View out = own ? reshaped(*call.out, f.dtype, space.data()) : *call.out;
  f.core({in, f.operands, &out, &attrs});
}

void with_after(const FusedProduct& f, const Call& call, Attrs& attrs) {
  if (!f.after.tape) return run(f, call, attrs);
  const After after(f, call);
  const Epilogue hook{After::run, &after};
  attrs.after = &hook;
  run(f, call, attrs);
}

void fused_product(const Call& call) {
  const FusedProduct& f = *call.attrs->product;
  Attrs attrs = f.attrs;
  if (!f.before.tape) return with_after(f, call, attrs);
  const Before before(f, call);
  const Prologue hook{Before::run, &before};
  attrs.before = &hook;
  with_after(f, call, attrs);
}

constexpr Entry kEntries[] = {{"fused_product", fused_product, ((1u << kCodes) - 1) & ~kComplexes}};

}  // namespace

Table fused_product_table() { return {kEntries, 1}; }

}  // namespace tritium::TRITIUM_ISA
