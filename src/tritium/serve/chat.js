"use strict";
// The conversation is kept in this page alone. Text of a model or a user is only ever set as textContent.
const at = (id) => document.getElementById(id);
const KEPT = ["system", "temperature", "most"];  // settings that a reload keeps; the key is never stored
let messages = [];  // {role, content}
let name = null;
let chats = true;  // false: the model has no chat template and continues text
let running = null;  // the AbortController of the response under way

function headers() {
  const key = at("key").value.trim();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server returned ${response.status}.`;
  }
}

async function connect() {
  try {
    const response = await fetch("props", { headers: headers() });
    if (response.status === 401) {
      show(true);
      at("state").textContent = "needs an API key";
      return;
    }
    if (!response.ok) throw new Error(await reason(response));
    const props = await response.json();
    name = props.model_alias;
    chats = props.chat_template !== "";
    at("model").textContent = document.title = name;
    at("state").textContent = "";
    at("hint").textContent = chats ? "Enter sends, Shift+Enter breaks the line, Esc stops." : "This model has no chat template: it continues your text. Enter sends, Esc stops.";
    at("system").disabled = !chats;
  } catch (error) {
    at("state").textContent = "no connection";
    at("hint").textContent = String(error.message || error);
  }
}

function show(open) {
  at("settings").hidden = !open;
  at("open").setAttribute("aria-expanded", String(open));
}

function card(role, text) {
  const article = document.createElement("article");
  article.className = role;
  const title = document.createElement("h2");
  title.textContent = { user: "You", assistant: name || "Model", error: "Error" }[role];
  const body = document.createElement("div");
  body.className = "text";
  body.textContent = text;
  const foot = document.createElement("footer");
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.setAttribute("aria-label", `Copy: ${title.textContent}`);
  copy.addEventListener("click", () => copied(copy, body.textContent));
  const about = document.createElement("span");
  foot.append(copy, about);
  article.append(title, body, foot);
  at("log").append(article);
  return { article, body, about };
}

async function copied(button, text) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);  // pages of localhost or https alone
    done = true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  button.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

function request(text) {
  const settings = { stream: true, stream_options: { include_usage: true }, temperature: Number(at("temperature").value || 1) };
  if (at("most").value) settings.max_tokens = Number(at("most").value);
  if (!chats) return ["v1/completions", { ...settings, prompt: text }];
  const system = at("system").value.trim();
  const all = [...(system ? [{ role: "system", content: system }] : []), ...messages];
  return ["v1/chat/completions", { ...settings, messages: all }];
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const line = part.split("\n").find((l) => l.startsWith("data: "));
      if (line && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function pinned() {
  const log = at("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 40;
}

function append(body, text) {
  const follow = pinned();
  body.append(text);
  if (follow) at("log").scrollTop = at("log").scrollHeight;
}

async function receive(out, path, sent) {
  const begun = performance.now();
  let finish = null, usage = null;
  const response = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(sent), signal: running.signal });
  if (!response.ok) throw new Error(await reason(response));
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    usage = event.usage || usage;
    for (const choice of event.choices) {
      const text = choice.delta ? choice.delta.content : choice.text;
      if (text) append(out.body, text);
      finish = choice.finish_reason || finish;
    }
  }
  const seconds = (performance.now() - begun) / 1000;
  const count = usage ? usage.completion_tokens : 0;
  out.about.textContent = `${count} tokens, ${(count / seconds).toFixed(0)} tokens/s${finish === "length" ? ", cut at the limit" : ""}`;
}

function busy(on) {
  at("send").hidden = on;
  at("stop").hidden = !on;
  at("clear").disabled = on;
  at("log").setAttribute("aria-busy", String(on));
}

async function ask(text) {
  messages.push({ role: "user", content: text });
  card("user", text);
  const [path, sent] = request(text);
  const out = card("assistant", "");
  at("hint").hidden = true;
  at("log").scrollTop = at("log").scrollHeight;
  out.article.classList.add("busy");
  running = new AbortController();
  busy(true);
  try {
    await receive(out, path, sent);
  } catch (error) {
    if (error.name === "AbortError") out.about.textContent = "stopped";
    else card("error", error.message || String(error));
  } finally {
    running = null;
    out.article.classList.remove("busy");
    busy(false);
    at("text").focus();
  }
  if (out.body.textContent) messages.push({ role: "assistant", content: out.body.textContent });
  else {
    messages.pop();  // an unanswered question is not part of the next request
    out.article.remove();
  }
}

function fit() {
  const text = at("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("text").value;
  if (running || !text.trim()) return;
  at("text").value = "";
  fit();
  ask(text);
});
at("text").addEventListener("input", fit);
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
});
at("stop").addEventListener("click", () => running && running.abort());
at("clear").addEventListener("click", () => {
  messages = [];
  at("log").querySelectorAll("article").forEach((article) => article.remove());
  at("hint").hidden = false;
  at("text").focus();
});
at("open").addEventListener("click", () => show(at("settings").hidden));
at("settings").addEventListener("submit", (event) => event.preventDefault());
at("key").addEventListener("change", connect);
for (const id of KEPT) {
  const kept = localStorage.getItem(`tritium.${id}`);
  if (kept !== null) at(id).value = kept;
  at(id).addEventListener("change", () => localStorage.setItem(`tritium.${id}`, at(id).value));
}
connect();
