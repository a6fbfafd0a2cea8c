# run.sh: unmodified PyTorch scripts under dtctl run: DDP; FSDP2 with DCP; a rank is killed, and the next attempt resumes from DCP's
# checkpoint.
. "$(dirname "$0")/../cluster/lib.sh"
[ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import torch' 2>/dev/null || skip "no PyTorch (DTD_TORCH_PYTHON)"
up
cat >"$tmp/ddp.py" <<'X2'
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.full((4, 8), float(rank + step))).square().mean().backward()
    optimizer.step()
total = torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum()
sums = [torch.zeros((), dtype=torch.float64) for _ in range(world)]
dist.all_gather(sums, total)
assert all(s == sums[0] for s in sums), sums
open("%s-%d" % (sys.argv[1], rank), "w").write("%d %.17g" % (world, total.item()))
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0) # threads of the process group would abort the interpreter at exit (pytorch/pytorch issue 190489)
X2
cat >"$tmp/fsdp.py" <<'X2'
"""fsdp.py FOLDER HOLD: twelve steps, a checkpoint after every fourth; after the ninth step it waits while the file HOLD exists."""
import os, sys, time
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
folder, hold = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
done = [s for s in (4, 8, 12) if os.path.exists("%s/step-%d/.metadata" % (folder, s))]
first = max(done, default=0)
if first:
    m, o = get_state_dict(model, optimizer)
    state = {"model": m, "optimizer": o}
    dcp.load(state, checkpoint_id="%s/step-%d" % (folder, first))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
for step in range(first + 1, 13):
    torch.manual_seed(100 * step + rank)
    optimizer.zero_grad()
    loss = (model(torch.randn(8, 16)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        m, o = get_state_dict(model, optimizer)
        dcp.save({"model": m, "optimizer": o}, checkpoint_id="%s/step-%d" % (folder, step))
    while step == 9 and os.path.exists(hold):
        print("holds", flush=True)
        time.sleep(0.05)
total = sum(p.full_tensor().double().sum().item() for p in model.parameters())
open("%s/end-%d" % (folder, rank), "w").write("%d %.12g" % (first, total))
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0) # as above
X2
dtctl run --workers-per-node 2 -- "$DTD_TORCH_PYTHON" "$tmp/ddp.py" "$tmp/ddp" || fail "DDP"
[ "$(cat "$tmp/ddp-0")" = "$(cat "$tmp/ddp-1")" ] && grep -q "^2 " "$tmp/ddp-0" || fail "DDP: $(cat "$tmp"/ddp-?)"

mkdir "$tmp/whole" "$tmp/cut"
dtctl run --workers-per-node 2 -- "$DTD_TORCH_PYTHON" "$tmp/fsdp.py" "$tmp/whole" "$tmp/no" || fail "FSDP2"
touch "$tmp/hold"
job=$(dtctl run --workers-per-node 2 --max-restarts 1 --detach -o json -- "$DTD_TORCH_PYTHON" "$tmp/fsdp.py" "$tmp/cut" "$tmp/hold" | jq -er .job)
holds() { [ "$(dtctl logs "$job" | grep -c "holds")" -ge 2 ]; }
wait_for 120 "both ranks to be at step 9" holds
kill -9 "$(worker_pid "$job" 1)"
again() { status "$job" | jq -e '.restarts == 1 and .state == "running"'; }
wait_for 60 "the next attempt" again
rm "$tmp/hold"
wait_done "$job" 180
[ "$(cut -d' ' -f2 "$tmp/cut/end-0")" = "$(cut -d' ' -f2 "$tmp/whole/end-0")" ] || fail "$(cat "$tmp"/*/end-?)"
[ "$(cut -d' ' -f1 "$tmp/cut/end-0")" = 8 ] || fail "the second attempt began at $(cat "$tmp/cut/end-0")"
echo "FSDP2 ends with $(cat "$tmp/whole/end-0"), and after a killed rank with $(cat "$tmp/cut/end-0")"
