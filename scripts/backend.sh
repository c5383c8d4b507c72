#!/usr/bin/env bash
# Builds a backend of ggml as a library that `bench` loads at run time, from the sources that the program itself is
# built from. Usage: scripts/backend.sh cuda|metal|vulkan FOLDER    (the library is put there)
# Needs CMake, a C++ compiler and what docs/gpu.md lists for the backend. ROOT=DIR builds within another root.
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1 out=$2
within=(${ROOT:+chroot "$ROOT"})

sources=$(cargo metadata --format-version 1 --all-features --manifest-path ggml-sys/Cargo.toml |
    python3 -c 'import json,sys,os
p = next(p for p in json.load(sys.stdin)["packages"] if p["name"] == "llama-cpp-sys-2")
print(os.path.dirname(p["manifest_path"]), p["name"], p["version"])')
read -r crate package version <<<"$sources"
ggml=${GGML_SOURCE_DIR:-$crate/llama.cpp/ggml}
number=$(sed -nE 's/^set\(GGML_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)\).*/\2/p' "$ggml/CMakeLists.txt" | paste -sd.)
# As in ggml-sys/build.rs.
origin="$package $version"
[ -z "${GGML_SOURCE_DIR:-}" ] || origin=$(realpath "$ggml")

command -v cmake >/dev/null || [ -n "${ROOT:-}" ] || { echo "error: install cmake and ninja-build" >&2; exit 1; }
build=$PWD/target/backends/$name${ROOT:+-in-root}
generator=()
"${within[@]}" which ninja >/dev/null 2>&1 && generator=(-G Ninja)
"${within[@]}" cmake -S "$PWD/ggml-sys/backend" -B "$build" "${generator[@]}" -D CMAKE_BUILD_TYPE=Release \
    -D GGML_DIR="$ggml" -D BACKEND="$name" -D LIBRARY=ON -D IDENTITY="ggml $number of $origin"
"${within[@]}" cmake --build "$build" --parallel "${JOBS:-$(nproc)}"
mkdir -p "$out"
# Under another name first: a program that has the old one loaded keeps it.
cp "$build/libggml-$name.so" "$out/.libggml-$name.so"
mv "$out/.libggml-$name.so" "$out/libggml-$name.so"
echo "$out/libggml-$name.so"
