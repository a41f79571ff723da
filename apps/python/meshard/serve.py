# SPDX-License-Identifier: Apache-2.0
"""Trained runs behind HTTP: `python -m meshard.serve RUN [RUN...]`, with what `pip install 'meshard[serve]'` brings.

A surface, STL or VTP, is posted to /forces for its coefficients as JSON, or to /fields for a VTP with the predicted fields; /docs has the parameters. The runs are
loaded once. Requests are computed one after the other, and wait in a queue that is bounded."""
from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import math
import pathlib
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from typing import Any, Callable, Optional, Sequence

from . import Error, InvalidInput, IoError, Surrogate, load, write

try:
    import python_multipart  # noqa: F401
    import uvicorn
    from fastapi import FastAPI, HTTPException, Request, Response
    from starlette.datastructures import UploadFile
    from starlette.requests import ClientDisconnect
except ImportError as missing:
    wanted = f"meshard.serve needs FastAPI, uvicorn and python-multipart: pip install 'meshard[serve]' ({missing})."
    if __name__ == "__main__":
        sys.exit(wanted)
    raise ImportError(wanted) from None

MAX_BYTES, QUEUE, TIMEOUT = 256 << 20, 8, 120.0
SUFFIXES = (".stl", ".vtp")


def suffix_of(beginning: bytes) -> str:
    """The format of a file by its first bytes: VTP is XML, and all else is taken for STL."""
    return ".vtp" if beginning.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<") else ".stl"


async def receive_mesh(request: Request, folder: pathlib.Path, max_bytes: int) -> pathlib.Path:
    """Writes the body of a request, or the only file of its form, to a file in the folder, and returns its path.

    Raises HTTPException where the body has more bytes (413), is of another format (415), or has no file or several (422)."""
    num_bytes = 0

    async def receive() -> Any:
        nonlocal num_bytes
        message = await request.receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > max_bytes:
            raise HTTPException(413, f"the body has more than the {max_bytes} bytes that are taken (--max-bytes).")
        return message

    bounded, path = Request(request.scope, receive), folder / "body"
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        with path.open("wb") as file:
            async for piece in bounded.stream():
                file.write(piece)
    else:
        async with bounded.form(max_files=2, max_fields=8) as form:
            files = [file for _, file in form.multi_items() if isinstance(file, UploadFile)]
            if len(files) != 1:
                raise HTTPException(422, f"the form has {len(files)} files; expected one, an STL or VTP.")
            path = folder / (re.sub(r"[^\w.-]+", "_", pathlib.PurePath(files[0].filename or "").name, flags=re.ASCII)[-100:].lstrip(".") or "body")
            with path.open("wb") as file:
                await asyncio.to_thread(shutil.copyfileobj, files[0].file, file)
    if path.stat().st_size == 0:
        raise HTTPException(422, "the request has no mesh. Post an STL or VTP as the body, or as a file of a form.")
    if path.suffix.lower() in SUFFIXES:
        return path
    if path.suffix:
        raise HTTPException(415, f"{path.name} is neither .stl nor .vtp.")
    with path.open("rb") as file:
        return path.rename(path.with_suffix(suffix_of(file.read(100))))


def make_app(surrogate: Surrogate, *, max_bytes: int = MAX_BYTES, queue: int = QUEUE, timeout: float = TIMEOUT) -> FastAPI:
    """An application of ASGI that predicts with a surrogate.

    max_bytes:  of a request's body
    queue:      requests that may wait while one is computed; others get status 503
    timeout:    seconds from a request to its answer, else status 408 (while it is received) or 504

    What a client did wrong is a status of 4xx with `detail`, a sentence."""
    names = ", ".join(surrogate.targets)
    app = FastAPI(title="meshard", description=f"Predicts {names} on surfaces, and the forces on them: {surrogate!r}.")
    worker = concurrent.futures.ThreadPoolExecutor(1, "prediction")
    places = threading.BoundedSemaphore(queue + 1)   # a request that is computed, or waits to be, holds one
    uploads = threading.BoundedSemaphore(8 * (queue + 1))   # a request whose mesh arrives holds one

    def told(request: Request) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, text in request.query_params.multi_items():
            if name not in surrogate.inputs:
                raise HTTPException(422, f"'{name}' is none of the parameters {', '.join(surrogate.inputs)}.")
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if name in values or not math.isfinite(value):
                raise HTTPException(422, f"{name} must be given once and be a number, e.g. {name}=40; found '{text}'.")
            values[name] = value
        missing = [name for name, one in surrogate.inputs.items() if one.required and name not in values]
        if missing:
            raise HTTPException(422, f"{', '.join(missing)} must be given as parameters, e.g. ?{missing[0]}=40.")
        return values

    async def answer(request: Request, work: Callable[[pathlib.Path, dict[str, float]], Any]) -> Any:
        """Receives the mesh, and calls `work(path, values)` in the thread of the predictions."""
        values, end = told(request), time.monotonic() + timeout
        def busy(what: str) -> HTTPException:
            return HTTPException(503, f"{what} (--queue). Come again.", {"Retry-After": "1"})

        if not uploads.acquire(blocking=False):
            raise busy(f"{8 * (queue + 1)} meshes arrive already")
        folder = pathlib.Path(tempfile.mkdtemp(prefix="meshard-serve-"))

        def leave(_: Any = None) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            places.release()

        try:
            path = await asyncio.wait_for(receive_mesh(request, folder, max_bytes), timeout)
            if not places.acquire(blocking=False):
                raise busy(f"a request is computed and {queue} wait")
        except BaseException as failed:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(failed, asyncio.TimeoutError):
                raise HTTPException(408, f"the body did not arrive within {timeout:g} s (--timeout).") from None
            if isinstance(failed, ClientDisconnect):
                raise HTTPException(400, "the client went away before its body was complete.") from None
            raise
        finally:
            uploads.release()
        try:
            job = worker.submit(work, path, values)
        except BaseException:
            leave()
            raise
        job.add_done_callback(leave)   # after a timeout, too: what is computed keeps its place until it ends
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job), end - time.monotonic())
        except asyncio.TimeoutError:
            raise HTTPException(504, f"there was no prediction within {timeout:g} s (--timeout).") from None
        except (InvalidInput, IoError) as wrong:
            raise HTTPException(422, str(wrong).replace(f"{folder}/", "")) from None
        except Error as failed:
            raise HTTPException(500, str(failed).replace(f"{folder}/", "")) from None

    def forces_of(path: pathlib.Path, values: dict[str, float]) -> dict[str, Any]:
        found = surrogate.forces(path, values=values)
        return {"forces": dict(found), "spread": found.spread, "intervals": found.intervals, "isolation": found.isolation,
                "feature_isolation": found.feature_isolation, "warnings": found.prediction.warnings}

    def fields_of(path: pathlib.Path, values: dict[str, float]) -> Response:
        found = surrogate.predict(path, values={name: value for name, value in values.items() if not surrogate.inputs[name].for_forces})
        written = path.parent / "fields.vtp"
        write(written, found.mesh)
        said = "; ".join(found.warnings).encode("latin-1", "replace").decode("latin-1").replace("\n", " ")
        return Response(written.read_bytes(), media_type="application/octet-stream",
                        headers={"Content-Disposition": f'attachment; filename="{path.stem}.vtp"', **({"X-Meshard-Warnings": said} if said else {})})

    binary = {"schema": {"type": "string", "format": "binary"}}
    described = {
        "parameters": [{"name": name, "in": "query", "required": one.required, "schema": {"type": "number"},
                        "description": "on which forces and moments depend" if one.for_forces else "what the model is told of the case" +
                                       (", in training {:g} to {:g}".format(*one.trained) if one.trained else "")}
                       for name, one in surrogate.inputs.items()],
        "requestBody": {"required": True, "content": {
            "multipart/form-data": {"schema": {"type": "object", "required": ["file"], "properties": {"file": binary["schema"]}}},
            "model/stl": binary, "application/octet-stream": binary}},
    }

    @app.post("/forces", openapi_extra=described, summary="Coefficients of forces and moments on a surface, STL or VTP")
    async def forces(request: Request) -> dict[str, Any]:
        return await answer(request, forces_of)

    @app.post("/fields", openapi_extra=described, response_class=Response, summary="A surface, STL or VTP, as a VTP with the predicted fields")
    async def fields(request: Request) -> Response:
        return await answer(request, fields_of)

    @app.get("/", summary="What the models are told, and what they predict")
    async def about() -> dict[str, Any]:
        return {"inputs": {name: {"required": one.required, "for_forces": one.for_forces, "trained": one.trained} for name, one in surrogate.inputs.items()}, "targets": surrogate.targets}

    return app


def main(words: Optional[Sequence[str]] = None) -> int:
    def at_least(kind: Callable[[str], Any], least: float) -> Callable[[str], Any]:
        def number(text: str) -> Any:
            if not least <= kind(text) < math.inf:
                raise argparse.ArgumentTypeError(f"{text} is no number from {least:g} on")
            return kind(text)
        return number

    parser = argparse.ArgumentParser(prog="python -m meshard.serve", description="Serves trained runs over HTTP until SIGINT or SIGTERM.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run of `meshard train`, or a file of weights; the mean of several is predicted")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all, without any protection (default: %(default)s)")
    parser.add_argument("--port", type=at_least(int, 0), default=8000, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--max-bytes", type=at_least(int, 1), default=MAX_BYTES, help="largest body of a request (default: %(default)s)")
    parser.add_argument("--queue", type=at_least(int, 0), default=QUEUE, help="requests that may wait while one is computed (default: %(default)s)")
    parser.add_argument("--timeout", type=at_least(float, 1e-3), default=TIMEOUT, help="seconds from a request to its answer (default: %(default)g)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1 (default: %(default)s)")
    options = parser.parse_args(words)
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        try:
            surrogate = load(options.runs, device=options.device)
            if surrogate._models.needs_wall:
                raise InvalidInput("the model is told the distance to a surface, or encodes one, and a request brings its mesh alone. Use `meshard predict --wall`.")
            listening = socket.create_server((options.host, options.port), family=socket.AF_INET6 if ":" in options.host else socket.AF_INET)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)   # else an answer's second packet waits 40 ms for the client
        except (Error, InvalidInput, IoError, OSError, OverflowError) as wrong:
            print(f"meshard.serve: {wrong}", file=sys.stderr)
            return 3
    for doubt in doubts:
        print(f"meshard.serve: warning: {doubt.message}", file=sys.stderr)
    warnings.simplefilter("ignore", UserWarning)   # those of predictions are in the answers
    app = make_app(surrogate, max_bytes=options.max_bytes, queue=options.queue, timeout=options.timeout)
    # uvicorn answers what it has begun and then raises the signal once more, which is to end the program orderly.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: None)
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(f"meshard.serve: http://{host}:{listening.getsockname()[1]}, described at /docs", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=math.ceil(options.timeout))).run([listening])
    print("meshard.serve: ended.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
