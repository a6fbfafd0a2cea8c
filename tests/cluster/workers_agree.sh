# 1, 2, 3 and 4 workers, and 3 with a communication thread, have the same losses, parameters and optimizer state, bit for
# bit, in canonical numerics. The batch of 7 samples is not divisible by 2, 3 or 4, and its last microbatch is smaller.
. "$(dirname "$0")/lib.sh"
write_job
up
for w in 1 2 3 4 3-beside; do
  thread=off
  [ "$w" = "${w%-beside}" ] || thread=on
  job=$(submit --set parallel.workers="${w%-beside}" --set run.comm_thread=$thread --set train.global_batch=7 --set train.steps=20 --set checkpoint.dir="$tmp/ckpt-$w")
  wait_done "$job"
  [ "$(cat "$DTD_DIR/jobs/$job"/rank-*.log | grep -c "ready step=0 .*comm_thread=$thread")" -eq "${w%-beside}" ] ||
    fail "the logs of $w workers do not contain comm_thread=$thread"
  losses "$job" >"$tmp/losses-$w"
  hashes "$tmp/ckpt-$w/step-20" >"$tmp/hashes-$w"
  [ "$(wc -l <"$tmp/losses-$w")" -eq 20 ] || fail "$w workers reported $(wc -l <"$tmp/losses-$w") steps"
  cmp "$tmp/losses-1" "$tmp/losses-$w" || fail "the losses of $w workers differ"
  cmp "$tmp/hashes-1" "$tmp/hashes-$w" || fail "the tensors of $w workers differ"
done
echo "$(wc -l <"$tmp/hashes-1") tensors equal on 1, 2, 3 and 4 workers, and with a communication thread"
