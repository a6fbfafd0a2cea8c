# Fine-tuning on conversations: rows of messages become packed samples of separate documents, of which only the
# assistant's turns count. The same bits on other numbers of workers, and the loss of the assistant's text falls.
. "$(dirname "$0")/lib.sh"
write_job
python3 - "$tmp" <<'P'
import json, sys
folder = sys.argv[1]
chars = [chr(c) for c in range(0x21, 0x7f)] + ["\u0120", "\u010a"]
vocab = {c: i for i, c in enumerate(chars)}
added = [{"id": len(chars) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
          "special": True} for i, t in enumerate(["<|im_start|>", "<|im_end|>"])]
json.dump({"version": "1.0", "normalizer": None,
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
           "decoder": {"type": "ByteLevel"}, "added_tokens": added, "model": {"type": "BPE", "vocab": vocab, "merges": []}},
          open(folder + "/tokenizer.json", "w"))
with open(folder + "/chats.jsonl", "w") as f:
    for i in range(400):
        f.write(json.dumps({"messages": [{"role": "user", "content": f"what is {i} + 1" + "?" * (i * 7 % 40)},
                                         {"role": "assistant", "content": "it is even" if i % 2 else "it is odd"}]}) + "\n")
P
up
chats=(--set data.train="[$tmp/chats.jsonl]" --set data.tokenizer=bpe --set data.tokenizer_files="[$tmp/tokenizer.json]"
  --set data.template=chatml --set data.documents=separate --set data.packing=best_fit --set train.seq=128)
(cd "$tmp" && dtctl plan job.yaml "${chats[@]}") >"$tmp/plan"
grep -q 'Packing  *9[0-9]\.[0-9]* % of the samples' "$tmp/plan" || fail "the plan: $(cat "$tmp/plan")"
job=$(submit "${chats[@]}" --set checkpoint.dir="$tmp/two")
wait_done "$job"
dtctl metrics "$job" -o jsonl >"$tmp/metrics"
jq -es 'map(.targets) | min > 0 and max < 8 * 128 / 3' "$tmp/metrics" >/dev/null || fail "targets: $(head -n 2 "$tmp/metrics")"
jq -es '.[0].loss > 4 and .[-1].loss < 3' "$tmp/metrics" >/dev/null || fail "losses: $(head -n 1 "$tmp/metrics") to $(tail -n 1 "$tmp/metrics")"
hashes "$tmp/two/step-40" >"$tmp/hashes-two"
for w in 1 3; do
  job=$(submit "${chats[@]}" --set parallel.workers=$w --set checkpoint.dir="$tmp/on-$w")
  wait_done "$job"
  hashes "$tmp/on-$w/step-40" >"$tmp/hashes-$w"
  cmp "$tmp/hashes-two" "$tmp/hashes-$w" || fail "on $w workers, the tensors differ"
done
