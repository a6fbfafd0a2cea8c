# Garbage, oversized and truncated frames on the control socket and on a job's io socket: these connections are closed, and
# nothing else is disturbed.
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || skip "no python3 to speak with a raw socket"
write_job
up
job=$(submit --set train.steps=100000 --set checkpoint.every=0)
wait_for 60 "steps" reached "$job" 10
control=$(pid_of control) io=$(pid_of io)
python3 - "$DTD_DIR/control.sock" "$DTD_DIR/jobs/$job/io.sock" <<'X'
import os, random, socket, struct, sys
random.seed(7)
good = struct.pack('<IBBHQII', 0x31445444, 1, 1, 1, 1, 1000, 8) + b'\x0a\x06abcdef'
frames = [b'', b'\0', os.urandom(24), os.urandom(4096),
          struct.pack('<IBBHQII', 0x31445444, 1, 1, 1, 1, 0, 0xffffffff) + b'x' * 65536,   # oversized
          struct.pack('<IBBHQII', 0x31445444, 9, 1, 1, 1, 0, 0),                           # another version
          struct.pack('<IBBHQII', 0x31445444, 1, 77, 1, 1, 0, 0),                          # an unknown kind
          struct.pack('<IBBHQII', 0x31445444, 1, 2, 1, 99, 0, 0)]                          # an answer without a call
hostile = set(frames[4:8])   # invalid headers: the server closes the connection before it reads more
frames += [good[:n] for n in range(len(good))]
frames += [bytes(b ^ (1 << random.randrange(8)) if random.random() < .1 else b for b in good) for _ in range(100)]
for path in sys.argv[1:]:
    for f in frames:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(5)
        s.connect(path)
        try:
            s.sendall(f)
            if f not in hostile:
                s.shutdown(socket.SHUT_WR)
            while s.recv(4096):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass
        except socket.timeout:
            sys.exit(f'{path}: a connection that sent {f[:24].hex()} was left open')
        s.close()
print(len(frames) * (len(sys.argv) - 1), 'hostile connections')
X
at=$(step "$job")
wait_for 30 "more steps" reached "$job" $((at + 20))
[ "$(pid_of control)" = "$control" ] || fail "control was started again"
[ "$(pid_of io)" = "$io" ] || fail "io was started again"
[ "$(status "$job" | jq .epoch)" = 1 ] || fail "the epoch ended"
