# nodes.sh: three dtds become one service and stay one: join by token, submit through any, kill -9 of the node that leads, removal of
# the dead one, a new key, drain, leave, and a majority that is lost for ever.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
guard_nodes a b c d
voters() { says "$1" "[.node[] | select(.role == \"leader\" or .role == \"voter\")] | length == $2"; }

for n in a b c; do on $n up >/dev/null; declare "port_$n=$(port)"; done

says a '.node == [] and .note != null' >/dev/null || fail "a node alone is in a cluster"
on a cluster init --name a --listen "127.0.0.1:$port_a" --advertise a 2>"$tmp/err" && fail "a node at no address"
grep -q '"a" is not an address: write host:port' "$tmp/err" || fail "no address: $(cat "$tmp/err")"
token=$(on a cluster init $(where a) -o json | jq -er .token)
on a cluster init $(where a) 2>"$tmp/err" && fail "two inits"
grep -q "in a cluster already" "$tmp/err" || fail "a second init: $(cat "$tmp/err")"
on b cluster join "$token" $(where b)
on c cluster join "$token" $(where c) 2>"$tmp/err" && fail "a token for one let two in"
grep -q "used up" "$tmp/err" || fail "a used token: $(cat "$tmp/err")"
on c cluster join "${token%?}A" $(where c) 2>"$tmp/err" && fail "a wrong token let somebody in"
says b '.note | contains("of 2 nodes")' >/dev/null || fail "with two nodes status does not say who holds the log"
voters b 1 >/dev/null || fail "two nodes with two voters"
token=$(on b cluster token --uses 2 -o json | jq -er .token) # by one that does not lead
on c cluster join "$token" --name a --listen 127.0.0.1:$port_c --advertise 127.0.0.1:$port_c 2>"$tmp/err" && fail "two nodes of one name"
on c cluster join "$token" $(where c)
wait_for 20 "three voters" voters c 3

wait_for 20 "all nodes up" says a '[.node[] | select(.state == "up")] | length == 3'
leader=$(cluster c | jq -r .leader)
follower=$(cluster c | jq -r '[.node[] | select(.role == "voter")][0].name')
job=$(on "$follower" submit "$tmp/job.yaml" --detach -o json | jq -er .job)
job_done() { on "$1" status "$job" -o json | jq -e '.state == "done"'; }
wait_for 90 "a job that was submitted to one that does not lead" job_done "$follower"

other() { for n in a b c; do [ $n = "$1" ] || { echo $n; return; }; done; }
kill_node "$leader"
begin=$(date +%s%N)
n=$(other "$leader")
wait_for 20 "another to lead" says "$n" ".leader != null and .leader != \"$leader\""
echo "another led after $((($(date +%s%N) - begin) / 1000000)) ms"
wait_for 20 "its loss to be noticed" says "$n" "any(.node[]; .name == \"$leader\" and .state == \"lost\")"
job_done "$n" >/dev/null || fail "the new leader does not know the job"
job2=$(on "$n" submit "$tmp/job.yaml" --detach --set checkpoint.dir="$tmp/second" -o json | jq -er .job)
[ "$job2" != "$job" ] || fail "one number for two jobs"

on "$leader" up >/dev/null
wait_for 20 "it to be back" says "$leader" ".leader != null and all(.node[]; .state == \"up\")"
on "$leader" cluster rotate
wait_for 20 "a new key" says "$n" '.key == 2 and .keys == 1'
on "$n" node drain "$leader" --reason "its memory is replaced"
# The old key has just been dropped, and with it the connections made by it: who lost the leader may answer from before.
wait_for 10 "the drain to be known" says "$n" "any(.node[]; .name == \"$leader\" and .drained == \"its memory is replaced\")"
on "$n" node undrain "$leader"

kill_node "$leader"
removed() { on "$n" cluster remove "$leader"; }
wait_for 20 "the dead one to be removed" removed
wait_for 20 "one voter of two nodes" voters "$n" 1
on "$leader" up >/dev/null
sleep 1
says "$n" '.node | length == 2' >/dev/null || fail "who was removed is back by itself"

n=$(cluster "$n" | jq -er .leader)
m=$(cluster "$n" | jq -r '.node[] | select(.role != "leader") | .name')
on "$m" cluster leave
says "$m" '.node == []' >/dev/null || fail "left, and still there"
wait_for 20 "one node" says "$n" '.node | length == 1'

# A majority that is lost for ever.
token=$(on "$n" cluster token --uses 2 -o json | jq -er .token)
on "$m" cluster join "$token" $(where "$m")
on d up >/dev/null
port_d=$(port)
on d cluster join "$token" $(where d)
wait_for 20 "three voters again" voters "$n" 3
on "$n" cluster recover --yes 2>"$tmp/err" && fail "recovered while a majority is there"
kill_node "$m"
kill_node d
wait_for 20 "nobody to lead" says "$n" '.leader == null'
on "$n" cluster recover --yes
says "$n" ".leader == \"$n\"" >/dev/null || fail "recovered, and nobody leads"
on "$n" status "$job" -o json | jq -e '.state == "done"' >/dev/null || fail "the job is forgotten"
end_nodes
