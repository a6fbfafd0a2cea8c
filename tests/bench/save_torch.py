"""Seconds of a save and of a load by torch.distributed.checkpoint: two ranks, each half of a tensor, files fsynced as by default,
loads from files that are not in the page cache. Prints one JSON line. Run by tests/bench/save.

    save_torch.py DIR MIB ROUNDS
"""
import json, os, shutil, statistics, sys, time
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS = 2


def forget(folder):
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def timed(run):
    dist.barrier()
    begin = time.perf_counter()
    run()
    dist.barrier()
    return time.perf_counter() - begin


def rank_main(rank, folder, mib, rounds):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["SAVE_PORT"], RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (RANKS,))
    state = {"weights": distribute_tensor(torch.randn(mib * 256, 1024), mesh, [Shard(0)])}
    saves, loads = [], []
    for i in range(rounds + 1):
        path = os.path.join(folder, f"torch-{i}")
        saves.append(timed(lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(path, sync_files=True))))
        if rank == 0:
            forget(path)
        loads.append(timed(lambda: dcp.load(state, checkpoint_id=path)))
        if rank == 0:
            shutil.rmtree(path)
    if rank == 0:
        print(json.dumps({"bench": "save_torch", "ranks": RANKS, "mib": mib, "rounds": rounds, "torch_save_s": round(statistics.median(saves[1:]), 4),
                          "torch_load_s": round(statistics.median(loads[1:]), 4), "torch": torch.__version__}))
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ["SAVE_PORT"] = str(s.getsockname()[1])
    torch.set_num_threads(1)
    mp.spawn(rank_main, (sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), RANKS)
