"use strict";
// Machine code beside the lines that it was made of.

const MOST_INSTRUCTIONS = 3000;

function machineTable(machine) {
  if (machine.missing) return make("pre", {}, machine.missing);
  if (machine.code[0]?.[0] == null) return make("pre", {}, machine.code.map((row) => row[1]).join("\n"));
  const most = Math.max(1, ...machine.code.map((row) => row[3]));
  const table = make("table", { class: "machine" }, make("caption", {}, machineSummary(machine)),
    make("tr", {}, ...["line", "PTX", "address", "instruction", "registers in use", "cycles", "waits for"].map((name) => make("th", { scope: "col" }, name))));
  let before = 0;
  for (const [address, text, line, live, stall, sets, awaits] of machine.code.slice(0, MOST_INSTRUCTIONS)) {
    const isNew = line !== before;
    before = line;
    table.append(make("tr", { id: "at" + address, class: awaits.length ? "awaits" : undefined },
      make("td", { class: "number" }, isNew ? String(line) : ""), make("td", {}, isNew ? (machine.text[line - 1] || "").trim() : ""),
      make("td", { class: "number" }, address.toString(16).padStart(4, "0")), make("td", {}, text),
      make("td", {}, make("span", { class: "bar", style: `width:${(100 * live / most).toFixed(0)}%` }), String(live)),
      make("td", { class: "number" }, String(stall)),
      make("td", {}, ...awaits.flatMap((one) => [link(one.toString(16).padStart(4, "0"), () => toInstruction(one)), " "]),
        sets.length ? `sets ${sets.join(", ")}` : "")));
  }
  if (machine.code.length > MOST_INSTRUCTIONS) table.append(make("tr", {}, make("td", { colspan: 7 }, `${machine.code.length - MOST_INSTRUCTIONS} more`)));
  return table;
}

function machineSummary(machine) {
  const cycles = machine.code.reduce((sum, row) => sum + row[4], 0);
  const parts = [`${machine.code.length} instructions`, `${machine.registers} registers a thread`,
    `at most ${Math.max(...machine.code.map((row) => row[3]))} in use`, `${cycles} cycles a warp from top to bottom without waits for memory`];
  if (machine.stack) parts.push(`${machine.stack} B of stack`);
  if (machine.shared) parts.push(`${machine.shared} B of shared memory`);
  return parts.join(", ");
}

function toInstruction(address) {
  const row = document.getElementById("at" + address);
  row?.scrollIntoView({ block: "center" });
  row?.classList.add("shown");
  setTimeout(() => row?.classList.remove("shown"), 1500);
}
