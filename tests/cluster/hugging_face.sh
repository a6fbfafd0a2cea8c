# A job with byte-pair encoding. Its model is exported in Hugging Face's format and imported again, into a folder and for
# a job file: the tensors are equal bit for bit, both models generate the same text as the original, and training
# continues.
. "$(dirname "$0")/lib.sh"
write_job
# Bytes in GPT-2's characters (33 to 126, 161 to 172 and 174 to 255 are their own), a few merges, one special token.
jq -n '[range(33; 127), range(161; 173), range(174; 256)] as $own
  | reduce range(256) as $b ({map: {}, next: 256};
      if $own | index($b) then .map[[$b] | implode] = $b else .map[[.next] | implode] = $b | .next += 1 end)
  | .map + {"th": 256, "the": 257, "\u0120the": 258, "ow": 259, "\u0120d": 260, "<|endoftext|>": 261}' >"$tmp/vocab.json"
printf '#version: 0.2\nt h\nth e\n\u0120 the\no w\n\u0120 d\n' >"$tmp/merges.txt"
sed -i 's/tokenizer: bytes}/tokenizer: bpe, tokenizer_files: [merges.txt, vocab.json]}/' "$tmp/job.yaml"
up
job=$(submit)
wait_done "$job"
generate() { dtctl generate "$1" --prompt 'the dog' --tokens 12 --temperature 0; }
generate "$tmp/ckpt" >"$tmp/said"
grep -q '^the dog' "$tmp/said" || fail "generated: $(cat "$tmp/said")"
hashes "$tmp/ckpt/step-40" | grep -v '^optimizer' >"$tmp/hashes"

dtctl ckpt export "$tmp/ckpt" "$tmp/hf" >/dev/null
cmp "$tmp/hf/vocab.json" "$tmp/vocab.json"
cmp "$tmp/hf/merges.txt" "$tmp/merges.txt"
dtctl ckpt import "$tmp/hf" "$tmp/folder" >/dev/null
dtctl ckpt verify "$tmp/folder" >/dev/null
sed "s/^name: small/name: tuned/; s/dir: ckpt/dir: tuned/" "$tmp/job.yaml" >"$tmp/tuned.yaml"
dtctl ckpt import "$tmp/hf" "$tmp/tuned.yaml" >/dev/null
for to in folder tuned; do
  hashes "$tmp/$to/step-0" >"$tmp/hashes-$to"
  cmp "$tmp/hashes" "$tmp/hashes-$to" || fail "$to: the tensors differ"
  generate "$tmp/$to" >"$tmp/said-$to"
  cmp "$tmp/said" "$tmp/said-$to" || fail "$to generates: $(cat "$tmp/said-$to")"
done

next=$(dtctl resume "$tmp/tuned" --steps 10 --detach -o json | jq -er .job)
wait_done "$next"
[ "$(losses "$next" | head -n 1 | cut -d' ' -f1)" = 1 ] || fail "the imported model did not begin at step 1"
next=$(dtctl resume "$tmp/folder" --steps 3 --set "data.train=[$tmp/text.txt]" --detach -o json | jq -er .job)
wait_done "$next"
