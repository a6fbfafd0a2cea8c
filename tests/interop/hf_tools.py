"""What the tests of Hugging Face models share: dtctl, which is the first argument, and the tools that read lines of tokens."""
import subprocess
import sys

DTCTL = sys.argv[1]


def fail(text):
    sys.exit(text)


def dtctl(*args):
    done = subprocess.run([DTCTL] + list(args), capture_output=True, text=True)
    if done.returncode:
        fail("dtctl %s: %s" % (" ".join(args), done.stderr))
    return done.stdout


def refused(what, part, *args):
    done = subprocess.run([DTCTL] + list(args), capture_output=True, text=True)
    if not done.returncode or part not in done.stderr:
        fail("%s: %r is not in %r" % (what, part, done.stderr))
    print("%s: refused" % what)


def tool(program, args, lines):
    text = "".join(" ".join(map(str, line)) + "\n" for line in lines)
    done = subprocess.run([program] + args, input=text, capture_output=True, text=True)
    if done.returncode:
        fail(done.stderr)
    return done.stdout.splitlines()
