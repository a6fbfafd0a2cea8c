"""The orders of dtd's pipelines in a V, compared slot by slot with those of PyTorch's classes; and PyTorch's CSV as
parallel.schedule_csv, which must come back with the same slots. Exit status 77 (skipped) without torch.

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
SCHEDULES = {"ScheduleZBVZeroBubble": ("zb-v", lambda p: (1, p, 2 * p - 1, 2 * p, 4 * p)),
             "ScheduleDualPipeV": ("dualpipe-v", lambda p: (2 * p, 2 * p + 1, 4 * p))}


def slots(text):
    """By line, the actions in their order: idle steps left out, overlapped pairs one after the other."""
    return [re.findall(r"\d+[FBIW]\d+", line) for line in text.strip("\n").split("\n")]


def plan(dtctl, folder, ranks, micros, schedule):
    job = Path(folder, "job.yaml")
    job.write_text(
        f"name: order\nmodel: {{arch: llama, dim: 16, layers: {2 * ranks}, heads: 2, ffn: 32}}\n"
        f"data: {{train: [{folder}/text], tokenizer: bytes}}\n"
        f"train: {{steps: 1, seq: 8, global_batch: {micros}, micro_batch: 1}}\n"
        f"parallel: {{workers: {ranks}, pp: {ranks}, chunks: 2, {schedule}}}\ncheckpoint: {{dir: {folder}/none}}\n")
    done = subprocess.run([dtctl, "plan", job, "--schedule-csv", "pytorch"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{schedule}: {done.stderr}")
    return slots(done.stdout)


def main(dtctl):
    python = os.environ.get("DTD_TORCH_PYTHON")
    if not python or subprocess.run([python, "-c", "import torch.distributed.pipelining"], capture_output=True).returncode:
        print("skipped: DTD_TORCH_PYTHON does not name a python with torch")
        sys.exit(77)
    side = Path(__file__).with_name("schedules_side.py")
    cells = [(name, p, m) for name, (_, micros) in SCHEDULES.items() for p in range(2, 9) for m in micros(p)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text").write_text("one text is enough for a plan " * 40)
        subprocess.run([python, side, folder, *(f"{name}:{p}:{m}" for name, p, m in cells)], check=True)
        for name, p, m in cells:
            text = Path(folder, f"{name}-{p}-{m}").read_text().replace("\r", "")
            ours = plan(dtctl, folder, p, m, f"schedule: {SCHEDULES[name][0]}")
            again = plan(dtctl, folder, p, m, f'schedule: file, schedule_csv: "{text}"'.replace("\n", "\\n"))
            if ours != slots(text) or again != slots(text):
                sys.exit(f"{name}, {p} ranks, {m} microbatches: PyTorch has\n{text}\ndtd has\n{ours}\nand reads\n{again}")
    print(len(cells), "orders are PyTorch's")


main(sys.argv[1])
