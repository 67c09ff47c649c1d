"use strict";
// Everything that the server says is inserted as text, never as HTML.
const at = (id) => document.getElementById(id);
let offered = { processors: [] }, inputs = [], snippets = {}, busy = false;

function make(tag, fields, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(fields || {})) {
    if (key.includes("-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

function chosen() {
  return offered.processors[at("processor").selectedIndex];
}

// One field of the form: its element, how a value is written into it, and how it is read.
const KINDS = {
  text: {
    make: () => make("textarea", { rows: 1 }),
    write: (value) => value,
    read: (text) => text,
  },
  number: {
    make: (field) => make("input", {
      type: "number", step: field.whole ? "1" : "any", min: field.least ?? "", max: field.most ?? "",
    }),
    write: String,
    read: Number,
  },
  choice: {
    make: (field) => make("select", {}, make("option", { value: "" }, "(default)"),
      ...field.choices.map((one) => make("option", { value: JSON.stringify(one) }, String(one)))),
    write: JSON.stringify,
    read: JSON.parse,
  },
  lines: {
    make: () => make("textarea", { rows: 2, className: "lines" }),
    write: (value) => [value].flat().join("\n"),
    read: (text) => text.split("\n"),
  },
  json: {
    make: () => make("textarea", { rows: 1, className: "json" }),
    write: JSON.stringify,
    read: (text) => {
      try { return JSON.parse(text); } catch { return text; }
    },
  },
};
const REST = {
  name: "", kind: "json", required: false, words: "an object, as JSON", about:
    "Other entries of custom_params, such as the parameters of a chain's links.",
};

function row(field, value) {
  const kind = KINDS[field.kind], input = kind.make(field), id = "field-" + field.name;
  Object.assign(input, { id, required: field.required });
  if (value !== undefined) input.value = kind.write(value);
  input.setAttribute("aria-describedby", id + "-about");
  input.addEventListener("input", () => input.setCustomValidity(""));
  inputs.push({ field, input });
  const words = field.kind === "lines" ? field.words + ", one a line" : field.words;
  return make("div", { className: "field" },
    make("label", { htmlFor: id }, field.name || "Others", " ",
      make("span", { className: "dim" }, words + (field.required ? ", required" : ""))),
    input, make("p", { className: "dim", id: id + "-about" }, field.about));
}

function showFields() {
  const { about, fields, example } = chosen(), names = new Set(fields.map((one) => one.name));
  const first = fields.filter((one) => one.required || one.name in example);
  const rest = Object.entries(example).filter(([name]) => !names.has(name));
  const more = fields.filter((one) => !first.includes(one));
  inputs = [];
  at("about").textContent = about;
  const others = row(REST, rest.length ? Object.fromEntries(rest) : undefined);
  at("fields").replaceChildren(make("legend", {}, "Its parameters"),
    ...first.map((one) => row(one, example[one.name])),
    make("details", { open: rest.length > 0 },
      make("summary", {}, "More parameters"), ...more.map((one) => row(one)), others));
}

// Returns custom_params, or null if a field cannot be read, which the browser then shows.
function readParams() {
  const params = {};
  for (const { field, input } of inputs) {
    if (input.value === "") continue;
    const value = KINDS[field.kind].read(input.value);
    if (field.name) {
      params[field.name] = value;
    } else if (value === null || typeof value !== "object" || Array.isArray(value)) {
      input.closest("details").open = true;
      input.setCustomValidity('Expected an object, such as {"name": "value"}.');
    } else {
      Object.assign(params, value);
    }
  }
  return at("form").reportValidity() ? params : null;
}

async function ask(name, body) {
  const options = body && {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(name, options);
  } catch {
    throw new Error("No answer: start sglang-lp try again, and open the address that it prints.");
  }
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error);
  return said;
}

async function send() {
  const params = busy ? null : readParams();
  if (!params) return;
  const name = chosen().name;
  setBusy(true);
  say("Waiting for both answers…");
  try {
    const done = await ask("ask", {
      processor: name, params, prompt: at("prompt").value, chat: at("chat").value === "chat",
      max_tokens: Number(at("max_tokens").value), temperature: Number(at("temperature").value),
    });
    show(name, done);
    const failed = done.answers.filter((one) => one.error).length;
    say(failed ? `${failed} of 2 requests failed.` : "Both answers are here.", failed > 0);
  } catch (error) {
    say(error.message, true);
  }
  setBusy(false);
}

// A disabled button would lose the keyboard's focus.
function setBusy(now) {
  busy = now;
  at("send").setAttribute("aria-disabled", String(now));
}

function say(text, alarm = false) {
  at("status").textContent = text;
  at("status").className = alarm ? "alarm" : "";
}

function show(name, done) {
  const titles = ["With " + name, "Without it"];
  at("answers").replaceChildren(...done.answers.map((one, place) => make("article", {},
    make("h2", {}, titles[place]),
    one.error ? make("p", { className: "alarm" }, one.error) : "",
    one.thinking ? make("details", {}, make("summary", {}, "Thinking"),
      make("pre", { className: "thinking" }, one.thinking)) : "",
    one.error ? "" : make("pre", { className: "answer" }, one.text),
    make("p", { className: "dim" }, one.about))));
  at("trace").hidden = !done.trace;
  at("trace").srcdoc = done.trace;
  at("note").textContent = done.trace ? "" : done.note || "There is no answer to trace.";
  snippets = done.snippets;
  showSnippet();
  at("results").hidden = false;
}

function showSnippet() {
  at("snippet").textContent = snippets[at("language").value];
  at("copied").textContent = "";
}

async function copy() {
  try {
    await navigator.clipboard.writeText(at("snippet").textContent);
    at("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(at("snippet"));
    at("copied").textContent = "Selected: copy it with Ctrl C.";
  }
}

at("processor").addEventListener("change", showFields);
at("language").addEventListener("change", showSnippet);
at("copy").addEventListener("click", copy);
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit();
});
ask("offer").then((told) => {
  if (!told.processors.length) throw new Error("The policy of this server allows no processors.");
  offered = told;
  at("server").textContent = `${told.model} at ${told.url}, sglang-lp ${told.version}`;
  at("processor").append(...told.processors.map((one) => make("option", {}, one.name)));
  const begin = told.processors.findIndex((one) => one.name === "BadWordsLogitProcessor");
  at("processor").selectedIndex = Math.max(0, begin);
  showFields();
  document.documentElement.dataset.ready = "true";
}).catch((error) => {
  at("server").textContent = error.message;
  at("server").className = "alarm";
  at("form").hidden = true;
});
