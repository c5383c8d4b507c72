#!/usr/bin/env bash
# Checks the types of the program for targets that no test runs on. C and C++ code is not compiled, and nothing is linked.
# Usage: packaging/check_targets.sh [TARGET...]     default: Windows, macOS and Linux on ARM; each needs `rustup target add TARGET`
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/check-targets}

# Compilers that accept everything and write nothing, and an archiver that writes empty archives: `ar OPTIONS ARCHIVE FILE...`.
fake=$(mktemp -d)
trap 'rm -rf "$fake"' EXIT
printf '#!/bin/sh\nprintf "!<arch>\\n" > "$2"\n' > "$fake/ar"
chmod +x "$fake/ar"

for target in "${@:-x86_64-pc-windows-gnu aarch64-apple-darwin aarch64-unknown-linux-gnu}"; do
    for one in $target; do
        for tool in CC CXX RANLIB; do
            export "${tool}_${one//-/_}=true"
        done
        export "AR_${one//-/_}=$fake/ar"
        echo "== $one"
        cargo check --locked --workspace --target "$one"
    done
done
