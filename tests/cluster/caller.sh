# caller.sh: a command inherits from the caller of `dtctl run` what a program inherits over execve, and nothing from the
# daemon: variables, arguments, umask, limits, ignored and blocked signals, cores. The same program, started without dtd,
# is the oracle.
. "$(dirname "$0")/lib.sh"
mkdir "$tmp/work"
cat >"$tmp/as.py" <<'P'
"""as.py caller|daemon PROGRAM ARGUMENT...: executes the program with unusual settings and variables."""
import ctypes, os, resource, signal, sys
role, argv = sys.argv[1], [os.fsencode(a) for a in sys.argv[2:]]
signal.signal(signal.SIGXFSZ, signal.SIG_DFL) # the interpreter ignores these two
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
given = [b'%s=%s' % (k, v) for k, v in os.environb.items()]
if role == 'daemon':
    os.umask(0o077)
    given += [b'LEAK=1', b'RANK=7', b'PYTHONPATH=/old', b'CUDA_VISIBLE_DEVICES=0']
    for s in signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD:
        if s != signal.SIGCHLD: # dtd itself needs it
            signal.signal(s, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
else:
    os.umask(0o027)
    os.nice(3)
    for s in signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT, 40:
        signal.signal(s, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR2, signal.SIGRTMAX])
    for kind, soft, hard in ('CORE', 4096, 8192), ('STACK', 4 << 20, 8 << 20), ('NOFILE', 333, 1000), ('CPU', 5000, 6000):
        resource.setrlimit(getattr(resource, 'RLIMIT_' + kind), (soft, hard))
    given += [b'TWICE=1', b'BETWEEN=', b'TWICE=2', b'BASH_FUNC_f%%=() { :; }', b'a.b-c d=x', b'9=nine', b'LATIN=\xe4\xff',
              b'BELLS=\x01\x02\x07\x1b[1m\x7f', b'LINES=a\nb: c\n', b'PERCENT=%41%', b'MASTER_PORT=1', b'RANK=9', b'PWD=/not/here',
              b'N' * 3000 + b'=long', b'noequals'] + [b'V%d=%d' % (i, i) for i in range(1500)]
def strings(words):
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)
path = next(p for d in os.environ['PATH'].split(':') for p in [os.path.join(os.fsencode(d), argv[0])] if os.access(p, os.X_OK)) if b'/' not in argv[0] else argv[0]
ctypes.CDLL(None, use_errno=True).execve(path, strings(argv), strings(given))
sys.exit(os.strerror(ctypes.get_errno()))
P
as() { (cd "$tmp/work" && exec python3 "$tmp/as.py" "$@"); }
n=0
# same PROGRAM ARGUMENT...: compares its output with that of the same program without dtd.
same() {
  n=$((n + 1))
  as caller "$@" >"$tmp/right" 2>&1
  as caller "$DTD_BIN/dtctl" run -- "$@" >"$tmp/said" 2>&1 || fail "$* $(tail -n 5 "$tmp/said")"
  cmp "$tmp/right" "$DTD_DIR/jobs/$n/rank-0.log" || fail "$*: $(diff -a "$tmp/right" "$DTD_DIR/jobs/$n/rank-0.log" | head -n 20)"
}
as daemon "$DTD_BIN/dtctl" up >/dev/null

same grep -E 'Umask|Sig(Ign|Blk)|Cpus_allowed_list' /proc/self/status
same cat /proc/self/limits
same nice
same printf '%s|' $'\xe4\xff' '' '%41 %' $'\x01\x02 \n\t\x7f' 'ä'

# Variables: those of torchrun are replaced, all others are as they were, in their order.
own='DTD_PROCESS|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_NAME|ROLE_RANK|ROLE_WORLD_SIZE|TORCHELASTIC_[A-Z_]*|TORCH_NCCL_ASYNC_ERROR_HANDLING|PYTHONUNBUFFERED'
others() { LC_ALL=C grep -zavE "^($own)=" | tr '\0' '\n'; }
n=$((n + 1))
as caller cat /proc/self/environ | others >"$tmp/right"
[ "$(wc -l <"$tmp/right")" -gt 1500 ] || fail "the test has too few variables"
as caller "$DTD_BIN/dtctl" run -- cat /proc/self/environ >"$tmp/said" 2>&1 || fail "$(cat "$tmp/said")"
others <"$DTD_DIR/jobs/$n/rank-0.log" >"$tmp/got"
cmp "$tmp/right" "$tmp/got" || fail "$(diff -a "$tmp/right" "$tmp/got" | head -n 20)"
tr '\0' '\n' <"$DTD_DIR/jobs/$n/rank-0.log" >"$tmp/got"
[ "$(grep -aE "^($own)=" "$tmp/got" | cut -d= -f1 | sort | uniq -d)" = "" ] || fail "a variable of a rank is there twice"
grep -aqx RANK=0 "$tmp/got" || fail "no RANK"

# --env replaces a variable that is there several times.
n=$((n + 1))
as caller "$DTD_BIN/dtctl" run --env TWICE=3 --env $'NEW=\xe4' -- cat /proc/self/environ >"$tmp/said" 2>&1 || fail "$(cat "$tmp/said")"
[ "$(tr '\0' '\n' <"$DTD_DIR/jobs/$n/rank-0.log" | LC_ALL=C grep -aE '^(TWICE|NEW)=' | sort)" = $'NEW=\xe4\nTWICE=3' ] || fail "--env"

# A job file has no caller: no signal is ignored, and the rest is the daemon's.
cat >"$tmp/work/file.yaml" <<'Y'
name: file
command: [sh, -c, 'grep SigIgn /proc/self/status; umask; env | grep -E "^LEAK|^DTD_COMMAND"']
Y
n=$((n + 1))
dtctl submit "$tmp/work/file.yaml" >/dev/null
[ "$(cat "$DTD_DIR/jobs/$n/rank-0.log")" = $'SigIgn:\t0000000000000000\n0077\nLEAK=1' ] || fail "$(cat "$DTD_DIR/jobs/$n/rank-0.log")"

# Cores are bound only on request: two workers may use every core that the caller may use.
as caller grep Cpus_allowed_list /proc/self/status >"$tmp/right"
n=$((n + 1))
as caller "$DTD_BIN/dtctl" run --workers-per-node 2 -- grep Cpus_allowed_list /proc/self/status >"$tmp/said" 2>&1 || fail "$(cat "$tmp/said")"
cmp "$tmp/right" "$DTD_DIR/jobs/$n/rank-0.log" && cmp "$tmp/right" "$DTD_DIR/jobs/$n/rank-1.log" || fail "the cores are not the caller's"
printf 'name: bound\ncommand: [grep, Cpus_allowed_list, /proc/self/status]\nrun: {threads: 1}\n' >"$tmp/work/file.yaml"
n=$((n + 1))
dtctl submit "$tmp/work/file.yaml" >/dev/null
grep -qxE $'Cpus_allowed_list:\t[0-9]+' "$DTD_DIR/jobs/$n/rank-0.log" || fail "run.threads: $(cat "$DTD_DIR/jobs/$n/rank-0.log")"

# A dtd that must not raise a limit reports the limit that the command does not get.
dtctl down >/dev/null
command -v setpriv >/dev/null || skip "setpriv is not installed (util-linux): the limits of a dtd without privileges are not tested"
[ "$(id -u)" = 0 ] && drop="setpriv --bounding-set -sys_resource" || drop=
$drop prlimit --nofile=300:300 "$DTD_BIN/dtctl" up >/dev/null
n=$((n + 1))
(cd "$tmp/work" && prlimit --nofile=333:400 "$DTD_BIN/dtctl" run -- sh -c 'ulimit -Sn; ulimit -Hn') >"$tmp/said" 2>&1 || fail "$(cat "$tmp/said")"
log=$(ls -t "$DTD_DIR"/jobs/*/rank-0.log | head -n 1)
[ "$(tail -n 2 "$log" | xargs)" = "300 300" ] && grep -q "the limit nofile is 300, not 333" "$log" || fail "$(cat "$log")"
