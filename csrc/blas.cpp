// Finds the matrix product of OpenBLAS in a library loaded at run time; on macOS calls Accelerate.
#include "blas.h"

#include <atomic>
#include <string>

#if defined(__APPLE__)
#define ACCELERATE_NEW_LAPACK
#include <Accelerate/Accelerate.h>
#else
#include <dlfcn.h>
#endif

namespace tritium {
namespace {

bool fits(std::int64_t x) { return x >= 0 && x <= INT32_MAX; }

#if defined(__APPLE__)

bool ready() { return true; }

void gemm(int m, int n, int k, const BlasMatrix& a, const BlasMatrix& b, float* c, int ldc) {
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans, m, n,
              k, 1.0f, static_cast<const float*>(a.data), static_cast<int>(a.leading),
              static_cast<const float*>(b.data), static_cast<int>(b.leading), 0.0f, c, ldc);
}
void gemm(int m, int n, int k, const BlasMatrix& a, const BlasMatrix& b, double* c, int ldc) {
  cblas_dgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans, m, n,
              k, 1.0, static_cast<const double*>(a.data), static_cast<int>(a.leading),
              static_cast<const double*>(b.data), static_cast<int>(b.leading), 0.0, c, ldc);
}

#else

constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;

template <class T>
using Gemm = void (*)(int order, int a_trans, int b_trans, int m, int n, int k, T alpha, const T* a, int lda,
                      const T* b, int ldb, T beta, T* c, int ldc);

struct Library {
  Gemm<float> sgemm = nullptr;
  Gemm<double> dgemm = nullptr;
  int (*threads)() = nullptr;
  void (*set_threads)(int) = nullptr;
  std::string config, path;
};

std::atomic<Library*> library{nullptr};

bool ready() { return library.load(std::memory_order_acquire) != nullptr; }

// The symbols of the scipy-openblas wheels carry a prefix, those of the distributions do not.
template <class F>
bool look_up(void* handle, const char* name, F& f) {
  std::string prefixed = "scipy_";
  prefixed += name;
  f = reinterpret_cast<F>(dlsym(handle, prefixed.c_str()));
  if (!f) f = reinterpret_cast<F>(dlsym(handle, name));
  return f != nullptr;
}

// The product is split over our own threads, so the library must not start its own. Asked for before every call, as
// others in the process may set it back.
const Library& quiet() {
  const Library& found = *library.load(std::memory_order_acquire);
  if (found.threads() != 1) found.set_threads(1);
  return found;
}

void gemm(int m, int n, int k, const BlasMatrix& a, const BlasMatrix& b, float* c, int ldc) {
  quiet().sgemm(kRowMajor, a.transposed ? kTransposed : kPlain, b.transposed ? kTransposed : kPlain, m, n, k, 1.0f,
                static_cast<const float*>(a.data), static_cast<int>(a.leading), static_cast<const float*>(b.data),
                static_cast<int>(b.leading), 0.0f, c, ldc);
}
void gemm(int m, int n, int k, const BlasMatrix& a, const BlasMatrix& b, double* c, int ldc) {
  quiet().dgemm(kRowMajor, a.transposed ? kTransposed : kPlain, b.transposed ? kTransposed : kPlain, m, n, k, 1.0,
                static_cast<const double*>(a.data), static_cast<int>(a.leading), static_cast<const double*>(b.data),
                static_cast<int>(b.leading), 0.0, c, ldc);
}

#endif

template <class T>
bool checked_gemm(std::int64_t m, std::int64_t n, std::int64_t k, const BlasMatrix& a, const BlasMatrix& b, T* c,
                  std::int64_t ldc) {
  if (!ready() || !fits(m) || !fits(n) || !fits(k) || !fits(a.leading) || !fits(b.leading) || !fits(ldc)) return false;
  gemm(static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), a, b, c, static_cast<int>(ldc));
  return true;
}

}  // namespace

#if defined(__APPLE__)

bool blas_load(const char*) { return true; }
BlasInfo blas_info() { return {"accelerate", "", ""}; }

#else

bool blas_load(const char* path) {
  if (ready()) return true;
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return false;
  auto* found = new Library;  // for the life of the process, as the library is
  const char* (*config)() = nullptr;
  const bool complete = look_up(handle, "cblas_sgemm", found->sgemm) && look_up(handle, "cblas_dgemm", found->dgemm) &&
                        look_up(handle, "openblas_get_num_threads", found->threads) &&
                        look_up(handle, "openblas_set_num_threads", found->set_threads);
  if (complete && look_up(handle, "openblas_get_config", config)) found->config = config();
  found->path = path;
  Library* none = nullptr;
  if (!complete || !library.compare_exchange_strong(none, found)) {
    delete found;
    if (!complete) dlclose(handle);
  }
  return complete;
}

BlasInfo blas_info() {
  const Library* found = library.load(std::memory_order_acquire);
  if (!found) return {"none", "", ""};
  return {"openblas", found->config.c_str(), found->path.c_str()};
}

#endif

bool blas_ready() { return ready(); }

bool blas_gemm(std::int64_t m, std::int64_t n, std::int64_t k, const BlasMatrix& a, const BlasMatrix& b, float* c,
               std::int64_t c_leading) {
  return checked_gemm(m, n, k, a, b, c, c_leading);
}
bool blas_gemm(std::int64_t m, std::int64_t n, std::int64_t k, const BlasMatrix& a, const BlasMatrix& b, double* c,
               std::int64_t c_leading) {
  return checked_gemm(m, n, k, a, b, c, c_leading);
}

}  // namespace tritium
