# data.stage: a node's workers share one copy of the data, which changes no bit of the training and has no name, and
# nothing of it is left after the job's end, a cancel, or kill -9 of anything. Without room the data is read in place, and the
# log has the reason, once.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "a small file system can only be mounted by root"
mkdir "$tmp/small"
mount -t tmpfs -o size=400m none "$tmp/small" 2>/dev/null || skip "no tmpfs can be mounted here"
near=$tmp/small # in memory, and of this test alone
used() { df --output=used "$near" | tail -n 1 | tr -d ' '; }
is_used() { [ "$(used)" -gt 0 ]; }
is_free() { [ "$(used)" = 0 ]; }
# Inodes of the files of the folder that a process has mapped.
mapped() { { grep -oE "[0-9]+ +$near/" "/proc/$1/maps" || true; } | cut -d' ' -f1 | sort -u; }
notes() { dtctl logs "$1" | grep -c "data.stage: $2" || true; }
long() { submit --set train.steps=1000000 --set checkpoint.every=0 --set data.stage="$near" "$@"; }

write_job
yes "another file for the validation, of other words" 2>/dev/null | head -n 100 >"$tmp/valid.txt" || true
export SLURM_TMPDIR=$near
up
eval=(--set data.valid="[valid.txt]" --set train.eval_every=10)
job=$(submit "${eval[@]}" --set checkpoint.dir="$tmp/in-place")
wait_done "$job"
losses "$job" >"$tmp/losses"
hashes "$tmp/in-place/step-40" >"$tmp/hashes"
[ "$(notes "$job" "")" = 0 ] || fail "a job without data.stage has a note"

# the same bits from a copy; of `auto` in $SLURM_TMPDIR
for where in shm "$near" auto; do
  job=$(submit "${eval[@]}" --set checkpoint.dir="$tmp/of-${where##*/}" --set data.stage="$where")
  wait_done "$job"
  losses "$job" | cmp - "$tmp/losses" || fail "other losses from $where"
  hashes "$tmp/of-${where##*/}/step-40" | cmp - "$tmp/hashes" || fail "other tensors from $where"
  folder=$([ $where = shm ] && echo /dev/shm || echo "$near")
  [ "$(notes "$job" "the data is in $folder: .* MiB, copied in")" = 1 ] || fail "not one note of the copy in $where: $(dtctl logs "$job")"
done
wait_for 10 "the copy's end with its job" is_free

# no room, or no folder that can be used: in place, and one line has the reason
mkdir "$tmp/elsewhere"
ln -s "$tmp/elsewhere" "$tmp/link"
head -c 400m /dev/zero >"$near/ballast" 2>/dev/null || true
mkdir "$tmp/foreign"
chown 12345 "$tmp/foreign"
while IFS='|' read -r where text; do
  job=$(submit "${eval[@]}" --set checkpoint.dir="$tmp/at-${where##*/}" --set data.stage="$where")
  wait_done "$job"
  losses "$job" | cmp - "$tmp/losses" || fail "other losses with $where"
  [ "$(notes "$job" "the data is read in place: .*$text")" = 1 ] || fail "not one line for $where: $(dtctl logs "$job")"
done <<X
$near|the data has 0.1 MiB, and without what the job itself needs 0.0 MiB of memory are free
$tmp/link|it is a symbolic link
$tmp/text.txt|it is not a folder
$tmp/missing|No such file
$tmp/foreign|it belongs to another user
X
rm "$near/ballast"

# one copy for both ranks, without a name
job=$(long --set checkpoint.dir="$tmp/long")
wait_for 30 "steps" reached "$job" 5
is_used || fail "nothing is in $near"
[ -z "$(ls -A "$near")" ] || fail "the copy has a name: $(ls -A "$near")"
first=$(mapped "$(worker_pid "$job" 0)")
[ "$(wc -w <<<"$first")" = 1 ] || fail "rank 0 has mapped: $first"
[ "$(mapped "$(worker_pid "$job" 1)")" = "$first" ] || fail "rank 1 has mapped another file"
grep -q "$tmp/cache/.*tokens-" "/proc/$(worker_pid "$job" 1)/maps" && fail "rank 1 reads the cache too"

# a worker is killed: the next epoch uses the copy that is there
kill -9 "$(worker_pid "$job" 1)"
wait_for 30 "the second epoch" status_epoch_steps "$job" 2
[ "$(mapped "$(worker_pid "$job" 1)")" = "$first" ] || fail "the second epoch has another copy"

# dtd-io is killed: the workers keep the copy; the next epoch has a new one, and the old one is gone
io=$(pid_of io)
kill -9 "$io"
at=$(step "$job")
wait_for 30 "steps without dtd-io" reached "$job" $((at + 20))
kill -9 "$(worker_pid "$job" 0)"
wait_for 60 "the third epoch" status_epoch_steps "$job" 3
second=$(mapped "$(worker_pid "$job" 1)")
[ "$(wc -w <<<"$second")" = 1 ] || fail "rank 1 has mapped: $second"
[ "$second" != "$first" ] || fail "the copy of a dtd-io that has exited is in use"
bytes=$(used)
[ "$bytes" -le 256 ] || fail "$bytes KiB are used: the old copy is still there"

# cancel, and kill -9 of dtd with everything
dtctl cancel "$job" >/dev/null
wait_for 30 "the cancel" is_state "$job" canceled
wait_for 10 "the copy's end with a cancel" is_free
job=$(long --set checkpoint.dir="$tmp/killed")
wait_for 30 "steps" reached "$job" 5
is_used || fail "nothing is in $near"
pids=$(pgrep -P "$(pid_of supervisor)" | tr '\n' ' ')
kill -9 "$(pid_of supervisor)" $pids
wait_for 10 "the copy's end with all processes" is_free
up
dtctl cancel "$job" >/dev/null
wait_for 60 "the cancel" is_state "$job" canceled
wait_for 10 "the copy's end with a cancel" is_free

# during the copy: a worker is killed, and a cancel; the ids are zeros of a file without blocks
truncate -s 300M "$tmp/zeros.bin"
stop_in_copy() { # starts a job and stops its dtd-io before the copy is complete, as on a slow disk
  job=$(long --set checkpoint.dir="$tmp/slow-$1" --set data.train="[$tmp/zeros.bin]" --set data.format=uint16)
  for ((i = 0; i < 2000; i++)); do is_used && break; done
  io=$(pid_of io)
  kill -STOP "$io"
  end="not staged error=ERR_CANCELED"
  [ "$(used)" -lt 300000 ] || { echo "the copy was complete before it could be stopped: this part shows less"; end="the data is in"; }
}
stop_in_copy killed
kill -9 "$(worker_pid "$job" 0)"
kill -CONT "$io"
wait_for 60 "the second epoch" status_epoch_steps "$job" 2
[ "$(used)" -le 310000 ] || fail "$(used) KiB are used: there are two copies"
dtctl cancel "$job" >/dev/null
wait_for 30 "the cancel" is_state "$job" canceled
wait_for 10 "the copy's end with a cancel" is_free
stop_in_copy canceled
dtctl cancel "$job" >/dev/null
kill -CONT "$io"
wait_for 30 "a cancel during the copy" is_state "$job" canceled
wait_for 10 "the end of half a copy" is_free
grep -q "$end" "$DTD_DIR/jobs/$job/io.log" || fail "the copy was not ended: $(cat "$DTD_DIR/jobs/$job/io.log")"

# a damaged set is refused, and not trained on
for f in "$tmp"/cache/dtd/data/*/tokens-00000.bin; do printf 'X' | dd of="$f" bs=1 seek=10 conv=notrunc 2>/dev/null; done
job=$(submit --set data.stage="$near" --set checkpoint.dir="$tmp/damaged")
wait_for 30 "the refusal" is_state "$job" failed
status "$job" | jq -e '[.. | strings] | any(test("tokens-00000.bin: it does not match its hash"))' >/dev/null || { status "$job"; fail "the damaged file is not named"; }
wait_for 10 "the copy's end with a failure" is_free
