# nodes.sh: three dtds form a cluster: join by token, submit through any node, kill -9 of the leader, removal of a lost node,
# a new key, drain, leave, and recovery from the permanent loss of the majority.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
guard_nodes a b c d
voters() { cluster_has "$1" "[.node[] | select(.role == \"leader\" or .role == \"voter\")] | length == $2"; }

for n in a b c; do on $n up >/dev/null; declare "port_$n=$(port)"; done

cluster_has a '.node == [] and .note != null' >/dev/null || fail "a single node claims to be in a cluster"
on a cluster init --name a --listen "127.0.0.1:$port_a" --advertise a 2>"$tmp/err" && fail "init accepts an invalid address"
grep -q '"a" is not an address: write host:port' "$tmp/err" || fail "the refusal does not explain the address: $(cat "$tmp/err")"
token=$(on a cluster init $(where a) -o json | jq -er .token)
on a cluster init $(where a) 2>"$tmp/err" && fail "a second init succeeds"
grep -q "in a cluster already" "$tmp/err" || fail "a second init: $(cat "$tmp/err")"
on b cluster join <<<"$token" $(where b)
on c cluster join <<<"$token" $(where c) 2>"$tmp/err" && fail "two nodes joined with a token for one"
grep -q "used up" "$tmp/err" || fail "a used token: $(cat "$tmp/err")"
on c cluster join <<<"${token%?}A" $(where c) 2>"$tmp/err" && fail "a node joined with a wrong token"
cluster_has b '.note | contains("of 2 nodes")' >/dev/null || fail "with two nodes, status does not name the only voter"
voters b 1 >/dev/null || fail "two nodes with two voters"
token=$(on b cluster token --uses 2 -o json | jq -er .token) # made by a follower
on c cluster join <<<"$token" --name a --listen 127.0.0.1:$port_c --advertise 127.0.0.1:$port_c 2>"$tmp/err" && fail "two nodes have the same name"
on b cluster token --token-file "$tmp/token" >/dev/null
[ "$(stat -c %a "$tmp/token")" = 600 ] || fail "a file with a token has the rights $(stat -c %a "$tmp/token")"
on b cluster token --token-file "$tmp/token" 2>"$tmp/err" && fail "a token overwrites a file"
grep -q "File exists" "$tmp/err" || fail "an existing file: $(cat "$tmp/err")"
on c cluster join --token-file "$tmp/token" $(where c)
wait_for 20 "three voters" voters c 3

wait_for 20 "all nodes up" cluster_has a '[.node[] | select(.state == "up")] | length == 3'
# Each node measures its load twice, 5 s apart, and reports it to the leader, which every node asks.
kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
loads="all(.node[]; .load.cores == $(getconf _NPROCESSORS_ONLN) and .load.memory_bytes == $kib * 1024 and .load.memory_used_bytes > 0 and .load.cores_used >= 0 and .load.received_bytes_per_s >= 0)"
for n in a b c; do wait_for 30 "the load of all nodes, on $n" cluster_has $n "$loads"; done
leader=$(cluster c | jq -r .leader)
follower=$(cluster c | jq -r '[.node[] | select(.role == "voter")][0].name')
job=$(on "$follower" submit "$tmp/job.yaml" --detach -o json | jq -er .job)
job_done() { on "$1" status "$job" -o json | jq -e '.state == "done"'; }
wait_for 90 "a job that was submitted through a follower" job_done "$follower"

other() { for n in a b c; do [ $n = "$1" ] || { echo $n; return; }; done; }
kill_node "$leader"
begin=$(date +%s%N)
n=$(other "$leader")
wait_for 20 "another leader" cluster_has "$n" ".leader != null and .leader != \"$leader\""
echo "another node was the leader after $((($(date +%s%N) - begin) / 1000000)) ms"
wait_for 20 "its loss to be noticed" cluster_has "$n" "any(.node[]; .name == \"$leader\" and .state == \"lost\")"
cluster_has "$n" "any(.node[]; .name == \"$leader\" and .load == null)" >/dev/null || fail "a lost node has a load"
job_done "$n" >/dev/null || fail "the new leader does not have the job"
job2=$(on "$n" submit "$tmp/job.yaml" --detach --set checkpoint.dir="$tmp/second" -o json | jq -er .job)
[ "$job2" != "$job" ] || fail "one number for two jobs"

on "$leader" up >/dev/null
wait_for 20 "it to be back" cluster_has "$leader" ".leader != null and all(.node[]; .state == \"up\")"
on "$leader" cluster rotate
wait_for 20 "a new key" cluster_has "$n" '.key == 2 and .keys == 1'
on "$n" node drain "$leader" --reason "its memory is replaced"
# The old key has just been removed, and connections that used it are closed. A node that is without a leader meanwhile
# may show an old state.
wait_for 10 "the drain to be shown" cluster_has "$n" "any(.node[]; .name == \"$leader\" and .drained == \"its memory is replaced\")"
on "$n" node undrain "$leader"

kill_node "$leader"
removed() { on "$n" cluster remove "$leader"; }
wait_for 20 "the removal of the lost node" removed
wait_for 20 "one voter of two nodes" voters "$n" 1
on "$leader" up >/dev/null
sleep 1
cluster_has "$n" '.node | length == 2' >/dev/null || fail "the removed node is in the cluster again"

n=$(cluster "$n" | jq -er .leader)
m=$(cluster "$n" | jq -r '.node[] | select(.role != "leader") | .name')
on "$m" cluster leave
cluster_has "$m" '.node == []' >/dev/null || fail "the node that left is still in a cluster"
wait_for 20 "one node" cluster_has "$n" '.node | length == 1'

# The majority is lost permanently.
token=$(on "$n" cluster token --uses 2 -o json | jq -er .token)
on "$m" cluster join <<<"$token" $(where "$m")
on d up >/dev/null
port_d=$(port)
on d cluster join <<<"$token" $(where d)
wait_for 20 "three voters again" voters "$n" 3
on "$n" cluster recover --yes 2>"$tmp/err" && fail "recover succeeds although there is a majority"
kill_node "$m"
kill_node d
wait_for 20 "the loss of the leader" cluster_has "$n" '.leader == null'
on "$n" cluster recover --yes
cluster_has "$n" ".leader == \"$n\"" >/dev/null || fail "there is no leader after recover"
on "$n" status "$job" -o json | jq -e '.state == "done"' >/dev/null || fail "the job is lost"
end_nodes
