#!/bin/sh
# Prints the path of a program of llama.cpp, llama-server or the one that is named (llama-bench, llama-quantize, or llama-speed of
# this folder): LLAMA_SERVER, the one on the PATH, or one that it builds under target/ from the sources that llama-cpp-python
# carries (needs pip, a C++ compiler, minutes).
set -eu
name=${1:-llama-server}
asked=
[ "$name" != llama-server ] || asked=${LLAMA_SERVER:-}
here=$(cd "$(dirname "$0")/.." && pwd)
if found=$(command -v "${asked:-$name}"); then
    echo "$found"
    exit
fi
if [ -n "$asked" ]; then
    echo "LLAMA_SERVER=$asked is not a program" >&2
    exit 1
fi
work=$here/target/llama-server
build=$work/build
program=$build/bin/$name
if [ "$name" = llama-speed ]; then
    build=$work/speed
    program=$build/llama-speed
fi
if [ ! -x "$program" ]; then
    echo "no $name: building one in $work, which takes minutes" >&2
    mkdir -p "$work"
    [ -x "$work/venv/bin/cmake" ] || {
        python3 -m venv "$work/venv"
        "$work/venv/bin/python" -m pip install --quiet cmake
    }
    "$work/venv/bin/python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" llama-cpp-python
    tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
    llama=$(echo "$work"/llama_cpp_python-*/vendor/llama.cpp)
    if [ "$name" = llama-speed ]; then
        "$work/venv/bin/cmake" -S "$here/scripts/llama_speed" -B "$build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_DIR="$llama" >&2
    else
        "$work/venv/bin/cmake" -S "$llama" -B "$build" \
            -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF \
            -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >&2
    fi
    "$work/venv/bin/cmake" --build "$build" --target "$name" --parallel >&2
fi
echo "$program"
