# Jobs are found by their names, and the list by state and user.
. "$(dirname "$0")/lib.sh"
up
cd "$tmp"
run() { dtctl run -d -n "$1" -o json -- "${@:2}" | jq -er .job; }
old=$(run story true)
wait_for 20 "job $old" ended "$old"
new=$(run story sh -c 'echo the newer one; sleep 60')
bad=$(run broken false)
wait_for 20 "job $bad" ended "$bad"
is_running() { is_state "$1" running; }
wait_for 20 "job $new" is_running "$new"

[ "$(dtctl status story -o json | jq -r .job)" = "$new" ] || fail "a name does not mean the job that has not ended"
[ "$(dtctl why broken -o json | jq length)" = 1 ] || fail "why broken"
wait_for 10 "its output" grep -q "the newer one" <(dtctl logs story)
expect() { # NUMBERS ARGUMENTS...
  [ "$(dtctl status "${@:2}" -o json | jq -c '[.[].job | tonumber]')" = "$1" ] || { dtctl status; fail "status ${*:2} is not $1"; }
}
expect "[$old,$new,$bad]"
expect "[$new]" -t active
expect "[$new]" --state running
expect "[$old,$bad]" -t done,failed
expect "[$bad]" -t FAILED
expect "[]" -t pending
expect "[$old,$new,$bad]" -u "$(id -un)"
expect "[]" -u nobody-of-this-name
dtctl status -t nonsense 2>"$tmp/said" && fail "an unknown state is taken"
grep -q "expected pending, starting" "$tmp/said" || fail "$(cat "$tmp/said")"
rc=0
dtctl status nothing 2>"$tmp/said" || rc=$?
[ $rc = 3 ] && grep -q "no job is called nothing" "$tmp/said" || fail "$rc $(cat "$tmp/said")"

twin=$(run story sleep 60)
rc=0
dtctl cancel story 2>"$tmp/said" || rc=$?
[ $rc = 2 ] && grep -q "2 jobs called story have not ended" "$tmp/said" || fail "$rc $(cat "$tmp/said")"
dtctl cancel "$twin" >/dev/null
wait_for 20 "job $twin" ended "$twin"
dtctl cancel story >/dev/null
wait_for 20 "job $new" ended "$new"
[ "$(dtctl status story -o json | jq -r .job)" = "$twin" ] || fail "of ended jobs a name means the newest"

# Several jobs in one call: each is reported, and one that cannot be canceled leaves the others canceled.
one=$(run first sleep 60)
two=$(run second sleep 60)
rc=0
dtctl cancel "$one" nothing second >"$tmp/said" 2>"$tmp/error" || rc=$?
[ $rc = 3 ] && grep -q "no job is called nothing" "$tmp/error" || fail "$rc $(cat "$tmp/error")"
[ "$(grep -c "^job \($one first\|$two second\) is " "$tmp/said")" = 2 ] || fail "$(cat "$tmp/said")"
wait_for 20 "job $one" ended "$one"
wait_for 20 "job $two" ended "$two"
[ "$(dtctl cancel "$one" "$two" -o json | jq -c 'map(.state)')" = '["canceled","canceled"]' ] || fail "cancel -o json of two"
[ "$(dtctl cancel "$one" -o json | jq -r .state)" = canceled ] || fail "cancel -o json of one"
