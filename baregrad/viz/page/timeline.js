"use strict";
// Profiles: what ran when, on a canvas, and who held memory.

const LANE_HEIGHT = 17, LANE_GAP = 6, LABEL_HEIGHT = 15, CURVE_HEIGHT = 46, MARGIN = 8;
const CHART_HEIGHT = 300;
let timelineStats = null;

// What the views of a profile ask for: totals by name, peaks by device.
function prepared(timeline) {
  if (timeline.totals) return timeline;
  const totals = new Map();
  timeline.lanes.forEach((lane, number) => {
    lane.rows = 1 + lane.depth.reduce((most, one) => Math.max(most, one), 0);
    lane.number = number;
    lane.name.forEach((name, position) => {
      const key = `${number} ${name}`;
      const one = totals.get(key) || { lane: number, name, calls: 0, total: 0, first: position };
      one.calls += 1;
      one.total += lane.length[position];
      totals.set(key, one);
    });
  });
  const order = ["kernels", "copies", "thread"], place = (one) => order.indexOf(timeline.lanes[one.lane].kind);
  timeline.totals = [...totals.values()].sort((a, b) => place(a) - place(b) || b.total - a.total);
  return timeline;
}

const textOf = (timeline, number) => timeline.texts[number];
const factsOf = (timeline, lane, position) => JSON.parse(textOf(timeline, lane.facts[position]));
const laneTitle = (timeline, lane) => Object.keys(timeline.processes).length > 1
  ? `${lane.title || lane.name} (process ${lane.process}: ${timeline.processes[lane.process]})` : lane.title || lane.name;

// The stretch of time that is looked at: all of it, unless the address says less.
function span(timeline) {
  const length = timeline.length || 1;
  const from = spot.from === "" ? 0 : Number(spot.from), to = spot.to === "" ? length : Number(spot.to);
  return to > from ? [from, to] : [0, length];
}

function goSpan(timeline, from, to) {
  const least = 10, length = timeline.length || 1;
  const width = Math.min(Math.max(to - from, least), length * 1.1);
  const begin = Math.min(Math.max(from, -length * .05), length * 1.05 - width);
  go({ from: begin.toFixed(0), to: (begin + width).toFixed(0) }, true);
}

async function showTimeline(isWanted) {
  const timeline = prepared(await model.get("timeline"));
  if (!isWanted()) return;
  listTotals(timeline);
  const canvas = make("canvas", { role: "img", tabindex: 0, "aria-label": timelineLabel(timeline) });
  find("middle").replaceChildren(canvas);
  const places = drawTimeline(canvas, timeline);
  moveTimeline(canvas, timeline, places);
  tellOfStretch(timeline);
}

function timelineLabel(timeline) {
  const lanes = timeline.lanes.map((lane) => `${lane.title}, ${lane.begin.length} stretches`);
  return `Timeline of ${seconds(timeline.length)}: ${lanes.join("; ")}. The list has the totals, choosing one shows its first run.`;
}

function listTotals(timeline) {
  const wholes = new Map();
  for (const one of timeline.totals) wholes.set(one.lane, (wholes.get(one.lane) || 0) + one.total);
  timeline.rows ??= timeline.totals.map((one) => {
    const lane = timeline.lanes[one.lane], where = String(factsOf(timeline, lane, one.first).line || "");
    return {
      key: `${one.lane} ${one.name}`, title: textOf(timeline, one.name),
      note: `${laneTitle(timeline, lane)} · ${one.calls} times · ${seconds(one.total)}, ${(100 * one.total / timeline.length).toFixed(1)} % of the profile${where ? " · " + shortPlace(where) : ""}`,
      text: `${textOf(timeline, one.name)} ${lane.title} ${where}`, share: one.total / (wholes.get(one.lane) || 1),
      choose: () => choose(timeline, one.lane, one.first),
    };
  });
  const name = spot.at === "" ? undefined : timeline.lanes[Number(spot.lane)]?.name[Number(spot.at)];
  fillList(timeline.rows, "What took the time, by lane and name", `${spot.lane} ${name}`);
}

function choose(timeline, number, position) {
  const lane = timeline.lanes[number], [from, to] = span(timeline);
  const begin = lane.begin[position], length = lane.length[position];
  const inside = begin >= from && begin + length <= to;
  const width = inside ? to - from : Math.max(length * 8, Math.min(to - from, length * 400));
  const start = inside ? from : begin + length / 2 - width / 2;
  go({ lane: String(number), at: String(position), from: start.toFixed(0), to: (start + width).toFixed(0) });
}

const colour = (name) => `hsl(${(name * 137.5) % 360} 55% ${matchMedia("(prefers-color-scheme: dark)").matches ? 42 : 72}%)`;

// The first position of a sorted array from which on values are not less.
function bisect(values, wanted) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low;
}

// Draws lanes and memory; returns where each lane lies. Stretches that share a pixel are one
// rectangle, so that what is drawn is bounded by the picture and not by the profile.
function drawTimeline(canvas, timeline) {
  const room = find("middle").clientWidth - 2 * MARGIN || 800, ratio = window.devicePixelRatio || 1;
  const devices = timeline.counters.filter((one) => !one.owner);
  let height = 22;
  const places = timeline.lanes.map((lane) => {
    const top = height;
    height += LABEL_HEIGHT + lane.rows * LANE_HEIGHT + LANE_GAP;
    return { lane, top: top + LABEL_HEIGHT };
  });
  const curves = devices.map((one) => { const top = height; height += LABEL_HEIGHT + CURVE_HEIGHT + LANE_GAP; return { one, top: top + LABEL_HEIGHT }; });
  canvas.width = room * ratio;
  canvas.height = height * ratio;
  canvas.style.width = room + "px";
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.body);
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const [from, to] = span(timeline), scale = room / (to - from), ink = style.color;
  timelineStats = { drawn: 0 };
  drawRuler(pen, from, to, room, height, ink);
  for (const { lane, top } of places) {
    pen.fillStyle = ink;
    pen.fillText(laneTitle(timeline, lane), 0, top - LABEL_HEIGHT / 2);
    drawLane(pen, timeline, lane, top, from, to, scale, ink);
  }
  for (const { one, top } of curves) drawCurve(pen, one, top, from, to, scale, room, ink);
  canvas.dataset.drawn = String(timelineStats.drawn);
  return { places, scale, from, to, room };
}

function drawRuler(pen, from, to, room, height, ink) {
  // A label takes 80 pixels.
  const least = (to - from) * 80 / room, power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= least);
  pen.fillStyle = pen.strokeStyle = ink;
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const x = (at - from) / (to - from) * room;
    pen.globalAlpha = .15;
    pen.fillRect(x, 0, 1, height);
    pen.globalAlpha = .8;
    if (x < room - 60) pen.fillText(seconds(Math.max(at, 0)), x + 3, 9);
  }
  pen.globalAlpha = 1;
}

function drawLane(pen, timeline, lane, top, from, to, scale, ink) {
  const last = bisect(lane.begin, to), ends = new Array(lane.rows).fill(-1);
  const chosen = spot.lane === String(lane.number) ? Number(spot.at || -1) : -1;
  // What began before and is still open is found by walking back over what lies in it.
  let first = bisect(lane.begin, from);
  while (first > 0 && (lane.depth[first] > 0 || lane.begin[first - 1] + lane.length[first - 1] > from)) first -= 1;
  for (let position = first; position < last; position += 1) {
    const begin = lane.begin[position], end = begin + lane.length[position], row = lane.depth[position];
    if (end < from) continue;
    const left = Math.max(0, (begin - from) * scale), right = Math.max((Math.min(end, to) - from) * scale, left + .5);
    if (right < ends[row] + .5 && position !== chosen) continue;
    const y = top + row * LANE_HEIGHT, width = Math.max(right - left, 1);
    pen.fillStyle = colour(lane.name[position]);
    pen.fillRect(left, y, width, LANE_HEIGHT - 2);
    timelineStats.drawn += 1;
    ends[row] = left + width;
    if (width > 30) label(pen, textOf(timeline, lane.name[position]), left + 3, y + LANE_HEIGHT / 2 - 1, width - 5, ink);
    if (position === chosen) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(left, y, Math.max(width, 2), LANE_HEIGHT - 2);
    }
  }
}

function label(pen, text, x, y, width, ink) {
  const most = Math.floor(width / 6.5);
  pen.fillStyle = ink;
  pen.fillText(text.length > most ? text.slice(0, Math.max(most - 1, 1)) + "…" : text, x, y);
}

function drawCurve(pen, one, top, from, to, scale, room, ink) {
  const most = one.value.reduce((large, each) => Math.max(large, each), 1);
  pen.fillStyle = ink;
  pen.fillText(`${one.name}, at most ${count(most, "B")}`, 0, top - LABEL_HEIGHT / 2);
  pen.fillStyle = "hsl(210 60% 60% / .6)";
  let position = Math.max(0, bisect(one.at, from) - 1);
  while (position < one.at.length && one.at[position] <= to) {
    const left = Math.max(0, (one.at[position] - from) * scale);
    let value = one.value[position];
    // All changes within a pixel are its largest.
    while (position + 1 < one.at.length && (one.at[position + 1] - from) * scale < left + 1) value = Math.max(value, one.value[++position]);
    const right = position + 1 < one.at.length ? Math.min(room, (one.at[position + 1] - from) * scale) : room;
    const height = CURVE_HEIGHT * value / most;
    pen.fillRect(left, top + CURVE_HEIGHT - height, right - left, height);
    timelineStats.drawn += 1;
    position += 1;
  }
}

// Dragging moves, the wheel zooms at the pointer, a click chooses.
function moveTimeline(canvas, timeline, { places, scale, from, to, room }) {
  picture = { zoom: (factor) => zoomAt(room / 2, factor) };
  function zoomAt(x, factor) {
    const middle = from + x / scale, width = (to - from) / factor;
    goSpan(timeline, middle - width * x / room, middle + width * (1 - x / room));
  }
  canvas.addEventListener("wheel", (event) => {
    if (event.shiftKey) return;
    event.preventDefault();
    zoomAt(event.offsetX, Math.exp(-event.deltaY / 400));
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = [event.offsetX, event.offsetY]; });
  canvas.addEventListener("pointerup", (event) => {
    const moved = held ? event.offsetX - held[0] : 0;
    held = null;
    if (Math.abs(moved) > 3) { goSpan(timeline, from - moved / scale, to - moved / scale); return; }
    const found = stretchAt(places, event.offsetX / scale + from, event.offsetY, 2 / scale);
    if (found) go({ lane: String(found[0]), at: String(found[1]) });
  });
  canvas.addEventListener("keydown", (event) => {
    const step = (to - from) / 5 * (event.key === "ArrowRight" ? 1 : -1);
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") { event.preventDefault(); goSpan(timeline, from + step, to + step); }
    if (event.key === "f") go({ from: "", to: "" });
    if (event.key === "n" || event.key === "p") nextAlike(timeline, event.key === "n" ? 1 : -1);
  });
}

function stretchAt(places, at, y, slack) {
  const place = places.find((one) => y >= one.top && y < one.top + one.lane.rows * LANE_HEIGHT);
  if (!place) return null;
  const { lane } = place, row = Math.floor((y - place.top) / LANE_HEIGHT);
  for (let position = bisect(lane.begin, at + slack) - 1; position >= 0; position -= 1) {
    if (lane.depth[position] === row) return lane.begin[position] + lane.length[position] + slack >= at ? [lane.number, position] : null;
  }
  return null;
}

// The next run of what is chosen, or the one before.
function nextAlike(timeline, step) {
  const lane = timeline.lanes[Number(spot.lane)];
  if (!lane || spot.at === "") return;
  for (let at = Number(spot.at) + step; at >= 0 && at < lane.name.length; at += step) {
    if (lane.name[at] === lane.name[Number(spot.at)]) { choose(timeline, lane.number, at); return; }
  }
}

function tellOfStretch(timeline) {
  const lane = timeline.lanes[Number(spot.lane)], position = Number(spot.at);
  if (spot.lane === "" || spot.at === "" || !lane || lane.begin[position] === undefined) {
    find("detail").replaceChildren(make("h2", {}, "How busy each lane was"),
      pairs(timeline.lanes.map((one) => [laneTitle(timeline, one), `${(100 * covered(one) / (timeline.length || 1)).toFixed(1)} % of ${seconds(timeline.length)}, ${one.begin.length} stretches`])));
    return;
  }
  const facts = factsOf(timeline, lane, position), length = lane.length[position];
  const rates = [];
  if (facts.bytes) rates.push(["rate", `${(facts.bytes / Math.max(length, 1)).toFixed(2)} GB/s`]);
  if (facts.flops) rates.push(["operations", `${(facts.flops / Math.max(length, 1) / 1e3).toFixed(3)} TFLOP/s`]);
  const alike = timeline.totals.find((one) => one.lane === lane.number && one.name === lane.name[position]);
  find("detail").replaceChildren(make("h2", {}, textOf(timeline, lane.name[position])), pairs([
    ["lane", laneTitle(timeline, lane)], ["begins at", seconds(lane.begin[position])], ["takes", seconds(length)], ...rates,
    ...Object.entries(facts).map(([name, value]) => [name, name === "bytes" ? count(value, "B") : String(value)]),
    ["runs of that name", `${alike.calls}, ${seconds(alike.total)} in all, ${seconds(alike.total / alike.calls)} on average`],
  ]), link("next run (n)", () => nextAlike(timeline, 1)), " ", link("the one before (p)", () => nextAlike(timeline, -1)));
}

// The time in which something ran in a lane.
function covered(lane) {
  let reached = -Infinity, sum = 0;
  lane.begin.forEach((begin, position) => {
    const end = begin + lane.length[position];
    sum += Math.max(0, end - Math.max(begin, reached));
    reached = Math.max(reached, end);
  });
  return sum;
}

// --- memory

// A counter's value at a time.
function valueAt(counter, at) {
  const position = bisect(counter.at, at + 1) - 1;
  return position < 0 ? 0 : counter.value[position];
}

function peakOf(whole) {
  const value = whole.value.reduce((most, one) => Math.max(most, one), 0);
  return { at: whole.at[whole.value.indexOf(value)] || 0, value };
}

// Who holds how much of a device's memory at a time, the most first; made once for each time that is looked at.
function ownersAt(timeline, whole, at) {
  if (whole.lookedAt !== at) {
    whole.lookedAt = at;
    whole.owners = timeline.counters.filter((one) => one.owner && one.device === whole.device && one.process === whole.process)
      .map((one) => ({ ...one, now: valueAt(one, at), most: one.value.reduce((large, each) => Math.max(large, each), 0) }))
      .sort((a, b) => b.now - a.now || b.most - a.most);
  }
  return whole.owners;
}

async function showMemory(isWanted) {
  const timeline = prepared(await model.get("timeline"));
  if (!isWanted()) return;
  const wholes = timeline.counters.filter((one) => !one.owner);
  if (!wholes.length) {
    fillList([], "No memory was noted");
    find("middle").replaceChildren();
    find("detail").replaceChildren();
    return;
  }
  const chosen = Math.min(Number(spot.device || 0), wholes.length - 1), whole = wholes[chosen], peak = peakOf(whole);
  const at = spot.when === "" ? peak.at : Number(spot.when);
  const owners = ownersAt(timeline, whole, at);
  const held = valueAt(whole, at), before = held - owners.reduce((sum, one) => sum + one.now, 0);
  owners.rows ??= owners.map((one) => ({
    key: one.owner, title: one.owner, note: `${count(one.now, "B")} then, ${(100 * one.now / (held || 1)).toFixed(1)} %; at most ${count(one.most, "B")}`,
    text: one.owner, share: one.now / (held || 1), choose: () => go({ owner: one.owner }),
  }));
  fillList(owners.rows, `${whole.device}: who holds what at ${seconds(at)}${at === peak.at ? ", the peak" : ""}`, spot.owner);
  const select = make("select", { "aria-label": "Device", onchange: (event) => go({ device: event.target.value, when: "", owner: "" }) },
    ...wholes.map((one, number) => make("option", { value: String(number), ...(number === chosen ? { selected: "" } : {}) }, laneTitle(timeline, one))));
  const canvas = make("canvas", { role: "img", tabindex: 0, "aria-label": `Memory of ${whole.device} over ${seconds(timeline.length)}, at most ${count(peak.value, "B")} at ${seconds(peak.at)}. The list says who holds it.` });
  find("middle").replaceChildren(select, " ", link("the peak", () => go({ when: "" })), make("br"), canvas);
  drawOwners(canvas, timeline, whole, owners, at, peak);
  find("detail").replaceChildren(make("h2", {}, whole.name), pairs([
    ["at most", `${count(peak.value, "B")}, at ${seconds(peak.at)}`], [`at ${seconds(at)}`, count(held, "B")],
    ["held before the profile", before > 0 ? count(before, "B") : ""], ["at its end", count(whole.value[whole.value.length - 1], "B")],
  ]), ...(spot.owner ? ownerDetail(owners.find((one) => one.owner === spot.owner), at) : []));
}

function ownerDetail(one, at) {
  if (!one) return [];
  return [make("h2", {}, one.owner), pairs([
    [`at ${seconds(at)}`, count(one.now, "B")], ["at most", `${count(one.most, "B")}, at ${seconds(peakOf(one).at)}`],
    ["pieces that came or went", String(one.at.length)],
  ]), link("show its own peak", () => go({ when: String(peakOf(one).at) }))];
}

// Owners above each other, pixel by pixel; a click chooses a time.
function drawOwners(canvas, timeline, whole, owners, at, peak) {
  const room = find("middle").clientWidth - 2 * MARGIN || 800, ratio = window.devicePixelRatio || 1;
  canvas.width = room * ratio;
  canvas.height = CHART_HEIGHT * ratio;
  canvas.style.width = room + "px";
  canvas.style.height = CHART_HEIGHT + "px";
  const pen = canvas.getContext("2d"), ink = getComputedStyle(document.body).color;
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  const top = 20, height = CHART_HEIGHT - top, width = timeline.length || 1, places = [...owners].reverse();
  const next = places.map(() => 0), values = places.map(() => 0);
  let wholeNext = 0, wholeValue = 0;
  for (let x = 0; x < room; x += 1) {
    const until = (x + 1) / room * width;
    while (wholeNext < whole.at.length && whole.at[wholeNext] <= until) wholeValue = whole.value[wholeNext++];
    let y = CHART_HEIGHT, sum = 0;
    places.forEach((one, number) => {
      while (next[number] < one.at.length && one.at[next[number]] <= until) values[number] = one.value[next[number]++];
      sum += values[number];
    });
    const bottom = Math.max(0, wholeValue - sum) / peak.value * height;
    pen.fillStyle = "hsl(0 0% 55%)";
    pen.fillRect(x, y - bottom, 1, bottom);
    y -= bottom;
    places.forEach((one, number) => {
      const part = values[number] / peak.value * height;
      pen.globalAlpha = !spot.owner || spot.owner === one.owner ? 1 : .3;
      pen.fillStyle = colour(owners.length - number);
      pen.fillRect(x, y - part, 1, part);
      y -= part;
    });
  }
  pen.globalAlpha = 1;
  pen.fillStyle = ink;
  pen.fillRect(at / width * room, 0, 1, CHART_HEIGHT);
  pen.fillText(count(peak.value, "B"), 2, 14);
  canvas.dataset.owners = String(owners.length);
  canvas.addEventListener("click", (event) => go({ when: (event.offsetX / room * width).toFixed(0) }));
}
