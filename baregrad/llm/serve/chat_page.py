"""One page to talk to the model from a browser; it loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 48rem; padding: 0 1rem; height: 100dvh; display: flex;
  flex-direction: column; }
header { display: flex; gap: .5rem; align-items: baseline; padding: .75rem 0; }
h1 { font-size: 1rem; flex: 1; margin: 0; }
main { flex: 1; overflow-y: auto; }
article { white-space: pre-wrap; overflow-wrap: anywhere; padding: .5rem .75rem;
  margin: 0 0 .75rem; border-radius: .5rem; }
.user { background: color-mix(in srgb, currentColor 10%, transparent); width: fit-content;
  max-width: 80%; box-sizing: border-box; margin-left: auto; }
.assistant:empty::after { content: "…"; opacity: .6; }
.error { color: #c0392b; }
details { opacity: .7; }
form { display: flex; gap: .5rem; padding: .75rem 0; }
textarea { flex: 1; font: inherit; resize: none; height: 4.5rem; padding: .5rem; }
#send { min-width: 4.5rem; }
"""

_SCRIPT = """
"use strict";
const find = (id) => document.getElementById(id);
const log = find("log"), text = find("text"), send = find("send"), key = find("key");
let messages = [], running = null;
key.value = sessionStorage.getItem("key") || "";
key.onchange = () => sessionStorage.setItem("key", key.value);
const askForKey = (isNeeded) => { find("door").hidden = !(isNeeded || key.value); };
askForKey(false);
const headers = () => ({ "content-type": "application/json",
  ...(key.value ? { authorization: "Bearer " + key.value } : {}) });

function show(kind) {
  const place = document.createElement("article");
  place.className = kind;
  log.append(place);
  log.scrollTop = log.scrollHeight;
  return place;
}

function add(place, name, piece) {
  let part = place.querySelector("." + name);
  if (!part) {
    part = document.createElement("span");
    part.className = name;
    if (name === "thought") {
      const folded = document.createElement("details"), label = document.createElement("summary");
      label.textContent = "Thoughts";
      folded.append(label, part);
      place.append(folded);
    } else { place.append(part); }
  }
  // Who has scrolled up to read is left there.
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  part.textContent += piece;
  if (follows) log.scrollTop = log.scrollHeight;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\\n\\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ") || block === "data: [DONE]") continue;
      yield JSON.parse(block.slice(6));
    }
  }
}

async function ask() {
  const content = text.value.trim();
  if (!content || running) return;
  text.value = "";
  const chat = messages;
  chat.push({ role: "user", content });
  for (const old of log.querySelectorAll(".error")) old.remove();
  const asked = show("user");
  add(asked, "answer", content);
  const place = show("assistant");
  running = new AbortController();
  send.textContent = "Stop";
  let answer = "";
  try {
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(),
      body: JSON.stringify({ messages, stream: true }), signal: running.signal });
    askForKey(response.status === 401);
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const data of events(response)) {
      if (data.error) throw new Error(data.error.message);
      const delta = data.choices[0]?.delta ?? {};
      if (delta.reasoning_content) add(place, "thought", delta.reasoning_content);
      if (delta.content) { answer += delta.content; add(place, "answer", delta.content); }
    }
  } catch (error) {
    if (error.name !== "AbortError") add(show("error"), "answer", error.message);
  }
  running = null;
  send.textContent = "Send";
  if (!place.textContent) place.remove();
  if (answer) chat.push({ role: "assistant", content: answer });
  else {
    // What was not answered is no part of the chat, and can be asked again.
    chat.pop();
    asked.remove();
    if (chat === messages) text.value ||= content;
  }
  text.focus();
}

find("form").onsubmit = (event) => {
  event.preventDefault();
  if (running) running.abort(); else ask();
};
text.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask();
  }
};
find("clear").onclick = () => {
  if (running) running.abort();
  messages = [];
  log.replaceChildren();
  text.focus();
};
"""

PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>baregrad</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>baregrad</h1>
<label id="door" hidden>Key <input id="key" type="password" size="8" autocomplete="off"></label>
<button id="clear" type="button">New chat</button>
</header>
<main id="log" aria-live="polite"></main>
<form id="form">
<textarea id="text" aria-label="Message" placeholder="Message" autofocus></textarea>
<button id="send">Send</button>
</form>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


# Only the page's own script and style run, and it speaks to its own server alone.
HEADERS = (
    ("content-security-policy",
     f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; "
     "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
)
