// Activations to int8, one token at a time, with the rounding that every kernel shares.
// Compiled without contraction: a fused multiply-add would round ties otherwise.
#pragma once

#include <cstdint>
#include <cstring>

#include "../threads.h"
#include "../workspace.h"
#include "product.h"

namespace tritium::TRITIUM_ISA {

constexpr std::int64_t kQuantizeGrain = 1 << 13;  // elements that make it worth waking another thread

// The largest |x| as bits, which order like the numbers; NaN and infinity are above all.
inline std::uint32_t largest_bits(const float* x, std::int64_t n) {
  std::uint32_t top = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t b = math::bits(x[i]) & 0x7fffffffu;
    top = top > b ? top : b;
  }
  return top;
}

// q = rint(x * s), half to even; |x * s| stays below 127.5, so nothing is left to clamp. Returns the sum of q.
// Adding 1.5 * 2^23 rounds and leaves the integer in the low bits.
inline std::int32_t round_all(const float* x, float s, std::int8_t* q, std::int64_t n) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] * s;
    const std::int32_t v = static_cast<std::int32_t>(math::bits(scaled + math::kRound32) - math::bits(math::kRound32));
    q[i] = static_cast<std::int8_t>(v);
    sum += v;
  }
  return sum;
}

inline std::int32_t sum_all(const std::int8_t* q, std::int64_t n) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += q[i];
  return sum;
}

// One token of k elements; sums[g] is that of its group's q. Returns the scale: NaN, and q = 0, where x is not finite.
inline float quantize_token(const float* x, std::int64_t k, std::int64_t group, std::int64_t groups, std::int8_t* q,
                            std::int32_t* sums) {
  const std::uint32_t top = largest_bits(x, k);
  if (top >= 0x7f800000u) {
    std::memset(q, 0, static_cast<std::size_t>(k));
    for (std::int64_t g = 0; g < groups; ++g) sums[g] = 0;
    return math::kNaN32;
  }
  const float amax = math::from_bits(top) > 1e-5f ? math::from_bits(top) : 1e-5f, s = 127.0f / amax;
  for (std::int64_t g = 0; g < groups; ++g) {
    sums[g] = round_all(x + g * group, s, q + g * group, least(group, k - g * group));
  }
  return amax / 127.0f;
}

// The same with a scale for each group.
inline void quantize_groups(const float* x, std::int64_t k, std::int64_t group, std::int64_t groups, std::int8_t* q,
                            std::int32_t* sums, float* scales) {
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t at = g * group;
    scales[g] = quantize_token(x + at, least(group, k - at), group, 1, q + at, sums + g);
  }
}

// The elements of a row as f32: where they lie, or gathered into `buffer`.
inline const float* floats_of(const RowList& x, std::int64_t row, float* buffer) {
  if (x.type == DType::f32 && (x.step == 4 || x.length == 1)) return reinterpret_cast<const float*>(x.row(row));
  gather_of<float>(x.type)(x.row(row), x.step, buffer, x.length);
  return buffer;
}

// A row of f32 into a row of any float dtype.
inline void store_floats(const RowList& out, std::int64_t row, const float* x) {
  if (out.type == DType::f64) return scatter_as<double>(x, out.row(row), out.step, out.length);
  scatter(out.type, x, out.row(row), out.step, out.length);
}

inline void copy_bytes(const RowList& x, std::int64_t row, std::int8_t* to) {
  if (x.step == 1) {
    std::memcpy(to, x.row(row), static_cast<std::size_t>(x.length));
  } else {
    gather_as<std::int8_t, std::int8_t>(x.row(row), x.step, to, x.length);
  }
}

// How much memory the activations of a product need, and which part is what.
struct ActivationPlan {
  Layout layout;
  std::int64_t m, units, groups, scales;  // scales: of one token

  std::int64_t panel_bytes() const {
    return layout.panel == 1 ? (units | 1) * kUnit : units * kUnit * layout.panel;
  }
  std::int64_t q_bytes() const { return ceil_div(m, layout.panel) * panel_bytes(); }
  std::int64_t bytes() const { return q_bytes() + whole(m * groups * 4, kUnit) + m * scales * 4; }
  Activations place(char* at) const {
    char* const sums = at + q_bytes();
    char* const scales = sums + whole(m * groups * 4, kUnit);
    return {reinterpret_cast<std::int8_t*>(at), panel_bytes(), layout, reinterpret_cast<std::int32_t*>(sums),
            reinterpret_cast<float*>(scales)};
  }
};

// A row of whole units as token t of its panel.
inline void into_panel(const Activations& a, std::int64_t t, std::int64_t units, const std::int8_t* row) {
  const int panel = a.layout.panel, chunk = a.layout.chunk;
  std::int8_t* to = a.q + t / panel * a.panel_bytes + t % panel * chunk;
  for (std::int64_t k = 0; k < units * kUnit; k += chunk, to += panel * chunk) {
    std::memcpy(to, row + k, static_cast<std::size_t>(chunk));
  }
}

// The groups of a token to their slots; see Slots.
inline void into_slots(const Slots& slots, std::int64_t k, const std::int8_t* row, std::int8_t* to) {
  std::memset(to, 0, static_cast<std::size_t>(slots.width()));
  for (std::int64_t g = 0; g < slots.groups; ++g) {
    const std::int64_t at = g * slots.group, n = least(slots.group, k - at);
    std::memcpy(to + g * slots.columns + at - slots.first(g), row + at, static_cast<std::size_t>(n));
  }
}

// Fills the activations of p from rows [p.first, p.first + p.m) of x: quantised if x is float, copied if it is int8.
inline void load_activations(const Product& p, const RowList& x) {
  const Activations& a = p.a;
  const Slots slots = p.slots();
  const std::int64_t panel = a.layout.panel, padded = whole(slots.width(), kUnit);
  const bool copied = x.type == DType::i8, plain = panel == 1 && !slots.apart;
  parallel_for(whole(p.m, panel), kQuantizeGrain / (p.k + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    const bool direct = !p.before && (copied || (x.type == DType::f32 && x.step == 4));
    const Workspace space((direct ? 0 : p.k * 4) + (plain ? 0 : padded), Need::must);
    float* const buffer = space.as<float>();
    std::int8_t* const row = reinterpret_cast<std::int8_t*>(space.data() + (direct ? 0 : p.k * 4));
    for (std::int64_t t = begin; t < end; ++t) {
      std::int8_t* const own = a.q + t * a.panel_bytes;
      std::int8_t* const q = plain ? own : row;
      if (t >= p.m) {
        std::memset(q, 0, static_cast<std::size_t>(padded));
      } else if (copied) {
        copy_bytes(x, p.first + t, q);
        for (std::int64_t g = 0; g < p.groups; ++g) {
          a.sums[t * p.groups + g] = sum_all(q + g * p.group, least(p.group, p.k - g * p.group));
        }
      } else {
        if (p.before) p.before->run(p.before->context, p.first + t, buffer);
        const float* const values = p.before ? buffer : floats_of(x, p.first + t, buffer);
        if (p.by_group) {
          quantize_groups(values, p.k, p.group, p.groups, q, a.sums + t * p.groups, a.scales + t * p.groups);
        } else {
          a.scales[t] = quantize_token(values, p.k, p.group, p.groups, q, a.sums + t * p.groups);
        }
      }
      if (slots.apart) {
        into_slots(slots, p.k, row, own);
        std::memset(own + slots.width(), 0, static_cast<std::size_t>(padded - slots.width()));
        continue;
      }
      if (t < p.m) std::memset(q + p.k, 0, static_cast<std::size_t>(padded - p.k));
      if (panel > 1) into_panel(a, t, p.units, row);
    }
  });
}

}  // namespace tritium::TRITIUM_ISA
