# Input: the JSON lines of bench_train and gpu_torch.py, slurped. Output: a table of the ops of a step, then the rates.
def right(n): tostring | if length < n then " " * (n - length) + . else . end;
def left(n): tostring | if length < n then . + " " * (n - length) else . end;
def fixed(d): . * pow(10; d) | round / pow(10; d);
map(select(type == "object")) as $rows
| ([$rows[] | select(.bench == "kernel_torch") | {(.name): .}] | add // {}) as $torch
| ([$rows[] | select(.bench == "train_op")] | sort_by(-.ms)) as $ops
| (if ($ops | length) > 0 then
     "\("op" | left(16)) \("calls" | right(7)) \("ms" | right(10)) \("floor" | right(10)) \("share" | right(6)) \("PyTorch" | right(10)) \("ratio" | right(6))",
     ($ops[] | "\(.name | left(16)) \(.calls | right(7)) \(.ms | right(10)) \(.floor_ms // 0 | right(10)) \(.share // 0 | right(6))"
       + (if $torch[.name] then " \($torch[.name].ms | right(10)) \($torch[.name].ms / .ms | fixed(2) | right(6))" else "" end))
   else empty end),
  ($rows[] | select(.bench == "train_action") | "action \(.name | left(12)) \(.ms | right(10))"),
  ($rows[] | select(.bench == "train") | "dtd: \(.tokens_per_s) tokens/s, MFU \(.mfu // "unknown") (full attention), \(.mfu_causal_half // "unknown") (causal half), \(.share_causal_half) of the measured product rate"),
  ($rows[] | select(.bench == "train_torch") | "PyTorch \(.torch) \(.mode), \(.vocab) words: \(.tokens_per_s) tokens/s"),
  (([$rows[] | select(.bench == "train") | .tokens_per_s] | last) as $ours
   | if $ours then $rows[] | select(.bench == "train_torch") | "dtd is \($ours / .tokens_per_s | fixed(2)) times PyTorch \(.mode)" else empty end)
