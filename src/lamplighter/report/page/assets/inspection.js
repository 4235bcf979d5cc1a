// The page of a checkpoint: its two charts and its table.

const TENSORS = embedded("inspected");
const PLACES = TENSORS.name.map((_, place) => place + 1);
const MANY = 60; // tensors: of more, marks would run into each other

const shownShare = (place) => (TENSORS.size[place] ? (100 * TENSORS.zeros[place]) / TENSORS.size[place] : 0);
const said = (value) => (value === null ? "\u2013" : value.toPrecision(3));

const tensorAxis = (narrow) => numberedAxis("tensor, in the order of names", PLACES.length, narrow);

const tensorTitle = (place) => `<b>${plain(TENSORS.name[place])}</b><br>${TENSORS.shape[place] || "one number"}, ${plain(TENSORS.dtype[place])}`;

function pointLook() {
  const { ink, ground } = palette();
  const color = PLACES.map((_, place) => (TENSORS.layers[place] ? ink : ground));
  return { color, size: PLACES.length > MANY ? 5 : 8, line: { color: ink, width: 1.2 } };
}

function zeroChart(narrow) {
  const known = PLACES.map((_, place) => TENSORS.zeros[place] !== null);
  const text = PLACES.map((_, place) => `${tensorTitle(place)}<br>${counted(TENSORS.zeros[place] ?? 0)} of ${counted(TENSORS.size[place])} zero`);
  const trace = {
    x: PLACES, y: PLACES.map((_, place) => (known[place] ? shownShare(place) : null)), customdata: text, mode: "markers",
    marker: pointLook(), hovertemplate: "%{customdata}<extra></extra>", cliponaxis: false,
  };
  const up = axis("zero (%)", { range: [-2, 103] });
  return { traces: [trace], layout: layout({ xaxis: tensorAxis(narrow), yaxis: up, hovermode: "closest" }) };
}

function magnitudeChart(narrow) {
  const { soft } = palette();
  const known = PLACES.map((_, place) => place).filter((place) => TENSORS.median[place]);
  const ranges = { x: [], y: [], mode: "lines", hoverinfo: "skip", line: { color: soft, width: PLACES.length > MANY ? 1 : 3 } };
  for (const place of known) {
    ranges.x.push(place + 1, place + 1, null);
    ranges.y.push(TENSORS.smallest[place], TENSORS.largest[place], null);
  }
  const text = known.map((place) => `${tensorTitle(place)}<br>${said(TENSORS.smallest[place])} to ${said(TENSORS.largest[place])}, median ${said(TENSORS.median[place])}`);
  const look = pointLook();
  const medians = {
    x: known.map((place) => place + 1), y: known.map((place) => TENSORS.median[place]), customdata: text, mode: "markers",
    marker: { ...look, color: known.map((place) => look.color[place]) }, hovertemplate: "%{customdata}<extra></extra>",
  };
  const up = axis("magnitude", { type: "log", exponentformat: "power", nticks: 8, tickfont: { size: 10.5 } });
  return { traces: [ranges, medians], layout: layout({ xaxis: tensorAxis(narrow), yaxis: up, hovermode: "closest" }) };
}

const CHARTS = { zeros: zeroChart, magnitudes: magnitudeChart };

function tensorTable() {
  const number = (column, text = counted) => [
    column, (place) => valued(TENSORS[column][place], TENSORS[column][place] === null ? "" : text(TENSORS[column][place])), true,
  ];
  const text = (name, column = name) => [name, (place) => TENSORS[column][place] || "\u2013"];
  const share = ["zeros (%)", (place) => valued(TENSORS.zeros[place] === null ? null : shownShare(place), shownShare(place).toFixed(2)), true];
  const columns = [
    text("tensor", "name"), text("shape"), text("dtype"), number("size"), number("layers"), number("zeros"), share,
    number("nonfinite"), number("smallest", said), number("median", said), number("largest", said), text("file"),
  ];
  return tabulated("Every tensor; magnitudes are of what is neither zero nor infinite", columns, PLACES.map((_, place) => place));
}

const figures = [...document.querySelectorAll("figure[data-chart]")];
const drawnOnes = new Set();

function draw(figure, width = null) {
  drawnOnes.add(figure);
  plotInto(figure, CHARTS[figure.dataset.chart], width);
}

startTheme(() => drawnOnes.forEach((figure) => draw(figure)));
startPage();
document.querySelector("[data-table=tensors]").append(tensorTable());
watchFigures(figures, (figure, isSeen) => isSeen && !drawnOnes.has(figure) && drawFirst(figure, draw));
watchPaper(figures, draw);
