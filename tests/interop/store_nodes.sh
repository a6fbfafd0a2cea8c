# store_nodes.sh: unmodified torchrun agents on two nodes of a cluster rendezvous through `dtctl store open`, each through its own node.
# Then the second node is lost with its agent, and the first agent continues alone, as its range of nodes allows.
. "$(dirname "$0")/../cluster/lib.sh"
. "$(dirname "$0")/../cluster/several.sh"
[ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import torch' 2>/dev/null || skip "no PyTorch (DTD_TORCH_PYTHON)"
begin_nodes a b c
touch "$tmp/hold"
mkdir "$tmp/out"
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=1
agent() { # agent NODE
  local port=$(on "$1" store open --name meet -o json | jq -er .port)
  exec "$DTD_TORCH_PYTHON" -m torch.distributed.run --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:$port \
    --rdzv-conf=is_host=0,last_call_timeout=5,join_timeout=120 --rdzv-id=1 --nnodes=1:2 --nproc-per-node=1 --max-restarts=3 --local-addr=127.0.0.1 \
    "$(dirname "$0")/sums.py" "$tmp/out" "$tmp/hold" >"$tmp/agent-$1.log" 2>&1
}
on c store open --name meet >/dev/null # is on a node without an agent
agent a & first=$!
agent b & second=$!
logs() { tail -n 20 "$tmp"/agent-?.log; }
both() { [ -e "$tmp/out/in-0-of-2" ] && [ -e "$tmp/out/in-1-of-2" ]; }
wait_for 150 "two agents to meet $(logs)" both
kill -9 "$(head -n 1 "$tmp/b/dtd.lock")" $second $(pgrep -P $second)
alone() { [ -e "$tmp/out/in-0-of-1" ]; }
wait_for 200 "the first to go on alone" alone
rm "$tmp/hold"
wait $first || { logs; fail "the agent that was left"; }
[ -e "$tmp/out/end-0-of-1" ] || fail "no end"

# The store is lost with its node: an agent that uses it exits, and the next store of that name is empty.
touch "$tmp/hold"
agent a & first=$!
seen() { [ "$(find "$tmp/out/in-0-of-1" -newer "$tmp/hold" | wc -l)" = 1 ]; }
wait $first && fail "a rendezvous that was closed let an agent in again"
on a store close meet >/dev/null
on c store open --name meet >/dev/null
agent a & first=$!
wait_for 150 "an agent in a new store of that name" seen
kill -9 "$(head -n 1 "$tmp/c/dtd.lock")"
rc=0
wait $first || rc=$?
[ $rc = 1 ] || fail "an agent whose store is lost ended with $rc"
end_nodes
