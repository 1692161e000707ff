#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# peers: envoy python-grpc
"""Envoy in front of `fairlead epp` with the modes of gaie.md 1.5, EPP once plaintext and once TLS (epp.md case 33).

200 unary and 200 SSE requests with bodies that a re-encoder would change must reach the engines byte for byte, on the
engine the picker named, without one message or mutation that Envoy objects to."""
import concurrent.futures
import glob
import hashlib
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import urllib.request
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fairlead_system import System, metrics, total, wait_until

ENGINES = 3
REQUESTS = 200  # of each kind
MIB = 1 << 20
# Around the picker's piece of an echoed body, Envoy's own reads and the largest body of the case.
EDGES = [61999, 62000, 62001, 65535, 65536, 65537, 124000, 124001, MIB - 1, MIB]
SHA = "x-fairlead-engine-body-sha256"


def envoy_binary():
    """The program itself, not its Python starter: then the process id is Envoy's."""
    found = glob.glob(os.path.join(os.environ["PEERS_DIR"], "envoy/lib/python3*/site-packages/envoy/_bin/envoy"))
    return found[0] if found else os.path.join(os.environ["PEERS_DIR"], "envoy/bin/envoy")


def address(text):
    host, port = text.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}


def config(epp, secure):
    http2 = {"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
             "explicit_http_config": {"http2_protocol_options": {}}}
    picker = {"name": "epp", "type": "STATIC", "connect_timeout": "5s",
              "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
              "load_assignment": {"cluster_name": "epp", "endpoints": [
                  {"lb_endpoints": [{"endpoint": {"address": address(epp)}}]}]}}
    if secure:
        picker["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {"alpn_protocols": ["h2"]}}}
    pods = {"name": "pods", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "5s",
            "original_dst_lb_config": {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"}}
    namespaces = {"forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint", "envoy.lb"]},
                  "receiving_namespaces": {"untyped": ["envoy.lb"]}}
    ext_proc = {"name": "envoy.filters.http.ext_proc", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "epp"}, "timeout": "10s"},
        "failure_mode_allow": False, "message_timeout": "1000s", "metadata_options": namespaces,
        "processing_mode": {
            "request_header_mode": "SEND", "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND", "response_trailer_mode": "SEND"}}}
    router = {"name": "envoy.filters.http.router", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}
    manager = {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
               "stat_prefix": "front", "codec_type": "AUTO", "http_filters": [ext_proc, router],
               "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
                   {"match": {"prefix": "/"}, "route": {"cluster": "pods", "timeout": "0s"}}]}]}}
    return {"admin": {"address": address("127.0.0.1:0")},
            "static_resources": {"clusters": [picker, pods], "listeners": [
                {"name": "front", "address": address("127.0.0.1:0"), "filter_chains": [{"filters": [
                    {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]}]}}


class Envoy:
    def __init__(self, epp, secure):
        self.folder = tempfile.mkdtemp(prefix="fairlead-envoy-")
        config_path = os.path.join(self.folder, "envoy.json")
        self.admin_path = os.path.join(self.folder, "admin")
        self.log_path = os.path.join(self.folder, "log")
        with open(config_path, "w") as file:
            json.dump(config(epp, secure), file)
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [envoy_binary(), "-c", config_path, "--admin-address-path", self.admin_path, "--disable-hot-restart",
                 "--concurrency", "2", "--log-level", "warning"], stdout=log, stderr=log)
        try:
            self.admin = wait_until(self._admin_address, "Envoy's admin address", 30)
            wait_until(self._is_live, "Envoy's listener", 30)
        except SystemExit:
            self.stop()
            raise SystemExit("Envoy does not start: " + open(self.log_path).read()[-3000:])
        listeners = json.loads(self.ask("/listeners?format=json"))["listener_statuses"]
        place = listeners[0]["local_address"]["socket_address"]
        self.front = (place["address"], place["port_value"])

    def _admin_address(self):
        if self.process.poll() is not None:
            raise SystemExit("Envoy ended")
        return os.path.exists(self.admin_path) and open(self.admin_path).read().strip()

    def _is_live(self):
        try:
            return self.ask("/ready").strip() == "LIVE"
        except OSError:
            return False

    def ask(self, path):
        return urllib.request.urlopen(f"http://{self.admin}{path}", timeout=10).read().decode()

    def statistics(self):
        """{name without prefix: value} of the filter."""
        values = {}
        for line in self.ask("/stats?filter=ext_proc").splitlines():
            name, _, value = line.partition(": ")
            if name.startswith("http.front.ext_proc.") and value.isdigit():
                values[name.rsplit(".", 1)[1]] = int(value)
        return values

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


def odd_body(rnd, index, size, stream):
    """A request of exactly `size` bytes (if they suffice) that no JSON library would write again as it is."""
    space = lambda: "".join(rnd.choices(" \t\n\r", k=rnd.randrange(4)))
    words = " ".join(f"w{index}-{i}" for i in range(rnd.randrange(3, 60)))
    members = ['"seed"%s:%s9007199254740993' % (space(), space()), '"temperature":0.10', '"temperature"%s:1E-1' % space(),
               '"x_big":123456789012345678901234567890.5e-3', '"x_text":"\\u00e9\\ud83d\\ude00\\/"',
               '"max_tokens"%s:%s%d' % (space(), space(), rnd.randrange(1, 12)), '"prompt":%s"%s"' % (space(), words)]
    rnd.shuffle(members)
    members.insert(0, '"model"%s:"m"' % space())
    if stream:
        members.append('"stream"%s:%strue' % (space(), space()))
    text = space() + "{" + ("%s,%s" % (space(), space())).join(members)
    tail = "}" + rnd.choice(["", "\n", "\r\n\n", " \t\n"])
    room = size - len(text) - len(tail) - len(',"x_pad":""')
    if room >= 0:
        text += ',"x_pad":"' + "".join(rnd.choices("abcdefgh", k=min(room, 64))).ljust(room, "p") + '"'
    return (text + tail).encode()


def bodies(seed):
    """(name, body, stream) of every request of a run."""
    rnd = random.Random(seed)
    for stream in (False, True):
        for i in range(REQUESTS):
            # An empty body has no prompt: any engine gets it and refuses it, and still says what it received.
            if not stream and i < 10:
                yield f"empty-{i}", b"", False
                continue
            size = EDGES[i - 10] if 10 <= i < 10 + len(EDGES) else int(2 ** rnd.uniform(8, 20))
            yield f"{'sse' if stream else 'unary'}-{i}", odd_body(rnd, f"{seed}{stream:d}{i}", size, stream), stream


def ask(front, name, body, stream):
    connection = http.client.HTTPConnection(*front, timeout=60)
    in_pieces = zlib.crc32(name.encode()) % 3 == 0 and len(body) > 0
    data = (body[at:at + 7000] for at in range(0, len(body), 7000)) if in_pieces else body
    fields = {"content-type": "application/json", "x-request-id": name, "x-gateway-destination-endpoint": "127.0.0.1:9"}
    if not in_pieces:
        fields["content-length"] = str(len(body))
    connection.request("POST", "/v1/completions", data, fields, encode_chunked=in_pieces)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    wanted = 400 if not body else 200
    assert answer.status == wanted, (name, answer.status, text[:300], answer.getheaders())
    assert answer.getheader(SHA) == hashlib.sha256(body).hexdigest(), (name, len(body), "the engine got another body")
    if stream:
        assert answer.getheader("content-type").startswith("text/event-stream"), answer.getheaders()
        assert text.endswith(b"data: [DONE]\n\n"), (name, text[-200:])
    elif body:
        assert json.loads(text)["usage"]["completion_tokens"] >= 1
    return name


def run(secure, seed):
    system = System(engines=ENGINES, secure=secure)
    envoy = None
    try:
        envoy = Envoy(system.epp.listeners["ext_proc"], secure)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            done = [f.result() for f in [pool.submit(ask, envoy.front, *r) for r in bodies(seed)]]
        assert len(done) == 2 * REQUESTS
        booked_wanted = 2 * REQUESTS - 10
        page = system.epp.listeners["metrics"]
        wait_until(lambda: total(metrics(page), "fairlead_select_booked_total") ==
                   total(metrics(page), "fairlead_select_freed_total") == booked_wanted, "booked = freed = requests with a prompt")
        shares = [total(metrics(e.listeners["http"]), "vllm:request_success_total") for e in system.engines]
        assert sum(shares) == booked_wanted, shares
        assert min(shares) >= 0.2 * sum(shares), shares
        values = envoy.statistics()
        assert values["streams_started"] == 2 * REQUESTS, values
        for name in ("spurious_msgs_received", "rejected_header_mutations", "streams_failed", "message_timeouts",
                     "failure_mode_allowed"):
            assert values[name] == 0, values
        return shares
    finally:
        if envoy is not None:
            code = envoy.stop()
        system.stop()
        if envoy is not None:
            assert code == 0, (code, open(envoy.log_path).read()[-2000:])


if __name__ == "__main__":
    seen = [run(secure, seed) for secure, seed in ((False, 1), (True, 2))]
    print(f"2 x {2 * REQUESTS} requests over plaintext and TLS, every SHA-256 equal, generations by engine {seen}")
