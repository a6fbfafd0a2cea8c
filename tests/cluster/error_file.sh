# error_file.sh: the exception that a script recorded in TORCHELASTIC_ERROR_FILE is shown by `dtctl run` and `dtctl why`.
# The earliest error is shown, also if its worker ends after another; an attempt does not see the error of an earlier one.
. "$(dirname "$0")/lib.sh"
up
cd "$tmp"
last() { dtctl status -o json | jq -r '.[-1].job'; }
cat >fail.sh <<'X'
record() { # MESSAGE SECONDS
  printf '{"message": {"message": "%s", "extraInfo": {"py_callstack": "Traceback:\\n  at line 7", "timestamp": "%s"}}}' \
    "$1" "$2" >"$TORCHELASTIC_ERROR_FILE"
}
[ ! -s "$TORCHELASTIC_ERROR_FILE" ] || echo "the file of an earlier attempt"
now=$(date +%s)
case $TORCHELASTIC_RESTART_COUNT-$RANK in
  0-0) record "the consequence" "$now"; sleep 0.5; exit 1 ;;
  0-1) trap 'exit 1' TERM; record "sample 4711 is broken" $((now - 100)); sleep 60 & wait ;;
  1-0) exit 3 ;;
  1-1) sleep 60 ;;
esac
X
rc=0
TORCHELASTIC_ERROR_FILE=/outer dtctl run --workers-per-node 2 --max-restarts 1 -- sh fail.sh >said || rc=$?
[ $rc = 4 ] || fail "exit status $rc"
! grep -q "earlier attempt" said || fail "$(cat said)"
dtctl why "$(last)" -o json >why
jq -r '.[0].error' why | grep -q "^rank 1 at 20..-.*Z: sample 4711 is broken" || fail "$(cat why)"
jq -r '.[0].error' why | grep -q "^  at line 7" || fail "$(cat why)"
[ "$(jq -r '.[1].error // "none"' why)" = none ] || fail "the second incident has the error of the first: $(cat why)"
dtctl why "$(last)" | grep -q "rank 1 at .*sample 4711" || fail "$(dtctl why "$(last)")"

cat >raise.py <<'X'
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("sample 4711 of shard 12 is broken")
main()
X
[ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import torch' 2>/dev/null || skip "record of PyTorch: no PyTorch (DTD_TORCH_PYTHON)"
rc=0
dtctl run -- "$DTD_TORCH_PYTHON" raise.py >said || rc=$?
[ $rc = 4 ] || fail "exit status $rc: $(cat said)"
grep -A1 "the first error of a worker:" said | grep -q "rank 0 at .*Z: ValueError: sample 4711 of shard 12 is broken" || fail "$(cat said)"
grep -q '^  .*raise ValueError("sample 4711' said || fail "no traceback: $(cat said)"
dtctl why "$(last)" -o json | jq -r '.[0].error' | grep -q 'raise.py' || fail "$(dtctl why "$(last)")"
