"use strict";
// The views. What is looked at is `spot`, which the address holds.

const find = (id) => document.getElementById(id);
// More boxes than this are not drawn at once: lines stand for their nodes, or a neighbourhood for all.
// dagre takes 30 ms to place them, and 200 ms for 220.
const MOST_BOXES = 80;
const DEFAULTS = { view: "lines", c: "", p: "", line: "", kernel: "", part: "", node: "", group: "", stretch: "",
  from: "", to: "", lane: "", at: "", device: "", when: "", owner: "", word: "" };
// Rows of the list that are shown, and stretches of a line of more nodes.
const MOST_ROWS = 500;
const MOST_STRETCHES = 60;
// Graphs of so many nodes in all are fetched before somebody asks for them.
const MOST_AHEAD = 200000;
// And kernels, of which there are up to so many: one's document has a tenth of a megabyte.
const MOST_KERNELS_AHEAD = 100;
const MACHINE = "machine code";
let spot = { ...DEFAULTS }, summary = null, picture = null, asked = 0;

// The computation that is looked at: the dearest, unless one was chosen.
function computation() {
  if (spot.c !== "") return Number(spot.c);
  const costs = summary.computations.map((one) => one.least_ns * one.runs);
  return costs.indexOf(Math.max(...costs));
}

// Moves within a picture (`isSmall`) leave no trace in the browser's history.
function go(change, isSmall = false) {
  const next = { ...spot, ...change };
  const text = new URLSearchParams(Object.entries(next).filter(([name, value]) => value !== DEFAULTS[name])).toString();
  if (location.hash.slice(1) === text) show();
  else if (isSmall) { history.replaceState(null, "", "#" + text); read(); show(); }
  else location.hash = text;
}

function read() {
  spot = { ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
  if (!summary.views.includes(spot.view)) spot.view = summary.views[0];
}

const tabs = () => [...document.querySelectorAll("[role=tab]:not([hidden])")];

async function show() {
  const mine = ++asked;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.view === spot.view));
    tab.tabIndex = tab.dataset.view === spot.view ? 0 : -1;
  }
  if (summary.computations) find("computation").value = String(computation());
  find("middle").classList.toggle("picture", spot.view === "graph");
  find("list").setAttribute("aria-labelledby", "tab-" + spot.view);
  try {
    const isWanted = () => mine === asked;
    if (spot.view === "timeline") await showTimeline(isWanted);
    else if (spot.view === "memory") await showMemory(isWanted);
    else if (spot.view === "commands") await showCommands(isWanted);
    else {
      const plan = await model.get("plan/" + computation());
      await { lines: showLines, kernels: showKernels, graph: showGraph }[spot.view](plan, isWanted);
    }
    if (mine === asked) find("status").textContent = "";
  } catch (error) {
    if (mine === asked) find("status").textContent = String(error.message || error);
  }
}

// Rows of the list, of which those that hold the searched words are shown; those whose key is `chosen` are the current
// ones. Whoever asks gives the same array for the same rows: then only the current one is another, since making and
// placing hundreds of rows takes longer than a click may.
let filled = { rows: null, asked: "", chosen: "", buttons: new Map() };
function fillList(rows, heading, chosen = "") {
  const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean), asked = JSON.stringify([heading, words]);
  const list = find("list"), isNew = filled.rows !== rows || filled.asked !== asked;
  // Rows that are made anew: who was among them by keyboard stays there.
  const wasInside = isNew && list.contains(document.activeElement) && document.activeElement.matches(".row");
  if (isNew) {
    filled = { rows, asked, chosen: "", buttons: new Map() };
    list.replaceChildren(...makeRows(rows, heading, words));
  }
  for (const button of filled.buttons.get(filled.chosen) || []) button.setAttribute("aria-current", "false");
  filled.chosen = chosen;
  const current = filled.buttons.get(chosen) || [];
  for (const button of current) button.setAttribute("aria-current", "true");
  // Of several launches of one kernel the one that was clicked stays where it is.
  const shown = current.find((button) => button === document.activeElement) || current[0];
  shown?.scrollIntoView({ block: "nearest" });
  if (wasInside) shown?.focus();
}

function makeRows(rows, heading, words) {
  const kept = rows.filter((row) => words.every((word) => row.text.toLowerCase().includes(word)));
  const tail = kept.length > MOST_ROWS ? [`${kept.length - MOST_ROWS} more: search for them`] : [];
  const found = words.length ? ` (${kept.length} of ${rows.length})` : "";
  const buttons = kept.slice(0, MOST_ROWS).map((row) => {
    const { title, note } = row.made ? row.made() : row;
    const button = make("button", { class: "row", "aria-current": "false" }, title, make("small", {}, note),
      ...(row.share === undefined ? [] : [make("span", { class: "bar", style: `width:${(100 * row.share).toFixed(2)}%` })]));
    button.onclick = row.choose;
    if (!filled.buttons.has(row.key)) filled.buttons.set(row.key, []);
    filled.buttons.get(row.key).push(button);
    return button;
  });
  return [make("h2", {}, heading + found), ...buttons, ...tail];
}

function pairs(entries) {
  const list = make("dl");
  for (const [name, value] of entries) {
    if (value !== "" && value !== undefined) list.append(make("dt", {}, name), make("dd", {}, value));
  }
  return list;
}

const link = (text, choose) => make("button", { class: "link", onclick: choose }, text);
const kernelLink = (step) => link(`${step.name}, at least ${seconds(step.least_ns)}`,
  () => go({ view: "kernels", kernel: String(step.kernel), part: "", c: step.c ?? spot.c }));
const lineLink = (where) => where ? link(where, () => go({ view: "lines", line: where })) : "";

// --- lines

function sourceOf(where) {
  const split = where.lastIndexOf(":");
  return (summary.files[where.slice(0, split)] || [])[Number(where.slice(split + 1)) - 1]?.trim() || "";
}

async function showLines(plan, isWanted) {
  const total = summary.lines.reduce((sum, one) => sum + one.least_ns, 0) || 1;
  const chosen = spot.line || summary.lines.find((one) => one.where)?.where || "";
  summary.rows ??= summary.lines.map((one) => ({
    key: one.where, title: sourceOf(one.where) || shortPlace(one.where),
    note: `${shortPlace(one.where)} · at least ${seconds(one.least_ns)} (${(100 * one.least_ns / total).toFixed(1)} %) · ${one.launches} launches`,
    text: one.where + " " + sourceOf(one.where), share: one.least_ns / total, choose: () => go({ line: one.where }),
  }));
  fillList(summary.rows, "Your lines, the dearest first", chosen);
  const split = chosen.lastIndexOf(":"), file = chosen.slice(0, split), here = Number(chosen.slice(split + 1));
  const costs = new Map(summary.lines.map((one) => [one.where, one.least_ns]));
  const text = make("pre");
  (summary.files[file] || []).forEach((line, number) => {
    const cost = costs.get(`${file}:${number + 1}`);
    text.append(make("span", number + 1 === here ? { class: "at" } : {},
      make("span", { class: "number" }, String(number + 1)),
      make("span", { class: "cost" }, cost ? `${(100 * cost / total).toFixed(1)} %` : ""), line), "\n");
  });
  find("middle").replaceChildren(make("h2", {}, file || "No source"), text);
  text.querySelector(".at")?.scrollIntoView({ block: "center" });
  const steps = [], decisions = [];
  for (const number of summary.computations.keys()) {
    const one = await model.get("plan/" + number);
    steps.push(...one.steps.filter((step) => step.where === chosen).map((step) => ({ ...step, c: String(number) })));
    decisions.push(...one.decisions.filter((each) => each.line === chosen).map((each) => ({ ...each, c: String(number) })));
  }
  if (!isWanted()) return;
  find("detail").replaceChildren(
    make("h2", {}, "What was stored and what was fused, and why"),
    ...counted(decisions, (one) => one.value + one.reason, decisionLine),
    make("h2", {}, "Kernels of this line"), ...counted(steps, (one) => one.kernel, kernelLink),
    make("h2", {}, "Where it is in the graph"),
    link("Show the nodes of this line", () => go({ view: "graph", group: chosen, node: "", stretch: "" })));
}

const listed = (items, each) => items.length ? items.slice(0, 300).map((one) => make("p", {}, each(one))) : ["none"];

// Those that are alike are one, with how many there are.
function counted(items, alike, each) {
  const groups = new Map();
  for (const one of items) {
    const key = alike(one);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(one);
  }
  return listed([...groups.values()], (group) => {
    const line = make("span", {}, each(group[0]));
    if (group.length > 1) line.append(` (${group.length} times)`);
    return line;
  });
}

function decisionLine(one) {
  const verb = one.stored ? "stored" : "fused";
  const box = make("span", {}, `${verb}: `, link(one.value.replace(/^\w+\s+/, ""), () => go({ view: "graph", node: String(one.id), group: "", p: "", c: one.c ?? spot.c })));
  box.append(`, ${one.reason}`);
  return box;
}

// --- kernels

async function showKernels(plan, isWanted) {
  const total = plan.steps.reduce((sum, one) => sum + one.least_ns, 0) || 1;
  const chosen = spot.kernel === "" ? plan.steps[0]?.kernel : Number(spot.kernel);
  plan.rows ??= plan.steps.map((one, number) => ({
    key: String(one.kernel), title: `${number + 1}  ${one.name}`,
    note: `${shortPlace(one.where)} · ${count(one.bytes, "B")} · ${count(one.operations)} operations · at least ${seconds(one.least_ns)}`,
    text: one.name + " " + one.where, share: one.least_ns / total,
    choose: () => go({ kernel: String(one.kernel), part: spot.part }),
  }));
  fillList(plan.rows, `Launches in order, at least ${seconds(total)}`, String(chosen));
  if (chosen === undefined) return;
  find("status").textContent = "compiling…";
  const kernel = await model.get("kernel/" + chosen);
  if (!isWanted()) return;
  const parts = new Map([["schedule and reasons", kernel.choice.join("\n")], ["loops", kernel.loops],
    ...kernel.stages.map((one) => [one.name, one.text]), [MACHINE, ""]]);
  const part = parts.has(spot.part) ? spot.part : "loops";
  if (part === MACHINE) find("status").textContent = "assembling…";
  const shown = part === MACHINE ? machineTable(await model.get("machine/" + chosen)) : make("pre", {}, parts.get(part));
  if (!isWanted()) return;
  const select = make("select", { "aria-label": "Stage", onchange: (event) => go({ part: event.target.value }) },
    ...[...parts.keys()].map((name) => make("option", name === part ? { selected: "" } : {}, name)));
  const why = kernel.stages.find((one) => one.name === part)?.why || "";
  find("middle").replaceChildren(make("h2", {}, kernel.name + " "), select, " " + why, shown);
  const step = plan.steps.find((one) => one.kernel === chosen);
  const computes = new Set(step ? step.computes : []);
  const about = plan.decisions.filter((one) => computes.has(one.id) || computes.has(one.of));
  find("detail").replaceChildren(make("h2", {}, kernel.name), pairs([
    ["your line", lineLink(kernel.where)], ["read", count(kernel.bytes_read, "B")],
    ["written", count(kernel.bytes_written, "B")], ["operations", count(kernel.operations)],
    ["at least", step ? seconds(step.least_ns) : ""],
  ]), make("h2", {}, "Why it is a kernel of its own"), ...listed(about, decisionLine),
  make("h2", {}, "Reads what these wrote"), ...listed(step ? plan.steps.filter((one) => one !== step && one.writes.some((at) => step.reads.includes(at))) : [], kernelLink),
  make("h2", {}, "Is read by"), ...listed(step ? plan.steps.filter((one) => one !== step && one.reads.some((at) => step.writes.includes(at))) : [], kernelLink));
}

// --- graph

const passOf = () => spot.p === "" ? summary.computations[computation()].passes.length - 1 : Number(spot.p);

async function showGraph(plan, isWanted) {
  const passes = summary.computations[computation()].passes, pass = passOf();
  const graph = await model.graph(computation(), pass), wanted = chosenNodes(graph);
  // Nodes are told from those of the pass before; lines that stand for theirs are not.
  const before = pass > 0 && wanted !== null ? await model.graph(computation(), pass - 1) : null;
  if (!isWanted()) return;
  if (find("search").value) {
    graph.rows ??= graph.id.map((id, position) => ({
      key: String(id), made: () => ({
        title: `${nameOf(graph, "op", position)}  ${nameOf(graph, "shape", position)}`,
        note: `${nameOf(graph, "dtype", position)} · ${shortPlace(nameOf(graph, "line", position))}`,
      }),
      text: ["op", "dtype", "shape", "line", "arg"].map((key) => nameOf(graph, key, position)).join(" "),
      choose: () => go({ node: String(id), group: "" }),
    }));
    fillList(graph.rows, "Nodes", spot.node);
  } else {
    passes.rows ??= passes.map((one, number) => ({
      key: String(number), title: one.name, note: `${one.nodes} nodes · ${one.why}`, text: one.name,
      choose: () => go({ p: String(number) }),
    }));
    fillList(passes.rows, "Passes, in order", String(pass));
  }
  drawGraph(graph, before, plan, wanted);
  tellOfNode(graph, plan, passes[pass].name);
}

const nameOf = (graph, key, position) => graph.names[graph[key][position]];

function drawGraph(graph, before, plan, wanted) {
  if (wanted === null) {
    if (spot.group === "") drawLines(graph); else drawStretches(graph);
    return;
  }
  const stored = new Set(plan.decisions.filter((one) => one.stored).map((one) => one.id));
  const inside = new Set(wanted);
  const boxes = wanted.map((position) => {
    const id = graph.id[position], shown = [nameOf(graph, "dtype", position), nameOf(graph, "shape", position)];
    const classes = [];
    if (before && !before.at.has(id)) classes.push("new");
    if (stored.has(id)) classes.push("stored");
    if (String(id) === spot.node) classes.push("chosen");
    const lines = [nameOf(graph, "op", position), shown.filter(Boolean).join(" ")];
    return { key: String(id), lines, classes, label: lines.join(" ") + (stored.has(id) ? ", stored" : "") };
  });
  const arrows = [];
  for (const position of wanted) {
    for (const source of graph.src[position]) {
      if (inside.has(graph.at.get(source))) arrows.push([String(source), String(graph.id[position])]);
    }
  }
  picture = draw(find("middle"), boxes, arrows, (key) => go({ node: key }));
  if (spot.node) picture.show(spot.node);
  const left = graph.id.length - wanted.length;
  addKey(`${wanted.length} nodes${left ? `, ${left} others not shown` : ""}; orange: made by this pass; blue: stored in memory`, left > 0);
}

// Positions of the nodes to draw; null for the lines that stand for them.
function chosenNodes(graph) {
  const all = graph.id.map((id, position) => position);
  const plain = all.filter((position) => nameOf(graph, "op", position) !== "CONST");
  if (plain.length <= MOST_BOXES) return plain;
  if (spot.node && graph.at.has(Number(spot.node))) return around(graph, graph.at.get(Number(spot.node)), plain);
  if (spot.group !== "") {
    const own = plain.filter((position) => isOfGroup(graph, position));
    return own.length <= MOST_BOXES ? own : null;
  }
  return null;
}

// Whether a node is of the line, and of the stretch of its nodes, that are looked at.
function isOfGroup(graph, position) {
  if (nameOf(graph, "line", position) !== (spot.group === "none" ? "" : spot.group)) return false;
  if (spot.stretch === "") return true;
  const [first, last] = spot.stretch.split("-").map(Number);
  return position >= first && position <= last;
}

// The nodes nearest to one, breadth first, sources and users alike.
function around(graph, start, plain) {
  const drawable = new Set(plain).add(start), found = new Set([start]);
  for (const position of found) {
    const near = [...graph.src[position].map((one) => graph.at.get(one)), ...usersOf(graph)[position]];
    for (const one of near) {
      if (found.size >= 50) return [...found];
      if (drawable.has(one)) found.add(one);
    }
  }
  return [...found];
}

// Boxes and arrows of the lines that stand for their nodes, made once.
function boxesOfLines(graph) {
  if (graph.ofLines) return graph.ofLines;
  const sizes = new Map();
  graph.line.forEach((line) => sizes.set(line, (sizes.get(line) || 0) + 1));
  const kept = new Set([...sizes].sort((a, b) => b[1] - a[1]).slice(0, MOST_BOXES).map(([line]) => line));
  const keyOf = (line) => graph.names[line] || "none";
  const boxes = [...kept].map((line) => ({
    key: keyOf(line), lines: [(sourceOf(graph.names[line]) || "no line of yours").slice(0, 46), `${shortPlace(graph.names[line])} · ${sizes.get(line)} nodes`],
    classes: [], label: `${graph.names[line] || "no line"}, ${sizes.get(line)} nodes`,
  }));
  const arrows = new Map();
  graph.src.forEach((sources, position) => {
    const to = graph.line[position];
    for (const source of sources) {
      const from = graph.line[graph.at.get(source)];
      if (from !== to && kept.has(from) && kept.has(to)) arrows.set(`${from} ${to}`, [keyOf(from), keyOf(to)]);
    }
  });
  return graph.ofLines = { boxes, arrows: [...arrows.values()], left: sizes.size - kept.size };
}

function drawLines(graph) {
  const { boxes, arrows, left } = boxesOfLines(graph);
  const shown = boxes.map((one) => one.key === spot.group ? { ...one, classes: ["chosen"] } : one);
  picture = draw(find("middle"), shown, arrows, (key) => go({ group: key, node: "", stretch: "" }));
  addKey(`${graph.id.length} nodes, by the line that asked for them: choose one to open it${left ? `; ${left} lines of fewest nodes are not shown, search for them` : ""}`, false);
}

// A line of too many nodes, in stretches that follow each other; each opens into its own.
function drawStretches(graph) {
  const own = [];
  for (let position = 0; position < graph.id.length; position += 1) {
    if (nameOf(graph, "op", position) !== "CONST" && isOfGroup(graph, position)) own.push(position);
  }
  const each = Math.ceil(own.length / MOST_STRETCHES), of = new Map(), boxes = [];
  for (let begin = 0; begin < own.length; begin += each) {
    const part = own.slice(begin, begin + each), key = `${part[0]}-${part[part.length - 1]}`, ops = new Map();
    for (const position of part) {
      of.set(position, key);
      ops.set(graph.op[position], (ops.get(graph.op[position]) || 0) + 1);
    }
    const most = [...ops].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([op, times]) => `${times} ${graph.names[op]}`).join(", ");
    boxes.push({ key, lines: [`nodes ${begin + 1} to ${begin + part.length}`, most], classes: [], label: `nodes ${begin + 1} to ${begin + part.length}: ${most}` });
  }
  const arrows = new Map();
  for (const position of own) {
    for (const source of graph.src[position]) {
      const from = of.get(graph.at.get(source)), to = of.get(position);
      if (from !== undefined && from !== to) arrows.set(`${from} ${to}`, [from, to]);
    }
  }
  picture = draw(find("middle"), boxes, [...arrows.values()], (key) => go({ stretch: key, node: "" }), layInOrder);
  addKey(`${own.length} nodes of this line, in stretches: choose one to open it`, true);
}

function addKey(text, isPart) {
  const key = make("div", { class: "key" }, text + " ");
  if (isPart) key.append(link("all, by line", () => go({ node: "", group: "", stretch: "" })));
  find("middle").append(key);
}

function tellOfNode(graph, plan, pass) {
  const id = Number(spot.node), position = spot.node === "" ? undefined : graph.at.get(id);
  const steps = plan.rewrites.filter((one) => one.step === pass);
  if (position === undefined) {
    const rules = new Map();
    for (const one of steps) {
      const name = one.rule || one.step;
      rules.set(name, { law: one.law, times: (rules.get(name)?.times || 0) + 1 });
    }
    const gone = spot.node === "" ? [] : [make("p", {}, "The node that you chose is not in this graph."),
      ...historyOf(plan, id)];
    find("detail").replaceChildren(...gone, make("h2", {}, "What this pass replaced"),
      ...listed([...rules].sort((a, b) => b[1].times - a[1].times), ([name, one]) => `${name}, ${one.times} times${one.law ? ": " + one.law : ""}`),
      make("h2", {}, "Node by node"), ...listed(steps, rewriteLine));
    return;
  }
  const nodeLink = (at) => link(`${nameOf(graph, "op", at)} ${nameOf(graph, "shape", at)}`, () => go({ node: String(graph.id[at]) }));
  const decision = plan.decisions.find((one) => one.id === id);
  find("detail").replaceChildren(make("h2", {}, nameOf(graph, "op", position)), pairs([
    ["dtype", nameOf(graph, "dtype", position)], ["shape", nameOf(graph, "shape", position) || "scalar"],
    ["your line", lineLink(nameOf(graph, "line", position))], ["attribute", nameOf(graph, "arg", position)],
    ["decision", decision ? `${decision.stored ? "stored" : "fused"}: ${decision.reason}` : ""],
  ]), make("h2", {}, "Sources"), ...listed(graph.src[position].map((one) => graph.at.get(one)), nodeLink),
  make("h2", {}, "Used by"), ...listed(usersOf(graph)[position], nodeLink), ...historyOf(plan, id),
  make("h2", {}, "Kernels that compute it"), ...listed(plan.steps.filter((one) => one.computes.includes(graph.of[position])), kernelLink));
}

function historyOf(plan, id) {
  return [make("h2", {}, "What made it, what became of it"),
    ...listed(plan.rewrites.filter((one) => one.new === id || one.old === id), rewriteLine)];
}

function rewriteLine(one) {
  return make("span", {}, `${one.step}${one.rule ? ", rule " + one.rule : ""}: `,
    link(one.before, () => go({ node: String(one.old) })), " → ", link(one.after, () => go({ node: String(one.new) })),
    one.law ? `. ${one.law}` : "");
}

// --- the keyboard, and the beginning

function moveRow(by) {
  const rows = [...document.querySelectorAll("#list .row")];
  const at = rows.indexOf(document.activeElement);
  const from = at >= 0 ? at : rows.findIndex((row) => row.getAttribute("aria-current") === "true");
  rows[Math.min(rows.length - 1, Math.max(0, from + by))]?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input, select");
  if (event.key === "Escape") {
    if (typing) { find("search").value = ""; event.target.blur(); show(); } else history.back();
  } else if (typing) {
    return;
  } else if (event.key === "/") {
    event.preventDefault();
    find("search").focus();
  } else if (event.key === "j" || event.key === "k") moveRow(event.key === "j" ? 1 : -1);
  else if ("123456".includes(event.key)) { if (summary.views[event.key - 1]) go({ view: summary.views[event.key - 1] }); }
  else if (event.key === "+" || event.key === "-") picture?.zoom(event.key === "+" ? 1.25 : .8);
  else if (event.target.matches("[role=tab]") && event.key.startsWith("Arrow")) {
    const all = tabs(), step = event.key === "ArrowRight" ? 1 : all.length - 1;
    const next = all[(all.indexOf(event.target) + step) % all.length];
    next.focus();
    go({ view: next.dataset.view });
  }
});

// Fetches the graphs of every pass, places the boxes of their lines, and fetches kernels, while nobody waits for
// anything. What cannot be had is told when somebody asks for it.
async function fetchAhead() {
  const passes = summary.computations?.[computation()].passes || [];
  const idle = () => new Promise((done) => window.requestIdleCallback ? requestIdleCallback(done, { timeout: 50 }) : setTimeout(done, 50));
  if (passes.reduce((sum, one) => sum + one.nodes, 0) <= MOST_AHEAD) {
    for (const pass of passes.keys()) {
      await idle();
      const { boxes, arrows } = boxesOfLines(await model.graph(computation(), pass));
      lay(boxes, arrows);
    }
  }
  if (!passes.length) return;
  const kernels = new Set((await model.get("plan/" + computation())).steps.map((one) => one.kernel));
  if (kernels.size > MOST_KERNELS_AHEAD) return;
  for (const kernel of kernels) {
    await idle();
    await model.get("kernel/" + kernel).catch(() => null);
  }
}

let waiting = 0;
find("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(show, 120); });
for (const tab of document.querySelectorAll("[role=tab]")) tab.addEventListener("click", () => go({ view: tab.dataset.view }));
find("computation").addEventListener("change", (event) => go({ c: event.target.value, p: "", node: "", group: "", kernel: "", word: "" }));
window.addEventListener("hashchange", () => { read(); show(); });
window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(show, 200); });

model.get("summary").then((found) => {
  summary = found;
  document.title = `${found.title} · baregrad viz`;
  find("title").textContent = found.target ? `${found.title} on ${found.target}` : found.title;
  for (const tab of document.querySelectorAll("[role=tab]")) tab.hidden = !found.views.includes(tab.dataset.view);
  find("which").hidden = !found.computations;
  find("computation").replaceChildren(...(found.computations || []).map((one, number) => make("option", { value: String(number) },
    `${number + 1}: ${one.kernels} kernels, at least ${seconds(one.least_ns)}${one.runs > 1 ? `, ${one.runs} times` : ""}`)));
  read();
  return show();
}).then(fetchAhead).catch((error) => { find("status").textContent = String(error.message || error); });
