// The plotting library: unpacked when first needed; what all charts have in common.

const LOOKS = embedded("looks");
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };
const STEPS = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
// A finger on a chart scrolls the page; a mouse drags a frame to zoom.
const COARSE = matchMedia("(pointer: coarse)");
let loading = null;

function plotting() {
  loading ??= unpack();
  return loading;
}

async function unpack() {
  const packed = atob(document.getElementById("plotly").textContent);
  const bytes = new Uint8Array(packed.length);
  for (let place = 0; place < packed.length; place += 1) bytes[place] = packed.charCodeAt(place);
  const unpacked = new DecompressionStream("gzip");
  const writer = unpacked.writable.getWriter();
  writer.write(bytes); // all at once: in pieces, by way of a Blob, it takes twenty times as long
  writer.close();
  const script = make("script");
  script.textContent = await new Response(unpacked.readable).text();
  document.head.append(script);
  script.remove();
}

const colour = (method) => LOOKS[method][isDark() ? "dark" : "light"];

function lineOf(method, thin = false) {
  return { color: colour(method), width: thin ? 1.2 : 2, dash: LOOKS[method].dash };
}

function markerOf(method, hollow = false) {
  const { ground } = palette();
  const own = colour(method);
  const outline = hollow ? { color: own, width: 1.3 } : { color: ground, width: 0.8 };
  return { symbol: LOOKS[method].symbol, size: hollow ? 7 : 8, color: hollow ? ground : own, line: outline };
}

function translucent(hex, share) {
  const [red, green, blue] = [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
  return `rgba(${red},${green},${blue},${share})`;
}

function axis(title, more = {}) {
  const { soft, grid, line } = palette();
  const own = { text: title, standoff: 8, font: { size: 13 } };
  return { title: own, gridcolor: grid, linecolor: line, zeroline: false, color: soft, fixedrange: COARSE.matches, ...more };
}

// For things that are numbered from 1.
function numberedAxis(title, count, narrow) {
  const step = STEPS.find((each) => count / each <= (narrow ? 8 : 14)) ?? count;
  const ticks = [1];
  for (let place = step === 1 ? 2 : step; place <= count; place += step) if (place > 1) ticks.push(place);
  const range = [1 - 0.02 * count - 0.3, count + 0.02 * count + 0.3];
  return axis(title, { tickvals: ticks, showgrid: false, range });
}

function layout(more) {
  const { ink, raised, line } = palette();
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: FONT, size: 12.5, color: ink },
    hoverlabel: { bgcolor: raised, bordercolor: line, font: { family: FONT, color: ink, size: 12.5 }, align: "left", namelength: -1 },
    margin: { l: 62, r: 14, t: 12, b: 52 },
    showlegend: false,
    dragmode: COARSE.matches ? false : "zoom",
    hovermode: "x unified",
    ...more,
  };
}

// Ticks of a logarithmic axis: powers of ten within the range, and what stands at its lower end.
function powers(low, high) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high * 1.0001; power += 1) found.push(10 ** power);
  return found;
}
