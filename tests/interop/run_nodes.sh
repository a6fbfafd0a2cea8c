# run_nodes.sh: a PyTorch script on three nodes under dtctl run; one node is lost, and the job continues on the other two.
. "$(dirname "$0")/../cluster/lib.sh"
. "$(dirname "$0")/../cluster/several.sh"
[ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import torch' 2>/dev/null || skip "no PyTorch (DTD_TORCH_PYTHON)"
begin_nodes a b c
mkdir "$tmp/out"
touch "$tmp/hold"
job=$(on a run --nodes 2:3 --workers-per-node 1 --max-restarts 1 --detach -o json -- \
  "$DTD_TORCH_PYTHON" "$(realpath "$(dirname "$0")/sums.py")" "$tmp/out" "$tmp/hold" | jq -er .job)
all_of() { [ "$(ls "$tmp/out" | grep -c "^in-.-of-$1\$")" = "$1" ]; }
wait_for 150 "three ranks" all_of 3
leader=$(on a cluster status -o json | jq -r .leader)
lost=b
[ "$leader" != b ] || lost=c
kill -9 "$(head -n 1 "$tmp/$lost/dtd.lock")"
wait_for 150 "the two that are left" all_of 2
rm "$tmp/hold"
job_done() { on "$leader" status "$job" -o json | jq -e '.state == "done" and .workers == 2 and .restarts == 1'; }
wait_for 60 "the end" job_done
end_nodes
