#!/usr/bin/env bash
# A newcomer's first quarter of an hour with each package, on a fresh Debian 12: install it, start the service's command line as its user, put
# nginx with TLS before it, ask a question, and remove the package.
# Usage: packaging/check_packages.sh [FOLDER]     default: target/dist
# Needs Linux on x86-64, root, debootstrap and iproute2. BASE names a folder with a Debian 12 of debootstrap, which saves its download.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath "${1:-target/dist}")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
work=$(mktemp -d -p /var/tmp)
trap 'rm -rf --one-file-system "$work"' EXIT
(cd "$dist" && sha256sum --quiet --check SHA256SUMS)

base=${BASE:-$work/base}
if [ ! -d "$base/etc" ]; then
    debootstrap --variant=minbase bookworm "$base" ${MIRROR:+"$MIRROR"} >"$work/debootstrap.log"
fi
# What all of them need besides a package, so that the times are those of the packages.
cp -a "$base" "$work/prepared"
prepared=$work/prepared
cp /etc/resolv.conf "$prepared/etc/"
# Runs a script in a root: within ROOT [unshare options] < SCRIPT. Mounts end with the process.
within() {
    local root=$1
    shift
    unshare --mount --pid --fork --kill-child "$@" bash -c '
        set -e
        mount --make-rprivate /
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        if [ "$2" = --net ]; then ip link set lo up; fi
        exec chroot "$1" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive PIP_CERT=/etc/ssl/certs/ca-certificates.crt bash -euo pipefail -s' - "$root" "${1:-}"
}

within "$prepared" >"$work/prepare.log" 2>&1 <<'END' || { tail "$work/prepare.log" >&2; exit 1; }
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
apt-get update
apt-get install -y --no-install-recommends nginx-light openssl curl python3 python3-venv
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=llm.test -addext subjectAltName=DNS:llm.test \
    -keyout /etc/ssl/private/llm.key -out /etc/ssl/llm.pem
cat > /etc/nginx/sites-enabled/default <<'NGINX'
server {
    listen 443 ssl;
    server_name llm.test;
    ssl_certificate /etc/ssl/llm.pem;
    ssl_certificate_key /etc/ssl/private/llm.key;
    location / {
        proxy_pass http://127.0.0.1:11116;
        proxy_set_header Host localhost;
        proxy_http_version 1.1;
        proxy_buffering off;
        proxy_read_timeout 1h;
    }
}
NGINX
END
# This machine's way to packages for Python, if it has one of its own.
for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    if [ -f "$file" ]; then install -D -m 644 "$file" "$prepared$file"; fi
done

# Asks the service through nginx: the last lines of each check, in a network of its own. $command, $folder and $user are set before.
cat > "$work/ask" <<'END'
since=$(date +%s%N)
(cd "$folder" && exec setpriv --reuid "$user" --regid "$user" --init-groups env HOME="$folder" HF_HOME="$folder/huggingface" $command) > /tmp/service.log 2>&1 &
service=$!
nginx
ask() {
    curl --silent --show-error --fail --max-time 60 --cacert /etc/ssl/llm.pem --resolve llm.test:443:127.0.0.1 "$@"
}
ask --retry 60 --retry-delay 1 --retry-all-errors https://llm.test/readyz > /dev/null 2> /tmp/ready.log || { cat /tmp/service.log; exit 1; }
body='{"messages": [{"role": "user", "content": "2+2=?"}], "temperature": 0'
answer=$(ask https://llm.test/v1/chat/completions -H 'Content-Type: application/json' -d "$body}")
echo "$answer" | grep -q '"content": *"[^"]*4' || { echo "no 4 in $answer"; exit 1; }
echo "first answer after $(( ($(date +%s%N) - since) / 1000000 )) ms"
events=$(ask --no-buffer https://llm.test/v1/chat/completions -H 'Content-Type: application/json' -d "$body, \"stream\": true}")
echo "$events" | grep -qx 'data: \[DONE\]' || { echo "no end in $events"; exit 1; }
if [ -f /tmp/client.py ]; then runuser -u "$user" -- python3 /tmp/client.py; fi
nginx -s stop
kill -TERM $service
wait $service || { echo "the service ended with status $?"; cat /tmp/service.log; exit 1; }
END

# A check: check NAME FILE, with two scripts, one that installs with a network, one that runs without.
check() {
    local name=$1 file=$2 root=$work/root
    echo "== $name: $(basename "$file"), $(stat -c %s "$file" | numfmt --to=iec-i --suffix=B)"
    rm -rf --one-file-system "$root"
    cp -a "$prepared" "$root"
    cp "$file" "$root/root/"
    local before after since
    before=$(du -sk "$root" | cut -f1)
    since=$(date +%s%N)
    within "$root" < "$work/install" > "$work/install.log" 2>&1 || { tail -30 "$work/install.log" >&2; exit 1; }
    after=$(du -sk "$root" | cut -f1)
    echo "installed in $(( ($(date +%s%N) - since) / 1000000 )) ms, $(( (after - before) / 1024 )) MiB more on disk"
    cat "$work/run" "$work/ask" "$work/after" | within "$root" --net
}

package=$dist/inference-lab-bench_${version}_amd64.deb
cat > "$work/install" <<'END'
apt-get install -y --no-install-recommends /root/*.deb
END
cat > "$work/run" <<'END'
bench --version
test -s /usr/share/man/man1/bench-serve.1.gz -a -s /usr/share/doc/inference-lab-bench/THIRD-PARTY-LICENCES.txt.gz
dpkg --verify inference-lab-bench
# What systemd runs.
unit=/lib/systemd/system/bench.service
command=$(sed -n 's/^ExecStart=//p' $unit)
user=$(sed -n 's/^User=//p' $unit)
folder=/var/lib/bench
END
cat > "$work/after" <<'END'
# A changed configuration survives a new version, and removal what users made.
echo 'parallel = 2' >> /etc/bench/bench.toml
dpkg --install /root/*.deb > /dev/null
tail -1 /etc/bench/bench.toml | grep -qx 'parallel = 2'
touch /var/lib/bench/model.gguf
apt-get purge -y inference-lab-bench > /dev/null
test ! -e /usr/bin/bench -a ! -e /etc/bench/bench.toml -a -e /var/lib/bench/model.gguf
echo "removed"
END
check "Debian package" "$package"

cat > "$work/install" <<'END'
tar -C /usr/local --strip-components=1 -xzf /root/bench-*.tar.gz
# The library of C++, which a fresh Debian has; and the user of the service.
apt-get install -y --no-install-recommends libstdc++6
useradd --system --user-group --create-home --home-dir /var/lib/bench bench
END
cat > "$work/run" <<'END'
bench --version | head -1
unit=/usr/local/lib/systemd/system/bench.service
command=$(sed -n 's/^ExecStart=//p' $unit)
user=$(sed -n 's/^User=//p' $unit)
folder=/var/lib/bench
END
: > "$work/after"
check "archive" "$dist/bench-$version-x86_64-linux.tar.gz"

cat > "$work/install" <<'END'
useradd --create-home newcomer
runuser -u newcomer -- python3 -m venv /home/newcomer/venv
cp /root/*.whl /home/newcomer/
runuser -u newcomer -- /home/newcomer/venv/bin/pip install --quiet /home/newcomer/*.whl
END
cat > "$work/run" <<'END'
export PATH=/home/newcomer/venv/bin:$PATH
bench --version | head -1
command="python3 -m bench serve"
user=newcomer
folder=/home/newcomer
# The client that came with it, while the program serves.
cat > /tmp/client.py <<'PYTHON'
from lab_bench import Client
print("the client:", Client().complete("2+2=", max_tokens=1, temperature=0).text)
PYTHON
END
cat > "$work/after" <<'END'
pip check
END
check "wheel" "$(echo "$dist"/inference_lab_bench-"$version"-py3-none-manylinux_*_x86_64.whl)"
echo "all packages install, answer and end"
