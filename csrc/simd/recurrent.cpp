// gated_delta_rule and causal_conv1d: tokens that meet a state of their sequence, one after another, and leave it changed.
// Each element is computed by one thread, token by token and in one order, so that
// bits depend neither on the instruction set nor on how many tokens come at once; compiled without contraction.
#include <cstdint>
#include <cstring>

#include "../fault.h"
#include "../threads.h"
#include "../workspace.h"
#include "cast.h"
#include "gather.h"
#include "loops.h"
#include "wide.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kGrain = 1 << 15;  // products that make it worth waking another thread
constexpr int kVectors = 4;          // of columns that are computed together
constexpr int64_t kColumns = kVectors * kWide;
constexpr int64_t kCopied = 3;       // tokens from which on the columns of a state are brought together
constexpr int64_t kChannels = 256;   // that a thread takes together

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Which state a sequence has, whether it begins, and how many of its tokens are real.
struct Turn {
  int64_t slot, start, count;
};

// The places of sequences, i32 [batch, 3]. False: one is outside, or two of them change the same state; the fault is set.
bool read_turns(const char* row, const View& places, int64_t slots, int64_t tokens, Turn* to) {
  for (int64_t b = 0; b < places.shape[0]; ++b) {
    const char* const from = places.data + b * places.strides[0];
    const auto number = [&](int i) { return int64_t{at<std::int32_t>(from + i * places.strides[1])}; };
    const Turn t = to[b] = {number(0), number(1), number(2)};
    const bool inside = t.slot >= 0 && t.slot < slots && t.start >= 0 && t.count >= 0 && t.count <= tokens;
    int64_t other = -1;
    for (int64_t o = 0; inside && o < b && other < 0; ++o) {
      if (t.count > 0 && to[o].count > 0 && to[o].slot == t.slot) other = o;
    }
    if (inside && other < 0) continue;
    set_fault({Faulty::state, row, {b, t.slot, t.start, t.count, slots, tokens, other}});
    return false;
  }
  return true;
}

// Row `i` of some columns; they are adjacent.
struct Lines {
  float* data;
  int64_t step;  // in floats

  float* row(int64_t i) const { return data + i * step; }
};

// One token of a head: the state fades, is asked for the key, is corrected, and is asked for the query. V vectors of columns.
template <int V>
void delta_step(const Lines& s, int64_t size, const float* k, const float* q, const float* v, float decay, float beta,
                float* y) {
  Wide memory[V] = {};
  for (int64_t i = 0; i < size; ++i) {
    const float* const row = s.row(i);
    const Wide key = splat(k[i]);
#pragma GCC unroll 4
    for (int c = 0; c < V; ++c) memory[c] += load(row + c * kWide) * decay * key;
  }
  Wide delta[V], found[V] = {};
#pragma GCC unroll 4
  for (int c = 0; c < V; ++c) delta[c] = (load(v + c * kWide) - memory[c]) * beta;
  for (int64_t i = 0; i < size; ++i) {
    float* const row = s.row(i);
    const Wide key = splat(k[i]), query = splat(q[i]);
#pragma GCC unroll 4
    for (int c = 0; c < V; ++c) {
      const Wide now = load(row + c * kWide) * decay + key * delta[c];  // fading twice costs less than storing it between
      store(row + c * kWide, now);
      found[c] += now * query;
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < V; ++c) store(y + c * kWide, found[c]);
}

struct Delta {
  const View &q, &k, &v, &decay, &beta, &state, &y;
  int64_t batch, tokens, heads, per, size, columns, blocks;
  const Turn* turns;

  Delta(const Call& call, const Turn* read)
      : q(call.in[1]), k(call.in[2]), v(call.in[3]), decay(call.in[4]), beta(call.in[5]), state(call.out[0]), y(call.out[1]),
        batch(v.shape[0]), tokens(v.shape[1]), heads(v.shape[2]), per(k.shape[2] ? heads / k.shape[2] : 1), size(k.shape[3]),
        columns(v.shape[3]), blocks((columns + kColumns - 1) / kColumns), turns(read) {}

  int64_t space() const { return (size * kColumns + 2 * size + 2 * kColumns) * static_cast<int64_t>(sizeof(float)); }
  void run(int64_t b, int64_t h, int64_t first, float* memory) const;
};

// n adjacent floats: where they are, or gathered.
const float* line_of(const View& x, int64_t b, int64_t t, int64_t h, int64_t n, float* buffer) {
  const char* const from = x.data + b * x.strides[0] + t * x.strides[1] + h * x.strides[2];
  if (x.strides[3] == 4) return reinterpret_cast<const float*>(from);
  gather_as<float, float>(from, x.strides[3], buffer, n);
  return buffer;
}

// All tokens of a sequence for the columns of one block of a head.
void Delta::run(int64_t b, int64_t h, int64_t first, float* memory) const {
  const Turn& turn = turns[b];
  const int64_t n = least(kColumns, columns - first);
  float *const keys = memory + size * kColumns, *const queries = keys + size, *const values = queries + size;
  float* const line = values + kColumns;
  char* const base = state.data + turn.slot * state.strides[0] + h * state.strides[1] + first * state.strides[3];
  // Rows of a state lie so far apart that they share few lines of a small cache: many tokens are worth a copy.
  const bool adjacent = n == kColumns && state.strides[3] == 4 && state.strides[2] % 4 == 0;
  const bool direct = adjacent && turn.count < kCopied;
  const Lines s = direct ? Lines{reinterpret_cast<float*>(base), state.strides[2] / 4} : Lines{memory, kColumns};
  for (int64_t i = 0; i < size; ++i) {
    if (turn.start == 0) {
      for (int64_t c = 0; c < (direct ? n : kColumns); ++c) s.row(i)[c] = 0;
    } else if (adjacent && !direct) {
      std::memcpy(s.row(i), base + i * state.strides[2], kColumns * sizeof(float));
    } else if (!direct) {
      gather_as<float, float>(base + i * state.strides[2], state.strides[3], s.row(i), n);
      for (int64_t c = n; c < kColumns; ++c) s.row(i)[c] = 0;
    }
  }
  for (int64_t c = 0; c < kColumns; ++c) values[c] = 0;
  for (int64_t t = 0; t < turn.count; ++t) {
    const float* const key = line_of(k, b, t, h / per, size, keys);
    const float* const query = line_of(q, b, t, h / per, size, queries);
    gather_as<float, float>(v.data + b * v.strides[0] + t * v.strides[1] + h * v.strides[2] + first * v.strides[3],
                            v.strides[3], values, n);
    const auto gate = [&](const View& x) {
      return at<float>(x.data + b * x.strides[0] + t * x.strides[1] + h * x.strides[2]);
    };
    delta_step<kVectors>(s, size, key, query, values, gate(decay), gate(beta), line);
    scatter(y.dtype, line, y.data + b * y.strides[0] + t * y.strides[1] + h * y.strides[2] + first * y.strides[3],
            y.strides[3], n);
  }
  for (int64_t i = 0; i < size && !direct; ++i) {
    char* const to = base + i * state.strides[2];
    adjacent ? static_cast<void>(std::memcpy(to, s.row(i), kColumns * sizeof(float)))
             : scatter(state.dtype, s.row(i), to, state.strides[3], n);
  }
}

// Zero for tokens from `count` on, of y [batch, tokens, ...].
void clear_rest(const View& y, const Turn* turns) {
  View rest = y;
  for (int64_t b = 0; b < y.shape[0]; ++b) {
    rest.shape[0] = 1;
    rest.shape[1] = y.shape[1] - turns[b].count;
    rest.data = y.data + b * y.strides[0] + turns[b].count * y.strides[1];
    const int last = rest.ndim - 1;
    const int64_t n = rest.shape[last], step = rest.strides[last];
    for (int64_t i = 0, lines = n ? rest.size() / n : 0; i < lines; ++i) {
      char* to = rest.data;
      for (int64_t d = last - 1, index = i; d > 0; index /= rest.shape[d--]) to += index % rest.shape[d] * rest.strides[d];
      if (step == 4) {
        std::memset(to, 0, static_cast<std::size_t>(n) * sizeof(float));
      } else {
        for (int64_t j = 0; j < n; ++j) std::memset(to + j * step, 0, sizeof(float));
      }
    }
  }
}

void gated_delta_rule(const Call& call) {
  const View &state = call.in[0], &v = call.in[3], &places = call.in[6];
  const Workspace kept(v.shape[0] * static_cast<int64_t>(sizeof(Turn)), Need::must);
  Turn* const turns = kept.as<Turn>();
  if (!read_turns("gated_delta_rule", places, state.shape[0], v.shape[1], turns)) return;
  if (call.out[0].data != state.data) copy({&state, 1, &call.out[0], call.attrs});
  const Delta delta(call, turns);
  if (delta.y.size() != 0) clear_rest(delta.y, turns);
  if (delta.heads * delta.size * delta.columns == 0) {
    if (delta.y.size() != 0) {
      for (int64_t b = 0; b < delta.batch; ++b) turns[b].count = 0;  // of nothing asked, nothing is found
      clear_rest(delta.y, turns);
    }
    return;
  }
  int64_t live[2] = {0, 0};  // sequences with tokens, and all their tokens
  for (int64_t b = 0; b < delta.batch; ++b) {
    live[0] += turns[b].count > 0;
    live[1] += turns[b].count;
  }
  if (live[0] == 0) return;
  const int64_t tasks = delta.batch * delta.heads * delta.blocks;
  const int64_t each = live[1] * delta.size * kColumns * 4 / delta.batch;
  parallel_for(tasks, kGrain / (each + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(delta.space(), Need::must);
    for (int64_t u = begin; u < end; ++u) {
      const int64_t b = u / (delta.heads * delta.blocks);
      if (turns[b].count == 0) continue;
      delta.run(b, u / delta.blocks % delta.heads, u % delta.blocks * kColumns, space.as<float>());
    }
  });
}

// ---- the short convolution

// y[c] = the sum over taps j of weight[j][c] * line[j][c], in order, and the bias.
void conv_step(const float* const* lines, const float* weight, const float* bias, int64_t taps, int64_t n, float* y) {
  TRITIUM_LOOP
  for (int64_t c = 0; c < n; ++c) y[c] = weight[c] * lines[0][c];
  for (int64_t j = 1; j < taps; ++j) {
    const float *const w = weight + j * kChannels, *const x = lines[j];
    TRITIUM_LOOP
    for (int64_t c = 0; c < n; ++c) y[c] += w[c] * x[c];
  }
  if (bias == nullptr) return;
  TRITIUM_LOOP
  for (int64_t c = 0; c < n; ++c) y[c] += bias[c];
}

struct Conv {
  const View &x, &weight, &state, &y;
  const View* bias;
  int64_t batch, taps;

  Conv(const Call& call)
      : x(call.in[1]), weight(call.in[2]), state(call.out[0]), y(call.out[1]),
        bias(call.nin > 4 && call.in[4].data != nullptr ? &call.in[4] : nullptr), batch(x.shape[0]), taps(weight.shape[0]) {}

  // Weights, the tokens before the first, those that come, and where the last ones are, each a line of kChannels.
  int64_t space() const { return (2 * taps + 2) * kChannels * static_cast<int64_t>(sizeof(float)) + taps * 8; }
  void run(const Turn& turn, int64_t b, int64_t first, int64_t n, const float* weights, const float* added, float* memory) const;
};

// All tokens of a sequence for some channels. The last `taps` inputs are kept in a ring.
void Conv::run(const Turn& turn, int64_t b, int64_t first, int64_t n, const float* weights, const float* added,
               float* memory) const {
  const int64_t before = taps - 1;
  float* const ring = memory;
  float* const line = ring + taps * kChannels;
  const float** const lines = reinterpret_cast<const float**>(line + kChannels);
  char* const base = state.data + turn.slot * state.strides[0] + first * state.strides[2];
  for (int64_t j = 0; j < before; ++j) {
    float* const to = ring + j * kChannels;
    if (turn.start == 0) {
      for (int64_t c = 0; c < n; ++c) to[c] = 0;
    } else {
      gather_as<float, float>(base + j * state.strides[1], state.strides[2], to, n);
    }
  }
  for (int64_t t = 0; t < turn.count; ++t) {
    const int64_t newest = (before + t) % taps;
    gather_as<float, float>(x.data + b * x.strides[0] + t * x.strides[1] + first * x.strides[2], x.strides[2],
                            ring + newest * kChannels, n);
    for (int64_t j = 0; j < taps; ++j) lines[j] = ring + (newest + 1 + j) % taps * kChannels;
    conv_step(lines, weights, added, taps, n, line);
    scatter(y.dtype, line, y.data + b * y.strides[0] + t * y.strides[1] + first * y.strides[2], y.strides[2], n);
  }
  for (int64_t j = 0; j < before; ++j) {
    scatter(state.dtype, ring + (turn.count + j) % taps * kChannels, base + j * state.strides[1], state.strides[2], n);
  }
}

void causal_conv1d(const Call& call) {
  const View &state = call.in[0], &x = call.in[1], &places = call.in[3];
  const Workspace kept(x.shape[0] * static_cast<int64_t>(sizeof(Turn)), Need::must);
  Turn* const turns = kept.as<Turn>();
  if (!read_turns("causal_conv1d", places, state.shape[0], x.shape[1], turns)) return;
  if (call.out[0].data != state.data) copy({&state, 1, &call.out[0], call.attrs});
  const Conv conv(call);
  if (conv.y.size() == 0) return;
  clear_rest(conv.y, turns);
  const int64_t channels = x.shape[2], blocks = (channels + kChannels - 1) / kChannels;
  const int64_t each = conv.batch * x.shape[1] * conv.taps * kChannels;
  parallel_for(blocks, kGrain / each + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(conv.space(), Need::must);
    float *const weights = space.as<float>(), *const added = weights + conv.taps * kChannels;
    for (int64_t u = begin; u < end; ++u) {
      const int64_t first = u * kChannels, n = least(kChannels, channels - first);
      const View& w = conv.weight;
      for (int64_t j = 0; j < conv.taps; ++j) {
        gather_as<float, float>(w.data + j * w.strides[0] + first * w.strides[1], w.strides[1], weights + j * kChannels, n);
      }
      if (conv.bias) gather_as<float, float>(conv.bias->data + first * conv.bias->strides[0], conv.bias->strides[0], added, n);
      for (int64_t b = 0; b < conv.batch; ++b) {
        if (turns[b].count > 0)
          conv.run(turns[b], b, first, n, weights, conv.bias ? added : nullptr, added + kChannels);
      }
    }
  });
}

constexpr Entry kEntries[] = {{"gated_delta_rule", gated_delta_rule, bit(DType::f32), "", 0, true},
                              {"causal_conv1d", causal_conv1d, bit(DType::f32), "", 0, true}};

}  // namespace

Table recurrent_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
