# dtctl run --master-addr: two nodes with networks of their own. Rank 0 opens the rendezvous and another listener, and rank
# 1 reaches both at MASTER_ADDR. Each attempt has its own port, and the exit of a control ends none. With PyTorch
# (DTD_TORCH_PYTHON), init_process_group() runs over it, too.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
[ "$(id -u)" = 0 ] || skip "creating network namespaces needs root"
for tool in unshare nsenter ip; do PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null || skip "$tool is not installed"; done
unshare -n ip link add v1 type veth peer name v2 2>/dev/null || skip "this machine does not allow network namespaces, or has no veth"

declare -A holder address=([a]=10.77.0.1 [b]=10.77.0.2)
for n in a b; do unshare -n sleep infinity & holder[$n]=$!; done
inside() { local n=$1; shift; nsenter -t "${holder[$n]}" -n -- "$@"; }
separate() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
for n in a b; do wait_for 10 "the namespace of $n" separate "${holder[$n]}"; done
inside a ip link add eth0 type veth peer name eth0 netns "${holder[b]}"
for n in a b; do inside $n ip link set lo up; inside $n ip addr add "${address[$n]}/24" dev eth0; inside $n ip link set eth0 up; done
on() { local n=$1; shift; DTD_DIR=$tmp/$n inside "$n" "$DTD_BIN/dtctl" "$@"; }
where() { echo --name "$1" --listen "${address[$1]}:7811" --advertise "${address[$1]}:7811"; }
begin_nodes a b
end_holders() { kill "${holder[@]}" 2>/dev/null || true; }
trap 'rc=$?; set +e; [ $rc -eq 0 ] || tail -n 30 "$tmp"/[ab]/control.log "$tmp"/[ab]/jobs/*/*.log; downs; end_holders; (exit $rc); finish' EXIT

mkdir "$tmp/out"
touch "$tmp/hold"
cat >"$tmp/worker.py" <<'P'
"""worker.py FOLDER HOLD: rank 0 listens at MASTER_PORT and at 29555; rank 1 connects to both. Fails once in attempt 0."""
import json, os, socket, sys, time
e, (folder, hold) = os.environ, sys.argv[1:]
ports = [int(e['MASTER_PORT']), 29555]
def reach(port):
    end = time.time() + 20
    while True:
        try:
            return socket.create_connection((e['MASTER_ADDR'], port), 5)
        except OSError:
            if time.time() > end:
                raise
            time.sleep(0.1)
if e['RANK'] == '0':
    listeners = [socket.create_server(('', p)) for p in ports]
    peers = [l.accept()[0] for l in listeners]
else:
    peers = [reach(p) for p in ports]
for p in peers:
    p.sendall(b'x')
    assert p.recv(1) == b'x'
name = '%s/%s-%s' % (folder, e['RANK'], e['TORCHELASTIC_RESTART_COUNT'])
with open(name + '.tmp', 'w') as f:
    json.dump(dict(e), f)
os.rename(name + '.tmp', name)
while os.path.exists(hold):
    time.sleep(0.05)
sys.exit(e['TORCHELASTIC_RESTART_COUNT'] == '0')
P
there() { [ -e "$tmp/out/0-$1" ] && [ -e "$tmp/out/1-$1" ]; }
variable() { jq -er ".$2" "$tmp/out/$1"; }
start() { on b run --nodes 2 --max-restarts 1 --detach -o json "$@" -- python3 "$tmp/worker.py" "$tmp/out" "$tmp/hold" | jq -er .job; }
job=$(start --master-addr auto)
wait_for 60 "both ranks of the first attempt" there 0
first=$(on a status "$job" -o json | jq -er '.worker[] | select(.rank == 0) | .node')
for rank in 0 1; do
  [ "$(variable $rank-0 MASTER_ADDR)" = "${address[$first]}" ] || fail "MASTER_ADDR of rank $rank: $(variable $rank-0 MASTER_ADDR), but rank 0 is on $first"
  [ "$(variable $rank-0 TORCHELASTIC_USE_AGENT_STORE)" = False ] || fail "rank $rank expects a store of dtd"
done
port_0=$(variable 0-0 MASTER_PORT)
[ "$port_0" = "$(variable 1-0 MASTER_PORT)" ] && [ "$port_0" -ge 20000 ] && [ "$port_0" -lt 30000 ] || fail "MASTER_PORT $port_0 and $(variable 1-0 MASTER_PORT)"

control_of() { pgrep -P "$(head -n 1 "$tmp/$1/dtd.lock")" -x dtd-control; }
other_control() { local now; now=$(control_of "$1") && [ "$now" != "$2" ] && cluster_has a '[.node[] | select(.state == "up")] | length == 2'; }
follower=$([ "$(cluster a | jq -r .leader)" = a ] && echo b || echo a)
was=$(control_of $follower)
kill -9 "$was"
wait_for 30 "another control of $follower" other_control $follower "$was"
runs_again() { on a status "$job" -o json | jq -e '.state == "running" and .epoch == 1'; }
wait_for 10 "the job in its first epoch" runs_again
sleep 2 # so that the end of the attempt would be seen
runs_again >/dev/null || fail "the exit of a control ended the attempt: $(on a why "$job")"

mv "$tmp/hold" "$tmp/free"
wait_for 60 "both ranks of the second attempt" there 1
[ "$(variable 0-1 MASTER_PORT)" != "$port_0" ] || fail "both attempts use port $port_0"
is() { on a status "$1" -o json | jq -e ".state == \"$2\""; }
wait_for 60 "the end" is "$job" done

rm "$tmp"/out/*
job=$(start --master-addr "${address[$first]}" --master-port 29400)
wait_for 60 "the end of the job with a given port" is "$job" done
[ "$(variable 1-1 MASTER_ADDR):$(variable 1-1 MASTER_PORT)" = "${address[$first]}:29400" ] || fail "not the given address and port"
! on a run --master-port 29400 -- true 2>"$tmp/refused" || fail "a port without an address is accepted"
grep -q "needs --master-addr" "$tmp/refused" || fail "$(cat "$tmp/refused")"

if [ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import torch' 2>/dev/null; then
  mkdir "$tmp/torch"
  on a run --nodes 2 --workers-per-node 2 --master-addr auto --env GLOO_SOCKET_IFNAME=eth0 -- \
    "$DTD_TORCH_PYTHON" "$(realpath "$(dirname "$0")/../interop/sums.py")" "$tmp/torch" "$tmp/hold" || fail "PyTorch"
  [ "$(ls "$tmp/torch" | grep -c '^end-.-of-4$')" = 4 ] || fail "four ranks of PyTorch: $(ls "$tmp/torch")"
fi
end_nodes
