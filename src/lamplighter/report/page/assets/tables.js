// Tables: sorting by a click or a key on their heads, and those that are made when they are wanted.

const MOST_ROWS = 400;

// Every head of a table becomes a button that sorts its rows.
function sortable(table) {
  for (const head of table.tHead.rows[0].cells) {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => sortBy(table, head));
  }
}

function sortBy(table, head) {
  const falls = head.getAttribute("aria-sort") !== "descending" && isNumeric(table, head.cellIndex);
  const rises = head.getAttribute("aria-sort") !== "ascending" && !isNumeric(table, head.cellIndex);
  const sign = falls || (!rises && !isNumeric(table, head.cellIndex)) ? -1 : 1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => compare(keyOf(one, head.cellIndex), keyOf(other, head.cellIndex), sign));
  table.tBodies[0].append(...rows);
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
}

// Numbers begin with the largest, words with the first; what has no value stays at the end.
function compare(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null);
  return sign * (typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true }));
}

function isNumeric(table, column) {
  return [...table.tBodies[0].rows].some((row) => row.cells[column].dataset.sort !== undefined);
}

function keyOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
  return isNumeric(row.closest("table"), column) ? null : cell.textContent;
}

// Columns are [name, cell of a row]; a cell is a text, or {text, sort, node}. The first one heads its row.
function tabulated(caption, columns, rows) {
  const heads = columns.map(([name, , numeric]) => make("th", { scope: "col", ...(numeric && { class: "number" }) }, name));
  const body = make("tbody");
  const table = make("table", { class: "sortable sticky" }, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), body);
  const box = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, table);
  body.append(...rows.slice(0, MOST_ROWS).map((row) => tableRow(columns, row)));
  sortable(table);
  if (rows.length > MOST_ROWS) box.append(moreButton(body, columns, rows));
  return box;
}

function tableRow(columns, row) {
  const cells = columns.map(([, cell, numeric], place) => {
    const value = cell(row);
    const { text = value, sort, node } = typeof value === "object" ? value : {};
    const made = place ? make("td", numeric ? { class: "number" } : {}) : make("th", { scope: "row" });
    if (sort !== undefined && sort !== null) made.dataset.sort = sort;
    made.append(...(node ? [node] : []), text);
    return made;
  });
  return make("tr", {}, ...cells);
}

function moreButton(body, columns, rows) {
  const button = make("button", { type: "button", class: "more" }, `Show all ${counted(rows.length)} rows`);
  button.addEventListener("click", () => {
    body.append(...rows.slice(MOST_ROWS).map((row) => tableRow(columns, row)));
    button.remove();
  });
  return button;
}

const valued = (value, text) => ({ text: value === null || value === undefined ? "\u2013" : text, sort: value });

// The columns that tell what was measured; of {method, cell, paper}.
function measures(numbers) {
  const mean = numbers.percent ? "mean (%)" : "mean";
  const found = [
    [mean, ({ cell }) => (cell ? { text: shown(cell[0]), sort: cell[0] } : { text: "not reached" }), true],
    ["deviation", ({ cell }) => valued(cell?.[1], `± ${shown(cell?.[1])}`), true],
    ["n", ({ cell }) => valued(cell?.[2], `${cell?.[2]}`), true],
  ];
  if (!numbers.methods.some((method) => method.paper)) return found;
  return [
    ...found,
    ["paper", ({ paper }) => valued(paper?.[0], paper && `${shown(paper[0])} ± ${shown(paper[1])}`), true],
    ["ours less paper", ({ cell, paper }) => difference(cell, paper), true],
  ];
}

function difference(cell, paper) {
  if (!cell || !paper || cell[0] === null) return { text: "\u2013" };
  const value = cell[0] - paper[0];
  return { text: `${value < 0 ? "\u2212" : "+"}${shown(Math.abs(value))}`, sort: value };
}

function roundTable(group) {
  const { numbers, place } = group;
  const rows = numbers.methods.map((method) => rowOf(method, place));
  const columns = [
    ["method", ({ method }) => ({ text: method.name, node: swatch(method.name) })],
    ...measures(numbers),
    ["layers emptied", ({ emptied }) => valued(emptied, `${emptied}`), true],
  ];
  return tabulated(`${sentence(numbers.label)}, round ${numbers.rounds[place]}: ${numbers.heads[place]} % of the weights left`, columns, rows);
}

function rowOf(method, place) {
  return { method, place, cell: method.cells[place], paper: method.paper?.[place], emptied: method.emptied[place] };
}

function everyTable(group) {
  const { numbers } = group;
  const rows = numbers.methods.flatMap((method) => numbers.rounds.map((_, place) => rowOf(method, place)));
  const columns = [
    ["method", ({ method }) => method.name],
    ["weights left (%)", ({ place }) => ({ text: numbers.heads[place], sort: numbers.left[place] }), true],
    ["round", ({ place }) => ({ text: `${numbers.rounds[place]}`, sort: numbers.rounds[place] }), true],
    ...measures(numbers),
    ["seeds", ({ cell }) => (cell && cell[2] > 1 ? cell[3].map(shown).join(", ") : "")],
    ["layers emptied", ({ emptied }) => valued(emptied, `${emptied}`), true],
  ];
  return tabulated(`${sentence(numbers.label)}, every round`, columns, rows.filter(({ emptied }) => emptied !== null));
}

function layersTable(group) {
  const { names, shapes, sizes } = group.layers;
  const methods = Object.keys(group.layers.kept).filter((method) => keptBy(group, method));
  const columns = [
    ["layer", (layer) => names[layer]],
    ["number", (layer) => ({ text: `${layer + 1}`, sort: layer + 1 }), true],
    ["shape", (layer) => shapes[layer] || "\u2013"],
    ["weights", (layer) => ({ text: counted(sizes[layer]), sort: sizes[layer] }), true],
    ...methods.map((method) => [`${method} left`, (layer) => leftOf(group, method, layer), true]),
  ];
  const { heads, rounds } = group.numbers;
  return tabulated(`Weights left, round ${rounds[group.place]}: ${heads[group.place]} % of all; means over seeds`, columns, names.map((_, layer) => layer));
}

function leftOf(group, method, layer) {
  const count = keptBy(group, method)[layer];
  return { text: `${counted(count)} (${percentOf((100 * count) / group.layers.sizes[layer])} %)`, sort: count };
}

function runsTable(group) {
  const columns = [
    ["method", ([method]) => method],
    ["seed", ([, seed]) => ({ text: `${seed}`, sort: seed }), true],
    ["last round", ([, , round]) => ({ text: `${round}`, sort: round }), true],
    ["seconds", ([, , , seconds]) => ({ text: counted(seconds), sort: seconds }), true],
    ["folder", ([, , , , folder]) => folder],
  ];
  return tabulated("Runs; seconds are each one's share of those spent side by side", columns, embedded(`runs-${group.index}`));
}
