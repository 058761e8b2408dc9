#!/usr/bin/env bash
# Builds the engines that bench/machine.sh compares with, from their own sources: llama.cpp and bitnet.cpp (its own fork of llama.cpp,
# which knows I2_S). Nothing of them is part of this repository.
#
#   bench/peers.sh FOLDER          # then LLAMA=FOLDER/llama BITNET=FOLDER/bitnet bench/machine.sh
#
# A build for another machine: FLAGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON" bench/peers.sh FOLDER
set -euo pipefail
folder=$(mkdir -p "${1:?a folder is needed}" && cd "$1" && pwd)
flags=(-DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DGGML_OPENMP=OFF ${FLAGS:-})
jobs=${JOBS:-$(nproc)}

gather() {  # NAME BUILD: programs and libraries side by side
  mkdir -p "$folder/$1"
  find "$2" \( -name llama-bench -o -name 'lib*.so*' \) -exec cp -P {} "$folder/$1/" \;
}

llama() {
  [ -d "$folder/llama.cpp" ] || git clone --depth 1 https://github.com/ggml-org/llama.cpp "$folder/llama.cpp"
  cmake -S "$folder/llama.cpp" -B "$folder/llama.cpp/build" "${flags[@]}"
  cmake --build "$folder/llama.cpp/build" --target llama-bench -j "$jobs"
  gather llama "$folder/llama.cpp/build"
}

bitnet() {
  local root=$folder/BitNet
  [ -d "$root" ] || git clone --recursive https://github.com/microsoft/BitNet "$root"
  # Its build includes the kernels of one model's shapes even where TL2 is off.
  [ -f "$root/include/bitnet-lut-kernels.h" ] ||
    cp "$root/preset_kernels/bitnet_b1_58-3B/bitnet-lut-kernels-tl2.h" "$root/include/bitnet-lut-kernels.h"
  sed -i 's/message(FATAL_ERROR "Clang is required/message(STATUS "Clang is recommended/' "$root/src/CMakeLists.txt"
  cmake -S "$root" -B "$root/build" "${flags[@]}" -DCMAKE_CXX_FLAGS="-fpermissive -w" -DCMAKE_C_FLAGS=-w -DBITNET_X86_TL2=OFF
  cmake --build "$root/build" --target llama-bench -j "$jobs"
  gather bitnet "$root/build"
}

for peer in ${PEERS:-llama bitnet}; do "$peer"; done
