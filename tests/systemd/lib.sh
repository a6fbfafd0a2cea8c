# Sourced by the tests of the service. It starts one or several systemd for the test, each as PID 1 of new mount, PID, network, UTS, IPC
# and cgroup namespaces, on a temporary overlay of this machine's root. The machine itself is not changed, and all processes end with
# the test. Needs DTD_BUILD (a build folder with all programs) and root; otherwise the test is skipped with a reason.
set -euo pipefail
: "${DTD_BUILD:?}" "${DTD_SOURCE:?}"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dtd-systemd-XXXXXX")
declare -A inits=() groups=()
init= # PID of the systemd in whose namespaces `inside` runs; `on` sets it

heading() { printf '== %s\n' "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }

inside() { nsenter -t "$init" -a -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LC_ALL=C.UTF-8 HOME=/root "$@"; }
on() { # NODE COMMAND...: runs a command or a function of this file on that node
  local init=${inits[$1]}
  "${@:2}"
}
as() { # USER COMMAND...
  local user=$1
  shift
  inside setpriv --reuid "$user" --regid "$user" --init-groups env HOME="/home/$user" USER="$user" "$@"
}

finish() {
  local rc=$?
  trap - EXIT
  set +e
  for node in "${!inits[@]}"; do
    init=${inits[$node]}
    if [ $rc -ne 0 ] && [ $rc -ne 77 ] && [ -d "/proc/$init" ]; then
      echo "--- failed with $rc; node $node"
      inside systemctl status --no-pager -l dtd 2>&1 | head -30
      inside journalctl -q -u dtd -o cat --no-pager 2>&1 | tail -60
      for f in "/proc/$init/root/var/lib/dtd/jobs"/*/*.log; do [ -f "$f" ] && { echo "--- $f"; tail -n 20 "$f"; }; done
    fi
    kill -9 "$init" 2>/dev/null # the kernel then kills all processes of its namespace
  done
  for group in "${groups[@]}"; do
    for _ in $(seq 50); do [ ! -d "$group" ] || { find "$group" -depth -type d -exec rmdir {} + 2>/dev/null; } && break; sleep 0.1; done
  done
  mountpoint -q "$tmp/cgroup" && umount "$tmp/cgroup"
  rm -rf "$tmp"
  exit $rc
}
trap finish EXIT

# wait_for SECONDS WHAT COMMAND...: repeats the command until it succeeds; fails after SECONDS and names WHAT.
wait_for() {
  local end=$(($(date +%s) + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$(date +%s)" -lt $end ] || fail "timeout while waiting for: $what"
    sleep 0.1
  done
}

check_machine() {
  local tool
  [ "$(id -u)" = 0 ] || skip "creating namespaces needs root"
  for tool in unshare nsenter setpriv systemctl systemd-sysusers dpkg-deb dpkg-shlibdeps cpack jq; do
    command -v $tool >/dev/null || skip "$tool is not installed (deploy/packages test)"
  done
  [ -x /lib/systemd/systemd ] || skip "systemd is not installed (deploy/packages test)"
  unshare -m -u -i -n -p -C --fork true 2>/dev/null || skip "this machine does not allow new namespaces"
  unshare -m bash -c 'mkdir -p "$1"/{o,t} && mount -t tmpfs t "$1/t" && mkdir "$1"/t/{u,w} &&
    mount -t overlay -o "lowerdir=/,upperdir=$1/t/u,workdir=$1/t/w" o "$1/o"' x "$tmp" 2>/dev/null || skip "this machine does not allow an overlay over /"
  local cg2 # mount point of cgroup2
  cg2=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
  if [ -z "$cg2" ]; then
    mkdir "$tmp/cgroup"
    mount -t cgroup2 none "$tmp/cgroup" 2>/dev/null || skip "this machine has no cgroup2"
    cg2=$tmp/cgroup
  fi
  cgroups=$cg2
}

# Writes the script that turns new namespaces into a system with systemd as PID 1: boot FOLDER NAME. All nodes share FOLDER/home and
# FOLDER/shared, if these exist.
write_boot() {
  cat >"$tmp/boot" <<'B'
set -e
tmp=$1
mount --make-rprivate /
mkdir -p "$tmp/top"
mount -t tmpfs -o mode=755 top "$tmp/top"
mkdir "$tmp"/top/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$tmp/top/upper,workdir=$tmp/top/work" root "$tmp/top/root"
cd "$tmp/top/root"
mkdir -p proc sys dev run tmp mnt/old
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
for d in null zero full random urandom tty; do
  touch dev/$d
  mount --bind /dev/$d dev/$d
done
mkdir dev/shm dev/pts
mount -t tmpfs shm dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 pts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
: >dev/console
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
hostname "$2"
echo "$2" >etc/hostname
ip link set lo up
mkdir -p srv/shared
[ ! -d "$tmp/home" ] || mount --bind "$tmp/home" home
[ ! -d "$tmp/shared" ] || mount --bind "$tmp/shared" srv/shared
# Services of the machine must not start, and files of an installed dtd must not be visible.
rm -rf etc/machine-id etc/resolv.conf etc/fstab etc/dtd etc/rc?.d/S* etc/rcS.d/* var/lib/dtd
: >etc/machine-id
: >etc/fstab
for w in etc/systemd/system/*.wants; do rm -rf "$w"; done
pivot_root . mnt/old
umount -l /mnt/old
mount --make-rshared /
exec env -i container=dtd-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=basic.target \
  --log-target=journal-or-kmsg --show-status=0
B
}

boot() { # [NAME]: starts a node with this host name
  local outer name=${1:-dtd-test} group
  [ -n "${cgroups:-}" ] || check_machine
  write_boot
  group=$cgroups/dtd-test-$$-$name
  mkdir "$group" 2>/dev/null || skip "this machine does not allow new cgroups"
  groups[$name]=$group
  # The process enters the cgroup first, so that systemd manages this cgroup and not the machine's root.
  (echo "$BASHPID" >"$group/cgroup.procs" &&
    exec unshare -m -u -i -n -p -C --fork --kill-child bash "$tmp/boot" "$tmp" "$name") </dev/null >"$tmp/console-$name" 2>&1 &
  outer=$!
  disown
  is_up() { init=$(pgrep -P "$outer") && [ "$(cat "/proc/$init/comm")" = systemd ]; }
  wait_for 20 "systemd ($(cat "$tmp/console-$name" 2>/dev/null))" is_up
  init=$(pgrep -P "$outer")
  inits[$name]=$init
  running() { case $(inside systemctl is-system-running) in running | degraded) ;; *) return 1 ;; esac; }
  wait_for 20 "systemd to be up" running
  for user in alice bob; do inside getent passwd $user >/dev/null || inside useradd -m -s /bin/bash $user 2>/dev/null; done
}

# Builds the package in the test's folder; `deb` is its path.
make_package() {
  (cd "$tmp" && cpack --config "$DTD_BUILD/CPackConfig.cmake" -G DEB -B "$tmp/package" >"$tmp/cpack.log" 2>&1) ||
    { cat "$tmp/cpack.log"; fail "cpack built no package"; }
  deb=$(ls "$tmp"/package/dtd_*.deb)
}
put() { # FILE PATH-INSIDE
  cat "$1" | inside sh -c "cat >'$2' && chmod 644 '$2'"
}

journal_has() { # TEXT: succeeds if the service's journal contains it
  inside journalctl -q -u dtd -o cat --no-pager >"$tmp/journal" 2>&1
  grep -qi "$1" "$tmp/journal"
}
show() { inside systemctl show dtd -p "$1" --value; }
main_pid() { show MainPID; }
# NAME: the PID, inside the namespace, of a process of the service.
child_pid() { inside pgrep -o -x -P "$(main_pid)" "$1"; }
gone() { ! inside kill -0 "$1" 2>/dev/null; }
processes() { inside ps -eo pid=,comm= | grep -E ' (dtd|dtd-control|dtd-io|dt-worker)$'; }
is_active() { [ "$(inside systemctl is-active dtd)" = active ]; }
ctl() { as alice dtctl "$@"; }
job_is() { [ "$(ctl status "$1" -o json | jq -r .state)" = "$2" ]; }
running_in() { ctl status "$1" -o json | jq -e ".state == \"running\" and (.last.epoch // 0) >= $2"; }
