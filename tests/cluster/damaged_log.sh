# One flipped bit in the log of a killed dtd: the start is refused, dtctl up shows file and reason, and nothing is lost.
. "$(dirname "$0")/lib.sh"
write_job
up
for i in 1 2 3; do wait_done "$(submit --set name="job-$i" --set train.steps=4 --set checkpoint.dir="ckpt-$i")"; done
kill -9 "$(pid_of supervisor)" "$(pid_of control)" "$(pid_of io)"
segment=$(grep -al job-3 "$DTD_DIR"/raft/log/open-*)
offset=$(grep -abo job-1 "$segment" | head -n 1 | cut -d: -f1)
cp "$segment" "$tmp/sound"
# 1 becomes 5: the name would still be one
printf 5 | dd of="$segment" bs=1 seek=$((offset + 4)) conv=notrunc status=none
if dtctl up >"$tmp/out" 2>&1; then dtctl list; fail "dtd starts with a damaged log"; fi
cat "$tmp/out"
grep -q "$segment is damaged behind byte" "$tmp/out" || fail "file and place are not named"
grep -q "docs/operate/backup.md" "$tmp/out" || fail "no remedy is named"
dtctl down >/dev/null 2>&1
cp "$tmp/sound" "$segment"
up
for i in 1 2 3; do is_state "$i" done || fail "job $i is lost"; done
