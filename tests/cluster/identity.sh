# identity.sh: a node's identity. Of four nodes one is evicted while a job has workers on it: the job goes on without it,
# its workers end, it cannot connect or join, and it reports why. A copy of the files of the cluster, which have its key,
# opens nothing without the identity of a node; after a rotation the key itself is worthless.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
begin() { # NODE: starts its dtd with two slots
  mkdir -p "$tmp/$1"
  printf 'state_dir: %s\nslots: 2\n' "$tmp/$1" >"$tmp/$1.yaml"
  setsid "$DTD_BIN/dtd" --config "$tmp/$1.yaml" >>"$tmp/$1.out" 2>&1 &
  wait_for 20 "dtd of node $1" on "$1" node
}
guard_nodes a b c d thief
all_up() { cluster_has "$1" "[.node[] | select(.state == \"up\")] | length == $2"; }
voters() { cluster_has "$1" "[.node[] | select(.role == \"leader\" or .role == \"voter\")] | length == $2"; }
state_on() { [ "$(on "$1" status "$job" -o json | jq -r .state)" = "$2" ]; }
step_on() { [ "$(on "$1" status "$job" -o json | jq -r .step)" -ge "$2" ]; }
has_workers() { pgrep -P "$(head -n 1 "$tmp/$1/dtd.lock")" -x dt-worker >/dev/null; }
no_workers() { ! has_workers "$1"; }
refused() { grep -q "tunnel refused.*$2" "$tmp/$1/control.log"; } # refused NODE REASON
other() { for n in a b c d; do case " $* " in *" $n "*) ;; *) echo "$n"; return ;; esac; done; }

for n in a b c d; do begin $n; declare "port_$n=$(port)"; done
on a cluster init $(where a) >/dev/null
token=$(on a cluster token --uses 3 -o json | jq -er .token)
for n in b c d; do on $n cluster join <<<"$token" $(where $n) >/dev/null; done
wait_for 30 "four nodes" all_up a 4
wait_for 30 "three voters" voters a 3

# Each node has an identity of its own, which only dtd may read.
[ "$(cluster a | jq -r '[.node[].identity | select(test("^[0-9a-f]{4}(:[0-9a-f]{4}){3}$"))] | unique | length')" = 4 ] || { cluster a; fail "not four identities"; }
[ "$(stat -c %a "$tmp/a/cluster/identity")" = 600 ] || fail "the file of the identity has the rights $(stat -c %a "$tmp/a/cluster/identity")"
before=$(cluster a | jq -c '[.node[] | [.name, .identity]] | sort')

# A thief has the files of node d, with the key, but not its identity: dtd makes him another one.
leader=$(cluster a | jq -er .leader)
victim=$(other "$leader")
keeper=$(other "$leader" "$victim")
mkdir -p "$tmp/thief"
cp -r "$tmp/$victim/cluster" "$tmp/thief/cluster"
rm "$tmp/thief/cluster/identity"
kill_node "$victim"
begin thief
wait_for 30 "the leader to refuse the thief" refused "$leader" "the node of this name has another identity (name $victim"
sleep 2
cluster_has thief '.leader == null' >/dev/null || fail "the thief follows a leader"
[ "$(cluster "$keeper" | jq -r ".node[] | select(.name == \"$victim\") | .state")" != up ] || fail "the thief is taken for $victim"
# He takes another name of his own.
kill_node thief
sed -i 's/^name=.*/name=thief/; /^sum=/d' "$tmp/thief/cluster/self"
begin thief
wait_for 30 "the leader to refuse a stranger" refused "$leader" "the node was removed from the cluster (name thief"
cluster_has thief '.leader == null' >/dev/null || fail "a stranger follows a leader"
kill_node thief

# The true node comes back; identities outlive control.
begin "$victim"
wait_for 30 "all nodes" all_up "$keeper" 4
[ "$(cluster a | jq -c '[.node[] | [.name, .identity]] | sort')" = "$before" ] || fail "identities have changed: $before, $(cluster a)"
wait_for 30 "three voters" voters "$leader" 3

# An eviction under a job with workers on the node.
leader=$(cluster a | jq -er .leader)
on "$keeper" submit "$tmp/job.yaml" --set train.steps=4000 --set model.dim=128 --set checkpoint.every=50 --set parallel.workers=6 \
  --set parallel.min_workers=2 --set run.nodes=0 --set train.global_batch=24 --detach -o json >"$tmp/submitted"
job=$(jq -er .job "$tmp/submitted")
wait_for 60 "step 60 of job $job" step_on "$keeper" 60
victim=
for n in a b c d; do if has_workers $n && [ $n != "$leader" ]; then victim=$n; fi; done
[ -n "$victim" ] || fail "no worker on a follower"
keeper=$(other "$leader" "$victim")
spare=$(on "$keeper" cluster token --uses 9 -o json | jq -er .token)
on "$keeper" cluster remove "$victim" 2>"$tmp/err" && fail "a node that is up is removed"
grep -q -- "--evict" "$tmp/err" || fail "the refusal does not name --evict: $(cat "$tmp/err")"
epoch=$(on "$keeper" status "$job" -o json | jq .epoch)
begin_ns=$(date +%s%N)
on "$keeper" cluster remove "$victim" --evict
wait_for 10 "three nodes" cluster_has "$keeper" ".node | length == 3 and all(.name != \"$victim\")"
wait_for 20 "the workers of $victim to end" no_workers "$victim"
echo "the workers of the evicted node ended after $((($(date +%s%N) - begin_ns) / 1000000)) ms"
goes_on() { on "$keeper" status "$job" -o json | jq -e ".epoch > $epoch and .state == \"running\" and (.last.epoch // 0) > $epoch and all(.worker[]; .node != \"$victim\")"; }
wait_for 60 "the job to step without $victim" goes_on
echo "the job stepped again after $((($(date +%s%N) - begin_ns) / 1000000)) ms"
wait_for 20 "$victim to report it" cluster_has "$victim" '.note | contains("was removed from the cluster")'
grep -q "was removed from the cluster; its workers are stopped" "$tmp/$victim/control.log" || fail "no line in the log of $victim"
on "$victim" status "$job" >/dev/null 2>&1 && fail "the evicted node gets an answer of the leader"
sleep 3
cluster_has "$keeper" ".node | length == 3" >/dev/null || fail "the evicted node is in the cluster again"
has_workers "$victim" && fail "the evicted node has workers again"

# Its key and the tokens that it has seen admit no node.
rm -rf "$tmp/thief"
port_thief=$(port)
begin thief
on thief cluster join <<<"$spare" $(where thief) 2>"$tmp/err" && fail "a token that the evicted node knew admits"
grep -q "used up, has expired or was withdrawn" "$tmp/err" || fail "a withdrawn token: $(cat "$tmp/err")"
on "$keeper" cluster rotate
wait_for 20 "the new key" cluster_has "$keeper" '.key == 2 and .keys == 1'
wait_for 20 "all nodes with the new key" all_up "$keeper" 3
python3 - "$tmp/$victim/cluster/view" "$tmp/$keeper/cluster/view" <<'X' || fail "the evicted node has the new key"
import sys
# RecordKey: field 4 of SnapshotCluster (tag 0x22), of 40 bytes: version, step, and the secret of 32 bytes (1a 20).
keys = [{v[i+6:i+40] for i in range(len(v)) if v[i:i+2] == b"\x08" + bytes([n]) and v[i+2:i+6] == b"\x10\x01\x1a\x20"}
        for v in [open(p, "rb").read() for p in sys.argv[1:]] for n in (1, 2)]
sys.exit(0 if keys[0] and not keys[1] and not keys[2] and keys[3] else 1)
X

# It leaves, and joins anew with another identity.
on "$victim" cluster leave
cluster_has "$victim" '.node == []' >/dev/null || fail "the evicted node is still in a cluster"
[ ! -e "$tmp/$victim/cluster/identity" ] || fail "an identity remains"
on "$victim" cluster join <<<"$(on "$keeper" cluster token -o json | jq -er .token)" $(where "$victim")
wait_for 30 "all nodes" all_up "$keeper" 4
[ "$(cluster "$keeper" | jq -r ".node[] | select(.name == \"$victim\") | .identity")" != "$(jq -r ".[] | select(.[0] == \"$victim\")[1]" <<<"$before")" ] ||
  fail "the node has its old identity"
on "$keeper" cancel "$job" >/dev/null

# Without a voter that is up, the others would be no majority: dtctl waits until the dead one is replaced.
wait_for 30 "three voters" voters "$keeper" 3
leader=$(cluster "$keeper" | jq -er .leader)
read -r dead needed <<<"$(cluster "$leader" | jq -r '[.node[] | select(.role == "voter") | .name] | join(" ")')"
kill_node "$dead"
wait_for 5 "its loss to be noticed" cluster_has "$leader" "any(.node[]; .name == \"$dead\" and .state != \"up\")"
on "$leader" cluster remove "$needed" --evict 2>"$tmp/err" || fail "a voter is not evicted when another has replaced the dead one: $(cat "$tmp/err")"
grep -q "without $needed the voters that are up are no majority" "$tmp/err" || fail "the cluster evicts its majority: $(cat "$tmp/err")"
on "$leader" cluster remove "$dead" --evict
wait_for 20 "two nodes" cluster_has "$leader" ".leader == \"$leader\" and (.node | length == 2)"
end_nodes
