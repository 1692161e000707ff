#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# peers: curl
"""The gateway as its clients see it: REST by curl, requests through gateway, picker and engines, and what is left of
them when the picker, an engine or the client goes away (gateway.md 3, 4, 8, 9.7, 15, 15.1 L8)."""
import collections
import concurrent.futures
import http.client
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fairlead_gateway import (JSON, NO_ENDPOINT, UNAVAILABLE, Gateway, Reply, ask, check_refused, check_served, completion,
                              free_port, seeded, split, words_of)
from fairlead_system import Program, System, metrics, total, wait_until

SUCCESS = (200, JSON, '{"result":"Success"}')
NO_RULE = (404, JSON, '{"code":404,"message":"Resource not found","result":"no-rule error"}')
CLIENTS = 8
# Each loop's listener and endpoint pool keep the one chunk they read into, and a joint of 4 KiB.
READ_AHEAD_BYTES = os.cpu_count() * 2 * (68 << 10) + (68 << 10)


def endpoints_of(system):
    return [e.listeners["http"] for e in system.engines]


def epp_of(system):
    return {"eppEndpoint": system.epp.listeners["ext_proc"]}


def books(system):
    page = metrics(system.epp.listeners["metrics"])
    return int(total(page, "fairlead_select_booked_total")), int(total(page, "fairlead_select_freed_total"))


def wait_books_closed(system):
    return wait_until(lambda: books(system)[0] == books(system)[1] and books(system), "booked = freed")[0]


def kill(system, program):
    """kill -9 of a program that this check started; it will not end with 0 any more."""
    system.programs.remove(program)
    program.process.kill()
    program.process.wait()


def rest():
    """gateway.md 3 and 4: the calls of a client, with status, media type and body."""
    gateway = Gateway()
    assert gateway.rest("GET", "") == gateway.rest("GET", "/") == (200, JSON, '{"status":"ok"}')
    status, media, text = gateway.rest("GET", "/version")
    version = json.loads(text)
    assert status == 200 and media == JSON and version["product"] == "loxilb-inference-gateway" and "epp" in version["features"]
    assert json.loads(gateway.rest("GET", "/status/capabilities")[2])["features"] == version["features"]
    assert gateway.rest("GET", "/status/ready") == (
        200, JSON, '{"ready":true,"reasons":[],"boot":{"snapshot_found":false,"succeeded":true},"auto_persist":{"failures":0}}')
    assert gateway.rest("GET", "/config/loadbalancer/all") == (200, JSON, '{"lbAttr":[]}')

    port = free_port()
    key = f"/config/loadbalancer/externalipaddress/127.0.0.1/port/{port}/protocol/tcp"
    service = {"name": "demo-epp", "eppEndpoint": "127.0.0.1:9", "eppPlaintext": True}
    body = gateway.rule(["127.0.0.1:8000", "127.0.0.1:8001"], port, **service)
    assert gateway.rest("GET", key) == NO_RULE and gateway.rest("DELETE", key) == NO_RULE
    assert gateway.rest("POST", "/config/loadbalancer", body) == SUCCESS
    status, media, text = gateway.rest("GET", key)
    assert status == 200 and media == JSON
    entry = json.loads(text)
    identity = entry["serviceArguments"].pop("id")
    assert re.fullmatch(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", identity), identity
    assert entry == {
        "serviceArguments": {
            "adminStateUp": True, "externalIP": "127.0.0.1", "port": port, "protocol": "tcp", "sel": 0, "mode": 4,
            "inactiveTimeOut": 1800, "name": "demo-epp", "backend_protocol": "http1", "eppEndpoint": "127.0.0.1:9",
            "eppFailureMode": "FailClose", "eppTimeoutMs": 3000, "eppPlaintext": True},
        "secondaryIPs": [], "allowedSources": [],
        "endpoints": [{"endpointIP": "127.0.0.1", "targetPort": p, "weight": 1, "backup": False, "state": "active",
                       "counter": "0:0"} for p in (8000, 8001)]}, entry
    assert json.loads(gateway.rest("GET", "/config/loadbalancer/id/" + identity)[2])["serviceArguments"]["id"] == identity
    assert gateway.rest("GET", "/config/loadbalancer/all") == (200, JSON, '{"lbAttr":[' + text + "]}")
    state = json.loads(gateway.rest("GET", key + "/status")[2])
    assert state["adminStateUp"] is True and state["operatingStatus"] == "NO_MONITOR", state
    assert gateway.rest("GET", key + "/stats") == (
        200, JSON, '{"activeConnections":0,"bytesIn":0,"bytesOut":0,"totalConnections":0}')

    duplicate = '{"code":409,"message":"Resource conflict: Resource already exists OR dependency not found","result":"%s"}'
    assert gateway.rest("POST", "/config/loadbalancer", body) == (409, JSON, duplicate % "lbrule-exists error")
    assert gateway.rest("POST", "/config/loadbalancer", "{}", "text/plain")[0] == 415
    assert gateway.rest("PUT", "/version")[0] == 405 and gateway.rest("GET", "/nope")[0] == 404
    malformed = '{"code":400,"message":"Malformed arguments for API call","result":"unknown field epp_endpoint"}'
    assert gateway.rest("POST", "/config/loadbalancer", {"serviceArguments": {"epp_endpoint": "x"}}) == (400, JSON, malformed)
    for change, status, word in (({"mode": 2}, 400, "mode=fullproxy"), ({"mode": 9}, 422, "should be less than or equal to 5"),
                                 ({"eppEndpoint": "http://a:1"}, 400, "host:port"), ({"eppFailureMode": "failopen"}, 400, "eppFailureMode"),
                                 ({"eppTimeoutMs": 600001}, 400, "eppTimeoutMs"), ({"protocol": "udp"}, 400, "malformed-proto error"),
                                 ({"eppEndpoint": "a" * 252 + ":123"}, 400, "eppEndpoint"), ({"externalIP": "x"}, 400, "malformed-service error")):
        answer = gateway.rest("POST", "/config/loadbalancer", gateway.rule(["127.0.0.1:1"], free_port(), **{**service, **change}))
        assert answer[0] == status and word in answer[2] and "exist" not in answer[2], (change, answer)
    status, _, text = gateway.rest("PATCH", key, '{"serviceArguments":{"eppEndpoint":"b:1"}}', "application/merge-patch+json")
    assert status == 400 and "eppEndpoint is not patchable" in text, (status, text)

    check_refused(ask(port, completion("a")), UNAVAILABLE)
    # kube-loxilb deletes with a query and sometimes a body.
    assert gateway.rest("DELETE", key + "?bgp=false&block=0", "{}") == SUCCESS
    assert gateway.rest("GET", key) == NO_RULE
    try:
        ask(port, completion("a"))
        raise AssertionError("a deleted rule serves")
    except ConnectionRefusedError:
        pass
    gateway.add(["127.0.0.1:1"], name="twice")
    gateway.add(["127.0.0.1:1"], name="twice")
    assert gateway.rest("DELETE", "/config/loadbalancer/name/twice") == SUCCESS
    assert gateway.rest("DELETE", "/config/loadbalancer/name/twice") == SUCCESS
    assert gateway.rest("GET", "/config/loadbalancer/all") == (200, JSON, '{"lbAttr":[]}')
    gateway.stop()


def traffic(secure):
    """S5, S6, S14 and case 46: bodies arrive as sent, and the engines' own counters say who served."""
    system = System(engines=3, secure=secure)
    gateway = Gateway()
    port = gateway.add(endpoints_of(system), name="main", eppPlaintext=not secure, **epp_of(system))
    rnd = seeded("traffic", secure)

    def one(i):
        mine = seeded("traffic", secure, i)
        stream = i % 2 == 1
        size = (0, 300 << 10, 1 << 20)[i % 3] if i < 60 else int(2 ** mine.uniform(6, 18))
        body = completion(words_of(mine), stream, mine.randrange(1, 12), size)
        pieces = (body[at:at + 9000] for at in range(0, len(body), 9000)) if i % 5 == 0 else None
        forged = {"x-gateway-destination-endpoint": "127.0.0.1:9", "x-prefiller-host-port": "127.0.0.1:9"}
        check_served(ask(port, body, fields=forged, pieces=pieces), body, stream)

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(one, rnd.sample(range(300), 300)))
    assert ask(port, path="/v1/models").status == 200
    assert wait_books_closed(system) == 300, books(system)
    shares = [int(total(metrics(e), "vllm:request_success_total")) for e in endpoints_of(system)]
    assert sum(shares) == 300 and min(shares) >= 60, shares
    assert gateway.outcomes() == {"ok": 301}, gateway.outcomes()
    values = gateway.metrics()
    assert total(values, "loxilb_ai_epp_duration_seconds_count") == 301
    seen = [int(values[f'fairlead_gateway_endpoint_requests_total{{rule="main",endpoint="{e}"}}']) for e in endpoints_of(system)]
    assert sum(seen) == 301 and all(0 <= a - b <= 1 for a, b in zip(seen, shares)), (seen, shares)
    quiet(gateway)
    gateway.stop()
    system.stop()
    return shares


def quiet(gateway):
    """gateway.md 9.9: after quiet, in-flight gauges are 0."""
    names = ("fairlead_gateway_epp_inflight", "fairlead_gateway_epp_streams")
    wait_until(lambda: all(total(gateway.metrics(), n) == 0 for n in names), "gauges at 0")
    wait_until(lambda: total(gateway.metrics(), "fairlead_gateway_buffered_bytes") <= READ_AHEAD_BYTES, "bodies given back")


def slow_upload(port, body, held):
    """Half a body, then the rest once `held` is set; the reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-type", JSON)
    connection.putheader("content-length", str(len(body)))
    connection.endheaders(body[:len(body) // 2])
    held.wait()
    try:
        connection.send(body[len(body) // 2:])
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused before the end of the upload; the answer may be there all the same
    answer = connection.getresponse()
    fields = {k.lower(): v for k, v in answer.getheaders()}
    return Reply(answer.status, fields, answer.read())


def picker_killed(mode):
    """S7-S9 and 15.1 L8: the picker dies under load, with half of some bodies sent, and comes back."""
    system = System(engines=3)
    gateway = Gateway()
    port = gateway.add(endpoints_of(system), name="main", eppPlaintext=True, eppFailureMode=mode, **epp_of(system))
    stop, held, replies, lock = threading.Event(), threading.Event(), [], threading.Lock()

    def load(worker):
        n = 0
        while not stop.is_set():
            body = completion(words_of(seeded("kill", mode, worker, n)), n % 2 == 1, 40)
            reply = ask(port, body)
            with lock:
                replies.append((n % 2 == 1, body, reply))
            n += 1

    with concurrent.futures.ThreadPoolExecutor(2 * CLIENTS) as pool:
        loads = [pool.submit(load, i) for i in range(CLIENTS)]
        bodies = [completion(words_of(seeded("half", i)), size=200 << 10) for i in range(CLIENTS)]
        halves = [pool.submit(slow_upload, port, body, held) for body in bodies]
        wait_until(lambda: len(replies) > 50, "some load")
        wait_until(lambda: total(gateway.metrics(), "fairlead_gateway_buffered_bytes") >= CLIENTS * (90 << 10), "half bodies")
        kill(system, system.epp)
        before = len(replies)
        held.set()
        late = [(False, body, half.result()) for body, half in zip(bodies, halves)]
        wait_until(lambda: len(replies) > before + 100, "load after the kill")
        stop.set()
        for f in loads:
            f.result()
    refused = 0
    for stream, body, reply in replies + late:
        if mode == "FailClose" and reply.status != 200:
            check_refused(reply, UNAVAILABLE)
            refused += 1
        else:
            check_served(reply, body, stream)
    outcomes = gateway.outcomes()
    lost = outcomes["error"]
    assert sum(outcomes.values()) == len(replies + late) and set(outcomes) == {"ok", "error"}, (outcomes, len(replies + late))
    if mode == "FailClose":
        assert refused == lost >= 50, (refused, outcomes)
        for _, _, reply in late:
            check_refused(reply, UNAVAILABLE)
    else:
        fallbacks = gateway.metrics()['fairlead_gateway_fallback_total{rule="main",cause="unavailable"}']
        assert fallbacks == lost >= 50 + CLIENTS, (fallbacks, outcomes)
    # A new picker at the old address serves within a second of being ready (gateway.md 9.1).
    listeners = system.epp.listeners
    system.epp = system.start(["epp", "--workers", system.workers_file, "--model-name", "m", "--host", "127.0.0.1",
                               "--grpc-port", str(split(listeners["ext_proc"])[1]), "--grpc-health-port", "0", "--metrics-port",
                               "any", "--debug-listen", "127.0.0.1:0", "--secure-serving=false"], "epp-again")
    since, in_a_row, ok = time.monotonic(), 0, gateway.outcomes()["ok"]
    while in_a_row < 12:  # each loop dials for itself
        assert time.monotonic() < since + 2, "a restarted picker is not asked"  # a second is for busy machines
        body = completion("back again")
        reply = ask(port, body)
        now = gateway.outcomes()["ok"]
        if now > ok:
            check_served(reply, body)
        in_a_row = in_a_row + 1 if now > ok else 0
        ok = now
    wait_books_closed(system)
    quiet(gateway)
    gateway.stop()
    system.stop()
    return f"{mode} {len(replies) + len(late)}/{lost}"


def picks(system):
    """The picker's decisions, all of them."""
    url = f"http://{system.epp.listeners['debug']}/debug/picks?limit=4096"
    return json.load(urllib.request.urlopen(url, timeout=10))


def engine_killed():
    """An engine dies under load: exactly its own requests fail, as a whole error or a cut without terminator."""
    system = System(engines=3)
    gateway = Gateway()
    port = gateway.add(endpoints_of(system), name="main", eppPlaintext=True, **epp_of(system))
    stop, results, lock = threading.Event(), {}, threading.Lock()
    victim = system.engines[1]

    def load(worker):
        n = 0
        while not stop.is_set():
            body = completion(words_of(seeded("engine", worker, n)), n % 2 == 1, 100)
            name = f"load-{worker}-{n}"
            try:
                reply = ask(port, body, fields={"x-request-id": name})
                if reply.status == 200:
                    check_served(reply, body, n % 2 == 1)
                elif reply.status == 503:
                    check_refused(reply, NO_ENDPOINT)
                else:
                    assert reply.status == 502 and json.loads(reply.body)["error"], reply
                result = reply.status
            except http.client.IncompleteRead:
                result = "cut"
            with lock:
                results[name] = result
            n += 1

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        loads = [pool.submit(load, i) for i in range(CLIENTS)]
        wait_until(lambda: len(results) > 100, "some load")
        kill(system, victim)
        before = len(results)
        wait_until(lambda: len(results) > before + 60, "load after the kill")
        system.engines.remove(victim)
        system.write_workers()  # the picker forgets it; from then on nothing fails
        wait_until(lambda: ask(port, path="/v1/models").status == 200, "a list of models")
        stop.set()
        for f in loads:
            f.result()
    named = {r["request_id"]: r["endpoint"] for r in picks(system)}
    failed = {name: result for name, result in results.items() if result != 200}
    assert failed and set(named[name] for name in failed) == {victim.listeners["http"]}, failed
    refused = list(failed.values()).count(503)
    for i in range(20):
        body = completion(words_of(seeded("after", i)))
        wait_until(lambda: ask(port, body).status == 200, "service without the dead engine")
    # Picker, gateway and engines counted the same.
    generations = [r for r in picks(system) if r["kind"] == "completions"]
    for e in endpoints_of(system):
        wait_until(lambda: total(metrics(e), "vllm:request_success_total") ==
                   sum(1 for r in generations if r["endpoint"] == e), "the engine's count of its picks")
    outcomes = gateway.outcomes()
    assert set(outcomes) <= {"ok", "no_endpoint"} and sum(outcomes.values()) == len(picks(system)), (outcomes, len(picks(system)))
    assert outcomes.get("no_endpoint", 0) >= refused, (outcomes, refused)
    values = gateway.metrics()
    assert values['fairlead_gateway_requests_total{rule="main",code="5xx"}'] == outcomes.get("no_endpoint", 0) + \
        list(failed.values()).count(502), (outcomes, failed)
    assert wait_books_closed(system) == len(generations)
    quiet(gateway)
    gateway.stop()
    system.stop()
    return f"{len(results)} requests, failed {dict(collections.Counter(failed.values()))}"


def clients_cut(count):
    """15.1: requests cut by the client at random points; nothing stays booked, held or open."""
    system = System(engines=3)
    gateway = Gateway()
    port = gateway.add(endpoints_of(system), name="main", eppPlaintext=True, **epp_of(system))

    def cut(i):
        rnd = seeded("cut", i)
        body = completion(words_of(rnd), i % 2 == 1, 400, rnd.choice([0, 2000, 150000]))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        message = head + body
        with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
            if rnd.random() < 0.4:
                s.sendall(message[:rnd.randrange(len(message))])
            else:
                s.sendall(message)
                wanted = rnd.choice([0, 0, 1, 300, 2000])
                s.settimeout(30)
                while wanted > 0:
                    data = s.recv(wanted)
                    if not data:
                        break
                    wanted -= len(data)
                if wanted == 0 and rnd.random() < 0.5:
                    s.settimeout(rnd.random() * 0.02)  # a moment of any phase
                    try:
                        s.recv(1)
                    except TimeoutError:
                        pass
            if rnd.random() < 0.5:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset instead of an end

    with concurrent.futures.ThreadPoolExecutor(2 * CLIENTS) as pool:
        list(pool.map(cut, range(count)))
    quiet(gateway)
    booked = wait_books_closed(system)
    assert booked >= count // 4, booked
    outcomes = gateway.outcomes()
    assert set(outcomes) == {"ok"}, outcomes  # a question that its client gave up counts nothing
    wait_until(lambda: all(total(metrics(e), "vllm:num_requests_running") + total(metrics(e), "vllm:num_requests_waiting") == 0
                           for e in endpoints_of(system)), "idle engines")
    body = completion("still here")
    check_served(ask(port, body), body)
    gateway.stop()
    system.stop()
    return booked


if __name__ == "__main__":
    rest()
    shares = [traffic(secure) for secure in (False, True)]
    deaths = [picker_killed(mode) for mode in ("FailClose", "FailOpen")]
    engine = engine_killed()
    booked = clients_cut(2000)
    print(f"REST; 2 x 300 requests, engines {shares}; picker killed {deaths}; engine killed: {engine}; "
          f"2,000 cut by the client, {booked} booked = freed")
