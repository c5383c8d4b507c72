#!/usr/bin/env bash
# Builds the program for packages, and prints where it lies.
# Usage: packaging/build.sh [TARGET]     default: x86_64-unknown-linux-gnu
# TARGET aarch64-unknown-linux-gnu needs `rustup target add` and g++-aarch64-linux-gnu.
# GGML_MARCH: the instruction sets, as ggml-sys/build.rs says; default all of x86-64, or for aarch64 one.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-x86_64-unknown-linux-gnu}

case $target in
    x86_64-*) export GGML_MARCH=${GGML_MARCH:-all} ;;
    aarch64-*) export GGML_MARCH=${GGML_MARCH:-armv8.2-a+dotprod+fp16} ;;
esac
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=${CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER:-aarch64-linux-gnu-g++}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/dist-build}
# The same program wherever the sources and the crates lie.
home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$home=/cargo --remap-path-prefix=$PWD=/bench"
export CFLAGS="-ffile-prefix-map=$home=/cargo -ffile-prefix-map=$PWD=/bench" CXXFLAGS="-ffile-prefix-map=$home=/cargo -ffile-prefix-map=$PWD=/bench"

cargo build --release --locked --features png --bin bench --target "$target" >&2
echo "$CARGO_TARGET_DIR/$target/release/bench"
