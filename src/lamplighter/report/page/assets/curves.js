// Trade-off curves: means over seeds, bands of one deviation, the paper's values, one-shot pruning.

const X_TITLE = "weights that survive (%)";

function curves(group, narrow) {
  const { numbers, options } = group;
  const methods = numbers.methods.filter((method) => group.isShown(method.name));
  const traces = [];
  for (const method of methods) traces.push(...bands(numbers, method));
  for (const method of methods) traces.push(curve(numbers, method));
  if (options.paper) for (const method of methods) if (method.paper) traces.push(paperCurve(numbers, method));
  if (options.oneshot) traces.push(...oneshotCurves(group));
  return { traces, layout: layout({ xaxis: densityAxis(numbers, narrow), yaxis: valueAxis(numbers), shapes: [mark(group)] }) };
}

// The points of a method, the dense network first.
function points(numbers, method) {
  const later = numbers.rounds.map((round, place) => [numbers.left[place], method.cells[place]]);
  return [...(numbers.dense ? [[100, numbers.dense]] : []), ...later].filter(([, cell]) => cell && cell[0] !== null);
}

function curve(numbers, method, look = {}) {
  const found = points(numbers, method);
  const name = look.name ?? method.name;
  return {
    x: found.map(([left]) => left),
    y: found.map(([, cell]) => cell[0]),
    customdata: found.map(([, cell]) => cellText(cell)),
    name: plain(name),
    mode: "lines+markers",
    line: lineOf(method.name, look.thin),
    marker: markerOf(method.name, look.thin),
    hovertemplate: `<b>${plain(name)}</b> %{customdata}<extra></extra>`,
    ...look.trace,
  };
}

// One polygon for each stretch of points with a deviation.
function bands(numbers, method) {
  const stretches = [[]];
  for (const [left, cell] of points(numbers, method)) {
    if (cell[1] === null) stretches.push([]);
    else stretches.at(-1).push([left, cell[0], cell[1]]);
  }
  return stretches.filter((stretch) => stretch.length > 1).map((stretch) => band(numbers, method.name, stretch));
}

function band(numbers, name, stretch) {
  const most = numbers.percent ? 100 : Infinity;
  const above = stretch.map(([left, mean, deviation]) => [left, Math.min(most, mean + deviation)]);
  const below = stretch.map(([left, mean, deviation]) => [left, Math.max(0, mean - deviation)]).reverse();
  const around = [...above, ...below];
  const fill = { fill: "toself", fillcolor: translucent(colour(name), 0.16), hoverinfo: "skip" };
  return { x: around.map(([x]) => x), y: around.map(([, y]) => y), mode: "lines", line: { width: 0 }, ...fill };
}

function paperCurve(numbers, method) {
  const places = numbers.rounds.map((_, place) => place).filter((place) => method.paper[place]);
  const values = places.map((place) => method.paper[place]);
  return {
    x: places.map((place) => numbers.left[place]),
    y: values.map(([mean]) => mean),
    customdata: values.map(([mean, deviation]) => `${shown(mean)} ± ${shown(deviation)}`),
    name: plain(`${method.name}, paper`),
    mode: "lines+markers",
    opacity: 0.75,
    line: { ...lineOf(method.name, true), width: 1 },
    marker: markerOf(method.name, true),
    hovertemplate: `<i>${plain(method.name)}, paper</i> %{customdata}<extra></extra>`,
  };
}

function oneshotCurves(group) {
  const other = group.other;
  const methods = other.methods.filter((method) => group.isShown(method.name));
  const bare = { ...other, dense: null };
  return methods.map((method) => curve(bare, method, { name: `${method.name}, one-shot`, thin: true, trace: { opacity: 0.75 } }));
}

function densityAxis(numbers, narrow) {
  const every = [...(numbers.dense ? [100] : []), ...numbers.left];
  const step = Math.max(1, Math.ceil(every.length / (narrow ? 5 : 11)));
  const ticks = every.filter((_, place) => place % step === 0);
  const ends = [Math.max(...every) * 1.12, Math.min(...every) / 1.12].map(Math.log10);
  const title = { text: "%{x:.3g} % of the weights left" };
  return axis(X_TITLE, {
    type: "log", range: ends, tickvals: ticks, ticktext: ticks.map(percent), unifiedhovertitle: title,
  });
}

// Room for every mean; bands that reach further are cut, as a deviation of 20 points would flatten all curves.
function valueAxis(numbers) {
  const means = numbers.methods.flatMap((method) => [
    ...points(numbers, method).map(([, cell]) => cell[0]),
    ...(method.paper ?? []).filter(Boolean).map(([mean]) => mean),
  ]);
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const pad = Math.max(0.06 * (high - low), 0.5);
  const range = [Math.max(0, low - pad), numbers.percent ? Math.min(100, high + pad) : high + pad];
  return axis(numbers.label, { range, nticks: 8 });
}

// The round that the slider stands on.
function mark(group) {
  const left = group.numbers.left[group.place];
  const line = { color: palette().soft, width: 1, dash: "dot" };
  return { type: "line", x0: left, x1: left, yref: "paper", y0: 0, y1: 1, line, layer: "below" };
}
