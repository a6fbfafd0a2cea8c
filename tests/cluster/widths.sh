# widths.sh: on a terminal of 80 and of 40 columns, status, metrics, the pages of a job and of the node, and the progress
# of a job fit into its width. Escape sequences in the text that a model has learned do not reach a terminal.
. "$(dirname "$0")/lib.sh"
up
write_job
cd "$tmp"
cat >terminal.py <<'X'
"""terminal.py COLUMNS COMMAND...: runs the command on a terminal and writes what it prints."""
import fcntl, os, pty, struct, sys, termios
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 24, int(sys.argv[1]), 0, 0))
    os.environ['TERM'] = 'xterm'
    os.execvp(sys.argv[2], sys.argv[2:])
while True:
    try:
        data = os.read(fd, 65536)
    except OSError:
        break
    sys.stdout.buffer.write(data)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
X
on_terminal() { python3 terminal.py "$@" | tr '\r' '\n' | sed 's/\x1b\[[0-9;]*[a-zA-Z]//g'; }
fits() { # COLUMNS WHAT
  ! awk -v w="$1" 'length($0) > w { print; bad = 1 } END { exit !bad }' said || fail "$2 at $1 columns: $(cat said)"
}
for columns in 80 40; do
  on_terminal $columns "$DTD_BIN/dtctl" submit job.yaml --set name=a-long-name-of-a-job --set checkpoint.dir=at-$columns >said || fail "$(cat said)"
  grep '/[0-9]*  .*ETA' said >line || fail "no progress with an ETA: $(cat said)"
  mv said all && mv line said
  fits $columns progress
  grep -q 'loss [0-9]' said || fail "no loss: $(cat said)"
  on_terminal $columns "$DTD_BIN/dtctl" metrics "$(dtctl status -o json | jq -r '.[-1].job')" >said
  fits $columns metrics
  grep -q "STEP *LOSS" said || fail "$(cat said)"
  on_terminal $columns "$DTD_BIN/dtctl" status >said
  fits $columns status
  grep -q '^ *1  a-lon' said || fail "no name at $columns: $(cat said)"
  [ "$(tail -n +2 said | tr -s ' \n' ' ' | grep -o 'all steps done' | wc -l)" = "$(dtctl status -o json | jq length)" ] || fail "reasons at $columns: $(cat said)"
  ! grep -q RESTARTS said || [ $columns = 80 ] || fail "all columns at $columns: $(cat said)"
done
# A path or a name is one word, which can be copied, and may be longer than a line.
job=$(dtctl run --detach -o json --workers-per-node 3 --name n-0123456789012345678901234567890123456789012345678901234567890 -- sleep 60 | jq -er .job)
wait_for 20 "three workers" is_state "$job" running
for columns in 80 40; do
  for page in "status 1" "status $job" node status; do
    on_terminal $columns "$DTD_BIN/dtctl" $page | grep -v '^ *[^ ]*$' >said
    fits $columns "$page"
  done
  on_terminal $columns "$DTD_BIN/dtctl" status 1 | tr -s ' \n' ' ' >said
  dtctl status 1 | tr -s ' \n' ' ' | cmp - said || fail "the page at $columns has other words: $(cat said)"
done
dtctl cancel "$job" >/dev/null
[ "$(dtctl status 1 | wc -L)" -gt 80 ] || fail "a pipe gets whole lines"
[ "$(dtctl metrics 1 | head -n 1 | wc -w)" = 11 ] || fail "a pipe gets all columns"

# A prompt with an escape sequence, and a hot model of bytes, which writes any of them.

dtctl submit job.yaml --set name=escapes --set checkpoint.dir=escapes >said || fail "$(cat said)"
python3 terminal.py 80 "$DTD_BIN/dtctl" generate escapes --prompt $'x\033[2J' --tokens 200 --temperature 4 >said || fail "$(cat said)"
! tr -d '\r\n' <said | LC_ALL=C grep -q $'[\001-\010\013-\037\177]' || fail "control characters on a terminal: $(od -c said | head)"
dtctl generate escapes --prompt $'x\033[2J' --tokens 200 --temperature 4 >said
LC_ALL=C grep -q $'\033' said || fail "the text in a file is not what the model has made: $(cat said)"
