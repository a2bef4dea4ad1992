"use strict";
// A command list, word by word as a GPU reads it.

const MOST_WORDS = 4000;

async function showCommands(isWanted) {
  find("status").textContent = "making the list…";
  const found = await model.get("words/" + computation());
  if (!isWanted()) return;
  const rows = found.all ??= found.channels.flatMap((channel) => channel.rows.map((row) => ({ channel: channel.name, place: row[0], method: row[1], data: row[2], work: row[3] })));
  const acting = rows.filter((row) => row.work.length);
  found.rows ??= acting.map((row) => ({
    key: keyOf(row), title: row.work.map((one) => one[1].split(":")[0]).join(", "), note: `${row.channel}, word ${row.place} · ${row.work.map((one) => one[1]).join("; ")}`,
    text: row.work.map((one) => one.join(" ")).join(" "), choose: () => go({ word: keyOf(row) }),
  }));
  fillList(found.rows, "What the GPU does, in order", spot.word);
  const table = tableOf(found, rows);
  for (const row of table.querySelectorAll(".shown")) row.classList.remove("shown");
  table.querySelector(`[data-word="${CSS.escape(spot.word)}"]`)?.classList.add("shown");
  if (find("middle").firstChild !== table) find("middle").replaceChildren(table);
  table.querySelector(".shown")?.scrollIntoView({ block: "center" });
  const kinds = new Map();
  for (const row of acting) for (const [kind] of row.work) kinds.set(kind, (kinds.get(kind) || 0) + 1);
  find("detail").replaceChildren(make("h2", {}, "In this list"), pairs([...kinds].map(([kind, times]) => [kind, String(times)])));
}

// The table of a list, made once: to choose a word changes its row alone.
function tableOf(found, rows) {
  if (found.table) return found.table;
  const table = make("table", { class: "machine" }, make("caption", {}, `${rows.length} words of data for ${found.channels.filter((one) => one.rows.length).length} channels; the list is not submitted, so addresses of arrays are not filled in`),
    make("tr", {}, ...["channel", "word", "method", "data", "what it does"].map((name) => make("th", { scope: "col" }, name))));
  for (const row of rows.slice(0, MOST_WORDS)) {
    table.append(make("tr", { class: row.work.length ? "awaits" : undefined, "data-word": keyOf(row) },
      make("td", {}, row.channel), make("td", { class: "number" }, String(row.place)), make("td", {}, row.method),
      make("td", { class: "number" }, "0x" + row.data.toString(16).padStart(8, "0")), make("td", {}, row.work.map((one) => one[1]).join("; "))));
  }
  return found.table = table;
}

const keyOf = (row) => `${row.channel}-${row.place}`;
