// The page: takes the text, shows what the worker says. All text is shown as text.
"use strict";

// No module, so that it can say why nothing works where the page was opened as a file.
const parts = ["form", "source", "translate", "stop", "dtype", "status", "progress", "target", "copy"];
const at = Object.fromEntries(parts.map((id) => [id, document.getElementById(id)]));

const folder = new URL(".", location.href).href;
let worker = null;
let lines = [];

function say(text, isError = false) {
  at.status.textContent = text;
  at.status.classList.toggle("error", isError);
}

function busy(isBusy) {
  at.translate.disabled = at.dtype.disabled = isBusy;
  at.stop.hidden = !isBusy;
  at.target.setAttribute("aria-busy", String(isBusy));
  if (!isBusy) at.progress.hidden = true;
}

function fail(message) {
  worker?.terminate();
  worker = null;
  busy(false);
  say(message, true);
}

const heard = {
  progress({ loaded, total }) {
    if (at.progress.hidden) say(`Fetching ${(total / 1e6).toFixed(1)} MB.`); // Once: a screen reader reads it out.
    at.progress.hidden = false;
    at.progress.value = loaded / total;
  },
  ready({ seconds }) {
    at.progress.hidden = true;
    say(`Ready after ${seconds.toFixed(1)} s. Translating.`);
  },
  line({ index, text }) {
    lines[index] = text;
    at.target.textContent = lines.join("\n");
  },
  done({ tokens, seconds, cut, stopped }) {
    const told = [`${tokens} tokens in ${seconds.toFixed(2)} s.`];
    if (stopped) told.unshift("Stopped.");
    if (cut.length) told.push(`Too long for the model, and cut: line ${cut.join(", ")}.`);
    say(told.join(" "));
    at.copy.hidden = at.target.textContent === "";
    busy(false);
  },
  error({ message }) {
    fail(message);
  },
};

async function start() {
  // Made of its text, the worker is bound to the page's policy: it can connect to no host that the page cannot.
  const code = await (await fetch("worker.js")).blob();
  worker = new Worker(URL.createObjectURL(code), { type: "module" });
  worker.onmessage = ({ data }) => heard[data.type](data);
  worker.onerror = (event) => {
    event.preventDefault();
    fail(`The program could not be started: ${event.message ?? "this browser lacks what it needs"}.`);
  };
}

at.form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (at.translate.disabled) return;
  const text = at.source.value.replaceAll("\r\n", "\n");
  at.target.textContent = "";
  at.copy.hidden = true;
  lines = [];
  if (!text.trim()) {
    say("There is nothing to translate: write a sentence first.");
    at.source.focus();
    return;
  }
  busy(true);
  say("Translating.");
  try {
    if (!worker) await start();
    worker.postMessage({ type: "translate", lines: text.split("\n"), dtype: at.dtype.value, folder });
  } catch (error) {
    fail(`The program could not be started: ${error.message}.`);
  }
});

at.source.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at.translate.disabled) at.form.requestSubmit();
});

at.stop.addEventListener("click", () => {
  say("Stopping after this line.");
  worker?.postMessage({ type: "stop" });
});

at.copy.addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(at.target.textContent);
    say("Copied.");
  } catch {
    getSelection().selectAllChildren(at.target);
    say("Selected: copy it with the keys of your device.");
  }
});

if (location.protocol === "file:") {
  at.translate.disabled = true;
  say("Browsers run no model from a file: run `python -m http.server` in this folder and open localhost:8000.", true);
}
