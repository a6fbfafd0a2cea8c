# dtd as process 1 of a container: the orphans that the kernel hands to it are reaped, and their process groups are left alone.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] && unshare --pid --fork true 2>/dev/null || skip "needs root, and a process-id namespace"
mkdir -p "$DTD_DIR"
unshare --pid --fork --kill-child --mount-proc "$DTD_BIN/dtd" --state-dir "$DTD_DIR" >"$tmp/dtd.out" 2>&1 &
unshare_pid=$!
trap 'kill -9 $unshare_pid; finish' EXIT
sleep 0.2
pid=$(pgrep -P $unshare_pid -x dtd)
dtctl() { nsenter --target "$pid" --pid --mount "$DTD_BIN/dtctl" "$@"; }
wait_for 20 "dtd" dtctl node
[ "$(nsenter --target "$pid" --pid --mount sh -c 'cat /proc/1/comm')" = dtd ] || fail "dtd is not process 1"
# The leader of a group ends; another process of the group works on.
nsenter --target "$pid" --pid --mount setsid -f sh -c "sh -c 'echo \$\$ >$tmp/member; exec sleep 60' & echo \$\$ >$tmp/leader; exec sleep 0.3"
wait_for 10 "the group" test -s "$tmp/leader"
wait_for 10 "the group" test -s "$tmp/member"
runs() { nsenter --target "$pid" --pid --mount test -d "/proc/$1"; }
has_ended() { ! runs "$1"; }
wait_for 10 "dtd to reap the leader" has_ended "$(cat "$tmp/leader")"
sleep 0.3
runs "$(cat "$tmp/member")" || fail "a process that is not dtd's was killed"
# A job's own group is still ended with its leader.
job=$(dtctl run -d -o json -- sh -c "sh -c 'echo \$\$ >$tmp/own; exec sleep 60' & sleep 0.3" | jq -er .job)
wait_for 20 "the job" ended "$job"
wait_for 10 "the end of the job's group" has_ended "$(cat "$tmp/own")"
