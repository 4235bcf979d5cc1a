// Making parts of the page; text is always set as text.
"use strict";

const NAMESPACE = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function embedded(name) {
  const found = document.getElementById(name);
  return found && JSON.parse(found.textContent);
}

// Two decimals; a network that diverged has no number.
const shown = (value) => (value === null || value === undefined ? "diverged" : value.toFixed(2));
// Counts are means over seeds, and not whole where seeds differ.
const counted = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });
const sentence = (text) => text[0].toUpperCase() + text.slice(1);

function cellText([mean, deviation, n]) {
  const spread = deviation === null ? "" : ` ± ${shown(deviation)}`;
  return `${shown(mean)}${spread} (n=${n})`;
}

// Densities with the digits that tell neighbours apart.
function percent(value) {
  if (value >= 99.95) return value.toFixed(0);
  return value >= 9.995 ? value.toFixed(1) : value.toPrecision(value >= 0.995 ? 3 : 2);
}

// The plotting library reads a little markup in its texts: none of it may come from a name.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
