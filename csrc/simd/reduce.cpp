// How a reduction walks its input: dimensions sorted and merged, then along rows or down columns, in fixed pieces.
#include "reduce.h"

#include "../threads.h"
#include "../workspace.h"
#include "axes.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kBlockGroup = 16;    // blocks merged by one thread
constexpr int64_t kPanelGroup = 4;     // panels merged by one thread
constexpr int64_t kCopyColumns = 64;   // of a panel that is gathered first
constexpr int64_t kGrain = 32768;      // elements per thread

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

struct Plan {
  Axis keep[kMaxDims + 1], fold[kMaxDims + 1];  // outermost first; at least one each
  int keeps = 0, folds = 0;
  int64_t outputs = 1, count = 1;  // elements of the result, elements per result
  const char* in;
  char* out;

  Plan(const View& x, const View& y, std::uint32_t axes, bool ordered);

  // Columns when the kept dimension is the denser one, or when rows are too short to be worth a block each.
  bool down_columns() const {
    const Axis &k = keep[keeps - 1], &f = fold[folds - 1];
    if (k.n < 8) return false;
    return magnitude(k.in) < magnitude(f.in) || (f.n < 16 && k.n > 4 * f.n);
  }
};

Plan::Plan(const View& x, const View& y, std::uint32_t axes, bool ordered) : in(x.data), out(y.data) {
  int kept = 0;
  for (int d = 0; d < x.ndim; ++d) {
    const int64_t n = x.shape[d], stride = x.strides[d];
    if (axes >> d & 1) {
      count *= n;
      if (n == 1) continue;
      if (stride < 0 && n > 0 && !ordered) {
        in += (n - 1) * stride;
        insert(fold, folds, {n, -stride, 0}, true);
      } else {
        insert(fold, folds, {n, stride, 0}, !ordered);
      }
    } else {
      const int to = y.ndim == x.ndim ? d : kept;
      ++kept;
      outputs *= n;
      if (n != 1) insert(keep, keeps, {n, stride, y.strides[to]}, true);
    }
  }
  merge_neighbours(keep, keeps);
  merge_neighbours(fold, folds);
  if (keeps == 0) keep[keeps++] = {1, 0, 0};
  if (folds == 0) fold[folds++] = {1, 0, 0};
}

// n elements from `first` on, in the order of the folded dimensions.
void gather_row(const Reduction& op, const Plan& plan, const char* base, int64_t first, int64_t n, char* buffer) {
  const Axis& inner = plan.fold[plan.folds - 1];
  for (int64_t done = 0; done < n;) {
    const int64_t position = first + done, from = position % inner.n, take = least(inner.n - from, n - done);
    const char* row = plan.folds == 1 ? base : base + offset(plan.fold, plan.folds - 1, position / inner.n, &Axis::in);
    op.gather(row + from * inner.in, inner.in, buffer + done * op.item, take);
    done += take;
  }
}

// A unit of work is a group of blocks of one output; where outputs are short it is a whole output.
void along_rows(const Reduction& op, const Plan& plan, const Call& call) {
  const bool direct = op.direct && plan.folds == 1 && plan.fold[0].in == op.item;
  const int64_t size = kBlockGroup * kBlock, groups = pieces(plan.count, size);
  const auto reduce_group = [&](const char* base, int64_t group, char* buffer, void* to) {
    op.clear(to, 1);
    const int64_t end = least((group + 1) * size, plan.count);
    for (int64_t i = group * size; i < end; i += kBlock) {
      const int64_t n = least(end - i, kBlock);
      if (!direct) gather_row(op, plan, base, i, n, buffer);
      op.block(direct ? base + i * op.item : buffer, n, i, to);
    }
  };
  const auto place = [&](int64_t output) { return plan.out + offset(plan.keep, plan.keeps, output, &Axis::out); };
  const Workspace space(groups > 1 ? plan.outputs * groups * op.partial : 0, Need::may);
  char* const partials = groups > 1 ? space.data() : nullptr;  // no memory: each output by one thread
  const int64_t units = partials ? plan.outputs * groups : plan.outputs;
  parallel_for(units, kGrain / (partials ? size : plan.count + 1) + 1, [&](int64_t begin, int64_t end) {
    alignas(64) char buffer[kBlock * 8], total[kMaxPartial], more[kMaxPartial];
    for (int64_t u = begin; u < end; ++u) {
      const int64_t output = partials ? u / groups : u;
      const char* base = plan.in + offset(plan.keep, plan.keeps, output, &Axis::in);
      if (partials) {
        reduce_group(base, u % groups, buffer, partials + u * op.partial);
        continue;
      }
      op.clear(total, 1);
      if (groups == 1) reduce_group(base, 0, buffer, total);
      for (int64_t g = 0; groups > 1 && g < groups; ++g) {
        reduce_group(base, g, buffer, more);
        op.merge(total, more, 1);
      }
      op.finish(total, 1, plan.count, call, place(output), 0);
    }
  });
  for (int64_t output = 0; partials && output < plan.outputs; ++output) {
    alignas(64) char total[kMaxPartial];
    op.clear(total, 1);
    for (int64_t g = 0; g < groups; ++g) op.merge(total, partials + (output * groups + g) * op.partial, 1);
    op.finish(total, 1, plan.count, call, place(output), 0);
  }
}

// A unit of work is a strip of neighbouring columns and a group of panels.
void down_columns(const Reduction& op, const Plan& plan, const Call& call) {
  const Axis &across = plan.keep[plan.keeps - 1], &inner = plan.fold[plan.folds - 1];
  const bool direct = op.direct && across.in == op.item && inner.in % op.item == 0;
  const int64_t width = least(direct ? kColumns : kCopyColumns, across.n), strips = pieces(across.n, width);
  const int64_t size = kPanelGroup * kPanel, groups = pieces(plan.count, size);
  const auto reduce_group = [&](const char* base, int64_t columns, int64_t group, char* buffer, void* to) {
    op.clear(to, columns);
    const int64_t end = least((group + 1) * size, plan.count);
    for (int64_t i = group * size; i < end;) {
      int64_t rows = least(end - i, kPanel);
      if (direct) {
        rows = least(rows, inner.n - i % inner.n);
        op.panel(base + offset(plan.fold, plan.folds, i, &Axis::in), inner.in / op.item, rows, columns, i, to);
      } else {
        for (int64_t r = 0; r < rows; ++r) {
          op.gather(base + offset(plan.fold, plan.folds, i + r, &Axis::in), across.in,
                    buffer + r * kCopyColumns * op.item, columns);
        }
        op.panel(buffer, kCopyColumns, rows, columns, i, to);
      }
      i += rows;
    }
  };
  const Workspace space(groups > 1 ? plan.outputs * groups * op.partial : 0, Need::may);
  char* const partials = groups > 1 ? space.data() : nullptr;
  const int64_t parts = partials ? groups : 1, units = plan.outputs / across.n * strips * parts;
  const int64_t work = width * (partials ? size : plan.count + 1);
  parallel_for(units, kGrain / work + 1, [&](int64_t begin, int64_t end) {
    alignas(64) char buffer[kPanel * kCopyColumns * 8], total[kColumns * kMaxPartial], more[kColumns * kMaxPartial];
    for (int64_t u = begin; u < end; ++u) {
      const int64_t part = u % parts, strip = u / parts % strips, outer = u / parts / strips;
      const int64_t first = strip * width, columns = least(width, across.n - first);
      const char* base = plan.in + offset(plan.keep, plan.keeps - 1, outer, &Axis::in) + first * across.in;
      if (partials) {
        char* to = partials + (part * plan.outputs + outer * across.n + first) * op.partial;
        reduce_group(base, columns, part, buffer, to);
        continue;
      }
      op.clear(total, columns);
      if (groups == 1) reduce_group(base, columns, 0, buffer, total);
      for (int64_t g = 0; groups > 1 && g < groups; ++g) {
        reduce_group(base, columns, g, buffer, more);
        op.merge(total, more, columns);
      }
      char* out = plan.out + offset(plan.keep, plan.keeps - 1, outer, &Axis::out) + first * across.out;
      op.finish(total, columns, plan.count, call, out, across.out);
    }
  });
  if (!partials) return;
  const int64_t rows = plan.outputs / across.n;
  parallel_for(rows * strips, kGrain / (width * groups) + 1, [&](int64_t begin, int64_t end) {
    alignas(64) char total[kColumns * kMaxPartial];
    for (int64_t u = begin; u < end; ++u) {
      const int64_t outer = u / strips, first = u % strips * width, columns = least(width, across.n - first);
      op.clear(total, columns);
      for (int64_t g = 0; g < groups; ++g) {
        op.merge(total, partials + (g * plan.outputs + outer * across.n + first) * op.partial, columns);
      }
      char* out = plan.out + offset(plan.keep, plan.keeps - 1, outer, &Axis::out) + first * across.out;
      op.finish(total, columns, plan.count, call, out, across.out);
    }
  });
}

constexpr std::uint32_t kFloats = bit(DType::f16) | bit(DType::bf16) | bit(DType::f32) | bit(DType::f64);
constexpr std::uint32_t kInts = bit(DType::i8) | bit(DType::i32) | bit(DType::i64);
constexpr std::uint32_t kNative = kFloats | kInts | bit(DType::b8);

constexpr Entry kEntries[] = {
    {"sum", sum, kNative},
    {"prod", prod, kNative},
    {"mean", mean, kFloats},
    {"count_nonzero", count_nonzero, kNative},
    {"max", max, kFloats | kInts},
    {"min", min, kFloats | kInts},
    {"all", all, kNative},
    {"any", any, kNative},
    {"argmax", argmax, kFloats | kInts},
    {"argmin", argmin, kFloats | kInts},
    {"var", var, kFloats, "correction"},
    {"std", std_deviation, kFloats, "correction"},
    {"cumulative_sum", cumulative_sum, kNative, "include_initial"},
    {"cumulative_prod", cumulative_prod, kNative, "include_initial"},
};

}  // namespace

void reduce(const Reduction& op, const Call& call) {
  const Plan plan(call.in[0], *call.out, call.attrs->axes, op.ordered);
  if (plan.outputs == 0) return;
  plan.down_columns() ? down_columns(op, plan, call) : along_rows(op, plan, call);
}

void reduce_row(const Reduction& op, const void* x, int64_t n, DType to, char* out) {
  static_assert(kMaxRow == kBlockGroup * kBlock);
  alignas(64) char total[kMaxPartial];
  op.clear(total, 1);
  for (int64_t i = 0; i < n; i += kBlock) {
    op.block(static_cast<const char*>(x) + i * op.item, least(n - i, kBlock), i, total);
  }
  View result;
  result.dtype = to;
  op.finish(total, 1, n, {nullptr, 0, &result, nullptr}, out, 0);
}

Table reduce_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
