# fabric.sh: two nodes in two networks of their own. The daemons use the first one (cluster.advertise), the workers the second
# one (cluster.fabric), with run.comm stream and with ucx: the kernel's counters of both interfaces are compared with the
# bytes of the model. The final tensors are those of one node. A fabric that the machine does not have is an error that
# names address and key.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
. "$(dirname "$0")/networks.sh"
declare -A number=([a]=1 [b]=2)
guard_nodes a b
guard_networks
begin_hub control fabric
for n in a b; do
  hold $n
  plug $n eth0 control
  plug $n eth1 fabric
  inside $n mount -t sysfs sysfs /sys # UCX finds the interfaces there
  inside $n ip link set lo up
  inside $n ip addr add "10.89.0.${number[$n]}/24" dev eth0
  inside $n ip addr add "10.90.0.${number[$n]}/24" dev eth1
  for i in eth0 eth1; do inside $n ip link set $i up; done
done
for net in 89 90; do wait_for 20 "network $net between the nodes" reaches a 10.$net.0.2 9; done
begin() { # begin NODE FABRIC
  mkdir -p "$tmp/$1"
  printf 'state_dir: %s\nslots: 2\ncluster: {fabric: "%s"}\n' "$tmp/$1" "$2" >"$tmp/$1.yaml"
  inside $1 setsid "$DTD_BIN/dtd" --config "$tmp/$1.yaml" >>"$tmp/$1.out" 2>&1 &
  wait_for 30 "dtd of node $1" on "$1" node
}
for n in a b; do begin $n 10.90.0.${number[$n]}; done
where() { echo --name "$1" --advertise "10.89.0.${number[$1]}:7811"; }
on a cluster init $(where a) >/dev/null
token=$(on a cluster token -o json | jq -er .token)
on b cluster join <<<"$token" $(where b) >/dev/null
two_up() { cluster_has "$1" '[.node[] | select(.state == "up")] | length == 2'; }
for n in a b; do wait_for 60 "two nodes, as $n sees it" two_up $n; done

write_job
sizes=(--set model.dim=128 --set model.ffn=512 --set train.steps=60 --set checkpoint.every=60)
is() { on a status "$1" -o json | jq -e ".state == \"$2\""; }
ends() { on a status "$1" -o json | jq -e '.state == "done" or .state == "failed"'; }
run() { # run NAME OPTION...: sets `job`
  local name=$1
  shift
  job=$(on a submit "$tmp/job.yaml" "${sizes[@]}" --set checkpoint.dir="$tmp/$name" "$@" --detach -o json | jq -er .job)
  wait_for 120 "the end of the job $name" ends "$job"
  is "$job" done >/dev/null || fail "the job $name: $(on a why "$job"; on a status "$job")"
  hashes "$tmp/$name/step-60" >"$tmp/$name-hashes"
}
passed() { inside a ip -s -j link show "$1" | jq '.[0].stats64 | .rx.bytes + .tx.bytes'; } # passed INTERFACE

run alone --set parallel.workers=2
kinds=stream
[ ! -e "$DTD_BIN/dtd-ucx.so" ] || kinds="stream ucx"
for kind in $kinds; do
  before=($(passed eth0) $(passed eth1))
  run $kind --set parallel.workers=2 --set run.nodes=2 --set run.comm=$kind
  after=($(passed eth0) $(passed eth1))
  control=$((after[0] - before[0])) fabric=$((after[1] - before[1]))
  # Parameters and two moments of Adam, in float32.
  bytes=$(dtctl ckpt inspect "$tmp/$kind/step-60" --no-hash -o json | jq '[.tensors[].shape | reduce .[] as $n (1; . * $n)] | add * 4 / 3 | floor')
  echo "$kind: $control bytes in the network of the daemons, $fabric in that of the workers; $bytes bytes of parameters, 60 steps"
  [ "$bytes" -gt 100000 ] || fail "the model has $bytes bytes"
  [ $fabric -gt $((60 * bytes)) ] || fail "$kind: $fabric bytes passed the fabric, and 60 sums of $bytes bytes were made"
  [ $control -lt $((fabric / 4)) ] || fail "$kind: $control bytes passed the network of the daemons, and $fabric the fabric"
  cmp "$tmp/alone-hashes" "$tmp/$kind-hashes" || fail "$kind: the final tensors differ from those of one node"
done

kill_node b
begin b 10.91.0.2
wait_for 60 "b with another fabric" two_up a
job=$(on a submit "$tmp/job.yaml" "${sizes[@]}" --set checkpoint.dir="$tmp/none" --set parallel.workers=2 --set run.nodes=2 --set run.restarts=0 --detach -o json | jq -er .job)
wait_for 120 "the end of a job without a fabric" ends "$job"
on a why "$job" >"$tmp/why"
grep -q "10.91.0.2" "$tmp/why" && grep -q "cluster.fabric" "$tmp/why" || fail "a fabric that b does not have: $(cat "$tmp/why")"
end_nodes
