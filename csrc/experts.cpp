// expert_matmul: the tokens of each expert are brought together and multiplied with its weights at once.
// A token's result depends on its own elements only: products of int8 are exact,
// those of floats add each row in one order.
#include "experts.h"

#include <cstdint>
#include <cstring>

#include "fault.h"
#include "threads.h"
#include "workspace.h"

namespace tritium {
namespace {

using std::int32_t;
using std::int64_t;

constexpr int64_t kTasks = 2;  // experts for each thread that make it worth giving each to one thread

// Byte offset of an index into the first `ndim` axes.
int64_t offset(const View& v, int ndim, int64_t index) {
  int64_t sum = 0;
  for (int d = ndim - 1; d >= 0; --d) {
    sum += index % v.shape[d] * v.strides[d];
    index /= v.shape[d];
  }
  return sum;
}

struct Experts {
  const View &x, &w, &scale, &chosen, &y;
  int64_t active, pairs, count;
  bool each;  // every pair of a token and an expert has its own row of x
  const Entry& product;
  const Attrs& attrs;

  Experts(const Call& call, const Entry& entry)
      : x(call.in[0]), w(call.in[1]), scale(call.in[2]), chosen(call.in[3]), y(*call.out),
        active(chosen.shape[chosen.ndim - 1]), pairs(chosen.size()), count(w.shape[0]), each(x.ndim > chosen.ndim),
        product(entry), attrs(*call.attrs) {}

  const char* row(int64_t pair) const { return x.data + offset(x, x.ndim - 1, each ? pair : pair / active); }
  char* result(int64_t pair) const { return y.data + offset(y, y.ndim - 1, pair); }
  bool read(int64_t* starts, int32_t* order) const;
  void run(int64_t expert, const int32_t* mine, int64_t m) const;
  void multiply(int64_t expert, const View& from, View to) const;
};

// starts[e] = where the pairs of expert e begin in `order`, which has them as they come. False: an index is outside.
bool Experts::read(int64_t* starts, int32_t* order) const {
  const auto expert = [&](int64_t pair) {
    int32_t e;
    std::memcpy(&e, chosen.data + offset(chosen, chosen.ndim, pair), sizeof e);
    return int64_t{e};
  };
  std::memset(starts, 0, static_cast<std::size_t>(count + 1) * sizeof(int64_t));
  for (int64_t p = 0; p < pairs; ++p) {
    const int64_t e = expert(p);
    if (e < 0 || e >= count) {
      set_fault({Faulty::index, "expert_matmul", {e, count, 0}});
      return false;
    }
    ++starts[e + 1];
  }
  for (int64_t e = 0; e < count; ++e) starts[e + 1] += starts[e];
  for (int64_t p = 0; p < pairs; ++p) order[starts[expert(p)]++] = static_cast<int32_t>(p);
  for (int64_t e = count; e > 0; --e) starts[e] = starts[e - 1];
  starts[0] = 0;
  return true;
}

void Experts::multiply(int64_t expert, const View& from, View to) const {
  View in[4] = {from, w, scale, View{}};
  in[1].data += expert * w.strides[0];
  in[1].ndim = 2;
  for (int d = 0; d < 2; ++d) {
    in[1].shape[d] = w.shape[d + 1];
    in[1].strides[d] = w.strides[d + 1];
  }
  if (scale.ndim > 0) {  // of each expert its own
    in[2].data += expert * scale.strides[0];
    in[2].ndim = scale.ndim - 1;
    for (int d = 0; d < in[2].ndim; ++d) {
      in[2].shape[d] = scale.shape[d + 1];
      in[2].strides[d] = scale.strides[d + 1];
    }
  }
  product.run({in, 4, &to, &attrs});
}

// n elements of `item` bytes, `from_step` bytes apart, to others.
void move(const char* from, int64_t from_step, char* to, int64_t to_step, int64_t n, int64_t item) {
  if (from_step == item && to_step == item) {
    std::memcpy(to, from, static_cast<std::size_t>(n * item));
    return;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_step, from + i * from_step, static_cast<std::size_t>(item));
}

View matrix(char* data, DType dtype, int64_t rows, int64_t columns) {
  View v;
  v.data = data;
  v.dtype = dtype;
  v.ndim = 2;
  v.shape[0] = rows;
  v.shape[1] = columns;
  v.strides[0] = columns * item_size(dtype);
  v.strides[1] = item_size(dtype);
  return v;
}

// The tokens of one expert: a single one where it is, several brought together.
void Experts::run(int64_t expert, const int32_t* mine, int64_t m) const {
  const int64_t k = x.shape[x.ndim - 1], n = y.shape[y.ndim - 1], item = item_size(x.dtype);
  const int64_t x_step = x.strides[x.ndim - 1], y_step = y.strides[y.ndim - 1];
  if (m == 1) {
    View from = matrix(const_cast<char*>(row(mine[0])), x.dtype, 1, k), to = matrix(result(mine[0]), y.dtype, 1, n);
    from.strides[1] = x_step;
    to.strides[1] = y_step;
    return multiply(expert, from, to);
  }
  const Workspace space(m * (k + n) * item, Need::must);
  const View from = matrix(space.data(), x.dtype, m, k), to = matrix(space.data() + m * k * item, y.dtype, m, n);
  for (int64_t i = 0; i < m; ++i) move(row(mine[i]), x_step, from.data + i * k * item, item, k, item);
  multiply(expert, from, to);
  for (int64_t i = 0; i < m; ++i) move(to.data + i * n * item, item, result(mine[i]), y_step, n, item);
}

void expert_matmul(const Call& call, const Entry& product) {
  const Experts experts(call, product);
  if (experts.pairs == 0) return;
  const Workspace kept((2 * experts.count + 1) * static_cast<int64_t>(sizeof(int64_t)) +
                           experts.pairs * static_cast<int64_t>(sizeof(int32_t)), Need::must);
  int64_t *const starts = kept.as<int64_t>(), *const used = starts + experts.count + 1;
  int32_t* const order = reinterpret_cast<int32_t*>(used + experts.count);
  if (!experts.read(starts, order) || experts.y.size() == 0) return;
  int64_t distinct = 0;
  for (int64_t e = 0; e < experts.count; ++e) {
    if (starts[e + 1] > starts[e]) used[distinct++] = e;
  }
  const auto some = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      experts.run(used[i], order + starts[used[i]], starts[used[i] + 1] - starts[used[i]]);
    }
  };
  if (num_threads() > 1 && distinct >= kTasks * num_threads()) {
    parallel_for(distinct, 1, some);
  } else {
    some(0, distinct);  // each product has its own threads
  }
}

// The products of one matrix by how x is multiplied, and the names of those of experts.
constexpr const char* kProducts[] = {"quantized_matmul", "quantized_matmul_group", "quantized_matmul_float"};
constexpr const char* kNames[] = {"expert_matmul", "expert_matmul_group", "expert_matmul_float"};
constexpr int kKinds = 3;

template <Isa I, Tiled T, int Kind>
void run_experts(const Call& call) {
  expert_matmul(call, *find(kProducts[Kind], I, T));
}

template <Tiled T, int Kind>
Kernel kernel_of(Isa isa) {
  switch (isa) {
    case Isa::avx2: return run_experts<Isa::avx2, T, Kind>;
    case Isa::avxvnni: return run_experts<Isa::avxvnni, T, Kind>;
    case Isa::avx512: return run_experts<Isa::avx512, T, Kind>;
    case Isa::avx512bw: return run_experts<Isa::avx512bw, T, Kind>;
    case Isa::avx512vnni: return run_experts<Isa::avx512vnni, T, Kind>;
    case Isa::amx: return run_experts<Isa::amx, T, Kind>;
    case Isa::neon: return run_experts<Isa::neon, T, Kind>;
    case Isa::dotprod: return run_experts<Isa::dotprod, T, Kind>;
    case Isa::i8mm: return run_experts<Isa::i8mm, T, Kind>;
    default: return run_experts<Isa::portable, T, Kind>;
  }
}

template <Tiled T>
Kernel kernel_of(Isa isa, int kind) {
  return kind == 0 ? kernel_of<T, 0>(isa) : kind == 1 ? kernel_of<T, 1>(isa) : kernel_of<T, 2>(isa);
}

}  // namespace

Entry experts_entry(const Entry& product, Isa isa, Tiled tiled) {
  Entry made = product;
  made.name = nullptr;
  for (int kind = 0; kind < kKinds; ++kind) {
    if (std::strcmp(product.name, kProducts[kind]) != 0) continue;
    made.name = kNames[kind];
    made.run = tiled == Tiled::yes ? kernel_of<Tiled::yes>(isa, kind) : kernel_of<Tiled::no>(isa, kind);
    made.may_fault = true;
  }
  return made;
}

}  // namespace tritium
