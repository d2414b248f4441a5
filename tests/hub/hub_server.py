"""A stand-in for the Hub on 127.0.0.1: what of its HTTP interface a push and a load use, with commits and branches."""

import base64
import hashlib
import json
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

Files = dict[str, bytes]


def blob_id(data: bytes) -> str:
    """The name that git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    """Commits by name, each with all of its files, and the branches that point to them."""

    private: bool = False
    sdk: str | None = None
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: Files, message: str) -> str:
        name = secrets.token_hex(20)
        self.commits[name] = files
        self.branches[branch] = name
        self.messages.append(message)
        return name

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision, revision if revision in self.commits else None)

    def files(self, revision: str = "main") -> Files:
        name = self.resolve(revision)
        assert name is not None
        return self.commits[name]


class HubServer(ThreadingHTTPServer):
    """Repositories, users by their tokens, and the requests that came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        # Spaces stand under "spaces/" and their names.
        self.repositories: dict[str, Repository] = {}
        self.users = {"token-of-ann": "ann", "token-of-bob": "bob"}
        self.requests: list[str] = []
        self.lost: str | None = None
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def losing(self, request: str) -> Iterator[None]:
        """Within it the connection breaks in the middle of every request whose path holds this string."""
        self.lost = request
        try:
            yield
        finally:
            self.lost = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that is gone is no news."""


class _Refusal(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        self.status, self.message, self.code = status, message, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_GET

    def _answer(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        self.server.requests.append(f"{self.command} {path}")
        length = int(self.headers.get("Content-Length", 0))
        if self.server.lost is not None and self.server.lost in path:
            self.rfile.read(length // 2)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        try:
            with self.server.lock:
                self._route(path, parse_qs(url.query), body)
        except _Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            self._send(refusal.status, {"error": refusal.message}, headers)

    def _route(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        if path == "/api/whoami-v2":
            return self._send(200, {"name": self._user(), "type": "user", "orgs": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            card = json.loads(body)
            problems = card_problems(card["content"])
            return self._send(400 if problems else 200, {"errors": [{"message": p} for p in problems], "warnings": []})
        if match := re.fullmatch(r"/api/(?:models/|(spaces/))([^/]+/[^/]+)(?:/(\S*))?", path):
            action, _, rest = (match[3] or "revision/main").partition("/")
            return getattr(self, f"_{action.replace('-', '_')}")((match[1] or "") + match[2], rest, query, body)
        if match := re.fullmatch(r"/((?:spaces/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(*match.groups())
        raise _Refusal(404, f"no such place: {path}")

    # Who asks, and what they may.

    def _user(self) -> str | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.server.users:
            raise _Refusal(401, "Invalid credentials in Authorization header")
        return self.server.users.get(token)

    def _repository(self, name: str, write: bool = False) -> Repository:
        user, owner = self._user(), name.removeprefix("spaces/").partition("/")[0]
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and user != owner):
            raise _Refusal(401 if user is None else 404, "Repository not found", "RepoNotFound")
        if write and user != owner:
            raise _Refusal(403, f"You have read access but not the required permissions for this operation: {name}")
        return repository

    def _commit_name(self, repository: Repository, revision: str) -> str:
        name = repository.resolve(revision)
        if name is None:
            raise _Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return name

    # What may be asked for.

    def _create(self, wish: dict[str, Any]) -> None:
        user = self._user()
        if user is None:
            raise _Refusal(401, "Invalid username or password.")
        owner = wish.get("organization") or user
        if owner != user:
            raise _Refusal(403, f'You don\'t have the rights to create a model under the namespace "{owner}"')
        space = wish.get("type") == "space"
        name = f"{'spaces/' if space else ''}{owner}/{wish['name']}"
        if space and wish.get("sdk") not in ("gradio", "static", "docker"):
            raise _Refusal(400, "A Space needs an SDK")
        url = {"url": f"{self.server.url}/{name}", "name": name}
        if name in self.server.repositories:
            self._send(409, {"error": "You already created this model repo", **url})
            return
        repository = self.server.repositories[name] = Repository(wish.get("visibility") == "private", wish.get("sdk"))
        repository.commit("main", {".gitattributes": b""}, "initial commit")
        self._send(200, url)

    def _branch(self, name: str, branch: str, query: dict[str, list[str]], body: bytes) -> None:
        repository = self._repository(name, write=True)
        if branch in repository.branches:
            raise _Refusal(409, f"Reference already exists: {branch}")
        repository.branches[branch] = repository.branches["main"]
        self._send(200, {})

    def _preupload(self, name: str, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        files = self._repository(name, write=True).files(revision)
        answers = [
            {"path": path, "uploadMode": "regular", "shouldIgnore": False}
            | ({"oid": blob_id(files[path])} if path in files else {})
            for path in (file["path"] for file in json.loads(body)["files"])
        ]
        self._send(200, {"files": answers})

    def _commit(self, name: str, branch: str, query: dict[str, list[str]], body: bytes) -> None:
        repository = self._repository(name, write=True)
        files, message = dict(repository.files(branch)), ""
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = repository.commit(branch, files, message)
        self._send(
            200, {"commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit, "success": True}
        )

    def _revision(self, name: str, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        repository = self._repository(name)
        commit = self._commit_name(repository, revision)
        files = repository.commits[commit]
        config = json.loads(files["config.json"]) if "config.json" in files else {}
        head = card_head(files.get("README.md", b"").decode()) or {}
        info = {
            "id": name.removeprefix("spaces/"),
            "sha": commit,
            "private": repository.private,
            "config": {key: config[key] for key in ("model_type", "architectures") if key in config},
            "pipeline_tag": head.get("pipeline_tag"),
            "library_name": head.get("library_name"),
            "tags": [],
            "sdk": repository.sdk,
            "cardData": head,
            "siblings": [{"rfilename": path} for path in files],
        }
        self._send(200, info)

    def _tree(self, name: str, place: str, query: dict[str, list[str]], body: bytes) -> None:
        revision, _, folder = place.partition("/")
        repository = self._repository(name)
        files = repository.commits[self._commit_name(repository, revision)]
        if folder:
            raise _Refusal(404, f"{folder} does not exist", "EntryNotFound")
        entries = [
            {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)} for path, data in files.items()
        ]
        self._send(200, entries)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repository = self._repository(name)
        commit = self._commit_name(repository, revision)
        headers = {"X-Repo-Commit": commit}
        data = repository.commits[commit].get(path)
        if data is None:
            raise _Refusal(404, f"{path} does not exist", "EntryNotFound")
        self._send(200, data, headers | {"ETag": f'"{blob_id(data)}"'})

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/octet-stream" if data is content else "application/json")
        for key, value in (headers or {}).items():
            if value:
                self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def card_head(card: str) -> dict[str, Any] | None:
    """The fields that a card begins with."""
    match = re.match(r"---\r?\n(.*?)\r?\n---", card, re.DOTALL)
    head = yaml.safe_load(match[1]) if match else None
    return head if isinstance(head, dict) else None


def card_problems(card: str) -> list[str]:
    """Returns the faults for which the Hub would refuse the head of a card."""
    head = card_head(card)
    if head is None:
        return ["no metadata"]
    problems = []
    languages = head.get("language", [])
    for language in [languages] if isinstance(languages, str) else languages:
        if not re.fullmatch(r"[a-z]{2,3}|code|multilingual", language):
            problems.append(f'"language" {language} must be an ISO code')
    if "license" in head and not re.fullmatch(r"[a-z][a-z0-9.-]*", head["license"]):
        problems.append(f'"license" {head["license"]} must be one of the known ones')
    for name in ("tags", "metrics", "datasets"):
        if not isinstance(head.get(name, []), list):
            problems.append(f'"{name}" must be a list')
    return problems
