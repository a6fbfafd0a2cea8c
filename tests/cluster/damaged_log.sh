# One bit of a killed dtd's log is flipped: dtd refuses to start, dtctl up shows the file and the reason, and after the
# bit is restored nothing is lost.
. "$(dirname "$0")/lib.sh"
write_job
up
for i in 1 2 3; do wait_done "$(submit --set name="job-$i" --set train.steps=4 --set checkpoint.dir="ckpt-$i")"; done
kill -9 "$(pid_of supervisor)" "$(pid_of control)" "$(pid_of io)"
segment=$(grep -al job-3 "$DTD_DIR"/raft/log/open-*)
offset=$(grep -abo job-1 "$segment" | head -n 1 | cut -d: -f1)
cp "$segment" "$tmp/sound"
# "job-1" becomes "job-5", which is also a valid name: only the checksum can detect it.
printf 5 | dd of="$segment" bs=1 seek=$((offset + 4)) conv=notrunc status=none
if dtctl up >"$tmp/out" 2>&1; then dtctl list; fail "dtd starts with a damaged log"; fi
cat "$tmp/out"
grep -q "$segment is damaged behind byte" "$tmp/out" || fail "file and place are not named"
grep -q "docs/operate/backup.md" "$tmp/out" || fail "no remedy is named"
dtctl down >/dev/null 2>&1
cp "$tmp/sound" "$segment"
up
for i in 1 2 3; do is_state "$i" done || fail "job $i is lost"; done
