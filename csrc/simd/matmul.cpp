// matmul: every product of a batch goes to the packed product, to the one for few rows, to BLAS, or to plain loops.
// Knows nothing of Python; batches may be broadcast, operands may have any strides.
#include "matmul.h"

#include <atomic>

#include "../blas.h"
#include "../threads.h"
#include "dot.h"
#include "gemm.h"
#include "skinny.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

// Which product is faster was measured against OpenBLAS. With AVX-512 and AVX2 the packed one of gemm.h wins on
// products of a middle size, and on many threads, as it packs each operand once for all of them; OpenBLAS wins by a
// little on small and on large ones. The registers of SSE2 are too few for gemm.h, on NEON OpenBLAS has kernels tuned
// per core, and Accelerate reaches the matrix units of Apple's: there BLAS serves whenever it can.
bool prefer_blas([[maybe_unused]] int64_t work) {
#if (defined(__AVX512F__) || defined(__AVX2__)) && !defined(__APPLE__)
  return work < (int64_t{1} << 20) || (work >= (int64_t{1} << 26) && num_threads() <= 4);
#else
  return true;
#endif
}

constexpr int64_t kCached = 1 << 19;      // elements of an operand that L2 holds
constexpr int64_t kSharedWork = 1 << 26;  // multiplications from which on threads pack together
constexpr int64_t kBatchWork = 1 << 22;   // multiplications of a product that is worth all threads by itself

// A BLAS operand has one unit stride; the other one is at least a row or column long.
bool blas_operand(const char* data, int64_t row, int64_t column, int64_t rows, int64_t columns, int64_t item,
                  BlasMatrix* to) {
  const auto dense = [item](int64_t unit, int64_t n) { return unit == item || n == 1; };
  const auto leads = [item](int64_t stride, int64_t n, int64_t length) {
    return n == 1 || (stride % item == 0 && stride / item >= length);
  };
  if (dense(column, columns) && leads(row, rows, columns)) {
    *to = {data, false, rows == 1 ? columns : row / item};
    return true;
  }
  if (dense(row, rows) && leads(column, columns, rows)) {
    *to = {data, true, columns == 1 ? rows : column / item};
    return true;
  }
  return false;
}

// C cut into rows x columns parts, one per thread, so that the parts of A and B that each must read are smallest.
struct Grid {
  int64_t rows = 1, columns = 1;

  Grid(int64_t m, int64_t n, int64_t parts) {
    int64_t least_read = m + n + 1;
    for (int64_t c = 1; c <= parts; ++c) {
      const int64_t r = parts / c, read = (ceil_div(m, r) + ceil_div(n, c)) * parts / (r * c);
      if (read >= least_read) continue;
      least_read = read;
      rows = r;
      columns = c;
    }
  }
};

// Runs part(i, j, rows, columns) for every part of C, each on one thread.
template <class F>
void each_part(const MatmulCall& g, const F& part) {
  const Grid grid(g.m, g.n, least(num_threads(), g.m * g.n * g.k / kProductGrain + 1));
  const int64_t tall = ceil_div(g.m, grid.rows), wide = ceil_div(ceil_div(g.n, grid.columns), 16) * 16;
  parallel_for(grid.rows * grid.columns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t i = u / grid.columns * tall, j = u % grid.columns * wide;
      if (i < g.m && j < g.n) part(i, j, least(tall, g.m - i), least(wide, g.n - j));
    }
  });
}

// False: BLAS is not there or cannot take the operands as they lie; nothing done.
template <class T>
bool blas_product(const MatmulCall& g) {
  const int64_t item = sizeof(T);
  BlasMatrix a, b;
  if (g.dtype != kDTypeOf<T> || !blas_ready() || g.c_column != item || g.c_row % item != 0) return false;
  if (g.m > 1 && g.c_row / item < g.n) return false;
  if (!blas_operand(g.a, g.a_row, g.a_column, g.m, g.k, item, &a)) return false;
  if (!blas_operand(g.b, g.b_row, g.b_column, g.k, g.n, item, &b)) return false;
  const int64_t ldc = g.m == 1 ? g.n : g.c_row / item, limit = INT32_MAX;
  if (g.m > limit || g.n > limit || g.k > limit || a.leading > limit || b.leading > limit || ldc > limit) return false;
  each_part(g, [&](int64_t i, int64_t j, int64_t rows, int64_t columns) {
    blas_gemm(rows, columns, g.k, {g.a + i * g.a_row, a.transposed, a.leading},
              {g.b + j * g.b_column, b.transposed, b.leading}, reinterpret_cast<T*>(g.c) + i * ldc + j, ldc);
    // After the whole part: fewer rows at a time would pack B again for each few, which costs more than it saves.
    g.hand_over(i, rows, j, columns);
  });
  return true;
}

// The packed product into c[m][n], rows c_row elements apart. Threads share what is packed where that is much; else
// each packs what its part of C needs, which costs less than to fetch it from the cache of another core.
template <class T>
bool packed_product(const MatmulCall& g, const Matrix& a, const Matrix& b, T* c, int64_t c_row) {
  const auto pass_on = [&g](int64_t top, int64_t left) {
    return [&g, top, left](int64_t i, int64_t rows, int64_t j, int64_t columns) {
      g.hand_over(top + i, rows, left + j, columns);
    };
  };
  if (g.m * g.n * g.k >= kSharedWork) return gemm(g.m, g.n, g.k, a, b, c, c_row, pass_on(0, 0));
  std::atomic<bool> done{true};
  each_part(g, [&](int64_t i, int64_t j, int64_t rows, int64_t columns) {
    const Matrix rows_of_a{a.at(i, 0), a.row, a.column, a.gather, a.direct};
    const Matrix columns_of_b{b.at(0, j), b.row, b.column, b.gather, b.direct};
    if (!gemm(rows, columns, g.k, rows_of_a, columns_of_b, c + i * c_row + j, c_row, pass_on(i, j))) done = false;
  });
  return done;
}

// Where nothing else serves.
void plain_product(const MatmulCall& g) {
  parallel_product(g);
  g.hand_over_all();
}

// One or two rows and columns.
template <class T>
void few_dots(const MatmulCall& g) {
  const bool direct = g.dtype == kDTypeOf<T>;
  const Gather gather = gather_of<T>(g.dtype);
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      const T sum = static_cast<T>(
          dot<T>(g.a + i * g.a_row, g.a_column, g.b + j * g.b_column, g.b_row, g.k, direct, gather));
      scatter(g.dtype, &sum, g.c + i * g.c_row + j * g.c_column, 0, 1);
    }
  }
  g.hand_over_all();
}

// f16 and bf16 are products of T = float with elements converted on the way in and out.
template <class T>
void product_as(const MatmulCall& given) {
  if (given.m <= kFewDots && given.n <= kFewDots) return few_dots<T>(given);
  const int64_t item = sizeof(T);
  const bool direct = given.dtype == kDTypeOf<T>;
  // Few rows or columns: B is not worth packing, and beyond the caches less so.
  const bool large = given.k * (given.m > given.n ? given.m : given.n) > kCached;
  const int64_t few = large && !(direct && blas_ready()) ? kSkinnyRows : kSkinnyRows / 2;
  const bool skinny_one = given.m <= few || given.n <= few;
  // The few are to be rows; and columns of C that lie side by side are better rows too.
  const bool turn = skinny_one ? given.n < given.m : given.c_column != item && given.c_row == item && direct;
  MatmulCall g = turn ? given.turned() : given;
  const Gather gather = gather_of<T>(g.dtype);
  const Matrix a{g.a, g.a_row, g.a_column, gather, direct}, b{g.b, g.b_row, g.b_column, gather, direct};
  if (skinny_one && g.n >= 2 * g.m) {
    const bool done = skinny<T>(g.m, g.n, g.k, a, b, [&](int64_t first, int64_t columns, const T* c) {
      if constexpr (kDTypeOf<T> == DType::f32) {
        if (g.after) return g.after->run(g.after->context, {g.first, g.m, first, columns, c, columns});
      }
      for (int64_t i = 0; i < g.m; ++i) {
        scatter(g.dtype, c + i * columns, g.c + i * g.c_row + first * g.c_column, g.c_column, columns);
      }
      if (turn) given.hand_over(first, columns, 0, given.n);
    });
    return done ? void() : plain_product(given);
  }
  if (prefer_blas(g.m * g.n * g.k) && blas_product<T>(g)) return;
  const bool in_place = direct && g.c_column == item && g.c_row % item == 0;
  if (in_place) {
    if (!packed_product(g, a, b, reinterpret_cast<T*>(g.c), g.c_row / item)) plain_product(given);
    return;
  }
  g.after = nullptr;  // not from where they are scattered from
  const Workspace space(g.m * g.n * item, Need::may);
  T* const c = space.as<T>();
  if (!c || !packed_product(g, a, b, c, g.n)) return plain_product(given);
  parallel_for(g.m, kPackGrain / g.n + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) scatter(g.dtype, c + i * g.n, g.c + i * g.c_row, g.c_column, g.n);
  });
  given.hand_over_all();
}

void product(const MatmulCall& g) {
  if (g.k == 0) return plain_product(g);  // zeros
  switch (g.dtype) {
    case DType::f64: return product_as<double>(g);
    case DType::f32:
    case DType::f16:
    case DType::bf16: return product_as<float>(g);
    default: return plain_product(g);
  }
}

void matmul(const Call& call) { each_product(Batch(call), product, true); }

constexpr std::uint32_t kAll = bit(DType::i8) | bit(DType::i32) | bit(DType::i64) | bit(DType::f16) | bit(DType::bf16) |
                               bit(DType::f32) | bit(DType::f64);

constexpr Entry kEntries[] = {
    {"matmul", matmul, kAll},
    {"matmul_naive", matmul_naive, kAll},
    {"matmul_blocked", matmul_blocked, kAll},
    {"matmul_parallel", matmul_parallel, kAll},
};

// A vector is a row on the left and a column on the right; the result has no such axis.
void insert_axis(View& v, int at) {
  for (int d = v.ndim++; d > at; --d) {
    v.shape[d] = v.shape[d - 1];
    v.strides[d] = v.strides[d - 1];
  }
  v.shape[at] = 1;
  v.strides[at] = 0;
}

}  // namespace

Batch::Batch(const Call& call) {
  View x = call.in[0], y = call.in[1], z = *call.out;
  if (y.ndim == 1) {
    insert_axis(y, 1);
    insert_axis(z, z.ndim);
  }
  if (x.ndim == 1) {
    insert_axis(x, 0);
    insert_axis(z, z.ndim - 1);
  }
  const int xd = x.ndim, yd = y.ndim, zd = z.ndim;
  first = {z.shape[zd - 2],   z.shape[zd - 1],   x.shape[xd - 1],   x.data,            y.data,
           z.data,            x.strides[xd - 2], x.strides[xd - 1], y.strides[yd - 2], y.strides[yd - 1],
           z.strides[zd - 2], z.strides[zd - 1], x.dtype,           0,                 call.attrs->after};
  const auto stride = [](const View& v, int from_right) {
    const int d = v.ndim - from_right;
    return d >= 0 && v.shape[d] != 1 ? v.strides[d] : 0;
  };
  int right = 3;
  // Products of neighbouring rows of a with the same b are one taller product.
  for (; right <= zd; ++right) {
    const int64_t n = z.shape[zd - right];
    if (n == 1) continue;
    if (stride(y, right) != 0 || stride(x, right) != first.m * first.a_row ||
        z.strides[zd - right] != first.m * first.c_row) {
      break;
    }
    first.m *= n;
  }
  for (int d = 0; zd - d >= right; ++d) {
    if (z.shape[d] == 1) continue;
    shape[ndim] = z.shape[d];
    a[ndim] = stride(x, zd - d);
    b[ndim] = stride(y, zd - d);
    c[ndim] = z.strides[d];
    count *= shape[ndim++];
  }
}

MatmulCall Batch::at(int64_t index) const {
  MatmulCall g = first;
  g.first = index * g.m;
  for (int d = ndim - 1; d >= 0; --d) {
    const int64_t i = index % shape[d];
    g.a += i * a[d];
    g.b += i * b[d];
    g.c += i * c[d];
    index /= shape[d];
  }
  return g;
}

void each_product(const Batch& batch, MatmulBody body, bool threads) {
  const MatmulCall& g = batch.first;
  if (batch.count == 0 || g.m == 0 || g.n == 0) return;
  // Many products share the threads whole; a few large ones are split one after the other.
  const int64_t work = g.m * g.n * (g.k + 1);
  const bool whole = threads && (work < kBatchWork || batch.count >= 4 * num_threads());
  parallel_for(batch.count, whole ? kProductGrain / work + 1 : batch.count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(batch.at(i));
  });
}

Table matmul_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
