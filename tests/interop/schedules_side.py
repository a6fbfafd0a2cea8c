"""PyTorch's half of interop_schedules.py, without devices.

    schedules_side.py write FOLDER CLASS:RANKS:MICROBATCHES ..      the order of a schedule class, in PyTorch's CSV
    schedules_side.py read FOLDER NAME:RANKS:STAGES:MICROBATCHES .. reads such a CSV and checks it
"""
import csv
import sys
from pathlib import Path

import torch.distributed.pipelining.schedules as schedules


def write(path, name, ranks, micros):
    """The private rule of the class for each rank; the rest of its constructor needs stages on devices."""
    kind = getattr(schedules, name)
    schedule = kind.__new__(kind)
    schedule.pp_group_size, schedule.num_stages, schedule._n_microbatches = ranks, 2 * ranks, micros
    with open(path, "w", newline="") as out:
        csv.writer(out).writerows(schedule._calculate_single_rank_operations(rank) for rank in range(ranks))


def read(path, name, ranks, stages, micros):
    """As _load_csv does it, and its check."""
    with open(path, newline="") as text:
        order = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(csv.reader(text))}
    schedules._validate_schedule(order, ranks, stages, micros)


def main(verb, folder, *cells):
    for cell in cells:
        name, *numbers = cell.split(":")
        {"write": write, "read": read}[verb](Path(folder, cell.replace(":", "_")), name, *map(int, numbers))


main(*sys.argv[1:])
