# addresses.sh: three nodes in two networks, IPv4 and IPv6, each with an address in both (cluster.advertise as a list, and
# --advertise). A node joins whose first network is down. Either network fails, then the leader: the voters go on over the
# other one. Workers of a job use the first address. Lists that are wrong are refused.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
. "$(dirname "$0")/networks.sh"
declare -A number=([a]=1 [b]=2 [c]=3)
guard_nodes a b c
guard_networks
begin_hub four six
for n in a b c; do
  hold $n
  plug $n eth0 four
  plug $n eth1 six
  inside $n sysctl -qw net.ipv6.conf.all.disable_ipv6=0 || skip "IPv6 is off"
  inside $n ip link set lo up
  inside $n ip addr add "10.88.0.${number[$n]}/24" dev eth0
  inside $n ip addr add "fd88::${number[$n]}/64" dev eth1 nodad
  for i in eth0 eth1; do inside $n ip link set $i up; done
done
wait_for 20 "IPv4 between the nodes" reaches a 10.88.0.2 9
wait_for 20 "IPv6 between the nodes" reaches a fd88::2 9
of() { echo "10.88.0.${number[$1]}:7811,[fd88::${number[$1]}]:7811"; }
for n in a b c; do
  mkdir "$tmp/$n"
  printf 'state_dir: %s\nslots: 2\nname: %s\n' "$tmp/$n" $n >"$tmp/$n.yaml"
  [ $n = c ] || printf 'cluster:\n  advertise: ["10.88.0.%d:7811", "[fd88::%d]:7811"]\n' "${number[$n]}" "${number[$n]}" >>"$tmp/$n.yaml"
  inside $n setsid "$DTD_BIN/dtd" --config "$tmp/$n.yaml" >>"$tmp/$n.out" 2>&1 &
  wait_for 20 "dtd of node $n" on "$n" node
done
refused() { # refused LIST TEXT
  ! on a cluster init --advertise "$1" >"$tmp/out" 2>&1 || fail "init takes the addresses $1"
  grep -qF "$2" "$tmp/out" || fail "the refusal of $1: $(cat "$tmp/out")"
}
refused "10.88.0.1:7811,fd88::1" '"fd88::1" is not an address'
refused "10.88.0.1:7811,,10.88.0.1:7812" '"" is not an address'
refused "a:1,b:1,c:1,d:1,e:1" "a node has at most 4 addresses"

on a cluster init >/dev/null
token() { on a cluster token -o json | jq -er .token; }
on b cluster join <<<"$(token)" >/dev/null
inside c ip link set eth0 down
on c cluster join --advertise "$(of c)" <<<"$(token)" >/dev/null || fail "c does not join over its second network"
all_up() { cluster_has "$1" 'all(.node[]; .state == "up") and .leader != null and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'; }
for n in a b c; do wait_for 60 "three voters, as $n sees it" all_up $n; done
cluster_has c '[.node[].addresses] == [range(1; 4) | ["10.88.0.\(.):7811", "[fd88::\(.)]:7811"]] and .node[0].address == "10.88.0.1:7811"' >/dev/null || fail "the addresses: $(cluster c)"
on b cluster status | grep -q "10.88.0.3:7811 +1" || fail "the status: $(on b cluster status)"

# Workers listen at the first address.
inside c ip link set eth0 up
wait_for 20 "IPv4 of c" reaches c 10.88.0.1 9
write_job
job=$(on b submit "$tmp/job.yaml" --set run.nodes=3 --set parallel.workers=6 --set checkpoint.dir="$tmp/ckpt" --detach -o json | jq -er .job)
is() { on a status "$1" -o json | jq -e ".state == \"$2\""; }
wait_for 90 "the end of the job" is "$job" done

# Each network fails for all nodes. What is recorded then is recorded by a majority.
fails() { # fails NETWORK: the cluster goes on without it
  inside hub ip link set "$1" down
  sleep 3
  for n in a b c; do wait_for 60 "three voters without network $1, as $n sees it" all_up $n; done
  on b node drain c --reason "network $1 is down" >/dev/null || fail "nothing is recorded without network $1"
  on c node undrain c >/dev/null
}
fails four
inside hub ip link set four up
wait_for 20 "IPv4 between the nodes again" reaches a 10.88.0.2 9
fails six

# The next leader is elected over the first network alone.
leader=$(cluster a | jq -er .leader)
for other in a b c; do [ $other = "$leader" ] || break; done
kill_node "$leader"
wait_for 30 "another leader" cluster_has $other ".leader != null and .leader != \"$leader\""
end_nodes
