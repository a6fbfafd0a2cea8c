"""Runs all-reduces while the file HOLD exists. An all-reduce that fails, as after the loss of a peer, fails the script."""
import datetime, os, sys, time
import torch, torch.distributed as dist
folder, hold = sys.argv[1:]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
while True:
    t = torch.tensor([1.0, float(os.path.exists(hold))])
    dist.all_reduce(t)
    assert t[0] == world
    open("%s/in-%d-of-%d" % (folder, rank, world), "w").close()
    if t[1] == 0:
        break
    time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
open("%s/end-%d-of-%d" % (folder, rank, world), "w").close()
