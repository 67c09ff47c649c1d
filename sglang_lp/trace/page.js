"use strict";
// Text of the answer is inserted as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const about = document.getElementById("about");
const RANK = ["biased", "limited", "forced"];
const LANES = ["thinking", "forced", "limited", "biased", "problems"];
const LANE = 14, CHUNK = 400, LONGEST = 1200;
const WHAT = {
  forced: 2, ended: 2, allowed: 1, banned: 1, near_top: 1, rewritten: 1, biased: 0, scaled: 0,
  pooled: 0,
};
const panes = [];
let at = { pane: 0, token: 0 };

function make(tag, fields, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(fields || {})) {
    if (key === "class") made.className = value;
    else if (key.includes("-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

function visible(text) {
  return text.replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5").replaceAll(" ", "\u2423");
}

class Pane {
  constructor(given, number) {
    Object.assign(this, given);
    this.number = number;
    this.count = this.ids.length;
    this.starts = new Uint32Array(this.count + 1);
    for (let i = 0; i < this.count; i++) this.starts[i + 1] = this.starts[i] + this.lengths[i];
    // Kind of the edits at each token: an index into RANK, or -1 for none.
    this.kinds = new Int8Array(this.count).fill(-1);
    for (const [i, edits] of Object.entries(this.happened)) {
      for (const edit of edits) this.kinds[i] = Math.max(this.kinds[i], WHAT[this.edits[edit].what]);
    }
    this.inside = new Uint8Array(this.count);
    for (const block of this.blocks) this.inside.fill(1, block.start, block.stop);
    this.box = make("section", {
      class: "text", role: "listbox", tabIndex: 0, id: "text" + number, "aria-label": this.title,
    });
    this.bar = make("canvas", { role: "img", "aria-label": this.summary() });
    this.chunks = this.cut();
  }

  summary() {
    const said = this.blocks.map(
      (block) => `thinking at positions ${block.start} to ${block.stop - 1}, ` +
        (block.closed ? `closed by ${block.closed}` : "not closed"));
    const edited = this.kinds.reduce((sum, kind) => sum + (kind >= 0), 0);
    said.push(`${edited} of ${this.count} tokens edited`);
    said.push(`${Object.keys(this.problems).length} problems`);
    return said.join("; ");
  }

  cut() {
    const chunks = [];
    for (let start = 0; start < this.count;) {
      let stop = Math.min(start + CHUNK, this.count);
      // At a line break, where the start of a new block would be invisible.
      while (stop < this.count && stop - start < LONGEST && !this.textOf(stop - 1).endsWith("\n")) stop++;
      const node = make("div", { class: "chunk" });
      node.textContent = this.text.slice(this.starts[start], this.starts[stop]);
      node.chunk = { start, stop, node, dressed: false };
      chunks.push(node.chunk);
      start = stop;
    }
    this.box.append(...chunks.map((chunk) => chunk.node));
    return chunks;
  }

  textOf(i) {
    return this.text.slice(this.starts[i], this.starts[i + 1]);
  }

  nameOf(i) {
    return this.names[i] ?? visible(this.textOf(i));
  }

  list(edit, most) {
    const spans = edit.ids.slice(0, most).map((id, k) => make("span", {},
      visible(this.called[id]) + (edit.values.length ? " " + edit.values[k] : "")));
    const more = edit.more + Math.max(0, edit.ids.length - most);
    return make("div", { class: "list" }, ...spans, more ? `and ${more.toLocaleString("en")} more` : "");
  }

  dress(chunk) {
    if (chunk.dressed) return;
    chunk.dressed = true;
    const spans = [];
    for (let i = chunk.start; i < chunk.stop; i++) spans.push(this.span(i));
    chunk.node.replaceChildren(...spans);
  }

  span(i) {
    const text = this.textOf(i);
    let kind = "t";
    if (this.inside[i]) kind += " think";
    if (this.kinds[i] >= 0) kind += " " + RANK[this.kinds[i]];
    if (this.problems[i]) kind += " problem";
    if (data.split === i) kind += " split";
    if (this.names[i] !== undefined) kind += " special";
    const span = make("span", { class: kind, id: `t${this.number}-${i}`, role: "option" }, text);
    if (this.names[i] !== undefined) span.dataset.name = this.names[i];
    else if (text.includes("\n")) span.dataset.name = "\u21b5";
    span.token = i;
    span.pane = this;
    return span;
  }

  find(i) {
    let low = 0, high = this.chunks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.chunks[middle].start <= i) low = middle; else high = middle - 1;
    }
    this.dress(this.chunks[low]);
    return this.chunks[low].node.children[i - this.chunks[low].start];
  }

  draw() {
    const bar = this.bar, ratio = window.devicePixelRatio || 1;
    const width = bar.clientWidth, height = LANE * LANES.length;
    bar.width = width * ratio;
    bar.height = height * ratio;
    bar.style.height = height + "px";
    const pen = bar.getContext("2d"), styles = getComputedStyle(document.documentElement);
    const colour = (name) => styles.getPropertyValue("--" + name).trim();
    pen.scale(ratio, ratio);
    const scale = width / Math.max(1, this.count);
    const fill = (lane, start, stop, name) => {
      pen.fillStyle = colour(name);
      pen.fillRect(start * scale, lane * LANE + 2, Math.max(1.5, (stop - start) * scale), LANE - 4);
    };
    for (const block of this.blocks) {
      fill(0, block.start, block.stop, "think");
      if (block.spent !== null) {
        pen.fillStyle = colour("text");
        pen.fillRect(block.spent * scale - 1, 0, 2, LANE);
      }
    }
    for (let i = 0; i < this.count;) {
      let stop = i + 1;
      while (stop < this.count && this.kinds[stop] === this.kinds[i]) stop++;
      if (this.kinds[i] >= 0) fill(3 - this.kinds[i], i, stop, RANK[this.kinds[i]]);
      i = stop;
    }
    for (const i of Object.keys(this.problems)) fill(4, +i, +i + 1, "problem");
    pen.fillStyle = colour("mark");
    pen.fillRect(at.token * scale - 1, 0, 2, height);
  }
}

function describe(pane, i) {
  const parts = [make("h2", {}, `Position ${i} of 0 to ${pane.count - 1}: `, make("code", {}, pane.nameOf(i)), ` id ${pane.ids[i]}`)];
  if (pane.problems[i]) parts.push(make("p", { class: "alarm" }, pane.problems[i]));
  const block = pane.blocks.find((one) => one.start <= i && i < one.stop);
  const edits = pane.happened[i] || [];
  if (!edits.length && !pane.problems[i]) parts.push(make("p", {}, pane.processors.length ? "free: no processor edited this step" : "free: no processor ran"));
  for (const index of edits) {
    const edit = pane.edits[index];
    const by = pane.processors.length > 1 ? pane.processors[edit.by][0] + ": " : "";
    parts.push(make("p", {}, by + edit.words));
    if (edit.ids.length && edit.what !== "forced") parts.push(pane.list(edit, edit.ids.length));
  }
  if (pane.looked[i]) {
    parts.push(make("p", { class: "say" }, `looked at the ${pane.looked[i]} likeliest tokens, which an answer does not hold: the replay took the one that came for the likeliest`));
  }
  if (block) {
    const closed = block.closed ? `closed by ${block.closed}` : "not closed in this answer";
    parts.push(make("p", { class: "say dim" }, `thinking: token ${i - block.start + 1} of ${block.stop - block.start} of this block, ${closed}`));
  }
  if (i === data.split) {
    const other = panes[1 - pane.number];
    const there = i < other.count ? other.nameOf(i) : "its end";
    parts.push(make("p", {}, "the first difference: the other answer has ", make("code", {}, there), " here"));
  }
  const both = [make("div", {}, ...parts)], likely = pane.likely[i];
  if (likely && likely.length) {
    const rows = likely.map(([text, share]) => make("tr", {}, make("th", {}, visible(text)), make("td", {}, share)));
    both.push(make("div", {}, make("p", { class: "say" }, "the likeliest after the edits"), make("table", {}, ...rows)));
  }
  return both;
}

function show(pane, i) {
  about.replaceChildren(...(pane.count ? describe(pane, i) : ["The answer is empty."]));
}

function select(pane, i, scroll = true) {
  if (!pane.count) return show(pane, 0);
  at = { pane: pane.number, token: Math.max(0, Math.min(i, pane.count - 1)) };
  for (const old of document.querySelectorAll(".on")) {
    old.classList.remove("on");
    old.removeAttribute("aria-selected");
  }
  for (const one of panes) {
    if (at.token >= one.count) continue;
    const span = one.find(at.token);
    span.classList.add("on");
    span.setAttribute("aria-selected", "true");
    if (one !== pane) continue;
    one.box.setAttribute("aria-activedescendant", span.id);
    if (scroll) span.scrollIntoView({ block: "center" });
  }
  show(pane, at.token);
  for (const one of panes) one.draw();
}

function next(pane, from, step, wanted) {
  for (let i = from + step; i >= 0 && i < pane.count; i += step) if (wanted(i)) return i;
  return from;
}

function onKey(pane, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const i = at.token;
  const edited = (j) => pane.kinds[j] >= 0, wrong = (j) => pane.problems[j] !== undefined;
  const moves = {
    ArrowRight: () => i + 1, ArrowLeft: () => i - 1, Home: () => 0, End: () => pane.count - 1,
    n: () => next(pane, i, 1, edited), p: () => next(pane, i, -1, edited),
    x: () => next(pane, i, 1, wrong), X: () => next(pane, i, -1, wrong),
    d: () => data.split ?? i,
  };
  const move = moves[event.key];
  if (!move) return;
  event.preventDefault();
  select(pane, move());
}

function heading(pane) {
  const parts = [];
  if (data.panes.length > 1) parts.push(make("h2", {}, pane.title));
  for (const [name, params] of pane.processors) {
    parts.push(make("p", { class: "say" }, make("strong", {}, name), " ", make("code", {}, params)));
  }
  if (!pane.processors.length) parts.push(make("p", { class: "say" }, "No processor."));
  for (const edit of pane.edits.filter((one) => one.always)) {
    parts.push(make("p", { class: "say" }, `Throughout: ${edit.words}`), pane.list(edit, 12));
  }
  const wrong = Object.keys(pane.problems).length;
  if (wrong) parts.push(make("p", { class: "alarm" }, `${wrong} of ${pane.count} tokens contradict the request, the first at position ${Object.keys(pane.problems)[0]}: the server ran without the processor or with other parameters, or this is another request's answer.`));
  for (const note of pane.notes) parts.push(make("p", { class: "alarm" }, note));
  parts.push(make("p", { class: "say dim" }, pane.summary() + (pane.finish ? `; ended by ${pane.finish}` : "")));
  return make("div", { class: "pane" }, ...parts);
}

for (const [number, given] of data.panes.entries()) panes.push(new Pane(given, number));
document.getElementById("heads").append(...panes.map(heading));
document.getElementById("bars").append(...panes.map((pane) => make("div", { class: "pane bar" },
  make("div", { class: "lanes", "aria-hidden": "true" }, ...LANES.map((lane) => make("div", {}, lane))), pane.bar)));
document.getElementById("texts").append(...panes.map((pane) => make("div", { class: "pane" }, pane.box)));

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) {
    entry.target.parentNode && panes[+entry.target.parentNode.id.slice(4)].dress(entry.target.chunk);
    watcher.unobserve(entry.target);
  }
}, { rootMargin: "800px" });
for (const pane of panes) {
  for (const chunk of pane.chunks) watcher.observe(chunk.node);
  pane.box.addEventListener("mouseover", (event) => event.target.pane && show(pane, event.target.token));
  pane.box.addEventListener("mouseleave", () => show(panes[at.pane], at.token));
  pane.box.addEventListener("click", (event) => event.target.pane && select(pane, event.target.token, false));
  pane.box.addEventListener("keydown", (event) => onKey(pane, event));
  pane.box.addEventListener("focus", () => at.pane !== pane.number && select(pane, at.token, false));
  pane.bar.addEventListener("click", (event) => {
    select(pane, Math.floor(event.offsetX / pane.bar.clientWidth * pane.count));
    pane.box.focus({ preventScroll: true });
  });
}
const redraw = () => panes.forEach((pane) => pane.draw());
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
const [first] = panes;
select(first, Object.keys(first.problems).length ? +Object.keys(first.problems)[0] : Math.max(0, first.kinds.findIndex((kind) => kind >= 0)), false);
document.documentElement.dataset.ready = performance.now();
