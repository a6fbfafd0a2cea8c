"""Pipeline schedules and PyTorch. The orders of a V are compared slot by slot with those of PyTorch's classes; PyTorch's
CSV as parallel.schedule_csv must come back with the same slots; and PyTorch must read the order of every schedule and
find it valid. Exit status 77 (skipped) without torch.

    interop_schedules.py DTCTL

DTD_TORCH_PYTHON names a python with torch.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# PyTorch's DualPipeV refuses fewer microbatches than stages.
CLASSES = {"ScheduleZBVZeroBubble": ("zb-v", lambda p: (1, p, 2 * p - 1, 2 * p, 4 * p)),
           "ScheduleDualPipeV": ("dualpipe-v", lambda p: (2 * p, 2 * p + 1, 4 * p))}
CHUNKS = {"gpipe": 1, "1f1b": 1, "zb-h1": 1, "zb-h2": 1, "interleaved": 3, "zb-v": 2, "dualpipe-v": 2}


def slots(text):
    """By line, the actions in their order: idle steps left out, overlapped pairs one after the other."""
    return [re.findall(r"\d+[FBIW]\d+", line) for line in text.strip("\n").split("\n")]


def plan(dtctl, folder, ranks, micros, schedule, chunks=2):
    job = Path(folder, "job.yaml")
    job.write_text(
        f"name: order\nmodel: {{arch: llama, dim: 16, layers: {chunks * ranks}, heads: 2, ffn: 32}}\n"
        f"data: {{train: [{folder}/text], tokenizer: bytes}}\n"
        f"train: {{steps: 1, seq: 8, global_batch: {micros}, micro_batch: 1}}\n"
        f"parallel: {{workers: {ranks}, pp: {ranks}, chunks: {chunks}, {schedule}}}\ncheckpoint: {{dir: {folder}/none}}\n")
    done = subprocess.run([dtctl, "plan", job, "--schedule-csv", "pytorch"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{schedule}: {done.stderr}")
    return done.stdout


def compare_classes(dtctl, side, folder):
    cells = [(name, p, m) for name, (_, micros) in CLASSES.items() for p in range(2, 9) for m in micros(p)]
    subprocess.run([*side, "write", folder, *(f"{name}:{p}:{m}" for name, p, m in cells)], check=True)
    for name, p, m in cells:
        text = Path(folder, f"{name}_{p}_{m}").read_text().replace("\r", "")
        ours = slots(plan(dtctl, folder, p, m, f"schedule: {CLASSES[name][0]}"))
        again = slots(plan(dtctl, folder, p, m, f'schedule: file, schedule_csv: "{text}"'.replace("\n", "\\n")))
        if ours != slots(text) or again != slots(text):
            sys.exit(f"{name}, {p} ranks, {m} microbatches: PyTorch has\n{text}\ndtd has\n{ours}\nand reads\n{again}")
    print(len(cells), "orders are PyTorch's")


def read_all(dtctl, side, folder):
    cells = [(name, p, v * p, m) for name, v in CHUNKS.items() for p in (2, 3, 4) for m in (p, 2 * p + 1)]
    for name, p, stages, m in cells:
        text = plan(dtctl, folder, p, m, f"schedule: {name}", CHUNKS[name])
        Path(folder, f"{name}_{p}_{stages}_{m}").write_text(text)
    subprocess.run([*side, "read", folder, *(":".join(map(str, cell)) for cell in cells)], check=True)
    print(len(cells), "orders are valid for PyTorch")


def main(dtctl):
    python = os.environ.get("DTD_TORCH_PYTHON")
    if not python or subprocess.run([python, "-c", "import torch.distributed.pipelining"], capture_output=True).returncode:
        print("skipped: DTD_TORCH_PYTHON does not name a python with torch")
        sys.exit(77)
    side = [python, Path(__file__).with_name("schedules_side.py")]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text").write_text("one text is enough for a plan " * 40)
        compare_classes(dtctl, side, folder)
        read_all(dtctl, side, folder)


main(sys.argv[1])
