"use strict";
// What the server has, fetched once each, and numbers for people.

const model = {
  fetched: new Map(),

  // The promise of a document.
  get(name) {
    if (!this.fetched.has(name)) {
      this.fetched.set(name, fetch("data/" + name).then(async (answer) => {
        if (!answer.ok) throw new Error(`${name}: ${await answer.text()}`);
        return answer.json();
      }).catch((error) => { this.fetched.delete(name); throw error; }));
    }
    return this.fetched.get(name);
  },

  // A graph with positions by number.
  graph(computation, pass) {
    const name = `graph/${computation}/${pass}`;
    return this.get(name).then((graph) => {
      graph.at ??= new Map(graph.id.map((id, position) => [id, position]));
      return graph;
    });
  },
};

// The users of each node, by position: found when somebody asks first.
function usersOf(graph) {
  if (!graph.users) {
    graph.users = graph.id.map(() => []);
    graph.src.forEach((sources, position) => {
      for (const one of new Set(sources)) graph.users[graph.at.get(one)].push(position);
    });
  }
  return graph.users;
}

function seconds(nanoseconds) {
  if (nanoseconds < 1e3) return `${nanoseconds.toFixed(0)} ns`;
  if (nanoseconds < 1e6) return `${(nanoseconds / 1e3).toFixed(1)} µs`;
  if (nanoseconds < 1e9) return `${(nanoseconds / 1e6).toFixed(2)} ms`;
  return `${(nanoseconds / 1e9).toFixed(2)} s`;
}

function count(value, unit = "") {
  for (const prefix of ["", "k", "M", "G", "T"]) {
    if (value < 1000) return `${prefix ? value.toFixed(2) : value} ${prefix}${unit}`.trim();
    value /= 1000;
  }
  return `${value.toFixed(2)} P${unit}`;
}

function shortPlace(where) {
  return where ? where.replace(/^.*\//, "") : "no line of yours";
}

// An element with attributes, listeners (on…) and children.
function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
