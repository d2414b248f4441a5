"""A stand-in for the Hub on 127.0.0.1: what of its HTTP interface a push and a load use, with commits and branches."""

import base64
import hashlib
import json
import re
import secrets
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml


def blob_id(data: bytes) -> str:
    """The name that git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    """Commits by name, each with all of its files, and the branches that point to them."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: dict[str, bytes], message: str) -> str:
        name = self.branches[branch] = secrets.token_hex(20)
        self.commits[name] = files
        self.messages.append(message)
        return name

    def resolve(self, revision: str) -> str:
        name = self.branches.get(revision, revision)
        if name not in self.commits:
            raise _Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return name

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.resolve(revision)]


class HubServer(ThreadingHTTPServer):
    """Repositories, users by their tokens, and the requests that came."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.users = {"token-of-ann": "ann"}
        self.requests: list[str] = []
        self.lost: str | None = None
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def losing(self, request: str):
        """Within it the connection breaks in the middle of every request whose path holds this string."""
        self.lost = request
        try:
            yield
        finally:
            self.lost = None

    def handle_error(self, request, client_address):
        """A connection that is gone is no news."""


class _Refusal(Exception):
    def __init__(self, status: int, message: str, code: str = ""):
        self.status, self.message, self.code = status, message, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
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
                self._route(path, body)
        except _Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            self._send({"error": refusal.message}, headers, refusal.status)

    do_HEAD = do_POST = do_GET

    def _route(self, path, body):
        if path == "/api/whoami-v2":
            return self._send({"name": self._user(), "type": "user", "orgs": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            problems = card_problems(json.loads(body)["content"])
            errors = {"errors": [{"message": problem} for problem in problems], "warnings": []}
            return self._send(errors, status=400 if problems else 200)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(\S*))?", path):
            action, _, rest = (match[2] or "revision/main").partition("/")
            write = action in ("branch", "preupload", "commit")
            return getattr(self, f"_{action}")(match[1], self._repository(match[1], write), rest, body)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(self._repository(match[1]), match[2], match[3])
        raise _Refusal(404, f"no such place: {path}")

    def _user(self):
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.server.users:
            raise _Refusal(401, "Invalid credentials in Authorization header")
        return self.server.users.get(token)

    def _repository(self, name, write=False):
        user, owner = self._user(), name.partition("/")[0]
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and user != owner):
            raise _Refusal(401 if user is None else 404, "Repository not found", "RepoNotFound")
        if write and user != owner:
            raise _Refusal(403, f"You have read access but not the required permissions for this operation: {name}")
        return repository

    def _create(self, wish):
        owner = wish.get("organization") or self._user()
        if owner is None or owner != self._user():
            raise _Refusal(403, f'You don\'t have the rights to create a model under the namespace "{owner}"')
        name = f"{owner}/{wish['name']}"
        url, there = {"url": f"{self.server.url}/{name}", "name": name}, name in self.server.repositories
        if not there:
            made = self.server.repositories[name] = Repository(wish.get("visibility") == "private")
            made.commit("main", {".gitattributes": b""}, "initial commit")
        self._send(url | ({"error": "You already created this repo"} if there else {}), status=409 if there else 200)

    def _branch(self, name, repository, branch, body):
        if branch in repository.branches:
            raise _Refusal(409, f"Reference already exists: {branch}")
        repository.branches[branch] = repository.branches["main"]
        self._send({})

    def _preupload(self, name, repository, revision, body):
        files = repository.files(revision)
        answers = [
            {"path": path, "uploadMode": "regular", "shouldIgnore": False}
            | ({"oid": blob_id(files[path])} if path in files else {})
            for path in (file["path"] for file in json.loads(body)["files"])
        ]
        self._send({"files": answers})

    def _commit(self, name, repository, branch, body):
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
        self._send({"commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit, "success": True})

    def _revision(self, name, repository, revision, body):
        files = repository.files(revision)
        config = json.loads(files["config.json"]) if "config.json" in files else {}
        head = card_head(files.get("README.md", b"").decode()) or {}
        info = {
            "id": name,
            "sha": repository.resolve(revision),
            "private": repository.private,
            "config": {key: config[key] for key in ("model_type", "architectures") if key in config},
            "pipeline_tag": head.get("pipeline_tag"),
            "library_name": head.get("library_name"),
            "tags": [],
            "cardData": head,
            "siblings": [{"rfilename": path} for path in files],
        }
        self._send(info)

    def _tree(self, name, repository, place, body):
        revision, _, folder = place.partition("/")
        if folder:
            raise _Refusal(404, f"{folder} does not exist", "EntryNotFound")
        files = repository.files(revision).items()
        self._send([{"type": "file", "path": path, "size": len(data), "oid": blob_id(data)} for path, data in files])

    def _resolve(self, repository, revision, path):
        data = repository.files(revision).get(path)
        if data is None:
            raise _Refusal(404, f"{path} does not exist", "EntryNotFound")
        self._send(data, {"X-Repo-Commit": repository.resolve(revision), "ETag": f'"{blob_id(data)}"'})

    def _send(self, content, headers=None, status=200):
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


def card_head(card: str) -> dict | None:
    """The fields that a card begins with."""
    match = re.match(r"---\r?\n(.*?)\r?\n---", card, re.DOTALL)
    head = yaml.safe_load(match[1]) if match else None
    return head if isinstance(head, dict) else None


def card_problems(card: str) -> list[str]:
    """Returns the faults for which the Hub would refuse the head of a card."""
    head = card_head(card)
    if head is None:
        return ["no metadata"]
    languages = head.get("language", [])
    languages = [languages] if isinstance(languages, str) else languages
    faults = {f'"language" {one} must be an ISO code': re.fullmatch(r"[a-z]{2,3}|code", one) for one in languages}
    faults |= {f'"{name}" must be a list': isinstance(head.get(name, []), list) for name in ("tags", "metrics")}
    return [fault for fault, is_right in faults.items() if not is_right]
