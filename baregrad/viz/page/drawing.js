"use strict";
// Boxes and arrows in an SVG that can be moved and zoomed. dagre says where they lie.

const SVG = "http://www.w3.org/2000/svg";

function shape(tag, given, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Where dagre put boxes, by what it was given: passes that leave a graph as it was ask for the same again.
const laid = new Map();
const MOST_LAID = 40;

const sizesOf = (boxes) => boxes.map((box) => [box.key, Math.max(...box.lines.map((line) => line.length)) * 7.4 + 16, box.lines.length * 15 + 8]);

function lay(boxes, arrows) {
  const sizes = sizesOf(boxes);
  const asked = JSON.stringify([sizes, arrows]);
  if (laid.has(asked)) return laid.get(asked);
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 34, marginx: 20, marginy: 20 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const [key, width, height] of sizes) graph.setNode(key, { width, height });
  for (const [from, to] of arrows) if (from !== to) graph.setEdge(from, to);
  dagre.layout(graph);
  if (laid.size >= MOST_LAID) laid.delete(laid.keys().next().value);
  laid.set(asked, graph);
  return graph;
}

// Boxes that follow each other, one below the other; an arrow that passes some over goes round them. No layout of
// so many arrows between so few boxes shows more, and dagre takes 400 ms for 60 boxes with 700.
function layInOrder(boxes, arrows) {
  const sizes = new Map(sizesOf(boxes).map(([key, width, height]) => [key, { width, height }]));
  const widest = Math.max(...[...sizes.values()].map((one) => one.width));
  let y = 20;
  for (const size of sizes.values()) {
    Object.assign(size, { x: 20 + widest / 2, y: y + size.height / 2 });
    y += size.height + 34;
  }
  const order = new Map([...sizes.keys()].map((key, number) => [key, number])), edges = [];
  let right = 20 + widest;
  for (const [from, to] of arrows) {
    const a = sizes.get(from), b = sizes.get(to), span = order.get(to) - order.get(from);
    if (span === 1) edges.push({ points: [{ x: a.x, y: a.y + a.height / 2 }, { x: b.x, y: b.y - b.height / 2 }] });
    else {
      const aside = 20 + widest + 12 + 7 * Math.min(40, Math.abs(span));
      right = Math.max(right, aside);
      edges.push({ points: [{ x: a.x + a.width / 2, y: a.y }, { x: aside, y: a.y + (b.y - a.y) * .1 },
        { x: aside, y: b.y - (b.y - a.y) * .1 }, { x: b.x + b.width / 2, y: b.y }] });
    }
  }
  return { edges: () => edges, edge: (one) => one, node: (key) => sizes.get(key),
    graph: () => ({ width: right + 20, height: y }) };
}

// boxes: {key, lines, classes, label}; arrows: [from, to]; choose(key) is called for a click.
function draw(place, boxes, arrows, choose, layout = lay) {
  const graph = layout(boxes, arrows);
  const layer = shape("g", {});
  for (const edge of graph.edges()) {
    const points = graph.edge(edge).points;
    layer.append(shape("path", {
      class: "edge", d: "M" + points.map((point) => `${point.x.toFixed(1)},${point.y.toFixed(1)}`).join("L"),
      "marker-end": "url(#tip)",
    }));
  }
  for (const box of boxes) layer.append(boxOf(box, graph.node(box.key), choose));
  const tip = shape("marker", { id: "tip", viewBox: "0 0 6 6", refX: 6, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" },
    shape("path", { d: "M0,0L6,3L0,6z", fill: "currentColor", "fill-opacity": .5 }));
  const svg = shape("svg", { role: "group", "aria-label": "The graph, from what is read to what is returned" }, shape("defs", {}, tip), layer);
  place.replaceChildren(svg);
  const size = graph.graph();
  return moving(svg, layer, size.width, size.height, (key) => graph.node(key));
}

function boxOf(box, at, choose) {
  const group = shape("g", {
    class: ["box", ...box.classes].join(" "), tabindex: 0, role: "button", "aria-label": box.label,
    "data-key": box.key, transform: `translate(${(at.x - at.width / 2).toFixed(1)},${(at.y - at.height / 2).toFixed(1)})`,
  }, shape("rect", { width: at.width, height: at.height }));
  box.lines.forEach((line, number) => {
    group.append(shape("text", { x: 8, y: 15 + number * 15 }, line));
  });
  group.addEventListener("click", () => choose(box.key));
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); choose(box.key); }
  });
  return group;
}

// Dragging moves, the wheel zooms at the pointer. Returns {zoom(factor), show(key)}.
function moving(svg, layer, width, height, nodeOf) {
  const room = svg.getBoundingClientRect();
  let scale = Math.min(1, room.width / width || 1, Math.max(room.height / height || 1, .35));
  let x = Math.max(0, (room.width - width * scale) / 2), y = 0, held = null;
  const place = () => layer.setAttribute("transform", `translate(${x},${y}) scale(${scale})`);
  const zoom = (factor, atX = room.width / 2, atY = room.height / 2) => {
    const next = Math.min(4, Math.max(.03, scale * factor));
    x = atX - (atX - x) * next / scale;
    y = atY - (atY - y) * next / scale;
    scale = next;
    place();
  };
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = svg.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 400), event.clientX - at.left, event.clientY - at.top);
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => { held = [event.clientX - x, event.clientY - y]; });
  svg.addEventListener("pointermove", (event) => {
    if (held) { x = event.clientX - held[0]; y = event.clientY - held[1]; place(); }
  });
  for (const end of ["pointerup", "pointerleave"]) svg.addEventListener(end, () => { held = null; });
  place();
  return {
    zoom,
    show(key) {
      const node = nodeOf(key);
      if (!node) return;
      scale = Math.max(scale, .8);
      x = room.width / 2 - node.x * scale;
      y = room.height / 2 - node.y * scale;
      place();
    },
  };
}
