# A state directory that two hosts see. The second host is a namespace with another host name and another boot id, where the
# file of the socket exists and no process listens on it. dtctl there names the first host at once and signals no process.
. "$DTD_SOURCE/tests/cluster/lib.sh"
how=(-m -u)
[ "$(id -u)" = 0 ] || how+=(-U -r)
echo 00000000-1111-4222-8333-444444444444 >"$tmp/boot_id"
: >"$tmp/nothing"
host_b() { # [--reachable] COMMAND...: as the second host; --reachable: its processes reach the socket
  local socket=$DTD_DIR/control.sock
  [ "$1" != --reachable ] || { socket=; shift; }
  timeout 60 unshare "${how[@]}" bash -euc 'hostname host-b
    mount --bind "$1" /proc/sys/kernel/random/boot_id
    [ -z "$2" ] || mount --bind "$3" "$2"
    shift 3
    exec "$@"' _ "$tmp/boot_id" "$socket" "$tmp/nothing" "$@"
}

up
host_b true 2>/dev/null || skip "no namespaces can be made here"
supervisor=$(pid_of supervisor)
for command in status up down "cluster status"; do
  # shellcheck disable=SC2086
  host_b "$DTD_BIN/dtctl" $command >"$tmp/out" 2>&1 && fail "dtctl $command on the second host succeeds"
  grep -q "runs on host $(hostname) (pid $supervisor there), and this is host-b" "$tmp/out" ||
    fail "dtctl $command on the second host: $(cat "$tmp/out")"
  ! grep -q "trying again\|signal" "$tmp/out" || fail "dtctl $command on the second host: $(cat "$tmp/out")"
done
host_b "$DTD_BIN/dtd" --state-dir "$DTD_DIR" >"$tmp/out" 2>&1 && fail "a second dtd starts on the second host"
grep -q "pid $supervisor on host $(hostname)" "$tmp/out" || fail "the second dtd: $(cat "$tmp/out")"
kill -0 "$supervisor" || fail "the dtd of the first host has ended"
dtctl status >/dev/null || fail "the first host does not reach its dtd"

# What a killed dtd has left keeps no other host out. The kernel is the same here, so the first host reaches the new one.
kill -9 "$supervisor"
wait_for 10 "the lock" flock -n "$DTD_DIR/dtd.lock" true
host_b --reachable "$DTD_BIN/dtctl" up >/dev/null || fail "the second host starts no dtd after the end of the first one"
[ "$(sed -n 3p "$DTD_DIR/dtd.lock")" = host-b ] || fail "the lock file does not name the second host"
cmp -s <(sed -n 4p "$DTD_DIR/dtd.lock") "$tmp/boot_id" || fail "the lock file does not have the second host's boot id"
dtctl down >/dev/null || fail "a dtd whose socket answers is not stopped because of its boot id"
