#!/usr/bin/env bash
# Everything to check and measure on a machine with a GPU, in nine minutes and 64 GB of disk: builds, all golden architectures against the
# processor, and the speed of synthesised models against llama.cpp's library of the same sources with the same backend.
# Usage: scripts/gpu_check.sh [cuda|vulkan|cpu]    (default cuda; cpu tries the script out)
#   STEPS          of build, architectures, speed, sweep (default: all but sweep). What was built is found by a later call
#   SECONDS_IN_ALL=540   after which nothing is started; what was not is said, and the exit code is 1
#   LAYERS=8       layers of the measured models: 32 and 48 are those of 8 B and 30B-A3B, fewer measure the same kernels
#   TYPES, MODELS  of q4_k q8_0 bf16 f16, and dense moe tiny tiny-moe
#   SMALL=1        few short cases, to try the script itself
#   BANDWIDTH=N    of the card's memory in GB/s, for the share that decoding reaches
#   BENCH, LIBRARY, LLAMA (llama-speed) built before; RUN=COMMAND runs them elsewhere, as in scripts/vulkan_check.sh; PROFILE=NAME of cargo (default: release)
# Writes the table to target/gpu-check/table.md as well.
set -euo pipefail
cd "$(dirname "$0")/.."
backend=${1:-cuda}
steps=" ${STEPS:-build architectures speed} "
work=$PWD/target/gpu-check
mkdir -p "$work"
began=$SECONDS
limit=${SECONDS_IN_ALL:-540}
failed=0
say() { echo "== $* ($((SECONDS - began)) s)" >&2; }
left() { echo $((limit - SECONDS + began)); }
does() { [[ $steps == *" $1 "* ]]; }
# What a compiler says goes into a file: its end is shown if it failed.
fail() { tail -20 "$1" >&2; echo "error: $1 has the whole of it" >&2; exit 1; }

profile=${PROFILE:-release}
folder=$profile
[ "$profile" != dev ] || folder=debug
bench=${BENCH:-$PWD/target/$folder/bench}
llama=${LLAMA:-$work/llama/llama-speed}
library=-
[ "$backend" = cpu ] || library=${LIBRARY:-$work/libggml-$backend.so}
types=${TYPES:-q4_k bf16 q8_0}
models=${MODELS:-dense moe}
speed=(python3 scripts/gpu_speed.py --bench "${RUN:-} $bench" --work "$work" --layers "${LAYERS:-8}" --types "$types" --models "$models")
[ -z "${SMALL:-}" ] || speed+=(--small)

making=
if does build; then
    say "building"
    crate=$(cargo metadata --format-version 1 --all-features --manifest-path ggml-sys/Cargo.toml |
        python3 -c 'import json,sys,os
print(next(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"] if p["name"] == "llama-cpp-sys-2"))')
    # The library takes longest, so all is built at the same time.
    building=
    if [ "$backend" != cpu ] && [ -z "${LIBRARY:-}" ]; then
        scripts/backend.sh "$backend" "$work" >"$work/backend.log" 2>&1 &
        building=$!
    fi
    compiling=
    if [ -z "${LLAMA:-}" ]; then
        ${RUN:-} cmake -S "$PWD/scripts/llama_speed" -B "$work/llama" -D CMAKE_BUILD_TYPE=Release -D LLAMA_DIR="$crate/llama.cpp" >"$work/llama.log" 2>&1 ||
            fail "$work/llama.log"
        ${RUN:-} cmake --build "$work/llama" --parallel "$(nproc)" --target llama-speed >>"$work/llama.log" 2>&1 &
        compiling=$!
    fi
    [ -n "${BENCH:-}" ] || cargo build --profile "$profile" >"$work/bench.log" 2>&1 || fail "$work/bench.log"
    if does speed; then
        # Random weights are made while the compilers run.
        "${speed[@]}" --make &
        making=$!
    fi
    [ -z "$compiling" ] || wait "$compiling" || fail "$work/llama.log"
    [ -z "$building" ] || wait "$building" || fail "$work/backend.log"
    say "built"
fi

case $backend in
cuda) device=CUDA0 ;;
vulkan) device=Vulkan0 ;;
*) device=none ;;
esac
options=()
[ "$backend" = cpu ] || options=(--backend "$library")
${RUN:-} "$bench" devices "${options[@]}"

if does architectures; then
    say "architectures"
    if [ "$backend" != cpu ]; then
        python3 scripts/device_check.py --bench "${RUN:-} $bench" --backend "$library" --device "$device" --jobs "$(nproc)" \
            --seconds "${ARCHITECTURE_SECONDS:-120}" --work "$work" --page "$work/architectures.md" || { say "there are failures"; failed=1; }
    else
        say "architectures: the processor is not compared with itself"
    fi
fi

[ -z "$making" ] || wait "$making" || { say "files of models are missing"; failed=1; }
measured=("${speed[@]}" --llama "${RUN:-} $llama" --library "$library" --device "$device" --bandwidth "${BANDWIDTH:-0}")
if does sweep; then
    say "kernels"
    "${measured[@]}" --sweep --keep --until "$(left)" | tee "$work/sweep.md" || failed=1
fi
if does speed; then
    say "speed"
    "${measured[@]}" --until "$(left)" | tee "$work/table.md" || failed=1
fi
say "done"
exit $failed
