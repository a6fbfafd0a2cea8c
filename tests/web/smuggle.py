"""Requests whose length can be read in two ways. Behind a proxy that reads them in the other way, the rest would be a request of another
user; so dtd-web answers such a request with an error and closes the connection, or reads no further request from it."""
import re
import socket

from dtd import Browserless, Dtd, check

dtd = Dtd()
web = dtd.start_web()
token = web["address"].split("#token=")[1]
host, port = Browserless(web["url"]).host.split(":")
SECOND = f"GET /metrics HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"


def ask(text):
    """The status codes of all answers, and whether /metrics was served."""
    with socket.create_connection((host, int(port)), timeout=1) as s:
        s.sendall(text.encode("latin1"))
        got = b""
        try:
            while block := s.recv(65536):
                got += block
        except (TimeoutError, ConnectionResetError):
            pass
    return re.findall(rb"HTTP/1\.[01] (\d+) ", got), b"dtd_build_info" in got


def post(headers, body):
    return f"POST /login HTTP/1.1\r\nHost: {host}:{port}\r\nX-DTD: 1\r\n{headers}\r\n{body}"


chunks = "b\r\n{\"token\":1}\r\n0\r\n\r\n"
check(ask(post("Content-Length: 11\r\n", '{"token":1}') + SECOND) == ([b"403", b"200"], True), "two requests have two answers")
check(ask(post("Transfer-Encoding: chunked\r\n", chunks) + SECOND) == ([b"403", b"200"], True), "also with a body in chunks")
pairs = {
    "both lengths": ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
    "both, the other way": ("Transfer-Encoding: chunked\r\nContent-Length: 11\r\n", chunks),
    "two lengths": ("Content-Length: 0\r\nContent-Length: 11\r\n", ""),
    "a list of lengths": ("Content-Length: 0, 11\r\n", ""),
    "a sign": ("Content-Length: +0\r\n", ""),
    "below 0": ("Content-Length: -1\r\n", ""),
    "hexadecimal": ("Content-Length: 0x0\r\n", ""),
    "too long": ("Content-Length: 99999999999999999999999\r\n", ""),
    "an unknown coding": ("Transfer-Encoding: xchunked\r\n", ""),
    "two codings": ("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
    "a control character": ("Transfer-Encoding:\x0bchunked\r\n", "0\r\n\r\n"),
    "a space before the colon": ("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
    "a chunk above all sizes": ("Transfer-Encoding: chunked\r\n", "ffffffffffffffff0\r\n\r\n"),
    "a sign of a chunk": ("Transfer-Encoding: chunked\r\n", "+0\r\n\r\n"),
}
served = {name: answers for name, (headers, body) in pairs.items() for answers, metrics in [ask(post(headers, body) + SECOND)] if metrics}
check(ask(post(*pairs["both lengths"]) + SECOND)[0] == [b"400"], "two lengths are an error")
check(not served, f"{len(pairs)} pairs have no second answer (but: {served})")
