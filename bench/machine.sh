#!/usr/bin/env bash
# Measures a machine in one go: DRAM, whole models, a decode step by its parts, long prompts, ternary products, each beside llama.cpp,
# bitnet.cpp and ik_llama.cpp where they were built (bench/peers.sh). What it prints and writes lies in the folder.
#
#   bench/machine.sh [FOLDER]                  # everything, with all CPUs
#   THREADS=16 PARTS="dram model parts" bench/machine.sh out
#
# LLAMA, BITNET and IK: folders with llama-bench and its libraries, as bench/peers.sh leaves them; empty: without that peer.
# SHAPES, BATCHES, LIBS: of the products; ROUNDS: of the models.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-machine}
threads=${THREADS:-$(nproc)}
python=${PYTHON:-python}
models=${MODELS:-$out}   # where model files go: 3.5 GB
layers=${LAYERS:-30}
vocab=${VOCAB:-128256}
rounds=${ROUNDS:-6}
llama=${LLAMA:-}
bitnet=${BITNET:-}
ik=${IK:-}
mkdir -p "$out" "$models"

note() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

# The same weights for everyone; several files at once.
make() {
  local more=(--arch bitnet --layers "$layers" --vocab "$vocab" --context 8448 --overwrite)
  "$python" "$here/make_model.py" "$models/i2s.gguf" --format i2_s "${more[@]}" >"$out/make.log" 2>&1 &
  "$python" "$here/make_model.py" "$models/tq2.gguf" --format tq2_0 "${more[@]}" >>"$out/make.log" 2>&1 &
  wait
  "$python" -m tritium prepack "$models/i2s.gguf" "$models/ours.tritium" --overwrite >>"$out/make.log" 2>&1
  [ -z "$ik" ] || LD_LIBRARY_PATH=$ik "$ik/llama-quantize" --allow-requantize --token-embedding-type f16 \
    "$models/i2s.gguf" "$models/iq2.gguf" IQ2_BN >>"$out/make.log" 2>&1
}

# Bytes a second that all threads read, over eight times the last cache.
dram() {
  "$python" - "$threads" <<'PY'
import sys
from tritium.buffer import native
from tritium.machine.facts import caches

threads = int(sys.argv[1])
last = max((cache.nbytes for cache in caches()), default=64 << 20)
loops = ["read", "read4"]
nbytes = min(8 * last, 4 << 30)
for loop, rates in zip(loops, native.ceiling_stream_rates(loops, nbytes // threads, threads, 5, 0.1), strict=True):
    print(f"DRAM {loop}, {threads} threads over {nbytes >> 20} MiB: {sorted(rates)[2] / 1e9:.1f} GB/s ({min(rates) / 1e9:.1f} … {max(rates) / 1e9:.1f})")
PY
}

peers() {
  [ -n "$llama" ] && printf '%s\0' --peer "llama.cpp TQ2_0, f16" "$llama/llama-bench" "$models/tq2.gguf"
  [ -n "$bitnet" ] && printf '%s\0' --peer "bitnet.cpp I2_S, f16" "$bitnet/llama-bench" "$models/i2s.gguf"
  [ -n "$ik" ] && printf '%s\0' --ik "ik_llama.cpp IQ2_BN, f16" "$ik/llama-bench" "$models/iq2.gguf"
  return 0
}

model() {
  mapfile -d '' -t others < <(peers)
  "$python" "$here/model.py" --ours "$models/ours.tritium" "${others[@]}" \
    --threads "$threads" --rounds "$rounds" --results "$out/models.json"
}

parts() { "$python" "$here/model.py" --ours "$models/ours.tritium" --parts --threads "$threads"; }

# Prompts of 2,048 and 8,192 tokens on two layers: attention's share is that of the whole model.
prompts() {
  local more=(--arch bitnet --layers 2 --vocab 4096 --context 8448 --overwrite)
  "$python" "$here/make_model.py" "$models/long-i2s.gguf" --format i2_s "${more[@]}" >>"$out/make.log" 2>&1
  "$python" "$here/make_model.py" "$models/long-tq2.gguf" --format tq2_0 "${more[@]}" >>"$out/make.log" 2>&1
  for tokens in 128 2048 8192; do
    "$python" -m tritium bench model "$models/long-i2s.gguf" -p "$tokens" -n 8 -r 3 --threads "$threads" | grep -E "^(prefill|decode) +[0-9]"
  done
  [ -z "$llama" ] || LD_LIBRARY_PATH="$llama" "$llama/llama-bench" -m "$models/long-tq2.gguf" -t "$threads" -p 128,2048,8192 -n 0 -r 2 2>&1 | grep pp
}

products() {
  local ggml=""
  [ -n "$bitnet" ] && ggml="bitnet.cpp=i2_s=$bitnet/libggml.so"
  [ -n "$llama" ] && ggml="$ggml llama.cpp=tq2_0=$llama"
  TRITIUM_GGML=$ggml LD_LIBRARY_PATH="$llama:${LD_LIBRARY_PATH:-}" "$python" "$here/ternary.py" --threads "$threads" \
    --batches "${BATCHES:-1,16,128,512}" --shapes "${SHAPES:-2560x2560,6912x2560,2560x6912}" --libs "${LIBS:-tritium,tern5}" --no-extras \
    ${QUICK:+--quick} ${ggml:+--peer "$here/ggml_peer.py"} --results "$out/ternary.json"
}

for part in ${PARTS:-make dram model parts prompts products}; do
  note "$part"
  "$part" 2>"$out/$part.err" | tee "$out/$part.txt"
done
note done
