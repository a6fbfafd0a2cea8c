"""Clients that send a byte now and then, so that they are never silent, and never complete a request. dtd-web closes their connections
after 30 s. A client that listens to a stream, and one that asks from time to time, keep theirs."""
import socket
import time

from dtd import Browserless, Dtd, check

dtd = Dtd()
web = dtd.start_web()
token = web["address"].split("#token=")[1]
host, port = Browserless(web["url"]).host.split(":")
METRICS = f"GET /metrics HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def connect(first=b""):
    s = socket.create_connection((host, int(port)), timeout=10)
    s.sendall(first)
    return s


def is_closed(s):
    s.settimeout(0.01)
    try:
        return s.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def drip(s, data):
    try:
        s.sendall(data)
    except ConnectionError:
        pass


header = connect(b"GET / HTTP/1.1\r\nX-Slow: ")
body = connect(f"POST /login HTTP/1.1\r\nHost: {host}:{port}\r\nX-DTD: 1\r\nContent-Length: 1000\r\n\r\n".encode())
asking = connect()
began = time.monotonic()
closed = {}
while len(closed) < 2 and time.monotonic() - began < 60:
    for name, s in {"header": header, "body": body}.items():
        drip(s, b"x")
        if name not in closed and is_closed(s):
            closed[name] = time.monotonic() - began
    asking.settimeout(10)
    asking.sendall(METRICS)
    answer = b""
    while b"dtd_build_info" not in answer:
        answer += asking.recv(65536)
    asking.settimeout(0.3)
    try:
        while asking.recv(65536):
            pass
    except TimeoutError:
        pass
    time.sleep(0.5)
print({name: round(s, 1) for name, s in closed.items()})
check(set(closed) == {"header", "body"}, "both slow clients are closed")
check(all(29 <= s <= 45 for s in closed.values()), "after 30 s")
