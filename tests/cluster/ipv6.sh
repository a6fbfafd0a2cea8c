# ipv6.sh: three nodes in networks of their own that have IPv6 only (IPv4 at the loopback interface alone), with
# net.ipv6.bindv6only=1 and a wall that lets through the port of the cluster and cluster.ports and nothing else. One node
# is known by a name whose first address does not answer. A job runs over all nodes, and so does a command whose rank 0
# listens at MASTER_ADDR. With PyTorch (DTD_TORCH_PYTHON), init_process_group() and gloo run over IPv6, too.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
. "$(dirname "$0")/networks.sh"
declare -A number=([a]=1 [b]=2 [c]=3)
guard_nodes a b c
guard_networks

printf '::1 localhost\n127.0.0.1 localhost\nfd77::99 nc\nfd77::3 nc\n' >"$tmp/hosts"
begin_hub bridge
for n in a b c; do
  hold $n
  plug $n eth0 bridge
  inside $n mount --bind "$tmp/hosts" /etc/hosts
  inside $n sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.bindv6only=1 net.ipv4.ip_local_port_range="40000 41999" || skip "IPv6 is off"
  inside $n ip link set lo up
  inside $n ip addr add "fd77::${number[$n]}/64" dev eth0 nodad
  inside $n ip link set eth0 up
done
wait_for 20 "IPv6 between the nodes" reaches a fd77::2 9

# Input from the network is looked up by ports: of TCP, these are delivered, all others are dropped.
wall() { # NODE RANGE...
  local n=$1 pref=100 side range
  shift
  inside $n ip -6 rule flush 2>/dev/null || true
  for range in "$@"; do for side in dport sport; do inside $n ip -6 rule add pref $((pref++)) ipproto tcp $side "$range" lookup local; done; done
  inside $n ip -6 rule add pref 150 iif eth0 ipproto tcp blackhole
  inside $n ip -6 rule add pref 160 lookup local
  inside $n ip -6 rule add pref 170 lookup main
  inside $n ip -6 rule del pref 0 2>/dev/null || true
}
for n in a b c; do wall $n 7811 7900-7911 2>/dev/null || skip "this kernel has no policy routing by ports"; done
! reaches a fd77::2 9 || fail "the wall lets port 9 through"

begin() {
  mkdir "$tmp/$1"
  printf 'state_dir: %s\nslots: 2\ncluster: {ports: 7900-7911}\n' "$tmp/$1" >"$tmp/$1.yaml"
  inside $1 setsid "$DTD_BIN/dtd" --config "$tmp/$1.yaml" >>"$tmp/$1.out" 2>&1 &
  wait_for 20 "dtd of node $1" on "$1" node
}
for n in a b c; do begin $n; done
declare -A at=([a]='[fd77::1]:7811' [b]='[fd77::2]:7811' [c]='nc:7811')
where() { echo --name "$1" --advertise "${at[$1]}"; } # cluster.listen is the default, [::]:7811
on a cluster init $(where a) >/dev/null
for n in b c; do
  token=$(on a cluster token -o json | jq -er .token)
  on $n cluster join <<<"$token" $(where $n) >/dev/null
done
all_up() { cluster_has "$1" 'all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'; }
for n in a b c; do wait_for 60 "three voters, as $n sees it" all_up $n; done
cluster_has c '[.node[].address] == ["[fd77::1]:7811", "[fd77::2]:7811", "nc:7811"]' >/dev/null || fail "the addresses: $(cluster c)"

# No listener at another address than the loopback interface has a port outside of 7811 and the range.
listeners_are_known() {
  local n bad
  for n in a b c; do
    bad=$(inside $n ss -Hltn | awk '{print $4}' | grep -vE '^(127\.|\[::1\])' | grep -vE ':(7811|79(0[0-9]|1[01]))$') && fail "node $n listens on $bad"
  done
  true
}
is() { on a status "$1" -o json | jq -e ".state == \"$2\""; }

# A job over all nodes.
write_job
job=$(on b submit "$tmp/job.yaml" --set run.nodes=3 --set parallel.workers=6 --set checkpoint.dir="$tmp/ckpt" --detach -o json | jq -er .job)
for i in $(seq 300); do
  listeners_are_known
  state=$(on a status "$job" -o json | jq -r .state)
  case $state in done | failed | canceled) break ;; esac
  sleep 0.1
done
is "$job" done >/dev/null || fail "the job over IPv6: $(on a why "$job")"


# UCX has a listener for each transport, too.
if [ -e "$DTD_BIN/dtd-ucx.so" ]; then
  job=$(on b submit "$tmp/job.yaml" --set run.nodes=3 --set parallel.workers=3 --set run.comm=ucx --set train.steps=400 --set checkpoint.every=400 --set checkpoint.dir="$tmp/ucx" --detach -o json | jq -er .job)
  for i in $(seq 600); do
    listeners_are_known
    state=$(on a status "$job" -o json | jq -r .state)
    case $state in done | failed | canceled) break ;; esac
    sleep 0.1
  done
  is "$job" done >/dev/null || fail "the job over UCX: $(on a why "$job")"
fi

# A range with one port, which another program has.
inside b python3 -c 'import socket, time; s = socket.create_server(("::", 7950), family=socket.AF_INET6); time.sleep(120)' &
taken=$!
job=$(on a submit "$tmp/job.yaml" --set run.nodes=3 --set parallel.workers=6 --set run.ports=7950-7950 --set run.restarts=0 --set checkpoint.dir="$tmp/none" --detach -o json | jq -er .job)
wait_for 60 "the end of a job without a free port" is "$job" failed
kill $taken
on a why "$job" >"$tmp/why"
grep -q "7950-7950" "$tmp/why" && grep -q "run.ports" "$tmp/why" || fail "a range without a free port: $(cat "$tmp/why")"
! on a submit "$tmp/job.yaml" --set run.ports=7950 2>"$tmp/err" || fail "one port is taken for a range"
grep -q "run.ports.*7900-7999" "$tmp/err" || fail "a wrong range: $(cat "$tmp/err")"

# A command whose rank 0 listens.
mkdir "$tmp/out"
cat >"$tmp/worker.py" <<'P'
import os, socket, sys, time
e, address = os.environ, (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))
if e['RANK'] == '0':
    listener = socket.create_server(('::', address[1]), family=socket.AF_INET6)
    peers = [listener.accept()[0] for _ in range(int(e['WORLD_SIZE']) - 1)]
else:
    for _ in range(200):
        try:
            peers = [socket.create_connection(address, 5)]
            break
        except OSError:
            time.sleep(0.1)
for p in peers:
    p.sendall(b'x')
    assert p.recv(1) == b'x'
open('%s/%s' % (sys.argv[1], e['RANK']), 'w').write('%s %d' % address)
P
on a run --nodes 3 --workers-per-node 1 --master-addr auto -- python3 "$tmp/worker.py" "$tmp/out" || fail "a command over IPv6"
for rank in 0 1 2; do
  read -r address port <"$tmp/out/$rank" || true
  case $address in fd77::[12] | nc) ;; *) fail "MASTER_ADDR is $address" ;; esac
  [ "$port" -ge 7900 ] && [ "$port" -le 7911 ] || fail "MASTER_PORT is $port"
done
on a run --nodes 3 --workers-per-node 1 -- python3 -c 'import os, socket; socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 5)' || fail "a command reaches no store of dtd"

# gloo takes ports that the kernel chooses (net.ipv4.ip_local_port_range), so the wall has to let these through.
if [ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import torch' 2>/dev/null; then
  for n in a b c; do wall $n 7811 7900-7911 40000-41999; done
  mkdir "$tmp/torch"
  for how in "--master-addr auto" ""; do
    on a run --nodes 3 --workers-per-node 1 $how --env GLOO_SOCKET_IFNAME=eth0 -- \
      "$DTD_TORCH_PYTHON" "$(realpath "$(dirname "$0")/../interop/sums.py")" "$tmp/torch" "$tmp/free" || fail "PyTorch $how"
    [ "$(ls "$tmp/torch" | grep -c '^end-.-of-3$')" = 3 ] || fail "three ranks of PyTorch: $(ls "$tmp/torch")"
    rm -r "$tmp/torch"; mkdir "$tmp/torch"
  done
fi

# The leader is lost; the others go on over IPv6.
leader=$(cluster a | jq -er .leader)
for other in a b c; do [ $other = "$leader" ] || break; done
kill_node "$leader"
wait_for 30 "another leader" cluster_has $other ".leader != null and .leader != \"$leader\""
end_nodes
