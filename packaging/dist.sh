#!/usr/bin/env bash
# Writes the packages of this version: archives, Debian packages, wheels, checksums.
# Usage: packaging/dist.sh [FOLDER]     default: target/dist
# Targets: those of the variable TARGETS, which may also name aarch64-unknown-linux-gnu (packaging/build.sh says what that needs); default
# x86_64-unknown-linux-gnu. The program of the first one has to run here, since it writes the manual pages: by itself, or by cargo's variable for its target,
# such as CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu". The packages run with the glibc of this machine and newer ones, and with
# some older: the name of the wheel and `Depends` of the Debian package say which. Debian 12 has built those of releases.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/dist}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}

TARGETS=${TARGETS:-x86_64-unknown-linux-gnu}

rm -rf "$out"
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The newest version of a library that a program asks for: newest PROGRAM PREFIX
newest() {
    objdump -T "$1" | grep -o "($2_[0-9.]*)" | tr -d '()' | sed "s/$2_//" | sort -Vu | tail -1
}

# The package libstdc++6 that first had a version of its symbols.
stdcxx_package() {
    case $1 in
        3.4.3[1-9]) echo 13 ;;
        3.4.30) echo 12 ;;
        3.4.29) echo 11 ;;
        *) echo 9 ;;
    esac
}

# What all packages of a target share, below a prefix: stage ROOT PREFIX ETC PROGRAM DOCUMENTS
stage() {
    local root=$1 prefix=$2 etc=$3 program=$4 documents=$5
    local base=$root$prefix doc=$root$prefix/share/doc/inference-lab-bench
    install -D -m 755 "$program" "$base/bin/bench"
    install -d "$base/share/man/man1" "$doc"
    cp "$work"/man/*.1 "$base/share/man/man1/"
    gzip -9n "$base"/share/man/man1/*
    install -D -m 644 "$work/completions/bench.bash" "$base/share/bash-completion/completions/bench"
    install -D -m 644 "$work/completions/bench.fish" "$base/share/fish/vendor_completions.d/bench.fish"
    install -D -m 644 packaging/bench.toml "$root$etc/bench/bench.toml"
    install -d "$base/lib/systemd/system"
    sed "s|@BIN@|$prefix/bin|; s|@CONFIG@|$etc/bench|" packaging/bench.service > "$base/lib/systemd/system/bench.service"
    install -m 644 README.md CHANGELOG.md "$documents/THIRD-PARTY-LICENCES.txt" "$documents/sbom.cdx.json" "$doc/"
}

for target in $TARGETS; do
    arch=${target%%-*}
    case $arch in
        x86_64) deb_arch=amd64 march=${GGML_MARCH:-all} least=x86-64-v2 ;;
        aarch64) deb_arch=arm64 march=${GGML_MARCH:-armv8.2-a+dotprod+fp16} ;;
        *) echo "error: no packages for $target" >&2; exit 2 ;;
    esac
    # Of several instruction sets the program needs the first.
    if [ "$march" != all ]; then least=${march%%,*}; fi
    built=$(packaging/build.sh "$target")
    program=$work/bench-$arch
    strip=strip
    if [ "$arch" != "$(uname -m)" ]; then strip=$arch-linux-gnu-strip; fi
    # Backend libraries find the functions of ggml among the dynamic symbols, which stay.
    "$strip" -o "$program" "$built"
    glibc=$(newest "$program" GLIBC)
    stdcxx=$(stdcxx_package "$(newest "$program" GLIBCXX)")

    if [ ! -d "$work/man" ]; then
        runner=CARGO_TARGET_$(tr a-z- A-Z_ <<< "$target")_RUNNER
        runner=${!runner:-}
        $runner "$program" man-pages "$work/man"
        mkdir "$work/completions"
        for shell in bash zsh fish; do
            $runner "$program" completions $shell > "$work/completions/bench.$shell"
        done
    fi
    documents=$work/documents-$arch
    mkdir "$documents"
    packaging/crates.py licences --target "$target" > "$documents/THIRD-PARTY-LICENCES.txt"
    packaging/crates.py sbom --target "$target" > "$documents/sbom.cdx.json"

    # The archive: a tree to unpack below /usr/local.
    name=bench-$version-$arch-linux
    stage "$work/$name" /usr/local /usr/local/etc "$program" "$documents"
    mv "$work/$name" "$work/tree" && mv "$work/tree/usr/local" "$work/$name" && rm -r "$work/tree"
    install -D -m 644 "$work/completions/bench.zsh" "$work/$name/share/zsh/site-functions/_bench"
    install -m 644 LICENSE-APACHE LICENSE-MIT "$work/$name/share/doc/inference-lab-bench/"
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$name" | gzip -9n > "$out/$name.tar.gz"

    # The Debian package.
    root=$work/deb-$arch
    stage "$root" /usr /etc "$program" "$documents"
    install -D -m 644 "$work/completions/bench.zsh" "$root/usr/share/zsh/vendor-completions/_bench"
    install -d "$root/lib/systemd" "$root/DEBIAN"
    mv "$root/usr/lib/systemd/system" "$root/lib/systemd/" && rmdir "$root/usr/lib/systemd" "$root/usr/lib"
    doc=$root/usr/share/doc/inference-lab-bench
    printf '%s\n' "inference-lab-bench ($version) unstable; urgency=medium" "" "  * CHANGELOG.md.gz says what is new." "" \
        " -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(date -u -R -d "@$SOURCE_DATE_EPOCH")" > "$doc/changelog"
    gzip -9n "$doc/changelog" "$doc/CHANGELOG.md" "$doc/THIRD-PARTY-LICENCES.txt" "$doc/sbom.cdx.json"
    install -m 644 packaging/debian/copyright "$doc/"
    sed "s/@VERSION@/$version/; s/@ARCH@/$deb_arch/; s/@SIZE@/$(du -sk "$root" | cut -f1)/; s/@GLIBC@/$glibc/; s/@STDCXX@/$stdcxx/; s/@MARCH@/$least/" \
        packaging/debian/control > "$root/DEBIAN/control"
    install -m 644 packaging/debian/conffiles "$root/DEBIAN/"
    install -m 755 packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm "$root/DEBIAN/"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) > "$work/md5sums"
    install -m 644 "$work/md5sums" "$root/DEBIAN/"
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/inference-lab-bench_${version}_$deb_arch.deb" >/dev/null

    packaging/wheel.py "$program" "$glibc" "$arch" "$documents" "$out" >/dev/null
    cp "$documents/sbom.cdx.json" "$out/$name.cdx.json"
    echo "$target: $march, glibc $glibc or newer"
done
cp packaging/Containerfile "$out/"
(cd "$out" && sha256sum -- *.tar.gz *.deb *.whl *.cdx.json Containerfile > SHA256SUMS)
ls -l "$out"
