"""PyTorch's half of schedules.py: writes the order of a schedule class as PyTorch's CSV (compute_only), without devices.

    schedules_side.py FOLDER CLASS:RANKS:MICROBATCHES ...
"""
import csv
import sys
from pathlib import Path

import torch.distributed.pipelining.schedules as schedules


def rows(name, ranks, micros):
    """The private rule of the class for each rank; the rest of its constructor needs stages on devices."""
    kind = getattr(schedules, name)
    schedule = kind.__new__(kind)
    schedule.pp_group_size, schedule.num_stages, schedule._n_microbatches = ranks, 2 * ranks, micros
    return [schedule._calculate_single_rank_operations(rank) for rank in range(ranks)]


def main(folder, *cells):
    for cell in cells:
        name, ranks, micros = cell.split(":")
        with open(Path(folder, cell.replace(":", "-")), "w", newline="") as out:
            csv.writer(out).writerows(rows(name, int(ranks), int(micros)))


main(*sys.argv[1:])
