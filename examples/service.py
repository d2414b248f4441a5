"""Serve a model over HTTP; requests that arrive within a few milliseconds are translated together.

    python examples/service.py my-model --port 8000
    curl --data "A dog runs." http://localhost:8000

Each line of a request's body comes back translated. Threads of requests could call the translator by themselves; but
one batch of many lines takes less time than many batches of one.
"""

import argparse
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vanilla_transformer import Translator


class Gathering:
    """Translates the lines of several threads in one call.

    Args:
        translate: Translates lines, in order.
        wait: Seconds for which the first line waits for others.
        max_lines: Number of lines that wait for no others.
    """

    def __init__(self, translate: Callable[[list[str]], list[str]], wait: float = 0.003, max_lines: int = 64) -> None:
        self._translate, self._wait, self._max_lines = translate, wait, max_lines
        self._requests: queue.SimpleQueue[tuple[str, Future[str]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def __call__(self, lines: list[str]) -> list[str]:
        """Returns the translations once they are done; raises what their batch raised."""
        answers: list[Future[str]] = [Future() for _ in lines]
        for request in zip(lines, answers, strict=True):
            self._requests.put(request)
        return [answer.result() for answer in answers]

    def _run(self) -> None:
        while True:
            batch = [self._requests.get()]
            end = time.monotonic() + self._wait
            with suppress(queue.Empty):
                while len(batch) < self._max_lines:
                    batch.append(self._requests.get(timeout=max(0.0, end - time.monotonic())))
            try:
                translations = self._translate([line for line, _ in batch])
                for (_, answer), translation in zip(batch, translations, strict=True):
                    answer.set_result(translation)
            except Exception as error:
                for _, answer in batch:
                    answer.set_exception(error)


def server(translate: Callable[[list[str]], list[str]], port: int) -> ThreadingHTTPServer:
    """Returns a server, on this machine alone, that answers with the translation of each line of a request."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                lines = translate(body.decode("utf-8", "replace").splitlines())
            except Exception as error:
                self.send_error(500, type(error).__name__)
                raise
            answer = "".join(f"{line}\n" for line in lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(description="Serve a model over HTTP.")
    parser.add_argument("model", help="model directory or Hub id")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--num-beams", type=int, help="beam width (default: the model's own)")
    options = parser.parse_args(argv)

    translator = Translator(options.model, num_beams=options.num_beams)

    def translate(lines: list[str]) -> list[str]:
        return [translation.text for translation in translator(lines)]

    with server(Gathering(translate), options.port) as serving:
        print(f"http://localhost:{serving.server_port}", flush=True)
        with suppress(KeyboardInterrupt):
            serving.serve_forever()


if __name__ == "__main__":
    main()
