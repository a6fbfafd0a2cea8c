"""Trains with DistributedDataParallel during the faults. Each attempt resumes from FOLDER and saves its steps there; the script
ends when FOLDER/stop exists. Rank 0 then writes FOLDER/end: number of steps and attempts, the first and the last loss."""
import datetime, json, os, sys, time
import torch, torch.distributed as dist

folder = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
state = {"step": 0, "attempts": 0, "first": None}
path = os.path.join(folder, "state.pt")
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    state = saved["state"]
state["attempts"] += 1
ddp = torch.nn.parallel.DistributedDataParallel(model)


def save():
    if rank == 0:
        torch.save({"state": state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
        os.replace(path + ".new", path)


save()
while True:
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(state["step"] * 64 + rank))
    loss = (ddp(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state["step"] += 1
    state["first"] = state["first"] or loss.item()
    if state["step"] % 20 == 0:
        save()
    stop = torch.tensor(float(rank == 0 and os.path.exists(os.path.join(folder, "stop"))))
    dist.all_reduce(stop)
    if stop:
        break
    time.sleep(0.05)
with torch.no_grad():
    same = [torch.zeros_like(model[0].weight) for _ in range(world)]
    dist.all_gather(same, model[0].weight)
assert all(torch.equal(same[0], other) for other in same), "the replicas differ"
if rank == 0:
    json.dump({"steps": state["step"], "attempts": state["attempts"], "first": state["first"], "last": loss.item()}, open(folder + "/end", "w"))
dist.barrier()
dist.destroy_process_group()
