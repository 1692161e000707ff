# SPDX-License-Identifier: Apache-2.0
"""A gateway on free ports, its rules over REST by curl, and requests through it."""
import collections
import hashlib
import http.client
import json
import os
import random
import socket
import subprocess
import tempfile

from fairlead_system import Program, metrics

SHA = "x-fairlead-engine-body-sha256"
JSON = "application/json"
UNAVAILABLE = b'{"error":"epp_unavailable","detail":"the endpoint picker did not answer"}'
NO_ENDPOINT = b'{"error":"epp_no_endpoint","detail":"the endpoint picker named no usable endpoint"}'

Reply = collections.namedtuple("Reply", "status fields body")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def split(endpoint):
    host, port = endpoint.rsplit(":", 1)
    return host, int(port)


class Gateway:
    def __init__(self, args=()):
        self.folder = tempfile.mkdtemp(prefix="fairlead-gateway-")
        self.program = Program(["gateway", "--port", "0", *args], self.folder, "gateway")
        self.base = f"http://{self.program.listeners['rest']}/netlox/v1"

    def rest(self, method, path, data=None, media=JSON):
        """What curl gets: (status, media type, body)."""
        out = os.path.join(self.folder, "body")
        args = ["curl", "-sS", "-X", method, "-o", out, "-w", "%{http_code} %{content_type}", self.base + path]
        if data is not None:
            args += ["-H", "content-type: " + media, "--data-binary", data if isinstance(data, str) else json.dumps(data)]
        open(out, "wb").close()
        done = subprocess.run(args, capture_output=True, text=True, timeout=20, check=True)
        status, _, kind = done.stdout.partition(" ")
        with open(out) as file:
            return int(status), kind, file.read()

    def add(self, endpoints, **service):
        """Posts a rule on a free port; returns that port."""
        for _ in range(20):
            port = free_port()
            status, _, text = self.rest("POST", "/config/loadbalancer", self.rule(endpoints, port, **service))
            if status == 400 and "cannot bind" in text:
                continue  # somebody took the port meanwhile
            assert (status, text) == (200, '{"result":"Success"}'), (status, text)
            return port
        raise SystemExit("no free port for a rule")

    @staticmethod
    def rule(endpoints, port, **service):
        return {"endpoints": [{"endpointIP": split(e)[0], "targetPort": split(e)[1], "weight": 1} for e in endpoints],
                "serviceArguments": {"externalIP": "127.0.0.1", "port": port, "protocol": "tcp", "mode": 4, "sel": 0, **service}}

    def metrics(self):
        return metrics(self.program.listeners["rest"] + "/netlox/v1")

    def outcomes(self):
        """{outcome: questions to pickers that ended so}, without the zeros."""
        head = 'loxilb_ai_epp_requests_total{outcome="'
        return {k[len(head):-2]: int(v) for k, v in self.metrics().items() if k.startswith(head) and v > 0}

    def stop(self):
        code = self.program.stop()
        if code != 0:
            raise SystemExit(f"gateway ended with {code}: {open(self.program.log).read()[-3000:]}")


def ask(port, body=None, path="/v1/completions", fields=(), pieces=None, method=None, timeout=30):
    """One request on a connection of its own. `pieces`: sends the body chunked, as these pieces."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    method = method or ("GET" if body is None and pieces is None else "POST")
    try:
        connection.request(method, path, pieces if pieces is not None else body, {"content-type": JSON, **dict(fields)},
                           encode_chunked=pieces is not None)
        answer = connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def completion(words, stream=False, tokens=4, size=0):
    """Odd on purpose: a re-encoded body has another digest."""
    text = '{ "model":"m" ,"max_tokens": %d,\t"seed":9007199254740993, "prompt":"%s"%s' % (
        tokens, words, ',"stream" : true' if stream else "")
    if size > len(text):
        text += ',"x_pad":"' + "p" * (size - len(text) - 13) + '"'
    return (text + "}\n").encode()


def check_served(reply, body, stream=False):
    assert reply.status == 200, reply
    assert reply.fields[SHA] == hashlib.sha256(body).hexdigest(), (len(body), "the engine got another body")
    if stream:
        assert reply.body.endswith(b"data: [DONE]\n\n"), reply.body[-100:]
    else:
        assert json.loads(reply.body)["usage"]["completion_tokens"] >= 1


def check_refused(reply, body):
    """A 503 of gateway.md 9.7, to the byte."""
    assert reply.status == 503 and reply.body == body, reply
    assert reply.fields["content-type"] == JSON and reply.fields["retry-after"] == "1", reply.fields


def words_of(rnd, count=20):
    return " ".join(f"w{rnd.randrange(10 ** 6)}" for _ in range(count))


def seeded(*parts):
    return random.Random("/".join(map(str, parts)))
