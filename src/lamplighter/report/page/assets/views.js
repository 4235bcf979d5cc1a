// Charts are drawn when they come into view, in the reader's theme, and all of them for paper.

const PRINTED = 680; // pixels that fit on a sheet

// The first time: the plotting library may have to be unpacked.
async function drawFirst(figure, draw) {
  const plot = figure.querySelector(".plot");
  plot.classList.add("waiting");
  try {
    await plotting();
    draw(figure);
  } catch (error) {
    plot.textContent = "This chart could not be drawn; the tables have its values.";
    console.error(error);
  }
  plot.classList.remove("waiting");
}

// Tells of every chart when it comes into view and when it leaves.
function watchFigures(figures, changed) {
  const tell = (entries) => entries.forEach(({ target, isIntersecting }) => changed(target, isIntersecting));
  const watch = new IntersectionObserver(tell, { rootMargin: "300px" });
  figures.forEach((figure) => watch.observe(figure));
}

// Marks the link of the section that is being read.
function watchSections() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    const seen = entries.find((entry) => entry.isIntersecting);
    if (!seen) return;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(seen.target.id)?.setAttribute("aria-current", "true");
  }, { rootMargin: "-20% 0px -75% 0px" });
  for (const section of document.querySelectorAll("main > section")) watch.observe(section);
}

// On paper: light, every chart, as wide as the sheet.
function watchPaper(figures, draw) {
  const root = document.documentElement;
  const drawAll = (width) => {
    recolour();
    if (globalThis.Plotly) figures.forEach((figure) => draw(figure, width));
  };
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    drawAll(PRINTED);
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    drawAll(null);
  });
}

// Draws a chart into its figure, as wide as there is room or as is said.
function plotInto(figure, make, width) {
  const plot = figure.querySelector(".plot");
  const made = make((width ?? plot.clientWidth) < 520);
  Object.assign(made.layout, width ? { width, height: plot.clientHeight, autosize: false } : { autosize: true });
  Plotly.react(plot, made.traces, made.layout, CONFIG);
  return plot;
}

function startPage() {
  for (const table of document.querySelectorAll("table.sortable")) if (!table.closest("[data-table]")) sortable(table);
  if (innerWidth < 1000) document.querySelector("nav details").open = false;
  watchSections();
}
