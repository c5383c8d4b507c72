#!/usr/bin/env bash
# All golden architectures on ggml's Vulkan backend with Mesa's software driver, against the processor: needs no GPU.
# Usage: scripts/vulkan_check.sh [options of scripts/device_check.py]
# Makes a Debian 13 root in target/vulkan-root (its Vulkan headers are new enough; kept for the next time), builds the
# backend library in it, and runs `bench`, which is built outside, within it. Linux, as root, with debootstrap.
# BENCH names another program than target/release/bench; LIBRARY a built library.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/target/vulkan-root
packages=mesa-vulkan-drivers,libvulkan-dev,glslc,spirv-headers,cmake,ninja-build,g++,ca-certificates
[ "$(id -u)" = 0 ] || { echo "error: needs root, for chroot and mounts" >&2; exit 1; }

# In mounts of its own: nothing stays mounted in target/, whatever happens.
if [ -z "${IN_MOUNTS:-}" ]; then
    command -v debootstrap >/dev/null || { echo "error: install debootstrap (apt-get install debootstrap)" >&2; exit 1; }
    if [ ! -e "$root/.complete" ]; then
        rm -rf "$root"
        debootstrap --variant=minbase --include="$packages" trixie "$root" ${MIRROR:+"$MIRROR"}
        touch "$root/.complete"
    fi
    [ -n "${BENCH:-}" ] || cargo build --release
    IN_MOUNTS=1 exec unshare --mount "$0" "$@"
fi
sources=${GGML_SOURCE_DIR:-${CARGO_HOME:-$HOME/.cargo}/registry}
for folder in /proc /dev /sys "$PWD" "$sources"; do
    mkdir -p "$root$folder"
    mount --bind "$folder" "$root$folder"
done

library=${LIBRARY:-$PWD/target/vulkan-check/libggml-vulkan.so}
[ -n "${LIBRARY:-}" ] || ROOT=$root scripts/backend.sh vulkan "$PWD/target/vulkan-check"
# ggml leaves out software drivers unless they are named, and multiplies in f16 where it can: that rounds by 1e-6, by
# which other experts are chosen. The driver compiles some shaders for minutes.
bench="chroot $root env GGML_VK_VISIBLE_DEVICES=0 GGML_VK_DISABLE_F16=1 ${BENCH:-$PWD/target/release/bench}"
$bench devices --backend "$library"
python3 scripts/device_check.py --bench "$bench" --backend "$library" --device Vulkan0 \
    --bound 1e-4 --limit 600 --work "$PWD/target/vulkan-check" --page "$PWD/target/vulkan-check/table.md" "$@"
