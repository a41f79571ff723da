# SPDX-License-Identifier: Apache-2.0
"""The server, asked over sockets; `meshard.load` in this process is the oracle. Run on one rank."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import types
import urllib.parse
import warnings

import meshard
import numpy as np

from surrogate_test import PROGRAM, TOLD, trained, write_stl

try:
    from meshard import serve
except ImportError:
    serve = None
BOUNDARY = "a-line-between"


def form(*files):
    """Body and headers of a form with files, (name, content) each."""
    parts = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + content + b"\r\n" for name, content in files]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def ask(connection, path, body=b"", headers={}, method="POST"):
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


@contextlib.contextmanager
def served(*words):
    """A server in a process of its own, which ends orderly at SIGTERM."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    process = subprocess.Popen([sys.executable, "-m", "meshard.serve", *map(str, words), "--port", "0", "--device", "cpu"], env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("meshard.serve: http://127.0.0.1:"), (line, process.poll() is not None and process.stderr.read())
        yield int(re.search(r":(\d+),", line).group(1))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "meshard.serve: ended.\n") and "Traceback" not in err, (process.returncode, out, err)
    finally:
        process.kill()
        process.communicate()


def malformed(rng, vtp):
    """A request that is wrong: method, path, body and headers."""
    told = urllib.parse.urlencode(TOLD)
    path = rng.choice(["/forces", "/fields"])
    return rng.choice([
        lambda: ("POST", f"{path}?{told}", vtp[:rng.randrange(1, len(vtp) - 20)], {}),
        lambda: ("POST", f"{path}?{told}", b"\x00" + rng.randbytes(rng.randrange(400)), {}),
        lambda: ("POST", f"{path}?{told}", b"<" + rng.randbytes(rng.randrange(400)), {}),
        lambda: ("POST", f"{path}?{told}", b"", {}),
        lambda: ("POST", f"{path}?{told}", *form(("car.obj", vtp))),
        lambda: ("POST", f"{path}?{told}", *form(("a.vtp", vtp), ("b.vtp", vtp))),
        lambda: ("POST", f"{path}?{told}", *form(("../../a.stl", vtp))),
        lambda: ("POST", f"{path}?{told}", rng.randbytes(50), {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}),
        lambda: ("POST", f"{path}?{told}", vtp, {"Content-Type": "multipart/form-data"}),
        lambda: ("POST", f"{path}?sped=32", vtp, {}),
        lambda: ("POST", f"{path}?{told}&speed=1", vtp, {}),
        lambda: ("POST", f"{path}?speed={rng.choice(['', 'fast', 'nan', '1e999'])}", vtp, {}),
        lambda: ("POST", path, vtp, {}),
        lambda: ("POST", f"/{rng.randrange(10**6)}", vtp, {}),
        lambda: (rng.choice(["GET", "PUT", "DELETE"]), path, b"", {}),
    ])()


def test_answers_are_those_of_the_surrogate():
    if serve is None or not PROGRAM.exists():
        return "FastAPI or the build folder with the programs is missing"
    with trained() as (folder, body), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [folder / "runs/r1", folder / "runs/r2"]
        surrogate = meshard.load(runs, device="cpu")
        stl, vtp = write_stl(folder / "body.stl", meshard.read(body)), body.read_bytes()
        told, speed = urllib.parse.urlencode(TOLD), f"speed={TOLD['speed']}"
        with served(*runs, "--max-bytes", 200000) as port:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            for file, (content, headers) in ((stl, (stl.read_bytes(), {})), (body, (vtp, {})), (body, form(("../boundary 4.VTP", vtp))), (body, form(("車" * 90 + ".vtp", vtp))), (stl, form(("", stl.read_bytes())))):
                expected = surrogate.forces(file, **TOLD)
                status, answer = ask(connection, f"/forces?{told}", content, headers)
                found = json.loads(answer)
                assert (status, found["forces"], found["spread"]) == (200, dict(expected), expected.spread), (found, expected)
                assert (found["intervals"], found["isolation"], found["feature_isolation"]) == (expected.intervals, expected.isolation, expected.feature_isolation), found
            status, answer = ask(connection, "/forces?speed=99&U_inf=30&area=0.5&moment_length=2", vtp)
            assert status == 200 and "Cmz" in json.loads(answer)["forces"] and "body.vtp: beyond the training cases" in " ".join(json.loads(answer)["warnings"]), answer

            status, answer = ask(connection, f"/fields?{told}", *form(("車.stl", stl.read_bytes())))
            (folder / "answer.vtp").write_bytes(answer)
            answered, expected = meshard.read(folder / "answer.vtp"), surrogate.predict(stl, speed=TOLD["speed"]).mesh
            assert status == 200 and sorted(answered.cell_data) == sorted(expected.cell_data) and np.array_equal(answered.points, expected.points)
            assert all(np.array_equal(answered.cell_data[name], expected.cell_data[name]) for name in expected.cell_data)

            described = json.loads(ask(connection, "/openapi.json", method="GET")[1])["paths"]["/forces"]["post"]
            assert {one["name"]: one["required"] for one in described["parameters"]} == {name: one.required for name, one in surrogate.inputs.items()}
            assert ask(connection, "/docs", method="GET")[0] == 200 and json.loads(ask(connection, "/", method="GET")[1])["targets"] == {"pressure": 1, "wss": 3}

            # What is wrong is told in the words of `predict`, and what is too large is not read, whether or not its length is said before.
            status, answer = ask(connection, f"/forces?{told}", vtp[:3000])
            (folder / "body.vtp").write_bytes(vtp[:3000])
            try:
                surrogate.forces(folder / "body.vtp", **TOLD)
            except meshard.InvalidInput as wrong:
                assert (status, json.loads(answer)["detail"]) == (422, str(wrong).replace(f"{folder}/", "")), answer
            status, answer = ask(connection, f"/forces?{speed}", vtp)
            assert status == 422 and "Give area, U_inf" in json.loads(answer)["detail"], answer
            assert ask(connection, f"/forces?{told}", bytes(200001))[0] == 413
            assert ask(connection, f"/forces?{told}", iter([bytes(150000)] * 2))[0] == 413
            assert ask(connection, f"/forces?{told}", *form(("a.stl", bytes(200001))))[0] == 413

            rng = random.Random(1)
            for _ in range(1000):
                method, path, content, headers = malformed(rng, vtp)
                status, answer = ask(connection, path, content, headers, method)
                assert 400 <= status < 500 and json.loads(answer)["detail"], (method, path, content[:80], status, answer)

            def forces(_):
                return json.loads(ask(http.client.HTTPConnection("127.0.0.1", port, timeout=60), f"/forces?{told}", vtp)[1])["forces"]
            with concurrent.futures.ThreadPoolExecutor(2) as two:
                assert list(two.map(forces, range(2))) == [dict(surrogate.forces(body, **TOLD))] * 2
        with served(runs[0], "--timeout", 0.001) as port:
            assert ask(http.client.HTTPConnection("127.0.0.1", port, timeout=60), f"/forces?{told}", vtp)[0] in (408, 504)
        ended = subprocess.run([sys.executable, "-m", "meshard.serve", str(folder)], capture_output=True, text=True, check=False)
        assert ended.returncode == 3 and "no checkpoints/best.safetensors" in ended.stderr and "Traceback" not in ended.stderr, ended


class FoundForces(dict):
    spread, intervals, isolation, feature_isolation, prediction = {}, {}, None, None, types.SimpleNamespace(warnings=[])


def test_queue_and_time_are_bounded():
    if serve is None:
        return "FastAPI is not installed"
    begun, gate = threading.Event(), threading.Event()

    def forces(path, values):
        begun.set()
        assert gate.wait(60) and path.exists()
        return FoundForces(Cd=0.3)

    app = serve.make_app(types.SimpleNamespace(inputs={}, targets={"p": 1}, forces=forces), queue=1, timeout=2.0)   # more than a busy machine pauses
    listening = socket.create_server(("127.0.0.1", 0))
    server = serve.uvicorn.Server(serve.uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        connections = [http.client.HTTPConnection(*listening.getsockname(), timeout=60) for _ in range(3)]
        connections[0].request("POST", "/forces", b"<VTKFile")
        assert begun.wait(60)
        for connection in connections[1:]:   # of these one waits and one is refused
            connection.request("POST", "/forces", b"<VTKFile")
        answers = [connection.getresponse() for connection in connections]
        assert sorted(answer.status for answer in answers) == [503, 504, 504] and answers[0].status == 504
        for answer in answers:
            assert ("--queue" if answer.status == 503 else "--timeout") in json.loads(answer.read())["detail"]
        with socket.create_connection(listening.getsockname(), timeout=60) as slow:
            slow.sendall(b"POST /forces HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\nabc")
            assert b" 408 " in slow.recv(1000)
        idle = [socket.create_connection(listening.getsockname(), timeout=60) for _ in range(3)]   # bodies that do not arrive keep nobody out
        for one in idle:
            one.sendall(b"POST /forces HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\nabc")
        with socket.create_connection(listening.getsockname(), timeout=60) as gone:   # closes before its body is complete
            gone.sendall(b"POST /forces HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\nabc")
        assert ask(connections[0], "/forces", b"<VTKFile")[0] == 504   # the first is still computed
        for one in idle:
            one.close()
        gate.set()
        assert ask(connections[1], "/forces", b"<VTKFile") == (200, b'{"forces":{"Cd":0.3},"spread":{},"intervals":{},"isolation":null,"feature_isolation":null,"warnings":[]}')
    finally:
        gate.set()
        server.should_exit = True
        thread.join(60)
