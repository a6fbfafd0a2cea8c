# The limits of jobs, on a kernel whose control groups have all controllers: user-mode Linux, which runs as a process and has this
# machine's files, read-only. There root starts a system-wide dtd with 4 slots; jobs eat memory, fork without end and leave their process
# group, each beside a job of another user.
set -euo pipefail
: "${DTD_BIN:?}" "${DTD_SOURCE:?}"
fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }
command -v linux.uml >/dev/null || skip "user-mode-linux is not installed (deploy/packages test)"
for tool in jq setpriv; do command -v $tool >/dev/null || skip "$tool is not installed (deploy/packages test)"; done
[ "$(id -u)" = 0 ] || skip "user-mode Linux sees files as their owners only if root starts it"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dtd-limits-XXXXXX")
finish() {
  local rc=$?
  trap - EXIT
  [ $rc -eq 0 ] || [ $rc -eq 77 ] || { tail -n 30 "$tmp/console"; tail -n 60 "$tmp/share/out"; }
  [ -z "${uml:-}" ] || kill -9 "$uml" 2>/dev/null
  rm -rf "$tmp"
  exit $rc
}
trap finish EXIT
mkdir "$tmp/share"
for program in dtd dtd-control dtd-io dt-worker dtctl; do cp "$DTD_BIN/$program" "$tmp/share/"; done
cp "$DTD_SOURCE/tests/systemd/limits_guest.sh" "$tmp/share/guest"
cat >"$tmp/share/init" <<X
#!/bin/bash
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for folder in /tmp /run; do mount -t tmpfs tmpfs \$folder; done
mkdir -p /dev/shm /run/share
mount -t tmpfs tmpfs /dev/shm
mount -t hostfs -o "$tmp/share" none /run/share
bash /run/share/guest >/run/share/out 2>&1
echo \$? >/run/share/status
sync
echo o >/proc/sysrq-trigger
sleep 10
X
chmod +x "$tmp/share/init"
# The memory of the machine is a file: a tmpfs holds it without writing to a disk.
TMPDIR=/dev/shm linux.uml root=/dev/root rootfstype=hostfs rootflags=/ ro init="$tmp/share/init" mem=1G con=null con0=null,fd:1 \
  umid="dtd-limits-$$" uml_dir="$tmp/" </dev/null >"$tmp/console" 2>&1 &
uml=$!
wait $uml || true
uml=
# A processor whose registers are larger than this kernel's buffer for them ends its first thread.
grep -q put_fp_registers "$tmp/console" && [ ! -e "$tmp/share/out" ] && skip "user-mode Linux does not start on this processor"
[ -e "$tmp/share/status" ] || fail "the kernel has not come to the end of the test"
cat "$tmp/share/out"
exit "$(cat "$tmp/share/status")"
