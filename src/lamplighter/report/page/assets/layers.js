// What is left of each layer after one round: percent, counts, and shares of the budget.

// From dark to light, even in grey and for every kind of colour vision.
const SHADES = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
const MOST_SEGMENTS = 200;

function keptBy(group, method) {
  return group.layers.kept[method][group.place];
}

function present(group) {
  return Object.keys(group.layers.kept).filter((method) => group.isShown(method) && keptBy(group, method));
}

function survival(group, narrow) {
  const { sizes } = group.layers;
  const values = (kept) => kept.map((count, layer) => (100 * count) / sizes[layer]);
  const floor = lowest(group, values) / 2;
  const { linear } = group.options;
  const traces = layerTraces(group, values, linear ? 0 : floor, (value, count) => `${percentOf(value)} %, ${counted(count)} left`);
  const scale = linear ? { range: [-2, 103] } : logAxis(group, floor, 130, (tick) => `${tick}`);
  return { traces, layout: layout({ xaxis: layerAxis(group, narrow), yaxis: axis("of the layer survives (%)", scale) }) };
}

function counts(group, narrow) {
  const floor = lowest(group, (kept) => kept) / 2;
  const most = 2 * Math.max(...group.layers.sizes);
  const traces = layerTraces(group, (kept) => kept, floor, (_, count) => `${counted(count)} left`);
  const scale = logAxis(group, floor, most, (tick) => (tick < 1000 ? `${tick}` : tick < 1e6 ? `${tick / 1000}k` : `${tick / 1e6}M`));
  return { traces, layout: layout({ xaxis: layerAxis(group, narrow), yaxis: axis("weights left in the layer", scale) }) };
}

const percentOf = (value) => (value === 0 ? "0" : value >= 99.95 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toPrecision(2));

// The smallest value of any round: the axis stays where it is while the slider moves.
function lowest(group, values) {
  let least = Infinity;
  for (const kept of Object.values(group.layers.kept).flat()) {
    for (const value of kept ? values(kept) : []) if (value > 0 && value < least) least = value;
  }
  return Number.isFinite(least) ? least : 1;
}

// With a place for 0 at the lower end, if any layer is ever emptied.
function logAxis(group, low, high, name) {
  const ticks = powers(low * 1.5, high);
  const emptied = Object.values(group.layers.kept).flat().some((kept) => kept?.includes(0));
  const [zero, text] = emptied ? [[low], ["0"]] : [[], []];
  const range = [Math.log10(low * (emptied ? 0.9 : 1.4)), Math.log10(high)];
  return { type: "log", range, tickvals: [...zero, ...ticks], ticktext: [...text, ...ticks.map(name)] };
}

function layerTraces(group, values, floor, describe) {
  const methods = present(group);
  const places = group.layers.names.map((_, layer) => layer + 1);
  const lines = methods.map((method) => {
    const kept = keptBy(group, method);
    const found = values(kept);
    return {
      x: places,
      y: found.map((value) => Math.max(value, floor)),
      customdata: found.map((value, layer) => describe(value, kept[layer])),
      name: plain(method),
      mode: places.length > 60 ? "lines" : "lines+markers",
      line: lineOf(method),
      marker: layerMarker(group, method),
      cliponaxis: places.length > 60,
      hovertemplate: `<b>${plain(method)}</b> %{customdata}<extra></extra>`,
    };
  });
  return lines.length ? [titles(group, lines[0].y), ...lines] : [];
}

// In a profile 1x1 convolutions are hollow.
function layerMarker(group, method) {
  const { pointwise } = group.layers;
  if (!pointwise) return markerOf(method);
  const [filled, hollow] = [markerOf(method), markerOf(method, true)];
  const each = (read) => pointwise.map((is) => read(is ? hollow : filled));
  const line = { color: each((marker) => marker.line.color), width: each((marker) => marker.line.width) };
  return { ...filled, color: each((marker) => marker.color), line };
}

// An unseen line whose hover text names the layer, above those of the methods.
function titles(group, y) {
  const { names, shapes, sizes } = group.layers;
  const text = names.map((name, layer) => plain(`${name}: ${shapes[layer] || counted(sizes[layer])}`));
  return {
    x: names.map((_, layer) => layer + 1), y, customdata: text, mode: "lines", line: { width: 0, color: "rgba(0,0,0,0)" },
    hovertemplate: "%{customdata}<extra></extra>", name: "",
  };
}

function layerAxis(group, narrow) {
  const numbered = numberedAxis("layer, from input to output", group.layers.names.length, narrow);
  return { ...numbered, unifiedhovertitle: { text: "layer %{x}" } };
}

function budgets(group, narrow) {
  const methods = present(group).reverse();
  const blocks = segments(group.layers.names.length);
  const traces = methods.map((method) => shares(group, method, blocks));
  const names = axis("", { type: "category", showgrid: false, ticksuffix: "  ", fixedrange: true });
  const across = axis("share of the weights left (%)", { range: [0, 100], nticks: narrow ? 6 : 11 });
  const margin = { l: narrow ? 78 : 92, r: 14, t: 8, b: 48 };
  return { traces, layout: layout({ xaxis: across, yaxis: names, barmode: "overlay", bargap: 0.28, uniformtext: { minsize: 9, mode: "hide" }, hovermode: "closest", margin }) };
}

// Layers each by itself, or neighbours together where they are too many to be seen.
function segments(count) {
  const width = Math.ceil(count / MOST_SEGMENTS);
  const starts = Array.from({ length: Math.ceil(count / width) }, (_, place) => place * width);
  return starts.map((start) => [start, Math.min(start + width, count)]);
}

function shares(group, method, blocks) {
  const kept = keptBy(group, method);
  const { names, sizes } = group.layers;
  const sum = (list, [from, to]) => list.slice(from, to).reduce((total, value) => total + value, 0);
  const total = Math.max(1, sum(kept, [0, kept.length]));
  const parts = blocks.map((block) => (100 * sum(kept, block)) / total);
  let reached = 0;
  const base = parts.map((part) => (reached += part) - part);
  const text = blocks.map((block, place) => {
    const [from, to] = block;
    const named = to - from === 1 ? `layer ${to}: ${names[from]}` : `layers ${from + 1} to ${to}`;
    const left = `${counted(sum(kept, block))} of ${counted(sum(sizes, block))} left`;
    return `<b>${plain(method)}</b>, ${plain(named)}<br>${left}, ${percentOf(parts[place])} % of the budget`;
  });
  return {
    type: "bar", orientation: "h", y: blocks.map(() => plain(method)), x: parts, base, customdata: text,
    text: blocks.map(([from, to]) => (to - from === 1 ? `${to}` : "")), textposition: "inside", insidetextanchor: "middle",
    textangle: 0, constraintext: "both", insidetextfont: { size: 12 },
    marker: { color: blocks.map(([from]) => shade(from / Math.max(1, names.length - 1))), line: { color: palette().ground, width: 0.7 } },
    hovertemplate: "%{customdata}<extra></extra>", name: plain(method),
  };
}

function shade(share) {
  const place = Math.min(share * (SHADES.length - 1), SHADES.length - 1.0001);
  const [low, part] = [Math.floor(place), place % 1];
  const mixed = SHADES[low].map((value, channel) => Math.round(value + part * (SHADES[low + 1][channel] - value)));
  return `rgb(${mixed})`;
}
