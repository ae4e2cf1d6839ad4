"""A git server for tests: smart HTTP by `git http-backend`, with a password if one is given.

With a gate, packs stop half-way for as long as that file is there; the log says `half`.
"""

import base64
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT, LOG, PASSWORD = sys.argv[1:4]
GATE = sys.argv[4] if len(sys.argv) > 4 else ""
EXPECTED = "Basic " + base64.b64encode(PASSWORD.encode()).decode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def note(self, status):
        with open(LOG, "a") as log:
            log.write(f"{status} {self.command} {self.path}\n")

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status, headers, content):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2 if GATE and b"PACK" in content else 0
        if half:
            self.wfile.write(content[:half])
            self.wfile.flush()
            self.note("half")
            while os.path.exists(GATE):
                time.sleep(0.01)
        self.wfile.write(content[half:])
        self.note(status)

    def do_GET(self):
        body = self.body()
        if PASSWORD and self.headers.get("Authorization") != EXPECTED:
            self.answer(401, [("WWW-Authenticate", 'Basic realm="x"')], b"")
            return
        path, _, query = self.path.partition("?")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": ROOT,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().split("\r\n") if line]
        headers = [(line[0], line[1]) for line in lines if len(line) == 2]
        status = next((int(v.split()[0]) for n, v in headers if n == "Status"), 200)
        self.answer(status, [(n, v) for n, v in headers if n != "Status"], content)

    do_POST = do_GET


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
# Clients that are killed are what some tests are about.
server.handle_error = lambda *_: None
print(server.server_port, flush=True)
server.serve_forever()
