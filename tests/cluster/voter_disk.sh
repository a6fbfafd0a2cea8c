# voter_disk.sh: the disk of the leader of four nodes fails. Another voter leads within 5 s, the node without a vote becomes
# a voter in its place, and the status of the cluster names the operation and the error. After a restart on a sound disk
# the node is as before.
[ -n "${DISK_LIBRARY:-}" ] || { echo "skipped: no library that fails writes (a build with sanitizers)"; exit 77; }
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"

# disk SYNC WRITE HANGS: error numbers; the layout is that of tests/daemon/control/log/disk_faults.h.
disk() {
  python3 - "$tmp/disk" "$tmp/a/raft/" "$@" <<'X'
import struct, sys
sync, write, hangs = map(int, sys.argv[3:])
bytes = struct.pack("8i320s", sync, write, 0, 0, 0, 0, hangs, 0, sys.argv[2].encode())
with open(sys.argv[1], "r+b") as f: f.write(bytes)
X
}
truncate -s 4096 "$tmp/disk"
LD_PRELOAD=$DISK_LIBRARY DTD_TEST_DISK=$tmp/disk on a up >/dev/null
begin_nodes a b c d
wait_for 10 "a to lead" cluster_has b '.leader == "a"'
role() { cluster b | jq -r ".node[] | select(.name == \"$1\") | .role"; }
[ "$(role d)" != voter ] || fail "all four nodes are voters"

disk 5 5 0
begin=$(date +%s%N)
on b node drain d --reason "a record" >/dev/null 2>"$tmp/err" || grep -q "an entry cannot be written" "$tmp/err" || echo "first record: $(cat "$tmp/err")"
wait_for 5 "another leader" cluster_has b '.leader != null and .leader != "a"'
echo "another leader after $((($(date +%s%N) - begin) / 1000000)) ms"
wait_for 5 "records again" on b node undrain d
wait_for 20 "d to be a voter" eval '[ "$(role d)" = voter ]'
wait_for 20 "a not to be a voter" eval '[ "$(role a)" != voter ]'
reported() { on b cluster status | grep '^a ' | grep -q "has failed (an entry cannot be written: Input/output error)"; }
wait_for 10 "the reason in the status" reported
on a node | grep -q "Replace the disk" || fail "dtctl node on a: $(on a node)"

disk 0 0 0
kill_node a
on a up >/dev/null
is_well() { cluster b | jq -e '.node[] | select(.name == "a") | .state == "up"' && ! reported; }
wait_for 30 "a to be up" is_well
on a node | grep -q "Replace the disk" && fail "dtctl node on a: $(on a node)"
end_nodes
