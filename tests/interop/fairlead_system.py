# SPDX-License-Identifier: Apache-2.0
"""Starts Fairlead's programs for a check, on free loopback ports, and ends them by pid."""
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request

FAIRLEAD = os.environ.get("FAIRLEAD", "build/fairlead")


class Program:
    def __init__(self, args, folder, name):
        self.name = name
        self.ready = os.path.join(folder, name + ".ready")
        self.log = os.path.join(folder, name + ".log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([FAIRLEAD, *args, "--ready-file", self.ready], stdout=log, stderr=log)
        self.listeners = self._wait()

    def _wait(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if os.path.exists(self.ready):
                with open(self.ready) as file:
                    return json.load(file)["listeners"]
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise SystemExit(f"{self.name} is not ready: {open(self.log).read()[-2000:]}")

    def stop(self, sig=signal.SIGTERM, timeout=30):
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise SystemExit(f"{self.name} did not end: {open(self.log).read()[-2000:]}")
        return self.process.returncode


class System:
    """Engines, tokenizer (one more engine) and a picker."""

    def __init__(self, engines=3, epp_args=(), engine_args=(), tokenizer=True, secure=False, block_size=16):
        self.folder = tempfile.mkdtemp(prefix="fairlead-check-")
        self.programs = []
        self.engines = [
            self.start(["engine", "--listen", "127.0.0.1:0", "--kv-events", "tcp://127.0.0.1:*", "--kv-replay",
                        "tcp://127.0.0.1:*", "--digest", "--model", "m", "--time-scale", "40", *engine_args], f"engine-{i}")
            for i in range(engines)]
        self.workers_file = os.path.join(self.folder, "workers.json")
        self.write_workers()
        args = ["epp", "--workers", self.workers_file, "--model-name", "m", "--host", "127.0.0.1", "--grpc-port", "0",
                "--grpc-health-port", "0", "--metrics-port", "any", "--debug-listen", "127.0.0.1:0",
                f"--secure-serving={'true' if secure else 'false'}"]
        if tokenizer:
            self.tokenizer = self.start(["engine", "--listen", "127.0.0.1:0", "--model", "m"], "tokenizer")
            args += ["--tokenizer-protocol", "vllm-render", "--tokenizer-service-url",
                     "http://" + self.tokenizer.listeners["http"]]
        self.epp = self.start([*args, *epp_args], "epp")

    def start(self, args, name):
        program = Program(args, self.folder, name)
        self.programs.append(program)
        return program

    def write_workers(self, engines=None):
        workers = [{"name": e.name, "endpoint": e.listeners["http"], "block_size": 16,
                    "kv_events_endpoint": "tcp://" + e.listeners["kv_events"],
                    "replay_endpoint": "tcp://" + e.listeners["kv_replay"]} for e in (engines or self.engines)]
        with open(self.workers_file + ".new", "w") as file:
            json.dump({"workers": workers}, file)
        os.rename(self.workers_file + ".new", self.workers_file)

    def stop(self):
        codes = {p.name: p.stop() for p in reversed(self.programs)}
        bad = {name: code for name, code in codes.items() if code != 0}
        if bad:
            for name in bad:
                print(name, open(os.path.join(self.folder, name + ".log")).read()[-3000:])
            raise SystemExit(f"programs ended badly: {bad}")


def metrics(address):
    """{name{labels}: value} of a /metrics page."""
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
    values = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name] = float(value)
    return values


def total(values, name):
    return sum(v for k, v in values.items() if k == name or k.startswith(name + "{"))


def wait_until(condition, what, seconds=10):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise SystemExit("in vain waited for " + what)
