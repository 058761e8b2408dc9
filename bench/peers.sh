#!/usr/bin/env bash
# Builds the engines that bench/machine.sh compares with, from their own sources: llama.cpp, bitnet.cpp (its own fork of llama.cpp,
# which knows I2_S), ik_llama.cpp and, on ARM, llama.cpp with KleidiAI's kernels. Nothing of them is part of this repository.
#
#   bench/peers.sh FOLDER          # then LLAMA=FOLDER/llama BITNET=FOLDER/bitnet IK=FOLDER/ik bench/machine.sh
#   PEERS="llama ik" JOBS=2 bench/peers.sh FOLDER
#
# Sources that are in FOLDER (llama.cpp, BitNet with 3rdparty/llama.cpp in it, ik_llama.cpp, kleidiai) are built as they are,
# the others are cloned; LLAMA_GIT, BITNET_GIT, IK_GIT and KLEIDIAI_GIT name other places to clone from, folders too.
# ccache is used where it is installed.
# A build for another machine: FLAGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON" bench/peers.sh FOLDER
# From a machine of another kind, with a cross compiler that a CMake toolchain file names; MARCH, since ik_llama.cpp needs more of
# AVX-512 than its own flags ask for: ARCH=x86_64 MARCH=sapphirerapids FLAGS="-DCMAKE_TOOLCHAIN_FILE=/FILE -DGGML_NATIVE=OFF …"
set -euo pipefail
folder=$(mkdir -p "${1:?a folder is needed}" && cd "$1" && pwd)
target=${MARCH:+-march=$MARCH}
read -ra flags <<<"-DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DGGML_OPENMP=OFF -DLLAMA_BUILD_TESTS=OFF ${FLAGS:-}"
if [ -n "$target" ]; then flags+=("-DCMAKE_C_FLAGS=$target" "-DCMAKE_CXX_FLAGS=$target"); fi
if command -v ccache >/dev/null; then flags+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
jobs=${JOBS:-$(nproc)}
arch=${ARCH:-$(uname -m)}
arm=$([[ $arch == aarch64 || $arch == arm64 ]] && echo yes || true)

source_of() {  # NAME URL: the sources' folder, cloned where it does not exist
  [ -e "$folder/$1" ] || git clone --recursive "$2" "$folder/$1"
  echo "$1: $(git -C "$folder/$1" log -1 --format='%h of %cs' 2>/dev/null || echo 'no git commit is known')"
}

build() {  # NAME SOURCE TARGETS FLAGS…: programs and libraries side by side in FOLDER/NAME
  local name=$1 from=$folder/$2 targets=$3 into=$folder/build-$1
  shift 3
  cmake -S "$from" -B "$into" "${flags[@]}" "$@"
  # shellcheck disable=SC2086  # targets are words
  cmake --build "$into" --target $targets -j "$jobs"
  mkdir -p "$folder/$name"
  find "$into" ! -type d \( -name llama-bench -o -name llama-quantize -o -name 'lib*.so*' \) -exec cp -P {} "$folder/$name/" \;
}

llama() {
  source_of llama.cpp "${LLAMA_GIT:-https://github.com/ggml-org/llama.cpp}"
  build llama llama.cpp llama-bench
}

kleidiai() {
  source_of llama.cpp "${LLAMA_GIT:-https://github.com/ggml-org/llama.cpp}"
  source_of kleidiai "${KLEIDIAI_GIT:-https://github.com/ARM-software/kleidiai}"
  build kleidiai llama.cpp llama-bench -DGGML_CPU_KLEIDIAI=ON "-DFETCHCONTENT_SOURCE_DIR_KLEIDIAI_DOWNLOAD=$folder/kleidiai"
}

ik() {
  source_of ik_llama.cpp "${IK_GIT:-https://github.com/ikawrakow/ik_llama.cpp}"
  build ik ik_llama.cpp "llama-bench llama-quantize"
}

bitnet() {
  local root=$folder/BitNet kernels=tl2
  source_of BitNet "${BITNET_GIT:-https://github.com/microsoft/BitNet}"
  [ -f "$root/3rdparty/llama.cpp/CMakeLists.txt" ] ||
    { echo "$root/3rdparty/llama.cpp is empty: bitnet.cpp's fork of llama.cpp belongs there (git submodule update --init)." >&2; exit 1; }
  [ -z "$arm" ] || kernels=tl1
  # Its build includes the kernels of one model's shapes even where TL1 and TL2 are off.
  [ -f "$root/include/bitnet-lut-kernels.h" ] ||
    cp "$root/preset_kernels/bitnet_b1_58-3B/bitnet-lut-kernels-$kernels.h" "$root/include/bitnet-lut-kernels.h"
  sed -i 's/message(FATAL_ERROR "Clang is required/message(STATUS "Clang is recommended/' "$root/src/CMakeLists.txt"
  # Its fork asks for no instruction set on ARM: without -mcpu its products have no dot instructions. GCC 12 fails when it
  # vectorises its quantiser.
  build bitnet BitNet llama-bench -DCMAKE_CXX_FLAGS="-fpermissive -w $target ${arm:+-mcpu=native -fno-tree-loop-vectorize}" \
    -DCMAKE_C_FLAGS="-w $target ${arm:+-mcpu=native}" -DBITNET_X86_TL2=OFF -DBITNET_ARM_TL1=OFF
}

for peer in ${PEERS:-llama bitnet ik ${arm:+kleidiai}}; do "$peer"; done
