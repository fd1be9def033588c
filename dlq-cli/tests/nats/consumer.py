"""A consumer of somebody else's, in another language: fetches from a durable consumer of JetStream, one message at a time.

Refuses what begins with `bad` until the file FIXED exists; appends what it handles to the file HANDLED, a line each.
"""

import os
import socket
import sys

host, port, stream, durable, fixed, handled = sys.argv[1:]
connection = socket.create_connection((host, int(port)))
lines = connection.makefile("rb")
lines.readline()
# Others that run at the same time have inboxes of their own.
INBOX = f"_INBOX.python.{os.getpid()}"
FETCH = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"


def say(text, payload=b""):
    connection.sendall(text.encode() + b"\r\n" + payload)


def publish(subject, payload, reply=""):
    say(f"PUB {subject} {reply} {len(payload)}", payload + b"\r\n")


def fetch():
    publish(FETCH, b'{"batch":1,"expires":5000000000}', INBOX)


say('CONNECT {"verbose":false,"headers":true}')
say(f"SUB {INBOX} 1")
fetch()
while True:
    line = lines.readline().split()
    if not line:
        sys.exit("the server is gone")
    if line[0] == b"PING":
        say("PONG")
    if line[0] not in (b"MSG", b"HMSG"):
        continue
    total = int(line[-1])
    headers = int(line[-2]) if line[0] == b"HMSG" else 0
    body = lines.read(total + 2)[:total]
    # Subject, subscription and reply subject; a status has no reply.
    reply = line[3].decode() if len(line) == (6 if headers else 5) else ""
    if not reply.startswith("$JS.ACK"):
        fetch()
        continue
    payload = body[headers:]
    if payload.startswith(b"bad") and not os.path.exists(fixed):
        publish(reply, b"-NAK")
    else:
        with open(handled, "ab") as file:
            file.write(payload + b"\n")
        publish(reply, b"+ACK")
    fetch()
