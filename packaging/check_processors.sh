#!/usr/bin/env bash
# Runs a program with code for several instruction sets on processors that QEMU emulates, and here with each set that this machine has: all
# give the same text, and a processor below the first set is refused.
# Usage: packaging/check_processors.sh [PROGRAM]     default: the one of packaging/build.sh
# Needs Linux on x86-64 and qemu-user-static (7.2 or newer, for AVX2).
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-target/dist-build/x86_64-unknown-linux-gnu/release/bench}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "error: $*" >&2
    exit 1
}

# What it computes with, and the text: check WORDS...
check() {
    local march since
    since=$(date +%s%N)
    march=$("$@" --version 2>"$work/err" | sed -n 's/^computes *\([^:]*\):.*/\1/p')
    "$@" run --deterministic --threads 1 -n 40 "Tell me about 17+25=?" >"$work/text" 2>"$work/err" || fail "$*: $(tail -3 "$work/err")"
    test -f "$work/first" || cp "$work/text" "$work/first"
    cmp -s "$work/text" "$work/first" || fail "$*: another text: $(cat "$work/text")"
    echo "$march, $(( ($(date +%s%N) - since) / 1000000 )) ms"
}
# On a processor of QEMU: emulated MODEL SET
emulated() {
    local found
    found=$(check qemu-x86_64-static -cpu "$1" "$program")
    echo "$1 under QEMU: $found"
    test "${found%%,*}" = "$2" || fail "$1: expected $2"
}

echo "built for $("$program" --version | sed -n 's/^built for *//p')"
here=$(check "$program")
echo "this machine: $here"
here=${here%%,*}
for set in $("$program" --version | sed -n 's/^built for *//p' | tr -d ,); do
    echo "this machine with BENCH_MARCH=$set: $(BENCH_MARCH=$set check "$program")"
    if [ "$set" = "$here" ]; then break; fi
done
emulated Nehalem x86-64-v2
emulated Haswell x86-64-v3
# QEMU emulates none of AVX-512.
emulated Skylake-Server x86-64-v3

status=0
qemu-x86_64-static -cpu Conroe "$program" run "2+2=?" >"$work/text" 2>"$work/err" || status=$?
message=$(grep -v '^qemu' "$work/err" || true)
echo "Conroe under QEMU: status $status: $message"
if [ $status != 1 ] || [[ $message != *"lacks"*"sse4.2"* ]]; then fail "Conroe: expected a refusal"; fi
echo "the same text on all: $(cat "$work/first")"
