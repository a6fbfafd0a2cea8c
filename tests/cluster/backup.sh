# backup.sh: docs/operate/backup.md and majority-lost.md, line by line: a backup of a machine of its own and of a cluster
# while they run, restored on an empty machine after all nodes are lost. A damaged backup is refused.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
guard_nodes s a b c z
next() { on "$1" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/ck-$2" --detach -o json | jq -er .job; }
is() { on "$1" status "$2" -o json | jq -e ".state == \"$3\""; }

# A machine of its own. Jobs are submitted while the copy is made.
on s up >/dev/null
one=$(next s 1)
(for i in $(seq 1 30); do next s "s$i" >/dev/null 2>&1 || true; done) & writer=$!
on s cluster backup "$tmp/backup-s" >"$tmp/out"
grep -q "copied $tmp/s to $tmp/backup-s" "$tmp/out" || fail "backup: $(cat "$tmp/out")"
wait $writer
(cd "$tmp/backup-s" && sha256sum --quiet -c SHA256SUMS) || fail "the sums of the backup do not match"
[ "$(stat -c %a "$tmp/backup-s/raft/log/marks")" = 600 ] || fail "others may read the backup"
on s cluster backup "$tmp/backup-s" 2>"$tmp/err" && fail "a backup replaces another one"
grep -q "exists: name a new folder" "$tmp/err" || fail "an existing backup: $(cat "$tmp/err")"
wait_for 60 "job $one" is s "$one" "done"
on s cluster restore "$tmp/backup-s" --yes 2>"$tmp/err" && fail "a restore while dtd runs"
on s down >/dev/null
on s cluster restore "$tmp/backup-s" --yes 2>"$tmp/err" && fail "a restore over a log"
grep -q "must not get an older one: rename" "$tmp/err" || fail "a restore over a log: $(cat "$tmp/err")"
mv "$tmp/s" "$tmp/s.old"
on s cluster restore "$tmp/backup-s" 2>"$tmp/err" && fail "a restore without --yes"
on s cluster restore "$tmp/backup-s" --yes >/dev/null
on s up >/dev/null
on s status "$one" -o json >/dev/null || fail "job $one is not in the backup"
last=$(on s status -o json | jq '[.[].job | tonumber] | max')
two=$(next s 2)
[ "$two" -gt $((last + 1000)) ] || fail "a restored machine gives the number $two after $last"
wait_for 60 "job $two" is s "$two" "done"
[ ! -e "$tmp/s/cluster/recovery" ] || fail "the recovery is not complete"
on s down >/dev/null

# A cluster: all three nodes are lost, and the backup is restored on another machine.
begin_nodes a b c
voter=$(cluster a | jq -er '[.node[] | select(.role == "voter")][0].name')
one=$(next a a1)
wait_for 60 "job $one of the cluster" is a "$one" "done"
id=$(cluster a | jq -er .id)
on "$voter" cluster backup "$tmp/backup" -o json | jq -e '.bytes > 0 and .folder != ""' >/dev/null || fail "backup -o json"
two=$(next a a2) # not in the backup
nodes="a b c" downs
port_z=$(port)
cp -r "$tmp/backup" "$tmp/damaged"
printf X | dd of="$tmp/damaged/raft/log/$(ls "$tmp/damaged/raft/log" | grep open- | head -n 1)" bs=1 seek=100 conv=notrunc 2>/dev/null
on z cluster restore "$tmp/damaged" --yes 2>"$tmp/err" && fail "a damaged backup is restored"
grep -q "is damaged: its SHA-256 is not that" "$tmp/err" || fail "a damaged backup: $(cat "$tmp/err")"
[ ! -e "$tmp/z/raft/log" ] || fail "a part of a damaged backup stays"
on z cluster restore "$tmp/backup" --yes --listen "127.0.0.1:$port_z" --advertise "127.0.0.1:$port_z" >/dev/null
nodes="s a b c z"
on z up >/dev/null
wait_for 20 "the restored node to lead" cluster_has z ".leader == \"$voter\" and .generation == 2 and .id == \"$id\""
wait_for 20 "one node, and one key" cluster_has z "[.node[].name] == [\"$voter\"] and .keys == 1 and .key == 2"
is z "$one" "done" >/dev/null || fail "job $one is not in the restored state"
three=$(next z a3)
[ "$three" -gt $((two + 900)) ] || fail "one number for two jobs: $three after $two"
wait_for 60 "job $three" is z "$three" "done"
on z down >/dev/null

# Restored once more, at the address of the lost node: the other nodes come back and are refused.
rm -rf "$tmp/z"
on z cluster restore "$tmp/backup" --yes >/dev/null
on z up >/dev/null
wait_for 20 "the restored node to lead again" cluster_has z ".leader == \"$voter\" and .generation == 2"
others=$(for n in a b c; do [ $n = "$voter" ] || echo $n; done)
for n in $others; do on $n up >/dev/null; done
for n in $others; do
  wait_for 30 "$n to be refused" cluster_has $n '.leader == null and (.note | contains("was recovered on node"))'
  on $n cluster leave
  on $n cluster join <<<"$(on z cluster token -o json | jq -er .token)" $(where $n) >/dev/null
done
wait_for 30 "three nodes" cluster_has z '[.node[] | select(.state == "up")] | length == 3'
end_nodes
