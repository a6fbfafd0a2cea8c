# Sourced after lib.sh: a small worker that waits for the other ranks in the store of its attempt, and then writes a file.
mkdir -p "$tmp/work"
touch "$tmp/hold"
cat >"$tmp/worker.py" <<'X2'
"""worker.py FOLDER [HOLD]: adds itself to the store, waits for all ranks, and fails if the store has counted more. Then it
writes its environment to a file in FOLDER, and exits with 0 as soon as there is no file HOLD."""
import json, os, socket, struct, sys, time
e, folder = os.environ, sys.argv[1]
rank, world = int(e['RANK']), int(e['WORLD_SIZE'])
s = socket.create_connection((e['MASTER_ADDR'], int(e['MASTER_PORT'])), 20)
s.sendall(bytes.fromhex('00cef7853c'))
def add(n):
    s.sendall(b'\x04' + struct.pack('<Q', 1) + b'n' + struct.pack('<q', n))
    return struct.unpack('<q', s.recv(8, socket.MSG_WAITALL))[0]
there = add(1)
while there < world:
    time.sleep(0.02)
    there = add(0)
if there != world:
    sys.exit('the store has been used')
os.makedirs(folder, exist_ok=True)
name = '%s/%d-of-%d-restart-%s' % (folder, rank, world, e['TORCHELASTIC_RESTART_COUNT'])
with open(name + '.tmp', 'w') as f:
    mask = os.umask(0o77)
    json.dump({**e, 'cwd': os.getcwd(), 'umask': '%03o' % mask}, f)
with open('%s/pids' % folder, 'a') as f:
    f.write('%d\n' % os.getpid())
os.rename(name + '.tmp', name)
print('rank', rank, 'is in', flush=True)
while len(sys.argv) > 2 and os.path.exists(sys.argv[2]):
    time.sleep(0.05)
X2
all_in() { [ "$(ls "$1" | grep -c -- "-of-$2-restart-$3\$")" = "$2" ]; } # all_in FOLDER WORLD RESTART
status_epoch() { status "$1" | jq -e ".epoch >= $2 and .state == \"running\""; }
third_attempt() { [ "$(wc -l <"$1/pids")" = 9 ]; }
