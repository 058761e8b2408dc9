// What a reduction is made of: partial results of blocks and panels, how two of them merge, how they end in the output.
// Knows nothing of shapes and threads: reduce.cpp walks the input.
#pragma once

#include <cstdint>

#include "../view.h"
#include "gather.h"

namespace tritium::TRITIUM_ISA {

// The kernels, by row name; reduce.cpp lists them.
void sum(const Call&), prod(const Call&), mean(const Call&), count_nonzero(const Call&);
void max(const Call&), min(const Call&), all(const Call&), any(const Call&);
void argmax(const Call&), argmin(const Call&);
void var(const Call&), std_deviation(const Call&);
void cumulative_sum(const Call&), cumulative_prod(const Call&);

// Sizes that fix the order of all additions, whatever the number of threads.
constexpr std::int64_t kBlock = 4096;      // elements of one block along a row: they stay in L1 for a second look
constexpr std::int64_t kColumns = 1024;    // columns of a panel, reduced side by side
constexpr std::int64_t kPanel = 64;        // rows of a panel; a row within it is numbered in eight bits
constexpr std::int64_t kMaxPartial = 32;   // bytes of a partial result

// Reduces elements of type C to partial results of type P, both known to the functions only.
struct Reduction {
  std::int64_t item, partial;  // sizes of C and P
  bool direct;                 // the input holds C; else gather makes C of it
  bool ordered;                // the position of an element matters: `first` must count in the order of the axes
  Gather gather;
  void (*clear)(void* to, std::int64_t n);                        // n partials of nothing
  void (*merge)(void* to, const void* after, std::int64_t n);     // n times to with the piece that follows it
  void (*block)(const void* x, std::int64_t n, std::int64_t first, void* to);  // contiguous, into one partial
  // rows x columns, `stride` elements from row to row, into one partial per column.
  void (*panel)(const void* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, std::int64_t first,
                void* to);
  // Writes n results; count: elements per result.
  void (*finish)(const void* partials, std::int64_t n, std::int64_t count, const Call& call, char* out,
                 std::int64_t stride);
};

void reduce(const Reduction& reduction, const Call& call);

// Reductions of floats, and what `reduce` makes of one contiguous row that fits the cache: an element of dtype `to`.
Reduction sum_of(DType type), mean_of(DType type), max_of(DType type), min_of(DType type);
constexpr std::int64_t kMaxRow = 16 * kBlock;
void reduce_row(const Reduction& reduction, const void* x, std::int64_t n, DType to, char* out);

// Makes a Reduction of Op: C, P (P{} is that of nothing), block(x, n, first, P&), merge(P&, const P&) and
// panel(x, stride, rows, columns, first, P*), as above.
template <class Op>
Reduction reduction(Gather gather, bool direct, bool ordered, decltype(Reduction::finish) finish) {
  using C = typename Op::C;
  using P = typename Op::P;
  static_assert(sizeof(P) <= kMaxPartial);
  Reduction r{};
  r.item = sizeof(C);
  r.partial = sizeof(P);
  r.direct = direct;
  r.ordered = ordered;
  r.gather = gather;
  r.clear = [](void* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) static_cast<P*>(to)[i] = P{};
  };
  r.merge = [](void* to, const void* after, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) Op::merge(static_cast<P*>(to)[i], static_cast<const P*>(after)[i]);
  };
  r.block = [](const void* x, std::int64_t n, std::int64_t first, void* to) {
    Op::block(static_cast<const C*>(x), n, first, *static_cast<P*>(to));
  };
  r.panel = [](const void* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, std::int64_t first,
               void* to) {
    Op::panel(static_cast<const C*>(x), stride, rows, columns, first, static_cast<P*>(to));
  };
  r.finish = finish;
  return r;
}

}  // namespace tritium::TRITIUM_ISA
