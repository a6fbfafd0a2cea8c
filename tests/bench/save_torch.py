"""Saves and loads by torch.distributed.checkpoint, for tests/bench/bench_save.c: two ranks, each half of a tensor, files fsynced as
by default. Reads lines "save FOLDER" and "load FOLDER" from standard input, and answers each with its seconds, between two barriers.
The first line that it prints is "ready VERSION".

    save_torch.py MIB
"""
import os, socket, sys, time
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS = 2


def timed(run):
    dist.barrier()
    begin = time.perf_counter()
    run()
    dist.barrier()
    return time.perf_counter() - begin


def save(state, folder):
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=True))


def load(state, folder):
    dcp.load(state, checkpoint_id=folder)


def serve(rank, mib):
    mesh = init_device_mesh("cpu", (RANKS,))
    state = {"weights": distribute_tensor(torch.randn(mib * 256, 1024), mesh, [Shard(0)])}
    if rank == 0:
        print("ready", torch.__version__, flush=True)
    while True:
        line = [sys.stdin.readline().split() if rank == 0 else None]
        dist.broadcast_object_list(line)
        if not line[0]:
            return
        verb, folder = line[0]
        took = timed(lambda: {"save": save, "load": load}[verb](state, folder))
        if rank == 0:
            print(took, flush=True)


def main():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.set_num_threads(1)
    rank = 0 if os.fork() else 1
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo")
    serve(rank, int(sys.argv[1]))
    dist.destroy_process_group()
    if rank == 0:
        os.wait()


if __name__ == "__main__":
    main()
