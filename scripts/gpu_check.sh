#!/usr/bin/env bash
# Everything to check and measure on a machine with a GPU, in under nine minutes: all golden architectures against the
# processor, and the speed of synthesised models against llama.cpp's library of the same sources with the same backend.
# Usage: scripts/gpu_check.sh [cuda|vulkan|cpu]    (default cuda; cpu tries the script out)
#   LAYERS=32      layers of the measured models: 32 and 48 are those of 8 B and 30B-A3B, fewer measure the same kernels
#   TYPES, MODELS  of q4_k q8_0 f16, and dense moe
#   BANDWIDTH=N    of the card's memory in GB/s, for the share that decoding reaches
#   BENCH, LIBRARY built before; RUN=COMMAND runs them elsewhere, as in scripts/vulkan_check.sh
# Writes the table to target/gpu-check/table.md as well.
set -euo pipefail
cd "$(dirname "$0")/.."
backend=${1:-cuda}
work=$PWD/target/gpu-check
mkdir -p "$work"
began=$SECONDS
say() { echo "== $* ($((SECONDS - began)) s)" >&2; }
# What a compiler says goes into a file: its end is shown if it failed.
failed() { tail -20 "$1" >&2; echo "error: $1 has the whole of it" >&2; exit 1; }

say "building"
bench=${BENCH:-$PWD/target/release/bench}
[ -n "${BENCH:-}" ] || cargo build --release
crate=$(cargo metadata --format-version 1 --all-features --manifest-path ggml-sys/Cargo.toml |
    python3 -c 'import json,sys,os
print(next(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"] if p["name"] == "llama-cpp-sys-2"))')
${RUN:-} cmake -S "$PWD/scripts/llama_speed" -B "$work/llama" -D CMAKE_BUILD_TYPE=Release -D LLAMA_DIR="$crate/llama.cpp" >"$work/llama.log" ||
    failed "$work/llama.log"
${RUN:-} cmake --build "$work/llama" --parallel "$(nproc)" --target llama-speed >>"$work/llama.log" 2>&1 &
library=-
if [ "$backend" != cpu ]; then
    library=${LIBRARY:-$work/libggml-$backend.so}
    [ -n "${LIBRARY:-}" ] || scripts/backend.sh "$backend" "$work" >"$work/backend.log" || failed "$work/backend.log"
fi
wait %1 || failed "$work/llama.log"

case $backend in
cuda) device=CUDA0 ;;
vulkan) device=Vulkan0 ;;
*) device=none ;;
esac
options=()
[ "$backend" = cpu ] || options=(--backend "$library")
${RUN:-} "$bench" devices "${options[@]}"

say "architectures"
if [ "$backend" != cpu ]; then
    python3 scripts/device_check.py --bench "${RUN:-} $bench" --backend "$library" --device "$device" --jobs "$(nproc)" \
        --seconds "${ARCHITECTURE_SECONDS:-150}" --work "$work" --page "$work/architectures.md" || say "there are failures"
fi

say "speed"
python3 scripts/gpu_speed.py --bench "${RUN:-} $bench" --llama "${RUN:-} $work/llama/llama-speed" --library "$library" \
    --device "$device" --work "$work" --layers "${LAYERS:-32}" --types "${TYPES:-q4_k q8_0 f16}" \
    --models "${MODELS:-dense moe}" --bandwidth "${BANDWIDTH:-0}" --until "$((540 - SECONDS + began))" | tee "$work/table.md"
say "done"
