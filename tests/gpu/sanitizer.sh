# compute-sanitizer over the case table: memcheck, racecheck, initcheck, synccheck.
: "${DTD_BIN:?}"
program=$(dirname "$DTD_BIN")/tests/gpu.test_cases
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no GPU"; exit 77; }
command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer in PATH"; exit 77; }
for tool in memcheck racecheck initcheck synccheck; do
  compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 20 "$program" 2>&1 | tail -n 30
  [ "${PIPESTATUS[0]}" -eq 0 ] || { echo "FAILED: $tool"; exit 1; }
done
