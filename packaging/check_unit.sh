#!/usr/bin/env bash
# Boots a Debian 12 with systemd in a container, where the unit runs a program, and asks, reloads, kills, hangs and stops it, and has its socket opened by systemd.
# Usage: packaging/check_unit.sh [PROGRAM]     default: target/release/bench; it has to run on Debian 12
# Needs root, debootstrap and systemd-nspawn (Debian: systemd-container). MIRROR: a mirror of Debian, ROOT: a folder that is kept, with the root if it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-target/release/bench}
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=${ROOT:-$work/root}
if [ ! -d "$root/etc" ]; then
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,curl,libstdc++6,passwd bookworm "$root" ${MIRROR:+"$MIRROR"} > "$work/debootstrap.log"
fi

install -m 755 "$program" "$root/usr/bin/bench"
install -D -m 644 packaging/bench.toml "$root/etc/bench/bench.toml"
sed 's|@BIN@|/usr/bin|; s|@CONFIG@|/etc/bench|' packaging/bench.service > "$root/lib/systemd/system/bench.service"
chroot "$root" sh -c 'id bench > /dev/null 2>&1 || useradd --system --user-group --home-dir /var/lib/bench bench'
# A watchdog that does not take a minute.
install -d "$root/etc/systemd/system/bench.service.d"
printf '[Service]\nWatchdogSec=4\n' > "$root/etc/systemd/system/bench.service.d/check.conf"
printf '[Socket]\nListenStream=127.0.0.1:11116\n' > "$root/etc/systemd/system/bench.socket"
cat > "$root/etc/systemd/system/check.service" <<'END'
[Service]
Type=oneshot
TimeoutStartSec=170
ExecStart=/bin/sh -c '/root/check > /root/out 2>&1'
ExecStopPost=/bin/systemctl poweroff --no-block
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf /etc/systemd/system/check.service "$root/etc/systemd/system/multi-user.target.wants/"
rm -f "$root/root/out"
cat > "$root/root/check" <<'END'
#!/bin/bash
set -euo pipefail
fail() { echo "error: $*"; systemctl status bench --no-pager || true; journalctl -u bench --no-pager | tail -20; exit 1; }
is() { [ "$(systemctl show bench -p "$1" --value)" = "$2" ] || fail "$1 is not $2"; }
ready() { curl -sf --max-time 10 --retry 60 --retry-delay 1 --retry-all-errors http://127.0.0.1:11116/readyz > /dev/null || fail "it is not ready"; }
# Begins when it is ready, as its own user.
systemctl start bench
curl -sf --max-time 10 http://127.0.0.1:11116/readyz > /dev/null || fail "it was said to be ready"
is User bench
answer=$(curl -s --max-time 60 http://127.0.0.1:11116/v1/chat/completions -H 'Content-Type: application/json' -d '{"messages": [{"role": "user", "content": "2+2=?"}], "temperature": 0}')
case $answer in *4*) ;; *) fail "the answer is $answer" ;; esac
[ "$(stat -c %U /var/lib/bench)" = bench ] || fail "the folder of its state"
echo "starts and answers"
systemctl reload bench || fail "reload"
is ActiveState active
ready
echo "reloads"
kill -KILL "$(systemctl show bench -p MainPID --value)"
sleep 3 && ready
is NRestarts 1
echo "starts again after a crash"
kill -STOP "$(systemctl show bench -p MainPID --value)"
for _ in $(seq 30); do
    [ "$(systemctl show bench -p NRestarts --value)" = 2 ] && break
    sleep 1
done
ready
is NRestarts 2
echo "is ended by the watchdog when it hangs, and starts again"
systemctl stop bench
is Result success
is ActiveState inactive
echo "stops"
systemctl start bench.socket
is ActiveState inactive
curl -sf --max-time 60 http://127.0.0.1:11116/v1/models > /dev/null || fail "a socket of systemd's"
ready
is ActiveState active
echo "is started by its socket"
END
chmod 755 "$root/root/check"

timeout 240 systemd-nspawn --quiet -D "$root" --register=no --keep-unit --private-network --boot > "$work/boot.log" 2>&1 || true
cat "$root/root/out" || { tail "$work/boot.log" >&2; exit 1; }
if [ "$(tail -1 "$root/root/out")" != "is started by its socket" ]; then exit 1; fi
