# dtctl report of jobs in all states: running before its first step, done after a failure, failed at its start, with a loss that is not
# a number. The ledger sums to wall clock times workers; the PDF has the same numbers; without the module the message names the package.
. "$(dirname "$0")/lib.sh"
write_job
up
sums() { jq -e '.ledger | .total_ms == ([.parts_ms[]] | add) and .total_ms > 0' >/dev/null; }
report() { dtctl report "$1" --to "$tmp/$1.html" -o json; }

job=$(submit --set train.steps=400 --set checkpoint.every=50 --set run.timeline_step=3)
report "$job" >/dev/null || fail "no report of a job that has just been submitted"
wait_for 30 "step 60" reached "$job" 60
kill -9 "$(worker_pid "$job" 1)"
wait_done "$job"
report "$job" >"$tmp/json"
sums <"$tmp/json" || { cat "$tmp/json"; fail "the parts do not sum to the total"; }
jq -e '.ledger | .total_ms == 2 * .wall_ms and .parts_ms.productive > 0 and .parts_ms.restart > 0 and .parts_ms.recomputed > 0' \
  "$tmp/json" >/dev/null || { cat "$tmp/json"; fail "the ledger of a job that lost a worker"; }
status "$job" | jq -e --slurpfile r "$tmp/json" '.ended_ms - .submitted_ms == ($r[0].ledger | .wall_ms + .queued_ms)' >/dev/null ||
  fail "wall clock and queue are not the time from submit to end"
grep -q "Measured: step 3 of epoch 1" "$tmp/$job.html" || fail "the measured step is missing"
grep -q "was killed by signal 9" "$tmp/$job.html" || fail "the incident is missing"
! grep -q "<script" "$tmp/$job.html" || fail "the page has a script"
(cd "$tmp" && dtctl report small) | grep -qx "./job-$job.html" || fail "a report by name goes to job-$job.html"

# Forecast and measurement of a step: recorded at submission, in the report and in dtctl status. The parts add up to the step.
long=$(submit --set checkpoint.dir=long --set checkpoint.every=0 --set train.steps=1000000 --set parallel.fsdp=2 --set parallel.zero=3)
has_forecast() { dtctl status "$long" | grep -q "^  Forecast   step [0-9.]* m\?s, forecast [0-9.]* m\?s"; }
wait_for 60 "forecast and measurement in dtctl status" has_forecast
report "$long" | jq .step >"$tmp/step"
jq -e '.workers == 2 and .forecast_s > 0 and ([.parts[].part] | index("compute") and index("params") and index("grads") and index("update"))' \
  "$tmp/step" >/dev/null || { cat "$tmp/step"; fail "parts of forecast and measurement are missing"; }
jq -e '([.parts[].measured_s] | add) / .step_s | . > 0.98 and . < 1.02' "$tmp/step" >/dev/null || { cat "$tmp/step"; fail "the parts are not the step"; }
grep -q "Forecast and measurement" "$tmp/$long.html" || fail "the report has no forecast of the step"
dtctl cancel "$long" >/dev/null

bad=$(submit --set checkpoint.dir=bad --set train.lr=1000 --set train.clip=0 --set train.weight_decay=100 --set train.warmup=0 --set checkpoint.every=0 --set train.nan=skip --set train.nan_limit=30)
wait_for 60 "the end of job $bad" ended "$bad"
report "$bad" | jq -e '[.advice[].rule] | index("not_finite")' >/dev/null || fail "no advice about a loss that is not finite"

printf '#!/bin/sh\nexit 3\n' >"$tmp/fails" && chmod +x "$tmp/fails"
command=$(dtctl run --workers-per-node 1 --max-restarts 0 --detach -o json "$tmp/fails" | jq -r .job)
wait_for 60 "the end of job $command" ended "$command"
report "$command" >/dev/null || fail "no report of a command that failed at its start"
grep -q "No step is complete yet" "$tmp/$command.html" || fail "the report of a command has steps"

dtctl report "$job" --to "$tmp/json" 2>"$tmp/err" && fail "a report in a folder that is a file"
grep -q "Name a file that ends in .html or .pdf, or a folder" "$tmp/err" || { cat "$tmp/err"; fail "the message has no remedy"; }

# run.report: after each kind of end, with the state that the job ended with.
ends() { # STATE WORDS SET...
  local state=$1 words=$2 one
  shift 2
  one=$(submit --set run.report="$tmp/made/reports" --set checkpoint.dir="$state" "$@")
  if [ "$state" = canceled ]; then
    wait_for 30 "step 10" reached "$one" 10
    dtctl cancel "$one" >/dev/null
  fi
  wait_for 60 "the end of job $one" ended "$one"
  is_state "$one" "$state" || fail "job $one is not $state"
  wait_for 20 "the report of job $one" test -e "$tmp/made/reports/job-$one.html"
  grep -q "<td>State</td><td>$state: [^<]*$words" "$tmp/made/reports/job-$one.html" ||
    { grep "<td>State" "$tmp/made/reports/job-$one.html"; fail "the report of a job that is $state"; }
  wait_for 10 "the end of dtctl report" eval "! pgrep -f 'dtctl report $one --to $tmp/made'"
}
ends "done" "all steps done"
ends canceled "" --set train.steps=100000
ends failed "" --set train.lr=1000 --set train.clip=0 --set train.weight_decay=100 --set train.warmup=0 --set train.nan=stop --set train.steps=200
now=$(submit --set train.steps=100000 --set checkpoint.dir=now)
dtctl report "$now" --to "$tmp/now.html" --wait 1 2>"$tmp/err" && fail "--wait returned before the end"
grep -q "job $now has not ended within 1 s" "$tmp/err" || { cat "$tmp/err"; fail "--wait has no message"; }
[ ! -e "$tmp/now.html" ] || fail "a report after --wait timed out"
dtctl cancel "$now" >/dev/null
dtctl report "$now" --to "$tmp/now.html" --wait 30 >/dev/null || fail "--wait"
grep -q "<td>State</td><td>canceled" "$tmp/now.html" || fail "the report came before the end"

cp "$DTD_BIN/dtctl" "$tmp/alone"
"$tmp/alone" report "$job" --to "$tmp/x.pdf" 2>"$tmp/err" && fail "a PDF without the module"
grep -q "PDF needs the package dtd-report; --to FILE.html needs no package" "$tmp/err" || { cat "$tmp/err"; fail "no remedy"; }
[ ! -e "$tmp/x.pdf" ] || fail "a failed report left a file"
"$tmp/alone" report "$job" --to "$tmp/x.html" >/dev/null || fail "HTML needs the module"

command -v pdftotext >/dev/null || skip "PDF: pdftotext is not installed (Debian: poppler-utils)"
dtctl report "$job" --to "$tmp/x.pdf" >/dev/null
pdftotext -layout "$tmp/x.pdf" "$tmp/pdf.txt"
pages=$(pdfinfo "$tmp/x.pdf" | awk '$1 == "Pages:" {print $2}')
[ "$(grep -c "page [0-9]* of $pages\$" "$tmp/pdf.txt")" = "$pages" ] || fail "not every page has its number"
productive=$(jq .ledger.parts_ms.productive "$tmp/json" | awk '{printf "%.1f", $1 * 1e-3}') # rounded as the report does
grep -Eq "^ *Productive +$productive" "$tmp/pdf.txt" || { grep Productive "$tmp/pdf.txt"; fail "PDF and JSON differ: $productive"; }
