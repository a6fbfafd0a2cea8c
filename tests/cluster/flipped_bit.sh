# One bit of a checkpoint is flipped: verify, resume and the load refuse the checkpoint and name file and extent.
. "$(dirname "$0")/lib.sh"
write_job
up
job=$(submit --set train.steps=10)
wait_done "$job"
dtctl ckpt verify "$tmp/ckpt/step-10" >/dev/null || fail "verify refuses an intact checkpoint"
part=$(ls "$tmp"/ckpt/step-10/__1_0.distcp)
size=$(stat -c %s "$part")
offset=$((size / 2))
byte=$(od -An -tu1 -j $offset -N 1 "$part" | tr -d ' ')
printf "\\x$(printf %x $((byte ^ 4)))" | dd of="$part" bs=1 seek=$offset conv=notrunc status=none
if dtctl ckpt verify "$tmp/ckpt/step-10" >"$tmp/out" 2>&1; then fail "verify accepts a flipped bit"; fi
grep -q '__1_0.distcp' "$tmp/out" && grep -q extent "$tmp/out" || { cat "$tmp/out"; fail "file and extent are not named"; }
set +e
dtctl resume "$tmp/ckpt/step-10" --steps 20 >"$tmp/out" 2>&1
rc=$?
set -e
[ $rc -ne 0 ] || fail "a job resumed from a damaged checkpoint"
cat "$tmp/out"
grep -q '__1_0.distcp' "$tmp/out" && grep -q extent "$tmp/out" || fail "the refusal does not name file and extent (exit $rc)"
